"""The code blocks of README.md and docs/: find them, run them, write their outputs anew.

A block is run according to its language:

- `console`: each line that begins with `$ ` is a command; what follows is what it prints, stdout and stderr together,
  or the first lines of that and a line `...`.
- `python`: run as it is. The blocks of a page share one namespace.
- `sh`: each line is a command, whose output is not shown. Where a comment says `not run`, it is not: then each option
  of graphcut in it must exist.
- `json`: must be JSON.

A comment on the line before a block says more: `<!-- file: NAME -->` writes the block into that file,
`<!-- exit: N -->` expects that exit code, `<!-- inputs: FILE for MODEL -->` writes inputs for a model into a file
first, `<!-- first: COMMAND && COMMAND -->` runs commands that the page does not show, `<!-- not run: REASON -->` says
why a block needs more than a test has, `<!-- measured -->` says that the output differs from run to run: then only the
exit code counts. All blocks of a page run in one folder, from top to bottom.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

from graphcut import cli, load
from graphcut.inputs.generating import generate_inputs
from graphcut.running.npz_files import save_outputs

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COLUMNS: Final = 100
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK: Final = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<notes>[^>]*) -->\n(?P=indent))?```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)
_COMMAND: Final = re.compile(r"^\$ ", flags=re.MULTILINE)
_SEPARATE: Final = {"run", "generate", "bench"}
"""Commands that run in a process of their own: they measure or change the process that they run in."""


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        language: `console`, `python`, ...
        text: what is between its fences.
        line: the line of the page where it begins.
        file: the file that it is written into.
        inputs: `FILE for MODEL`: the inputs that it needs.
        exit_code: what its last command exits with.
        is_measured: whether its output differs from run to run.
        first: commands that are run before it, and not shown.
        not_run: why it is not run; empty if it is.
        span: where in the page the text is.
    """

    language: str
    text: str
    line: int
    file: str | None
    inputs: str | None
    exit_code: int
    is_measured: bool
    first: list[str]
    not_run: str
    span: tuple[int, int]

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a `console` block, each with the lines that it prints."""
        shown = [piece.rstrip().split("\n") for piece in _COMMAND.split(self.text)[1:]]
        return [(command, _trimmed(lines)) for command, *lines in shown]


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page with a language."""
    found = []
    for match in _BLOCK.finditer(page):
        notes = dict(note.partition(": ")[::2] for note in (match["notes"] or "").split(", "))
        found.append(
            Block(
                language=match["language"],
                text=re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
                line=page.count("\n", 0, match.start("language")) + 1,
                file=notes.get("file"),
                inputs=notes.get("inputs"),
                exit_code=int(notes.get("exit", 0)),
                is_measured="measured" in notes,
                first=[command for command in notes.get("first", "").split(" && ") if command],
                not_run=notes.get("not run", ""),
                span=match.span("text"),
            )
        )
    return found


class Run:
    """The blocks of one page at work in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._namespace: dict[str, Any] = {"__name__": "page"}

    def run(self, block: Block) -> Block:
        """Run a block; the same block with what its commands really print and exit with."""
        if block.inputs is not None:
            name, _, model = block.inputs.partition(" for ")
            (self.folder / name).parent.mkdir(exist_ok=True)
            save_outputs(dict(generate_inputs(load(self.folder / model))), self.folder / name)
        for command in block.first:
            printed, code = self.command(command)
            if code:
                raise RuntimeError(f"line {block.line}: {command}: {printed}")
        if block.file is not None:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            with contextlib.chdir(self.folder), warnings.catch_warnings(action="ignore"):
                exec(compile(block.text, f"line {block.line}", "exec"), self._namespace)  # noqa: S102 - our own pages
        elif block.language == "sh" and not block.not_run:
            for command in commands_in(block.text):
                printed, code = self.command(command)
                if code:
                    return replace(block, text=f"{command}: {printed}", exit_code=code)
        elif block.language == "console":
            done = [(command, *self.command(command)) for command, _ in block.commands]
            shown = [lines for _, lines in block.commands]
            done = [
                (c, [*lines[: len(s) - 1], "..."] if s[-1:] == ["..."] else lines, n)
                for (c, lines, n), s in zip(done, shown, strict=True)
            ]
            text = "\n".join("\n".join([f"$ {command}", *lines]) + "\n" for command, lines, _ in done)
            return replace(block, text=text, exit_code=done[-1][2])
        return block

    def command(self, command: str) -> tuple[list[str], int]:
        """What a terminal of `COLUMNS` columns shows of a command, and its exit code."""
        words = shlex.split(command)
        environment = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
        if words[0] == "graphcut" and words[1] not in _SEPARATE:
            with mock.patch.dict(os.environ, environment), contextlib.chdir(self.folder):
                printed, code = _in_this_process(words)
        else:
            words = [sys.executable, "-u", *(["-m"] if words[0] == "graphcut" else []), *words]
            words = [word for word in words if word != "python"]
            done = subprocess.run(
                words,
                cwd=self.folder,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
            )
            printed, code = done.stdout, done.returncode
        # A terminal shows a bar while files are written, which leaves no trace.
        lines = [line for line in printed.split("\n") if not line.startswith("writing ")]
        return _trimmed(lines), code


def _in_this_process(words: list[str]) -> tuple[str, int]:
    """What `graphcut` prints and exits with: importing onnx and onnxruntime anew takes longer than most commands."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code: object = 0
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
        finally:
            gc.enable()  # which a command turns off
    stream.seek(0)
    return stream.read(), code if isinstance(code, int) else 0


def _trimmed(lines: list[str]) -> list[str]:
    """The lines without spaces at their ends and without empty lines at the end."""
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n") if any(lines) else []


def renewed(page: str, folder: Path) -> str:
    """A page with the output that its commands print today. Blocks that are measured are run and kept."""
    run, pieces, end = Run(folder), list[str](), 0
    for block in blocks_of(page):
        done = run.run(block)
        if done.exit_code != block.exit_code:
            raise RuntimeError(f"line {block.line}: exit code {done.exit_code}\n{done.text}")
        if block.language == "console" and (not block.is_measured or not any(lines for _, lines in block.commands)):
            pieces += [page[end : block.span[0]], done.text]
            end = block.span[1]
    return "".join([*pieces, page[end:]])


def commands_in(text: str) -> list[str]:
    """The commands of a shell script that has one in each line, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def options_in(text: str) -> Iterator[tuple[str, str]]:
    """Each option in the lines of a shell script that call graphcut, and the command that it is for."""
    for line in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(line, comments=True)
        for i, word in enumerate(words[:-1]):
            if word == "graphcut" and not words[i + 1].startswith("-"):
                yield from ((words[i + 1], w.partition("=")[0]) for w in words[i + 2 :] if re.match(r"--?[a-z]", w))
