"""The help of `graphcut` itself: commands in sections; and where commands and options went that exist no more."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from typer.core import TyperGroup

from ..core.errors import UsageError

_PLAN_FIRST: Final = "give it to `graphcut plan MODEL -o plan.json`, then `graphcut split MODEL --plan plan.json`"
_OF_PLAN: Final = "pin avoid inside-layers recompute boundary-dtype cost-model profile prove outputs in-flight"
_COMPARE: Final = "`graphcut compare MODEL OTHER` compares two models, and has --tolerance and --provider"
_MOVED: Final = {
    "pack": "`graphcut fetch DIR --device NAME -o FOLDER` gets the parts of a device",
    "devices": "`graphcut show DIR --to devices` lists the parts of each device, and the commands for it",
    "cost-model": "`graphcut measure MODEL -o costs.csv` measures what each module costs, or computes it (--computed)",
    "cluster": "`graphcut measure cluster -o cluster.toml` measures a Ray cluster",
    "shard": "`graphcut split MODEL --ranks N --one-file` writes one model whose layers are divided",
    "diff": "`graphcut compare A B` compares two plans, cascades or models",
    **dict.fromkeys(("verify --against", "verify --tolerance", "verify --provider"), _COMPARE),
    **dict.fromkeys((f"--{name}" for name in _OF_PLAN.split()), _PLAN_FIRST),
    "auto --optimize": "use --prepare fuse",
    "auto --parts": "use --num-splits, with --memory too",
    "demo --heads": "use --attention-heads",
    "extract --to": "use --until",
    "link --weights": "use --checkpoint",
    "plan --plan": "`graphcut split MODEL --plan FILE` cuts by a plan",
    "show --json": "use --to json",
    "--by": "`graphcut plan MODEL --num-splits N --count WHAT` says what is balanced",
    "--closed": "use --in-flight",
    "--devices": "use `graphcut split MODEL --at-nodes NAMES --device NAMES`, or --cluster",
    "--discover": "leave it out: operators without a rule are not divided",
    "--exact": "leave it out: it is the default, and --sum the other way",
    "--explain": "`graphcut show PLAN` explains each cut of a plan that is saved",
    "--for": "use --to",
    "--force-memory": "give a larger --memory, or leave it out",
    "--interleave": "use --objective interleaved",
    "--optimized": "use --optimize all",
    "--prompts": "use --prompt @FILE",
    "--provider-option": "use --provider NAME,KEY=VALUE",
    "--report": "`graphcut show DIR -o report.html` draws a cascade",
    "--shares": "use --ranks 3:1",
    "--stop-ids": "use --stop N,N with --prompt-ids",
    "--tokens": "use --profile decode:N",
}
"""What does now what a command, or an option of one or any command, did that exists no more."""


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
    command, option = getattr(getattr(error, "ctx", None), "info_name", ""), getattr(error, "option_name", "")
    return _MOVED.get(f"{command} {option}", _MOVED.get(option, ""))
