"""The `graphcut` command: one file per command. This package alone prints, colours and exits.

Exit codes: 0 done, 1 the answer is no, 2 misuse, 3 failed, 4 no plan fits, 130 interrupted.
"""

import gc
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import typer

from ..core.errors import GraphcutError, LeftoverWarning, PlanError, ShapeWarning, StallWarning, UsageError
from ..core.units import sizes_as_given
from .application import app
from .argument_names import in_options
from .moved import moved_option
from .output import INTERRUPTED, complain, say, settings

_VALUELESS: Final = {"--cuts": f"{sys.maxsize}", "--heads": "", "--prove": "30"}
"""Options whose value may be left out, which typer does not support, and the value that this means."""


@sizes_as_given()
def main() -> None:
    """Run the command line, explain errors in two lines, and exit with a code."""
    gc.disable()  # a command ends before garbage matters, and looking for it takes a tenth of its time
    settings.is_quiet = settings.has_no_color = settings.is_in_line = False
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    settings.words = partial(in_options, command=command)
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold characters that the terminal lacks
    try:
        code = app(args=[*_with_values(sys.argv[1:])], prog_name="graphcut", standalone_mode=False)
        sys.exit(_explain(KeyboardInterrupt()) if code == INTERRUPTED else code)  # typer makes 130 of Ctrl-C
    except BaseException as error:
        if "_GRAPHCUT_COMPLETE" in os.environ and isinstance(error, Exception):
            sys.exit(1)  # the shell asks for completions, and shows no errors
        # typer may turn an error into an exit
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        if isinstance(cause, SystemExit):
            raise
        sys.exit(_explain(cause))


def _with_values(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments, with a value for each option that may stand without one."""
    for i, word in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        is_value = following.isdigit() if word != "--heads" else not following.startswith("-")
        lacks_value = word in _VALUELESS and (not is_value or following.endswith(".onnx"))
        yield f"{word}={_VALUELESS[word]}" if lacks_value else word


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
) -> None:
    if issubclass(category, LeftoverWarning | ShapeWarning | StallWarning):
        say(f"note: {message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _explain(error: BaseException) -> int:
    """Print what happened and what to do next; returns the exit code."""
    if isinstance(error, MemoryError):
        error = GraphcutError(f"there is not enough memory: {error}", hint="give smaller sizes, or free memory")
    match error:
        case GraphcutError():
            code = 2 if isinstance(error, UsageError) else 4 if isinstance(error, PlanError) else 3
            return _report(str(error), settings.words(error.hint), code)
        case KeyboardInterrupt() | typer.Abort():
            from ..core.atomic_files import finished

            done = ", ".join(str(path) for path in dict.fromkeys(finished()))
            what = f"written in full: {done}" if done else "no incomplete output is left"
            return _report(f"interrupted; {what}", "", INTERRUPTED)
        case BrokenPipeError():
            # The reader of stdout has closed it. Without another stdout Python complains while it flushes this one.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError():
            problem = f"{error.filename or 'the output'} can't be read or written: {error.strerror or error}"
            return _report(problem, "check disk and permissions", 3)
    if isinstance(error, typer.BadParameter.__mro__[1]):  # for a wrong command line; it has no public name
        command = getattr(getattr(error, "ctx", None), "command_path", "graphcut")
        message = getattr(error, "format_message", error.__str__)().replace(": Value error, ", ": ")
        return _report(message, moved_option(error) or f"`{command} --help` lists arguments and options", 2)
    hint = "this is a defect of graphcut; the same command with --debug prints where"
    if "--debug" in sys.argv:
        traceback.print_exception(error)
        hint = "this is a defect of graphcut; the lines above say where"
    return _report(f"internal error: {type(error).__name__}: {error}", hint, 3)


def _report(message: str, hint: str, code: int) -> int:
    complain(f"error: {' '.join(message.split())}")
    if hint:
        complain(f" hint: {' '.join(hint.split())}")
    return code
