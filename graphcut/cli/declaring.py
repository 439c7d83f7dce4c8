"""How commands declare arguments and options: each with the word for its value. `help_texts.json` has their texts."""

from functools import partial
from pathlib import Path
from typing import Any, Final

from typer import Argument, Context, Option

from ..core.units import parse_bytes


def _checked(context: Context, output: Path | None) -> Path | None:
    """What `-o` names, before any work is done: the folder that it is to be in must exist."""
    if output is not None and not context.resilient_parsing:
        from ..core.atomic_files import mend

        mend(output.absolute().parent, output.name)
    return output


Output: Final = partial(Option, "--output", "-o", metavar="FILE", callback=_checked)
Size: Final = partial(Option, parser=parse_bytes, metavar="SIZE")


def argument(word: str, **more: Any) -> Any:  # noqa: ANN401 - typer's own types
    """An argument; `word` stands for it in the help."""
    return Argument(metavar=word, **more)


def takes(word: str, *names: str, **more: Any) -> Any:  # noqa: ANN401 - as above
    """An option that takes a value, for which `word` stands; by default it is called like the parameter."""
    return Option(*names, metavar=word, **more)


def flag(*names: str) -> Any:  # noqa: ANN401 - as above
    """An option without a value."""
    return Option(*names)
