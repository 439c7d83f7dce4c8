"""State recovery: rebuild the states that were lost with a worker, by repeating the steps that made them.

The states of a part are a function of what the part read, step by step. So the scheduler keeps what each step of a
sequence read, and repeats these steps on another worker. The rebuilt states are the same to the last bit if the parts
draw no random numbers.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ...core.errors import RunError
from ...running.values import Value
from ..executors.protocol import Executor, Handle, Step
from .requests import ScheduledPart
from .worker_pool import WorkerPool

REBUILDING = -1  #: the request number of a step that rebuilds states.


class LostStatesError(RunError):
    """The states of a sequence were lost with a worker, and can't be made again from its steps."""


class CompletedStep(msgspec.Struct, frozen=True):
    """A step that was done, and the values it read."""

    step: Step
    values: Mapping[str, Value]


class ReplayPlan(msgspec.Struct, frozen=True):
    """The steps (`entries`, oldest first) that rebuild the states of `parts` for a sequence.

    `needs` are the parts that run: `parts`, and those that make what was not kept for them. Without entries they are
    lost.
    """

    sequence: int
    parts: tuple[int, ...]
    needs: frozenset[int]
    entries: tuple[CompletedStep, ...]


class StepHistory:
    """The completed steps of each sequence. Empty if workers can't die."""

    def __init__(self, executor: Executor, parts: Sequence[ScheduledPart]) -> None:
        self._executor, self._parts = executor, parts
        self._entries: dict[int, list[CompletedStep]] = {}
        self._owners: dict[int, dict[int, int]] = {}
        self._forks: set[int] = set()

    def note(self, sequence: int, step: Step, worker: int, handles: Mapping[str, Handle]) -> None:
        """Keep a completed step and what it read. Raises LookupError if that is lost."""
        parts = self._stateful(step.parts)
        if parts and self._executor.can_die:
            # What a part keeps beside states is that of the first step.
            is_repeated = step.keeps or any(self._parts[part].is_stateful for part in parts)
            if is_repeated and sequence not in self._forks:
                values = {name: self._executor.get(handle, name) for name, handle in handles.items()}
                self._entries.setdefault(sequence, []).append(CompletedStep(step, values))
            self.rebuilt(sequence, parts, worker)

    def lost(self, sequence: int, parts: Sequence[int], worker: int) -> ReplayPlan | None:
        """What rebuilds the states of `parts` on `worker`; None if it has them or there are none yet."""
        owners, entries = self._owners.get(sequence, {}), self._entries.get(sequence, [])
        elsewhere = [part for part in self._stateful(parts) if owners.get(part) != worker]
        begun = {part for entry in entries for part in entry.step.parts} if elsewhere else set()
        missing = tuple(part for part in elsewhere if part in begun or sequence in self._forks)
        if not missing:
            return None
        needs, more = frozenset[int](), frozenset(missing)
        while more != needs:  # a part with states must run in all of its entries, with what it needs there
            needs = more
            more = needs.union(*(self._needed(entry, needs) for entry in entries))
        repeated = (self._shortened(entry, needs) for entry in entries)
        return ReplayPlan(sequence, missing, needs, tuple(entry for entry in repeated if entry.step.parts))

    def fork(self, sequence: int, step: Step) -> None:
        """Let a sequence begin with the states of others, if its step says so: their steps can't be repeated."""
        others = {one.sequence for one in (step.origin, *step.rows) if one is not None} - {sequence}
        if others and self._executor.can_die:
            first, *more = (self._owners.get(other, {}) for other in others)
            same = {part: worker for part, worker in first.items() if all(own.get(part) == worker for own in more)}
            self._owners[sequence] = same
            self._forks.add(sequence)

    def rebuilt(self, sequence: int, parts: Sequence[int], worker: int) -> None:
        """The states of `parts` are on `worker` now."""
        self._owners.setdefault(sequence, {}).update(dict.fromkeys(parts, worker))

    def died(self, worker: int) -> None:
        """The states on a worker are lost."""
        for sequence, owners in self._owners.items():
            self._owners[sequence] = {part: owner for part, owner in owners.items() if owner != worker}

    def undo(self, sequence: int, request: int) -> None:
        """Delete the steps of a request that is restarted. All states of its sequence are outdated then."""
        self._entries[sequence] = [one for one in self._entries.get(sequence, ()) if one.step.request != request]
        self._owners.pop(sequence, None)

    def forget(self, sequence: int, *, states: bool) -> None:
        """Delete the steps of a sequence, and where its `states` are."""
        self._entries.pop(sequence, None)
        if states:
            self._owners.pop(sequence, None)
            self._forks.discard(sequence)

    def _stateful(self, parts: Sequence[int]) -> tuple[int, ...]:
        own = self._parts
        return tuple(part for part in parts if own[part].is_stateful or own[part].keeps_constants)

    def _needed(self, entry: CompletedStep, parts: frozenset[int]) -> set[int]:
        """Those of `parts` in a step, and the parts of that step that make what these read and was not kept."""
        needed, names = set[int](), set[str]()
        for index in reversed(entry.step.parts):
            part = self._parts[index]
            if index in parts or names.intersection(part.writes):
                needed.add(index)
                names.update(name for name in part.reads if name not in entry.values)
        return needed

    def _shortened(self, entry: CompletedStep, needs: frozenset[int]) -> CompletedStep:
        parts = tuple(sorted(self._needed(entry, needs)))
        reads = {name for part in parts for name in self._parts[part].reads}
        values = {name: value for name, value in entry.values.items() if name in reads}
        return CompletedStep(replace(entry.step, request=REBUILDING, parts=parts, writes=(), early=()), values)


