"""The command `graphcut fetch`."""

import sys
from contextlib import suppress
from pathlib import Path

from ..core.errors import UsageError
from ..core.text import shell_word
from .output import INTERRUPTED, complain, print_lines, say, say_next, settings, writing


def fetch(source: str, output: Path, part: list[int] | None = None, device: str | None = None) -> None:
    """Get parts of a cascade, and only the weights that they read.

    All parts without --part and --device. The same command goes on after an interruption, and adds parts. From a path,
    --device makes a folder to be copied to that device.

    Examples:
        graphcut fetch unet.parts --part 0 -o first
        graphcut fetch unet.parts --device board -o board
    """
    from .. import fetch as fetched
    from .. import open_cascade

    if part and device is not None:
        raise UsageError("--part and --device both say which parts", hint="leave out one of them")
    cascade = None
    with suppress(KeyboardInterrupt), writing(verb="fetching") as progress:
        cascade = fetched(source, output, parts=part or None, device=device, progress=progress)
    if cascade is None:  # outside of a clause: the error would be explained as that of a command that cleans up
        complain(f"interrupted; the same command goes on with what is in {output}")
        sys.exit(INTERRUPTED)
    if settings.is_quiet:
        print_lines(str(cascade.path))
        return
    say(f"{output} has {', '.join(part.file for part in cascade.parts if device in {None, part.device})}")
    if device is not None and Path(source).exists():
        if others := ", ".join(part.place for part in cascade.parts if part.device != device):
            say(f"note: it also has {others}: choose another folder with -o, unless one machine is both devices")
        root = open_cascade(source, check_files=False).root.resolve()
        say_next(f"rsync -a {shell_word(str(output))}/ {shell_word(device)}:{shell_word(str(root))}/")
    elif not (cascade.absent and cascade.manifest.devices):  # else this machine is a device, and another one runs it
        say_next(f"graphcut run {shell_word(str(cascade.path))} --inputs FILE -o y.npz")
