"""A worker: the parts it has loaded, and the states of the sequences it works on."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from time import perf_counter
from types import MappingProxyType
from typing import Final

import numpy as np

from ...core.manifest import Cascade, State
from ...core.states import next_state
from ...running.process_memory import HugePages
from ...running.providers import NodesByProvider
from ...running.sampling import TOKENS
from ...running.stage import Stage
from ...running.values import Value, Values, bits_type, first_tokens, from_array, rows_of, shape_of, to_array, zeros
from .protocol import Step

_LONGEST: Final = 16  #: the maximum number of tokens in steps that write to the memory of the steps before.
Report = Callable[[dict[str, Value]], None]  #: takes what a step has made since its last report.
StatesByPart = Mapping[int, tuple[State, ...]]  #: the states that stay in a part, by its index.


class Worker:
    """Runs steps on the parts it holds, one at a time. Another thread may load and drop parts meanwhile."""

    binds = True  #: steps of a sequence keep the memory that they read and write, see `Stage.bind`.

    is_alone = False  #: what it returns is read in other processes.

    def __init__(self, cascade: Cascade, states: StatesByPart, load: Callable[[int], Stage]) -> None:
        """A worker without parts; `load` returns the stage of the part with an index."""
        self.stages: Mapping[int, Stage] = {}  #: the loaded parts, by index.
        #: the values of the states of each sequence, by the name of the input that reads them, and `Step.constants`.
        self.sequences: dict[int, dict[str, Value]] = {}
        self.waits: list[float] = []  #: of the last step, see `run`.
        self.copied_bytes = 0  #: the bytes of the last step that were copied to or from the memory of devices.
        self._cascade, self._states, self._load = cascade, states, load
        self._pages = HugePages()
        kept = {state.present for row in states.values() for state in row}
        sent = {state.present for state in cascade.manifest.states} - kept
        #: the parts whose states stay with them; others write states that are read after the step.
        self._is_closed = [sent.isdisjoint(part.writes) for part in cascade.parts]
        self._orders: dict[tuple[int, ...], list[tuple[int, frozenset[str]]]] = {}

    def hold(self, parts: frozenset[int]) -> None:
        """Load the missing ones of `parts`, and drop all others. If one can't be loaded, the worker stays as it is."""
        if not parts:
            self._pages.stop()
        with self._pages.noting() if self._states and parts - self.stages.keys() else nullcontext():
            # In one assignment: a concurrent step sees either the old parts or the new ones.
            self.stages = {part: self.stages.get(part) or self._load(part) for part in sorted(parts)}

    def run(
        self, step: Step, inputs: Values, buffers: Values = MappingProxyType({}), report: Report | None = None
    ) -> tuple[dict[str, Value], tuple[float, ...]]:
        """Run the parts of `step`, and return the values of `step.writes` and the run time of each part in seconds.

        A part that is not held is loaded for the step. A tensor is dropped after its last reader. An output whose shape
        fits its tensor in `buffers` is written there. After each part of `step.early`, `report` is called with the
        values made since; these are not returned. What a step with an exchange waited before each part is in `waits`
        then.
        """
        stages, writes = self.stages, frozenset(step.writes)  # others may replace `self.stages` meanwhile
        values, outputs, seconds = dict(inputs), dict[str, Value](), []
        self.waits, self.copied_bytes = [], 0
        for part, unread in self._order(step.parts):
            start = perf_counter()
            stage = stages.get(part) or self._load(part)
            if step.exchange is not None:
                values.update(step.exchange.take(name for name in stage.part.reads if name not in values))
                self.waits.append(perf_counter() - start)
                start = perf_counter()
            made = self._run_part(stage, part, step, values, buffers)
            self.copied_bytes += stage.copied_bytes(values, made)
            if step.choice is not None and TOKENS.name in writes and step.choice.logits in made:
                made[TOKENS.name] = step.choice.tokens(made[step.choice.logits])
            if step.exchange is not None:
                step.exchange.put(made)
            values.update(made)
            outputs.update((name, value) for name, value in made.items() if name in writes)
            for name in unread.intersection(values):
                del values[name]
            del made
            seconds.append(perf_counter() - start)
            if report is not None and part in step.early:
                report(outputs)
                outputs = {}
        if step.length == 1:  # not before the first token, which would come later for it
            self._pages.start()
        return outputs, tuple(seconds)

    def _order(self, parts: tuple[int, ...]) -> list[tuple[int, frozenset[str]]]:
        """The parts of a step, each with the tensors that none of those after it reads."""
        if parts not in self._orders:
            own = [self._cascade.parts[part] for part in parts]
            last_reader = {name: index for index, part in zip(parts, own, strict=True) for name in part.reads}
            self._orders[parts] = [
                (index, frozenset(name for name in (*part.reads, *part.writes) if last_reader.get(name, -1) <= index))
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
        for stage in self.stages.values():
            stage.forget(sequence)

    def _run_part(
        self, stage: Stage, part: int, step: Step, values: dict[str, Value], buffers: Values
    ) -> dict[str, Value]:
        states = self._states.get(part, ())
        sent = step.writes if self.is_alone else ()
        if step.sequence is None:
            return stage.step(values, buffers, stays=stage.staying((), sent))
        kept = self.sequences.setdefault(step.sequence, {})
        if same := step.keeps.get(part):
            source = values if step.origin is None else self.sequences[step.origin.sequence]
            kept.update((name, source[name]) for name in same if name in source)
        self._change_states(stage, step, states, kept)
        rows, axes = step.copies
        for name in axes.keys() & kept.keys():
            if shape_of(kept[name])[axes[name]] != rows:
                kept[name] = rows_of(kept[name], self._cascade.tensors[name], axes[name], [0] * rows)
        if not buffers and self._is_alike(stage, part, step, kept):
            return stage.step(values, again=(step.sequence, step.length))
        values.update((name, kept[name]) for name in stage.part.reads if name in kept)
        if buffers:  # what is kept for the next step is never in a buffer that is reused
            stay = {state.present for state in states} | step.constants
            buffers = {name: buffer for name, buffer in buffers.items() if name not in stay}
        if step.in_place:
            buffers = {**buffers, **{state.present: kept[state.past] for state in states if state.is_shareable}}
        outputs = stage.step(values, buffers, stays=stage.staying([state.present for state in states], sent))
        for state in states:
            kept[state.past] = next_state(kept[state.past], outputs[state.present])
        return outputs

    def _change_states(self, stage: Stage, step: Step, states: tuple[State, ...], kept: dict[str, Value]) -> None:
        """What a step does to states before it runs: they begin, lose the last tokens, or are made of other rows."""
        if not (step.origin or step.zero_states or step.rows or step.cut):
            return
        tensors = self._cascade.tensors
        if step.sequence is not None and not step.cut:
            stage.forget(step.sequence)
        for state in states:
            past, has_room = state.past, step.in_place and state.is_shareable
            if past in step.zero_states:
                kept[past] = zeros(tensors[past], step.zero_states[past])
            if step.origin is not None:
                before, length, shared = step.origin
                room = kept[past] if has_room else None
                kept[past] = first_tokens(self.sequences[before][past], tensors[past], state.axis, length, shared, room)
            if step.rows and past in step.batch_axes:
                kept[past] = self._joined(state, step)
            if step.cut and not has_room and state.start and state.axis is not None and not state.start[state.axis]:
                kept[past] = first_tokens(kept[past], tensors[past], state.axis, *step.cut)

    def _joined(self, state: State, step: Step) -> Value:
        """A state whose rows are those of `step.rows`, which may be of other sequences."""
        tensor, batch = self._cascade.tensors[state.past], step.batch_axes[state.past]
        axis = state.axis if state.axis is not None and state.start and state.start[state.axis] == 0 else None
        sources = [to_array(self.sequences[one.sequence][state.past], tensor, copy=False) for one in step.rows]

        def place(row: int, begin: int, length: int) -> tuple[int | slice, ...]:
            places: dict[int | None, int | slice] = {batch: row, axis: slice(begin, begin + length)}
            return tuple(places.get(i, slice(None)) for i in range(sources[0].ndim))

        has_room = step.in_place and state.is_shareable
        tokens = step.room if has_room else max(one.to + one.length for one in step.rows)
        sizes = {batch: len(sources), axis: tokens}
        made = np.zeros([sizes.get(i, size) for i, size in enumerate(sources[0].shape)], bits_type(tensor.dtype))
        for i, (one, source) in enumerate(zip(step.rows, sources, strict=True)):
            made[place(i, one.to, one.length)] = source[place(one.row, one.begin, one.length)]
        return from_array(made, tensor)

    def _is_alike(self, stage: Stage, part: int, step: Step, kept: dict[str, Value]) -> bool:
        """Whether a step is like later ones: its states stay in place, and they feed as many tokens."""
        is_later = self.binds and step.in_place and not step.zero_states and step.origin is None
        if step.sequence is None or not (is_later and 0 < step.length <= _LONGEST):
            return False
        states = self._states.get(part, ())
        if (step.sequence, step.length) in stage.bound:
            return True
        if not (self._is_closed[part] and all(state.is_shareable for state in states)):
            return False
        presents = {state.present: kept[state.past] for state in states}
        same = {name: kept[name] for name in stage.part.reads if name in kept}
        return stage.bind(step.sequence, step.length, same, presents)
