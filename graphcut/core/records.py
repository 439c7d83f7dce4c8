"""What msgspec says of a file that does not fit its record, as a person would say it."""

from __future__ import annotations

import msgspec


def with_place(error: msgspec.ValidationError) -> str:
    """The sentence, its place first and written as one would in Python: `parts[1].reads[0]: Expected ...`."""
    sentence, _, place = str(error).partition(" - at `$")
    return f"{place.rstrip('`').removeprefix('.')}: {sentence}" if place else sentence
