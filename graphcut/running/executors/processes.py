"""Workers that are processes of this machine: they may die at any moment, and are replaced.

A worker is a fresh Python that loads graphcut alone, so that the user's program needs no guard and may come from
anywhere. Tensors lie in shared memory, see `slots`; orders and reports go through a pipe for each worker.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Final, assert_never, cast

from ...core.errors import RunError
from ...core.manifest import Cascade
from ..stage import SessionConfig
from ..values import Value
from .process_worker import Broken, Command, Hold, Loaded, Made, Message, Missing, Opening, RunStep, digest_of_manifest
from .protocol import Died, Done, Event, Failed, Handle, Lost, Ready, Step
from .shared_memory import SharedMemory, TensorRef
from .shm_folders import ShmFolders
from .worker import StatesByPart

_SERVE: Final = "from graphcut.running.executors.process_worker import serve; serve()"
_STUCK_S: Final = 5
"""A worker that takes no more of a message, or sends half of one, for so long is taken for hung."""


@dataclass(slots=True)
class _Life:
    """A process that is, or was, a worker.

    Attributes:
        process: the process.
        connection: the hub's end of the pipe.
        owner: begins the names of its regions.
        step: what it runs.
        freed: its regions that it can use again, to be told with its next step.
        gone: regions of others that are no more, likewise.
        forgotten: sequences that are at their end, likewise.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    owner: str
    step: Step | None = None
    freed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)


