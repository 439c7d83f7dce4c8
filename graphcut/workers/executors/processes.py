"""Workers that are processes of this machine. One that dies can be restarted.

A worker is a fresh Python process that imports graphcut only. So the user's program needs no `__main__` guard and may
come from anywhere. Tensors are in shared memory, see `shared_memory`; each worker has a pipe for commands and events.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import RLock
from typing import Final

import msgspec

from ...core.errors import RunError
from ...core.manifest import Cascade
from ...running.stage import SessionConfig
from ...running.values import Value
from ...transferring.locked_folders import ShmFolders
from .process_worker import Command, Hold, RunStep, Setup, manifest_digest
from .protocol import Died, Done, Event, Executor, Made, Step
from .shared_memory import SharedMemory, TensorRef
from .worker import StatesByPart

_SERVE: Final = "from graphcut.workers.executors.process_worker import serve; serve()"


class _WorkerProcess(msgspec.Struct):
    """A process that is a worker, and the hub's end of its pipe."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    owner: str  #: the prefix of the names of its shared-memory regions.
    #: sent with its next step, as are `removed` and `forgotten`, see `RunStep`.
    freed: list[str] = []
    removed: list[str] = []
    forgotten: list[int] = []


class ProcessExecutor(Executor):
    """Workers that are processes. This process is their hub. Only `wake` may be called from another thread."""

    reports_early = queues = True

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart) -> None:
        self._cascade, self._states = cascade, states
        self.config = config  #: how the workers that start next build sessions.
        self._digest = manifest_digest(cascade.manifest)
        self._folders: ShmFolders | None = None
        self._shared = SharedMemory([], "hub")
        self._workers: dict[int, _WorkerProcess] = {}
        self._start_count = 0
        self._handle_count: Counter[str] = Counter()  # by region
        self._events: deque[Event] = deque()
        self._readable: deque[int] = deque()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)  # when it is full, a wake is pending anyway
        self._wake_lock = RLock()  # the garbage collector may end a pipeline while it is held

    # Workers

    def start(self, worker: int, parts: Sequence[int]) -> None:
        if self._folders is None:
            self._folders = ShmFolders()
            self._shared = SharedMemory(self._folders.paths, "hub")
        self._start_count += 1
        owner = f"{worker}.{self._start_count}"
        try:
            process = self._workers[worker] = _spawn(owner, self._folders.paths)
        except OSError as error:
            self._events.append(Died(worker, f"it can't be started: {error.strerror}"))
            return
        manifest = os.fspath(self._cascade.path.absolute())
        self._send(process, Setup(worker, manifest, self._digest, self.config, self._states, owner))
        self._send(process, Hold(tuple(parts)))

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        self._send(self._workers[worker], Hold(tuple(parts)))

    def run(self, worker: int, step: Step, inputs: Mapping[str, TensorRef]) -> None:
        process = self._workers[worker]
        self._send(process, RunStep(step, inputs, process.freed, process.removed, process.forgotten))
        process.freed, process.removed, process.forgotten = [], [], []

    def forget(self, sequence: int) -> None:
        for process in self._workers.values():
            process.forgotten.append(sequence)

    def kill(self, worker: int) -> None:
        if worker in self._workers:
            self._workers[worker].popen.kill()

    def close(self) -> None:
        with self._wake_lock:
            self._wake_sender.close()
        for process in self._workers.values():
            process.popen.kill()
        for process in self._workers.values():
            process.popen.wait()
            process.connection.close()
        self._workers.clear()
        self._wake_receiver.close()
        if self._folders is not None:
            self._folders.close()

    # Tensors

    def put(self, value: Value, tensor: str) -> TensorRef:
        refs = self._shared.write({tensor: value})
        self._count_handles(refs)
        return refs[tensor]

    def get(self, handle: TensorRef, tensor: str) -> Value:  # noqa: ARG002 - the interface has it
        return self._shared.copy(handle)

    def release(self, handle: TensorRef) -> None:
        if (region := handle.region) is None:
            return
        self._handle_count[region] -= 1
        if not self._handle_count[region]:
            del self._handle_count[region]
            self._free(region)

    def _count_handles(self, refs: Mapping[str, TensorRef]) -> None:
        self._handle_count.update(ref.region for ref in refs.values() if ref.region is not None)

    def _free(self, region: str) -> None:
        """Return a region to the process that made it, or remove it if that process is dead."""
        owner = Path(region).name.rpartition("-")[0]
        if owner == "hub":
            self._shared.free([region])
            return
        process = next((process for process in self._workers.values() if process.owner == owner), None)
        if process is not None:
            process.freed.append(region)
        else:
            self._remove(region)

    def _remove(self, region: str) -> None:
        with suppress(OSError):
            Path(region).unlink()
        self._shared.forget([region])
        for process in self._workers.values():
            process.removed.append(region)

    # Events

    def next_event(self, timeout_s: float | None) -> Event | None:
        if self._events:
            return self._events.popleft()
        if not self._readable:
            connections = {process.connection: worker for worker, process in self._workers.items()}
            found = wait([self._wake_receiver, *connections], timeout_s)
            if self._wake_receiver in found:
                self._wake_receiver.recv(4096)
            self._readable.extend(worker for connection, worker in connections.items() if connection in found)
        return self._receive(self._readable.popleft()) if self._readable else None

    def wake(self) -> None:
        with self._wake_lock, suppress(OSError):  # it is closed
            self._wake_sender.send(b"!")

    def _receive(self, worker: int) -> Event:
        try:
            event: Event = self._workers[worker].connection.recv()
        except (EOFError, OSError):
            return self._ended(worker)
        if isinstance(event, Made | Done):
            self._count_handles(event.outputs)
        return event

    def _ended(self, worker: int) -> Event:
        process = self._workers.pop(worker)
        process.connection.close()
        process.popen.kill()
        status = process.popen.wait()
        folders = self._folders.paths if self._folders is not None else []
        for folder in folders:
            for path in Path(folder).glob(f"{process.owner}-*"):
                if os.fspath(path) not in self._handle_count:
                    self._remove(os.fspath(path))
        return Died(worker, _reason(status, _error_file(folders, process.owner)))

    def _send(self, process: _WorkerProcess, message: Setup | Command) -> None:
        try:
            process.connection.send(message)
        except OSError:  # it is dead or hung: `_receive` meets the end of the pipe
            process.popen.kill()


def _spawn(owner: str, folders: Sequence[str]) -> _WorkerProcess:
    """Start a process in a session of its own, so that Ctrl-C in the terminal reaches the hub only."""
    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself
        raise RunError("there is no Python interpreter here to start workers with", hint="run it with `via='threads'`")
    ours, theirs = socket.socketpair()
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        # A worker that blocks in the middle of a message for 5 s is hung, and is killed.
        ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 5, 0))
    with ours, theirs, _error_file(folders, owner).open("wb") as errors:
        popen = subprocess.Popen(  # noqa: S603 - this Python, with arguments made here
            [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), *folders],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        return _WorkerProcess(popen, Connection(ours.detach()), owner)


def _error_file(folders: Sequence[str], owner: str) -> Path:
    return Path(folders[-1], f"{owner}.stderr")


def _reason(status: int, errors: Path) -> str:
    """Why a process ended: its signal, or its exit status and the last line that it wrote to stderr."""
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    lines = []
    with suppress(OSError):
        lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return f"it ended with status {status}{f': {lines[-1]}' if lines else ''}"
