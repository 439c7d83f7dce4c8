"""The panels that the help of commands has for their options: `help_pages.toml` has them."""

from collections.abc import Sequence

from ..core.records import table


def panels() -> dict[str, dict[str, str]]:
    """The options of each panel, by the command and by the title; those of all commands under `every command`."""
    return table("cli/help_pages.toml", dict[str, dict[str, str]])


def panels_of(command: str, options: Sequence[str]) -> dict[str, list[str]]:
    """The options of each panel of a command, by its title.

    >>> panels_of("merge", ["connect", "force", "output"])
    {'Inputs': [], 'Output': ['output', 'force'], 'Model': [], 'Advanced': ['connect']}
    """
    found: dict[str, list[str]] = {}
    left = list(options)
    for title, names in (*panels().get(command, {}).items(), *panels()["every command"].items()):
        found.setdefault(title, []).extend(name for name in names.split() if name in left)
        left = [name for name in left if name not in found[title]]
    return {**found, "Advanced": left}
