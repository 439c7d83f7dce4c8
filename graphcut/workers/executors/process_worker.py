"""The worker's side of `processes`: a process that runs the commands it receives through a pipe until the pipe closes.

It needs numpy, onnxruntime and msgspec, and does not import the program that started it.
"""

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from time import sleep
from typing import Any, NamedTuple

import msgspec

from ...core.digests import digest_of
from ...core.errors import RunError
from ...core.manifest import Manifest, open_cascade
from ...running.process_memory import resident_bytes
from ...running.stage import SessionConfig, Stage
from .protocol import Done, Event, Failed, Lost, Made, Ready, Step
from .shared_memory import OutputBuffers, SharedMemory, TensorRef
from .worker import StatesByPart, Worker


class Setup(NamedTuple):
    """The first message to a worker."""

    worker: int  #: its number.
    manifest: str  #: the path of the manifest.
    digest: str  #: and its digest.
    config: SessionConfig
    states: StatesByPart
    owner: str  #: the prefix of the names of its shared-memory regions.


class Hold(NamedTuple):
    """The command to hold exactly these parts."""

    parts: tuple[int, ...]
    step: None = None


class RunStep(NamedTuple):
    """The command to run a step."""

    step: Step  #: the step.
    inputs: Mapping[str, TensorRef]  #: where its inputs are.
    freed: Sequence[str]  #: regions of this worker that nobody reads any more.
    removed: Sequence[str]  #: regions of others that were removed.
    forgotten: Sequence[int]  #: sequences that ended.


Command = Hold | RunStep


def manifest_digest(manifest: Manifest) -> str:
    """A digest by which the hub and a worker check that they use the same manifest."""
    return digest_of(msgspec.json.encode(manifest, order="deterministic"))


def serve() -> None:
    """Run a worker. The process's arguments are the file descriptor of its pipe and the shared-memory folders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the hub handles Ctrl-C, and ends its workers
    pipe, *folders = sys.argv[1:]
    connection = Connection(int(pipe))
    try:
        WorkerServer(connection, connection.recv(), folders).serve()
    except (EOFError, OSError):  # the hub is gone, and can't clean up
        _clean_up_and_exit(folders)


class WorkerServer:
    """Receives commands, runs steps and loads parts, each in a thread of its own, so that none waits for another."""

    def __init__(self, connection: Connection, setup: Setup, folders: Sequence[str]) -> None:
        self._connection, self._setup = connection, setup
        self._shared = SharedMemory(folders, setup.owner)
        self._buffers = OutputBuffers(self._shared)
        self._sending = Lock()

    def serve(self) -> None:
        """Handle commands until the pipe closes."""
        queues: dict[type, SimpleQueue[Any]] = {Hold: SimpleQueue(), RunStep: SimpleQueue()}
        Thread(target=self._run_all, args=(queues[Hold], self._load), daemon=True).start()
        Thread(target=self._run_all, args=(queues[RunStep], self._run), daemon=True).start()
        while True:
            command = self._connection.recv()
            queues[type(command)].put(command)

    def _run_all(self, commands: SimpleQueue[Any], run: Callable[[Any], Event]) -> None:
        while True:
            command = commands.get()
            try:
                event = run(command)
            except Exception as error:  # noqa: BLE001 - any error is reported to the hub
                event = Failed(self._setup.worker, command.step, _picklable(error))
            self._send(event)

    def _send(self, event: Event) -> None:
        with self._sending:
            self._connection.send(event)

    @cached_property
    def _worker(self) -> Worker:
        """The worker: parts are loaded before the first step comes."""
        setup, cascade = self._setup, open_cascade(self._setup.manifest, may_lack_parts=True)
        if manifest_digest(cascade.manifest) != setup.digest:
            raise RunError(f"{setup.manifest} was changed while the cascade ran", hint="run it again")
        worker = Worker(cascade, setup.states, lambda i: Stage(cascade, cascade.parts[i], config=setup.config))
        worker.is_alone = True
        return worker

    def _load(self, command: Hold) -> Event:
        self._worker.hold(frozenset(command.parts))
        return Ready(self._setup.worker, frozenset(command.parts), self._worker.placements)

    def _run(self, command: RunStep) -> Event:
        worker, shared, step = self._worker, self._shared, command.step
        shared.free(command.freed)
        shared.forget(command.removed)
        for sequence in command.forgotten:
            worker.forget(sequence)
        try:
            kept = step.constants
            inputs = {n: (shared.copy if n in kept else shared.read)(ref) for n, ref in command.inputs.items()}
        except LookupError:
            return Lost(self._setup.worker, step)
        send = lambda made: self._send(Made(self._setup.worker, step, made))  # noqa: E731
        refs, seconds = self._buffers.run(step, inputs, partial(worker.run, step, inputs), send)
        return Done(self._setup.worker, step, refs, seconds, resident_bytes(), copied_bytes=worker.copied_bytes)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in this line
    except Exception:  # noqa: BLE001 - errors whose constructor takes other arguments can't be unpickled
        return RunError(f"{type(error).__name__}: {error}")
    return error


def _clean_up_and_exit(folders: Sequence[str]) -> None:
    """Remove the shared folders, and end this process at once: a step may be running that never ends."""
    for _ in range(40):  # two seconds: other workers may still write files
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(Path(folder).exists() for folder in folders):
            break
        sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
