"""The help of `graphcut` itself: commands in sections; and where commands and options went that exist no more."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from typer.core import TyperGroup

from ..core.errors import UsageError
from ..core.records import table


class Root(TyperGroup):
    """`graphcut`, whose commands stand in sections: those in a row that have the same `rich_help_panel`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer has no public names for their types
        """The sections, with summaries in one column."""
        commands: Any = [self.commands[name] for name in self.list_commands(ctx)]
        widest = max(len(command.name) for command in commands)
        for title, group in groupby(commands, lambda command: command.rich_help_panel):
            rows = [(command.name, command.get_short_help_str(formatter.width - widest - 6)) for command in group]
            with formatter.section(title):
                formatter.write_dl(rows, col_spacing=2 + widest - max(len(name) for name, _ in rows))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """The command, unless it exists no more."""
        if args[0] not in self.commands and args[0] in moved():
            raise UsageError(f"there is no command {args[0]!r}", hint=moved()[args[0]])
        return super().resolve_command(ctx, args)


def moved_option(error: BaseException) -> str:
    """What does now what the option did that is no option of its command; empty if it never was one."""
    command, option = getattr(getattr(error, "ctx", None), "info_name", ""), getattr(error, "option_name", "")
    return moved().get(f"{command} {option}", moved().get(option, ""))


def moved() -> dict[str, str]:
    """What does now what a command, or an option of one or any command, did that exists no more."""
    return {name: now for names, now in table("cli/moved.toml", dict[str, str]).items() for name in names.split(", ")}
