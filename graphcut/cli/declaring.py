"""How commands declare arguments and options: as parameters with types and defaults; `options.toml` has their words.

What is a function of Python, such as a parser, stands in a dict in the `Annotated` of the parameter.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from typer import Argument, Context, Option

from ..core.records import table
from ..core.units import given_bytes

Size = Annotated[int | None, {"parser": given_bytes}]  #: bytes, given like `2GB`.


def declared(owner: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a command, or of a dataclass of options, with the types that typer needs.

    Those that are dataclasses or typer's context stay as they are.

    Raises:
        LookupError: `options.toml` has no text for a parameter.
    """
    return [_declared(owner.__name__, parameter) for parameter in signature(owner, eval_str=True).parameters.values()]


def _declared(owner: str, parameter: Parameter) -> Parameter:
    kind = parameter.annotation
    if kind is Context or is_dataclass(kind):
        return parameter
    kind, *functions = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    words: dict[str, Any] = {}
    for more in (*(_words().get(part, {}).get(parameter.name, {}) for part in ("several commands", owner)), *functions):
        words |= more
    if "help" not in words:
        raise LookupError(f"options.toml has no help for {parameter.name} of {owner}")
    names = words.pop("names", f"--{parameter.name.replace('_', '-')}").split()
    if "-o" in names:
        words["callback"] = _checked
    made = Argument if words.pop("argument", False) else partial(Option, *names)
    return parameter.replace(annotation=Annotated[kind, made(**words)])


@cache
def _words() -> dict[str, dict[str, dict[str, Any]]]:
    """What typer needs for each parameter, by the name of its command or group."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for owners, entries in table("cli/options.toml", dict[str, dict[str, dict[str, Any]]]).items():
        for owner in owners.split(", "):
            found.setdefault(owner, {}).update(entries)
    return found


def _checked(context: Context, output: Path | None) -> Path | None:
    """What `-o` names, before any work is done: the folder that it is to be in must exist."""
    if output is not None and not context.resilient_parsing:
        from ..core.atomic_files import mend

        mend(output.absolute().parent, output.name)
    return output
