"""Workers that are actors of a Ray cluster: other machines, each with its own memory and its own ways to be lost.

Actors are plain ones, and Ray repeats nothing by itself: what is done again, and where, is the scheduler's business,
which knows what parts keep from step to step. Outputs lie in Ray's object stores, each by itself, and go from the
machine that made them to the one that reads them; only what a step took, and small tensors, come by this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Final, cast
from uuid import uuid4

import ray  # noqa: TID251 - this is the place
from ray import exceptions  # noqa: TID251 - this is the place

from ...core.errors import GraphcutError, RunError
from ...core.manifest import Cascade, Manifest
from ...core.version import __version__
from ..stage import SessionConfig, ort_message
from ..values import Value, to_array
from .file_transfer import FileStamp, pieces, sealed, stamps_of
from .protocol import Died, Done, Event, Failed, Handle, Lost, Ready, Step
from .ray_actor import RemoteWorker, StepResult, is_small, unpacked
from .ray_cluster import RayCluster, WorkerPlacement, alive, hear, remove_there
from .worker import StatesByPart

_LOOK_S: Final = 0.5
"""How often the cluster is asked which of its machines are alive."""

ABSENT_S: float = 10.0
"""A device that no machine of the cluster has had for so long is gone for good."""

ROOM_S: float = 60.0
"""So long may machines that are there be without room for a worker, before it is given up."""

_FAREWELL_S: Final = 10
"""How long is waited for what is to be ended or removed."""

_KIND: Final[Any] = {"concurrency_groups": {"life": 1, "loading": 1}, "allow_out_of_order_execution": True}
"""An actor waits for its end, loads parts, and works on a step, each in a thread of its own. A step that was given up
since what it reads is lost does not hold up the next."""

_PIECES: Final = 2
"""How many pieces of a file are on their way at once."""


class WorkerActor(RemoteWorker):
    """A seat that knows which machine of the cluster it is on."""

    def __init__(self, path: str, manifest: Manifest, states: StatesByPart, config: SessionConfig, run: str) -> None:
        """See `RemoteWorker`: on one machine, all actors of a run share a folder."""
        self._node = str(ray.get_runtime_context().get_node_id())
        super().__init__(path, manifest, states, config, f"{run}-{self._node[:12]}")

    def node(self) -> str:
        """Ray's name of the machine."""
        return self._node


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor: a reference into an object store, or the array itself; and the machine that made it, if one did."""

    packed: Any
    node: str = ""


@dataclass(slots=True, eq=False)
class _ActorHandle:
    """One actor, from its start to its death. A worker that is started again gets another.

    Attributes:
        worker: the number of the worker.
        placing: where it belongs.
        actor: Ray's handle.
        life: an answer that never comes: waiting for it tells when the actor ends.
        node: where it sits; empty until that is known.
        report: the answer to the step that it runs.
        step: that step.
        sources: the machines whose tensors the step reads.
        why: why it was ended by us.
        is_dead: the scheduler was told so.
    """

    worker: int
    placing: WorkerPlacement
    actor: Any
    life: Any
    node: str = ""
    report: Any = None
    step: Step | None = None
    sources: frozenset[str] = frozenset()
    why: str = ""
    is_dead: bool = False

    def loading(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the method gives
        """Call a method beside the actor's work, and wait for it."""
        return ray.get(getattr(self.actor, method).options(concurrency_group="loading").remote(*arguments))


