"""The scheduler, with simulated workers that follow a script: any order of events can be produced."""

from __future__ import annotations

import heapq
import random
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, cast

import pytest
from msgspec.structs import replace as changed

from graphcut import RunError
from graphcut.workers.executors.protocol import Died, Done, Event, Failed, Handle, Lost, Made, Ready, Step
from graphcut.workers.run_log import Coming, RunLog
from graphcut.workers.scheduling.in_flight import Answer
from graphcut.workers.scheduling.link_times import LinkTimes
from graphcut.workers.scheduling.requests import Request, Routing, ScheduledPart
from graphcut.workers.scheduling.scheduler import Scheduler
from graphcut.workers.scheduling.state_recovery import StepHistory
from graphcut.workers.scheduling.worker_pool import WorkerState

from cases import seeded

LOAD_S = 1.0
Moment = Callable[[], Event | None]


class Text(str):
    """A text that can be weakly referenced."""

    __slots__ = ("__weakref__",)


@dataclass
class ScriptedWorker:
    """A simulated worker."""

    parts: frozenset[int] = frozenset()
    life: int = 0
    is_alive: bool = False
    slowness: float = 1.0
    kept: dict[tuple[int | None, int], str] = field(default_factory=dict)


class Script:
    """An executor on a clock that jumps from event to event.

    A part writes texts that say what it read, and its state if it has one: an answer shows how it was computed. Every
    tensor has a number as its handle. It must be released exactly once, and not while a step reads it.
    """

    def __init__(self, units: Sequence[ScheduledPart], workers: int, *, costs: Sequence[float] = ()) -> None:
        self.can_die = True
        self.reports_early = self.queues = self.exchanges = self.has_links = False
        self.s_per_byte: dict[int, float] = {}  # how fast inputs come to a worker
        self.sizes: dict[str, int] = {}  # those of tensors
        self.homes: dict[int, tuple[str, int | None]] = {}  # the tensor of each handle, and the worker that has it
        self.draws = False  # each run of a part writes another text
        self.units = units
        self.costs = costs or [1.0] * len(units)
        self.workers = [ScriptedWorker() for _ in range(workers)]
        self.time = 0.0
        self.placed: dict[int, Any] = {}
        self.numbers = count()
        self.moments: list[tuple[float, int, Moment]] = []
        self.ran: list[tuple[float, int, Step]] = []
        self.held: list[tuple[int, tuple[int, ...]]] = []
        self.starts: Counter[int] = Counter()
        self.hangs: set[tuple[int, int]] = set()
        self.excused: set[int] = set()
        self.poison: set[tuple[int, int]] = set()
        self.wrong: set[tuple[int, int]] = set()
        self.error: type[Exception] = RunError
        self.unloadable: set[int] = set()
        self.gone: set[int] = set()
        self.running: dict[int, Step] = {}
        self.queued: dict[int, list[tuple[float, Step, Mapping[str, Handle]]]] = {}  # with when its inputs are there
        self.load_s: dict[int, float] = {}
        self.lag_s = 0.0
        self.is_closed = False

    def at(self, time: float, moment: Moment) -> None:
        heapq.heappush(self.moments, (time, next(self.numbers), moment))

    def kill_at(self, time: float, worker: int, *, for_good: bool = False) -> None:
        def moment() -> Event | None:
            if for_good:
                self.gone.add(worker)
            return self.dead(worker, "it was killed") if self.workers[worker].is_alive else None

        self.at(time, moment)

    def is_excused(self, worker: int) -> bool:
        return worker in self.excused

    def stop_at(self, time: float, seconds: float) -> None:
        """Stop the whole machine: what was to happen happens so much later."""

        def moment() -> None:
            self.moments = [(time + seconds, number, one) for time, number, one in self.moments]
            self.time += seconds

        self.at(time, moment)

    def lose_at(self, time: float, chosen: Callable[[int], bool] = lambda _: True) -> None:
        """Lose the tensors that exist by then. Their handles stay."""

        def moment() -> None:
            self.placed.update((number, None) for number in self.placed if chosen(number))

        self.at(time, moment)

    def slow_at(self, time: float, worker: int, slowness: float) -> None:
        def moment() -> None:
            self.workers[worker].slowness = slowness

        self.at(time, moment)

    def link_at(self, time: float, worker: int, s_per_byte: float) -> None:
        """Change the link of a worker."""

        def moment() -> None:
            self.s_per_byte[worker] = s_per_byte

        self.at(time, moment)

    def dead(self, worker: int, why: str) -> Event:
        state = self.workers[worker]
        state.life += 1
        state.is_alive, state.parts = False, frozenset()
        state.kept.clear()
        self.queued.pop(worker, None)
        return Died(worker, why, worker in self.gone)

    # The executor protocol

    def start(self, worker: int, parts: Sequence[int]) -> None:
        self.starts[worker] += 1
        self.workers[worker].is_alive = True
        self.load(worker, parts)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        self.held.append((worker, tuple(parts)))
        self.load(worker, parts)

    def load(self, worker: int, parts: Sequence[int]) -> None:
        state, life = self.workers[worker], self.workers[worker].life

        def moment() -> Event | None:
            if state.life != life:
                return None
            if self.unloadable.intersection(parts):
                return Failed(worker, None, RunError("it can't be loaded"))
            state.parts = frozenset(parts)
            return Ready(worker, state.parts)

        self.at(self.time + self.load_s.get(worker, LOAD_S), moment)

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        queue = self.queued.setdefault(worker, [])
        came = [handle for handle in held.values() if self.homes[cast("int", handle)][1] != worker]
        arrived_s = self.time + self.s_per_byte.get(worker, 0.0) * sum(map(self.bytes_of, came))
        queue.append((arrived_s, step, held))
        assert len(queue) + (worker in self.running) <= 1 + self.queues
        self.at(arrived_s, partial(self.begin_next, worker))
        self.begin_next(worker)

    def begin_next(self, worker: int) -> None:
        """Begin the step whose inputs were there first, unless one runs."""
        queue = self.queued.get(worker, [])
        if worker not in self.running and queue and min(queue, key=itemgetter(0))[0] <= self.time:
            first = min(queue, key=itemgetter(0))
            queue.remove(first)
            self.begin(worker, *first[1:])

    def begin(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        state, life = self.workers[worker], self.workers[worker].life
        assert state.is_alive
        assert state.parts.issuperset(step.parts)
        self.ran.append((self.time, worker, step))
        self.running[worker] = step
        took = tuple(self.costs[part] * state.slowness for part in step.parts)
        began_s = self.time
        values: dict[str, Any] = {}
        reported, worked = set[str](), set[int]()

        def moment(last: int) -> Event | None:
            if state.life != life or self.running.get(worker) is not step:
                return None
            if any(
                self.placed[cast("int", handle)] is None for handle in held.values()
            ):  # a KeyError means that it was released while it was read
                return Lost(worker, step)
            if self.poison.intersection((step.request, part) for part in step.parts if part <= last):
                return self.dead(worker, "it crashed")
            if self.wrong.intersection((step.request, part) for part in step.parts):
                return Failed(worker, step, self.error(f"input {step.request} is wrong"))
            values.update({n: self.placed[cast("int", handle)] for n, handle in held.items() if n not in values})
            parts = tuple(part for part in step.parts if part <= last and part not in worked)
            self.work(state, changed(step, parts=parts), values)
            worked.update(parts)
            outputs = {n: self.put(values[n], n) for n in step.writes if n in values and n not in reported}
            reported.update(outputs)
            self.homes.update((handle, (name, worker)) for name, handle in outputs.items())
            return Done(worker, step, outputs, took) if last == step.parts[-1] else Made(worker, step, outputs)

        if not self.hangs.intersection((step.request, part) for part in step.parts):
            for last in (*step.early, step.parts[-1]):
                end_s = began_s + sum(s for part, s in zip(step.parts, took, strict=True) if part <= last)
                self.at(end_s, partial(moment, last))

    def work(self, state: ScriptedWorker, step: Step, values: dict[str, Any]) -> dict[str, Any]:
        for part in step.parts:
            unit = self.units[part]
            past = ""
            if unit.is_stateful and step.sequence is not None:
                past = "" if step.zero_states else state.kept[step.sequence, part]
            values |= written(unit, values, past, f"@{next(self.numbers)}" if self.draws else "")
            if unit.is_stateful:
                state.kept[step.sequence, part] = state_of(unit, values, past)
        return values

    def forget(self, sequence: int) -> None:
        for state in self.workers:
            state.kept = {key: value for key, value in state.kept.items() if key[0] != sequence}

    def kill(self, worker: int) -> None:
        why = "" if self.workers[worker].is_alive else "it was dead"
        self.at(self.time, lambda: self.dead(worker, why or "it was ended"))

    def fetch(self, handles: Iterable[object]) -> bool:  # noqa: ARG002 - see Executor
        return True

    def bytes_of(self, handle: Any) -> int:  # noqa: ANN401 - see Executor
        return self.sizes.get(self.homes[handle][0], 0)

    def put(self, value: Any, tensor: str) -> int:  # noqa: ANN401 - see Executor
        number = next(self.numbers)
        self.placed[number], self.homes[number] = value, (tensor, None)
        return number

    def get(self, handle: Any, tensor: str) -> Any:  # noqa: ANN401, ARG002 - see Executor
        if self.placed[handle] is None:
            raise LookupError(handle)
        return self.placed[handle]

    def release(self, handle: Any) -> None:  # noqa: ANN401 - see Executor
        del self.placed[handle]

    def now(self) -> float:
        return self.time

    def next_event(self, timeout_s: float | None) -> Event | None:
        until = None if timeout_s is None else self.time + timeout_s
        while self.moments and (until is None or self.moments[0][0] <= until):
            time, _, moment = heapq.heappop(self.moments)
            self.time = max(self.time, time)
            if (event := moment()) is not None:
                if isinstance(event, Died | Done | Lost) or (isinstance(event, Failed) and event.step is not None):
                    self.running.pop(event.worker, None)
                    self.begin_next(event.worker)
                self.time += self.lag_s
                return event
        assert until is not None, "deadlock"
        self.time = max(self.time, until)
        return None

    def wake(self) -> None:
        """There is no other thread."""

    def close(self) -> None:
        self.is_closed = True


def written(unit: ScheduledPart, values: Mapping[str, Any], past: str, drawn: str = "") -> dict[str, str]:
    read = ",".join(str(values[name]) for name in unit.reads if name in values)
    return {name: f"{name}{drawn}({read}{'|' + past if past else ''})" for name in unit.writes}


def state_of(unit: ScheduledPart, values: Mapping[str, Any], past: str) -> str:
    return f"{past};{'+'.join(str(values[name]) for name in unit.reads)}"


def by_hand(
    units: Sequence[ScheduledPart], outputs: Sequence[str], requests: Iterable[Request]
) -> list[dict[str, Any]]:
    """The expected answers: part after part, request after request."""
    kept: dict[tuple[int | None, int], str] = {}
    answers = []
    for request in requests:
        values = dict(request.feeds)
        for part, unit in enumerate(units):
            past = ""
            if unit.is_stateful and request.template.sequence is not None:
                past = "" if request.template.zero_states else kept[request.template.sequence, part]
            values |= written(unit, values, past)
            kept[request.template.sequence, part] = state_of(unit, values, past)
        answers.append({name: values[name] for name in outputs})
    return answers


def row(parts: int, *, is_stateful: bool = False, memory_bytes: int = 10) -> list[ScheduledPart]:
    """x → p0 → t1 → p1 → t2 → ..."""
    names = ["x", *(f"t{i + 1}" for i in range(parts))]
    return [ScheduledPart(f"p{i}", (a,), (b,), memory_bytes, is_stateful) for i, (a, b) in enumerate(pairwise(names))]


def workers_with(
    *owned: Sequence[int], memory_bytes: int | None = None, overlap: Sequence[Sequence[int]] = ()
) -> list[WorkerState]:
    workers = [WorkerState(f"worker {i}", memory_bytes, tuple(parts)) for i, parts in enumerate(owned)]
    for one, more in zip(workers, overlap, strict=False):
        one.overlap = frozenset(more)
    return workers


def feeds(number: int) -> list[Request]:
    return [Request({"x": f"x{i}"}) for i in range(number)]


@dataclass
class Run:
    """A finished run."""

    answers: list[Answer]
    scheduler: Scheduler
    times: list[float] = field(default_factory=list)  #: when they came.


def play(
    script: Script,
    workers: Sequence[WorkerState],
    requests: Iterable[Request | None],
    outputs: Sequence[str],
    **options: Any,  # noqa: ANN401 - those of `Scheduler`
) -> Run:
    """Run all requests, and check that the executor was closed and all tensors were released."""
    options.setdefault("window", 4)
    options.setdefault("deadline_s", 100.0)
    scheduler = Scheduler(Routing(script.units, outputs), script, workers, **options)
    answers, times = list[Answer](), list[float]()
    for answer in scheduler.run(until_idle(script, requests)):
        answers.append(answer)
        times.append(script.time)
    assert script.is_closed
    assert script.placed == {}
    return Run(answers, scheduler, times)


def until_idle(script: Script, requests: Iterable[Request | None]) -> Iterator[Request | None]:
    """`requests`, and then None until no step runs: one may still run when the last answer has come."""
    yield from requests
    while script.running:
        yield None


def steps_of(script: Script, *, since: float = 0.0) -> list[tuple[float, int, int, tuple[int, ...]]]:
    return [(time, worker, step.request, step.parts) for time, worker, step in script.ran if time >= since]


# Order of steps


def trunk_and_heads() -> list[ScheduledPart]:
    """A trunk, two heads, and what joins them."""
    reads = {"trunk": ("x",), "a": ("trunk",), "b": ("trunk",), "joined": ("a", "b")}
    return [ScheduledPart(name, read, (name,)) for name, read in reads.items()]


@pytest.mark.parametrize("reports_early", [True, False])
def test_a_head_begins_when_the_trunk_is_done(*, reports_early: bool) -> None:
    """The worker of the trunk goes on with its own head meanwhile: in the same step, if it can report early."""
    script = Script(trunk_and_heads(), 2)
    script.reports_early = reports_early
    found = play(script, workers_with([0, 1, 3], [2]), feeds(1), ["joined"])
    first = [(1, 0, 0, (0, 1))] if reports_early else [(1, 0, 0, (0,)), (2, 0, 0, (1,))]
    assert sorted(steps_of(script)) == [*first, (2, 1, 0, (2,)), (3, 0, 0, (3,))]
    assert found.answers == by_hand(script.units, ["joined"], feeds(1))


@pytest.mark.parametrize(("head_s", "early"), [(0.5, ()), (2.0, (0,))])
def test_nothing_is_reported_early_if_the_rest_of_the_step_is_shorter_than_a_message(
    head_s: float, early: tuple[int, ...]
) -> None:
    script = Script(trunk_and_heads(), 2, costs=[1.0, head_s, 1.0, 1.0])
    script.reports_early, script.lag_s = True, 1.0
    play(script, workers_with([0, 1, 3], [2]), feeds(3), ["joined"], window=1)
    assert [step.early for _, _, step in script.ran if step.parts == (0, 1)][-1] == early


def test_a_request_that_takes_longer_than_others_reports_early_once_that_is_seen() -> None:
    """A prompt after tokens: its first step shows how much longer it takes."""
    units = [*trunk_and_heads(), *(changed(unit, name=f"{unit.name}2") for unit in trunk_and_heads())]
    renamed = {"x": "joined", "trunk": "trunk2", "a": "a2", "b": "b2", "joined": "joined2"}
    units[4:] = [
        changed(unit, reads=tuple(renamed[n] for n in unit.reads), writes=tuple(renamed[n] for n in unit.writes))
        for unit in units[4:]
    ]
    costs = [0.5] * 8
    script = Script(units, 2, costs=costs)
    script.reports_early, script.lag_s = True, 1.0

    def lengthen() -> None:
        costs[:] = [5.0] * 8

    script.at(60, lengthen)
    play(script, workers_with([0, 1, 3, 4, 5, 7], [2, 6]), feeds(8), ["joined2"], window=1)
    early = {step.request: step.early for _, _, step in script.ran if step.parts[-2:] == (4, 5)}
    assert (early[3], early[7]) == ((), (4,))


def test_a_request_whose_step_is_killed_after_it_reported_is_restarted() -> None:
    """Its parts may draw random numbers: both heads must read the same ones."""
    script = Script(trunk_and_heads(), 2, costs=[1.0, 5.0, 1.0, 1.0])
    script.reports_early = script.draws = True
    script.kill_at(4, 0)
    (answer,) = play(script, workers_with([0, 1, 3], [2]), feeds(1), ["joined"]).answers
    assert isinstance(answer, Mapping)
    assert len(set(re.findall(r"trunk@\d+", answer["joined"]))) == 1
    assert [step.attempt for _, _, step in script.ran] == [0, 0, 1, 1, 1]


def test_a_step_that_kills_each_worker_after_it_reported_fails_alone() -> None:
    script = Script(trunk_and_heads(), 2)
    script.reports_early, script.poison = True, {(0, 1)}
    found = play(script, workers_with([0, 1, 3], [2]), feeds(2), ["joined"])
    assert "ended its worker 3 times in trunk, a" in str(found.answers[0])
    assert found.answers[1:] == by_hand(script.units, ["joined"], feeds(2))[1:]


def test_a_pipeline_runs_several_requests_at_the_same_time() -> None:
    """Loading takes 1 s, each part 1 s: a request enters every second, and each worker is busy from then on."""
    script = Script(row(2), 2)
    found = play(script, workers_with([0], [1]), feeds(3), ["t2"])
    assert steps_of(script) == [
        (1, 0, 0, (0,)),
        (2, 1, 0, (1,)),
        (2, 0, 1, (0,)),
        (3, 1, 1, (1,)),
        (3, 0, 2, (0,)),
        (4, 1, 2, (1,)),
    ]
    assert found.answers == by_hand(script.units, ["t2"], feeds(3))


def test_consecutive_parts_of_one_worker_run_in_one_step() -> None:
    script = Script(row(4), 2)
    play(script, workers_with([0, 1], [2, 3]), feeds(1), ["t4"])
    assert steps_of(script) == [(1, 0, 0, (0, 1)), (3, 1, 0, (2, 3))]
    assert [step.writes for _, _, step in script.ran] == [("t2",), ("t4",)]


def test_requests_are_fetched_as_the_window_allows() -> None:
    fetched: list[int] = []

    def source() -> Iterator[Request]:
        for i, request in enumerate(feeds(10)):
            fetched.append(i)
            yield request

    script = Script(row(2), 2)
    scheduler = Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=3)
    answers = scheduler.run(source())
    for delivered in range(1, 8):
        next(answers)
        assert len(fetched) <= delivered + 2  # two others are in flight when one is delivered
    assert [*answers][-1] == {"t2": "t2(t1(x9))"}


