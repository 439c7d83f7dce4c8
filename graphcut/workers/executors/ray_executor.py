"""Workers that are actors of a Ray cluster: on other machines, each with its own memory, and each may be lost.

Ray restarts and repeats nothing: the scheduler does, since it knows which states the parts keep. Outputs are in Ray's
object stores and go straight from the machine that made them to those that read them. Only run times and small tensors
pass through this process.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Final

import msgspec
import ray  # noqa: TID251 - a module of the Ray executor
from ray import exceptions  # noqa: TID251 - a module of the Ray executor

from ...core.errors import GraphcutError, RunError
from ...core.manifest import Cascade, Part
from ...core.units import size
from ...core.version import __version__
from ...running.providers import ort_message
from ...running.sampling import TOKENS
from ...running.stage import SessionConfig
from ...running.values import Value, from_array, to_array
from ...transferring.file_transfer import files_of, read_pieces, times_of
from .protocol import Died, Done, Event, Executor, Failed, Lost, Note, Ready, Step
from .ray_actor import InlineArray, RemoteWorker, StepCall, StepResult, is_small
from .ray_cluster import RayCluster, WorkerPlacement, consume_errors
from .ray_watching import MachineWatch
from .worker import StatesByPart

ABSENT_S: float = 10.0  #: a device that no machine of the cluster has had for this long is lost permanently.
ROOM_S: float = 60.0  #: a worker that no machine had room for in this time is given up.
_POLL_S: Final = 0.5  #: the interval at which it is looked whether a worker has found a machine.
_GONE: Final = "its machine is gone"
#: an actor waits in `live`, loads parts and runs steps, each in a thread of its own. Steps may run out of order: one
#: that waits for a lost input does not delay the next.
_ACTOR_OPTIONS: Final[Any] = {
    "concurrency_groups": {"life": 1, "loading": 1},
    "allow_out_of_order_execution": True,
    "enable_task_events": False,  # Ray's log of all calls, which each machine sends to the head
}


class _RayTensor(msgspec.Struct, frozen=True):
    """A stored tensor, and the machine that made it (or "")."""

    data: Any  #: an `InlineArray`, or a reference to what is in an object store.
    size_bytes: int
    node: str = ""


class _Actor(msgspec.Struct, eq=False):
    """A Ray actor, from its start to its death. A worker that is restarted gets another one."""

    worker: int
    remote: Any  #: Ray's handle of the actor.
    life: Any  #: the result of `live`, which comes when the actor ends.
    #: the parts to hold; None ends it.
    loads: SimpleQueue[Sequence[int] | None] = msgspec.field(default_factory=SimpleQueue)
    node: str = ""  #: Ray's id of its machine; empty until that is known.
    #: by Ray's reference of its result, a step that it was given, and the machines that made what the step reads.
    calls: dict[Any, tuple[Step, frozenset[str]]] = {}
    reason: str = ""  #: why this process ended it.
    is_dead: bool = False  #: its death was reported to the scheduler.

    def call_loading(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - what the method returns
        """Call a method in the thread for loading, and wait for it."""
        return ray.get(getattr(self.remote, method).options(concurrency_group="loading").remote(*arguments))


class RayExecutor(Executor):
    """Workers that are Ray actors. `names` are the names of the workers, usually those of their devices.

    It connects to a cluster when the first worker starts. All callbacks are queued, and run in the thread that calls
    `next_event`.
    """

    has_links = queues = True

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart, names: Sequence[str]) -> None:
        self._cascade, self._config, self._states = cascade, config, states
        self._tensors = {**cascade.tensors, TOKENS.name: TOKENS}
        self._path = cascade.path.resolve()
        self._names = tuple(names)
        self._actor_class: Any = ray.remote(**_ACTOR_OPTIONS)(RemoteWorker)
        self._callbacks: SimpleQueue[Callable[[], Event | None] | None] = SimpleQueue()
        self._actors: dict[int, _Actor] = {}
        self._threads: list[Thread] = []
        lose = lambda node, reason: self._callbacks.put(partial(self._lose_machine, node, reason))  # noqa: E731
        self._watch = MachineWatch(self._note, lose)
        self._inline: frozenset[str] = frozenset()
        self._send_locks: dict[str, Lock] = {}
        self._coming = set[Any]()  # the references to tensors that are on their way to this machine
        self._is_closing = Flag()
        self._cluster: RayCluster | None = None

    def start(self, worker: int, parts: Sequence[int]) -> None:
        options, config = self._placement.actor_options(worker, self._watch.lost), self._placement.config(worker)
        path, manifest = os.fspath(self._path), self._cascade.manifest
        remote = self._actor_class.options(**options).remote(path, manifest, self._states, config)
        life = remote.live.options(concurrency_group="life").remote()
        actor = self._actors[worker] = _Actor(worker, remote, life)
        self._when_done(life, lambda future: self._ended(actor, future.exception()))
        self._start_thread(partial(self._load_in_turn, actor))
        self.hold(worker, parts)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        self._actors[worker].loads.put(parts)

    def run(self, worker: int, step: Step, inputs: Mapping[str, _RayTensor]) -> None:
        actor, nodes = self._actors[worker], frozenset(tensor.node for tensor in inputs.values())
        if not self._watch.lost.isdisjoint(nodes):
            self._callbacks.put(lambda: None if actor.is_dead else Lost(worker, step))
            return
        inline = {name: tensor.data for name, tensor in inputs.items() if isinstance(tensor.data, InlineArray)}
        refs = {name: tensor.data for name, tensor in inputs.items() if name not in inline}
        requested = tuple(name for name in step.writes if name in self._inline)
        call = msgspec.msgpack.encode(StepCall(step, requested, inline, tuple(refs)))
        # One argument, since each takes a hundred bytes of its own; but Ray fetches none inside of another.
        run = actor.remote.run.options(num_returns=1 + len(step.writes) - len(requested))
        answer = run.remote(call, *refs.values())
        result, *outputs = answer if isinstance(answer, list) else [answer]
        actor.calls[result] = step, nodes
        self._when_done(result, lambda future: self._finished(actor, result, outputs, future))

    def _when_done(self, reference: Any, callback: Callable[[Any], Event | None]) -> None:  # noqa: ANN401 - one of Ray's
        reference.future().add_done_callback(lambda future: self._callbacks.put(lambda: callback(future)))

    def forget(self, sequence: int) -> None:
        for actor in self._actors.values():
            actor.remote.forget.remote(sequence)

    def kill(self, worker: int) -> None:
        actor = self._actors[worker]
        actor.reason = "it was ended"
        ray.kill(actor.remote)

    def is_excused(self, worker: int) -> bool:
        actor = self._actors[worker]
        return self._watch.are_excused({actor.node}.union(*(sources for _, sources in actor.calls.values())))

    def bytes_of(self, handle: _RayTensor) -> int:
        return handle.size_bytes

    def put(self, value: Value, tensor: str) -> _RayTensor:
        array = to_array(value, self._tensors[tensor], copy=False)
        data = InlineArray.of(array) if is_small(array) else ray.put(array)
        return _RayTensor(data, getattr(array, "nbytes", 0))

    def fetch(self, handles: Iterable[_RayTensor]) -> bool:
        here = [tensor.data for tensor in handles if tensor.node not in self._watch.lost]  # `get` tells
        if not (references := [data for data in here if not isinstance(data, InlineArray)]):
            return True
        _, missing = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in set(missing) - self._coming:
            self._coming.add(reference)
            reference.future().add_done_callback(partial(self._come, reference))
        return not missing

    def _come(self, reference: Any, _: object) -> None:  # noqa: ANN401 - a reference of Ray's
        self._coming.discard(reference)
        self._callbacks.put(None)

    def get(self, handle: _RayTensor, tensor: str) -> Value:
        data, message = handle.data, f"{tensor} is lost with the machine that made it"
        if handle.node in self._watch.lost:
            raise LookupError(message)
        try:
            array = data.array() if isinstance(data, InlineArray) else ray.get(data)
        except exceptions.ObjectLostError as error:
            raise LookupError(message) from error
        return from_array(array, self._tensors[tensor])

    def next_event(self, timeout_s: float | None) -> Event | None:
        end = None if timeout_s is None else perf_counter() + timeout_s
        while True:
            try:
                callback = self._callbacks.get(timeout=None if end is None else max(0.0, end - perf_counter()))
            except Empty:
                return None
            if callback is None:
                end = perf_counter()  # woken: only what is there already
            elif (event := callback()) is not None:
                return event

    def wake(self) -> None:
        self._callbacks.put(None)

    def close(self) -> None:
        if self._cluster is None:
            return
        self._is_closing.set()
        for actor in self._actors.values():
            actor.loads.put(None)
            ray.kill(actor.remote)
        if lives := [actor.life for actor in self._actors.values() if not actor.is_dead]:
            ray.wait(lives, num_returns=len(lives), timeout=10)
        for thread in self._threads:
            thread.join()
        self._actors.clear()
        self._cluster.leave()

    @cached_property
    def _placement(self) -> WorkerPlacement:
        """Where workers are. Connects to the cluster at the first use."""
        self._cluster = RayCluster(len(self._names), insecure=self._config.insecure)
        placement = WorkerPlacement(self._cascade.manifest, self._names, self._config)
        self._start_thread(partial(self._watch.watch, self._is_closing))
        return placement

    # Callbacks

    def _finished(self, actor: _Actor, result: Any, refs: Sequence[Any], future: Any) -> Event | None:  # noqa: ANN401 - Ray's
        if actor.is_dead or result not in actor.calls:
            consume_errors([result, *refs])
            return None  # the scheduler does not wait for it any more
        error = future.exception()
        if isinstance(error, exceptions.RayActorError):
            return self._ended(actor, error)
        step, _ = actor.calls.pop(result)
        if error is not None:
            consume_errors(refs)
            is_lost = isinstance(error, exceptions.ObjectLostError)
            return Lost(actor.worker, step) if is_lost else Failed(actor.worker, step, _original(error))
        raw: bytes | Exception = future.result()
        if isinstance(raw, Exception):
            return Failed(actor.worker, step, _original(raw))
        found = msgspec.msgpack.decode(raw, type=StepResult)
        self._inline = self._inline.difference(step.writes).union(found.small)
        outputs = {name: _RayTensor(one, found.sizes[name]) for name, one in found.inline.items()}
        large = [name for name in step.writes if name not in outputs]
        outputs |= {n: _RayTensor(ref, found.sizes[n], actor.node) for n, ref in zip(large, refs, strict=True)}
        return Done(actor.worker, step, outputs, found.seconds, found.memory_bytes, copied_bytes=found.copied_bytes)

    def _ended(self, actor: _Actor, error: BaseException) -> Event | None:
        text = " ".join(str(error).split())
        if actor.node or "creation task" not in text:
            return self._died(actor, _GONE if "node has died" in text else "its process ended")
        actor.is_dead = True
        last_line = str(error).strip().splitlines()[-1].strip()
        message = f"{self._names[actor.worker]} can't start on its machine: {last_line}"
        hint = "install graphcut[ray] there, in the same versions as here"
        return Failed(actor.worker, None, RunError(message, hint=hint))

    def _died(self, actor: _Actor, reason: str, *, is_permanent: bool = False) -> Event | None:
        if actor.is_dead or self._is_closing.is_set():
            return None
        actor.is_dead = True
        actor.calls.clear()
        actor.loads.put(None)
        ray.kill(actor.remote)  # it may only be unreachable, and must not come back
        return Died(actor.worker, actor.reason or reason, is_permanent)

    def _lose_machine(self, node: str, reason: str) -> None:
        """Report the workers of a lost machine, and steps whose inputs are lost with it. Ray itself would wait."""
        for actor in self._actors.values():
            if actor.node == node:
                is_permanent = bool(reason and self._placement.missing_device(actor.worker, self._watch.lost))
                self._callbacks.put(partial(self._died, actor, reason or _GONE, is_permanent=is_permanent))
            for result, (_, sources) in actor.calls.items():
                if node in sources:
                    self._callbacks.put(partial(self._lose_inputs, actor, result))

    def _note(self, node: str, text: str) -> None:
        """Say something of the workers on a machine."""
        for actor in [*self._actors.values()]:  # another thread may add some
            if actor.node == node and not actor.is_dead:
                self._callbacks.put(partial(Note, actor.worker, f"{self._names[actor.worker]} {text}"))

    def _lose_inputs(self, actor: _Actor, result: Any) -> Event | None:  # noqa: ANN401 - a reference of Ray's
        if actor.is_dead or result not in actor.calls:
            return None
        step, _ = actor.calls.pop(result)
        ray.cancel(result)
        return Lost(actor.worker, step)

    # Threads

    def _start_thread(self, target: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(Thread(target=target, daemon=True))
        self._threads[-1].start()

    def _load_in_turn(self, actor: _Actor) -> None:
        while (parts := actor.loads.get()) is not None:
            self._load(actor, parts)

    def _load(self, actor: _Actor, parts: Sequence[int]) -> None:
        event: Event
        try:
            if not actor.node and (reason := self._wait_for_machine(actor)):
                self._callbacks.put(lambda: self._died(actor, reason, is_permanent=True))
                return
            self._send_parts(actor, parts)
            placements = actor.call_loading("hold", parts)
        except exceptions.RayActorError:
            return  # the callback of `life` reports it
        except Exception as error:  # noqa: BLE001 - any error is reported to the scheduler
            original = _original(error)
            if isinstance(error, exceptions.RayTaskError):
                original = RunError(f"{self._names[actor.worker]}: {original}", hint=original.hint)
            event = Failed(actor.worker, None, original)
        else:
            event = Ready(actor.worker, frozenset(parts), placements)
        self._callbacks.put(lambda: None if actor.is_dead else event)

    def _wait_for_machine(self, actor: _Actor) -> str:
        """Wait until the actor runs, and note its machine. The reason if no machine can run it, else empty."""
        answer = actor.remote.location.remote()
        waited_s = absent_s = 0.0  # in polls, so that a stop of this process does not count
        while not ray.wait([answer], timeout=_POLL_S)[0]:
            missing = self._placement.missing_device(actor.worker, {*self._watch.lost, *self._watch.silent})
            waited_s, absent_s = waited_s + _POLL_S, absent_s + _POLL_S if missing else 0.0
            if absent_s > ABSENT_S:
                return f"no machine of the cluster is {missing} any more"
            if waited_s > ROOM_S:
                return f"no machine of the cluster had room for it in {ROOM_S:.0f} s"
        node, version = ray.get(answer)
        if version != __version__:
            message = f"{self._names[actor.worker]} has graphcut {version}, and this machine {__version__}"
            raise RunError(message, hint="install the same version on all machines of the cluster")
        actor.node = node
        return ""

    def _send_parts(self, actor: _Actor, parts: Sequence[int]) -> None:
        """Send the files of `parts` that the machine does not have."""
        cascade = self._cascade
        with self._send_locks.setdefault(actor.node, Lock()):
            for index in parts:
                part = cascade.parts[index]
                if actor.call_loading("has", index, times_of(cascade, part)):
                    continue
                if not cascade.file(part).exists():
                    if changed := actor.call_loading("changed", index):
                        message = f"{changed} on {self._names[actor.worker]} was changed after the model was cut"
                        raise RunError(message, hint=f"copy it to {self._path.parent} there again")
                    raise self._missing(part, f"neither on {self._names[actor.worker]} nor here")
                self._send(actor, index)

    def _missing(self, part: Part, where: str) -> RunError:
        """The error for a part that is missing on a machine that is to run it, and on this one."""
        device, root = part.device, self._path.parent
        hint = f"copy the whole cascade to {root} here: then parts can move"
        if any(actor.is_dead and self._names[actor.worker] == device for actor in [*self._actors.values()]):
            return RunError(f"{part.file} is {where}, and {device}, its device, is lost", hint=hint)
        if device is not None:
            hint = f"`fetch(..., device={device!r})` makes it: copy that to {root} there"
        return RunError(f"{part.file} is {where}", hint=hint)

    def _send(self, actor: _Actor, index: int) -> None:
        cascade, part = self._cascade, self._cascade.parts[index]
        files = files_of(cascade, part)
        missing = actor.call_loading("missing", index, files)
        total, sent = sum(piece.bytes for piece in missing), 0
        text = f"{part.file} to {self._names[actor.worker]}, {size(total)}"
        write = actor.remote.write.options(concurrency_group="loading")
        calls = ((len(raw), write.remote(index, piece, raw)) for piece, raw in read_pieces(cascade.root, missing))
        in_flight = deque(islice(calls, 2))
        while in_flight:
            arrived, answer = in_flight.popleft()
            ray.get(answer)
            in_flight.extend(islice(calls, 1))
            sent += arrived
            self._callbacks.put(partial(Note, actor.worker, text, sent / total))
        actor.call_loading("check", index, files)


def _original(error: BaseException) -> GraphcutError:
    """The error that was raised in an actor, without what Ray wraps around it."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    if isinstance(cause, GraphcutError):
        return cause
    return RunError(f"a worker of the Ray cluster failed: {ort_message(Exception(str(cause)))}")