class RayExecutor:
    """See `Executor`. All that happens is told to one queue, and looked at in the thread that calls `next_event`.

    Attributes:
        can_die: True.
    """

    can_die = True

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart, names: Sequence[str]) -> None:
        """Nothing is connected before the first worker is started.

        Args:
            cascade: whose parts are to run.
            config: how sessions are built; where it names no number of threads, the cores of a machine are shared out
                among the workers that will sit on it.
            states: what parts keep from step to step of a sequence.
            names: what each worker is called: the device that it is, or any other word.
        """
        self._cascade = cascade
        self._path = cascade.path.resolve()
        self._states = states
        self._actor: Any = ray.remote(**_KIND)(WorkerActor)
        self._names = tuple(names)
        self._run = uuid4().hex[:12]
        self._told: SimpleQueue[Callable[[], Event | None] | None] = SimpleQueue()
        self._seats: dict[int, _ActorHandle] = {}
        self._threads: list[Thread] = []
        self._gone: set[str] = set()
        self._small: frozenset[str] = frozenset()
        self._sending: dict[str, Lock] = {}
        self._folders: dict[str, str] = {}
        self._is_closing = Flag()
        self._policy = config
        self._cluster: RayCluster | None = None
        self._placing: WorkerPlacement | None = None

    # What the scheduler asks

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """See `Executor`; the first call connects to a cluster, or starts one here.

        Raises:
            RunError: there is no such cluster, or it lacks a device.
        """
        placing = self._connected()
        actor = self._actor.options(**placing.wishes(worker)).remote(
            os.fspath(self._path), self._cascade.manifest, self._states, placing.config(worker), self._run
        )
        life = actor.live.options(concurrency_group="life").remote()
        seat = self._seats[worker] = _ActorHandle(worker, placing, actor, life)
        life.future().add_done_callback(lambda future: self._told.put(lambda: self._ended(seat, future.exception())))
        self._begin(lambda: self._load(seat, parts))

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        seat = self._seats[worker]
        self._begin(lambda: self._load(seat, parts))

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        seat = self._seats[worker]
        read = {name: cast("_Made", handle) for name, handle in held.items()}
        carried = {name: made.packed for name, made in read.items() if not isinstance(made.packed, ray.ObjectRef)}
        lying = {name: made.packed for name, made in read.items() if name not in carried}
        small = [name for name in step.writes if name in self._small]
        call = seat.actor.run.options(num_returns=1 + len(step.writes) - len(small))
        answer = call.remote(step, small, carried, *lying, *lying.values())
        report, *refs = answer if isinstance(answer, list) else [answer]
        seat.report, seat.step, seat.sources = report, step, frozenset(made.node for made in read.values())
        report.future().add_done_callback(
            lambda future: self._told.put(lambda: self._finished(seat, report, refs, future))
        )

    def forget(self, sequence: int) -> None:
        for seat in self._seats.values():
            seat.actor.forget.remote(sequence)

    def kill(self, worker: int) -> None:
        seat = self._seats[worker]
        seat.why = "it was ended"
        ray.kill(seat.actor)

    def put(self, value: Value, tensor: str) -> Handle:
        packed = to_array(value, self._cascade.tensors[tensor])
        return _Made(packed if is_small(packed) else ray.put(packed))

    def get(self, handle: Handle, tensor: str) -> Value:
        packed = cast("_Made", handle).packed
        try:
            found = ray.get(packed) if isinstance(packed, ray.ObjectRef) else packed
        except exceptions.ObjectLostError as error:
            raise LookupError(f"{tensor} is lost with the machine that made it") from error
        return unpacked(found, self._cascade.tensors[tensor])

    def release(self, handle: Handle) -> None:
        """Ray drops what nobody refers to."""

    def now(self) -> float:
        """The clock of this machine."""
        return perf_counter()

    def next_event(self, timeout_s: float | None) -> Event | None:
        due = None if timeout_s is None else perf_counter() + timeout_s
        while True:
            try:
                told = self._told.get(timeout=None if due is None else max(0.0, due - perf_counter()))
            except Empty:
                return None
            event = None if told is None else told()
            if told is None or event is not None:
                return event

    def wake(self) -> None:
        self._told.put(None)

    def close(self) -> None:
        if self._cluster is None:
            return
        self._is_closing.set()
        for seat in self._seats.values():
            ray.kill(seat.actor)
        lives = [seat.life for seat in self._seats.values()]
        if lives:
            ray.wait(lives, num_returns=len(lives), timeout=_FAREWELL_S)
        for thread in self._threads:
            thread.join()
        there = {node: folder for node, folder in self._folders.items() if node not in self._gone}
        remove_there(there, _FAREWELL_S)
        self._seats.clear()
        self._cluster.leave()

    def _connected(self) -> WorkerPlacement:
        if self._placing is None:
            self._cluster = RayCluster(len(self._names))
            self._placing = WorkerPlacement(self._cascade.manifest, self._names, self._policy)
            self._begin(self._watch)
        return self._placing

    # What happens to workers

    def _finished(self, seat: _ActorHandle, report: Any, refs: Sequence[Any], future: Any) -> Event | None:  # noqa: ANN401 - Ray's
        if seat.is_dead or seat.report is not report or seat.step is None:
            hear([report, *refs])
            return None  # nobody waits for it any more
        step, error = seat.step, future.exception()
        if isinstance(error, exceptions.RayActorError):
            return self._ended(seat, error)
        seat.report = seat.step = None
        if error is not None:
            hear(refs)
            is_lost = isinstance(error, exceptions.ObjectLostError)
            return Lost(seat.worker, step) if is_lost else Failed(seat.worker, step, _ours(error))
        found: StepResult | Exception = future.result()
        if isinstance(found, Exception):
            return Failed(seat.worker, step, _ours(found))
        self._small = self._small.difference(step.writes).union(found.small)
        large = (name for name in step.writes if name not in found.carried)
        made = {name: _Made(packed) for name, packed in found.carried.items()}
        made.update({name: _Made(ref, seat.node) for name, ref in zip(large, refs, strict=True)})
        wanted = {name: made[name] for name in step.writes}
        return Done(seat.worker, step, wanted, found.seconds, found.memory_bytes)

    def _ended(self, seat: _ActorHandle, error: BaseException) -> Event | None:
        text = " ".join(str(error).split())
        if seat.node or "creation task" not in text:
            return self._died(seat, "its machine is gone" if "node has died" in text else "its process ended")
        seat.is_dead = True
        words = f"{self._names[seat.worker]} can't start on its machine: {str(error).strip().splitlines()[-1].strip()}"
        hint = "install graphcut[ray] there, in the same versions as here"
        return Failed(seat.worker, None, RunError(words, hint=hint))

    def _died(self, seat: _ActorHandle, why: str, *, is_permanent: bool = False) -> Event | None:
        if seat.is_dead or self._is_closing.is_set():
            return None
        seat.is_dead = True
        seat.report = seat.step = None
        ray.kill(seat.actor)  # it may only be out of reach, and must not come back
        return Died(seat.worker, seat.why or why, is_permanent)

    def _lost(self, node: str) -> Event | None:
        """A machine is gone. Who waits for tensors from there would wait for ten seconds more."""
        self._gone.add(node)
        for seat in self._seats.values():
            if seat.step is not None and node in seat.sources:
                self._told.put(partial(self._deprived, seat, seat.report))
        return None

    def _deprived(self, seat: _ActorHandle, report: Any) -> Event | None:  # noqa: ANN401 - a reference of Ray's
        if seat.is_dead or seat.report is not report or seat.step is None:
            return None
        step = seat.step
        seat.report = seat.step = None
        ray.cancel(report)
        return Lost(seat.worker, step)

    # In threads of their own

    def _begin(self, what: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=what, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        before: set[str] = set()
        while not self._is_closing.wait(_LOOK_S):
            now = {machine["NodeID"] for machine in alive()}
            for node in sorted(before - now):
                self._told.put(partial(self._lost, node))
            before = now

    def _load(self, seat: _ActorHandle, parts: Sequence[int]) -> None:
        event: Event
        try:
            if not seat.node:
                seat.node = self._seated_on(seat)
            self._bring(seat, parts)
            seat.loading("hold", parts)
        except exceptions.RayActorError:
            return  # `life` tells
        except _NoPlaceError as error:
            why = str(error)
            self._told.put(lambda: self._died(seat, why, is_permanent=True))
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler is told
            event = Failed(seat.worker, None, _ours(error))
        else:
            event = Ready(seat.worker, frozenset(parts))
        self._told.put(lambda: None if seat.is_dead else event)

    def _seated_on(self, seat: _ActorHandle) -> str:
        """Wait until a machine has taken the actor in.

        Raises:
            _NoPlaceError: none will.
        """
        answer = seat.actor.version.remote()
        began = present = perf_counter()
        while not ray.wait([answer], timeout=_LOOK_S)[0]:
            now, missing = perf_counter(), seat.placing.missing(seat.worker)
            present = present if missing else now
            if now - present > ABSENT_S:
                raise _NoPlaceError(f"no machine of the cluster is {missing} any more")
            if now - began > ROOM_S:
                raise _NoPlaceError(f"no machine of the cluster had room for it in {ROOM_S:.0f} s")
        if (version := ray.get(answer)) != __version__:
            text = f"{self._names[seat.worker]} has graphcut {version}, and this is {__version__}"
            raise RunError(text, hint="install the same version on all machines of the cluster")
        return str(ray.get(seat.actor.node.remote()))

    def _bring(self, seat: _ActorHandle, parts: Sequence[int]) -> None:
        """See that the machine has the files of `parts`: the same at the same path, or sent."""
        cascade, call = self._cascade, seat.loading
        with self._sending.setdefault(seat.node, Lock()):
            for place in parts:
                stamps = stamps_of(cascade, cascade.parts[place])
                if call("lacking", place, stamps):
                    seals = sealed(cascade, cascade.parts[place], stamps)
                    for name in call("lacking", place, seals):
                        self._send(seat, name, seals[name])
                    call("lacking", place, seals)

    def _send(self, seat: _ActorHandle, name: str, stamp: FileStamp) -> None:
        self._folders[seat.node] = seat.loading("folder")
        on_the_way: list[Any] = []
        for place, piece in pieces(self._cascade.root / name):
            on_the_way.append(seat.actor.take.options(concurrency_group="loading").remote(name, place, piece))
            if len(on_the_way) == _PIECES:
                ray.get(on_the_way.pop(0))
        ray.get(on_the_way)
        seat.loading("finish", name, stamp)


class _NoPlaceError(Exception):
    """No machine takes an actor in."""


def _ours(error: BaseException) -> Exception:
    """What went wrong in an actor, as it was raised there."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    if isinstance(cause, GraphcutError):
        return cause
    return RunError(f"a worker of the Ray cluster failed: {ort_message(Exception(str(cause)))}")
