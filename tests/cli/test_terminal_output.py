"""Output on terminals and in pipes: names, widths, colours, encodings, and readers that stop."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import helper

from cases import some
from command_line import MIDDLE, SCRIPT, Result, Run, command, environment, holdings, llm, own_llm, parts, run
from conftest import floats, model_of

__all__ = ["llm", "own_llm", "parts", "run"]


def named(folder: Path, *names: str) -> Path:
    """A chain whose nodes and tensors bear these names."""
    tensors = ["x", *(f"{name}:0" for name in names), "y"]
    nodes = [
        helper.make_node("Relu", [tensors[i]], [tensors[i + 1]], name=name) for i, name in enumerate([*names, "last"])
    ]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", ["[red]", "[/]", "[bold]x[/bold]", ":smile:", "%s{0}", "back\\slash", "a b"])
def test_a_name_is_shown_as_it_is(run: Run, tmp_path: Path, name: str) -> None:
    path = named(tmp_path, name)
    assert name in run("analyze", path).out
    assert run("analyze", path, "--cuts").out.splitlines()[1].split("\t")[0] == name
    assert json.loads(run("analyze", path, "--json").out)["cut_points"][0]["node"] == name
    result = run("split", path, "--at-nodes", name)
    assert result.code == 0
    assert f"{name}:0" in result.out
    assert run("verify", path.with_name("m.parts")).code == 0
    assert run("split", path, "--at-nodes", "[redx", "-f").error[0].endswith("'[redx'")


def test_a_long_name_is_whole_in_a_pipe(run: Run, tmp_path: Path) -> None:
    """What reads the pipe can't ask for more columns."""
    name = "/".join(["model", *(f"layers.{i}" for i in range(30))])
    path = named(tmp_path, name)
    assert name in run("analyze", path).out
    assert f"{name}:0" in run("split", path, "--at-nodes", name).out


# Widths, colours and encodings
def sizes_in(text: str) -> list[str]:
    return re.findall(r"\d[\d.]* (?:[KMGT]i)?B\b", " ".join(text.split()))


@pytest.mark.parametrize("columns", [80, 100])
def test_a_narrow_terminal_gets_every_number_of_an_analysis(
    run: Run, llm: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and modules may be shortened, and numbers may not."""
    _, _, wide = run("analyze", llm).out.partition("cut after")
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = run("analyze", llm).out
    assert max(len(line) for line in narrow.splitlines() if not line.startswith("next: ")) <= columns
    assert sizes_in(narrow.partition("cut after")[2]) == sizes_in(wide)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("at", ["/model/layers.1/add_1", "/model/layers.*/add*"], ids=["2 parts", "7 parts"])
def test_a_narrow_terminal_gets_every_number_and_every_reader_of_a_cascade(
    run: Run, own_llm: Path, at: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("split", own_llm, "--at-nodes", at).code == 0
    wide = run("show", own_llm.with_name("llm.parts")).out
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = run("show", own_llm.with_name("llm.parts")).out
    assert max(map(len, narrow.splitlines())) <= columns
    narrow, wide = (text.partition("cut profile")[0] for text in (narrow, wide))  # whose scale is that of its columns
    assert sizes_in(narrow) == sizes_in(wide)
    assert narrow.count("●") == wide.count("●")


def on_a_terminal(*words: object, **changes: str) -> str:
    """What the command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="100", **changes)
    with subprocess.Popen([SCRIPT, *map(str, words)], stdout=theirs, stderr=theirs, env=env):
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)
        except OSError:  # Linux says so when the other side is closed
            pass
    os.close(ours)
    return b"".join(pieces).decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;5)[0-9;]*m")


def test_colours_can_be_switched_off(parts: Path) -> None:
    assert COLOUR.search(on_a_terminal("show", parts))
    assert not COLOUR.search(on_a_terminal("show", parts, NO_COLOR="1"))
    assert not COLOUR.search(on_a_terminal("show", parts, "--no-color"))


LATIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize("words", [("analyze", "MODEL"), ("split", "MODEL", "--at-nodes", MIDDLE)], ids=" ".join)
def test_a_terminal_without_utf_8_gets_plain_letters(own_llm: Path, words: Sequence[str]) -> None:
    """Sizes without a number are "at least"; layers are counted; types have unknown sizes."""
    result = command(*(word.replace("MODEL", str(own_llm)) for word in words), cwd=own_llm.parent, env=LATIN)
    assert result.code == 0, result.err
    assert result.out.isascii()


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "words", some([("show", "PARTS")], ("verify", "PARTS"), ("show", "PARTS", "--to", "json")), ids=" ".join
)
def test_a_cascade_is_shown_without_utf_8(parts: Path, words: Sequence[str]) -> None:
    result = command(*(word.replace("PARTS", str(parts)) for word in words), env=LATIN)
    assert result.code == 0, result.err
    assert result.out.isascii()


@pytest.mark.fuzz
@pytest.mark.parametrize("words", some([("analyze",)], ("analyze", "--cuts"), ("analyze", "--json")), ids=" ".join)
def test_a_name_in_another_script_does_not_need_utf_8(tmp_path: Path, words: Sequence[str]) -> None:
    result = command(*words, named(tmp_path, "größe", "層"), env=LATIN)
    assert result.code == 0, result.err


# Interrupts and readers that stop
SLOW = """
import signal, sys, time
import graphcut.surgery.splitting as splitting
real, raised = splitting.write_data, int(sys.argv.pop(1))

class Interrupted:
    def __del__(self):  # in which Python ignores an exception
        signal.raise_signal(raised)

def slow(layout, target, **options):
    real(layout, target, **options)
    if raised:
        Interrupted()
    for _ in range(6000):  # a signal just before a sleep doesn't end it
        time.sleep(0.01)

splitting.write_data = slow
sys.argv[0] = "graphcut"
from graphcut.__main__ import start
start()
"""


@pytest.mark.parametrize(
    ("old", "number", "code", "in_finalizer"),
    [
        (False, signal.SIGINT, 130, False),
        (True, signal.SIGINT, 130, True),
        (True, signal.SIGTERM, 143, False),
        (True, signal.SIGHUP, 129, True),
    ],
)
def test_an_interrupted_split_says_so_and_leaves_nothing(
    own_llm: Path, parts: Path, number: signal.Signals, code: int, *, old: bool, in_finalizer: bool
) -> None:
    """In a finalizer, too, as that of a pool of threads: Python ignores what is raised there."""
    home = own_llm.parent
    if old:
        shutil.copytree(parts, home / "llm.parts")
    before = {name: (home / name).read_bytes() for name in holdings(home) if (home / name).is_file()}
    words = ["split", own_llm, "--at-nodes", "/model/layers.0/add_1", "--force"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(int(number) if in_finalizer else 0), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
    ) as running:
        deadline = time.monotonic() + 30
        while not list(home.glob("*.tmp-*/*/*/*.data")) and not in_finalizer and time.monotonic() < deadline:
            time.sleep(0.01)
        is_writing = time.monotonic() < deadline or in_finalizer
        if not in_finalizer:
            running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert is_writing
    assert (running.returncode, out) == (code, "")
    assert {name: (home / name).read_bytes() for name in holdings(home) if (home / name).is_file()} == before
    assert not list(home.glob("*tmp*"))
    assert err.splitlines()[-1] == "error: interrupted; no incomplete output is left"


def test_an_interruption_after_all_was_written_says_so(
    run: Run, own_llm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphcut.cli.split.say_gap", interrupted)
    monkeypatch.setattr("graphcut.core.atomic_files._finished", [])
    for _ in range(2):
        done = run("split", own_llm, "--at-nodes", "/model/layers.0/add_1", "--force", "-o", "parts")
        assert done.code == 130
        assert done.err.splitlines()[-1].startswith("error: interrupted; written in full: ")
        assert "/parts" in done.err.splitlines()[-1]


@pytest.mark.parametrize("words", [("analyze", "MODEL", "--cuts"), ("show", "PARTS"), ("--help",)], ids=" ".join)
def test_a_closed_pipe_is_not_an_error(llm: Path, parts: Path, words: Sequence[str]) -> None:
    filled = [word.replace("MODEL", str(llm)).replace("PARTS", str(parts)) for word in words]
    with subprocess.Popen(
        [SCRIPT, *filled], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        result = running.stderr.read()
    assert (running.returncode, result) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_no_defect(llm: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [SCRIPT, "analyze", llm, "--cuts"], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert done.returncode == 3
    result = Result(3, "", done.stderr.decode())
    assert "No space left on device" in result.error[0]
    assert "defect" not in result.error[1]
