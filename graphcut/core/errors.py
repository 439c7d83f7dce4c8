"""The exceptions of graphcut. Each has a message (what is wrong, and where) and a hint (what to do)."""

from collections.abc import Collection, Iterable
from typing import Final

_LISTED: Final = 24  #: known names that are listed for one that is not.


class GraphcutError(Exception):
    """Base of all exceptions that graphcut raises on purpose.

    Attributes:
        hint: what the user can do; empty if there is nothing.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(GraphcutError):
    """The request makes no sense: an unknown name, or an existing output."""


class ModelError(GraphcutError):
    """The model can't be read, or it contains something that can't be cut."""


class PlanError(GraphcutError):
    """No cut of this model meets the goal.

    Attributes:
        budget_bytes: the budget that the hint names; 0 if it names none.
    """

    def __init__(self, message: str, *, hint: str = "", budget_bytes: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.budget_bytes = budget_bytes


class CascadeError(GraphcutError):
    """A cascade on disk is damaged, incomplete, or of another version."""


class RecordError(GraphcutError):
    """A JSON, TOML or CSV file can't be read, or doesn't have the expected format."""


class RunError(GraphcutError):
    """A part failed while running."""


class MemoryCapError(RunError):
    """A run needs more memory than it may use.

    Attributes:
        smallest_bytes: the smallest limit with which it would run.
    """

    def __init__(self, message: str, *, smallest_bytes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.smallest_bytes = smallest_bytes


def wrong_type(value: object, expected: str, *, hint: str) -> TypeError:
    """A TypeError for an argument of the wrong type, with the hint as a note: `expected a Model, got int`."""
    error = TypeError(f"expected {expected}, got {type(value).__name__}")
    error.add_note(f"hint: {hint}")
    return error


class LeftoverWarning(UserWarning):
    """A killed run had left files, which are now removed."""


class StallWarning(UserWarning):
    """A server has sent nothing for some seconds."""


class ShapeWarning(UserWarning):
    """An output has another shape than the model declares."""


class LossWarning(UserWarning):
    """A conversion to another format loses something that has no part in what the model computes."""


def validation_message(error: Exception) -> str:
    """The message of a `msgspec.ValidationError` with its location first: `parts[1].reads[0]: Expected ...`."""
    message, _, location = str(error).partition(" - at `$")
    return f"{location.rstrip('`').removeprefix('.')}: {message}" if location else message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name most like `name`: `did you mean 'x'? `; empty if none is similar."""
    from difflib import get_close_matches  # needed only after a mistake

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def check_names(names: Iterable[str], known: Collection[str], what: str, listing: str, after: str = "") -> None:
    """A UsageError if one of the names is not known: says `what`, the name and what comes `after`, and lists the known.

    >>> check_names(["x", "maks"], ["x", "mask"], "the model has no input", "its inputs:")
    Traceback (most recent call last):
    graphcut.core.errors.UsageError: the model has no input 'maks'
    """
    if (unknown := next((name for name in names if name not in known), None)) is not None:
        raise UsageError(f"{what} {unknown!r}{after}", hint=_known_names(unknown, known, listing))


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """A TypeError, as Python's own, if a function that takes the keyword arguments `known` was `given` another one."""
    if (unknown := next((name for name in given if name not in known), None)) is not None:
        error = TypeError(f"unexpected keyword argument {unknown!r}")
        error.add_note(f"hint: {_known_names(unknown, known, 'it takes')}")
        raise error


def _known_names(unknown: str, known: Collection[str], listing: str) -> str:
    """A hint with the known name most like one that is unknown, and a list of the known ones."""
    listed = [*known][:_LISTED] + ["..."] * (len(known) > _LISTED)
    return f"{did_you_mean(unknown, known)}{listing} {', '.join(listed) or 'none'}"
