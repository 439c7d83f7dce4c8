"""Tensors in memory that several processes share: one process writes them, the others read them without a copy.

Shared memory consists of *regions*: files in a private folder, in /dev/shm if it has room, else among the temporary
files. The process that made a region maps it for writing, all others for reading. Small values travel in messages.
Parts write into shared memory directly once the shapes of their outputs are known.
"""

import errno
import math
import mmap
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError
from ...core.tensors import ELEMENT_TYPES
from ...core.units import size
from ...running.values import Value, memory_of
from .protocol import Step
from .worker import Report

INLINE_BYTES: Final = 4096  #: values up to this size travel in the message, which is faster than a file.
_ALIGNMENT: Final = 64  #: tensors begin at multiples of this, as those that ONNX Runtime allocates do.
_PICKLED: Final = 0
_DTYPES: Final = {
    **{kind.number: np.dtype(kind.array) for kind in ELEMENT_TYPES.values() if kind.bits and kind.array},
    **{ELEMENT_TYPES[name].number: np.dtype(np.uint8) for name in ("uint4", "int4")},
}
"""For each TensorProto.DataType, the numpy type with one item per element.

4-bit integers are packed, two in a byte. They get one byte each, of which ONNX Runtime uses the first half.
"""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class TensorSpec(NamedTuple):
    """The element type (a TensorProto.DataType) and the shape of a tensor.

    For a pickled Python object the type is 0, and the shape is the length of the pickle.
    """

    element_type: int
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The memory that is reserved for it."""
        return math.prod(self.shape) * (_DTYPES[self.element_type].itemsize if self.element_type else 1)

    @property
    def is_inline(self) -> bool:
        """Whether it travels in the message."""
        return self.size_bytes <= INLINE_BYTES


class TensorRef(NamedTuple):
    """Where a tensor is: in the file `region` at `offset` (in bytes), or, where `region` is None, `inline`."""

    spec: TensorSpec
    region: str | None = None
    offset: int = 0
    inline: bytes = b""


class SharedMemory:
    """Shared memory as one process uses it: its own regions, which it writes, and those of others, which it reads."""

    def __init__(self, folders: Sequence[str], owner: str) -> None:
        """Regions are made in the first of `folders` that has room. `owner`, the prefix of their names, is unique."""
        self._folders, self._owner = folders, owner
        self._maps: dict[str, Bytes] = {}
        self._free: list[str] = []
        self._region_count = 0

    # Writing

    def write(self, values: Mapping[str, Value]) -> dict[str, TensorRef]:
        """Copy values to shared memory, all into one region."""
        sources = {name: _source_of(value) for name, value in values.items()}
        small = {name: raw.tobytes().ljust(spec.size_bytes) for name, (spec, raw) in sources.items() if spec.is_inline}
        refs = self.allocate({name: spec for name, (spec, _) in sources.items() if name not in small})
        for name, ref in refs.items():
            raw = sources[name][1]
            self._maps[ref.region or ""][ref.offset :][: len(raw)] = raw
        return refs | {name: TensorRef(sources[name][0], inline=raw) for name, raw in small.items()}

    def allocate(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorRef]:
        """Room for tensors, all in one region."""
        if not specs:
            return {}
        rooms = (-(-spec.size_bytes // _ALIGNMENT) * _ALIGNMENT for spec in specs.values())
        *offsets, end = accumulate(rooms, initial=0)
        region = self._take_region(end)
        return {n: TensorRef(spec, region, offset) for (n, spec), offset in zip(specs.items(), offsets, strict=True)}

    def free(self, regions: Iterable[str]) -> None:
        """Make regions of this process available again. Nobody may read from them any more."""
        self._free.extend(regions)

    # Reading

    def read(self, ref: TensorRef) -> Value:
        """The value, without a copy; it must be dropped before its region is freed. Writable in a region of one's own.

        Raises LookupError if the region does not exist any more.
        """
        spec = ref.spec
        raw = np.frombuffer(ref.inline, np.uint8) if ref.region is None else self._view(ref)
        if spec.element_type == _PICKLED:
            return pickle.loads(raw[: spec.size_bytes].data)  # noqa: S301 - made by another process of this run
        array = raw[: spec.size_bytes].view(_DTYPES[spec.element_type]).reshape(spec.shape)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, spec.element_type)

    def copy(self, ref: TensorRef) -> Value:
        """The value in memory of its own. Raises LookupError as `read` does."""
        if ref.region is None or ref.spec.element_type == _PICKLED:
            return self.read(ref)
        return self.read(TensorRef(ref.spec, inline=self._view(ref)[: ref.spec.size_bytes].tobytes()))

    def forget(self, regions: Iterable[str]) -> None:
        """Unmap regions of other processes that were removed."""
        for region in regions:
            self._maps.pop(region, None)

    # Regions

    def _view(self, ref: TensorRef) -> Bytes:
        region = ref.region or ""
        mapped = self._maps.get(region)
        if mapped is None or len(mapped) < ref.offset + ref.spec.size_bytes:  # the region has grown since
            try:
                mapped = self._maps[region] = _map(region, mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError) as error:  # ValueError: mmap refuses an empty file
                raise LookupError(region) from error
        return mapped[ref.offset :]

    def _take_region(self, length: int) -> str:
        """The smallest free region of at least `length` bytes; else the largest one that can grow; else a new one."""
        free = {name: len(self._maps[name]) for name in self._free}
        # Between two powers of two regions have eight different sizes, so that they can be reused.
        step = max(mmap.PAGESIZE, (1 << length.bit_length()) // 16)
        rounded = -(-length // step) * step
        for name in sorted(free, key=lambda name: (free[name] < length, abs(free[name] - length))):
            # Somebody may have removed it.
            if Path(name).exists() and (free[name] >= length or self._grow(name, rounded)):
                self._free.remove(name)
                return name
        self._region_count += 1
        for folder in self._folders:
            name = os.path.join(folder, f"{self._owner}-{self._region_count}")  # noqa: PTH118 - sent in messages as text
            if self._grow(name, rounded):
                return name
        places = " nor in ".join(str(Path(folder).parent) for folder in self._folders)
        hint = "free some, set TMPDIR to a folder with room, or allow fewer requests in flight"
        raise RunError(f"there is no room for {size(rounded)} in {places}", hint=hint)

    def _grow(self, name: str, length: int) -> bool:
        """Make or enlarge a region; False if there is no room.

        Its blocks are reserved, since writing to a mapped file on a full disk would kill the process.
        """
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        old_length = os.fstat(file).st_size
        try:
            _allocate_blocks(file, old_length, length)
        except OSError:
            with suppress(OSError):
                if old_length:
                    os.ftruncate(file, old_length)
                else:
                    Path(name).unlink()
            return False
        finally:
            os.close(file)
        self._maps[name] = _map(name, mmap.ACCESS_WRITE)
        return True


def _source_of(value: Value) -> tuple[TensorSpec, Bytes]:
    """The spec of a value to be written, and its bytes."""
    if (spec := spec_of(value)) is not None:
        return spec, memory_of(value)
    raw = pickle.dumps(value.numpy() if isinstance(value, ort.OrtValue) else value, pickle.HIGHEST_PROTOCOL)
    return TensorSpec(_PICKLED, (len(raw),)), np.frombuffer(raw, np.uint8)


def spec_of(value: Value) -> TensorSpec | None:
    """The spec of a tensor of numbers; None for any other value."""
    if not isinstance(value, ort.OrtValue) or not value.is_tensor() or value.element_type() not in _DTYPES:
        return None
    return TensorSpec(value.element_type(), tuple(value.shape()))


Signature = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[tuple[str, TensorSpec | None], ...]]
"""A step's parts, outputs and early reports, and the specs of its inputs. With equal ones, outputs are mostly alike."""