def test_answers_come_in_the_order_of_requests_if_later_ones_are_done_first() -> None:
    """Two workers share both parts; the first is three times as slow."""
    script = Script(row(2), 2)
    script.workers[0].slowness = 3.0
    found = play(script, workers_with([0, 1], [0, 1]), feeds(6), ["t2"], window=6)
    assert found.answers == by_hand(script.units, ["t2"], feeds(6))
    assert Counter(worker for _, worker, _, _ in steps_of(script)) == {0: 2, 1: 4}


def test_independent_branches_run_at_the_same_time() -> None:
    """A trunk, and two heads on two workers; a fourth part joins them."""
    units = [
        ScheduledPart("trunk", ("x",), ("t",)),
        ScheduledPart("left", ("t",), ("l",)),
        ScheduledPart("right", ("t",), ("r",)),
        ScheduledPart("join", ("l", "r"), ("y",)),
    ]
    script = Script(units, 3)
    found = play(script, workers_with([0], [1, 3], [2]), feeds(1), ["y"])
    assert steps_of(script) == [(1, 0, 0, (0,)), (2, 1, 0, (1,)), (2, 2, 0, (2,)), (3, 1, 0, (3,))]
    assert found.answers == [{"y": "y(l(t(x0)),r(t(x0)))"}]


