"""Part files on another machine: used if they are the same there, otherwise sent, checked and kept for later runs."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphcut
from graphcut import Cascade, GraphcutError, Into, RunError, demos
from graphcut.core.atomic_files import cache_folder
from graphcut.core.digests import DataFile, Digest
from graphcut.transferring import file_transfer
from graphcut.transferring.file_transfer import PartStore, files_of, read_pieces, times_of
from graphcut.transferring.locked_folders import remove_unused

FILES = ("part-1.onnx", "part-1.onnx.data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder() / "parts"


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    demos.write("llm", tmp_path / "llm.onnx", layers=2)
    return graphcut.split(tmp_path / "llm.onnx", Into(2), tmp_path / "here")


@pytest.fixture
def shared(tmp_path: Path) -> Cascade:
    """Parts that read the data file of their model, which has no digest."""
    demos.write("llm", tmp_path / "whole.onnx", layers=2)
    return graphcut.split(tmp_path / "whole.onnx", Into(2), weights="share")


def store_of(cascade: Cascade, root: Path) -> PartStore:
    return PartStore(root, cascade.parts)


def send(cascade: Cascade, store: PartStore, index: int = 1, most: int | None = None) -> int:
    """Send a part, or `most` pieces of it; the bytes that were sent."""
    files = files_of(cascade, cascade.parts[index])
    sent = 0
    for number, (piece, raw) in enumerate(read_pieces(cascade.root, store.missing(index, files))):
        if number == most:
            return sent
        store.write(index, piece, raw)
        sent += len(raw)
    store.check(index, files)
    return sent


def test_files_at_the_path_of_the_cascade_are_used(cascade: Cascade, cache: Path) -> None:
    store = store_of(cascade, cascade.root)
    assert store.has(1, {})
    assert store.part_folders == {1: cascade.root}
    assert not cache.exists()


def test_a_copy_with_other_times_is_identified_by_its_digest(cascade: Cascade, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there, copy_function=shutil.copy)
    os.utime(there / FILES[1], ns=(1, 1))
    assert store_of(cascade, there).has(1, times_of(cascade, cascade.parts[1]))


def test_weights_of_equal_name_and_size_but_other_bytes_are_not_used(cascade: Cascade, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there)
    other = bytearray((there / FILES[1]).read_bytes())
    other[len(other) // 2] ^= 1
    (there / FILES[1]).write_bytes(other)
    store = store_of(cascade, there)
    assert not store.has(1, {})
    send(cascade, store)
    for name in FILES:
        assert (store.part_folders[1] / name).read_bytes() == (cascade.root / name).read_bytes()


def test_weights_without_a_digest_are_those_of_equal_time_or_bytes(shared: Cascade, tmp_path: Path) -> None:
    there, times = tmp_path / "there", times_of(shared, shared.parts[1])
    shutil.copytree(shared.root, there)
    assert store_of(shared, there).has(1, times)
    (data,) = shared.parts[1].data
    (there / data).write_bytes(bytes((there / data).stat().st_size))
    store = store_of(shared, there)
    assert not store.has(1, times)
    assert send(shared, store) == sum(data.bytes for data in files_of(shared, shared.parts[1]).values())
    assert send(shared, store_of(shared, there)) == 0


def test_what_was_sent_is_kept_for_the_next_run(cascade: Cascade, tmp_path: Path, cache: Path) -> None:
    assert send(cascade, store_of(cascade, tmp_path)) == sum((cascade.root / name).stat().st_size for name in FILES)
    again = store_of(cascade, tmp_path)
    assert again.has(1, {})
    assert [again.part_folders[1]] == [*cache.iterdir()]


def test_a_part_is_found_in_another_cascade_that_has_it(cascade: Cascade, tmp_path: Path) -> None:
    send(cascade, store_of(cascade, tmp_path))
    again = graphcut.split(cascade.source, Into(2), tmp_path / "again")
    assert store_of(again, tmp_path).has(1, {})
    assert not store_of(again, tmp_path).has(0, {})


def test_an_interrupted_transfer_goes_on(cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfer, "PIECE_BYTES", 1024)
    for module in ("core.digests", "loading.external_data"):
        monkeypatch.setattr(f"graphcut.{module}.BLOCK_BYTES", 4096)
    small = graphcut.split(cascade.source, Into(2), tmp_path / "small")
    whole = sum(data.bytes for data in files_of(small, small.parts[1]).values())
    file = (small.root / FILES[0]).stat().st_size
    assert send(small, store_of(small, tmp_path), most=-(-file // 1024) + 8) == file + 8192
    assert not store_of(small, tmp_path).has(1, {})
    assert send(small, store_of(small, tmp_path)) == whole - file - 8192


def test_an_empty_file_arrives(cascade: Cascade, tmp_path: Path) -> None:
    part = cascade.parts[1]
    nothing = DataFile(bytes=0, digest=Digest(ranges=(), blocks=()))
    store = store_of(cascade, tmp_path)
    assert [piece for piece in store.missing(1, dict.fromkeys(FILES, nothing)) if piece.bytes] == []
    store.check(1, dict.fromkeys(FILES, nothing))
    assert (store.part_folders[1] / part.file).read_bytes() == b""


def test_a_file_that_changed_while_it_was_sent_is_refused(cascade: Cascade, tmp_path: Path) -> None:
    store, files = store_of(cascade, tmp_path), files_of(cascade, cascade.parts[1])
    for piece in store.missing(1, files):
        store.write(1, piece, b"x" * piece.bytes)
    with pytest.raises(RunError, match=f"{FILES[0]} changed while it was sent"):
        store.check(1, files)
    assert not store_of(cascade, tmp_path).has(1, {})


def test_the_parts_not_used_for_the_longest_time_make_room(
    cascade: Cascade, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, time_s in {"old": 1, "newer": 2}.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "data").write_bytes(b"x" * 100_000)
        os.utime(cache / name, (time_s, time_s))
    own_bytes = sum((cascade.root / name).stat().st_size for name in FILES)
    monkeypatch.setenv("GRAPHCUT_CACHE_SIZE", f"{own_bytes + 150_000}")
    store = store_of(cascade, tmp_path)
    send(cascade, store)
    assert {*cache.iterdir()} == {cache / "newer", store.part_folders[1]}
    monkeypatch.setenv("GRAPHCUT_CACHE_SIZE", "0")
    other = store_of(cascade, tmp_path)
    send(cascade, other, 0)
    assert {*cache.iterdir()} == {store.part_folders[1], other.part_folders[0]}  # these are used now


BEFORE = {"it is opened": (file_transfer, "lock_folder"), "it is locked": (fcntl, "flock")}


def remove_once(cache: Path, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run removes the one folder before it is locked for the first time from now on."""
    place, name = BEFORE[before]
    lock = getattr(place, name)

    def remove_and_lock(*words: object) -> object:
        monkeypatch.setattr(place, name, lock)
        (folder,) = cache.iterdir()
        shutil.rmtree(folder)
        return lock(*words)

    monkeypatch.setattr(place, name, remove_and_lock)