class OutputBuffers:
    """Predicts the output shapes of a step from those of the last step with the same signature.

    Where a prediction was wrong, since shapes depend on values, the outputs of that signature are copied from then on.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._known: dict[Signature, list[dict[str, TensorSpec]]] = {}  # for each report of the step

    def run(
        self,
        step: Step,
        inputs: Mapping[str, Value],
        run_step: Callable[[Mapping[str, Value], Report], tuple[dict[str, Value], tuple[float, ...]]],
        send: Callable[[dict[str, TensorRef]], None],
    ) -> tuple[dict[str, TensorRef], tuple[float, ...]]:
        """Call `run_step` with output buffers, and return refs to the outputs, and the seconds that it returned.

        What it reports early has regions of its own; refs to it are sent.
        """
        signature = (step.parts, step.writes, step.early, tuple((n, spec_of(value)) for n, value in inputs.items()))
        known = self._known.get(signature)
        reports = deque(self._shared.allocate(specs) for specs in known or ())
        buffers = {name: self._shared.read(ref) for refs in reports for name, ref in refs.items()}
        found: list[dict[str, TensorSpec]] = []
        unused: list[dict[str, TensorRef]] = []

        def stored(outputs: Mapping[str, Value]) -> dict[str, TensorRef]:
            refs = reports.popleft() if reports else {}
            used = {name: ref for name, ref in refs.items() if outputs.get(name) is buffers[name]}
            if len(used) < len(refs):
                unused.append({} if used else refs)
            found.append({name: spec for name, value in outputs.items() if (spec := spec_of(value))})
            return used | self._shared.write({name: value for name, value in outputs.items() if name not in used})

        try:
            outputs, seconds = run_step(buffers, lambda made: send(stored(made)))
            stored_last = stored(outputs)
        finally:
            regions = {ref.region for refs in (*unused, *reports) for ref in refs.values()}
            self._shared.free(region for region in regions if region is not None)
        if known is None:
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[signature] = [{n: spec for n, spec in one.items() if not spec.is_inline} for one in found]
        elif unused:
            self._known[signature] = []
        return stored_last, seconds


def _allocate_blocks(file: int, start: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, length)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
        else:
            return
    zeros = bytes(1 << 20)  # this system or file system can't reserve blocks without writing them
    while start < length:
        start += os.pwrite(file, zeros[: length - start], start)


def _map(name: str, access: int) -> Bytes:
    with Path(name).open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)
