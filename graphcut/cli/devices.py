"""The command `graphcut devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..core.text import shell_word
from .common_options import CascadePath, open_
from .output import print_, print_line, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..core.manifest import Cascade


def devices(cascade_path: CascadePath) -> None:
    """Print the parts of each device, and the commands for it.

    The first makes its folder, to be copied there to the same path; the second, given there, makes it a device of a
    Ray cluster.
    """
    cascade = open_(cascade_path, check_files=False)
    if not cascade.manifest.devices:
        hint = "split for a cluster with --cluster FILE, or use --part of `graphcut fetch`"
        raise UsageError(f"{cascade.path} was not planned for devices", hint=hint)
    print_(lambda console: _drawn(cascade, console))
    for host in cascade.manifest.devices:
        name = shell_word(host.name)
        print_line("")
        print_line(f"graphcut pack {shell_word(str(cascade_path))} --device {name} -o {name}")
        resources = shell_word(f'{{"dev:{host.name}": 1}}')
        print_line(f"ray start --address=HEAD:6379 --resources={resources}")
    say("note: on the head, where you call graphcut: --head --port=6379 instead of --address=HEAD:6379")


def _drawn(cascade: Cascade, console: Console) -> RenderableType:
    from rich.text import Text

    from ..core.units import size
    from ..drawing.terminal.screen import screen_on
    from ..drawing.terminal.tables import Column, table

    hosts = cascade.manifest.devices
    owned = [[part for part in cascade.parts if part.device == host.name] for host in hosts]
    here = [[part for part in parts if cascade.file(part).is_file()] for parts in owned]
    return table(
        screen_on(console),
        [
            Column("device", [Text(host.name) for host in hosts]),
            Column("parts", [Text(", ".join(part.file for part in parts)) for parts in owned], min_width=8),
            Column("weights", [size(sum(part.weight_bytes for part in parts)) for parts in owned]),
            Column("here", [f"{len(found)} of {len(parts)}" for found, parts in zip(here, owned, strict=True)]),
        ],
    )
