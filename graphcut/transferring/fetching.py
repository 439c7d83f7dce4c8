"""`fetch`: some parts of a cascade, and of its weights only the byte ranges that these parts read."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Final, NamedTuple, TypeVar
from urllib.error import HTTPError
from warnings import warn

from ..core.arguments import Progress
from ..core.atomic_files import check_space, mend, replacing, write_errors
from ..core.digests import FileBlock, Range, blocks_of, digest_of, file_digest, joined
from ..core.errors import CascadeError, GraphcutError, StallWarning, UsageError, check_names
from ..core.graph import grouped
from ..core.manifest import FETCHED, Cascade, Part, is_inside, open_cascade
from ..core.present_parts import open_present, parts_here, save_fetched
from ..core.text import nothing_at
from ..core.units import size
from .file_sources import CHANGED, FileSource, source_of

_UNFINISHED: Final = ".unfinished"
"""What follows the name of the manifest until all is there."""

_MOST_BYTES: Final = {"manifest": 256 << 20, "part": (2 << 30) + 1}
"""What a file that is read as a whole has at most: a part is a message, and these end at 2 GiB."""

_CONNECTIONS: Final = 8
_ATTEMPTS: Final = 3
_WHOLE: Final = "name the folder or the manifest of a whole cascade"
_STALL_S: Final = 5.0
_T = TypeVar("_T")
_Ranges = Mapping[str, Sequence[Range]]  #: ranges of bytes by the names of files.


class _Wanted(NamedTuple):
    """A block of a data file that a part reads."""

    name: str
    file_bytes: int
    block: FileBlock


def fetch(
    source: str | Path,
    output: str | Path,
    *,
    parts: Sequence[int] | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Cascade:
    """Get some parts of a cascade from elsewhere, of the weights what they read, and the files of the tokenizer.

    The data files in `output` have holes where no part reads. What is there already stays, so the same call goes on
    after an interruption, and another one adds parts. Every byte is checked by the digests of the manifest before it
    is written.

    Args:
        source: the folder of the cascade, or its manifest: a path; a URL of a web server that knows HTTP Range; or any
            other URL that fsspec knows, such as `s3://…`.
        output: the folder for the files.
        parts: the indices of the parts; by default all.
        device: the parts that were planned for this device instead.
        progress: called for the bytes that are there.

    Returns:
        The cascade of the parts in `output`.

    Raises:
        UsageError: there is no such part or device, or `output` holds other files, or is where the cascade is.
        CascadeError: a file is not what the manifest says, or has no digest; or the server sends whole files only.
        GraphcutError: reading or writing failed.
    """
    output = Path(output)
    place, name = source_of(source)
    if Path(source).exists() and not Path(source).is_dir() and Path(source).name != name:
        raise UsageError(f"{source} is a file, and no manifest", hint=f"{_WHOLE}, and its parts by `parts`")
    if Path(source).is_symlink() and not Path(source).exists():
        raise CascadeError(nothing_at(Path(source), ""), hint="name the folder of a cascade")
    if Path(source).resolve() in {output.resolve(), (output / name).resolve()}:
        raise UsageError(f"{output} is the folder of the cascade itself", hint="choose another folder with `output`")
    read = partial(_tried, partial(place.whole, name, _MOST_BYTES["manifest"]), f"{name} of {source}")
    manifest = next(_in_threads(place, [read]))
    hint = "make room or correct the permissions; the same command then goes on"
    with write_errors(output, hint), _claim(output, name, manifest) as path:
        cascade = open_cascade(path, check_files=False)
        wanted = _chosen(cascade, parts, device)
        blocks = [list(_blocks(cascade, part)) for part in wanted]
        _check_space(output, [block for own in blocks for block in own])
    total = sum(one.block.bytes for own in blocks for one in own)
    with write_errors(output, hint):
        for i, (part, own) in enumerate(zip(wanted, blocks, strict=True)):
            for one in _fetched(place, output, own, _ranges_of(one for before in blocks[:i] for one in before)):
                if progress is not None:
                    progress(one.name, one.block.bytes, total)
            _fetch_whole(place, output, part.file, part.sha256)
        for text_file, digest in cascade.manifest.text_files.items():
            _fetch_whole(place, output, text_file, digest)
        had = parts_here(cascade) if path.name == name else []
        names = [part.file for part in cascade.parts if part in wanted or part in had]
        if len(names) < len(cascade.parts):
            with replacing(output / FETCHED) as new:
                save_fetched(names, new)
        else:
            (output / FETCHED).unlink(missing_ok=True)
        path.replace(output / name)
    return open_present(output / name)


def _tried(read: Callable[[], bytes], what: str) -> bytes:
    """What `read` returns, at the third attempt at the latest if the network fails."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return read()
        except GraphcutError:
            raise
        except Exception as error:  # noqa: BLE001 - those of object stores share no base class
            is_refused = isinstance(error, HTTPError) and error.code < HTTPStatus.INTERNAL_SERVER_ERROR
            if isinstance(error, FileNotFoundError):
                raise GraphcutError(f"{what} can't be read: there is no such file", hint=_WHOLE) from None
            if attempt == _ATTEMPTS or is_refused:
                hint = "check the address; the same command goes on where this one stopped"
                raise GraphcutError(f"{what} can't be read: {error}", hint=hint) from None
            time.sleep(attempt / 2)
    raise AssertionError