@pytest.mark.parametrize(("queues", "starts"), [(False, [1.5, 3, 4.5, 6]), (True, [1.5, 2.5, 3.5, 4.5])])
def test_a_worker_goes_on_while_its_report_is_under_way(*, queues: bool, starts: list[float]) -> None:
    """A report takes half a second."""
    script = Script(row(1), 1)
    script.queues, script.lag_s = queues, 0.5
    found = play(script, workers_with([0]), feeds(4), ["t1"])
    assert [time for time, _, _ in script.ran] == starts
    assert found.answers == by_hand(script.units, ["t1"], feeds(4))


@pytest.mark.parametrize("queues", [False, True])
def test_several_owners_of_a_part_share_its_requests(*, queues: bool) -> None:
    """p1 takes 3 s and has three workers: every second a request comes in, and every second one goes out."""
    script = Script(row(2), 4, costs=[1, 3])
    script.queues = queues
    found = play(script, workers_with([0], [1], [1], [1]), feeds(9), ["t2"], window=9)
    assert found.answers == by_hand(script.units, ["t2"], feeds(9))
    assert found.times == [5 + i for i in range(9)]


def test_a_residual_tensor_is_released_after_its_last_reader() -> None:
    units = [
        ScheduledPart("a", ("x",), ("t", "skip")),
        ScheduledPart("b", ("t",), ("u",)),
        ScheduledPart("c", ("u", "skip"), ("y",)),
    ]
    script = Script(units, 3)
    found = play(script, workers_with([0], [1], [2]), feeds(3), ["y", "u"])
    assert found.answers == by_hand(units, ["y", "u"], feeds(3))


def test_an_input_can_be_an_output_and_an_optional_input_can_be_absent() -> None:
    units = [ScheduledPart("a", ("x", "maybe"), ("y",))]
    found = play(
        Script(units, 1), workers_with([0]), [Request({"x": "1"}), Request({"x": "1", "maybe": "2"})], ["y", "x"]
    )
    assert found.answers == [{"y": "y(1)", "x": "1"}, {"y": "y(1,2)", "x": "1"}]


def test_a_source_that_gives_none_is_asked_again() -> None:
    """A request is given only after the one before was answered, as in decoding."""
    script = Script(row(2), 2)
    answered: list[Answer] = []

    def source() -> Iterator[Request | None]:
        for request in feeds(3):
            while len(answered) < int(str(request.feeds["x"])[1:]):
                yield None
            yield request

    scheduler = Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=4)
    for answer in scheduler.run(source()):
        answered.append(answer)  # noqa: PERF402 - the source looks at it meanwhile
    assert answered == by_hand(script.units, ["t2"], feeds(3))


