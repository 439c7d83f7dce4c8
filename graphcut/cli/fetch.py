"""The command `graphcut fetch`."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..core.errors import UsageError
from ..core.text import shell_word
from .common_options import Output
from .output import INTERRUPTED, complain, print_line, say, say_next, settings, writing


def fetch(
    source: Annotated[str, Argument(metavar="URL", help="The folder of a cascade, or its manifest: a URL or a path.")],
    output: Annotated[Path, Output(metavar="DIR", help="The folder for the parts.")],
    part: Annotated[list[int] | None, Option(metavar="K", help="Get this part, counted from 0. Repeatable.")] = None,
    device: Annotated[str | None, Option(metavar="NAME", help="Get the parts planned for this device.")] = None,
) -> None:
    """Get parts of a cascade, and only the weights that they read.

    All parts without --part and --device. The same command goes on after an interruption, and adds parts.
    """
    from ..transferring.fetching import fetch as fetched

    if part and device is not None:
        raise UsageError("--part and --device both say which parts", hint="leave out one of them")
    is_interrupted = False
    try:
        with writing(verb="fetching") as progress:
            cascade = fetched(source, output, parts=part or None, device=device, progress=progress)
    except KeyboardInterrupt:
        is_interrupted = True
    if is_interrupted:  # outside of the clause: the error would be explained as that of a command that cleans up
        complain(f"interrupted; the same command goes on with what is in {output}")
        sys.exit(INTERRUPTED)
    if settings.is_quiet:
        print_line(str(cascade.path))
        return
    say(f"{output} has {', '.join(part.file for part in cascade.parts)}")
    if cascade.elsewhere and cascade.manifest.devices:
        return  # this machine is a device, and the cascade is run on the head
    say_next(f"graphcut run {shell_word(str(cascade.path))} --inputs FILE -o y.npz")
