"""Locked folders: private, removed at the end of a run, and by a later run if all their processes were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphcut import RunError
from graphcut.transferring import locked_folders
from graphcut.transferring.locked_folders import ShmFolders, lock_folder, remove_unused

LONG_AGO = (1.0, 1.0)
KILLED = """
import os, sys, tempfile
from pathlib import Path
from graphcut.transferring import locked_folders

tempfile.tempdir = sys.argv[1]
locked_folders.SHARED_MEMORY = Path(sys.argv[1])
folders = locked_folders.ShmFolders()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which others are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(locked_folders, "SHARED_MEMORY", tmp_path)
    return tmp_path


def make_old(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    os.utime(folder, LONG_AGO)


def test_the_folder_in_shared_memory_is_before_the_temporary_one(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / "shm").mkdir()
    monkeypatch.setattr(locked_folders, "SHARED_MEMORY", parent / "shm")
    folders = ShmFolders()
    assert [Path(path).parent for path in folders.paths] == [parent / "shm", parent]
    folders.close()


def test_folders_are_private_and_removed_with_their_files(parent: Path) -> None:
    folders = ShmFolders()
    (path,) = map(Path, folders.paths)
    assert path.name.startswith(f"graphcut-{os.getpid()}-")
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "region").write_text("x")
    folders.close()
    assert [*parent.iterdir()] == []


def test_an_error_says_that_no_folder_can_be_made(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(parent / "missing"))
    monkeypatch.setattr(locked_folders, "SHARED_MEMORY", parent / "missing too")
    with pytest.raises(RunError, match="no folder can be made in "):
        ShmFolders()


def test_the_folders_of_a_killed_program_are_removed(parent: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, parent], check=False)
    (abandoned,) = parent.iterdir()
    (abandoned / "region").write_text("x")
    os.utime(abandoned, LONG_AGO)
    folders = ShmFolders()
    assert [str(path) for path in parent.iterdir()] == folders.paths
    folders.close()


def test_a_folder_is_removed_unless_a_process_uses_it(parent: Path) -> None:
    used, unused = parent / "used", parent / "unused"
    make_old(used)
    make_old(unused)
    lock = lock_folder(used)
    remove_unused(used)
    remove_unused(unused)
    assert [*parent.iterdir()] == [used]
    os.close(lock)


def test_locked_young_and_foreign_folders_are_kept(parent: Path) -> None:
    used = ShmFolders()
    names = {Path(used.paths[0]).name, "graphcut-cache", "graphcut-12-x.y", "other"}
    for name in names:
        make_old(parent / name)
    (parent / "graphcut-12-young").mkdir()
    folders = ShmFolders()
    assert {path.name for path in parent.iterdir()} >= {*names, "graphcut-12-young"}
    folders.close()
    used.close()
