"""Arguments of the library, as its hints name them, in the words of the command line.

A hint of the library names an argument in backticks: `output`, `force=True`, `Into(3)`, `Limits(inside_layers=True)`;
and a function with the arguments that matter, if any: `verify(...)`, `split(..., digest=True)`. An argument is an
option of the command that ran, else of another one, which is named, `split` first: that of the parameter with its name,
or with the name that `argument_names.toml` gives.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, cast

from ..core.records import table
from ..core.text import shell_word
from .application import COMMANDS, command_of

_QUOTED: Final = re.compile(r"`([A-Za-z_]\w*)(?:=([^`]+)|\(([^`]*)\)(\.\w+)?)?`")


def in_options(text: str, command: str) -> str:
    """A hint of the library, with options of the command line where it names arguments.

    >>> in_options("choose another `output`, or add `force=True`", "split")
    'choose another -o, or add --force'
    """
    return _QUOTED.sub(lambda found: _reworded(command, *found.groups()) or found[0], text)


def _reworded(command: str, name: str, value: str | None, inside: str | None, attribute: str | None) -> str:
    """What stands for `name`, `name=value`, or `name(inside).attribute`; empty if it is no argument."""
    if inside is not None and name[0].islower():
        command = _names("functions").get(f"{name}{attribute or ''}", name)
        return f"`graphcut {' '.join([command, *_options(inside.removeprefix('...').removeprefix(', '), command)])}`"
    if inside is not None and "=" in inside:
        return " ".join(_options(inside, command))
    return " ".join(_options(f"{name}={inside or value or True}", command))


def _options(keywords: str, command: str) -> Iterator[str]:
    """The options for arguments like `pins=2, force=True`; none if this is no Python, empty ones for unknown names."""
    try:
        call = cast("ast.Call", ast.parse(f"_({keywords})", mode="eval").body)
    except SyntaxError:
        return
    for keyword in call.keywords:
        (option, owner), value = _option(keyword.arg or "", command), ast.unparse(keyword.value)
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
            value = shell_word(keyword.value.value)
        value = "always" if option == "--inside-layers" and value == "True" else value
        yield option and f"{option}{'' if value == 'True' else f' {value}'}{owner}"


def _names(section: str) -> dict[str, str]:
    return table("cli/argument_names.toml", dict[str, dict[str, str]]).get(section, {})


def _option(name: str, command: str) -> tuple[str, str]:
    """The option for an argument, and what names its command if that is another one; empty if none has it."""
    for one in (command, "split", *COMMANDS):
        options = {parameter.name: parameter.opts for parameter in command_of(one).params} if one in COMMANDS else {}
        for parameter in (_names(command).get(name, name), _names("arguments").get(name, "")):
            if parameter in options:
                option = "-o" if "-o" in options[parameter] else max(options[parameter], key=len)
                return option, "" if one == command else f" of `graphcut {one}`"
    return "", ""
