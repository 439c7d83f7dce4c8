"""Where the files of a cascade are fetched from: a folder, a web server, or an object store."""

import errno
import os
import time
from contextlib import nullcontext
from functools import cache
from http import HTTPStatus
from http.client import HTTPResponse
from io import FileIO
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ..core.errors import CascadeError, UsageError
from ..core.manifest import MANIFEST

_TIMEOUT_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 18  #: so much is read at a time.
CHANGED: Final = "it is truncated, or of another split: put the folder there again"


class FileSource(Protocol):
    """A folder of files that are read in pieces, by several threads. Errors of the network are OSErrors."""

    heard_at: float = inf  #: when the last bytes came, by `time.monotonic`; infinite if nobody knows.

    def whole(self, name: str, most_bytes: int) -> bytes:
        """The bytes of a small file; of a larger one `most_bytes` or more."""

    def piece(self, name: str, start: int, end: int, file_bytes: int) -> bytes:
        """A range of a file that has `file_bytes`.

        Raises:
            CascadeError: it has another size, or it can't be read in pieces.
        """


def source_of(place: str | Path) -> tuple[FileSource, str]:
    """The source at a path or URL of a folder, or of a manifest in it; and the file name of the manifest.

    Raises:
        UsageError: it needs a package that is not installed, or nobody knows such URLs.
    """
    home, slash, name = str(place).rstrip("/").rpartition("/")
    if not name.endswith(".json"):
        home, slash, name = str(place).rstrip("/"), "/", MANIFEST
    home += slash
    if "://" not in home:
        return _Folder(Path(home)), name
    return (_WebServer(home) if home.startswith(("http://", "https://")) else _Store(home)), name


class _Folder(FileSource):
    def __init__(self, root: Path) -> None:
        self._root = root

    def _open(self, name: str) -> FileIO:
        path = self._root / name
        if path.exists() and not path.is_file():  # a pipe or a device may never end
            raise CascadeError(f"{path} is no regular file", hint="put the file there again")
        return path.open("rb", buffering=0)

    def whole(self, name: str, most_bytes: int) -> bytes:
        with self._open(name) as file:
            return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))  # it takes memory for what it is asked

    def piece(self, name: str, start: int, end: int, file_bytes: int) -> bytes:
        with self._open(name) as file:
            _check_size(str(file.name), os.fstat(file.fileno()).st_size, file_bytes)
            return os.pread(file.fileno(), end - start, start)


class _WebServer(FileSource):
    def __init__(self, url: str) -> None:
        self._url, self.heard_at = url, time.monotonic()
        self._first, self._sends_ranges = Lock(), False
        self._refusal: CascadeError | None = None

    def whole(self, name: str, most_bytes: int) -> bytes:
        with urlopen(self._url + quote(name), timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https
            return self._body(answer, most_bytes)

    def piece(self, name: str, start: int, end: int, file_bytes: int) -> bytes:
        with nullcontext() if self._sends_ranges else self._first:  # not many ask a server that sends whole files
            if self._refusal is not None:
                raise self._refusal
            return self._asked(name, start, end, file_bytes)

    def _asked(self, name: str, start: int, end: int, file_bytes: int) -> bytes:
        url = self._url + quote(name)
        request = Request(url, headers={"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"})  # noqa: S310
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https
                if answer.status != HTTPStatus.PARTIAL_CONTENT:
                    message = f"the server of {url} sends whole files only (it answered {answer.status} to a range)"
                    hint = "use one that knows HTTP Range, such as nginx, Caddy or an object store"
                    self._refusal = CascadeError(message, hint=hint)
                    raise self._refusal
                self._sends_ranges = True
                sent, _, total = str(answer.headers["Content-Range"]).partition("/")
                if sent != f"bytes {start}-{end - 1}" or total not in {"*", str(file_bytes)}:
                    message = f"{url} should have {file_bytes:,} bytes; the server sent {sent} of {total}"
                    raise CascadeError(message, hint=CHANGED)
                return self._body(answer, end - start)
        except HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            raise CascadeError(f"{url} has fewer than {file_bytes:,} bytes", hint=CHANGED) from None

    def _body(self, answer: HTTPResponse, most_bytes: int) -> bytes:
        raw = bytearray()
        while len(raw) < most_bytes and (some := answer.read1(min(_PIECE_BYTES, most_bytes - len(raw)))):
            self.heard_at = time.monotonic()
            raw += some
        if len(raw) < min(most_bytes, int(answer.headers["Content-Length"] or 0)):
            raise OSError(errno.EPIPE, "the connection broke off")
        return bytes(raw)


class _Store(FileSource):
    """An object store, or whatever else fsspec knows."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs

            system, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            hint = "pip install fsspec, and its package for the store, such as s3fs or gcsfs"
            raise UsageError(f"{url} can't be opened: {error}", hint=hint) from None
        self._system: Any = system
        self._root = root.rstrip("/")
        self._size = cache(self._system.size)

    def whole(self, name: str, most_bytes: int) -> bytes:
        return self._system.cat_file(f"{self._root}/{name}", start=0, end=most_bytes)  # type: ignore[no-any-return]

    def piece(self, name: str, start: int, end: int, file_bytes: int) -> bytes:
        path = f"{self._root}/{name}"
        _check_size(path, self._size(path), file_bytes)
        return self._system.cat_file(path, start=start, end=end)  # type: ignore[no-any-return]


def _check_size(file: str, found: int, expected: int) -> None:
    if found != expected:
        raise CascadeError(f"{file} has {found:,} bytes, but had {expected:,} when the model was split", hint=CHANGED)
