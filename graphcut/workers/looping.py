"""The steps of a pipeline of models whose number is known, on workers: a request each, one after another.

What runs once runs in the first request, and is kept where steps read it; what comes at the end runs in the last one.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..core.manifest import Cascade
from ..running.in_process.looping import loop_phases, step_inputs
from ..running.values import Outputs, Value, to_value
from .executors.protocol import Step
from .scheduling.assignment import scheduled_parts
from .scheduling.requests import Request, Routing

Send = Callable[[Request, Callable[[Future[Outputs]], None]], object]
"""Sends a request, and calls the function with the future of its answer."""


class LoopRouting:
    """Which parts run at which step, and what must come back of each."""

    def __init__(self, cascade: Cascade, outputs: Sequence[str]) -> None:
        """`outputs` are asked for, of the last step."""
        self.cascade, self.outputs = cascade, outputs
        self.phases = phases = loop_phases(cascade)
        parts, manifest = cascade.parts, cascade.manifest
        made = {name for index in phases.once for name in parts[index].writes}
        same = made.union(manifest.reads).difference(manifest.stepwise)
        #: by index of a part of each step, what it reads of that and keeps.
        self.keeps = {index: tuple(same.intersection(parts[index].reads)) for index in phases.step}
        self.last = 0 if manifest.loop is None else manifest.loop.steps - 1  #: the number of the last step, from 0.
        self.states = {state.past: state.present for state in manifest.states}
        #: what runs once makes for the end: it comes back, and is fed again.
        self.held = made.intersection(name for index in phases.end for name in parts[index].reads)
        scheduled = scheduled_parts(cascade, keeps=self.keeps)
        self.routing = Routing(scheduled, (*outputs, *self.states.values(), *self.held))


@dataclass
class LoopRun:
    """The requests for one set of inputs."""

    loop: LoopRouting  #: what runs when.
    values: Mapping[str, Value]  #: the inputs.
    title: str  #: its name in messages.
    number: int  #: the number of its sequence of steps.
    send: Send
    forget: Callable[[int], None]  #: is called with `number` at its end.
    answer: Future[Outputs] = field(default_factory=Future)  #: the outputs after the last step.

    def begin(self) -> Future[Outputs]:
        """Send the first step."""
        self.answer.set_running_or_notify_cancel()
        self._held: dict[str, Value] = {}
        self._step(0, {})
        return self.answer

    def _step(self, step: int, states: Mapping[str, Value]) -> None:
        loop, is_first, is_last = self.loop, step == 0, step == self.loop.last
        once = {**self.values, **self._held} if is_first or is_last else {}
        feeds = {**once, **step_inputs(loop.cascade, step, self.values), **states}
        done = (*(() if is_first else loop.phases.once), *(() if is_last else loop.phases.end))
        template = Step(sequence=self.number, keeps=loop.keeps if is_first else {})
        self.send(Request(feeds, self.title, template, done), lambda answered: self._after(step, answered))

    def _after(self, step: int, answered: Future[Outputs]) -> None:
        loop, tensors = self.loop, self.loop.cascade.tensors
        error = answered.exception()
        if error is not None or step == loop.last:
            self.forget(self.number)
        if error is not None:
            self.answer.set_exception(error)
            return
        found = answered.result()
        if step == loop.last:
            self.answer.set_result({name: found[name] for name in loop.outputs})
        else:
            self._held |= {name: to_value(found[name], tensors[name]) for name in loop.held & found.keys()}
            self._step(step + 1, {past: to_value(found[now], tensors[past]) for past, now in loop.states.items()})
