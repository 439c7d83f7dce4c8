"""A piece of a picture with a size: pieces are drawn one by one, and stacked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """What is drawn, from its own upper left corner.

    Attributes:
        width: the user units it takes from there to the right.
        height: those it takes downwards.
        marks: its elements, the first lowest.
    """

    width: float
    height: float
    marks: tuple[str, ...]
