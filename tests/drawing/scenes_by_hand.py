"""Scenes made by hand: pictures of cascades without a model."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from graphcut.analysis.cut_points import CutPoint
from graphcut.drawing.scene import BoundaryTensor, Card, CutProfile, Scene, buses_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOSTILE = '</text><script>alert("1")</script>&amp;\n\\N{x} [red] #quot; `a` ]]> \x00\u202e\ud800 %%{init}%% end'
"""A name that means something in every grammar we write."""


def card(index: int, *, depth: int | None = None, **changes: object) -> Card:
    """The part with that index of a chain."""
    usual = Card(
        name=f"part-{index}.onnx",
        device="",
        content="",
        nodes=100 + index,
        replicas=0,
        weight_bytes=3 * GIB,
        need_bytes=3 * GIB + index * 100 * MIB,
        budget_bytes=None,
        activation_bytes=None,
        flops=None,
        busy_s=None,
        reads=("x",),
        writes=("y",),
        depth=index if depth is None else depth,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def tensor(name: str, source: int, *readers: int, size: int = 4 * MIB, is_exact: bool = True) -> BoundaryTensor:
    """A tensor that goes from one part to others."""
    return BoundaryTensor(
        tensor=name, type="float16[1,512,4096]", bytes=size, is_exact=is_exact, source=source, readers=readers
    )


def scene(cards: Iterable[Card], tensors: Iterable[BoundaryTensor] = (), **changes: object) -> Scene:
    """A scene of these parts and tensors."""
    tensors = tuple(tensors)
    usual = Scene(
        title="model.onnx",
        sentence="Cut into some parts.",
        cards=tuple(cards),
        tensors=tensors,
        buses=buses_of(tensors),
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def profile(nodes: int, parts: int) -> CutProfile:
    """A decoder's profile: low between its layers, high inside."""
    alive = tuple(4864 * KIB + abs(i % 22 - 11) ** 3 * 20 * KIB for i in range(nodes))
    keys = tuple(i for i in range(1, nodes - 1) if alive[i - 1] > alive[i] < alive[i + 1])
    cut_options = tuple(
        CutPoint(
            f"/model/layers.{i}/add",
            i + 1,
            tuple("abcd"),
            alive[i],
            True,
            i * MIB,
            (nodes - i) * MIB,
            True,
            f"layers.{i}",
        )
        for i in keys
    )
    return CutProfile(
        nodes=tuple(f"/model/layers.{i}/add" for i in range(nodes)),
        ops=("Add",) * nodes,
        modules=tuple((("model", None), ("layers", i)) for i in range(nodes)),
        alive=alive,
        exact=(True,) * nodes,
        tensors=(4,) * nodes,
        weights=tuple(i * MIB for i in range(nodes)),
        keys=keys,
        parts=tuple(i * parts // nodes for i in range(nodes)) if parts else (),
        cut_options=cut_options,
    )


def decoder(parts: int, *, nodes: int = 1491) -> Scene:
    """A Llama-like decoder over that many devices: a chain, and three tensors that every part reads."""
    later = tuple(range(1, parts))
    names = ("/model/Where_2_output_0", "/model/rotary_emb/Cast_1_output_0", "/model/rotary_emb/Cast_2_output_0")
    shared = [tensor(name, 0, *later, size=size * KIB) for name, size in zip(names, (512, 128, 128), strict=True)]
    steps = [tensor(f"/model/layers.{7 + 9 * i}/Add_1_output_0", i, i + 1) for i in range(parts - 1)]
    cards = [
        card(
            i,
            device=f"node{i // 4}:gpu{i % 4}",
            content=f"layers {2 * i}-{2 * i + 1}" if i else "embedding, layers 0-1",
            budget_bytes=int(3.2 * GIB),
            flops=(200 + 10 * (i % 5)) * 10**9,
            busy_s=0.012 + 0.001 * (i % 3),
        )
        for i in range(parts)
    ]
    return scene(
        cards,
        (*(shared if parts > 1 else ()), *steps),
        title="llama-3-8b-fp16.onnx",
        sentence=f"Cut into {parts} parts. The largest, part-{parts - 1}.onnx, needs 3.3 GiB of a 3.2 GiB budget. "
        "At most 4.75 MiB crosses a boundary in one run; 3 tensors (768 KiB) skip over parts.",
        facts=(("nodes", "1,491"), ("weights", "15 GiB"), ("dims", "batch=1, seq=512")),
        profile=profile(nodes, parts),
    )


def heads() -> Scene:
    """A trunk and three heads, one of them fed by the middle of the trunk too."""
    cards = [
        card(0, content="stem, stages 0-1"),
        card(1, content="stage 2"),
        card(2, depth=2, content="depth"),
        card(3, depth=2, content="class"),
        card(4, depth=2, content="boxes"),
    ]
    tensors = [
        tensor("/stem/out", 0, 1),
        tensor("/stage1/out", 0, 1, 2, size=700 * KIB),
        tensor("/stage2/out", 1, 2, 3, 4, size=300 * KIB),
    ]
    return scene(cards, tensors, title="multitask.onnx", sentence="Cut into 5 parts: a trunk and its heads.")


def fork() -> Scene:
    """A trunk and three heads that all read the same."""
    cards = [card(0), *(card(i, depth=1, content=f"head {i}") for i in (1, 2, 3))]
    tensors = [tensor("/trunk", 0, 1, 2, 3), tensor("/mask", 0, 1, size=90 * KIB), tensor("/own", 0, 3, size=9)]
    return scene(cards, tensors, title="fork.onnx", sentence="Cut into 4 parts: a trunk and its heads.")


def towers() -> Scene:
    """Two towers, one deeper than the other, that meet at the end."""
    cards = [
        card(0, content="text, lower half"),
        card(1, content="text, upper half"),
        card(2, depth=0, content="vision"),
        card(3, depth=2, content="projection"),
    ]
    tensors = [tensor("/text/a", 0, 1), tensor("/text/b", 1, 3, size=3 * KIB), tensor("/vision/a", 2, 3, size=9 * KIB)]
    return scene(cards, tensors, title="clip.onnx", sentence="Cut into 4 parts.")


def tangle(parts: int) -> Scene:
    """Every part sends to every later one, alone and together."""
    pairs = [(a, b) for a in range(parts) for b in range(a + 1, parts)]
    tensors = [tensor(f"/t/{a}/{b}", a, b, size=(a + 1) * (b + 1) * KIB, is_exact=a % 2 == 0) for a, b in pairs]
    tensors += [tensor(f"/all/{a}", a, *range(a + 1, parts)) for a in range(parts - 2)]
    return scene([card(i, replicas=i) for i in range(parts)], tensors, title="tangle.onnx")


def wide(parts: int) -> Scene:
    """Parts side by side that one feeds and one gathers."""
    cards = [card(0), *(card(i, depth=1) for i in range(1, parts - 1)), card(parts - 1, depth=2)]
    tensors = [tensor("/in", 0, *range(1, parts - 1))]
    tensors += [tensor(f"/out/{i}", i, parts - 1, size=i * KIB) for i in range(1, parts - 1)]
    return scene(cards, tensors, title="wide.onnx")


def pipeline(steps: int) -> Scene:
    """A pipeline of models: two parts that run once, so many of each step, side by side but the last, and one after."""
    runs = ["once"] * 2 + ["each of 4 steps"] * steps + ["at the end"]
    depths = [0, 1, *[2] * (steps - 1), 2 + (steps > 1), 3 + (steps > 1)]
    contents = {"once": "text", "each of 4 steps": "unet", "at the end": "vae: up, out"}
    cards = [
        card(i, depth=depths[i], runs=one, content=contents[one], device="ab"[i % 2]) for i, one in enumerate(runs)
    ]
    tensors = [tensor("/said", 0, 1), tensor("/keys", 1, *range(2, 2 + steps))]
    tensors += [tensor(f"/mixed/{i}", 2 + i, 1 + steps) for i in range(steps - 1)]
    return scene(cards, [*tensors, tensor("/seen", 1 + steps, 2 + steps, size=KIB)], title="diffusion")


def hostile() -> Scene:
    """Names that want to be something else."""
    cards = [card(i, name=HOSTILE, device=HOSTILE * 3, content=HOSTILE, budget_bytes=GIB) for i in range(3)]
    tensors = [tensor(HOSTILE, 0, 1), tensor("名前" * 60 + "👩‍👩‍👧", 0, 1, 2), tensor("", 1, 2)]
    return scene(
        cards,
        [replace(one, type=HOSTILE) for one in tensors],
        title=HOSTILE,
        sentence=HOSTILE,
        facts=((HOSTILE, HOSTILE),),
        recomputed=(HOSTILE,),
        profile=replace(profile(60, 3), cut_options=()),
    )


def data_of(page: str) -> Any:  # noqa: ANN401 - what is in the page
    """The data that the script of a page reads."""
    (data,) = re.findall(r'<script type="text/plain" id="data">([\w+/=]*)</script>\n', page)
    return json.loads(zlib.decompress(base64.b64decode(data)))


def uncut(nodes: int = 400) -> Scene:
    """An analysis: nothing is cut."""
    return scene((), title="model.onnx", sentence="There are many cut points.", profile=profile(nodes, 0))
