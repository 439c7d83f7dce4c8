"""The typer application, and how its commands are made: with groups of options, and with options that all have."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, getdoc
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ..core.errors import UsageError
from ..core.records import table
from ..core.version import __version__
from .declaring import declared
from .help_pages import panels_of
from .moved import moved
from .output import settings

COMMANDS: Final = table("cli/sections.json", dict[str, str])  #: and their sections in the help of `graphcut`.


class _Command(TyperCommand):
    """A command whose help has a section for each panel of options, and ends with lists of words and with examples.

    Its usage line reads `MODEL [OTHER]` in every version of typer.
    """

    #: the titles of such lists, and what they explain: words and their meanings.
    legend: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    examples: ClassVar[str] = ""  #: a command in each line.

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer has no public name for its type
        arguments = [parameter for parameter in self.params if parameter.param_type_name == "argument"]
        names = (str(argument.metavar) if argument.required else f"[{argument.metavar}]" for argument in arguments)
        return [self.options_metavar or "", *names]

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as above
        # `random` is no word for inputs where there is a file of that name.
        values = (pair for pair in option_values(ctx) if str(pair[1]) != "random" or not Path("random").exists())
        check_applicable(given_options(ctx), applying(self.name or ""), (f"{name} {value}" for name, value in values))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        shown = [one for one in self.get_params(ctx) if one.name not in _GENERAL_NAMES]
        records = {max(one.opts, key=len).removeprefix("--"): one.get_help_record(ctx) for one in shown}
        arguments = [one.name for one in shown if one.param_type_name == "argument"]
        options = [name for name in records if name not in arguments]
        for title, names in {"Arguments": arguments, **panels_of(self.name or "", options)}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - as above
        for title, meanings in self.legend.items():
            with formatter.section(title):
                formatter.write_dl(list(meanings.items()))
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example.strip()}\n" for example in self.examples.splitlines()))
        formatter.write("\nGlobal options: graphcut --help\n")


class _Root(TyperGroup):
    """`graphcut`, whose commands stand in sections. Each is made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - as above
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - as above
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """The sections, with summaries in one column."""
        widest = max(map(len, COMMANDS))
        for title, names in groupby(COMMANDS, lambda name: COMMANDS[name]):
            rows = [(name, command_of(name).get_short_help_str(formatter.width - widest - 6)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows, col_spacing=2 + widest - max(len(name) for name, _ in rows))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """The command, unless it exists no more."""
        if args[0] not in COMMANDS and args[0] in moved():
            raise UsageError(f"there is no command {args[0]!r}", hint=moved()[args[0]])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="graphcut",
    cls=_Root,
    help="Cut an ONNX model into a cascade of part models, verify it, plan, draw and run it.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 misuse, 3 failed, 4 no plan fits, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help suits every terminal and pipe, and takes half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True)
class GeneralOptions:
    """Options that may stand before the command and after it. The help of graphcut lists them."""

    quiet: bool = False
    no_color: bool = False
    debug: bool = False

    def apply(self) -> None:
        """Make them hold, on top of those that hold already."""
        settings.is_quiet |= self.quiet
        settings.has_no_color |= self.no_color


GENERAL: Final = ("--quiet", "--no-color", "--debug")
_GENERAL_NAMES: Final = {"help", *(field.name for field in fields(GeneralOptions))}
_GENERAL: Final = Parameter("general", Parameter.KEYWORD_ONLY, annotation=GeneralOptions)


@cache
def command_of(name: str) -> Any:  # noqa: ANN401 - as above
    """A command: the function of its name in the module of its name, with the function's docstring as its help.

    A parameter whose type is a dataclass is a group of options: its fields are options of the command, and the function
    gets the dataclass. `options.toml` has their words. Every command has the `GeneralOptions`, too. What its help
    explains after the options is the `LEGEND` of the module.

    To make all commands takes longer than to make one and run it.
    """
    module = import_module(f".{name}", __package__)
    text, _, examples = (getdoc(getattr(module, name)) or "").partition("\n\nExamples:\n")
    kind = type("_Command", (_Command,), {"legend": getattr(module, "LEGEND", {}), "examples": examples})
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=kind, help=text)(_flat(getattr(module, name)))
    return typer.main.get_command(alone)


def _flat(function: Callable[..., None]) -> Callable[..., None]:
    """`function` as typer reads it: with the fields of its groups instead of the groups."""
    own = [*declared(function), _GENERAL]
    groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}
    members = {name: declared(group) for name, group in groups.items()}
    flat = [member for parameter in own for member in members.get(parameter.name, [parameter])]

    def called(**values: Any) -> None:  # noqa: ANN401 - typer has checked them
        made = {name: group(**{m.name: values.pop(m.name) for m in members[name]}) for name, group in groups.items()}
        made.pop(_GENERAL.name).apply()
        function(**values, **made)

    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in flat]
    called.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    return called


def given_options(ctx: typer.Context) -> tuple[str, ...]:
    """The options that the command line sets, by their long names, in the order of `--help`."""
    sources = {max(one.opts, key=len): ctx.get_parameter_source(one.name or "") for one in ctx.command.params}
    return tuple(option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def option_values(ctx: typer.Context) -> Iterator[tuple[str, Any]]:
    """All options by their long names, given or not, with their values; if there are several, with each of them."""
    for parameter in ctx.command.params:
        value = ctx.params[parameter.name or ""]
        for one in value if isinstance(value, list | tuple) else [value]:
            yield max(parameter.opts, key=len), one


def applying(what: str) -> dict[str, tuple[str, ...]]:
    """To what each option applies, of those of a section of `applying.toml`."""
    return table("cli/applying.toml", dict[str, dict[str, tuple[str, ...]]]).get(what, {})


def check_applicable(given: Collection[str], owners: Mapping[str, Collection[str]], active: Iterable[str]) -> None:
    """Refuse a given option that would do nothing: what it applies to is neither given nor `active`."""
    there = {*given, *active}
    for option, needed in owners.items():
        if option in given and there.isdisjoint(needed):
            what = " or ".join(needed)
            raise UsageError(f"{option} applies to {what}", hint=f"leave {option} out, or add {what}")


def check_apply(given: Collection[str], options: Collection[str], what: str) -> None:
    """Refuse a given option that does nothing for what the command is given."""
    if unused := next((option for option in given if option in options), None):
        raise UsageError(f"{unused} does not apply to {what}", hint=f"leave {unused} out")


def root(ctx: typer.Context, version: bool = False) -> None:
    if version:
        from importlib.metadata import version as installed

        python = ".".join(map(str, sys.version_info[:3]))
        libraries = f"onnx {installed('onnx')}, onnxruntime {installed('onnxruntime')}"
        sys.stdout.write(f"graphcut {__version__} (python {python}, {libraries})\n")
    elif ctx.invoked_subcommand is None:
        sys.stdout.write(f"{ctx.get_help()}\n")


app.callback(invoke_without_command=True)(_flat(root))
