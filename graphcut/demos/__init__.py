"""Example models to try graphcut on: drawn on the spot, with made-up weights, nothing to download.

A demo is a `Recipe`: a frozen record of what can be asked for, with a method that draws the graph. Recipes are
imported when they are asked for, so that listing the demos loads no onnx.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ..core.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .drafting import Recipe

__all__ = ["DEMOS", "options_of", "write"]

DEMOS: Mapping[str, str] = MappingProxyType({
    "llm": "a Llama-like decoder with a KV cache, of any size, in float32 or float16",
    "unet": "a small convolutional U-Net: every level skips over the levels below it",
    "resnet": "a residual image classifier: a chain of blocks with one tensor between them",
    "multitask": "one trunk and three heads, one of them fed from the middle of the trunk",
    "control-flow": "If, Loop and Scan that capture outer tensors, a local function, a sequence",
})  # fmt: skip
"""Name of each demo, and what it is in one line."""

_RECIPES = {
    "llm": "Llm",
    "unet": "Unet",
    "resnet": "Resnet",
    "multitask": "Multitask",
    "control-flow": "ControlFlow",
}


def write(name: str, path: str | Path, *, external: bool | None = None, **options: object) -> None:
    """Write the demo called `name` to `path`.

    The same name and options give the same bytes. Files are written beside and then moved, so a run that dies
    leaves what was there. Takes as long as the disk does; memory stays small whatever the size of the model.

    Args:
        name: one of `DEMOS`.
        path: the ONNX file to write; its folder must exist.
        external: whether the weights go into `<path>.data` beside the model; None for "when they exceed 64 MiB".
        options: fields of the demo's recipe, see `options_of`.

    Raises:
        UsageError: there is no such demo, it has no such option, or the option cannot have this value.
        ModelError: the weights do not fit inside one ONNX file, or the disk refuses.
    """
    path = Path(path)
    draft = _prepare(name, options).draw()
    saving = import_module(".saving", __name__)
    try:
        saving.save(draft, path, external=external)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise ModelError(message, hint="name a file in a folder that exists and has room") from error


def options_of(name: str) -> Mapping[str, object]:
    """Each option of the demo called `name`, with its default, in the order of its recipe.

    Loads onnx. `external`, which every demo takes, is not among them.

    Raises:
        UsageError: there is no such demo.
    """
    fields = msgspec.structs.fields(_recipe(name))
    return {field.name: field.default for field in fields}


def _prepare(name: str, options: Mapping[str, object]) -> Recipe:
    known = options_of(name)
    for option in options:
        if option not in known:
            raise UsageError(f"demo {name!r} has no option {option!r}", hint=_suggest(option, known))
    try:
        return msgspec.convert(options, type=_recipe(name))
    except msgspec.ValidationError as error:
        # msgspec says "Expected `int` >= 1 - at `$.hidden`".
        reason, _, place = str(error).partition(" - at `$.")
        message = f"option {place.rstrip('`')!r} of demo {name!r}: {reason[0].lower()}{reason[1:]}"
        raise UsageError(message, hint="see `graphcut demo --help`") from error


def _recipe(name: str) -> type[Recipe]:
    if name not in _RECIPES:
        raise UsageError(f"there is no demo called {name!r}", hint=_suggest(name, _RECIPES))
    module = import_module("." + name.replace("-", "_"), __name__)
    recipe: type[Recipe] = getattr(module, _RECIPES[name])
    return recipe


def _suggest(word: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from {', '.join(known)}" if known else "leave it out: this demo takes `external` alone"
