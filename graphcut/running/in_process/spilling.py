"""Spill store: tensors that wait between parts, in memory up to a limit, the others in files of a temporary folder."""

import errno
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError
from ...core.tensors import Tensor
from ...core.units import size
from ..values import Value, bits_type, memory_of, to_value

Key = tuple[int, str]  #: the number of a request, and the name of a tensor.


class SpillStore(AbstractContextManager["SpillStore"]):
    """Values by request and name. A context manager that deletes its files at the end.

    Values stay in memory in the order in which they come, until the limit is reached: every part reads all of them in
    turn, so what was read last is needed latest (Belady's rule). Strings and Python objects always stay in memory and
    are not counted.

    """

    def __init__(self, tensors: Mapping[str, Tensor], limit_bytes: int) -> None:
        """An empty store for these types of tensors; `limit_bytes` is the maximum of `in_memory_bytes`."""
        self.in_memory_bytes = 0  #: the bytes of tensors in memory.
        self.spilled_bytes = 0  #: the bytes written to files so far.
        self._tensors, self._limit_bytes = tensors, limit_bytes
        self._held: dict[Key, Value] = {}
        self._files: dict[Key, tuple[Path, tuple[int, ...]]] = {}
        self._folder: Path | None = None

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __contains__(self, key: Key) -> bool:
        return key in self._held or key in self._files

    def put(self, key: Key, value: Value) -> None:
        """Store a value. Raises RunError if memory is full and its file can't be written."""
        value_bytes = _bytes_of(value)
        if value_bytes == 0 or self.in_memory_bytes + value_bytes <= self._limit_bytes:
            self._held[key] = value
            self.in_memory_bytes += value_bytes
        else:
            self._spill(key, value)

    def get(self, key: Key) -> Value:
        """The value, which stays in the store. Raises RunError if its file can't be read."""
        if key in self._held:
            return self._held[key]
        (path, shape), tensor = self._files[key], self._tensors[key[1]]
        try:
            return to_value(np.fromfile(path, bits_type(tensor.dtype)).reshape(shape), tensor)
        except (OSError, ValueError) as error:
            hint = "don't change that folder; run again"
            raise RunError(f"{key[1]!r} was written to {path}, which can't be read back: {error}", hint=hint) from None

    def shrink(self, limit_bytes: int) -> None:
        """Lower the limit. What exceeds it is written to files, the newest first. Raises RunError if that fails."""
        self._limit_bytes = limit_bytes
        for key in reversed(list(self._held)):
            if self.in_memory_bytes > limit_bytes and (value_bytes := _bytes_of(self._held[key])):
                self._spill(key, self._held[key])
                del self._held[key]
                self.in_memory_bytes -= value_bytes

    def drop(self, key: Key) -> None:
        if key in self._held:
            self.in_memory_bytes -= _bytes_of(self._held.pop(key))
        else:
            self._files.pop(key)[0].unlink(missing_ok=True)

    def drop_request(self, number: int) -> None:
        """Delete all values of a request."""
        for key in [key for key in (*self._held, *self._files) if key[0] == number]:
            self.drop(key)

    def _spill(self, key: Key, value: ort.OrtValue) -> None:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="graphcut-"))
            path = self._folder / str(self.spilled_bytes)  # a new name: what is written has some bytes
            path.write_bytes(memory_of(value).data)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            full = f" after {size(self.spilled_bytes)}" if error.errno == errno.ENOSPC else ""
            what = f"tensors that wait between parts don't fit into memory, and {folder} can't store them{full}"
            hint = "set TMPDIR to a folder on another disk, allow more with `memory_bytes`, or run fewer inputs"
            raise RunError(f"{what}: {error.strerror or error}", hint=hint) from None
        self._files[key] = path, tuple(value.shape())
        self.spilled_bytes += _bytes_of(value)


def _bytes_of(value: Value) -> int:
    """The bytes of a numeric tensor; 0 for anything else, which is never written to a file."""
    return int(value.tensor_size_in_bytes()) if isinstance(value, ort.OrtValue) else 0
