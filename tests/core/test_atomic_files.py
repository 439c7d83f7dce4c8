"""Writing beside what is there, and renaming: who writes alone, what is never replaced, what a killed run leaves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphcut import GraphcutError, UsageError
from graphcut.core.atomic_files import mend, rename, replace_files, replacing, scratch_folder, write_errors
from graphcut.core.errors import LeftoverWarning


def test_an_error_in_a_step_of_an_output_names_the_output(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(GraphcutError, match=f"^writing {tmp_path / 'out'} failed: No space left on device$"),
        write_errors(tmp_path / "out"),
        scratch_folder(tmp_path, "out") as scratch,
        write_errors(scratch / "new" / "model.onnx"),
    ):
        raise full


HOLD = """
import sys, time
from pathlib import Path
from graphcut.core.atomic_files import scratch_folder
with scratch_folder(Path(sys.argv[1]), "out") as scratch:
    (scratch / "new").write_text("half")
    print("there", flush=True)
    time.sleep(60)
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is writing `out` in `folder`."""
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        try:
            yield holder
        finally:
            holder.kill()


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def killed(work: Callable[[], None], *, in_call: str, at: int) -> None:
    """Run `work` in a process of its own, which is killed when it makes its nth audited system call of that kind."""
    child = os.fork()
    if not child:
        seen = 0

        def watch(event: str, _: object) -> None:
            nonlocal seen
            if event == in_call:
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def exchange(folder: Path) -> None:
    """Replace the files `a`, `b` and `last` by other ones."""
    with scratch_folder(folder, "out") as scratch:
        (scratch / "new").mkdir()
        for name in ("a", "c", "last"):
            (scratch / "new" / name).write_text(f"new {name}")
        replace_files(scratch, folder, last="last", old=[folder / name for name in ("last", "a", "b")])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    for name in ("a", "b", "last"):
        (tmp_path / name).write_text(f"old {name}")
    return tmp_path


OLD = {"a": "old a", "b": "old b", "last": "old last"}
NEW = {"a": "new a", "c": "new c", "last": "new last"}


# One writes at a time


def test_a_place_where_another_process_writes_is_busy(tmp_path: Path) -> None:
    with held(tmp_path):
        with pytest.raises(UsageError, match=f"another run is writing {tmp_path}/out$") as caught:
            mend(tmp_path, "out")
        with pytest.raises(UsageError, match="another run is writing"), replacing(tmp_path / "out"):
            pytest.fail("two write at a time")
        with scratch_folder(tmp_path, "other"):
            pass
    assert "wait until it has ended" in caught.value.hint


def test_what_a_killed_process_left_is_deleted_with_a_warning(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.kill()
        holder.wait()
    assert len(contents(tmp_path)) == 2
    with pytest.warns(LeftoverWarning, match="which a killed run had left"):
        mend(tmp_path, "out")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_scratch_folder_is_used_without_a_warning(tmp_path: Path) -> None:
    """A process that was killed before it wrote, or that has not yet locked what it has made."""
    (tmp_path / ".out.tmp-graphcut").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with replacing(tmp_path / "out") as new:
            new.write_text("done")
    assert contents(tmp_path) == {"out": "done"}


def test_a_file_system_without_locks_is_written_to_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with scratch_folder(tmp_path, "out"):
        with pytest.raises(UsageError, match="another run") as caught:
            mend(tmp_path, "out")
        assert f"if none is running, move {tmp_path}/.out.tmp-graphcut away" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_scratch_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious" / "files").mkdir(parents=True)
    (tmp_path / "precious" / "files" / "mine").write_text("mine")
    (tmp_path / ".out.tmp-graphcut").symlink_to("precious")
    with pytest.raises(UsageError):
        mend(tmp_path, "out")
    assert contents(tmp_path / "precious") == {"files/mine": "mine"}


# What is there is not replaced


@pytest.mark.parametrize("is_supported", [True, False], ids=["in one call", "in two"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_rename_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_folder: bool, is_supported: bool
) -> None:
    if not is_supported:
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    source, there = tmp_path / "source", tmp_path / "there"
    for path in (source, there):
        path.mkdir() if is_folder else path.write_text(path.name)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="there was made by another program meanwhile"):
        rename(source, there)
    assert contents(tmp_path) == before
    rename(source, tmp_path / "free")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["free", "there"]


def test_a_rename_that_fails_names_both_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        rename(tmp_path / "none", tmp_path / "there")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "none"), str(tmp_path / "there"))


def test_a_file_of_others_with_the_name_of_a_new_one_undoes_everything(old: Path) -> None:
    (old / "c").write_text("mine")
    with pytest.raises(UsageError, match="c was made by another program meanwhile"):
        exchange(old)
    assert contents(old) == OLD | {"c": "mine"}


# Killed while files are exchanged

RENAMES = [(kind, at) for kind, count in (("os.rename", 4), ("ctypes.dlsym", 3)) for at in range(1, count + 1)]


@pytest.mark.parametrize(("call", "at"), RENAMES)
def test_an_exchange_that_was_killed_is_undone_by_the_next_run(old: Path, call: str, at: int) -> None:
    killed(lambda: exchange(old), in_call=call, at=at)
    with pytest.warns(LeftoverWarning):
        mend(old, "out")
    assert contents(old) == OLD
    exchange(old)
    assert contents(old) == NEW


def test_an_exchange_that_was_killed_when_it_was_complete_stays(old: Path) -> None:
    killed(lambda: exchange(old), in_call="shutil.rmtree", at=1)
    with pytest.warns(LeftoverWarning):
        mend(old, "out")
    assert contents(old) == NEW


def test_undoing_that_was_killed_is_undone_by_the_next_run(old: Path) -> None:
    killed(lambda: exchange(old), in_call="ctypes.dlsym", at=3)
    killed(lambda: mend(old, "out"), in_call="ctypes.dlsym", at=2)
    with pytest.warns(LeftoverWarning):
        mend(old, "out")
    assert contents(old) == OLD


def test_a_file_that_others_put_in_the_place_of_a_new_one_after_a_kill_is_kept(old: Path) -> None:
    killed(lambda: exchange(old), in_call="ctypes.dlsym", at=3)
    assert (old / "c").read_text() == "new c"
    (old / "c").unlink()
    (old / "c").write_text("mine")
    with pytest.warns(LeftoverWarning):
        mend(old, "out")
    assert contents(old) == OLD | {"c": "mine"}


def test_an_old_file_whose_place_is_taken_after_a_kill_is_kept_until_the_place_is_free(old: Path) -> None:
    killed(lambda: exchange(old), in_call="ctypes.dlsym", at=1)
    (old / "b").write_text("mine")
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{old}/b was made by another program") as caught:
            mend(old, "out")
        assert caught.value.hint.startswith("move it away")
    (old / "b").rename(old / "kept")
    with pytest.warns(LeftoverWarning):
        mend(old, "out")
    assert contents(old) == OLD | {"kept": "mine"}


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"folder": "../x", "last": "y", "new": {}}', b"["])
def test_a_scratch_folder_that_graphcut_did_not_write_is_left_alone(old: Path, damage: bytes) -> None:
    killed(lambda: exchange(old), in_call="ctypes.dlsym", at=1)
    left = old / ".out.tmp-graphcut" / "files"
    (left / "moves").write_bytes(damage)
    before = contents(left)
    with pytest.raises(GraphcutError, match="is not what graphcut leaves"):
        mend(old, "out")
    assert contents(left) == before


def test_a_scratch_folder_from_a_stranger_writes_nowhere_else(tmp_path: Path) -> None:
    """As it may come with an archive of a model: the folder that it names is a link."""
    files = tmp_path / "net" / ".out.tmp-graphcut" / "files"
    (files / "old").mkdir(parents=True)
    (files / "new").mkdir()
    (files / "new" / "last").touch()
    (files / "old" / "authorized_keys").write_text("theirs")
    (files / "moves").write_text('{"folder": "out", "last": "last", "new": {}}')
    (tmp_path / "home").mkdir()
    (tmp_path / "net" / "out").symlink_to(tmp_path / "home")
    with pytest.raises(GraphcutError, match="is not what graphcut leaves"):
        mend(tmp_path / "net", "out")
    assert contents(tmp_path / "home") == {}
