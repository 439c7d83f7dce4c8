"""Values in memory that processes share: written once, and read where they lie by whoever is told where.

Memory is shared as *regions*: files in a private folder, in /dev/shm where there is one with room and else among the
temporary files. Whoever made a region maps it to write, all others map it to read. What is small goes in the message.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError
from ...core.units import size
from ..values import NON_NUMPY_TYPES, Value

INLINE_BYTES: Final = 4096
"""Values up to this size go in the message: a file would cost more."""

_ALIGNED: Final = 64
"""Values begin at multiples of this, as those of ONNX Runtime do."""

_STEPS: Final = 8
"""Regions have one of so many sizes between one power of two and the next, so that they can be used again."""

_PICKLED: Final = 0
_TYPES: Final[Mapping[int, type[np.generic]]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    **{number: bits for bits, number in NON_NUMPY_TYPES.values()},
    21: np.uint8,
    22: np.uint8,
}
"""By its number in TensorProto.DataType, the type of numpy that has one item for each element.

4-bit integers lie two in a byte; they are given a byte each, of which ONNX Runtime uses the first half.
"""

_KNOWN_TO_NUMPY: Final = frozenset(range(14))

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class TensorSpec(NamedTuple):
    """What a tensor is like.

    Attributes:
        element: the number of its type in TensorProto.DataType; 0 for a Python object that is pickled.
        shape: its sizes; for an object the number of its bytes.
    """

    element: int
    shape: tuple[int, ...]

    @property
    def length_bytes(self) -> int:
        """What it takes."""
        return math.prod(self.shape) * np.dtype(_TYPES.get(self.element, np.uint8)).itemsize


class TensorRef(NamedTuple):
    """Where a value lies.

    Attributes:
        form: what it is like.
        region: the file; None where the value is `inline`.
        offset: where it begins, in bytes.
        inline: its bytes.
    """

    form: TensorSpec
    region: str | None = None
    offset: int = 0
    inline: bytes = b""


class SharedMemory:
    """Shared memory as one process sees it: its own regions, which it writes, and those of others."""

    def __init__(self, folders: Sequence[str], owner: str) -> None:
        """Nothing is taken yet.

        Args:
            folders: where regions may lie, the best first.
            owner: begins the names of the regions made here; no other process uses it.
        """
        self._folders = folders
        self._owner = owner
        self._maps: dict[str, Bytes] = {}
        self._free: list[str] = []
        self._made = 0

    # To write

    def write(self, values: Mapping[str, Value]) -> dict[str, TensorRef]:
        """Copy values to where others can read them, all into one region.

        Raises:
            RunError: there is no room for them.
        """
        raw = {name: _Raw(value) for name, value in values.items()}
        slots = {name: TensorRef(one.form, inline=one.bytes()) for name, one in raw.items() if is_small(one.form)}
        slots |= self.room({name: one.form for name, one in raw.items() if name not in slots})
        for name, slot in slots.items():
            if slot.region is not None:
                raw[name].copy_to(self._maps[slot.region][slot.offset :])
        return slots

    def room(self, forms: Mapping[str, TensorSpec]) -> dict[str, TensorRef]:
        """Room for tensors of these forms, in one region.

        Raises:
            RunError: there is none.
        """
        if not forms:
            return {}
        offsets, end = [], 0
        for form in forms.values():
            offsets.append(end)
            end = -(-(end + form.length_bytes) // _ALIGNED) * _ALIGNED
        region = self._take(end)
        return {name: TensorRef(form, region, at) for (name, form), at in zip(forms.items(), offsets, strict=True)}

    def free(self, regions: Iterable[str]) -> None:
        """Regions made here, or room in them, that nobody reads any more."""
        self._free.extend(regions)

    # To read

    def read(self, slot: TensorRef) -> Value:
        """The value where it lies, to be written too if the region was made here.

        The slot must not be freed before the value is dropped.

        Raises:
            LookupError: it lies nowhere any more.
        """
        form = slot.form
        raw = np.frombuffer(slot.inline, np.uint8) if slot.region is None else self._seen(slot)
        if form.element == _PICKLED:
            return pickle.loads(raw[: form.length_bytes].data)  # noqa: S301 - from a process of ours
        array = raw[: form.length_bytes].view(_TYPES[form.element]).reshape(form.shape)
        if form.element in _KNOWN_TO_NUMPY:
            return ort.OrtValue.ortvalue_from_numpy(array)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, form.element)

    def copy(self, slot: TensorRef) -> Value:
        """The value in memory of its own.

        Raises:
            LookupError: it lies nowhere any more.
        """
        if slot.region is None or slot.form.element == _PICKLED:
            return self.read(slot)
        raw = self._seen(slot)[: slot.form.length_bytes].tobytes()
        return self.read(TensorRef(slot.form, inline=raw))

    def forget(self, regions: Iterable[str]) -> None:
        """Regions of others that are gone."""
        for region in regions:
            self._maps.pop(region, None)

    # Regions

    def _seen(self, slot: TensorRef) -> Bytes:
        region = slot.region or ""
        seen = self._maps.get(region)
        if seen is None or len(seen) < slot.offset + slot.form.length_bytes:  # it has grown
            try:
                seen = self._maps[region] = _mapped(region, mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError) as error:  # mmap's word for an empty file
                raise LookupError(region) from error
        return seen[slot.offset :]

    def _take(self, length: int) -> str:
        """A region with so many bytes: the smallest free one that has them; else one that grows, or a new one."""
        free = {name: len(self._maps[name]) for name in self._free}
        able = [name for name, had in free.items() if had >= length]
        grown = _rounded(length)
        for name in (min(able, key=free.__getitem__, default=None), max(free, key=free.__getitem__, default=None)):
            if name is None or not _is_there(name):
                continue  # somebody removed it
            if free[name] >= length or self._reserve(name, grown):
                self._free.remove(name)
                return name
        return self._new(grown)

    def _new(self, length: int) -> str:
        self._made += 1
        for folder in self._folders:
            name = os.path.join(folder, f"{self._owner}-{self._made}")  # noqa: PTH118 - text: it goes into messages
            if self._reserve(name, length):
                return name
        raise RunError(
            f"there is no room for {size(length)} in {' nor in '.join(str(Path(f).parent) for f in self._folders)}",
            hint="free some, set TMPDIR to a folder with room, or let fewer inputs be on their way at the same time",
        )

    def _reserve(self, name: str, length: int) -> bool:
        if not _reserve(name, length):
            return False
        self._maps[name] = _mapped(name, mmap.ACCESS_WRITE)
        return True


class _Raw:
    """The bytes of a value."""

    def __init__(self, value: Value) -> None:
        self._value: Any = value
        form = spec_of(value)
        if form is not None:
            self.form = form
            self._used = _used_bytes(form)
        else:
            plain = value.numpy() if isinstance(value, ort.OrtValue) else value
            self._value = pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)
            self.form = TensorSpec(_PICKLED, (len(self._value),))
            self._used = len(self._value)

    def bytes(self) -> bytes:
        if isinstance(self._value, bytes):
            return self._value
        return ctypes.string_at(self._value.data_ptr(), self._used).ljust(self.form.length_bytes)

    def copy_to(self, target: Bytes) -> None:
        source = self._value if isinstance(self._value, bytes) else self._value.data_ptr()
        ctypes.memmove(target.ctypes.data, source, self._used)


def spec_of(value: Value) -> TensorSpec | None:
    """What a tensor of numbers is like; None for anything else."""
    if not isinstance(value, ort.OrtValue) or not value.is_tensor() or value.element_type() not in _TYPES:
        return None
    return TensorSpec(value.element_type(), tuple(value.shape()))


def is_small(form: TensorSpec) -> bool:
    """Does it go in the message?"""
    return form.length_bytes <= INLINE_BYTES


def _used_bytes(form: TensorSpec) -> int:
    return (form.length_bytes + 1) // 2 if form.element in {21, 22} else form.length_bytes


def _rounded(length: int) -> int:
    """The next size of a region: at most an eighth is wasted."""
    step = max(mmap.PAGESIZE, (1 << length.bit_length()) // (2 * _STEPS))
    return -(-length // step) * step


def _reserve(name: str, length: int) -> bool:
    """Make the file so long, and sure of its bytes: writing to a mapped file on a full disk would end the process."""
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    had = os.fstat(file).st_size
    try:
        _allocate(file, had, length)
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, had)
        if not had:
            with suppress(OSError):
                Path(name).unlink()
        return False
    finally:
        os.close(file)
    return True


def _allocate(file: int, start: int, length: int) -> None:
    try:
        os.posix_fallocate(file, 0, length)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    else:
        return
    zeros = bytes(1 << 20)  # not every system, and not every disk, reserves without writing
    while start < length:
        start += os.pwrite(file, zeros[: length - start], start)


def _is_there(name: str) -> bool:
    return Path(name).exists()


def _mapped(name: str, access: int) -> Bytes:
    with Path(name).open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)
