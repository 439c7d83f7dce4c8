"""What a notebook shows of a product: the same page that `show` writes, in a frame of its own."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from ..core.errors import GraphcutError

if TYPE_CHECKING:
    from .scene import Scene

_HEIGHT: Final = "min(760px, 85vh)"


def picture_of(product: object) -> str | None:
    """An analysis, a plan or a cascade as HTML for a notebook; None where it can't be drawn, and text must do.

    That is so where its model is not known (a plan put together by hand), its files have gone, or a package that draws
    is not installed: who runs parts needs none.
    """
    try:
        scene = _scene_of(product)
        return None if scene is None else framed(scene)
    except (GraphcutError, OSError, ModuleNotFoundError):
        return None


def framed(scene: Scene) -> str:
    """The page of a scene in a frame.

    In a frame its styles and its script meet nobody else's. The script may run, and nothing else is allowed: not even
    the origin of the notebook is its own.
    """
    from .html import html_of

    style = f"width: 100%; height: {_HEIGHT}; border: 0; resize: vertical; overflow: auto"
    return (
        f'<iframe title="graphcut" sandbox="allow-scripts" style="{style}" srcdoc="{escape(html_of(scene))}"></iframe>'
    )


def _scene_of(product: object) -> Scene | None:
    from ..analysis.cut_points import Analysis, analyze
    from ..core.manifest import Cascade
    from ..planning.plans import Plan
    from .opening import source_of
    from .scenes import scene_of_analysis, scene_of_cascade, scene_of_plan

    match product:
        case Analysis():
            return scene_of_analysis(product)
        case Plan(model=model) if model is not None:
            return scene_of_plan(product, analyze(model))
        case Cascade():
            return scene_of_cascade(product, source_of(product, None))
        case _:
            return None
