"""Devices that are only reckoned: an executor that lives by the simulation's clock.

A device does one step at a time: it hears of it after the latency of its link, fetches what it lacks, computes, and is
heard after the latency again. A tensor goes straight from a device that has it to the one that reads it, once; what one
device sends for one step goes together. What a request brings along is everywhere, and what it is answered with need
not be sent, as in planning. At the beginning all parts are loaded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, cast

from ..planning.cluster import ReliabilityModel
from ..running.executors.protocol import Died, Done, Event, Handle, Lost, Ready, Step
from ..running.values import Value
from .clock import Clock, ScheduledEvent
from .network import Network, Transfer
from .scenario import Scenario

NOTICE_S: Final = 1.0
"""A device that is silent for so long is taken for gone."""

LOAD_BYTES_PER_S: Final = 1e9
"""ONNX Runtime reads and packs about a gigabyte of weights a second when it loads a part."""


@dataclass(slots=True, eq=False)
class SimulatedTensor:
    """A tensor: what it takes, and the devices that have it, its maker first; None where everybody has."""

    bytes: int
    at: dict[int, None] | None


@dataclass(slots=True)
class SimulatedDevice:
    """One device.

    Attributes:
        is_counted_on: it was started, and the scheduler was not told since that it ended.
        is_loaded: it takes steps.
        holds: the parts that it has loaded.
        loading: the parts that it loads, or will once it is up again.
        down_since_s: when it failed; None while it is up.
        down_until_s: when it is up again; infinite where it never is.
        step: what it does.
        since_s: when the step came.
        fetching: what is on its way to it, and from where.
        next: what happens to its step next.
        next_load: what happens next to what it loads.
        has: the tensors that lie there.
        steps: how many steps it has done.
        computing_s: how long it computed.
        fetching_s: how long it waited for tensors.
        down_s: how long it was down, until it was up again.
        failures: how often it failed.
    """

    is_counted_on: bool = False
    is_loaded: bool = False
    holds: frozenset[int] = frozenset()
    loading: tuple[int, ...] | None = None
    down_since_s: float | None = None
    down_until_s: float = 0.0
    step: Step | None = None
    since_s: float = 0.0
    fetching: dict[Transfer, int] = field(default_factory=dict)
    next: ScheduledEvent | None = None
    next_load: ScheduledEvent | Transfer | None = None
    has: dict[SimulatedTensor, None] = field(default_factory=dict)
    steps: int = 0
    computing_s: float = 0.0
    fetching_s: float = 0.0
    down_s: float = 0.0
    failures: int = 0


class SimulatedExecutor:
    """See `Executor`.

    Attributes:
        can_die: True.
        clock: the time of the simulation.
        network: its links.
        machines: its devices, by number.
        restarted: the requests that begin anew since a tensor has gone with a device, and the attempt that was in vain.
    """

    can_die = True

    def __init__(self, scenario: Scenario, seed: int) -> None:
        """What fails is known or drawn; nobody is started yet."""
        devices = scenario.world.devices
        self.clock = Clock()
        self.network = Network(scenario.world, self.clock, random.Random(f"lines {seed}"))  # noqa: S311 - no secret
        self.machines = [SimulatedDevice() for _ in devices]
        self.restarted: set[tuple[int, int]] = set()
        self._scenario = scenario
        self._late_s = [device.latency_s for device in devices]
        self._events: deque[Event | None] = deque()
        self._sending: list[dict[Transfer, tuple[int, list[SimulatedTensor]]]] = [{} for _ in devices]
        number = {device.name: i for i, device in enumerate(devices)}
        for failure in scenario.world.failures:
            for_s = inf if failure.for_s is None else failure.for_s
            self.clock.after(failure.at_s, partial(self._fail, number[failure.device], for_s))
        for fault in scenario.world.faults:
            if fault.device is not None:
                draw = random.Random(f"{fault.device} {seed}")  # noqa: S311 - no secret
                self._fail_some_time(number[fault.device], fault, draw)

    # What the scheduler asks for

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """See `Executor`. Before time begins it takes none; a device that is down comes up first."""
        machine = self.machines[worker]
        machine.is_counted_on, machine.loading = True, tuple(parts)
        if machine.down_until_s == inf:
            self._end(worker)
        elif machine.down_since_s is None:
            self._load(worker, takes_time=self.clock.now_s > 0)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        """See `Executor`. Parts that are new to it come over its link before they are loaded."""
        machine = self.machines[worker]
        if not machine.is_loaded:
            return
        self._stop_loading(machine)
        machine.loading = tuple(parts)
        new = sum(self._scenario.weight_bytes[part] for part in parts if part not in machine.holds)
        machine.next_load = self.network.send(None, worker, new, lambda _: self._load(worker, takes_time=True))

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        """See `Executor`. One that has failed does not hear."""
        machine = self.machines[worker]
        if machine.is_loaded:
            machine.step = step
            machine.next = self.clock.after(self._late_s[worker], partial(self._fetch_all, worker, held))

    def forget(self, sequence: int) -> None:
        """Nothing is kept for sequences here."""

    def kill(self, worker: int) -> None:
        if self.machines[worker].is_counted_on:
            self._end(worker)

    def put(self, value: Value, tensor: str) -> Handle:  # noqa: ARG002 - what requests bring along is everywhere
        return SimulatedTensor(0, None)

    def get(self, handle: Handle, tensor: str) -> Value:  # noqa: ARG002 - there are no values here
        """See `Executor`. An answer is with who asked from the moment it is made."""
        return None

    def release(self, handle: Handle) -> None:
        placed = cast("SimulatedTensor", handle)
        for worker in placed.at or ():
            self.machines[worker].has.pop(placed, None)
        if placed.at is not None:
            placed.at = {}

    def now(self) -> float:
        """The time of the simulation."""
        return self.clock.now_s

    def next_event(self, timeout_s: float | None) -> Event | None:
        """See `Executor`. Time goes by here, and nowhere else."""
        until_s = inf if timeout_s is None else self.clock.now_s + timeout_s
        while not self._events:
            if self.clock.next_s == until_s == inf:
                raise RuntimeError("nothing is going to happen, and somebody waits for it")
            if self.clock.next_s > until_s:
                self.clock.go_to(until_s)
                return None
            self.clock.step()
        return self._events.popleft()

    def wake(self) -> None:
        self._events.append(None)

    def close(self) -> None:
        """Count the time of those that are still down."""
        for machine in self.machines:
            if machine.down_since_s is not None:
                machine.down_s += self.clock.now_s - machine.down_since_s
                machine.down_since_s = self.clock.now_s

    # Steps

    def _fetch_all(self, worker: int, held: Mapping[str, Handle]) -> None:
        self.machines[worker].since_s = self.clock.now_s
        self._fetch(worker, [cast("SimulatedTensor", handle) for handle in held.values()])

    def _fetch(self, worker: int, tensors: Iterable[SimulatedTensor]) -> None:
        """Fetch what is not here, in one message from each device that is asked; compute if nothing is on its way."""
        asked: dict[int, list[SimulatedTensor]] = {}
        for placed in tensors:
            if placed.at is None or not placed.bytes or worker in placed.at:  # nothing to be sent
                continue
            source = next(iter(placed.at), None)
            if source is None:
                self._lose(worker)
                return
            asked.setdefault(source, []).append(placed)
        machine = self.machines[worker]
        for source, found in asked.items():
            count_bytes = sum(placed.bytes for placed in found)
            transfer = self.network.send(source, worker, count_bytes, partial(self._fetched, worker, found))
            machine.fetching[transfer] = source
            self._sending[source][transfer] = (worker, found)
        if not machine.fetching:
            self._compute(worker)

    def _fetched(self, worker: int, found: Sequence[SimulatedTensor], transfer: Transfer) -> None:
        machine = self.machines[worker]
        del self._sending[machine.fetching.pop(transfer)][transfer]
        for placed in found:
            if placed.at is not None:
                placed.at[worker] = None
                machine.has[placed] = None
        if not machine.fetching:
            self._compute(worker)

    def _compute(self, worker: int) -> None:
        machine = self.machines[worker]
        step = cast("Step", machine.step)
        machine.fetching_s += self.clock.now_s - machine.since_s
        seconds = tuple(self._scenario.seconds[worker][part] for part in step.parts)
        machine.next = self.clock.after(sum(seconds), partial(self._computed, worker, step, seconds))

    def _computed(self, worker: int, step: Step, seconds: tuple[float, ...]) -> None:
        machine = self.machines[worker]
        machine.steps += 1
        machine.computing_s += sum(seconds)
        machine.step = None
        made = {name: SimulatedTensor(self._scenario.tensor_bytes[name], {worker: None}) for name in step.writes}
        machine.has.update(dict.fromkeys(made.values()))
        self._say(worker, Done(worker, step, made, seconds))

    def _lose(self, worker: int) -> None:
        machine = self.machines[worker]
        step = cast("Step", machine.step)
        self._stop_step(worker)
        self.restarted.add((step.request, step.attempt))
        self._say(worker, Lost(worker, step))

    def _say(self, worker: int, event: Event, silent_s: float = 0.0) -> None:
        """The scheduler hears of it after the latency of the link; of what is silent, when that is noticed."""
        self.clock.after(silent_s + self._late_s[worker], partial(self._events.append, event))

    # Loading

    def _load(self, worker: int, *, takes_time: bool) -> None:
        machine = self.machines[worker]
        new = sum(self._scenario.weight_bytes[part] for part in machine.loading or () if part not in machine.holds)
        if takes_time:
            machine.next_load = self.clock.after(new / LOAD_BYTES_PER_S, partial(self._loaded, worker))
        else:
            machine.next_load = None
            self._loaded(worker)

    def _loaded(self, worker: int) -> None:
        machine = self.machines[worker]
        machine.is_loaded, machine.holds, machine.loading = True, frozenset(machine.loading or ()), None
        self._events.append(Ready(worker, machine.holds))

    # Failing

    def _fail_some_time(self, worker: int, fault: ReliabilityModel, draw: random.Random) -> None:
        if fault.mean_up_s is None or fault.mean_down_s is None:
            return
        up_s, down_s = draw.expovariate(1 / fault.mean_up_s), draw.expovariate(1 / fault.mean_down_s)
        self.clock.after(up_s, partial(self._fail, worker, down_s))
        self.clock.after(up_s + down_s, partial(self._fail_some_time, worker, fault, draw))

    def _fail(self, worker: int, for_s: float) -> None:
        """A device fails, also while it is down: then it is down for longer, if that is longer."""
        machine, now = self.machines[worker], self.clock.now_s
        machine.failures += 1
        machine.down_until_s = max(machine.down_until_s, now + for_s)
        if machine.down_since_s is None:
            machine.down_since_s = now
            if machine.is_counted_on:
                self._end(worker, NOTICE_S)
        elif machine.is_counted_on and for_s == inf:
            self._end(worker, NOTICE_S)
        if for_s < inf:
            self.clock.after(for_s, partial(self._come_up, worker))

    def _come_up(self, worker: int) -> None:
        machine, now = self.machines[worker], self.clock.now_s
        if machine.down_since_s is None or machine.down_until_s > now:
            return
        machine.down_s += now - machine.down_since_s
        machine.down_since_s = None
        if machine.is_counted_on:
            self._load(worker, takes_time=True)

    def _end(self, worker: int, silent_s: float = 0.0) -> None:
        """Its process is gone, and with it all that it had."""
        machine = self.machines[worker]
        self._stop_step(worker)
        self._stop_loading(machine)
        machine.is_counted_on = machine.is_loaded = False
        machine.holds = frozenset()
        for placed in machine.has:
            if placed.at is not None:
                placed.at.pop(worker, None)
        machine.has = {}
        sending, self._sending[worker] = self._sending[worker], {}
        for transfer, (reader, found) in sending.items():
            if self.machines[reader].fetching.pop(transfer, None) is not None:  # or another loss has stopped that step
                self.network.stop(transfer)
                self._fetch(reader, found)
        self._say(worker, Died(worker, "it failed", is_permanent=machine.down_until_s == inf), silent_s)

    def _stop_step(self, worker: int) -> None:
        machine = self.machines[worker]
        if machine.next is not None:
            machine.next.call_off()
        for transfer, source in machine.fetching.items():
            self.network.stop(transfer)
            self._sending[source].pop(transfer, None)
        machine.step, machine.next, machine.fetching = None, None, {}

    def _stop_loading(self, machine: SimulatedDevice) -> None:
        match machine.next_load:
            case ScheduledEvent() as alarm:
                alarm.call_off()
            case Transfer() as transfer:
                self.network.stop(transfer)
        machine.next_load = machine.loading = None
