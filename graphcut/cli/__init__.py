"""Words in, one library call, words out. The only room that prints, colours or exits; one file a group of commands.

Exit codes: 0 done, 1 the answer is no, 2 misuse, 3 could not, 4 no plan fits, 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from ..core.errors import GraphcutError, PlanError, UsageError
from ..core.version import __version__
from . import analyze_plan_split, bench, generate, run, show, simulate, verify_and_merge
from .common_options import app

__all__ = ["analyze_plan_split", "bench", "generate", "main", "run", "show", "simulate", "verify_and_merge"]

_INTERRUPTED: Final = 130

_Misuse: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that its grammar refuses; it has no public name for all kinds of it."""


def main() -> None:
    """The `graphcut` command: run it, and turn every outcome into words and an exit code."""
    gc.disable()  # a command ends before circles of garbage matter, and looking for them takes a tenth of its time
    arguments = _with_bare_words(sys.argv[1:] or ["--help"])
    words = [word for word in arguments if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name in a script that the terminal lacks harms nothing
    try:
        code = app(args=words, prog_name="graphcut", standalone_mode=False)
        sys.exit(_explain(KeyboardInterrupt()) if code == _INTERRUPTED else code)  # typer makes a number of Ctrl-C
    except BaseException as error:
        # typer makes an exit of some, and the exit tells of what; numpy makes an ImportError of Ctrl-C while it loads.
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        if isinstance(cause, ImportError) and isinstance(cause.__cause__ or cause.__context__, KeyboardInterrupt):
            cause = KeyboardInterrupt()
        if isinstance(cause, SystemExit) or (words != arguments and isinstance(cause, Exception)):
            raise
        sys.exit(_explain(cause))


def _explain(error: BaseException) -> int:  # noqa: PLR0911 - one for each kind of outcome
    """Say what happened and what to do next; the exit code for it."""
    match error:
        case UsageError():
            return _complain(str(error), error.hint, 2)
        case PlanError():
            return _complain(str(error), error.hint, 4)
        case GraphcutError():
            return _complain(str(error), error.hint, 3)
        case KeyboardInterrupt() | typer.Abort():
            return _complain("interrupted; nothing was left half-written", "", _INTERRUPTED)
        case BrokenPipeError():
            # Whoever read us has seen enough. stdout is pointed elsewhere, or Python complains while it closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError():
            what = error.filename or "the output"
            return _complain(
                f"{what} can't be read or written: {error.strerror or error}", "check disk and permissions", 3
            )
    if isinstance(error, _Misuse):
        command = getattr(getattr(error, "ctx", None), "command_path", "graphcut")
        said = getattr(error, "format_message", error.__str__)()
        return _complain(said, f"`{command} --help` shows how", 2)
    return _complain(
        f"something went wrong inside graphcut: {type(error).__name__}: {error}",
        "that is a defect of graphcut; the same command with --debug shows where",
        3,
    )


_BARE: Final = {"--cuts": "0", "--heads": "", "--prove": "30"}


"""Options that may stand without a value, which typer's can't, and what they then mean."""


def _with_bare_words(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a value behind each option that stands without one."""
    made = list(arguments)
    for i, word in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        is_value = following.isdigit() if word != "--heads" else not following.startswith("-")
        if word in _BARE and (not is_value or following.endswith(".onnx")):
            made[i] = f"{word}={_BARE[word]}"
    return made


def _complain(message: str, hint: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    if hint:
        sys.stderr.write(f" hint: {' '.join(hint.split())}\n")
    return code


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the versions that matter in a bug report.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour; NO_COLOR does the same.")] = False,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if version:
        from importlib.metadata import version as installed

        python = ".".join(str(number) for number in sys.version_info[:3])
        sys.stdout.write(
            f"graphcut {__version__} (python {python}, onnx {installed('onnx')}, "
            f"onnxruntime {installed('onnxruntime')})\n"
        )
        raise typer.Exit
