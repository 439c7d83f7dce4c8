"""The worker's side of `processes`: a process that runs the commands it receives through a pipe until the pipe closes.

It needs numpy, onnxruntime and msgspec, and does not import the program that started it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple, TypeVar

import msgspec

from ...core.errors import RunError
from ...core.manifest import Cascade, Manifest, digest_of, open_cascade
from ..process_memory import resident_bytes
from ..stage import SessionConfig, Stage
from .output_buffers import OutputBuffers
from .protocol import Done, Event, Failed, Lost, Ready, Step
from .shared_memory import SharedMemory, TensorRef
from .worker import StatesByPart, Worker


class Setup(NamedTuple):
    """The first message to a worker.

    Attributes:
        worker: its number.
        manifest: the path of the cascade's manifest.
        digest: the expected `manifest_digest`.
        config: how sessions are built.
        states: the states that parts keep.
        owner: the prefix of the names of its shared-memory regions.
    """

    worker: int
    manifest: str
    digest: str
    config: SessionConfig
    states: StatesByPart
    owner: str


class Hold(NamedTuple):
    """The command to hold exactly these parts."""

    parts: tuple[int, ...]
    step: None = None


class RunStep(NamedTuple):
    """The command to run a step.

    Attributes:
        step: the step.
        inputs: where its inputs are.
        freed: regions of this worker that nobody reads any more.
        removed: regions of others that were removed.
        forgotten: sequences that ended.
    """

    step: Step
    inputs: Mapping[str, TensorRef]
    freed: Sequence[str]
    removed: Sequence[str]
    forgotten: Sequence[int]


Command = Hold | RunStep
_AnyCommand = TypeVar("_AnyCommand", Hold, RunStep)


def manifest_digest(manifest: Manifest) -> str:
    """A digest by which the hub and a worker check that they use the same manifest."""
    return digest_of(msgspec.json.encode(manifest, order="deterministic"))


def serve() -> None:
    """Run a worker. The process's arguments are the file descriptor of its pipe and the shared-memory folders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the hub handles Ctrl-C, and ends its workers
    pipe, *folders = sys.argv[1:]
    connection = Connection(int(pipe))
    try:
        setup: Setup = connection.recv()
        server = WorkerServer(connection, setup, folders)
        while True:
            server.handle(connection.recv())
    except (EOFError, OSError):  # the hub is gone, and can't clean up
        _clean_up_and_exit(folders)


class WorkerServer:
    """Receives commands, runs steps and loads parts, each in a thread of its own, so that none waits for another."""

    def __init__(self, connection: Connection, setup: Setup, folders: Sequence[str]) -> None:
        """Nothing is loaded yet."""
        self._connection = connection
        self._setup = setup
        self._shared = SharedMemory(folders, setup.owner)
        self._buffers = OutputBuffers(self._shared)
        self._sending = Lock()
        self._loads: SimpleQueue[Hold] = SimpleQueue()
        self._steps: SimpleQueue[RunStep] = SimpleQueue()
        self._worker: Worker | None = None
        Thread(target=self._run_all, args=(self._loads, self._load), daemon=True).start()
        Thread(target=self._run_all, args=(self._steps, self._run), daemon=True).start()

    def handle(self, command: Command) -> None:
        """Queue a command for its thread."""
        if isinstance(command, Hold):
            self._loads.put(command)
        else:
            self._steps.put(command)

    def _run_all(self, commands: SimpleQueue[_AnyCommand], run: Callable[[_AnyCommand], Event]) -> None:
        while True:
            command = commands.get()
            try:
                event = run(command)
            except Exception as error:  # noqa: BLE001 - any error is reported to the hub
                event = Failed(self._setup.worker, command.step, _picklable(error))
            with self._sending:
                self._connection.send(event)

    def _load(self, command: Hold) -> Event:
        if self._worker is None:
            cascade, setup = _open(self._setup), self._setup
            load = lambda part: Stage(cascade, cascade.parts[part], config=setup.config)  # noqa: E731
            self._worker = Worker(cascade, setup.states, load)
        self._worker.hold(frozenset(command.parts))
        return Ready(self._setup.worker, frozenset(command.parts))

    def _run(self, command: RunStep) -> Event:
        worker, shared, step = self._worker, self._shared, command.step
        if worker is None:
            raise RunError("a step came before the parts were loaded")
        shared.free(command.freed)
        shared.forget(command.removed)
        for sequence in command.forgotten:
            worker.forget(sequence)
        try:
            inputs = {name: shared.read(ref) for name, ref in command.inputs.items()}
        except LookupError:
            return Lost(self._setup.worker, step)
        refs, seconds = self._buffers.run(step, inputs, lambda buffers: worker.run(step, inputs, buffers))
        return Done(self._setup.worker, step, refs, seconds, resident_bytes())


def _open(setup: Setup) -> Cascade:
    cascade = open_cascade(setup.manifest)
    if manifest_digest(cascade.manifest) != setup.digest:
        raise RunError(f"{setup.manifest} was changed while the cascade ran", hint="run it again")
    return cascade


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in this line
    except Exception:  # noqa: BLE001 - errors whose constructor takes other arguments can't be unpickled
        return RunError(f"{type(error).__name__}: {error}")
    return error


def _clean_up_and_exit(folders: Sequence[str]) -> None:
    """Remove the shared folders, and end this process at once: a step may be running that never ends."""
    while any(Path(folder).exists() for folder in folders):  # other workers may still write files
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
