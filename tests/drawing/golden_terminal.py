"""The terminal pictures of the golden files: without colour, for a width and an encoding."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import graphcut
from graphcut import Into, Within, demos
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan
from graphcut.drawing.terminal.scene import draw_scene
from graphcut.drawing.terminal.screen import screen_on

import scenes_by_hand as by_hand

SIZES = {"batch": 1, "seq": 16, "past": 0, "total": 16}


def screen(scene: Scene, width: int, encoding: str = "utf-8", *, explain: bool = False, **environment: str) -> str:
    """What a console prints; a terminal with colours where `TERM` is given."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        height=50,
        force_terminal="TERM" in environment,
        highlight=False,
        legacy_windows=False,
        _environ=environment,
    )
    console.print(draw_scene(scene, screen_on(console), explain=explain))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


def decoder_analysis() -> Scene:
    """The demo's decoder, not cut."""
    with TemporaryDirectory() as folder:
        demos.write("llm", Path(folder) / "llm.onnx")
        return scene_of_analysis(graphcut.analyze(graphcut.load(Path(folder) / "llm.onnx", dims=SIZES)))


def decoder_plan() -> Scene:
    """The demo's decoder in three parts, some of it recomputed."""
    with TemporaryDirectory() as folder:
        demos.write("llm", Path(folder) / "llm.onnx")
        analysis = graphcut.analyze(graphcut.load(Path(folder) / "llm.onnx", dims=SIZES))
        return scene_of_plan(graphcut.plan(analysis, Into(3, "layers")), analysis)


def unet_cascade() -> Scene:
    """The demo's U-Net within a budget."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        demos.write("unet", folder / "unet.onnx")
        model = graphcut.load(folder / "unet.onnx", dims={"batch": 1})
        cascade = graphcut.split(
            model, graphcut.plan(graphcut.analyze(model), Within(200_000, ())), folder / "unet.parts"
        )
        return scene_of_cascade(cascade, model)


def _drawn(make: Callable[[], Scene], width: int, encoding: str) -> str:
    return screen(make(), width, encoding, explain=True)


TERMINAL: list[tuple[str, Callable[[], str]]] = [
    (f"terminal-{name}-{width}{'-ascii' if encoding == 'ascii' else ''}.txt", partial(_drawn, make, width, encoding))
    for name, make, width, encoding in (
        ("one-part", partial(by_hand.decoder, 1, nodes=40), 80, "utf-8"),
        ("chain", partial(by_hand.decoder, 4, nodes=200), 80, "utf-8"),
        ("chain", partial(by_hand.decoder, 4, nodes=200), 80, "ascii"),
        ("chain", partial(by_hand.decoder, 4, nodes=200), 200, "utf-8"),
        ("long-chain", partial(by_hand.decoder, 16, nodes=200), 80, "utf-8"),
        ("64-parts", partial(by_hand.decoder, 64), 80, "utf-8"),
        ("heads", by_hand.heads, 80, "utf-8"),
        ("hostile", by_hand.hostile, 80, "utf-8"),
        ("analysis", decoder_analysis, 110, "utf-8"),
        ("plan", decoder_plan, 110, "utf-8"),
        ("plan", decoder_plan, 80, "ascii"),
        ("unet", unet_cascade, 110, "utf-8"),
    )
]
