"""The README's commands do what the README shows, line by line, and its Python runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
(CLUSTER,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("readme")
    (made / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
    return made


def test_every_command_prints_what_the_readme_shows(folder: Path) -> None:
    """All lines shown must come, in any order: stdout and stderr meet only on a terminal."""
    for block in CONSOLE:
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *expected = shown.rstrip().split("\n")
            printed = run_command(command, folder)
            missing = [line for line in expected if line.strip() and line.rstrip() not in printed]
            assert missing == [], f"$ {command}\n" + "\n".join(printed)


def run_command(command: str, folder: Path) -> list[str]:
    words = shlex.split(command)
    assert words[0] == "graphcut"
    # The README shows what a terminal of 110 columns shows.
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.rstrip() for line in f"{done.stdout}\n{done.stderr}".split("\n")]


def test_the_python_of_the_readme_runs(folder: Path) -> None:
    for code in PYTHON:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
