"""An executor of simulated devices, which runs on the virtual clock.

A device computes one step at a time. It receives the command after the latency of its link, fetches the inputs it does
not have, computes, and its report arrives after the latency again. While it computes, the next step may come, and its
inputs. A tensor is sent once, directly from a device that has
it to the one that reads it; small ones travel with the report, and are then at the driver (`Cluster.is_small`). All
tensors that one device sends for one step are one message. The inputs of a request are at the driver, and its outputs
are sent there once all of its steps are done. At the start all parts are loaded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from msgspec.structs import replace as changed

from ..core.graph import grouped
from ..costs.cluster import ReliabilityModel
from ..workers.executors.protocol import Died, Done, Event, Executor, Lost, Ready, Step
from .clock import Clock, ScheduledEvent
from .network import Network, Transfer
from .scenario import Scenario

DETECTION_S: Final = 1.0  #: a device that does not answer for this time counts as failed.
#: ONNX Runtime reads and prepacks about 1 GB of weights per second when it loads a part.
LOAD_BYTES_PER_S: Final = 1e9
_STATES: Final = ("computing", "fetching", "messaging", "down")  #: shares of `DeviceUse`.


@dataclass(slots=True, eq=False)
class SimulatedTensor:
    """A tensor."""

    size_bytes: int
    devices: dict[SimulatedDevice, None]  #: those that have it; the first one sends it to others.
    is_small: bool = False  #: it travels in the messages of steps, and has no latency of its own.

    def is_on(self, device: SimulatedDevice) -> bool:
        """Whether the device has it, or it has no bytes."""
        return not self.size_bytes or any(holder.name == device.name for holder in self.devices)


@dataclass(slots=True, eq=False)
class SimulatedStep:
    """A step that a device was given."""

    step: Step
    tensors: Sequence[SimulatedTensor]  #: its inputs.
    lacks: set[SimulatedTensor] | None = None  #: those that the device has not; None until the command is there.
    #: when the command is there, or when it is computed.
    next_event: ScheduledEvent = field(default_factory=ScheduledEvent)


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """The state of a device. Times are simulated seconds."""

    index: int
    name: str
    latency_s: float  #: of a message between it and the driver.
    is_started: bool = False  #: it was started, and its death was not reported since.
    is_loaded: bool = False  #: its parts are loaded, so it accepts steps.
    parts: frozenset[int] = frozenset()
    loading: tuple[int, ...] = ()  #: the parts that it loads now, or when it is up again.
    down_since_s: float | None = None  #: when it failed; None while it is up.
    down_until_s: float = 0.0  #: when it is up again; infinite for a permanent failure.
    given: list[SimulatedStep] = field(default_factory=list)  #: the steps that it has, in the order of their commands,
    computing: SimulatedStep | None = None  #: and the one that it computes.
    messages: set[SimulatedStep] = field(default_factory=set)  #: the steps whose command or report is on its way.
    #: the transfers to it, with the sender, and the tensors that they carry.
    fetching: dict[Transfer, SimulatedDevice] = field(default_factory=dict)
    coming: set[SimulatedTensor] = field(default_factory=set)
    reporting: set[Transfer] = field(default_factory=set)  #: its reports that carry tensors.
    #: the transfers from it, with the receiver and the tensors.
    sending: dict[Transfer, tuple[SimulatedDevice, list[SimulatedTensor]]] = field(default_factory=dict)
    cancel_load: Callable[[], None] | None = None  #: stops loading: a transfer of weights, or its end.
    tensors: dict[SimulatedTensor, None] = field(default_factory=dict)
    steps: int = 0
    since_s: float = 0.0  #: until when these are counted:
    #: how long it has computed, has waited for inputs, or for commands and reports, and was down until it last came up.
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STATES, 0.0))
    failures: int = 0

    def count_until(self, now_s: float) -> None:
        """Count what it has done until now. To be called before that changes."""
        seconds, self.since_s = now_s - self.since_s, now_s
        if self.computing is not None:
            self.spent_s["computing"] += seconds
        elif any(one.lacks for one in self.given):
            self.spent_s["fetching"] += seconds
        elif self.messages:
            self.spent_s["messaging"] += seconds

    def come_up(self, now_s: float) -> None:
        """End the downtime."""
        if self.down_since_s is not None:
            self.spent_s["down"] += now_s - self.down_since_s
            self.down_since_s = None


class SimulatedExecutor(Executor):
    """Simulated devices; worker numbers are device indices."""

    queues = True

    def __init__(self, scenario: Scenario, seed: int) -> None:
        cluster = self._cluster = changed(scenario.cluster, overlap="all")  # as runs do; other rules are those of plans
        self.clock = Clock()
        self.network = Network(cluster, self.clock, random.Random(f"network {seed}"))  # noqa: S311 - not for security
        names = [device.name for device in cluster.devices]
        self.devices = [SimulatedDevice(i, name, cluster.message_s(name)) for i, name in enumerate(names)]
        self._driver = SimulatedDevice(-1, cluster.driver.name, 0.0)
        wanted, sizes = {*scenario.outputs, *(n for part in scenario.parts for n in part.reads)}, scenario.tensor_bytes
        self._small = {name for name in wanted.intersection(sizes) if cluster.is_small(sizes[name])}
        self._scenario = scenario
        self._events: deque[Event | None] = deque()
        by_name = {device.name: device for device in self.devices}
        for failure in cluster.failures:
            for_s = inf if failure.for_s is None else failure.for_s
            self.clock.after(failure.at_s, partial(self._fail, by_name[failure.device], for_s))
        for fault in cluster.faults:
            if fault.device is not None:
                draw = random.Random(f"{fault.device} {seed}")  # noqa: S311 - not for security
                self._schedule_failure(by_name[fault.device], fault, draw)

    def start(self, worker: int, parts: Sequence[int]) -> None:
        device = self.devices[worker]
        device.is_started, device.loading = True, tuple(parts)
        if device.down_until_s == inf:
            self._end(device)
        elif device.down_since_s is None:  # otherwise it loads when it is up again
            (self._load if self.clock.now_s else self._loaded)(device)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        device = self.devices[worker]
        if device.is_loaded:
            self._stop_loading(device)
            device.loading = tuple(parts)
            if device.name == self._driver.name:
                self._load(device)
            else:
                way, size_bytes = (self._driver.name, device.name), self._new_weight_bytes(device)
                sent = self.network.send(*way, size_bytes, device.latency_s, lambda _: self._load(device))
                device.cancel_load = partial(self.network.cancel, sent)

    def run(self, worker: int, step: Step, inputs: Mapping[str, SimulatedTensor]) -> None:
        device = self.devices[worker]
        if device.is_loaded:  # a failed device does not receive it
            one = SimulatedStep(step, [*inputs.values()])
            device.count_until(self.clock.now_s)
            device.given.append(one)
            device.messages.add(one)
            after_s = self._cluster.step_s + device.latency_s
            one.next_event = self.clock.after(after_s, partial(self._fetch, device, one))

    def forget(self, sequence: int) -> None:
        pass  # states are not simulated

    def kill(self, worker: int) -> None:
        if self.devices[worker].is_started:
            self._end(self.devices[worker])

    def put(self, value: object, tensor: str) -> SimulatedTensor:  # noqa: ARG002 - tensors have no values here
        return SimulatedTensor(self._scenario.tensor_bytes.get(tensor, 0), {self._driver: None}, tensor in self._small)

    def fetch(self, handles: Iterable[SimulatedTensor]) -> bool:
        tensors = [*handles]
        self._pull(self._driver, tensors)
        return self._driver.coming.isdisjoint(tensors)

    def get(self, handle: SimulatedTensor, tensor: str) -> None:
        if not handle.devices:
            raise LookupError(tensor)

    def release(self, handle: SimulatedTensor) -> None:
        for device in handle.devices:
            device.tensors.pop(handle, None)
        handle.devices = {}

    def now(self) -> float:
        return self.clock.now_s

    def next_event(self, timeout_s: float | None) -> Event | None:
        until_s = inf if timeout_s is None else self.clock.now_s + timeout_s
        while not self._events:
            if self.clock.next_s == until_s == inf:
                raise RuntimeError("the scheduler waits, but no event is scheduled")
            if self.clock.next_s > until_s:
                self.clock.now_s = max(self.clock.now_s, until_s)
                return None
            self.clock.step()
        return self._events.popleft()

    def wake(self) -> None:
        self._events.append(None)

    def close(self) -> None:
        for device in self.devices:
            device.come_up(self.clock.now_s)

    # Steps

    def _fetch(self, device: SimulatedDevice, one: SimulatedStep) -> None:
        """The command for a step is there: fetch the tensors that the device lacks; compute if nothing is missing."""
        device.count_until(self.clock.now_s)
        device.messages.discard(one)
        one.lacks = {tensor for tensor in one.tensors if not tensor.is_on(device)}
        if all(tensor.devices for tensor in one.tensors):
            self._pull(device, one.tensors)
            self._compute(device)
        else:
            self._stop(device, one)
            self._report(device, Lost(device.index, one.step))

    def _pull(self, device: SimulatedDevice, tensors: Iterable[SimulatedTensor]) -> None:
        """Begin to send the tensors that the device lacks, in one message from each sender."""
        missing = (one for one in tensors if one.devices and not one.is_on(device) and one not in device.coming)
        for sender, sent in grouped((next(iter(tensor.devices)), tensor) for tensor in missing).items():
            size_bytes = sum(tensor.size_bytes for tensor in sent)
            latency_s = sum(self._cluster.stored_s(tensor.size_bytes) for tensor in sent)
            if not all(tensor.is_small for tensor in sent):
                latency_s += self._cluster.route(sender.name, device.name)[1]
            fetched = partial(self._fetched, device, sent)
            transfer = self.network.send(sender.name, device.name, size_bytes, latency_s, fetched)
            device.fetching[transfer] = sender
            device.coming.update(sent)
            sender.sending[transfer] = (device, sent)

    def _fetched(self, device: SimulatedDevice, tensors: Sequence[SimulatedTensor], transfer: Transfer) -> None:
        device.count_until(self.clock.now_s)
        self._end_transfer(device, transfer)
        for tensor in tensors:
            tensor.devices[device] = None
            device.tensors[tensor] = None
        for one in device.given:
            (one.lacks or set()).difference_update(tensors)
        if device is self._driver:
            self.wake()
        else:
            self._compute(device)

    def _end_transfer(self, device: SimulatedDevice, transfer: Transfer) -> list[SimulatedTensor]:
        """A transfer to a device has ended, or is given up. Returns what it carried."""
        _, tensors = device.fetching.pop(transfer).sending.pop(transfer)
        device.coming.difference_update(tensors)
        return tensors

    def _compute(self, device: SimulatedDevice) -> None:
        """Compute the first step that lacks nothing, unless one is computed."""
        one = next((one for one in device.given if one.lacks is not None and not one.lacks), None)
        if device.computing is None and one is not None:
            device.count_until(self.clock.now_s)
            device.computing = one
            seconds = tuple(self._scenario.seconds[device.index][part] for part in one.step.parts)
            one.next_event = self.clock.after(sum(seconds), partial(self._computed, device, one, seconds))

    def _computed(self, device: SimulatedDevice, one: SimulatedStep, seconds: tuple[float, ...]) -> None:
        device.count_until(self.clock.now_s)
        device.steps += 1
        device.computing = None
        device.given.remove(one)
        device.messages.add(one)
        step, is_far, sizes = one.step, device.name != self._driver.name, self._scenario.tensor_bytes
        reported = self._small.intersection(step.writes) if is_far else set[str]()
        homes = {name: self._driver if name in reported else device for name in step.writes}
        outputs = {name: SimulatedTensor(sizes[name], {at: None}, name in self._small) for name, at in homes.items()}
        device.tensors.update({tensor: None for name, tensor in outputs.items() if name not in reported})
        arrived = partial(self._reported, device, one, Done(device.index, step, outputs, seconds))
        if size_bytes := sum(sizes[name] for name in reported):
            way = device.name, self._driver.name
            device.reporting.add(self.network.send(*way, size_bytes, device.latency_s, arrived))
        else:
            self.clock.after(device.latency_s, arrived)
        self._compute(device)

    def _reported(self, device: SimulatedDevice, one: SimulatedStep, event: Event, *transfer: Transfer) -> None:
        device.count_until(self.clock.now_s)
        device.messages.discard(one)
        device.reporting.difference_update(transfer)
        self._events.append(event)

    def _stop(self, device: SimulatedDevice, one: SimulatedStep) -> None:
        """End a step that a device was given, and the transfers that no other step of it needs."""
        device.count_until(self.clock.now_s)
        device.given.remove(one)
        device.messages.discard(one)
        device.computing = None if device.computing is one else device.computing
        one.next_event.cancel()
        needed = set[SimulatedTensor]().union(*(other.lacks or () for other in device.given))
        for transfer, sender in [*device.fetching.items()]:
            if needed.isdisjoint(sender.sending[transfer][1]):
                self.network.cancel(transfer)
                self._end_transfer(device, transfer)

    def _report(self, device: SimulatedDevice, event: Event, delay_s: float = 0.0) -> None:
        """Report an event to the scheduler, which receives it after the latency of the link, and after a delay."""
        self.clock.after(delay_s + device.latency_s, partial(self._events.append, event))

    # Loading

    def _new_weight_bytes(self, device: SimulatedDevice) -> int:
        return sum(self._scenario.weight_bytes[part] for part in device.loading if part not in device.parts)

    def _load(self, device: SimulatedDevice) -> None:
        seconds = self._new_weight_bytes(device) / LOAD_BYTES_PER_S
        device.cancel_load = self.clock.after(seconds, partial(self._loaded, device)).cancel

    def _loaded(self, device: SimulatedDevice) -> None:
        device.is_loaded, device.parts, device.loading = True, frozenset(device.loading), ()
        self._events.append(Ready(device.index, device.parts))

    # Failures

    def _schedule_failure(self, device: SimulatedDevice, fault: ReliabilityModel, draw: random.Random) -> None:
        if fault.mean_up_s is None or fault.mean_down_s is None:
            return
        up_s, down_s = draw.expovariate(1 / fault.mean_up_s), draw.expovariate(1 / fault.mean_down_s)
        self.clock.after(up_s, partial(self._fail, device, down_s))
        self.clock.after(up_s + down_s, partial(self._schedule_failure, device, fault, draw))

    def _fail(self, device: SimulatedDevice, for_s: float) -> None:
        """Take a device down. One that is down already stays down until the later of both ends."""
        device.failures += 1
        device.down_until_s = max(device.down_until_s, self.clock.now_s + for_s)
        if was_up := device.down_since_s is None:
            device.down_since_s = self.clock.now_s
        if device.is_started and (was_up or for_s == inf):
            self._end(device, DETECTION_S)
        if for_s < inf:
            self.clock.after(for_s, partial(self._recover, device))

    def _recover(self, device: SimulatedDevice) -> None:
        if device.down_since_s is not None and device.down_until_s <= self.clock.now_s:
            device.come_up(self.clock.now_s)
            if device.is_started:
                self._load(device)

    def _end(self, device: SimulatedDevice, delay_s: float = 0.0) -> None:
        """End a worker: its step, its parts and its tensors are lost; the scheduler learns of it after a delay."""
        for one in [*device.given]:
            self._stop(device, one)
        for transfer in device.reporting:
            self.network.cancel(transfer)
        device.messages, device.reporting = set(), set()
        self._stop_loading(device)
        device.is_started = device.is_loaded = False
        device.parts = frozenset()
        for tensor in device.tensors:
            tensor.devices.pop(device, None)
        device.tensors = {}
        while device.sending:  # a step that is given up ends transfers, too
            transfer, (receiver, _) = next(iter(device.sending.items()))
            self.network.cancel(transfer)
            tensors = self._end_transfer(receiver, transfer)
            if receiver is self._driver:
                self._pull(receiver, tensors)
                self.wake()
            for one in [*receiver.given]:
                if one.lacks and not one.lacks.isdisjoint(tensors):
                    self._fetch(receiver, one)
        self._report(device, Died(device.index, "it failed", is_permanent=device.down_until_s == inf), delay_s)

    def _stop_loading(self, device: SimulatedDevice) -> None:
        if device.cancel_load is not None:
            device.cancel_load()
        device.cancel_load, device.loading = None, ()
