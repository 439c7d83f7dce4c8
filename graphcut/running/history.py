"""The states of sequences: which worker has them, and what it takes to make them again elsewhere.

A part's states follow from what the part was fed, step by step. So the dispatcher keeps what each step of a sequence
read, and repeats these steps where the states are lost: the same steps, so the same states, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .crew import Crew, Handle, Step
from .values import Value

REBUILDING = -1
"""The request of a step that only rebuilds states."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A step that was done, and what it was fed."""

    step: Step
    values: Mapping[str, Value]


class History:
    """What was done for each sequence."""

    def __init__(self, crew: Crew) -> None:
        """Where no worker can die, nothing is kept but who has which states."""
        self._crew = crew
        self._entries: dict[int, list[Entry]] = {}
        self._at: dict[tuple[int, int], int] = {}

    def note(self, sequence: int, step: Step, worker: int, held: Mapping[str, Handle]) -> None:
        """A step is done; `held` is what it read."""
        self.rebuilt(sequence, step.parts, worker)
        if self._crew.can_die:
            values = {name: self._crew.get(handle, name) for name, handle in held.items()}
            self._entries.setdefault(sequence, []).append(Entry(step, values))

    def lost(self, sequence: int, parts: Sequence[int], worker: int) -> list[tuple[Step, Mapping[str, Value]]]:
        """The steps that make the states of `parts` again, which `worker` should have and has not; oldest first."""
        missing = {part for part in parts if self._at.get((sequence, part), worker) != worker}
        missing |= {part for part in parts if (sequence, part) not in self._at and self._entries.get(sequence)}
        return [
            (replace(entry.step, request=REBUILDING, writes=()), entry.values)
            for entry in self._entries.get(sequence, ())
            if missing.intersection(entry.step.parts)
        ]

    def rebuilt(self, sequence: int, parts: Sequence[int], worker: int) -> None:
        """The states of `parts` are with `worker` now."""
        for part in parts:
            self._at[sequence, part] = worker

    def died(self, worker: int) -> None:
        """The states that a worker had are lost."""
        self._at = {key: owner for key, owner in self._at.items() if owner != worker}

    def undo(self, sequence: int, request: int) -> None:
        """A request begins anew: what it did is undone, and so all states of its sequence are of no use."""
        kept = [entry for entry in self._entries.get(sequence, ()) if entry.step.request != request]
        self._entries[sequence] = kept
        self._at = {key: owner for key, owner in self._at.items() if key[0] != sequence}

    def forget(self, sequence: int) -> None:
        """A sequence is at its end."""
        self._entries.pop(sequence, None)
        self._at = {key: owner for key, owner in self._at.items() if key[0] != sequence}