@pytest.mark.parametrize("before", BEFORE)
def test_a_part_that_another_run_removes_just_now_is_not_there(
    cascade: Cascade, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    sent = send(cascade, store_of(cascade, tmp_path))
    store = store_of(cascade, tmp_path)
    remove_once(cache, before, monkeypatch)
    assert not store.has(1, {})
    assert store.part_folders == {}
    assert send(cascade, store) == sent
    remove_unused(store.part_folders[1])
    assert store.has(1, {})  # it was locked


@pytest.mark.parametrize("before", BEFORE)
def test_a_folder_that_another_run_removes_before_it_is_locked_is_made_again(
    cascade: Cascade, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    store, files = store_of(cascade, tmp_path), files_of(cascade, cascade.parts[1])
    remove_once(cache, before, monkeypatch)
    assert {piece.name for piece in store.missing(1, files)} == {*FILES}
    remove_unused(store.part_folders[1])
    assert store.part_folders[1].exists()


@pytest.mark.parametrize("listing", ["iterdir", "rglob"])
def test_parts_that_another_run_removes_just_now_take_no_room(
    cascade: Cascade, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    (cache / "other").mkdir(parents=True)
    (cache / "other" / "data").touch()
    original = getattr(Path, listing)

    def before_removal(folder: Path, *words: str) -> Iterator[Path]:
        found = [*original(folder, *words)]
        shutil.rmtree(cache / "other", ignore_errors=True)
        return iter(found)

    monkeypatch.setattr(Path, listing, before_removal)
    store = store_of(cascade, tmp_path)
    send(cascade, store)
    assert [*cache.iterdir()] == [store.part_folders[1]]


def test_an_error_names_a_folder_that_can_not_be_written(cascade: Cascade, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()  # a file where a folder should be made: nothing can be written there
    with pytest.raises(GraphcutError, match=r"writing .*parts failed: ") as caught:
        store_of(cascade, tmp_path).missing(1, files_of(cascade, cascade.parts[1]))
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_at_the_path_of_the_cascade_is_told_from_a_missing_one(cascade: Cascade, name: str) -> None:
    store, file = store_of(cascade, cascade.root), cascade.root / name
    assert store.changed(1) == ""
    raw = file.read_bytes()
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert store.changed(1) == name
    file.unlink()
    assert store.changed(1) == ""


def test_a_part_that_was_changed_after_the_split_is_never_sent(cascade: Cascade) -> None:
    file = cascade.root / FILES[0]
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(RunError, match="was changed after the model was cut"):
        files_of(cascade, cascade.parts[1])


def test_errors_name_missing_and_truncated_files(cascade: Cascade) -> None:
    with (cascade.root / FILES[1]).open("r+b") as stream:
        stream.truncate(1024)
    with pytest.raises(RunError, match=r"part-1\.onnx\.data was changed after the model was cut"):
        files_of(cascade, cascade.parts[1])
    (cascade.root / FILES[0]).unlink()
    with pytest.raises(RunError, match=r"part-1\.onnx is missing"):
        files_of(cascade, cascade.parts[1])