def test_closing_the_answers_closes_the_executor() -> None:
    script = Script(row(2), 2)
    answers = Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=4).run(feeds(9))
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert script.is_closed


# Errors


def test_an_error_of_a_part_takes_the_place_of_the_answer_and_is_not_retried() -> None:
    script = Script(row(2), 2)
    script.wrong = {(1, 0), (2, 1)}
    first, second, third, fourth = play(script, workers_with([0], [1]), feeds(4), ["t2"]).answers
    assert [str(error) for error in (second, third) if isinstance(error, RunError)] == [
        "input 1 is wrong",
        "input 2 is wrong",
    ]
    assert [first, fourth] == [{"t2": "t2(t1(x0))"}, {"t2": "t2(t1(x3))"}]
    assert Counter(step.request for _, _, step in script.ran) == {0: 2, 1: 1, 2: 2, 3: 2}


def test_an_error_that_nobody_foresaw_ends_the_run() -> None:
    script = Script(row(2), 2)
    script.wrong, script.error = {(1, 0)}, OSError
    scheduler = Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=4)
    answers = scheduler.run(feeds(4))
    assert next(answers) == {"t2": "t2(t1(x0))"}
    with pytest.raises(OSError, match="input 1 is wrong"):
        next(answers)
    assert script.is_closed


def test_tensors_of_a_failed_request_stay_until_its_other_steps_end() -> None:
    """Both heads read t; the fast one fails while the slow one still runs."""
    units = [
        ScheduledPart("trunk", ("x",), ("t",)),
        ScheduledPart("fast", ("t",), ("f",)),
        ScheduledPart("slow", ("t",), ("s",)),
    ]
    script = Script(units, 3, costs=[1, 1, 5])
    script.wrong = {(0, 1)}
    found = play(script, workers_with([0], [1], [2]), feeds(3), ["f", "s"])
    assert isinstance(found.answers[0], RunError)
    assert found.answers[1:] == by_hand(units, ["f", "s"], feeds(3))[1:]


def test_a_part_that_cannot_be_loaded_ends_the_run() -> None:
    script = Script(row(2), 2)
    script.unloadable = {1}
    with pytest.raises(RunError, match="it can't be loaded"):
        list(Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=4).run(feeds(2)))
    assert script.is_closed


# Deaths


def test_only_the_step_that_was_lost_with_its_worker_is_repeated() -> None:
    """Worker 1 ends at 2.5 s, in the middle of its first step, and is started again at once; loading takes 1 s."""
    script = Script(row(3), 3)
    script.kill_at(2.5, 1)
    found = play(script, workers_with([0], [1], [2]), feeds(2), ["t3"])
    assert found.answers == by_hand(script.units, ["t3"], feeds(2))
    assert [(time, step.request) for time, worker, step in script.ran if worker == 1] == [(2, 0), (3.5, 0), (4.5, 1)]
    assert Counter(step.parts for _, worker, step in script.ran if worker == 0) == {(0,): 2}
    assert found.scheduler.log.deaths == [(1, "it was killed", 2.5)]


def test_outputs_of_a_worker_outlive_it() -> None:
    """Worker 0 ends after its only step; worker 1 reads what it wrote."""
    script = Script(row(2), 2, costs=[1, 5])
    script.kill_at(2.5, 0)
    found = play(script, workers_with([0], [1]), feeds(1), ["t2"])
    assert found.answers == [{"t2": "t2(t1(x0))"}]
    assert [step.parts for _, _, step in script.ran] == [(0,), (1,)]


def test_pauses_before_restarts_become_longer() -> None:
    """Its pauses are 0, 0.2 and 1 s; it ends half a second after each start."""
    script = Script(row(1), 1)
    for time in (0.5, 1.0, 1.7):
        script.kill_at(time, 0)
    assert play(script, workers_with([0]), feeds(1), ["t1"]).answers == [{"t1": "t1(x0)"}]
    assert script.starts == {0: 4}
    assert steps_of(script) == [(3.7, 0, 0, (0,))]  # 1.7 + 1 s pause + 1 s loading


