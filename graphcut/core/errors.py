"""Everything graphcut raises on purpose.

* GraphcutError
  - UsageError     what was asked for does not make sense: a wrong name, an output that is in the way
  - ModelError     the model cannot be read, or holds something we cannot cut
  - PlanError      the goal cannot be met by any cut
  - CascadeError   a cascade on disk is damaged, incomplete, or of another version
  - RecordError    a JSON, TOML or CSV file does not fit the record it should hold
  - RunError       a part failed while running
    - MemoryCapError   what a run may have in memory is less than it needs
"""

from __future__ import annotations

from collections.abc import Iterable


class GraphcutError(Exception):
    """Base of all errors of ours: one sentence of what is wrong, and a hint of what to do.

    Attributes:
        hint: what the user can try next; empty when there is nothing to try.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(GraphcutError):
    """What was asked for does not make sense for this model or this place."""


class ModelError(GraphcutError):
    """The model cannot be read, or holds something that cannot be cut."""


class PlanError(GraphcutError):
    """No cut of this model meets the goal."""


class CascadeError(GraphcutError):
    """A cascade on disk is damaged, incomplete, or of another version."""


class RecordError(GraphcutError):
    """A file does not fit the record it should hold."""


class RunError(GraphcutError):
    """A part failed while running."""


class MemoryCapError(RunError):
    """What a run may have in memory is less than it needs.

    Attributes:
        smallest_bytes: what would do.
    """

    def __init__(self, message: str, *, smallest_bytes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.smallest_bytes = smallest_bytes


def validation_message(error: Exception) -> str:
    """The message of a `msgspec.ValidationError` with its location first: `parts[1].reads[0]: Expected ...`."""
    message, _, location = str(error).partition(" - at `$")
    return f"{location.rstrip('`').removeprefix('.')}: {message}" if location else message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name most like `name`: `did you mean 'x'? `; empty if none is similar."""
    from difflib import get_close_matches  # needed only after a mistake

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""
