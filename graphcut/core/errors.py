"""The exceptions of graphcut. Each has a message (what is wrong, and where) and a hint (what to do)."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, get_args

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
    """A part failed while running, or what is fed is not what the model reads (then it is a `UsageError`, too)."""


class InputError(RunError, UsageError):
    """What is fed is not what the model reads."""


class OpeningError(RunError):
    """ONNX Runtime can't open the model, whatever is fed."""


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
    return type_error(f"expected {expected}, got {type(value).__name__}", hint=hint)


def type_error(message: str, *, hint: str) -> TypeError:
    """A TypeError with a hint as a note."""
    error = TypeError(message)
    error.add_note(f"hint: {hint}")
    return error


_Error = Callable[..., Exception]  #: makes an error of a message and a `hint`.


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

    close = get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def check_names(
    names: Iterable[str], known: Collection[str], what: str, listing: str, after: str = "", error: _Error = UsageError
) -> None:
    """An error if one of the names is not known: says `what`, the name and what comes `after`, and lists the known.

    >>> check_names(["x", "maks"], ["x", "mask"], "the model has no input", "its inputs:")
    Traceback (most recent call last):
    graphcut.core.errors.UsageError: the model has no input 'maks'
    """
    if (unknown := next((name for name in names if name not in known), None)) is not None:
        listed = [*known][:_LISTED] + ["..."] * (len(known) > _LISTED)
        hint = f"{did_you_mean(unknown, known)}{listing} {', '.join(listed) or 'none'}"
        raise error(f"{what} {unknown!r}{after}", hint=hint)


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """A TypeError, as Python's own, if a function that takes the keyword arguments `known` was `given` another one."""
    check_names(given, known, "unexpected keyword argument", "it takes", error=type_error)


@contextmanager
def needing(what: str, extra: str, instead: str = "") -> Iterator[None]:
    """A UsageError says which package `what` needs, if an import within finds none, and which extra installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{what} needs the package {error.name}, which is not installed"
        raise UsageError(message, hint=f"pip install 'graphcut[{extra}]'{instead}") from None


def check_positive(number: int | None, problem: str) -> None:
    """A UsageError that says `problem` if a number is less than 1; None stands for a default."""
    if number is not None and number < 1:
        raise UsageError(problem, hint="take 1 or more")


def check_word(value: str, words: Any, argument: str) -> None:  # noqa: ANN401 - a Literal
    """A UsageError if the value of an argument is none of the words of its Literal type."""
    check_names([value], get_args(words), f"`{argument}` can't be", "it is one of")
