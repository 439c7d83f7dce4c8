"""Example models with random weights, generated on request; nothing is downloaded.

A demo is a `Recipe`: a frozen record of its options, with a method that builds the graph. Recipes are imported when
they are used, so that listing the demos does not import onnx.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ..core.errors import UsageError, check_names
from ..core.records import table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .drafting import Recipe

__all__ = ["DEMOS", "options_of", "write"]

DEMOS: Mapping[str, str] = MappingProxyType(table("demos/demos.json", dict[str, str]))
"""The name of each demo, with a one-line description."""


def write(name: str, path: str | Path, *, external: bool | None = None, **options: object) -> None:
    """Write the demo called `name` (one of `DEMOS`) to `path`, whose folder must exist; see `options_of`.

    The same name and options give the same bytes. An interrupted run leaves existing files unchanged. Memory stays
    small whatever the size of the model, since weights are streamed: to `<path>.data` if `external` is true, and by
    default if they exceed 64 MiB.

    Raises:
        UsageError: there is no such demo or option, or the option can't have this value.
        ModelError: the weights do not fit into one ONNX file.
        GraphcutError: a file can't be written.
    """
    from ..core.atomic_files import write_errors
    from .saving import save

    draft = _prepare(name, options).draw()
    with write_errors(path, "choose a folder that exists and has enough free space"):
        save(draft, Path(path), external=external)


def options_of(name: str) -> Mapping[str, object]:
    """The options of the demo called `name`, with their defaults; without `external`, which every demo has."""
    return {field.name: field.default for field in msgspec.structs.fields(_recipe(name))}


def _prepare(name: str, options: Mapping[str, object]) -> Recipe:
    check_names(options, options_of(name), f"demo {name!r} has no option", "its options besides 'external':")
    try:
        return msgspec.convert(options, type=_recipe(name))
    except msgspec.ValidationError as error:
        # msgspec says "Expected `int` >= 1 - at `$.hidden`".
        reason, _, place = str(error).partition(" - at `$.")
        message = f"option {place.rstrip('`')!r} of demo {name!r}: {reason[0].lower()}{reason[1:]}"
        raise UsageError(message, hint="`options_of(...)` lists what it has") from error


def _recipe(name: str) -> type[Recipe]:
    check_names([name], DEMOS, "no demo is called", "choose from")
    recipe: type[Recipe] = getattr(import_module(f".{name}", __name__), name.title())
    return recipe
