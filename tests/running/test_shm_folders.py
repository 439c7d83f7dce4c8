"""Folders for shared memory: private, and cleared away by the next one where everybody was killed at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphcut import RunError
from graphcut.running.executors import shm_folders
from graphcut.running.executors.shm_folders import ShmFolders

LONG_AGO = (1.0, 1.0)
KILLED = """
import os, sys, tempfile
from pathlib import Path
from graphcut.running.executors import shm_folders

tempfile.tempdir = sys.argv[1]
shm_folders.SHARED_MEMORY = Path(sys.argv[1])
made = shm_folders.ShmFolders()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shm_folders, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_shared_memory_comes_first_then_the_temporary_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "shm").mkdir()
    monkeypatch.setattr(shm_folders, "SHARED_MEMORY", home / "shm")
    made = ShmFolders()
    assert [Path(path).parent for path in made.paths] == [home / "shm", home]
    made.close()


def test_they_are_private_name_their_process_and_go_with_all_that_is_in_them(home: Path) -> None:
    made = ShmFolders()
    (path,) = map(Path, made.paths)
    assert path.name.startswith(f"graphcut-{os.getpid()}-")
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "region").write_text("x")
    made.close()
    assert [*home.iterdir()] == []


def test_where_no_folder_can_be_made_it_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(home / "none"))
    monkeypatch.setattr(shm_folders, "SHARED_MEMORY", home / "neither")
    with pytest.raises(RunError, match="no folder can be made in "):
        ShmFolders()


def test_what_a_killed_program_left_is_cleared_away(home: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, home], check=False)
    (left,) = home.iterdir()
    (left / "region").write_text("x")
    os.utime(left, LONG_AGO)
    made = ShmFolders()
    assert [str(path) for path in home.iterdir()] == made.paths
    made.close()


def test_what_is_in_use_or_young_or_of_another_name_stays(home: Path) -> None:
    used = ShmFolders()
    os.utime(used.paths[0], LONG_AGO)
    for name in ("graphcut-cache", "graphcut-12-x.y", "other"):
        (home / name).mkdir()
        os.utime(home / name, LONG_AGO)
    (home / "graphcut-12-young").mkdir()
    made = ShmFolders()
    names = {path.name for path in home.iterdir()}
    assert names >= {Path(used.paths[0]).name, "graphcut-cache", "graphcut-12-x.y", "other", "graphcut-12-young"}
    made.close()
    used.close()
