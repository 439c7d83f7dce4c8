"""Tensors that wait between parts: in memory while there is room, the others in files of a folder that goes away."""

from __future__ import annotations

import ctypes
import errno
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError
from ...core.units import size
from ...core.wiring import Tensor
from ..values import NON_NUMPY_TYPES, Value, to_value

Key = tuple[int, str]
"""The number of a request, and the name of a tensor."""

_PREFIX: Final = "graphcut-"


class SpillStore:
    """Values by request and name. Used in a `with`, which ends with nothing left on disk.

    What came first stays in memory, since every part takes all of them in turn: to keep what was used last would keep
    what is needed latest. Strings and Python objects stay in memory too, uncounted.

    Attributes:
        in_memory_bytes: what tensors take here now.
        spilled_bytes: what was written to files, all together.
    """

    def __init__(self, tensors: Mapping[str, Tensor], room_bytes: int) -> None:
        """Empty.

        Args:
            tensors: types of what is put here.
            room_bytes: how much may stay in memory.
        """
        self.in_memory_bytes = 0
        self.spilled_bytes = 0
        self._tensors = tensors
        self._room_bytes = room_bytes
        self._held: dict[Key, Value] = {}
        self._files: dict[Key, tuple[Path, tuple[int, ...]]] = {}
        self._folder: Path | None = None
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __contains__(self, key: Key) -> bool:
        return key in self._held or key in self._files

    def put(self, key: Key, value: Value) -> None:
        """Keep a value.

        Raises:
            RunError: it has to go to disk, and the disk refuses.
        """
        number = _bytes_of(value)
        if number == 0 or self.in_memory_bytes + number <= self._room_bytes:
            self._held[key] = value
            self.in_memory_bytes += number
        else:
            self._files[key] = self._write(value, number), tuple(value.shape())

    def get(self, key: Key) -> Value:
        """The value, which stays here too.

        Raises:
            RunError: its file is gone.
        """
        return self._held[key] if key in self._held else self._read(key)

    def shrink(self, room_bytes: int) -> None:
        """From now on no more than this may stay in memory; what is too much goes to disk, the latest first.

        Raises:
            RunError: the disk refuses.
        """
        self._room_bytes = room_bytes
        for key in reversed(list(self._held)):
            if self.in_memory_bytes > room_bytes and (number := _bytes_of(self._held[key])):
                self._files[key] = self._write(self._held[key], number), tuple(self._held[key].shape())
                del self._held[key]
                self.in_memory_bytes -= number

    def drop(self, key: Key) -> None:
        """Nobody needs it any more."""
        if key in self._held:
            self.in_memory_bytes -= _bytes_of(self._held.pop(key))
        else:
            self._files.pop(key)[0].unlink(missing_ok=True)

    def drop_request(self, number: int) -> None:
        """Nobody needs anything of this request any more."""
        for key in [key for key in (*self._held, *self._files) if key[0] == number]:
            self.drop(key)

    def _write(self, value: ort.OrtValue, number: int) -> Path:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            path = self._folder / str(self._written)
            path.write_bytes(memoryview((ctypes.c_char * number).from_address(value.data_ptr())))
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            full = f" after {size(self.spilled_bytes)}" if error.errno == errno.ENOSPC else ""
            raise RunError(
                f"tensors that wait between parts don't fit into memory, and {place} can't take them{full}: "
                f"{error.strerror or error}",
                hint="let TMPDIR name a folder on a larger disk, allow more with --memory, or run fewer inputs at once",
            ) from None
        self._written += 1
        self.spilled_bytes += number
        return path

    def _read(self, key: Key) -> Value:
        path, shape = self._files[key]
        tensor = self._tensors[key[1]]
        dtype = NON_NUMPY_TYPES[tensor.dtype][0] if tensor.dtype in NON_NUMPY_TYPES else np.dtype(tensor.dtype)
        try:
            return to_value(np.fromfile(path, dtype).reshape(shape), tensor)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{key[1]!r} waited in {path}, which can't be read back: {error}",
                hint="leave that folder alone; run again",
            ) from None


def _bytes_of(value: Value) -> int:
    """What a tensor of numbers takes; 0 for anything else, which never goes to disk."""
    return int(value.tensor_size_in_bytes()) if isinstance(value, ort.OrtValue) else 0
