"""Inputs for a model: `generate` makes them up, `workable` finds some that it accepts, `read_inputs` opens a file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .generating import Feeds, generate
    from .recorded import read_inputs
    from .trying import Workable, workable

__all__ = ["Feeds", "Workable", "generate", "read_inputs", "workable"]

_HOMES: Final = {
    "Feeds": "generating",
    "Workable": "trying",
    "generate": "generating",
    "read_inputs": "recorded",
    "workable": "trying",
}


def __getattr__(name: str) -> object:
    # Lazy (PEP 562): a worker that runs parts on a .npz file needs `read_inputs`, and has no onnx for the rest.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
