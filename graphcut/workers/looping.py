"""The steps of a pipeline of models whose number is known, on workers: a request each, one after another.

What runs once runs in the first request, and is kept where steps read it; what comes at the end runs in the last one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ..core.manifest import Cascade
from ..running.in_process.looping import loop_phases, step_inputs
from ..running.values import Outputs, Value, Values, to_value
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


def run_steps(
    loop: LoopRouting, values: Values, title: str, number: int, send: Send, forget: Callable[[int], None]
) -> Future[Outputs]:
    """The outputs after the last step, for the inputs `values`. The answer of a step sends the request of the next one.

    All have the same `title`, and the `number` of their sequence, with which `forget` is called at the end.
    """
    answer, held, tensors = Future[Outputs](), dict[str, Value](), loop.cascade.tensors

    def begin(step: int, states: Values) -> None:
        is_first, is_last = step == 0, step == loop.last
        once = {**values, **held} if is_first or is_last else {}
        feeds = {**once, **step_inputs(loop.cascade, step, values), **states}
        done = (*(() if is_first else loop.phases.once), *(() if is_last else loop.phases.end))
        template = Step(sequence=number, keeps=loop.keeps if is_first else {})
        send(Request(feeds, title, template, done), lambda answered: end(step, answered))

    def end(step: int, answered: Future[Outputs]) -> None:
        try:
            go_on(step, answered)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it; nobody else hears it
            try:
                forget(number)
            finally:
                answer.set_exception(error)

    def go_on(step: int, answered: Future[Outputs]) -> None:
        found = answered.result()
        if step == loop.last:
            forget(number)
            answer.set_result({name: found[name] for name in loop.outputs})
        else:
            held.update((name, to_value(found[name], tensors[name])) for name in loop.held & found.keys())
            begin(step + 1, {past: to_value(found[now], tensors[past]) for past, now in loop.states.items()})

    answer.set_running_or_notify_cancel()
    begin(0, {})
    return answer