@contextmanager
def _claim(output: Path, name: str, manifest: bytes) -> Iterator[Path]:
    """The manifest in the folder, which has nothing but what was fetched of this cascade; undone after an error."""
    mend(output.absolute().parent, output.name)
    is_new = not output.exists()
    output.mkdir(exist_ok=True)
    path = output / name if (output / name).exists() else output / (name + _UNFINISHED)
    if (path.exists() and path.read_bytes() != manifest) or (not path.exists() and any(output.iterdir())):
        raise UsageError(f"{output} has files that are not of this cascade", hint="choose another folder with `output`")
    if not path.exists():
        with replacing(path) as new:
            new.write_bytes(manifest)
    try:
        yield path
    except GraphcutError:
        if is_new:
            shutil.rmtree(output)
        raise


def _chosen(cascade: Cascade, parts: Sequence[int] | None, device: str | None) -> list[Part]:
    count = len(cascade.parts)
    if wrong := [k for k in parts or () if not 0 <= k < count]:
        raise UsageError(f"there is no part {wrong[0]}", hint=f"the cascade has the parts 0 to {count - 1}")
    if device is None:
        return [cascade.parts[k] for k in sorted(set(range(count) if parts is None else parts))]
    devices = sorted({part.device for part in cascade.parts if part.device is not None})
    if not devices:
        hint = "the parts are for no devices: split with `Across`, or fetch some with `parts`"
        raise UsageError(f"no part is for the device {device!r}", hint=hint)
    check_names([device], devices, "no part is for the device", "the parts are for")
    return [part for part in cascade.parts if part.device == device]


def _blocks(cascade: Cascade, part: Part) -> Iterator[_Wanted]:
    """The blocks of the weights of a part, whose names and digests are checked."""
    taken = (FETCHED, cascade.path.name, cascade.path.name.removesuffix(_UNFINISHED))
    for name in (part.file, *part.data):
        if not is_inside(cascade.root, name) or name in taken:
            raise CascadeError(f"the manifest names {name!r}, which is no file for this folder", hint="don't trust it")
    for name, data in part.data.items():
        if data.digest is None:
            message = f"the weights of {part.file} have no digest, so they can't be fetched in pieces"
            raise CascadeError(message, hint="split again with `digest=True`, or copy the weights")
        yield from (_Wanted(name, data.bytes, block) for block in blocks_of(data.digest))


def _check_space(output: Path, blocks: Sequence[_Wanted]) -> None:
    needed = sum(length for ranges in _ranges_of(blocks).values() for _, length in ranges)
    needed -= sum(file.stat().st_blocks * 512 for file in {output / one.name for one in blocks} if file.exists())
    hint = "choose another disk with `output`, or fewer parts"
    check_space(output, needed, f"the weights need {size(needed)} more", hint)


