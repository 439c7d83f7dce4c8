"""Where commands and options went that exist no more."""

from __future__ import annotations

from ..core.records import table


def moved_option(error: BaseException) -> str:
    """What does now what the option did that is no option of its command; empty if it never was one."""
    command, option = getattr(getattr(error, "ctx", None), "info_name", ""), getattr(error, "option_name", "")
    return moved().get(f"{command} {option}", moved().get(option, ""))


def moved() -> dict[str, str]:
    """What does now what a command, or an option of one or any command, did that exists no more."""
    return {name: now for names, now in table("cli/moved.toml", dict[str, str]).items() for name in names.split(", ")}
