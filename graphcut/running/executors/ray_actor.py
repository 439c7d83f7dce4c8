"""A worker on another machine: what its driver calls there, and how values are packed for the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from tempfile import gettempdir
from threading import Event
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError
from ...core.manifest import Cascade, Manifest
from ...core.version import __version__
from ...core.wiring import Tensor
from ..in_process.process_memory import resident_bytes
from ..stage import SessionConfig, Stage, ort_message
from ..values import NON_NUMPY_TYPES, Value, is_numeric_tensor, to_array
from .file_transfer import PREFIX, FileStamp, PartStore
from .protocol import Step
from .worker import StatesByPart, Worker

SMALL_BYTES: Final = 64 << 10
"""Tensors up to this size travel with calls and reports: each that lies in an object store by itself costs more."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step.

    Attributes:
        seconds: what each of its parts took.
        memory_bytes: what the actor has in memory.
        carried: those of the tensors it made that were asked for with the report, packed.
        small: all that were small enough to be.
    """

    seconds: tuple[float, ...]
    memory_bytes: int
    carried: Mapping[str, Any]
    small: tuple[str, ...]


class RemoteWorker:
    """Made and called on the machine where the parts are to run. What it raises travels to the driver."""

    def __init__(self, path: str, manifest: Manifest, states: StatesByPart, config: SessionConfig, run: str) -> None:
        """Nothing is loaded yet.

        Args:
            path: where the manifest lies on the driver's machine.
            manifest: what stands in it.
            states: what parts keep from step to step of a sequence.
            config: how sessions are built.
            run: a word of this run and this machine, for a folder of its own.
        """
        self._path = Path(path)
        self._manifest = manifest
        self._policy = config
        self._cascade = Cascade(self._path, manifest)
        self.store = PartStore(self._path.parent, Path(gettempdir()) / f"{PREFIX}{run}")
        self._worker = Worker(self._cascade, states, self._load)

    def version(self) -> str:
        """Of graphcut, here."""
        return __version__

    def live(self) -> None:
        """Wait without end: who waits for the answer learns at once when this process ends."""
        Event().wait()

    def lacking(self, place: int, stamps: Mapping[str, FileStamp]) -> list[str]:
        """See `PartStore.lacking`."""
        return self.store.lacking(place, stamps)

    def take(self, name: str, place: int, piece: bytes) -> None:
        """See `PartStore.take`."""
        self.store.take(name, place, piece)

    def finish(self, name: str, stamp: FileStamp) -> None:
        """See `PartStore.finish`."""
        self.store.finish(name, stamp)

    def folder(self) -> str:
        """Where what is sent goes."""
        return str(self.store.folder)

    def hold(self, parts: Sequence[int]) -> None:
        """See `Worker.hold`.

        Raises:
            RunError: a part can't be loaded here.
        """
        try:
            self._worker.hold(frozenset(parts))
        except RunError as error:
            raise RunError(f"{error} (on {gethostname()})", hint=error.hint) from None

    def run(
        self,
        step: Step,
        small: Collection[str],
        carried: Mapping[str, Any],
        *more: Any,  # noqa: ANN401 - see `unpacked`
    ) -> Any:  # noqa: ANN401 - as Ray wants it: one value or several
        """Run a step; give a report, then what it `writes`, packed, each by itself; or an error, and as many None.

        Args:
            step: what to run.
            small: what is to come with the report instead.
            carried: what it reads, by name.
            more: what it reads besides: names, and then as many values.
        """
        large = [name for name in step.writes if name not in small]
        try:
            held = {**carried, **dict(zip(more[: len(more) // 2], more[len(more) // 2 :], strict=True))}
            tensors = self._cascade.tensors
            made, seconds = self._worker.run(step, {name: unpacked(held[name], tensors[name]) for name in held})
            packed = {name: to_array(made[name], tensors[name]) for name in step.writes}
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
            told: object = error if isinstance(error, RunError) else RunError(ort_message(error))
            return (told, *(None for _ in large)) if large else told
        report = StepResult(
            seconds,
            resident_bytes(),
            {name: packed[name] for name in step.writes if name in small},
            tuple(name for name in step.writes if is_small(packed[name])),
        )
        return (report, *(packed[name] for name in large)) if large else report

    def forget(self, sequence: int) -> None:
        """See `Worker.forget`."""
        self._worker.forget(sequence)

    def _load(self, place: int) -> Stage:
        home = self.store.home(place)
        return Stage(Cascade(home / self._path.name, self._manifest), self._manifest.parts[place], config=self._policy)


def is_small(packed: object) -> bool:
    """Is it better carried along?"""
    return isinstance(packed, np.ndarray) and packed.dtype != object and packed.nbytes <= SMALL_BYTES


def unpacked(packed: Any, tensor: Tensor) -> Value:  # noqa: ANN401 - an array, or what is no tensor
    """The value that `to_array` packed, in the same memory."""
    if not is_numeric_tensor(tensor):
        return packed
    if tensor.dtype in NON_NUMPY_TYPES:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(packed, NON_NUMPY_TYPES[tensor.dtype][1])
    return ort.OrtValue.ortvalue_from_numpy(packed)
