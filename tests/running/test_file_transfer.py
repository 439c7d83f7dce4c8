"""Part files on another machine: used if they are the same there, otherwise sent and checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import graphcut
from graphcut import Cascade, RunError, demos
from graphcut.running.executors import file_transfer
from graphcut.running.executors.file_transfer import (
    FileStamp,
    PartStore,
    chunks,
    stamps_of,
    with_digests,
)

FILES = ("part-1.onnx", "part-1.onnx.data")


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    demos.write("llm", tmp_path / "llm.onnx", layers=2)
    model = graphcut.load(tmp_path / "llm.onnx")
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(2)), tmp_path / "here")


def sent(cascade: Cascade, store: PartStore, stamps: Mapping[str, FileStamp], names: list[str]) -> None:
    for name in names:
        for offset, chunk in chunks(cascade.root / name):
            store.write_chunk(name, offset, chunk)
        store.finish(name, stamps[name])


def test_files_at_the_path_of_the_cascade_are_used(cascade: Cascade, tmp_path: Path) -> None:
    store = PartStore(cascade.root, tmp_path / "sent")
    assert store.missing_files(1, stamps_of(cascade, cascade.parts[1])) == []
    assert store.part_folders[1] == cascade.root
    assert not (tmp_path / "sent").exists()


def test_a_copy_with_other_times_is_identified_by_its_digest(cascade: Cascade, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there, copy_function=shutil.copy)
    os.utime(there / FILES[1], ns=(1, 1))
    store, stamps = PartStore(there, tmp_path / "sent"), stamps_of(cascade, cascade.parts[1])
    assert store.missing_files(1, stamps) == [*FILES]  # their times differ
    assert store.missing_files(1, with_digests(cascade, cascade.parts[1], stamps)) == []
    assert store.part_folders[1] == there


def test_weights_of_equal_name_and_size_but_other_bytes_are_not_used(cascade: Cascade, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there)
    other = bytearray((there / FILES[1]).read_bytes())
    other[len(other) // 2] ^= 1
    (there / FILES[1]).write_bytes(other)
    store, stamps = PartStore(there, tmp_path / "sent"), stamps_of(cascade, cascade.parts[1])
    seals = with_digests(cascade, cascade.parts[1], stamps)
    assert store.missing_files(1, seals) == [*FILES]
    sent(cascade, store, seals, [*FILES])
    assert store.missing_files(1, seals) == []
    assert store.part_folders[1] == tmp_path / "sent"
    for name in FILES:
        assert (tmp_path / "sent" / name).read_bytes() == (cascade.root / name).read_bytes()


def test_files_are_sent_once(cascade: Cascade, tmp_path: Path) -> None:
    folder, stamps = tmp_path / "sent", stamps_of(cascade, cascade.parts[1])
    seals = with_digests(cascade, cascade.parts[1], stamps)
    sent(cascade, PartStore(tmp_path / "missing", folder), seals, [*FILES])
    assert PartStore(tmp_path / "missing", folder).missing_files(1, stamps) == []
    (folder / FILES[0]).unlink()
    assert PartStore(tmp_path / "missing", folder).missing_files(1, stamps) == [FILES[0]]


def test_chunks_may_arrive_in_any_order(cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfer, "CHUNK_BYTES", 1000)
    seals = with_digests(cascade, cascade.parts[1], stamps_of(cascade, cascade.parts[1]))
    store, name = PartStore(tmp_path / "missing", tmp_path / "sent"), FILES[1]
    parts = list(chunks(cascade.root / name))
    assert len(parts) == -(-(cascade.root / name).stat().st_size // 1000) > 2
    for offset, chunk in reversed(parts):
        store.write_chunk(name, offset, chunk)
    store.finish(name, seals[name])
    assert (tmp_path / "sent" / name).read_bytes() == (cascade.root / name).read_bytes()


def test_an_empty_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    store = PartStore(tmp_path / "missing", tmp_path / "sent")
    nothing = (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes, FIPS 180-4
    )
    assert list(chunks(tmp_path / "empty")) == []
    store.finish("empty", FileStamp(0, 7, nothing))
    assert (tmp_path / "sent" / "empty").read_bytes() == b""


def test_a_file_that_changed_while_it_was_sent_is_refused(cascade: Cascade, tmp_path: Path) -> None:
    seals = with_digests(cascade, cascade.parts[1], stamps_of(cascade, cascade.parts[1]))
    store, name = PartStore(tmp_path / "missing", tmp_path / "sent"), FILES[1]
    store.write_chunk(name, 0, b"x" * seals[name].size_bytes)
    with pytest.raises(RunError, match=f"{name} changed while it was sent"):
        store.finish(name, seals[name])
    assert [*(tmp_path / "sent").iterdir()] == []


def test_an_error_names_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "sent").touch()  # a file where a folder should be made: nothing can be written there
    with pytest.raises(RunError, match=r"part-1\.onnx can't be sent to .*sent: File exists") as caught:
        PartStore(tmp_path, tmp_path / "sent").write_chunk("part-1.onnx", 0, b"x")
    assert "TMPDIR" in caught.value.hint


def test_a_part_that_was_changed_after_the_split_is_never_sent(cascade: Cascade) -> None:
    file = cascade.root / FILES[0]
    stamps = stamps_of(cascade, cascade.parts[1])
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(RunError, match="was changed after the model was cut"):
        with_digests(cascade, cascade.parts[1], stamps)


def test_errors_name_missing_and_truncated_files(cascade: Cascade) -> None:
    with (cascade.root / FILES[1]).open("r+b") as stream:
        stream.truncate(1024)
    with pytest.raises(RunError, match=r"part-1\.onnx\.data has 1 KiB, but had 244 KiB"):
        stamps_of(cascade, cascade.parts[1])
    (cascade.root / FILES[0]).unlink()
    with pytest.raises(RunError, match=r"part-1\.onnx can't be read: No such file"):
        stamps_of(cascade, cascade.parts[1])
