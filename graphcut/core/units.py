"""Sizes and numbers as people write them and like to read them: `2GB`, `4.75 MiB`, `1,491 nodes`, `7.97 ms`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from .errors import UsageError

_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` names: `2GB` is 10⁹ based, `2GiB` is 2³⁰ based, a bare number is bytes.

    Raises:
        UsageError: `text` is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _BYTES:
        raise UsageError(f"{text!r} is not a size", hint="write it like 512MiB, 2GB or 1.5GiB")
    return int(Fraction(match[1]) * _BYTES[match[2].lower()])


def size(count_bytes: int) -> str:
    """`count_bytes` for a person, in binary units: `17 B`, `4.75 MiB`, `3.1 GiB`."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        # 999.5 and not 1024, so that three digits are always enough.
        if abs(value) < 999.5:
            return f"{count_bytes} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def duration(seconds: float) -> str:
    """`seconds` for a person: `161 µs`, `7.97 ms`, `12.4 s`, `3.1 min`."""
    for unit, factor in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        # 999.5 and not 1000, so that three digits are always enough.
        if abs(seconds) < factor * (999.5 if unit != "s" else 99.5):
            return f"{seconds / factor:.3g} {unit}"
    for unit, factor in (("min", 60.0), ("h", 3600.0)):
        if abs(seconds) < factor * 99.5:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 86400:,.0f} days"


def operations(number: float) -> str:
    """A number of operations for a person, in decimal units, for a unit to follow: `513 `, `386 M`, `7.6 T`."""
    value = float(number)
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} P"


def count(number: int, noun: str) -> str:
    """`number` and its noun, in the plural where it belongs: `1 part`, `1,491 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
