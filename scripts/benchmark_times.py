"""`scripts/benchmark times`: predicted against measured seconds of parts, on six architectures that are made for it.

Each model is cut into parts. The share that each part has in the time of all parts is predicted in three ways: by the
roofline model on the default device, on this machine as `measure machine` describes it, and by a table of
`measure MODEL`. Parts are measured in turn, one run of each in every round, with one thread; what counts is the
processor time of that thread, so that other programs disturb little, in the fastest round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from benchmark_run import row

import graphcut
from graphcut import At, Device, Into, Plan, SessionConfig, calibrate, generate_inputs, measure, weigh
from graphcut.costs.device import run_s
from graphcut.costs.matching import apply_table
from graphcut.demos import write
from graphcut.demos.drafting import Draft
from graphcut.demos.saving import save
from graphcut.running.stage import session_options

if TYPE_CHECKING:
    from graphcut import Model

ROUNDS = 9
PARTS = 4
SMALLEST_SHARE = 0.05
MOST_CUTS = 24
"""How many single cuts of a model are measured."""


# --- models


def resnet(scale: int) -> Draft:
    """ResNet-50: bottleneck blocks, batch norms folded into the convolutions."""
    draft = Draft("resnet")
    x = draft.reads("image", "float32", [1, 3, 224 // scale, 224 // scale])
    draft.returns("logits", "float32", [1, 1000])
    x = draft.node("Relu", draft.inside("stem").conv(x, (3, 64), kernel=7, stride=2))
    x = draft.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            at = draft.inside(f"layer{stage + 1}", str(block))
            stride = 2 if stage and not block else 1
            kept = at.inside("shortcut").conv(x, (before, 4 * width), kernel=1, stride=stride) if not block else x
            y = at.node("Relu", at.inside("conv1").conv(x, (before, width), kernel=1))
            y = at.node("Relu", at.inside("conv2").conv(y, (width, width), stride=stride))
            y = at.inside("conv3").conv(y, (width, 4 * width), kernel=1)
            x, before = at.node("Relu", at.node("Add", y, kept)), 4 * width
    flat = draft.node("Flatten", draft.node("GlobalAveragePool", x))
    draft.inside("head").linear(flat, before, 1000, writes="logits")
    return draft


def densenet(scale: int) -> Draft:
    """A smaller DenseNet: batch norms before convolutions, which nothing can fold, and concatenations."""
    draft = Draft("densenet")
    x = draft.reads("image", "float32", [1, 3, 224 // scale, 224 // scale])
    draft.returns("logits", "float32", [1, 1000])
    x = draft.inside("stem").conv(x, (3, 64), kernel=7, stride=2)
    x = draft.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    width = 64
    for block, layers in enumerate((6, 12, 8)):
        for layer in range(layers):
            at = draft.inside(f"block{block + 1}", str(layer))
            y = at.inside("conv1").conv(_normed(at.inside("norm1"), x, width), (width, 128), kernel=1)
            y = at.inside("conv2").conv(_normed(at.inside("norm2"), y, 128), (128, 32))
            x, width = at.node("Concat", x, y, axis=1), width + 32
        at = draft.inside(f"transition{block + 1}")
        x = at.inside("conv").conv(_normed(at.inside("norm"), x, width), (width, width // 2), kernel=1)
        x, width = at.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), width // 2
    flat = draft.node("Flatten", draft.node("GlobalAveragePool", x))
    draft.inside("head").linear(flat, width, 1000, writes="logits")
    return draft


def _normed(at: Draft, x: str, width: int) -> str:
    facts = [at.weight(name, (width,), scale=0.01, mean=1.0) for name in ("scale", "bias", "mean", "variance")]
    return at.node("Relu", at.node("BatchNormalization", x, *facts))


def vit(scale: int) -> Draft:
    """ViT with 196 patches."""
    draft, width = Draft("vit"), 384 // scale
    x = draft.reads("image", "float32", [1, 3, 224, 224])
    draft.returns("logits", "float32", [1, 196, 1000])
    at = draft.inside("patches")
    weight = at.weight("weight", (width, 3, 16, 16), scale=0.03)
    x = at.node("Conv", x, weight, kernel_shape=[16, 16], strides=[16, 16])
    x = at.node("Transpose", at.node("Reshape", x, at.constant(np.array([1, width, 196]))), perm=[0, 2, 1])
    for layer in range(8):
        x = _layer(draft.inside(f"layers.{layer}"), x, width)
    draft.inside("head").linear(_norm(draft.inside("norm"), x, width), width, 1000, writes="logits")
    return draft


def minilm(scale: int) -> Draft:
    """MiniLM: an encoder of text with few layers and a large embedding; norms come after additions."""
    draft, width = Draft("minilm"), 384 // scale
    ids = draft.reads("input_ids", "int64", [1, 128])
    draft.returns("hidden", "float32", [1, 128, width])
    at = draft.inside("embeddings")
    x = _norm(at, at.node("Gather", at.weight("weight", (8000, width), scale=0.05), ids), width)
    for layer in range(6):
        at = draft.inside(f"layers.{layer}")
        x = _norm(at.inside("norm1"), at.node("Add", x, _attention(at.inside("attention"), x, x, width)), width)
        x = _norm(at.inside("norm2"), at.node("Add", x, _mlp(at.inside("mlp"), x, width)), width)
    draft.node("Tanh", draft.inside("pooler").linear(x, width, width), writes="hidden")
    return draft


def whisper(scale: int) -> Draft:
    """Whisper: two convolutions and an encoder of long audio, then a decoder that attends to it, and a large head."""
    draft, width = Draft("whisper"), 384 // scale
    audio = draft.reads("input_features", "float32", [1, 80, 1, 1000])
    ids = draft.reads("decoder_input_ids", "int64", [1, 64])
    draft.returns("logits", "float32", [1, 64, 16000])
    at, x = draft.inside("encoder"), audio
    for i, stride in enumerate((1, 2)):
        weight = at.inside(f"conv{i + 1}").weight("weight", (width, 80 if i == 0 else width, 1, 3), scale=0.05)
        x = at.node("Conv", x, weight, kernel_shape=[1, 3], pads=[0, 1, 0, 1], strides=[1, stride])
        x = _gelu(at, x)
    x = at.node("Transpose", at.node("Reshape", x, at.constant(np.array([1, width, 500]))), perm=[0, 2, 1])
    for layer in range(4):
        x = _layer(at.inside(f"layers.{layer}"), x, width)
    heard = _norm(at.inside("norm"), x, width)
    at = draft.inside("decoder")
    x = at.node("Gather", at.weight("weight", (16000, width), scale=0.05), ids)
    for layer in range(4):
        x = _layer(at.inside(f"layers.{layer}"), x, width, heard)
    draft.inside("head").linear(_norm(at.inside("norm"), x, width), width, 16000, writes="logits")
    return draft


def _layer(at: Draft, x: str, width: int, heard: str = "") -> str:
    """A transformer layer with norms first; with attention to `heard` if that is given."""
    normed = _norm(at.inside("norm1"), x, width)
    x = at.node("Add", x, _attention(at.inside("attention"), normed, normed, width))
    if heard:
        normed = _norm(at.inside("norm_cross"), x, width)
        x = at.node("Add", x, _attention(at.inside("cross"), normed, heard, width))
    return at.node("Add", x, _mlp(at.inside("mlp"), _norm(at.inside("norm2"), x, width), width))


def _attention(at: Draft, x: str, source: str, width: int, heads: int = 6) -> str:
    def project(name: str, x: str, perm: Sequence[int]) -> str:
        flat = _biased(at.inside(name), x, width, width)
        return at.node(
            "Transpose", at.node("Reshape", flat, at.constant(np.array([0, 0, heads, width // heads]))), perm=perm
        )

    query, key = project("query", x, [0, 2, 1, 3]), project("key", source, [0, 2, 3, 1])
    value = project("value", source, [0, 2, 1, 3])
    scores = at.node("Mul", at.node("MatMul", query, key), at.constant(np.array(0.125, np.float32)))
    mixed = at.node("Transpose", at.node("MatMul", at.node("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    return _biased(at.inside("out"), at.node("Reshape", mixed, at.constant(np.array([0, 0, width]))), width, width)


def _mlp(at: Draft, x: str, width: int) -> str:
    return _biased(at.inside("down"), _gelu(at, _biased(at.inside("up"), x, width, 4 * width)), 4 * width, width)


def _biased(at: Draft, x: str, width: int, units: int) -> str:
    return at.node("Add", at.weight("bias", (units,), scale=0.1), at.linear(x, width, units))


def _gelu(at: Draft, x: str) -> str:
    root, one, half = (at.constant(np.array(number, np.float32)) for number in (2**0.5, 1, 0.5))
    inner = at.node("Add", at.node("Erf", at.node("Div", x, root)), one)
    return at.node("Mul", at.node("Mul", x, inner), half)


def _norm(at: Draft, x: str, width: int) -> str:
    scale, bias = at.weight("scale", (width,), scale=0.1, mean=1.0), at.weight("shift", (width,), scale=0.1)
    return at.node("LayerNormalization", x, scale, bias, axis=-1)


MODELS: Mapping[str, Callable[[int], Draft]] = {
    "resnet50": resnet,
    "densenet": densenet,
    "vit": vit,
    "minilm": minilm,
    "whisper": whisper,
}
LLAMA = {"hidden": 384, "layers": 8, "heads": 6, "kv_heads": 6, "vocab": 8000}
LLAMA_DIMS = {"batch": 1, "seq": 64, "past": 0, "total": 64}
Parts = Sequence[Sequence[int]]


# --- measuring


@dataclass(frozen=True)
class MadePart:
    """A part with its session, and what it is fed."""

    session: ort.InferenceSession
    feeds: Mapping[str, ort.OrtValue]
    writes: list[str]

    def cpu_s(self) -> float:
        """Processor seconds of one run; the session has no other thread."""
        began = time.thread_time()
        self.session.run_with_ort_values(self.writes, self.feeds)
        return time.thread_time() - began


def made_parts(model: Model, parts: Sequence[Sequence[int]]) -> list[MadePart]:
    """The parts with these nodes, loaded, each with the values that it reads in a run of the whole."""
    inputs = generate_inputs(model, sizes=dict(model.dims))
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    made = []
    plan = Plan(At(()), model.graph, tuple(map(tuple, parts)))
    with tempfile.TemporaryDirectory(dir=model.path.parent) as folder:
        cascade = graphcut.split(model, plan, f"{folder}/parts")
        for part in cascade.parts:
            options = session_options(SessionConfig(threads=1))
            session = ort.InferenceSession(cascade.root / part.file, options, providers=["CPUExecutionProvider"])
            feeds, writes = {name: values[name] for name in part.reads}, list(part.writes)
            values |= zip(writes, session.run_with_ort_values(writes, feeds), strict=True)
            made.append(MadePart(session, feeds, writes))
    return made


def in_turn_s(parts: Sequence[MadePart]) -> list[float]:
    """The processor seconds of each part: the shortest over rounds in which each runs once."""
    rounds = [[part.cpu_s() for part in parts] for _ in range(1 + ROUNDS)][1:]
    return [min(times) for times in zip(*rounds, strict=True)]


def bench_times(folder: Path, *, small: bool) -> None:
    """All models."""
    here = calibrate(threads=1).device
    figures = f"{here.flops_per_s:.3g} FLOP/s, {here.bytes_per_s:.3g} B/s, {here.dispatch_s:.3g} s a node"
    row("this machine, one thread", figures, "-")
    for name in ("llama", *MODELS):
        path = folder / f"{name}.onnx"
        if name == "llama":
            write("llm", path, **LLAMA)
        else:
            save(MODELS[name](2 if small else 1), path)
        bench_model(name, graphcut.load(path, dims=LLAMA_DIMS if name == "llama" else {}), here)


def bench_model(name: str, model: Model, here: Device) -> None:
    """The shares of four parts, and the slowest of two parts, by each way to predict them."""
    costs = weigh(model)
    found = measure(model, threads=1)
    ways = {
        "default device": run_s(costs, Device(name="default")),
        "calibrated": run_s(costs, here),
        "measured": apply_table(costs, found.table, here)[0],
    }
    fours, pairs = divisions(model)
    made = [made_parts(model, parts) for parts in (fours, *pairs)]
    seconds = iter(in_turn_s([part for parts in made for part in parts]))
    four_s, *pair_s = ([next(seconds) for _ in parts] for parts in made)
    best_s = min(map(max, pair_s))
    for way, node_s in ways.items():
        off = worst_share(predicted(model, node_s, fours), four_s)
        guesses = [max(predicted(model, node_s, parts)) for parts in pairs]
        chosen_s = max(pair_s[guesses.index(min(guesses))])
        row(f"{name}, {way}: a part's share of four", f"{off:.1%} off", "5 % measured")
        row(f"{name}, {way}: slowest of two, to the best cut", f"+{chosen_s / best_s - 1:.1%}", "+5 % measured")
    row(f"{name}: cuts measured; spread of the cost model", f"{len(pairs)}; {found.spread:.0%}", "-")


def divisions(model: Model) -> tuple[Parts, list[Parts]]:
    """Four parts as graphcut plans them by itself, and the two parts of each cut where few bytes cross."""
    analysis = graphcut.analyze(model)
    points = sorted(analysis.cut_points, key=lambda point: point.bytes)[: 2 * len(analysis.cut_points) // 3]
    points = [p for p in sorted(points, key=lambda p: p.nodes_before) if p.nodes_before < len(model.graph.flow)]
    points = points[:: -(-len(points) // MOST_CUTS)]
    pairs = [graphcut.plan(analysis, At([point.node])).parts for point in points]
    return graphcut.plan(analysis, Into(PARTS)).parts, pairs


def predicted(model: Model, node_s: Sequence[float], parts: Parts) -> list[float]:
    """The seconds of each part."""
    seconds = dict(zip(model.graph.flow, node_s, strict=True))
    return [sum(seconds[node] for node in part) for part in parts]


def worst_share(guessed: Sequence[float], real: Sequence[float]) -> float:
    """How far the guessed share of a part is from its real one, at most, as a share of the latter.

    Parts of less than a twentieth of the whole don't count: to start their run takes longer than they do.
    """
    pairs = [(g / sum(guessed), r / sum(real)) for g, r in zip(guessed, real, strict=True)]
    return max(abs(g / r - 1) for g, r in pairs if r >= SMALLEST_SHARE)
