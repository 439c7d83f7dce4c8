"""What one worker has: parts that are loaded, and the states of the sequences it works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Final

from ...core.manifest import Cascade, State
from ...core.states import next_state
from ..stage import Stage
from ..values import Value, zeros
from .protocol import Step

StatesByPart = Mapping[int, tuple[State, ...]]
"""The states that a part keeps, by the place of the part."""

_NOWHERE: Final[Mapping[str, Value]] = MappingProxyType({})


class Worker:
    """Runs steps on the parts it holds. One step at a time; parts may be loaded and dropped meanwhile.

    Attributes:
        stages: the parts that are loaded, by their places.
    """

    def __init__(self, cascade: Cascade, states: StatesByPart, load: Callable[[int], Stage]) -> None:
        """Nothing is loaded yet.

        Args:
            cascade: whose parts these are.
            states: what parts keep from step to step of a sequence.
            load: makes the stage of the part at a place.
        """
        self.stages: dict[int, Stage] = {}
        self._cascade = cascade
        self._states = states
        self._load = load
        self._kept: dict[int, dict[str, Value]] = {}

    def hold(self, parts: frozenset[int]) -> None:
        """Load what is missing of `parts`, and drop all others.

        Raises:
            RunError: a part can't be loaded; those that were held stay.
        """
        loaded = {place: self.stages.get(place) or self._load(place) for place in sorted(parts)}
        self.stages = loaded  # at once: a step that runs meanwhile sees the old parts or the new ones

    def run(
        self, step: Step, held: Mapping[str, Value], into: Mapping[str, Value] = _NOWHERE
    ) -> tuple[dict[str, Value], tuple[float, ...]]:
        """Run the parts of `step`, and return what it wants of what they write, and the seconds that each took.

        A tensor is dropped after its last reader. What fits its place in `into` is written there.
        """
        stages = self.stages
        last = {name: place for place in step.parts for name in stages[place].part.reads}
        wanted = set(step.writes)
        values, made, seconds = dict(held), dict[str, Value](), []
        for place in step.parts:
            began = perf_counter()
            for name, value in self._step(stages[place], place, step, values, into).items():
                values[name] = value
                if name in wanted:
                    made[name] = value
            values = {name: value for name, value in values.items() if last.get(name, -1) > place}
            seconds.append(perf_counter() - began)
        return made, tuple(seconds)

    def forget(self, sequence: int) -> None:
        """Drop the states of a sequence."""
        self._kept.pop(sequence, None)

    def _step(
        self, stage: Stage, place: int, step: Step, values: Mapping[str, Value], into: Mapping[str, Value]
    ) -> dict[str, Value]:
        states = self._states.get(place, ())
        if step.sequence is None or not states:
            return stage.step(values, into)
        kept = self._kept.setdefault(step.sequence, {})
        for state in states:
            if state.past in step.zero_states:
                kept[state.past] = zeros(self._cascade.tensors[state.past], step.zero_states[state.past])
        presents = {state.present for state in states}  # they live on, and so in memory that is theirs
        own = {name: room for name, room in into.items() if name not in presents}
        made = stage.step({**values, **{state.past: kept[state.past] for state in states}}, own)
        for state in states:
            kept[state.past] = next_state(kept[state.past], made[state.present])
        return made
