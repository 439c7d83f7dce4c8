"""The documents of `verify --json`: the results themselves, with figures that are derived from their fields."""

from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ..verifying.causes import ModelChange
from ..verifying.files import FileVerification
from ..verifying.numerical import TensorComparison
from ..verifying.sections import TensorError
from ..verifying.structural import Proof
from ..verifying.two_models import Culprit, ModelComparison
from ..verifying.verification import Verification

_FIGURES: Final[dict[type, tuple[str, ...]]] = {
    Proof: ("holds",),
    TensorComparison: ("passes",),
    Verification: ("same", "is_identical", "first_difference", "is_random"),
    FileVerification: ("same",),
    ModelComparison: ("same",),
    TensorError: ("is_equal",),
    **dict.fromkeys((Culprit, ModelChange), ()),
}
"""What the document of a result has besides its fields: the names of properties."""


@cache
def _document(kind: Any, form: str | None = None) -> type[msgspec.Struct]:  # noqa: ANN401 - a dataclass
    """The type of the document of a result: its figures and fields, under the name of its class."""
    hints = {name: get_type_hints(getattr(kind, name).fget)["return"] for name in _FIGURES[kind]}
    shown = {name for name, field in kind.__dataclass_fields__.items() if field.repr}
    hints |= {name: hint for name, hint in get_type_hints(kind).items() if name in shown}
    fields = [(name, _type_in_json(hint)) for name, hint in hints.items()]
    own, field = {"__doc__": kind.__doc__}, form and "format"
    return msgspec.defstruct(kind.__name__, fields, module=kind.__module__, namespace=own, tag_field=field, tag=form)


def _type_in_json(hint: Any) -> Any:  # noqa: ANN401 - types
    """A type, in which results are documents, and numbers null if they are infinite."""
    if hint in _FIGURES:
        return _document(hint)
    if get_origin(hint) is Literal:
        return hint
    arguments = tuple(map(_type_in_json, get_args(hint)))
    kind = tuple if get_origin(hint) is tuple else Union
    return kind[arguments] if arguments else float | None if hint is float else hint


RECORDS: Final = {
    Verification: _document(Verification, "graphcut.report/1"),
    FileVerification: _document(FileVerification, "graphcut.files/1"),
    ModelComparison: _document(ModelComparison, "graphcut.comparison/1"),
}
"""The document of each kind of verification."""


def verification_record(found: Verification | FileVerification | ModelComparison) -> msgspec.Struct:
    """The document of a verification of outputs, of files, or of two models."""
    return msgspec.convert(found, RECORDS[type(found)], from_attributes=True)
