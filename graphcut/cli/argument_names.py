"""Arguments of the library, as its hints name them, in the words of the command line.

A hint of the library names an argument in backticks: `output`, `force=True`, `Into(3)`, `Limits(inside_layers=True)`;
and a function with the arguments that matter, if any: `verify(...)`, `split(..., digest=True)`. An argument is an
option of the command that ran, else of another one: that of the parameter with its name, or with the name given here.
"""

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import typer

from ..core.text import shell_word
from .application import app

#: the parameter of commands for an argument, or a class, of another name.
_PARAMETERS: Final[Mapping[str, str]] = {
    "Across": "cluster",
    "At": "at_nodes",
    "Heads": "heads",
    "Into": "num_splits",
    "Within": "memory",
    "by": "count",
    "counting": "count",
    "deadline_s": "deadline",
    "dims": "dim",
    "interleave": "objective",
    "max_shard_bytes": "max_shard_size",
    "memory_bytes": "memory",
    "most_parts": "num_splits",
    "optimized": "fuse",
    "options": "provider",
    "parts": "part",
    "path": "trace",
    "pins": "pin",
    "precisions": "precision",
    "prompts": "prompt_ids",
    "rate_per_s": "rate",
    "states": "state",
    "structural_only": "structural",
    "window": "in_flight",
}
#: the same for one command, in which a parameter of the argument's name means something else.
_OF_COMMAND: Final[Mapping[str, Mapping[str, str]]] = {
    "demo": {"options": "options"},
    "extract": {"inputs": "from_", "outputs": "until"},
}
#: commands for functions that have another name.
_COMMANDS: Final[Mapping[str, str]] = {
    "analyze.cut_points": "analyze MODEL --cuts",
    "encode": "generate DIR --prompt",
    "options_of": "demo --help",
    "save_plan": "plan MODEL -o FILE",
}
_QUOTED: Final = re.compile(r"`([A-Za-z_]\w*(?:=[^`]+|\([^`]*\)(?:\.\w+)?)?)`")


def in_options(text: str, command: str) -> str:
    """A hint of the library, with options of the command line where it names arguments.

    >>> in_options("choose another `output`, or add `force=True`", "split")
    'choose another -o, or add --force'
    """
    return _QUOTED.sub(lambda found: _reworded(found[1], command) or found[0], text)


def _reworded(code: str, command: str) -> str:
    """What stands for a piece of Python; empty if it is no argument."""
    try:
        tree = ast.parse(f"_({code})", mode="eval").body
    except SyntaxError:
        return ""
    match tree:
        case ast.Call(_, [], [keyword]):
            return _keyword(keyword, command)
        case ast.Call(_, [argument]):
            return _positional(argument, command)
    return ""


def _positional(tree: ast.expr, command: str) -> str:
    match tree:
        case ast.Name(name):
            return _option(name, command)
        case ast.Call(ast.Name(name), [value], []) if name[0].isupper():
            return f"{_option(name, command)} {_word(value)}"
        case ast.Call(ast.Name(name), _, keywords) if name[0].isupper():
            return " ".join(_keyword(keyword, command) for keyword in keywords)
        case ast.Call(ast.Name(name), _, keywords):
            command = _COMMANDS.get(name, name)
            return f"`graphcut {' '.join([command, *(_keyword(keyword, command) for keyword in keywords)])}`"
        case ast.Attribute(ast.Call(ast.Name(name)), attribute) if f"{name}.{attribute}" in _COMMANDS:
            return f"`graphcut {_COMMANDS[f'{name}.{attribute}']}`"
    return ""


def _keyword(keyword: ast.keyword, command: str) -> str:
    option, value = _option(keyword.arg or "", command), _word(keyword.value)
    value = "always" if option == "--inside-layers" and value == "True" else value
    return option if value == "True" else option and f"{option} {value}"


def _word(value: ast.expr) -> str:
    """A value as a word of the command line."""
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return shell_word(ast.literal_eval(value)) if is_text else ast.unparse(value)


@cache
def _commands() -> Mapping[str, Any]:
    """The commands by name: made once, because that takes a tenth of a second."""
    return dict(vars(typer.main.get_command(app))["commands"])


def _option(name: str, command: str) -> str:
    """The option for an argument, of the command or else of the first that has it; empty if none has."""
    commands = _commands()
    own = _OF_COMMAND.get(command, {}).get(name, name)
    for one in (command, *commands):
        options = {parameter.name: parameter.opts for parameter in commands[one].params} if one in commands else {}
        for parameter in (own, _PARAMETERS.get(name, "")):
            if parameter in options:
                return "-o" if "-o" in options[parameter] else max(options[parameter], key=len)
    return ""