def _ranges_of(blocks: Iterable[_Wanted]) -> dict[str, list[Range]]:
    """The ranges of each file that blocks have, ascending and without overlap: parts may have some in common."""
    own = grouped((one.name, span) for one in blocks for span in one.block.ranges)
    return {name: joined(ranges) for name, ranges in own.items()}


def _fetched(place: FileSource, output: Path, blocks: Sequence[_Wanted], there: _Ranges) -> Iterator[_Wanted]:
    """Get the blocks, by several connections; yields each when it is there. The ranges `there` are not asked for."""
    for name, file_bytes in {one.name: one.file_bytes for one in blocks}.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        with (output / name).open("ab") as file:
            file.truncate(file_bytes)
    yield from _in_threads(place, [partial(_fetch_block, place, output, there, one) for one in blocks])


def _in_threads(place: FileSource, calls: Sequence[Callable[[], _T]]) -> Iterator[_T]:
    """What calls return, in the order in which they end.

    The threads are not waited for if one raises an error or the caller is interrupted: a server may never answer.
    """
    waiting, done, is_over = iter(calls), SimpleQueue[Future[_T]](), Event()

    def work() -> None:
        while not is_over.is_set() and (call := next(waiting, None)) is not None:
            result = Future[_T]()
            try:
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                result.set_exception(error)
            done.put(result)

    for _ in calls[:_CONNECTIONS]:
        Thread(target=work, name="graphcut fetch", daemon=True).start()
    began_at, said_at = time.monotonic(), -inf
    try:
        for _ in calls:
            while True:
                try:
                    yield done.get(timeout=_STALL_S / 5).result()
                    break
                except Empty:
                    heard_at = max(place.heard_at, began_at)
                if said_at < heard_at < time.monotonic() - _STALL_S:
                    said_at = time.monotonic()
                    warn(f"the server has sent nothing for {_STALL_S:.0f} s; still waiting", StallWarning, stacklevel=3)
    finally:
        is_over.set()


def _fetch_block(place: FileSource, output: Path, there: _Ranges, wanted: _Wanted) -> _Wanted:
    name, block = wanted.name, wanted.block
    with (output / name).open("r+b") as file:
        if block.is_in(file.fileno()):
            return wanted
        steps = [step for span in block.ranges for step in _steps(span, there.get(name, ()))]
        pieces = [
            os.pread(file.fileno(), end - start, start)
            if is_there
            else _tried(partial(place.piece, name, start, end, wanted.file_bytes), name)
            for start, end, is_there in steps
        ]
        if digest_of(b"".join(pieces)) != block.expected:
            where = f"bytes {block.ranges[0][0]:,} to {sum(block.ranges[-1]):,} of {name}"
            raise CascadeError(f"{where} are not those of the split", hint=CHANGED)
        for (start, _, _), piece in zip(steps, pieces, strict=True):
            file.seek(start)
            file.write(piece)
    return wanted


def _steps(span: Range, known: Sequence[Range]) -> Iterator[tuple[int, int, bool]]:
    """A range, divided where it enters or leaves the ranges that are known: begin, end, and whether it is in one."""
    start, end = span[0], sum(span)
    for offset, length in known:
        first, last = max(start, offset), min(end, offset + length)
        if first < last:
            yield from [(start, first, False)] * (start < first)
            yield first, last, True
            start = last
    yield from [(start, end, False)] * (start < end)


def _fetch_whole(place: FileSource, output: Path, name: str, digest: str) -> None:
    """Get a file that is read as a whole. That of a part comes after its weights: with it the part is complete."""
    file = output / name
    if file.exists() and file_digest(file) == digest:
        return
    raw = next(_in_threads(place, [partial(_tried, partial(place.whole, name, _MOST_BYTES["part"]), name)]))
    if digest_of(raw) != digest:
        raise CascadeError(f"{name} is not the file of the split", hint=CHANGED)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as new:
        new.write_bytes(raw)
