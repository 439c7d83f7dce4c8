"""`Product`: the base of graphcut's results, with a short `repr` and a picture in notebooks."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Final

_MAX_CHARACTERS: Final = 400  #: five lines of a terminal with 80 columns.
_MAX_FIELD_CHARACTERS: Final = 100
_MAX_ITEMS: Final = 3
_MAX_LEVELS: Final = 4


class Product:
    """A value whose `repr` has at most 400 characters, and that notebooks show as a picture where it can be drawn.

    A dataclass that inherits from it passes `repr=False`: otherwise the decorator adds a `__repr__` of its own.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """The HTML of the value, or None if it can't be drawn. The package has it: `core` may not import `drawing`."""
        draw: Callable[[object], str | None] = sys.modules[__name__.partition(".")[0]]._draw  # noqa: SLF001
        return draw(self)

    def __repr__(self) -> str:
        return _shortened(_describe(self, _MAX_LEVELS), _MAX_CHARACTERS)


def short_repr(value: object, levels: int = _MAX_LEVELS) -> str:
    """`repr(value)` with at most 100 characters: a long collection is its size, an object its type.

    Records and collections inside each other are written out for so many `levels`.

        >>> short_repr({"batch": 1}), short_repr([1, 2, 3, 4]), short_repr(object())
        ("{'batch': 1}", '<4 int>', '<object>')
    """
    return _shortened(_describe(value, levels), _MAX_FIELD_CHARACTERS)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 4]}...{text[-1]}"


def _describe(value: object, levels: int) -> str:
    fields = getattr(value, "__struct_fields__", ())
    if is_dataclass(value):
        fields = tuple(field.name for field in dataclass_fields(value) if field.repr)
    text = f"<{type(value).__name__}>"
    match value:
        case None | str() | bool() | int() | float() | Enum() | PurePath():
            text = repr(value)
        case tuple() | list() | set() | frozenset() | Mapping() if len(value) > _MAX_ITEMS:
            first = next(iter(value.values() if isinstance(value, Mapping) else value))
            text = f"<{len(value):,} {type(first).__name__}>"
        case _ if levels == 0:
            pass
        case Mapping():
            text = f"{{{', '.join(f'{key!r}: {short_repr(item, levels - 1)}' for key, item in value.items())}}}"
        case tuple() | list() | set() | frozenset():
            opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
            text = f"{opening}{', '.join(short_repr(item, levels - 1) for item in value)}{closing}"
        case _ if fields:
            shown = (f"{name}={short_repr(getattr(value, name), levels - 1)}" for name in fields)
            text = f"{type(value).__name__}({', '.join(shown)})"
    return text
