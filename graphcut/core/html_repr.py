"""What a notebook asks of a product: its picture. Products stand far below the pens, which are lent from above."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar


class HtmlRepr:
    """A product that a notebook shows as a picture.

    Attributes:
        draw: draws a product as HTML; gives None for what it can't draw. Lent by the package when it is imported, so
            that no room has to know of one above it.
    """

    __slots__ = ()

    draw: ClassVar[Callable[[object], str | None] | None] = None

    def _repr_html_(self) -> str | None:
        return None if HtmlRepr.draw is None else HtmlRepr.draw(self)