class StateRecovery:
    """The replays that workers have to do before anything else, at most one for each worker."""

    def __init__(self, executor: Executor, pool: WorkerPool, history: StepHistory) -> None:
        self._executor, self._pool, self._history = executor, pool, history
        self._open: dict[int, tuple[ReplayPlan, deque[CompletedStep]]] = {}
        self._inputs: dict[int, Mapping[str, Handle]] = {}

    def __contains__(self, worker: int) -> bool:
        """Has a worker a replay to do?"""
        return worker in self._open

    def open(self, worker: int, replay: ReplayPlan) -> None:
        """Let a worker do a replay before anything else."""
        self._open[worker] = (replay, deque(replay.entries))

    def next_step(self, worker: int) -> tuple[Step, Mapping[str, Handle]] | None:
        """The next step to repeat and its inputs; None if the worker has to load parts first.

        Raises RunError if it has no memory for these parts.
        """
        replay, entries = self._open[worker]
        if not self._pool.workers[worker].holds.issuperset(replay.needs):
            if not self._pool.fits(worker, replay.needs):
                names = ", ".join(self._pool.parts[part].name for part in sorted(replay.needs))
                lost = f"sequence {replay.sequence} lost its states with a worker"
                why = f"{self._pool.workers[worker].name} has no memory for {names}, which make them again"
                raise RunError(f"{lost}, and {why}", hint="plan again with more memory for it")
            self._pool.hold(worker, replay.needs)
            return None
        self._inputs[worker] = {name: self._executor.put(value, name) for name, value in entries[0].values.items()}
        return entries[0].step, self._inputs[worker]

    def done(self, worker: int) -> None:
        """The worker has repeated a step."""
        self.undone(worker)
        if worker not in self._open:
            return
        replay, entries = self._open[worker]
        entries.popleft()
        if not entries:
            del self._open[worker]
            self._history.rebuilt(replay.sequence, replay.parts, worker)

    def undone(self, worker: int) -> None:
        """The worker could not repeat a step, and has to try again."""
        for handle in self._inputs.pop(worker, {}).values():
            self._executor.release(handle)

    def died(self, worker: int) -> None:
        """The worker ended: the next one that needs these states does the whole replay."""
        self.undone(worker)
        self._open.pop(worker, None)