class ProcessExecutor:
    """See `Executor`. Only `wake` may be called from another thread.

    Attributes:
        can_die: True.
    """

    can_die = True

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart) -> None:
        """Nothing runs yet; see `start`."""
        self._cascade = cascade
        self._policy = config
        self._states = states
        self._digest = digest_of_manifest(cascade.manifest)
        self._folders: ShmFolders | None = None
        self._shared = SharedMemory([], "hub")
        self._lives: dict[int, _Life] = {}
        self._begun = 0
        self._held: Counter[str] = Counter()
        self._events: deque[Event] = deque()
        self._ready: deque[int] = deque()
        self._selector = selectors.DefaultSelector()
        self._waker, self._alarm = socket.socketpair()
        self._waker.setblocking(False)  # it need not ring twice
        self._waking = Lock()
        self._selector.register(self._alarm, selectors.EVENT_READ)

    # Workers

    def start(self, worker: int, parts: Sequence[int]) -> None:
        if self._folders is None:
            self._folders = ShmFolders()
            self._shared = SharedMemory(self._folders.paths, "hub")
        self._begun += 1
        owner = f"{worker}.{self._begun}"
        try:
            life = self._lives[worker] = _begin(owner, self._folders.paths)
        except OSError as error:
            self._events.append(Died(worker, f"it can't be started: {error.strerror}"))
            return
        self._selector.register(life.connection, selectors.EVENT_READ, worker)
        manifest = os.fspath(self._cascade.path.absolute())
        self._send(life, Opening(manifest, self._digest, self._policy, self._states, owner))
        self._send(life, Hold(tuple(parts)))

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        self._send(self._lives[worker], Hold(tuple(parts)))

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        life = self._lives[worker]
        slots = cast("Mapping[str, TensorRef]", held)
        life.step = step
        self._send(life, RunStep(step, slots, life.freed, life.gone, life.forgotten))
        life.freed, life.gone, life.forgotten = [], [], []

    def forget(self, sequence: int) -> None:
        """Each worker is told with its next step."""
        for life in self._lives.values():
            life.forgotten.append(sequence)

    def kill(self, worker: int) -> None:
        if worker in self._lives:
            self._lives[worker].process.kill()

    def close(self) -> None:
        with self._waking:
            self._waker.close()
        for life in self._lives.values():
            life.process.kill()
        for life in self._lives.values():
            life.process.wait()
            life.connection.close()
        self._lives.clear()
        self._selector.close()
        self._alarm.close()
        if self._folders is not None:
            self._folders.close()

    # Values

    def put(self, value: Value, tensor: str) -> Handle:
        slots = self._shared.write({tensor: value})
        self._hold(slots)
        return slots[tensor]

    def get(self, handle: Handle, tensor: str) -> Value:  # noqa: ARG002 - see Executor
        return self._shared.copy(cast("TensorRef", handle))

    def release(self, handle: Handle) -> None:
        region = cast("TensorRef", handle).region
        if region is None:
            return
        self._held[region] -= 1
        if not self._held[region]:
            del self._held[region]
            self._free(region)

    def _hold(self, slots: Mapping[str, TensorRef]) -> None:
        self._held.update(slot.region for slot in slots.values() if slot.region is not None)

    def _free(self, region: str) -> None:
        """Nobody reads a region any more: it goes back to whoever made it, or with whoever made it."""
        owner = Path(region).name.rpartition("-")[0]
        if owner == "hub":
            self._shared.free([region])
            return
        maker = next((life for life in self._lives.values() if life.owner == owner), None)
        if maker is not None:
            maker.freed.append(region)
        else:
            self._remove(region)

    def _remove(self, region: str) -> None:
        with suppress(OSError):
            os.unlink(region)  # noqa: PTH108 - text, as in messages
        self._shared.forget([region])
        for life in self._lives.values():
            life.gone.append(region)

    # Events

    def now(self) -> float:
        """The clock of this machine."""
        return perf_counter()

    def next_event(self, timeout_s: float | None) -> Event | None:
        if self._events:
            return self._events.popleft()
        if not self._ready:
            found = [key.data for key, _ in self._selector.select(timeout_s)]
            if None in found:
                self._alarm.recv(4096)
                return None
            self._ready.extend(found)
        return self._hear(self._ready.popleft()) if self._ready else None

    def wake(self) -> None:
        with self._waking, suppress(OSError):  # it is over already
            self._waker.send(b"!")

    def _hear(self, worker: int) -> Event:
        life = self._lives[worker]
        try:
            report: Message = life.connection.recv()
        except (EOFError, OSError):
            return self._died(worker)
        if isinstance(report, Loaded):
            return Ready(worker, frozenset(report.parts))
        step, is_step = life.step, not (isinstance(report, Broken) and not report.is_step)
        if is_step:
            life.step = None
        match report:
            case Made():
                self._hold(report.made)
                return Done(worker, cast("Step", step), report.made, report.seconds, report.memory_bytes)
            case Broken():
                return Failed(worker, step if report.is_step else None, report.error)
            case Missing():
                return Lost(worker, cast("Step", step))
            case _:
                assert_never(report)

    def _died(self, worker: int) -> Event:
        life = self._lives.pop(worker)
        self._selector.unregister(life.connection)
        life.connection.close()
        life.process.kill()
        status = life.process.wait()
        folders = self._folders.paths if self._folders is not None else []
        for folder in folders:
            for path in Path(folder).glob(f"{life.owner}-*"):
                if os.fspath(path) not in self._held:
                    self._remove(os.fspath(path))
        return Died(worker, _why(status, _last_words(folders, life.owner)))

    def _send(self, life: _Life, order: Opening | Command) -> None:
        try:
            life.connection.send(order)
        except OSError:  # it is gone, or takes nothing: its end is read from the pipe
            life.process.kill()


def _begin(owner: str, folders: Sequence[str]) -> _Life:
    """A process of its own session: what the terminal says (Ctrl-C) goes to the hub alone."""
    _check_interpreter()
    ours, theirs = socket.socketpair()
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _STUCK_S, 0))
    with ours, theirs, _words_of(folders, owner).open("wb") as words:
        process = subprocess.Popen(  # noqa: S603 - this Python, with words of ours
            [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), *folders],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        return _Life(process, Connection(ours.detach()), owner)


def _check_interpreter() -> None:
    """A program that was frozen into one file is its own interpreter: begun again, it would begin itself.

    Raises:
        RunError: there is no Python to start.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise RunError("there is no Python here that workers could be started with", hint="run it via threads")


def _words_of(folders: Sequence[str], owner: str) -> Path:
    return Path(folders[-1], f"{owner}.stderr")


def _last_words(folders: Sequence[str], owner: str) -> str:
    try:
        lines = _words_of(folders, owner).read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _why(status: int, words: str) -> str:
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}{f': {words}' if words else ''}"
