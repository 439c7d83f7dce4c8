"""Parse and format sizes, durations and counts: `2GB`, `4.75 MiB`, `7.97 ms`, `1,491 nodes`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Final

from .errors import UsageError

_DECIMAL: Final = {unit: 10 ** (3 * i) for i, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}
_BINARY: Final = {unit: 2 ** (10 * i) for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_BYTES: Final = {"": 1, **{unit.lower(): factor for unit, factor in (_DECIMAL | _BINARY).items()}}
#: whether a command was given a size in decimal units; None outside of `sizes_as_given`.
_is_decimal: Final = ContextVar[bool | None]("_is_decimal", default=None)


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` names: `2GB` is 2 * 10**9, `2GiB` is 2 * 2**30, a number without a unit is bytes.

    A UsageError if it is not a size.
    """
    match = re.fullmatch(r"\s*(\d{1,1000}(?:\.\d{1,1000})?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _BYTES:
        raise UsageError(f"{text!r} is not a size", hint="write it like 512MiB, 2GB or 1.5GiB")
    return int(Fraction(match[1]) * _BYTES[match[2].lower()])


@contextmanager
def sizes_as_given() -> Iterator[None]:
    """Within it, a size that is given in decimal units makes `size` say all sizes in these."""
    token = _is_decimal.set(False)
    try:
        yield
    finally:
        _is_decimal.reset(token)


def given_bytes(text: str) -> int:
    """`parse_bytes` of a size that a user gave, in an option or in a file."""
    if _is_decimal.get() is not None and re.search("[kmgt]b", text.lower()):
        _is_decimal.set(True)
    return parse_bytes(text)


def size(count_bytes: int) -> str:
    """A number of bytes in binary units: `17 B`, `4.75 MiB`, `3.1 GiB`; in decimal ones as `sizes_as_given` says."""
    units = _DECIMAL if _is_decimal.get() else _BINARY
    return f"{count_bytes} B" if abs(count_bytes) < 999.5 else _scaled(count_bytes, units)


def duration(seconds: float) -> str:
    """A time: `161 µs`, `7.97 ms`, `12.4 s`, `3.1 min`."""
    if abs(seconds) < 99.5:
        return _scaled(seconds, {"µs": 1e-6, "ms": 1e-3, "s": 1.0})
    if abs(seconds) < 99.5 * 3600:
        return _scaled(seconds, {"min": 60.0, "h": 3600.0}, limit=99.5)
    return f"{seconds / 86400:,.0f} days"


def operations(number: float) -> str:
    """A number of operations in decimal units, for a noun to follow: `513 `, `386 M`, `7.6 T`."""
    return _scaled(number, {unit: 10.0 ** (3 * i) for i, unit in enumerate(("", "k", "M", "G", "T", "P"))})


def _scaled(value: float, units: Mapping[str, float], limit: float = 999.5) -> str:
    """`value` with three digits, in the first unit in which it is below `limit`, else in the last."""
    unit = next((unit for unit, factor in units.items() if abs(value) < limit * factor), list(units)[-1])
    return f"{value / units[unit]:.3g} {unit}"


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is 1: `1 part`, `1,491 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def flop(number: float) -> str:
    """A number of floating-point operations, such as `386 MFLOP`."""
    return f"{operations(number)}FLOP"
