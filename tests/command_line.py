"""What the tests of the command line share: running it, and a small decoder with its cascade."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import graphcut
from graphcut import cli, demos

COMMANDS = (
    *("analyze", "plan", "split", "verify", "compare", "show", "run", "generate", "bench"),
    *("measure", "simulate", "fetch", "auto", "extract", "merge", "link", "export", "demo", "doctor"),
)
RAY_FLAGS = {"--head", "--port", "--resources", "--address", "--node-ip-address"}
MIDDLE = "/model/layers.1/add_1"
SMALL: Mapping[str, Any] = {"hidden": 16, "layers": 3, "heads": 2, "kv_heads": 1, "vocab": 32}
SCRIPT = Path(sys.executable).with_name("graphcut")


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> tuple[str, str]:
        """The two lines of an error."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 2, self.err
        assert lines[0].startswith("error: "), self.err
        assert lines[1].startswith(" hint: "), self.err
        return lines[0].removeprefix("error: "), lines[1].removeprefix(" hint: ")


Run = Callable[..., Result]


def environment(**changes: str) -> dict[str, str]:
    told = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONIOENCODING"}
    return {name: value for name, value in os.environ.items() if name not in told} | changes


def command(*words: object, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({})) -> Result:
    """The real command, in a process of its own, its output in pipes."""
    done = subprocess.run(
        [SCRIPT, *map(str, words)], capture_output=True, cwd=cwd, env=environment(**env), check=False, timeout=60
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same `main` in this process, which is faster."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: object) -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["graphcut", *map(str, words)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@cache
def decoder_in(folder: Path) -> Path:
    """Made once: each file of tests that imports the fixture has one of its own."""
    path = folder / "llm" / "llm.onnx"
    path.parent.mkdir()
    demos.write("llm", path, **SMALL)
    return path


@cache
def parts_of(path: Path) -> Path:
    """Made once, as the decoder."""
    return graphcut.split(path, graphcut.At((MIDDLE,)), path.with_name("llm.parts")).root


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of three layers, for reading only."""
    return decoder_in(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def parts(llm: Path) -> Path:
    """The decoder cut in two, for reading only."""
    return parts_of(llm)


@pytest.fixture
def own_llm(llm: Path, tmp_path: Path) -> Path:
    """A copy to write beside, in the current folder of `run`."""
    return Path(shutil.copy(llm, tmp_path / "llm.onnx"))


@pytest.fixture
def own_parts(own_llm: Path, parts: Path) -> Path:
    return Path(shutil.copytree(parts, own_llm.with_name("llm.parts")))


def holdings(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