@pytest.mark.parametrize("queues", [False, True])
def test_a_request_that_ends_its_worker_three_times_fails_and_others_go_on(*, queues: bool) -> None:
    """The request that waits behind it at the worker is not to blame."""
    script = Script(row(2), 2)
    script.queues, script.poison = queues, {(1, 1)}
    found = play(script, workers_with([0], [1]), feeds(4), ["t2"])
    assert [step.request for _, worker, step in script.ran if worker == 1] == [0, 1, 1, 1, 2, 3]
    error = found.answers[1]
    assert isinstance(error, RunError)
    assert str(error) == "input 1 ended its worker 3 times in p1 (it crashed)"
    assert error.hint == "leave it out; or go on without it with `on_error='skip'`"
    expected = by_hand(script.units, ["t2"], feeds(4))
    assert [found.answers[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]


def test_deaths_caused_by_requests_do_not_count_against_the_worker() -> None:
    script = Script(row(1), 1)
    script.poison = {(i, 0) for i in range(5)}
    found = play(script, workers_with([0]), feeds(6), ["t1"])
    assert [isinstance(answer, RunError) for answer in found.answers] == [True] * 5 + [False]


@pytest.mark.parametrize("queues", [False, True])
def test_a_worker_is_hung_after_ten_times_the_expected_time(*, queues: bool) -> None:
    """Steps take 1 s, so it is killed 10 s after the step began, whenever it was given; then it loads for 1 s."""
    script = Script(row(1), 1)
    script.queues, script.hangs = queues, {(2, 0)}
    script.at(11.5, script.hangs.clear)
    found = play(script, workers_with([0]), feeds(4), ["t1"])
    assert found.answers == by_hand(script.units, ["t1"], feeds(4))
    assert [(time, step.request) for time, _, step in script.ran] == [(1, 0), (2, 1), (3, 2), (14, 2), (15, 3)]
    assert found.scheduler.log.deaths == [(0, "it hung", 13)]


@pytest.mark.parametrize(("down_s", "up_s"), [(0, 20), (4, 12), (11, 14.5)])
def test_a_worker_whose_link_was_down_has_its_whole_time_again_once_it_is_up(down_s: float, up_s: float) -> None:
    """Its third step begins at 3 s and never ends, only when it is repeated. It would be killed 10 s later."""
    script = Script(row(1), 1)
    script.hangs = {(2, 0)}
    script.at(down_s, lambda: script.excused.add(0))
    script.at(up_s, script.excused.clear)
    script.at(9.0, script.hangs.clear)
    found = play(script, workers_with([0]), feeds(4), ["t1"])
    assert found.answers == by_hand(script.units, ["t1"], feeds(4))
    ((_, why, time),) = found.scheduler.log.deaths
    assert why == "it hung"
    assert up_s + 9 <= time <= up_s + 10.25  # links are looked at once a second


def test_what_happens_to_workers_is_said_when_it_happens() -> None:
    script, log, notes = Script(row(2), 2), RunLog(2, 2), list[str]()
    log.notify = lambda text, _: notes.append(text)
    script.kill_at(3.5, 0)
    script.kill_at(8.5, 0, for_good=True)
    found = play(script, workers_with([0], [1]), feeds(12), ["t2"], log=log)
    assert found.answers == by_hand(script.units, ["t2"], feeds(12))
    assert notes == [
        "worker 0 ended: it was killed; it is to be started again",
        "worker 0 runs again",
        "worker 0 is lost: it was killed; worker 1 is to take over p0",
    ]


def test_a_hung_worker_is_killed_while_others_are_busy() -> None:
    """Worker 1 hangs on its third request while worker 0 reports every tenth of a second."""
    units = [ScheduledPart("a", ("x",), ("y",)), ScheduledPart("b", ("x",), ("z",))]
    script = Script(units, 2, costs=[0.1, 0.1])
    script.hangs = {(2, 1)}
    script.at(4, script.hangs.clear)
    found = play(script, workers_with([0], [1]), feeds(200), ["y", "z"], window=1000)
    assert found.answers == by_hand(units, ["y", "z"], feeds(200))
    assert [(worker, why) for worker, why, _ in found.scheduler.log.deaths] == [(1, "it hung")]
    assert found.scheduler.log.deaths[0][2] == pytest.approx(1.2 + 5, abs=0.5)  # patience is at least 5 s


def test_a_hung_worker_is_killed_by_a_scheduler_that_always_has_events() -> None:
    """It takes a tenth of a second for each event, and three workers cause one in that time."""
    units = [ScheduledPart(name, ("x",), (f"{name}.y",)) for name in "abcd"]
    script = Script(units, 4, costs=[0.1] * 4)
    script.lag_s = 0.1
    script.hangs = {(2, 3)}
    script.at(6, script.hangs.clear)
    outputs = [unit.writes[0] for unit in units]
    found = play(script, workers_with([0], [1], [2], [3]), feeds(200), outputs, window=1000)
    assert found.answers == by_hand(units, outputs, feeds(200))
    assert [(worker, why) for worker, why, _ in found.scheduler.log.deaths] == [(3, "it hung")]
    assert found.scheduler.log.deaths[0][2] < 10


def test_a_long_request_gets_more_time_after_each_death() -> None:
    """One request takes 50 times as long as others: killed after 10 s, it then gets ten times as long."""
    script = Script(row(1), 1)
    script.slow_at(2.9, 0, 50.0)
    script.slow_at(70, 0, 1.0)
    found = play(script, workers_with([0]), feeds(3), ["t1"])
    assert found.answers == by_hand(script.units, ["t1"], feeds(3))
    assert [why for _, why, _ in found.scheduler.log.deaths] == ["it hung"]


def test_workers_are_not_hung_if_the_scheduler_was_not_called() -> None:
    """The consumer sleeps for a minute between two answers; meanwhile all steps were done."""
    script = Script(row(2), 2)
    scheduler = Scheduler(Routing(script.units, ["t2"]), script, workers_with([0], [1]), window=4, deadline_s=100)
    answers = []
    for answer in scheduler.run(feeds(8)):
        answers.append(answer)
        script.time += 60
    assert answers == by_hand(script.units, ["t2"], feeds(8))
    assert scheduler.log.deaths == []


def test_workers_are_not_hung_if_the_whole_machine_was_stopped() -> None:
    """Twice in a step, each time for a minute. A step takes 4 s, so a worker is hung after 40 s."""
    script = Script(row(2), 2, costs=[4, 4])
    script.stop_at(23, 60)
    script.stop_at(24, 60)
    found = play(script, workers_with([0], [1]), feeds(8), ["t2"])
    assert found.answers == by_hand(script.units, ["t2"], feeds(8))
    assert found.scheduler.log.deaths == []
    assert found.times == [9, 13, 17, 21, *(25 + 120 + 4 * i for i in range(4))]


def test_a_wake_up_is_no_timeout() -> None:
    """The scheduler is stopped, and woken by a new request before it sees what its worker reported meanwhile."""
    script = Script(row(1), 1)
    waking = [0]

    def next_event(timeout_s: float | None) -> Event | None:
        if len(script.ran) == 4 and not waking[0]:
            waking[0] = 1
            script.time += 60
            return None
        return Script.next_event(script, timeout_s)

    script.next_event = next_event  # type: ignore[method-assign]
    found = play(script, workers_with([0]), feeds(6), ["t1"])
    assert found.answers == by_hand(script.units, ["t1"], feeds(6))
    assert found.scheduler.log.deaths == []


def sizes_of(log: RunLog) -> dict[str, int]:
    return {one.name: len(value) for one in fields(log) if isinstance(value := getattr(log, one.name), Sized)}


def test_a_log_without_tracing_does_not_grow() -> None:
    few, many = (
        play(Script(row(3), 2), workers_with([0, 1], [2]), feeds(number), ["t3"]).scheduler.log for number in (5, 500)
    )
    assert (few.answered, many.answered) == (5, 500)
    assert sizes_of(few) == sizes_of(many)


# Devices that do not come back


def test_parts_of_a_lost_device_go_to_a_worker_with_memory() -> None:
    """Worker 1 is lost for good; worker 0 has memory for one more part, worker 2 for none."""
    workers = workers_with([0], [1], [2, 3], memory_bytes=20)
    script = Script(row(4), 3)
    script.kill_at(2.5, 1, for_good=True)
    found = play(script, workers, feeds(3), ["t4"])
    assert found.answers == by_hand(script.units, ["t4"], feeds(3))
    assert script.held == [(0, (0, 1))]
    assert [one.owns for one in workers] == [(0, 1), (), (2, 3)]
    assert script.starts == {0: 1, 1: 1, 2: 1}


def test_a_neighbour_that_holds_the_parts_gets_them_without_loading() -> None:
    workers = workers_with([0, 1], [2], overlap=[[2], []])
    script = Script(row(3), 2)
    script.kill_at(3.5, 1, for_good=True)
    found = play(script, workers, feeds(3), ["t3"])
    assert found.answers == by_hand(script.units, ["t3"], feeds(3))
    assert script.held == []


def test_a_lost_device_ends_the_run_if_no_worker_has_memory_for_its_parts() -> None:
    workers = workers_with([0], [1], memory_bytes=10)
    workers[1].name = "phone"
    script = Script(row(2), 2)
    script.kill_at(2.5, 1, for_good=True)
    with pytest.raises(RunError) as caught:
        play(script, workers, feeds(3), ["t2"])
    assert str(caught.value) == (
        "phone is lost (it was killed), and no other worker has memory for p1, which needs 10 B"
    )
    assert caught.value.hint == "bring the device back, or plan again without it"


def test_the_hint_for_a_hung_worker_is_a_longer_deadline() -> None:
    """Loading takes 1 s."""
    with pytest.raises(RunError, match=r"is lost \(it hung\)") as caught:
        play(Script(row(1), 1), workers_with([0]), feeds(1), ["t1"], deadline_s=0.5)
    assert caught.value.hint == "give it longer (`deadline_s`) if it is only slow, or plan again without it"


def test_a_worker_that_never_loads_is_lost_after_its_fourth_death() -> None:
    workers = workers_with([0], [1])
    script = Script(row(2), 2)
    for time in (0.5, 1.0, 1.7, 3.2):
        script.kill_at(time, 1)
    found = play(script, workers, feeds(2), ["t2"])
    assert found.answers == by_hand(script.units, ["t2"], feeds(2))
    assert [one.is_gone for one in workers] == [False, True]


def test_a_part_with_another_owner_is_not_reassigned() -> None:
    workers = workers_with([0], [1], [1], memory_bytes=10)
    script = Script(row(2), 3)
    script.kill_at(2.5, 1, for_good=True)
    found = play(script, workers, feeds(4), ["t2"])
    assert found.answers == by_hand(script.units, ["t2"], feeds(4))
    assert script.held == []


# Lost tensors


def test_a_request_with_lost_tensors_restarts_from_its_inputs() -> None:
    script = Script(row(2), 2)
    script.lose_at(2.5)  # the first request's t1, which worker 1 reads, and all inputs
    found = play(script, workers_with([0], [1]), feeds(2), ["t2"], window=2)
    assert found.answers == by_hand(script.units, ["t2"], feeds(2))
    assert [step.attempt for _, _, step in script.ran if step.request == 0] == [0, 0, 1, 1]


def test_results_of_an_earlier_attempt_are_not_used() -> None:
    """A tensor is lost while the slow head still runs: its result comes after the request was restarted."""
    units = [
        ScheduledPart("trunk", ("x",), ("t", "u")),
        ScheduledPart("fast", ("t",), ("f",)),
        ScheduledPart("slow", ("u",), ("s",)),
    ]
    script = Script(units, 3, costs=[1, 1, 4])
    lost: list[int] = []

    def lose_first() -> None:  # t, the first tensor that the trunk wrote
        lost.append(min(number for number, value in script.placed.items() if value == "t(x0)"))
        script.placed[lost[0]] = None

    script.at(2.5, lose_first)
    found = play(script, workers_with([0], [1], [2]), feeds(1), ["f", "s"])
    assert found.answers == by_hand(units, ["f", "s"], feeds(1))
    assert [(time, step.attempt) for time, worker, step in script.ran if worker == 2] == [(2, 0), (6, 1)]


def test_an_answer_that_is_lost_before_its_delivery_is_computed_again() -> None:
    """The second request is done at 2 s on the fast worker, and lost while the first still runs."""
    script = Script(row(1), 2)
    script.workers[0].slowness = 5.0
    script.lose_at(3.5, lambda number: script.placed[number] == "t1(x1)")
    found = play(script, workers_with([0], [0]), feeds(2), ["t1"])
    assert found.answers == by_hand(script.units, ["t1"], feeds(2))


def test_a_request_whose_tensors_are_lost_again_and_again_fails() -> None:
    script = Script(row(2), 2)
    for tick in range(400):
        script.lose_at(2.5 + tick / 10)
    error = play(script, workers_with([0], [1]), feeds(1), ["t2"]).answers[0]
    assert isinstance(error, RunError)
    assert str(error) == "the tensors of input 0 were lost 6 times"


# States


def sequences(lengths: Sequence[int]) -> list[Request]:
    """Steps of several sequences, in turns; the first of each begins with zero states."""
    rounds = [(step, s) for step in range(max(lengths)) for s, length in enumerate(lengths) if step < length]
    return [
        Request({"x": f"s{s}.{step}"}, template=Step(sequence=s, zero_states={} if step else {"state": (1,)}))
        for step, s in rounds
    ]


def step_by_step(requests: Sequence[Request], scheduler: list[Scheduler]) -> Iterator[Request | None]:
    """A step of a sequence is given after the answer to the step before."""
    for number, request in enumerate(requests):
        sequence = request.template.sequence
        before = sum(r.template.sequence == sequence for r in requests[:number])
        while before and _delivered(scheduler[0], requests, sequence) < before:
            yield None
        yield request


def _delivered(scheduler: Scheduler, requests: Sequence[Request], sequence: int | None) -> int:
    return sum(r.template.sequence == sequence for r in requests[: scheduler.log.answered])


def decode(script: Script, workers: Sequence[WorkerState], requests: Sequence[Request], window: int = 4) -> Run:
    own_scheduler: list[Scheduler] = []
    outputs = [script.units[-1].writes[0]]
    routing = Routing(script.units, outputs)
    own_scheduler.append(Scheduler(routing, script, workers, window=window, deadline_s=100))
    answers = list(own_scheduler[0].run(step_by_step(requests, own_scheduler)))
    assert script.placed == {}
    return Run(answers, own_scheduler[0])


def test_states_stay_with_their_parts() -> None:
    script = Script(row(3, is_stateful=True), 2)
    requests = sequences([3, 3])
    found = decode(script, workers_with([0, 1], [2]), requests)
    assert found.answers == by_hand(script.units, ["t3"], requests)
    assert len(script.ran) == 12


def test_lost_states_are_rebuilt_by_repeating_the_steps_of_that_worker_only() -> None:
    script = Script(row(3, is_stateful=True), 3)
    requests = sequences([4])
    script.kill_at(8.5, 1)  # in its third step: 1 s of loading, and 3 s a token
    found = decode(script, workers_with([0], [1], [2]), requests)
    assert found.answers == by_hand(script.units, ["t3"], requests)
    again = [(step.request, step.parts, worker) for time, worker, step in script.ran if time > 8.5]
    assert again[:3] == [(-1, (1,), 1), (-1, (1,), 1), (2, (1,), 1)]
    assert all(request >= 0 for request, _, _ in again[3:])


def test_states_of_parts_that_ran_in_one_step_are_rebuilt_on_several_workers() -> None:
    """Parts 1 and 2 ran in one step, so the tensor between them was not kept: the new owner of 2 runs 1, too."""
    workers = workers_with([0], [1, 2], [3], memory_bytes=30)
    script = Script(row(4, is_stateful=True), 3)
    requests = sequences([4, 3])
    script.kill_at(9.5, 1, for_good=True)
    found = decode(script, workers, requests)
    assert found.answers == by_hand(script.units, ["t4"], requests)
    assert [one.owns for one in workers] in ([(0, 1, 2), (), (3,)], [(0, 1), (), (2, 3)])


def test_a_sequence_with_lost_tensors_goes_on_with_its_states() -> None:
    script = Script(row(3, is_stateful=True), 3)
    requests = sequences([4])
    script.lose_at(8.5)
    found = decode(script, workers_with([0], [1], [2]), requests)
    assert found.answers == by_hand(script.units, ["t3"], requests)


def test_forgetting_a_sequence_drops_its_states_and_its_inputs() -> None:
    script = Script(row(2, is_stateful=True), 2)
    requests = [changed(request, feeds={"x": Text("x")}) for request in sequences([3])]
    found = decode(script, workers_with([0], [1]), requests)
    kept = [weakref.ref(request.feeds["x"]) for request in requests]
    del requests
    assert all(value() is not None for value in kept)
    found.scheduler.forget(0)
    assert all(value() is None for value in kept)
    assert script.workers[0].kept == script.workers[1].kept == {}


def test_parts_in_a_replay_repeat_all_their_steps() -> None:
    """Parts 0 and 1 ran in one step, then apart, then in one: what 1 read last needs all earlier steps of 0."""
    units = row(2, is_stateful=True)
    script = Script(units, 1)
    history = StepHistory(script, units)
    noted = [((0, 1), {"x": 0}), ((0,), {"x": 1}), ((1,), {"t1": 2}), ((0, 1), {"x": 3})]
    for number, (parts, held) in enumerate(noted):
        handles = {name: script.put(value, name) for name, value in held.items()}
        history.note(5, Step(number, parts, ("t2",), 0, 5), 0, handles)
    assert history.lost(5, (1,), 0) is None
    replay = history.lost(5, (1,), 1)
    assert replay is not None
    assert (replay.parts, replay.needs) == ((1,), frozenset({0, 1}))
    assert [entry.step.parts for entry in replay.entries] == [(0, 1), (0,), (1,), (0, 1)]
    alone = history.lost(5, (0,), 1)
    assert alone is not None
    assert [(entry.step.parts, dict(entry.values)) for entry in alone.entries] == [
        ((0,), {"x": 0}),
        ((0,), {"x": 1}),
        ((0,), {"x": 3}),
    ]


# Rebalancing


def slowed(*, overlap: bool) -> tuple[Script, Run]:
    """Two workers with four parts each, of which the second becomes three times as slow."""
    script = Script(row(8), 2)
    script.slow_at(20, 1, 3.0)
    workers = workers_with(range(4), range(4, 8), overlap=[range(8)] * 2 if overlap else ())
    return script, play(script, workers, feeds(40), ["t8"], balanced=True)


def test_parts_that_both_workers_hold_move_without_loading() -> None:
    """Speeds of 3 : 1 and 8 equal parts: 6 and 2 take 6 s each."""
    script, found = slowed(overlap=True)
    assert found.answers == by_hand(script.units, ["t8"], feeds(40))
    assert [bounds for bounds, _ in found.scheduler.log.rebalances] == [(0, 6, 8)]
    assert script.held == []


def test_parts_are_loaded_before_they_move() -> None:
    script, found = slowed(overlap=False)
    assert found.answers == by_hand(script.units, ["t8"], feeds(40))
    ((bounds, moved_s),) = found.scheduler.log.rebalances
    assert bounds == (0, 6, 8)
    assert script.held == [(0, (0, 1, 2, 3, 4, 5))]
    assert all(step.parts[-1] < 4 for time, worker, step in script.ran if worker == 0 and time < moved_s)


def test_parts_do_not_move_to_a_worker_without_memory() -> None:
    workers = workers_with(range(4), range(4, 8), memory_bytes=40)
    script = Script(row(8), 2)
    script.slow_at(20, 1, 3.0)
    found = play(script, workers, feeds(40), ["t8"], balanced=True)
    assert found.answers == by_hand(script.units, ["t8"], feeds(40))
    assert found.scheduler.log.rebalances == []
    assert script.held == []


def test_parts_move_where_there_is_memory_for_old_and_new_ones() -> None:
    """Three workers with memory for five parts each, of which the last becomes three times as slow.

    5, 5 and 2 parts would take 6 s, but the second worker would have to hold 4 .. 9 meanwhile. 4, 5 and 3 take 9 s.
    """
    script = Script(row(12), 3)
    script.slow_at(20, 2, 3.0)
    workers = workers_with(range(4), range(4, 8), range(8, 12), memory_bytes=50)
    found = play(script, workers, feeds(40), ["t12"], balanced=True)
    assert found.answers == by_hand(script.units, ["t12"], feeds(40))
    assert [bounds for bounds, _ in found.scheduler.log.rebalances] == [(0, 4, 9, 12)]
    assert script.held == [(1, (4, 5, 6, 7, 8)), (2, (9, 10, 11))]


@pytest.mark.parametrize("queues", [False, True])
def test_a_worker_with_a_memory_limit_drops_parts_that_moved(*, queues: bool) -> None:
    workers = workers_with(range(4), range(4, 8), memory_bytes=70)
    script = Script(row(8), 2)
    script.queues = queues
    script.slow_at(20, 1, 3.0)
    found = play(script, workers, feeds(40), ["t8"], balanced=True)
    assert found.answers == by_hand(script.units, ["t8"], feeds(40))
    assert [bounds for bounds, _ in found.scheduler.log.rebalances] == [(0, 6, 8)]
    assert script.held == [(0, (0, 1, 2, 3, 4, 5)), (1, (6, 7))]


def test_rebalancing_goes_on_after_a_death_during_preparation() -> None:
    """Parts move a second after worker 0 was told to load them; this time it ends in between."""
    _, before = slowed(overlap=False)
    script = Script(row(8), 2)
    script.slow_at(20, 1, 3.0)
    script.kill_at(before.scheduler.log.rebalances[0][1] - LOAD_S / 2, 0)
    found = play(script, workers_with(range(4), range(4, 8)), feeds(60), ["t8"], balanced=True)
    assert found.answers == by_hand(script.units, ["t8"], feeds(60))
    assert len(found.scheduler.log.deaths) == 1
    assert [bounds for bounds, _ in found.scheduler.log.rebalances] == [(0, 6, 8)]
    assert script.held == [(0, (0, 1, 2, 3, 4, 5))] * 2


# Links


def linked(parts: int, workers: int) -> tuple[Script, RunLog, list[str]]:
    """A row of parts; each tensor takes a tenth of a second to each worker. The log, and what is said."""
    script, log, notes = Script(row(parts), workers), RunLog(parts, workers), list[str]()
    script.has_links = script.queues = True
    script.sizes = dict.fromkeys(["x", *(f"t{i}" for i in range(parts + 1))], 1 << 20)
    script.s_per_byte = dict.fromkeys(range(workers), 0.1 / (1 << 20))
    log.notify = lambda text, _: notes.append(text)
    return script, log, notes


def test_a_link_that_becomes_slower_and_fast_again_is_said() -> None:
    script, log, notes = linked(2, 2)
    script.link_at(20, 1, 4.0 / (1 << 20))
    script.link_at(60, 1, 0.1 / (1 << 20))
    found = play(script, workers_with([0], [1]), feeds(50), ["t2"], log=log)
    assert found.answers == by_hand(script.units, ["t2"], feeds(50))
    assert notes == [
        "sending from worker 0 to worker 1 takes 40 times as long as at the start: 4 s for 1 MiB",
        "sending from worker 0 to worker 1 is fast enough again",
    ]


def test_inputs_that_take_longer_to_the_first_worker_are_said() -> None:
    script, log, notes = linked(1, 1)
    script.link_at(20, 0, 4.0 / (1 << 20))
    play(script, workers_with([0]), feeds(40), ["t1"], log=log)
    assert notes == ["sending inputs to worker 0 takes 40 times as long as at the start: 4 s for 1 MiB"]


@pytest.mark.parametrize(("slow_s", "seconds"), [(0.25, 20), (5.0, 20)])
def test_a_link_that_is_a_little_slower_or_slow_for_four_messages_is_not_said(slow_s: float, seconds: float) -> None:
    script, log, notes = linked(2, 2)
    script.link_at(20, 1, slow_s / (1 << 20))
    script.link_at(20 + seconds, 1, 0.1 / (1 << 20))
    play(script, workers_with([0], [1]), feeds(50), ["t2"], log=log)
    assert notes == []


def test_a_machine_that_is_busy_is_not_taken_for_a_slower_link() -> None:
    script, log, notes = linked(2, 2)
    script.link_at(20, 1, 0.8 / (1 << 20))
    script.slow_at(20, 1, 8.0)
    play(script, workers_with([0], [1]), feeds(50), ["t2"], log=log, window=1)  # so that it waits for each message
    assert notes == []


def test_short_computations_that_wait_for_a_core_do_not_hide_a_slower_link() -> None:
    """Each third one of 0.2 ms waits 8 ms for its turn. Messages take 20 ms, then 500 ms."""
    links = LinkTimes()
    said = [
        links.measured("a", "b", 1 << 18, Coming(took_s, took_s), 0.0002 + 0.008 * (number % 3 == 0))
        for number, took_s in enumerate([0.02] * 10 + [0.5] * 10)
    ]
    slower = "sending from a to b takes 25 times as long as at the start: 500 ms for 256 KiB"
    assert [one for one in said if one] == [slower]


def test_a_worker_behind_a_slower_link_is_left_without_parts_if_that_pays() -> None:
    """Alone the first worker needs 2 s for a request; the second one 2.5 s: both its steps come in 4 s."""
    script, log, notes = linked(2, 2)
    script.link_at(20, 1, 4.0 / (1 << 20))
    workers = workers_with([0], [1])
    found = play(script, workers, feeds(40), ["t2"], log=log, balanced=True)
    assert found.answers == by_hand(script.units, ["t2"], feeds(40))
    assert [bounds for bounds, _ in log.rebalances] == [(0, 2, 2)]
    assert notes[1:] == ["parts moved, there are now: worker 0 2, worker 1 0"]
    assert [b - a for a, b in pairwise(found.times[-5:])] == pytest.approx([2.0] * 4)


def test_parts_stay_behind_a_slower_link_if_it_does_not_pay() -> None:
    """Alone the first worker needs 2 s for a request; the second one 1.5 s: both its steps come in 2 s."""
    script, log, notes = linked(2, 2)
    script.link_at(20, 1, 2.0 / (1 << 20))
    workers = workers_with([0], [1])
    play(script, workers, feeds(40), ["t2"], log=log, balanced=True)
    assert (log.rebalances, len(notes)) == ([], 1)


def test_the_cable_of_a_worker_makes_the_link_to_the_next_one_slower_too() -> None:
    """Worker 1 has a slow cable, and receives and sends. There is no memory for three parts on a worker."""
    script, log, notes = linked(3, 3)
    for worker in (1, 2):
        script.link_at(20, worker, 4.0 / (1 << 20))
    workers = workers_with([0], [1], [2], memory_bytes=20)
    found = play(script, workers, feeds(40), ["t3"], log=log, balanced=True)
    assert found.answers == by_hand(script.units, ["t3"], feeds(40))
    assert len(notes) == 3
    assert log.rebalances[0][0] in {(0, 2, 2, 3), (0, 1, 1, 3)}


# Random failures


def random_units(draw: random.Random) -> tuple[list[ScheduledPart], list[str]]:
    """Parts that read one tensor or more of earlier ones; the outputs are the tensors that no part reads."""
    known = ["x", "z"]
    units = []
    for i in range(draw.randint(1, 7)):
        reads = tuple(draw.sample(known, draw.randint(1, min(3, len(known)))))
        writes = tuple(f"t{i}.{k}" for k in range(draw.randint(1, 2)))
        units.append(ScheduledPart(f"p{i}", reads, writes, 10, is_stateful=draw.random() < 0.4))
        known.extend(writes)
    read = {name for unit in units for name in unit.reads}
    outputs = [name for unit in units for name in unit.writes if name not in read]
    return units, [*outputs, *draw.sample(["x", "t0.0"], draw.randint(0, 2))]


def random_owners(draw: random.Random, parts: int, *, replicas: bool) -> list[list[int]]:
    workers = draw.randint(1, 4)
    owned: list[list[int]] = [[] for _ in range(workers)]
    for part in range(parts):
        for worker in draw.sample(range(workers), draw.randint(1, workers) if replicas else 1):
            owned[worker].append(part)
    return owned


def trouble(script: Script, draw: random.Random, workers: int) -> None:
    """At most two deaths, so that no request fails, one for good if another worker is left; and lost tensors."""
    kinds = draw.choices(["kill", "gone", "hang", "none"], k=2)
    for kind, worker in zip(kinds, draw.sample(range(workers), min(2, workers)), strict=False):
        match kind:
            case "kill":
                script.kill_at(draw.uniform(0, 20), worker)
            case "gone" if workers > 1 and kinds != ["gone", "gone"]:
                script.kill_at(draw.uniform(0, 20), worker, for_good=True)
            case "hang":  # once: it is killed after 5 s or more, and loads for 1 s
                script.hangs.add((draw.randrange(3), 0))
                script.at(6, script.hangs.clear)
    for _ in range(draw.randint(0, 2)):
        share = draw.random()
        script.lose_at(draw.uniform(0, 20), lambda number: (number * 0.618) % 1 < share)  # noqa: B023 - one of many


@seeded(20, together=20)
def test_answers_are_exact_and_in_order_whichever_workers_die(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a test, to be repeated
    units, outputs = random_units(draw)
    owned = random_owners(draw, len(units), replicas=True)
    script = Script(units, len(owned), costs=[draw.choice([0.1, 1.0, 2.0]) for _ in units])
    script.reports_early, script.queues = seed % 2 == 0, seed % 3 > 0
    if script.queues:  # a step may begin before one that was given earlier, whose inputs take longer
        script.has_links, script.s_per_byte = True, dict.fromkeys(range(len(owned)), 0.1)
        script.sizes = {name: draw.randint(0, 20) for unit in units for name in unit.reads}
    trouble(script, draw, len(owned))
    script.wrong = {(draw.randrange(12), draw.randrange(len(units))) for _ in range(draw.randint(0, 1))}
    requests = [Request({"x": f"x{i}", "z": f"z{i}"}) for i in range(12)]
    found = play(script, workers_with(*owned), requests, outputs, window=draw.randint(1, 6), deadline_s=20)
    bad = {request for request, _ in script.wrong}
    expected = by_hand(units, outputs, requests)
    answers = [f"input {n} is wrong" if isinstance(a, RunError) else a for n, a in enumerate(found.answers)]
    assert answers == [f"input {n} is wrong" if n in bad else answer for n, answer in enumerate(expected)]


@seeded(20, together=20)
def test_ranks_with_states_are_exact_whichever_workers_die(seed: int) -> None:
    """Each of three phases has a part for each of two ranks, which read what all ranks wrote in the phase before."""
    draw = random.Random(seed)  # noqa: S311 - a test, to be repeated
    units, read = list[ScheduledPart](), list[str](["x"])
    for phase in range(3):
        names = [f"{phase}.{rank}" for rank in (0, 1)]
        units += [ScheduledPart(name, tuple(read), (name,), 10, is_stateful=phase < 2) for name in names]
        read = names
    units.append(ScheduledPart("joined", tuple(read), ("joined",)))
    script = Script(units, 2, costs=[draw.choice([0.1, 1.0]) for _ in units])
    script.reports_early, script.queues = seed % 3 > 0, seed % 2 == 0
    trouble(script, draw, 2)
    requests = sequences([draw.randint(1, 5) for _ in range(draw.randint(1, 3))])
    found = decode(script, workers_with([0, 2, 4, 6], [1, 3, 5]), requests, window=draw.randint(1, 4))
    assert found.answers == by_hand(units, ["joined"], requests)


@seeded(20, together=20)
def test_sequences_are_exact_whichever_workers_die(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a test, to be repeated
    units = row(draw.randint(1, 5))
    units = [ScheduledPart(unit.name, unit.reads, unit.writes, 10, is_stateful=draw.random() < 0.7) for unit in units]
    owned = random_owners(draw, len(units), replicas=False)
    script = Script(units, len(owned), costs=[draw.choice([0.1, 1.0]) for _ in units])
    script.reports_early, script.queues = seed % 2 == 0, seed % 3 > 0
    trouble(script, draw, len(owned))
    requests = sequences([draw.randint(1, 6) for _ in range(draw.randint(1, 3))])
    found = decode(script, workers_with(*owned), requests, window=draw.randint(1, 4))
    assert found.answers == by_hand(units, [units[-1].writes[0]], requests)


def test_a_given_log_is_written_to() -> None:
    log = RunLog(1, 1)
    play(Script(row(1), 1), workers_with([0]), feeds(2), ["t1"], log=log)
    assert (log.began_s, log.answered, log.elapsed_s) == (0, 2, 2)


@pytest.mark.parametrize(("number", "elapsed_s"), [(1, 2), (4, 8), (8, 12)])
def test_the_time_of_a_run_is_without_that_in_which_nothing_ran_until_parts_were_loaded(
    number: int, elapsed_s: float
) -> None:
    """Worker 0 begins at 1 s, and runs part 0 for the inputs in flight, at most 4; worker 1 begins at 6 s."""
    log, script = RunLog(2, 2), Script(row(2), 2)
    script.load_s = {1: 6}
    play(script, workers_with([0], [1]), feeds(number), ["t2"], log=log)
    assert (script.time, log.elapsed_s, log.busy_s) == (6 + number, elapsed_s, [number, number])
