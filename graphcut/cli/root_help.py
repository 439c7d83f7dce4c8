"""The help of `graphcut` itself: commands in sections; and where commands and options went that exist no more."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from typer.core import TyperGroup

from ..core.errors import UsageError

_MOVED: Final = {
    "pack": "`graphcut fetch DIR --device NAME -o FOLDER` gets the parts of a device",
    "devices": "`graphcut show DIR --to devices` lists the parts of each device, and the commands for it",
    "cost-model": "`graphcut measure MODEL -o costs.csv` measures what each module costs, or computes it (--computed)",
    "cluster": "`graphcut measure cluster -o cluster.toml` measures a Ray cluster",
    "shard": "`graphcut split MODEL --ranks N --one-file` writes one model whose layers are divided",
    "diff": "`graphcut compare A B` compares two plans, cascades or models",
    "verify --against": "`graphcut compare MODEL OTHER` compares two models",
    "verify --tolerance": "`graphcut compare MODEL OTHER` compares two models, and has this option",
    "verify --provider": "`graphcut compare MODEL OTHER` compares two models, and has this option",
}


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
        if args[0] not in self.commands and args[0] in _MOVED:
            raise UsageError(f"there is no command {args[0]!r}", hint=_MOVED[args[0]])
        return super().resolve_command(ctx, args)


def moved_option(error: BaseException) -> str:
    """What does now what the option did that is no option of its command; empty if it never was one."""
    command = getattr(getattr(error, "ctx", None), "info_name", "")
    return _MOVED.get(f"{command} {getattr(error, 'option_name', '')}", "")
