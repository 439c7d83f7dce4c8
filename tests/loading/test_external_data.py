"""Where weights may lie, and that moving them changes no byte."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcut import ModelError
from graphcut.core import digests as digests_of_files
from graphcut.core.digests import BLOCK_BYTES, read_digest
from graphcut.loading import external_data
from graphcut.loading.external_data import (
    _PAGE,
    ByteRange,
    FileLayout,
    _steps,
    check_inside,
    divide,
    lay_out,
    merge_ranges,
    read_bytes,
    resolve_location,
    same_bytes,
    write_data,
)

from cases import each

PAGE = 4096


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A place for a model, with data beside it and below it, and a secret outside."""
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    for name in ("home/model.onnx", "home/w.bin", "home/sub/w.bin", "home/w..bin", "secret"):
        (tmp_path / name).write_bytes(b"x")
    return home / "model.onnx"


def refusal(model: Path, location: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        resolve_location(model, location, tensor="w")
    return caught.value


@each("location", ["w.bin", "./w.bin", "sub/w.bin", "sub/../w.bin", "sub//w.bin", "w..bin"])
def test_data_may_be_in_the_folder_of_the_model_or_below(model: Path, location: str) -> None:
    assert resolve_location(model, location, tensor="w").samefile(model.parent / location)


def test_the_path_of_the_model_may_be_relative(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert resolve_location(Path("model.onnx"), "w.bin", tensor="w") == Path("w.bin")
    monkeypatch.chdir(model.parent / "sub")
    assert resolve_location(Path("../model.onnx"), "w.bin", tensor="w") == Path("../w.bin")
    assert "a path out of the folder" in str(refusal(Path("../model.onnx"), "../secret"))


@each(
    ("location", "said"),
    [
        ("", "which is not a file name"),
        ("w\0.bin", "which is not a file name"),
        ("/etc/passwd", "an absolute path"),
        ("//etc/passwd", "an absolute path"),
        ("../secret", "a path out of the folder of model.onnx"),
        ("sub/../../secret", "a path out of the folder of model.onnx"),
        ("..", "a path out of the folder of model.onnx"),
        ("../home2/w.bin", "a path out of the folder of model.onnx"),
        (".", "which is not a regular file"),
        ("sub", "which is not a regular file"),
        ("missing.bin", "but there is no such file in the folder of model.onnx"),
        ("w.bin/inner", "but there is no such file in the folder of model.onnx"),
        ("*/_ORT_MEM_ADDR_/*", "an address in the memory of another process"),
    ],
)
def test_a_location_outside_the_folder_is_refused(model: Path, location: str, said: str) -> None:
    assert str(refusal(model, location)) == f"the weights of 'w' are in {location!r}, {said}"


def test_a_name_that_is_too_long_is_refused(model: Path) -> None:
    assert str(refusal(model, "w" * 300)).startswith("the weights of 'w' are in 'www")


def test_each_refusal_has_a_hint(model: Path) -> None:
    hints = {location: refusal(model, location).hint for location in ("../secret", "missing.bin", "_ORT_MEM_ADDR_")}
    assert hints == {
        "../secret": "a model may only refer to files in its own folder; move them there, and correct the location",
        "missing.bin": "a model with external data has two files or more: copy them together",
        "_ORT_MEM_ADDR_": "save the model again",
    }


def test_an_absolute_path_is_refused_even_inside_the_folder(model: Path) -> None:
    location = str(model.parent / "w.bin")
    assert str(refusal(model, location)) == f"the weights of 'w' are in {location!r}, an absolute path"


def test_a_folder_whose_name_has_the_same_prefix_is_another_folder(model: Path) -> None:
    twin = model.parent.with_name("home2")
    twin.mkdir()
    (twin / "w.bin").write_bytes(b"x")
    assert "out of the folder" in str(refusal(model, "../home2/w.bin"))


def test_a_symbolic_link_out_of_the_folder_is_refused(model: Path) -> None:
    (model.parent / "file.bin").symlink_to("../secret")
    (model.parent / "folder").symlink_to(model.parent.parent, target_is_directory=True)
    (model.parent / "chain.bin").symlink_to("file.bin")
    for location in ("file.bin", "folder/secret", "chain.bin"):
        assert "a symbolic link out of the folder of model.onnx" in str(refusal(model, location))


def test_a_symbolic_link_within_the_folder_is_followed(model: Path) -> None:
    (model.parent / "link.bin").symlink_to("sub/w.bin")
    (model.parent / "folder").symlink_to("sub", target_is_directory=True)
    assert resolve_location(model, "link.bin", tensor="w").samefile(model.parent / "sub/w.bin")
    assert resolve_location(model, "folder/w.bin", tensor="w").samefile(model.parent / "sub/w.bin")


def test_a_hard_link_is_a_file(model: Path) -> None:
    """Backups and stores of packages make them; which of the names is the first can't be told."""
    (model.parent / "other.bin").hardlink_to(model.parent / "sub" / "w.bin")
    assert resolve_location(model, "other.bin", tensor="w").samefile(model.parent / "sub" / "w.bin")


def test_a_model_may_hold_the_bytes_of_its_own_weights_as_a_data_file(model: Path) -> None:
    assert resolve_location(model, model.name, tensor="w") == model


def test_a_broken_link_is_a_missing_file(model: Path) -> None:
    (model.parent / "link.bin").symlink_to("gone.bin")
    assert "there is no such file" in str(refusal(model, "link.bin"))


def test_a_cycle_of_links_is_refused(model: Path) -> None:
    (model.parent / "a.bin").symlink_to("b.bin")
    (model.parent / "b.bin").symlink_to("a.bin")
    assert str(refusal(model, "a.bin")).startswith("the weights of 'w' are in 'a.bin'")


def test_a_pipe_is_not_a_file(model: Path) -> None:
    os.mkfifo(model.parent / "pipe")
    assert "which is not a regular file" in str(refusal(model, "pipe"))


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """The cache of Hugging Face: a snapshot holds nothing but links into `blobs/`."""
    blobs, snapshot = tmp_path / "models--org--it/blobs", tmp_path / "models--org--it/snapshots/5f3a/onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "aa11"), ("model.onnx_data", "bb22")):
        (blobs / blob).write_bytes(b"x")
        (snapshot / name).symlink_to(f"../../../blobs/{blob}")
    (tmp_path / "secret").write_bytes(b"x")
    return snapshot / "model.onnx"


def test_model_and_data_may_both_be_links_into_one_folder(cached: Path) -> None:
    assert resolve_location(cached, "model.onnx_data", tensor="w") == cached.parent / "model.onnx_data"
    assert resolve_location(cached, "model.onnx", tensor="w") == cached


def test_in_a_cache_too_a_link_out_of_the_folder_is_refused(cached: Path) -> None:
    (cached.parent / "secret.bin").symlink_to(cached.parents[4] / "secret")
    assert "a symbolic link out of" in str(refusal(cached, "secret.bin"))
    assert "a path out of" in str(refusal(cached, "../../../../secret"))


def test_data_may_be_beside_a_link_to_the_model(model: Path, tmp_path: Path) -> None:
    """As ONNX Runtime 1.31 has it: the location is looked up beside the link, not beside the real model."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.onnx").symlink_to(model)
    (other / "own.bin").write_bytes(b"x")
    assert resolve_location(other / "model.onnx", "own.bin", tensor="w") == other / "own.bin"
    assert "there is no such file in the folder of model.onnx" in str(refusal(other / "model.onnx", "w.bin"))


@each("span", [(0, 0), (0, 10), (10, 0), (3, 7)])
def test_a_range_inside_its_file_is_taken(span: tuple[int, int]) -> None:
    check_inside(ByteRange(Path("w.bin"), *span), file_bytes=10, tensor="w")


@each("span", [(0, 11), (11, 0), (-1, 5), (5, -1), (1 << 62, 1 << 62)])
def test_a_range_outside_its_file_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match=r"^the weights of 'w' are bytes .* of w\.bin, which has 10$"):
        check_inside(ByteRange(Path("w.bin"), *span), file_bytes=10, tensor="w")


def test_the_refusal_of_a_range_has_the_numbers() -> None:
    with pytest.raises(ModelError) as caught:
        check_inside(ByteRange(Path("home/w.bin"), 1000, 4096), file_bytes=4096, tensor="w")
    assert str(caught.value) == "the weights of 'w' are bytes 1,000 to 5,096 of w.bin, which has 4,096"
    assert caught.value.hint == "the file is truncated or belongs to another model; copy it again"


A, B = Path("a.bin"), Path("b.bin")


def test_overlapping_and_adjacent_ranges_become_one() -> None:
    spans = [
        ByteRange(A, 30, 5),
        ByteRange(A, 0, 10),
        ByteRange(A, 10, 5),
        ByteRange(A, 12, 2),
        ByteRange(B, 12, 2),
        ByteRange(A, 16, 2),
    ]
    assert merge_ranges(spans) == [ByteRange(A, 0, 15), ByteRange(A, 16, 2), ByteRange(A, 30, 5), ByteRange(B, 12, 2)]


def test_a_weight_in_two_ranges_is_copied_once() -> None:
    layout = lay_out([ByteRange(A, 100, 8), ByteRange(A, 200, 8), ByteRange(A, 100, 8)])
    assert layout == FileLayout(((ByteRange(A, 100, 8), 0), (ByteRange(A, 200, 8), 8)), 16)
    assert layout.offset_of(ByteRange(A, 204, 4)) == 12


def test_a_range_of_a_mebibyte_keeps_its_offset_modulo_the_page() -> None:
    large = 256 * PAGE
    spans = [
        ByteRange(A, 7, 10),
        ByteRange(A, PAGE + 100, large),
        ByteRange(B, 50, large - 1),
        ByteRange(B, 300 * PAGE, large),
    ]
    layout = lay_out(spans)
    assert layout.copies == (
        (ByteRange(A, 7, 10), 0),
        (ByteRange(A, PAGE + 100, large), 100),
        (ByteRange(B, 50, large - 1), large + 100),  # less is not worth a hole
        (ByteRange(B, 300 * PAGE, large), 2 * large + PAGE),
    )
    assert layout.file_bytes == 3 * large + PAGE


def test_no_ranges_make_an_empty_file(tmp_path: Path) -> None:
    assert lay_out([]) == FileLayout((), 0)
    write_data(lay_out([]), tmp_path / "empty", has_digest=True)
    assert (tmp_path / "empty").read_bytes() == b""


FILE_BYTES = 5 * PAGE
CONTENT = {
    file: b"".join(struct.pack("<I", i * step) for i in range(FILE_BYTES // 4)) for file, step in ((A, 1), (B, 7))
}

Spans = list[tuple[Path, int, int]]


def spans_in_files() -> st.SearchStrategy[Spans]:
    """Ranges of two files, small and of pages, overlapping, touching and empty."""
    offset = st.one_of(st.integers(0, 40), st.integers(0, FILE_BYTES), st.sampled_from(range(0, FILE_BYTES, PAGE)))
    length = st.one_of(st.integers(0, 40), st.integers(0, 3 * PAGE), st.sampled_from([PAGE, 2 * PAGE]))
    inside = st.tuples(st.sampled_from([A, B]), offset, length).map(
        lambda span: (span[0], span[1], min(span[2], FILE_BYTES - span[1]))
    )
    return st.lists(inside, min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("weights")
    for name, content in CONTENT.items():
        (made / name).write_bytes(content)
    return made


def placed(folder: Path, spans: Spans) -> list[ByteRange]:
    return [ByteRange(folder / file, offset, length) for file, offset, length in spans]


def bytes_of(span: ByteRange) -> bytes:
    return CONTENT[Path(span.file.name)][span.offset : span.offset + span.length]


def written(layout: FileLayout, target: Path, progress: Callable[[int], None] | None = None) -> bytes:
    target.unlink(missing_ok=True)
    digest = write_data(layout, target, progress=progress, has_digest=True)
    assert digest == read_digest(target, [(0, layout.file_bytes)])
    return target.read_bytes()


@settings(deadline=None)
@given(spans_in_files())
def test_every_range_is_found_again_byte_for_byte(folder: Path, drawn: Spans) -> None:
    spans = placed(folder, drawn)
    layout = lay_out(spans)
    moved: list[int] = []
    content = written(layout, folder / "new.bin", moved.append)
    assert len(content) == layout.file_bytes
    for span in spans:
        offset = layout.offset_of(span)
        assert content[offset : offset + span.length] == bytes_of(span)
        assert same_bytes(ByteRange(folder / "new.bin", offset, span.length), span)
    assert sum(moved) == sum(run.length for run in merge_ranges(spans))


def test_a_file_of_several_blocks_is_written_and_hashed_like_a_small_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [ByteRange(folder / A, 4095, 3000), ByteRange(folder / B, 100, 2 * PAGE), ByteRange(folder / B, 9000, 0)]
    monkeypatch.setattr(external_data, "ALIGNED_BYTES", PAGE)
    layout = lay_out(spans)
    expected, digests = written(layout, tmp_path / "one"), set()
    for block_bytes in (PAGE, 3 * PAGE):
        monkeypatch.setattr(external_data, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(digests_of_files, "BLOCK_BYTES", block_bytes)
        assert written(layout, tmp_path / "new") == expected
        digests.add(read_digest(tmp_path / "new", [(0, len(expected))]).blocks)
    assert sorted(map(len, digests)) == [-(-len(expected) // (3 * PAGE)), -(-len(expected) // PAGE)]


@settings(deadline=None)
@given(spans_in_files())
def test_a_layout_holds_each_byte_once_and_keeps_pages_in_step(folder: Path, drawn: Spans) -> None:
    spans = placed(folder, drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_data, "ALIGNED_BYTES", 4096)
        layout = lay_out(spans)
        assert lay_out(reversed(spans)) == layout
    naive = {(span.file, place) for span in spans for place in range(span.offset, span.offset + span.length)}
    assert sum(run.length for run, _ in layout.copies) == len(naive)
    end = 0
    for run, offset in layout.copies:
        assert end <= offset < end + PAGE
        assert run.length < PAGE or (run.offset - offset) % PAGE == 0
        end = offset + run.length
    assert end == layout.file_bytes


@settings(deadline=None)
@given(spans_in_files(), st.integers(1, 3000))
def test_the_size_of_the_buffer_changes_nothing(folder: Path, drawn: Spans, buffer_bytes: int) -> None:
    layout = lay_out(placed(folder, drawn))
    expected = written(layout, folder / "new.bin")
    with pytest.MonkeyPatch.context() as patch:
        for module in (external_data, digests_of_files):
            patch.setattr(module, "BUFFER_BYTES", buffer_bytes)
        assert written(layout, folder / "new.bin") == expected


@settings(deadline=None)
@given(spans_in_files())
def test_with_reflinks_only_bytes_outside_whole_pages_are_copied(folder: Path, drawn: Spans) -> None:
    """A file system with reflinks, played: like XFS and btrfs it shares whole pages alone."""
    shared: list[int] = []

    def share(target: FileIO, _: int, places: bytes) -> None:
        source, start, length, offset = struct.unpack("qQQQ", places)
        assert length
        assert start % PAGE == length % PAGE == offset % PAGE == 0
        shared.append(os.pwrite(target.fileno(), os.pread(source, length, start), offset))

    for run in merge_ranges(placed(folder, drawn)):
        pages = (run.offset + run.length) // PAGE - -(-run.offset // PAGE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(external_data, "ALIGNED_BYTES", 1)
            patch.setattr(fcntl, "ioctl", share)
            assert written(lay_out([run]), folder / "new.bin").endswith(bytes_of(run))
        assert sum(shared) == max(0, pages) * PAGE
        shared.clear()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP])
def test_what_the_system_can_not_share_goes_through_a_buffer(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert written(lay_out([ByteRange(folder / A, 10, 3 * PAGE)]), folder / "new.bin") == CONTENT[A][10:][: 3 * PAGE]


@contextlib.contextmanager
def no_handle_is_left() -> Iterator[None]:
    before = len(list(Path("/dev/fd").iterdir()))
    yield
    assert len(list(Path("/dev/fd").iterdir())) == before


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_handle_open(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full)
    with no_handle_is_left(), pytest.raises(OSError, match="No space left on device"):
        write_data(
            lay_out([ByteRange(folder / A, 0, 10), ByteRange(folder / B, 0, 10)]), tmp_path / "new.bin", has_digest=True
        )


def test_short_writes_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda target, piece, offset: real(target, piece[:999], offset))
    assert written(lay_out([ByteRange(folder / A, 0, 3 * PAGE)]), folder / "new.bin") == CONTENT[A][: 3 * PAGE]


def test_a_source_that_is_gone_leaves_no_handle_open(folder: Path, tmp_path: Path) -> None:
    layout = lay_out([ByteRange(folder / A, 0, 10), ByteRange(folder / "gone.bin", 0, 10)])
    with no_handle_is_left(), pytest.raises(FileNotFoundError, match=r"gone\.bin"):
        write_data(layout, tmp_path / "new.bin", has_digest=True)


def test_a_truncated_source_is_an_error(folder: Path, tmp_path: Path) -> None:
    layout = lay_out([ByteRange(folder / A, FILE_BYTES - 10, 20)])
    with no_handle_is_left(), pytest.raises(OSError, match="the file ended early") as caught:
        write_data(layout, tmp_path / "new.bin", has_digest=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(folder / A))


def test_progress_that_fails_leaves_no_handle_open(folder: Path, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with no_handle_is_left(), pytest.raises(KeyboardInterrupt):
        write_data(lay_out([ByteRange(folder / A, 0, 10)]), tmp_path / "new.bin", progress=stop, has_digest=True)


def test_no_file_is_overwritten(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "old.bin"
    target.write_bytes(b"mine")
    (tmp_path / "link.bin").symlink_to(target)
    for name in ("old.bin", "link.bin"):
        with no_handle_is_left(), pytest.raises(FileExistsError):
            write_data(lay_out([ByteRange(folder / A, 0, 10)]), tmp_path / name, has_digest=True)
    assert target.read_bytes() == b"mine"


@settings(deadline=None)
@given(spans_in_files(), st.integers(1, 3000))
def test_equal_bytes_are_equal_at_any_offset(folder: Path, drawn: Spans, buffer_bytes: int) -> None:
    spans = placed(folder, drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_data, "BUFFER_BYTES", buffer_bytes)
        for ours in spans:
            for theirs in spans:
                assert same_bytes(ours, theirs) == (bytes_of(ours) == bytes_of(theirs))


def test_a_truncated_file_has_other_bytes(tmp_path: Path) -> None:
    long, short, empty = tmp_path / "long", tmp_path / "short", tmp_path / "empty"
    for file, content in ((long, b"abcdef"), (short, b"abc"), (empty, b"")):
        file.write_bytes(content)
    assert not same_bytes(ByteRange(long, 0, 6), ByteRange(short, 0, 6))
    assert not same_bytes(ByteRange(short, 0, 6), ByteRange(long, 0, 6))
    assert not same_bytes(ByteRange(empty, 0, 6), ByteRange(long, 0, 6))
    assert not same_bytes(ByteRange(empty, 0, 6), ByteRange(short, 3, 6))  # both end at once, and prove nothing
    assert same_bytes(ByteRange(long, 0, 3), ByteRange(short, 0, 3))
    assert not same_bytes(ByteRange(long, 0, 3), ByteRange(short, 0, 2))


def test_a_range_is_not_compared_with_itself(tmp_path: Path) -> None:
    unread = ByteRange(tmp_path / "nobody opens it", 0, 1 << 40)
    assert same_bytes(unread, unread)


def test_a_range_is_copied_to_the_end_of_a_page_and_then_to_the_ends_of_blocks() -> None:
    span = ByteRange(Path("weights"), 0, 2 * BLOCK_BYTES)
    steps = [*_steps(span, BLOCK_BYTES + _PAGE - 4)]
    lengths = [4, BLOCK_BYTES - _PAGE, BLOCK_BYTES, _PAGE - 4]
    begins = [sum(lengths[:i]) for i in range(4)]
    blocks = [BLOCK_BYTES, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES]
    pieces = [ByteRange(span.file, begin, length) for begin, length in zip(begins, lengths, strict=True)]
    offsets = [BLOCK_BYTES + _PAGE - 4 + begin for begin in begins]
    assert steps == [*zip(blocks, zip(pieces, offsets, strict=True), strict=True)]


def test_ranges_are_divided_in_the_order_of_their_files() -> None:
    spans = [ByteRange(Path(name), at, 4) for name in ("a", "b") for at in range(0, 64, 4)]
    assert divide(spans[::-1], None) == [spans]
    assert divide(spans[::-1], 8) == [spans[i : i + 2] for i in range(0, 32, 2)]


def test_a_range_is_read_from_its_file(folder: Path) -> None:
    assert read_bytes(ByteRange(folder / A, 4, 8)) == struct.pack("<II", 1, 2)
