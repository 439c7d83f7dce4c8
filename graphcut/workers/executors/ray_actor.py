"""The Ray actor that is a worker on another machine, and how tensors are converted for Ray."""

from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from threading import Event
from typing import Any, NamedTuple

import msgspec
import numpy as np
import ray  # noqa: TID251 - a module of the Ray executor

from ...core.errors import RunError
from ...core.manifest import Cascade, Manifest
from ...core.version import __version__
from ...core.wiring import MESSAGE_BYTES
from ...running.process_memory import resident_bytes
from ...running.providers import NodesByProvider, ort_message
from ...running.sampling import TOKENS
from ...running.stage import SessionConfig, Stage
from ...running.values import from_array, is_numeric_tensor, to_array
from ...transferring.file_transfer import PartStore
from .protocol import Step
from .worker import StatesByPart, Worker


class InlineArray(NamedTuple):
    """An array in a message."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> "InlineArray":
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> np.ndarray[Any, Any]:
        """The array, which can't be written to."""
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


class StepCall(msgspec.Struct, frozen=True, array_like=True):
    """What an actor is sent for a step. It and the result are bytes: Ray takes half a millisecond more for objects."""

    step: Step
    requested: tuple[str, ...]  #: the outputs that are to be in the result.
    inline: dict[str, InlineArray]  #: the inputs that are in the call.
    stored: tuple[str, ...]  #: the names of the other inputs.


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What an actor returns for a step."""

    seconds: tuple[float, ...]  #: the run time of each part.
    memory_bytes: int  #: the resident memory of the actor.
    inline: dict[str, InlineArray]  #: the outputs that were requested.
    small: tuple[str, ...]  #: the names of all outputs small enough to be requested the next time.
    sizes: dict[str, int]  #: the bytes of each output; 0 of one that is no array.
    copied_bytes: int  #: see `Done`.


class RemoteWorker(PartStore):
    """A Ray actor: a worker, and the part files of its machine. Its exceptions are raised in the driver.

    `path` is the path of the manifest on the driver's machine.
    """

    def __init__(self, path: str, manifest: Manifest, states: StatesByPart, config: SessionConfig) -> None:
        self._path = Path(path)
        super().__init__(self._path.parent, manifest.parts)
        self._manifest = manifest
        self._config = config
        self._cascade = Cascade(self._path, manifest)
        self._worker = Worker(self._cascade, states, self._load)
        self._worker.is_alone = True
        self._tensors = {**self._cascade.tensors, TOKENS.name: TOKENS}

    def location(self) -> tuple[str, str]:
        """Ray's id of this machine, and the version of graphcut."""
        return str(ray.get_runtime_context().get_node_id()), __version__

    def live(self) -> None:
        """Never return: a driver that waits for this call learns at once when the actor ends."""
        Event().wait()

    def hold(self, parts: Sequence[int]) -> dict[int, NodesByProvider]:
        """Hold exactly these parts, see `Worker.hold`. Returns `Worker.placements`."""
        try:
            self._worker.hold(frozenset(parts))
        except RunError as error:
            raise RunError(f"{error} (on {gethostname()})", hint=error.hint) from None
        return self._worker.placements

    def run(self, call: bytes, *stored: Any) -> Any:  # noqa: ANN401 - arrays, or Python objects
        """Run a step. Return its `StepResult` or an error, then each output that was not requested (or None).

        `stored` are the inputs that Ray fetched from object stores.
        """
        given = msgspec.msgpack.decode(call, type=StepCall)
        step, tensors = given.step, self._tensors
        large = [name for name in step.writes if name not in given.requested]
        try:
            arrays = {name: one.array() for name, one in given.inline.items()}
            arrays |= dict(zip(given.stored, stored, strict=True))
            inputs = {name: from_array(array, tensors[name]) for name, array in arrays.items()}
            values, seconds = self._worker.run(step, inputs)
            outputs = {name: to_array(values[name], tensors[name]) for name in step.writes}
        except Exception as error:  # noqa: BLE001 - any error is reported to the driver
            reported = error if isinstance(error, RunError) else RunError(ort_message(error))
            return (reported, *(None for _ in large)) if large else reported
        inline = {name: InlineArray.of(outputs[name]) for name in given.requested}
        small = tuple(name for name, one in outputs.items() if is_small(one) and is_numeric_tensor(tensors[name]))
        sizes = {name: getattr(array, "nbytes", 0) for name, array in outputs.items()}
        found = StepResult(seconds, resident_bytes(), inline, small, sizes, self._worker.copied_bytes)
        raw = msgspec.msgpack.encode(found)
        return (raw, *(outputs[name] for name in large)) if large else raw

    def forget(self, sequence: int) -> None:
        """Drop the states of a sequence."""
        self._worker.forget(sequence)

    def _load(self, part: int) -> Stage:
        cascade = Cascade(self.part_folders[part] / self._path.name, self._manifest)
        return Stage(cascade, self._manifest.parts[part], config=self._config)


def is_small(array: object) -> bool:
    """Whether an output is small enough to travel in a call or a result."""
    return isinstance(array, np.ndarray) and array.dtype != object and array.nbytes <= MESSAGE_BYTES
