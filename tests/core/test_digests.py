"""Digests: each block of a file can be checked alone, and a file is read once for each of its versions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcut.core.digests import (
    BLOCK_BYTES,
    DataFile,
    Digest,
    blocks_of,
    digest_of,
    ranges_of_blocks,
    read_digest,
    unchanged_version,
    wrong_blocks,
)

from conftest import openings

SIZE = 2 * BLOCK_BYTES + 1000
OLD_NS = 1_000_000_000


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(OSError, match="no regular file"):
        unchanged_version(tmp_path / "tokenizer.json", "sha256:")


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    return path


def test_a_whole_file_has_a_digest_for_each_8_mib(file: Path, content: bytes) -> None:
    blocks = [content[i : i + BLOCK_BYTES] for i in range(0, SIZE, BLOCK_BYTES)]
    assert read_digest(file, [(0, SIZE)]) == Digest(ranges=((0, SIZE),), blocks=tuple(map(digest_of, blocks)))


def test_the_bytes_of_all_ranges_are_divided_as_one(file: Path, content: bytes) -> None:
    ranges = ((5, BLOCK_BYTES - 5), (BLOCK_BYTES + 7, 10), (2 * BLOCK_BYTES, 900))
    taken = b"".join(content[offset : offset + length] for offset, length in ranges)
    assert read_digest(file, ranges).blocks == (digest_of(taken[:BLOCK_BYTES]), digest_of(taken[BLOCK_BYTES:]))


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=8))
def test_all_blocks_but_the_last_are_full_and_together_they_are_the_ranges(lengths: list[int]) -> None:
    starts = [sum(lengths[:i]) + 3 * i for i in range(len(lengths))]
    blocks = ranges_of_blocks(zip(starts, lengths, strict=True))
    sizes = [sum(length for _, length in block) for block in blocks]
    assert sizes == [BLOCK_BYTES] * (sum(lengths) // BLOCK_BYTES) + [r for r in [sum(lengths) % BLOCK_BYTES] if r]
    joined: list[tuple[int, int]] = []
    for offset, length in (piece for block in blocks for piece in block):
        if joined and sum(joined[-1]) == offset:
            offset, length = joined[-1][0], joined.pop()[1] + length  # noqa: PLW2901 - one range in two blocks
        joined.append((offset, length))
    assert joined == [(start, length) for start, length in zip(starts, lengths, strict=True) if length]


def test_the_blocks_of_a_partial_copy_can_be_checked(file: Path, content: bytes, tmp_path: Path) -> None:
    digest, part = read_digest(file, [(0, SIZE)]), tmp_path / "partial.bin"
    part.write_bytes(content[: BLOCK_BYTES + 1])
    assert wrong_blocks(part, digest) == blocks_of(digest)[1:]
    with part.open("r+b") as stream:
        stream.seek(2 * BLOCK_BYTES)
        stream.write(content[2 * BLOCK_BYTES :])
    assert wrong_blocks(part, digest) == [blocks_of(digest)[1]]


def test_a_flipped_bit_is_in_its_block(file: Path, content: bytes) -> None:
    digest = read_digest(file, [(0, SIZE)])
    with file.open("r+b") as stream:
        stream.seek(BLOCK_BYTES + 3)
        stream.write(bytes([content[BLOCK_BYTES + 3] ^ 1]))
    assert wrong_blocks(file, digest) == [blocks_of(digest)[1]]


def test_bytes_outside_the_ranges_do_not_count(file: Path) -> None:
    digest = read_digest(file, [(10, 20), (SIZE - 5, 5)])
    with file.open("r+b") as stream:
        stream.write(bytes(10))
        stream.seek(30)
        stream.write(bytes(100))
    assert wrong_blocks(file, digest) == []


# Versions


def aged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass after the last change of `file`."""
    changed_ns = file.stat().st_ctime_ns
    monkeypatch.setattr("time.time_ns", lambda: changed_ns + OLD_NS)


@pytest.mark.parametrize("kind", ["whole", "ranges"])
def test_a_file_is_read_once_for_each_version(
    file: Path, content: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = read_digest(file, [(0, SIZE)])
    expected = DataFile(bytes=SIZE, digest=digest) if kind == "ranges" else digest_of(content)
    aged(file, monkeypatch)
    with openings(file) as seen:
        versions = {unchanged_version(file, expected) for _ in range(3)}
        assert (len(versions), len(seen)) == (1, 1)
        os.utime(file, ns=(OLD_NS, OLD_NS))
        assert unchanged_version(file, expected) not in {None, *versions}
        assert len(seen) == 2


def test_a_file_that_replaces_a_checked_one_is_read(
    file: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, expected = file.stat(), DataFile(bytes=SIZE, digest=read_digest(file, [(0, SIZE)]))
    aged(file, monkeypatch)
    assert unchanged_version(file, expected) is not None
    other = tmp_path / "other.bin"
    other.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert unchanged_version(file, expected) is None


def test_a_version_as_young_as_a_tick_of_the_clock_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in the same tick would give the same times."""
    expected = DataFile(bytes=SIZE, digest=read_digest(file, [(0, SIZE)]))
    changed_ns = file.stat().st_ctime_ns
    monkeypatch.setattr("time.time_ns", lambda: changed_ns)
    with openings(file) as seen:
        assert unchanged_version(file, expected) == unchanged_version(file, expected)
        assert len(seen) == 2


def test_without_a_digest_only_the_size_counts(file: Path) -> None:
    with openings(file) as seen:
        assert unchanged_version(file, DataFile(bytes=SIZE, digest=None)) is not None
        assert unchanged_version(file, DataFile(bytes=SIZE - 1, digest=None)) is None
        assert seen == []


def test_a_digest_is_sha_256() -> None:
    assert digest_of(b"abc") == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
