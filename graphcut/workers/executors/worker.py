"""A worker: the parts it has loaded, and the states of the sequences it works on."""

from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType

from ...core.manifest import Cascade, State
from ...core.states import next_state
from ...running.providers import NodesByProvider
from ...running.sampling import TOKENS
from ...running.stage import Stage
from ...running.values import Value, Values, first_tokens, rows_of, zeros
from .protocol import Step

Report = Callable[[dict[str, Value]], None]  #: takes what a step has made since its last report.
StatesByPart = Mapping[int, tuple[State, ...]]  #: the states that stay in a part, by its index.


class Worker:
    """Runs steps on the parts it holds, one at a time. Another thread may load and drop parts meanwhile."""

    def __init__(self, cascade: Cascade, states: StatesByPart, load: Callable[[int], Stage]) -> None:
        """A worker without parts; `load` returns the stage of the part with an index."""
        self.stages: Mapping[int, Stage] = {}  #: the loaded parts, by index.
        #: the values of the states of each sequence, by the name of the input that reads them.
        self.sequences: dict[int, dict[str, Value]] = {}
        self.waits: list[float] = []  #: of the last step, see `run`.
        self._cascade = cascade
        self._states = states
        self._load = load
        self._orders: dict[tuple[int, ...], list[tuple[int, tuple[str, ...]]]] = {}

    def hold(self, parts: frozenset[int]) -> None:
        """Load the missing ones of `parts`, and drop all others. If one can't be loaded, the worker stays as it is."""
        stages = {part: self.stages.get(part) or self._load(part) for part in sorted(parts)}
        self.stages = stages  # in one assignment: a concurrent step sees either the old parts or the new ones

    def run(
        self, step: Step, inputs: Values, buffers: Values = MappingProxyType({}), report: Report | None = None
    ) -> tuple[dict[str, Value], tuple[float, ...]]:
        """Run the parts of `step`, and return the values of `step.writes` and the run time of each part in seconds.

        A tensor is dropped after its last reader. An output whose shape fits its tensor in `buffers` is written there.
        After each part of `step.early`, `report` is called with the values made since; these are not returned. What a
        step with an exchange waited before each part is in `waits` then.
        """
        stages, writes = self.stages, frozenset(step.writes)  # others may replace `self.stages` meanwhile
        values, outputs, seconds = dict(inputs), dict[str, Value](), []
        self.waits = []
        for part, unread in self._order(step.parts):
            start = perf_counter()
            if step.exchange is not None:
                values.update(step.exchange.take(name for name in stages[part].part.reads if name not in values))
                self.waits.append(perf_counter() - start)
                start = perf_counter()
            made = self._run_part(stages[part], part, step, values, buffers)
            if step.choice is not None and TOKENS.name in writes and step.choice.logits in made:
                made[TOKENS.name] = step.choice.tokens(made[step.choice.logits])
            if step.exchange is not None:
                step.exchange.put(made)
            values.update(made)
            outputs.update((name, value) for name, value in made.items() if name in writes)
            for name in unread:
                values.pop(name, None)
            del made
            seconds.append(perf_counter() - start)
            if report is not None and part in step.early:
                report(outputs)
                outputs = {}
        return outputs, tuple(seconds)

    def _order(self, parts: tuple[int, ...]) -> list[tuple[int, tuple[str, ...]]]:
        """The parts of a step, each with the tensors that none of those after it reads."""
        if parts not in self._orders:
            own = [self._cascade.parts[part] for part in parts]
            last_reader = {name: index for index, part in zip(parts, own, strict=True) for name in part.reads}
            self._orders[parts] = [
                (index, tuple(name for name in (*part.reads, *part.writes) if last_reader.get(name, -1) <= index))
                for index, part in zip(parts, own, strict=True)
            ]
        return self._orders[parts]

    @property
    def placements(self) -> dict[int, NodesByProvider]:
        """How many nodes each provider took, of the loaded parts whose provider did not take all, by index."""
        return {part: stage.nodes_by_provider for part, stage in self.stages.items() if stage.nodes_by_provider}

    def forget(self, sequence: int) -> None:
        """Drop the states of a sequence."""
        self.sequences.pop(sequence, None)

    def _run_part(
        self, stage: Stage, part: int, step: Step, values: dict[str, Value], buffers: Values
    ) -> dict[str, Value]:
        states = self._states.get(part, ())
        if step.sequence is None or not states:
            return stage.step(values, buffers)
        kept, tensors = self.sequences.setdefault(step.sequence, {}), self._cascade.tensors
        for state in states if step.origin or step.zero_states or step.rows else ():
            past = state.past
            if past in step.zero_states:
                kept[past] = zeros(tensors[past], step.zero_states[past])
            if step.origin is not None:
                before, length, shared = step.origin
                room = kept[past] if step.in_place and state.is_shareable else None
                kept[past] = first_tokens(self.sequences[before][past], tensors[past], state.axis, length, shared, room)
            if past in step.rows:
                kept[past] = rows_of(kept[past], tensors[past], *step.rows[past])
        values.update((state.past, kept[state.past]) for state in states)
        if buffers:  # presents are kept for the next step, so never in a buffer that is reused
            presents = {state.present for state in states}
            buffers = {name: buffer for name, buffer in buffers.items() if name not in presents}
        if step.in_place:
            buffers = {**buffers, **{state.present: kept[state.past] for state in states if state.is_shareable}}
        outputs = stage.step(values, buffers)
        for state in states:
            kept[state.past] = next_state(kept[state.past], outputs[state.present])
        return outputs
