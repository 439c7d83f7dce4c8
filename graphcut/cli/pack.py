"""The command `graphcut pack`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from ..core.text import shell_word
from .common_options import CascadePath, Output, open_
from .output import print_line, say, say_next, settings, writing


def pack(
    cascade_path: CascadePath,
    output: Annotated[Path, Output(metavar="DIR", help="The folder for the device.")],
    device: Annotated[str, Option(metavar="NAME", help="The device of the plan.")],
) -> None:
    """Make the folder that a device needs.

    It has its parts, their weights, the manifest and the tokenizer. The same command goes on after an interruption.
    """
    from ..transferring.fetching import fetch

    root = open_(cascade_path, check_files=False).root.resolve()
    with writing(verb="packing") as progress:
        cascade = fetch(cascade_path, output, device=device, progress=progress)
    if settings.is_quiet:
        print_line(str(cascade.path))
        return
    say(f"{output} has {', '.join(part.file for part in cascade.parts if part.device == device)}")
    if others := [part.place for part in cascade.parts if part.device != device]:
        say(f"note: it also has {', '.join(others)}: choose another folder with -o, unless one machine is both devices")
    say_next(f"rsync -a {shell_word(str(output))}/ {shell_word(device)}:{shell_word(str(root))}/")
