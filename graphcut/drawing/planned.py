"""The terminal pen for plans."""

from __future__ import annotations

from rich.console import Console, RenderableType

from ..analysis import analyze
from ..model import Model
from ..planning.plans import Plan
from .scenes import scene_of_plan
from .terminal import draw_scene


def draw_plan(made: Plan, model: Model, console: Console, *, explain: bool) -> RenderableType:
    """A plan on one screen; with `explain`, why each cut is where it is."""
    return draw_scene(scene_of_plan(made, analyze(model)), console, explain=explain)
