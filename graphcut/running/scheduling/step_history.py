"""The states of sequences: which worker has them, and what it takes to make them again elsewhere.

A part's states follow from what the part was fed, step by step. So the scheduler keeps what each step of a sequence
read, and repeats these steps where the states are lost: the same steps, so the same states, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..executors.protocol import Executor, Handle, Step
from ..values import Value
from .requests import ScheduledPart

REBUILDING = -1
"""The request of a step that only rebuilds states."""


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was done, and what it was fed."""

    step: Step
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What makes lost states again.

    Attributes:
        sequence: whose states.
        parts: the parts whose states were asked for.
        needs: the parts that run for it: also those between what was kept and what `parts` read.
        entries: the steps to repeat, oldest first.
    """

    sequence: int
    parts: tuple[int, ...]
    needs: frozenset[int]
    entries: tuple[CompletedStep, ...]


class StepHistory:
    """What was done for each sequence."""

    def __init__(self, executor: Executor, parts: Sequence[ScheduledPart]) -> None:
        """Where no worker can die, nothing is kept."""
        self._executor = executor
        self._parts = parts
        self._entries: dict[int, list[CompletedStep]] = {}
        self._at: dict[int, dict[int, int]] = {}

    def note(self, sequence: int, step: Step, worker: int, held: Mapping[str, Handle]) -> None:
        """A step is done; `held` is what it read.

        Raises:
            LookupError: what it read is lost.
        """
        parts = self._keeping(step.parts)
        if parts and self._executor.can_die:
            values = {name: self._executor.get(handle, name) for name, handle in held.items()}
            self._entries.setdefault(sequence, []).append(CompletedStep(step, values))
            self.rebuilt(sequence, parts, worker)

    def lost(self, sequence: int, parts: Sequence[int], worker: int) -> ReplayPlan | None:
        """What makes the states of `parts` where `worker` has them; None where it has them, or there are none yet."""
        at, entries = self._at.get(sequence, {}), self._entries.get(sequence, [])
        elsewhere = [part for part in self._keeping(parts) if at.get(part) != worker]
        begun = {part for entry in entries for part in entry.step.parts} if elsewhere else set()
        missing = tuple(part for part in elsewhere if part in begun)
        if not missing:
            return None
        needs = self._closed(frozenset(missing), entries)
        repeated = (self._shortened(entry, needs) for entry in entries)
        return ReplayPlan(sequence, missing, needs, tuple(entry for entry in repeated if entry.step.parts))

    def rebuilt(self, sequence: int, parts: Sequence[int], worker: int) -> None:
        """The states of `parts` are with `worker` now."""
        self._at.setdefault(sequence, {}).update(dict.fromkeys(parts, worker))

    def died(self, worker: int) -> None:
        """The states that a worker had are lost."""
        for sequence, at in self._at.items():
            self._at[sequence] = {part: owner for part, owner in at.items() if owner != worker}

    def undo(self, sequence: int, request: int) -> None:
        """A request begins anew: what it did is undone, and so all states of its sequence are of no use."""
        kept = [entry for entry in self._entries.get(sequence, ()) if entry.step.request != request]
        self._entries[sequence] = kept
        self._at.pop(sequence, None)

    def forget(self, sequence: int) -> None:
        """A sequence is at its end."""
        self._entries.pop(sequence, None)
        self._at.pop(sequence, None)

    def _keeping(self, parts: Sequence[int]) -> tuple[int, ...]:
        return tuple(part for part in parts if self._parts[part].is_stateful)

    def _closed(self, parts: frozenset[int], entries: Sequence[CompletedStep]) -> frozenset[int]:
        """`parts`, and all that must run with them in some entry: a part with states must run in all of its entries."""
        while True:
            more = parts.union(*(self._behind(entry, parts) for entry in entries))
            if more == parts:
                return parts
            parts = more

    def _behind(self, entry: CompletedStep, parts: frozenset[int]) -> set[int]:
        """Those of `parts` in a step, and the parts of the step that make what these read and was not kept."""
        wanted, names = set[int](), set[str]()
        for part in reversed(entry.step.parts):
            unit = self._parts[part]
            if part in parts or names.intersection(unit.writes):
                wanted.add(part)
                names.update(name for name in unit.reads if name not in entry.values)
        return wanted

    def _shortened(self, entry: CompletedStep, needs: frozenset[int]) -> CompletedStep:
        parts = tuple(sorted(self._behind(entry, needs)))
        reads = {name for part in parts for name in self._parts[part].reads}
        values = {name: value for name, value in entry.values.items() if name in reads}
        return CompletedStep(replace(entry.step, request=REBUILDING, parts=parts, writes=()), values)
