"""The worker's side of `processes`: a process that does as it is told through a pipe, until the pipe ends.

It needs numpy, onnxruntime and msgspec, and never loads the program that began it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple

import msgspec

from ...core.errors import RunError
from ...core.manifest import Cascade, Manifest, digest_of, open_cascade
from ..in_process.process_memory import resident_bytes
from ..stage import SessionConfig, Stage
from .output_buffers import OutputBuffers
from .protocol import Step
from .shared_memory import SharedMemory, TensorRef
from .worker import StatesByPart, Worker


class Opening(NamedTuple):
    """What a worker is told first.

    Attributes:
        manifest: the path of the cascade's manifest.
        digest: what stands in it, see `digest_of_manifest`.
        config: how sessions are built.
        states: what parts keep.
        owner: begins the names of the worker's regions.
    """

    manifest: str
    digest: str
    config: SessionConfig
    states: StatesByPart
    owner: str


class Hold(NamedTuple):
    """Hold exactly these parts."""

    parts: tuple[int, ...]


class RunStep(NamedTuple):
    """Run a step.

    Attributes:
        step: which.
        held: where lies what it reads.
        freed: regions of the worker that nobody reads any more.
        gone: regions of others that are no more.
        forgotten: sequences that are at their end.
    """

    step: Step
    held: Mapping[str, TensorRef]
    freed: Sequence[str]
    gone: Sequence[str]
    forgotten: Sequence[int]


class Loaded(NamedTuple):
    """These parts are held."""

    parts: tuple[int, ...]


class Made(NamedTuple):
    """The step is done."""

    made: Mapping[str, TensorRef]
    seconds: tuple[float, ...]
    memory_bytes: int


class Broken(NamedTuple):
    """The step failed, or, where it was none, loading parts."""

    error: Exception
    is_step: bool


class Missing(NamedTuple):
    """What the step reads is not there."""


Command = Hold | RunStep
Message = Loaded | Made | Broken | Missing


def digest_of_manifest(manifest: Manifest) -> str:
    """By this the hub and its workers make sure that they speak of the same parts."""
    return digest_of(msgspec.json.encode(manifest, order="deterministic"))


def serve() -> None:
    """Be a worker: the process was begun with the number of its pipe, and the folders of shared memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the hub, which ends its workers
    pipe, *folders = sys.argv[1:]
    connection = Connection(int(pipe))
    try:
        opening: Opening = connection.recv()
        server = Server(connection, opening, folders)
        while True:
            server.hear(connection.recv())
    except (EOFError, OSError):  # the hub is gone, and nobody else is left to clear away
        _vanish(folders)


class Server:
    """Hears orders in one thread, runs steps in a second, loads parts in a third, so that none waits for another."""

    def __init__(self, connection: Connection, opening: Opening, folders: Sequence[str]) -> None:
        """Nothing is loaded yet."""
        self._connection = connection
        self._opening = opening
        self._shared = SharedMemory(folders, opening.owner)
        self._landing = OutputBuffers(self._shared)
        self._sending = Lock()
        self._loads: SimpleQueue[Hold] = SimpleQueue()
        self._steps: SimpleQueue[RunStep] = SimpleQueue()
        self._worker: Worker | None = None
        for work in (self._load_all, self._run_all):
            Thread(target=work, daemon=True).start()

    def hear(self, order: Command) -> None:
        """Pass an order on."""
        if isinstance(order, Hold):
            self._loads.put(order)
        else:
            self._steps.put(order)

    def _load_all(self) -> None:
        while True:
            try:
                report = self._load(self._loads.get())
            except Exception as error:  # noqa: BLE001 - whatever it is, the hub is told
                report = Broken(_sendable(error), is_step=False)
            self._report(report)

    def _run_all(self) -> None:
        while True:
            try:
                report = self._run(self._steps.get())
            except Exception as error:  # noqa: BLE001 - whatever it is, the hub is told
                report = Broken(_sendable(error), is_step=True)
            self._report(report)

    def _report(self, report: Message) -> None:
        with self._sending:
            self._connection.send(report)

    def _load(self, order: Hold) -> Message:
        if self._worker is None:
            cascade = _opened(self._opening)
            config = self._opening.config
            load = lambda place: Stage(cascade, cascade.parts[place], config=config)  # noqa: E731
            self._worker = Worker(cascade, self._opening.states, load)
        self._worker.hold(frozenset(order.parts))
        return Loaded(order.parts)

    def _run(self, order: RunStep) -> Message:
        worker, shared = self._worker, self._shared
        if worker is None:
            raise RunError("a step came before the parts were loaded")
        shared.free(order.freed)
        shared.forget(order.gone)
        for sequence in order.forgotten:
            worker.forget(sequence)
        try:
            held = {name: shared.read(slot) for name, slot in order.held.items()}
        except LookupError:
            return Missing()
        made, seconds = self._landing.run(order.step, held, lambda into: worker.run(order.step, held, into))
        return Made(made, seconds, resident_bytes())


def _opened(opening: Opening) -> Cascade:
    cascade = open_cascade(opening.manifest)
    if digest_of_manifest(cascade.manifest) != opening.digest:
        raise RunError(f"{opening.manifest} was changed while the cascade ran", hint="run it again")
    return cascade


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - some errors can't be made from what they say
        return RunError(f"{type(error).__name__}: {error}")
    return error


def _vanish(folders: Sequence[str]) -> None:
    """Remove what was shared, and end at once: a step may be at work that never ends."""
    while any(Path(folder).exists() for folder in folders):  # others may be writing a last time
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
