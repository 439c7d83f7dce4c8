"""What a notebook shows of a product: the HTML page in a frame."""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING

from ..core.errors import GraphcutError

if TYPE_CHECKING:
    from .scene import Scene


def picture_of(product: object) -> str | None:
    """An analysis, a plan or a cascade as HTML for a notebook; None if only its text can be shown.

    That is so if its model or its files are missing, or if a package that draws is not installed.
    """
    with suppress(GraphcutError, OSError, ModuleNotFoundError):
        from ..analysis.cut_points import Analysis, analyze
        from ..core.manifest import Cascade, open_cascade
        from ..planning.plans import Plan
        from .opening import source_of
        from .scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan

        match product:
            case Analysis():
                return framed(scene_of_analysis(product))
            case Plan(model=model) if model is not None:
                return framed(scene_of_plan(product, analyze(model)))
            case Cascade():
                open_cascade(product.path)  # an error if its files are not there
                return framed(scene_of_cascade(product, source_of(product, None)))
    return None


def framed(scene: Scene) -> str:
    """The page in a frame that separates its style and its script from those of the notebook.

    The frame may run its script, which may write to the clipboard, and nothing else; it does not even have the origin
    of the notebook.
    """
    from .html import html_of

    style = "width: 100%; height: min(760px, 85vh); border: 0; resize: vertical; overflow: auto"
    frame = f'<iframe title="graphcut" sandbox="allow-scripts" allow="clipboard-write *" style="{style}"'
    return f'{frame} srcdoc="{escape(html_of(scene))}"></iframe>'
