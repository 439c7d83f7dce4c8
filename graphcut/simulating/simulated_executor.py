"""An executor of simulated devices, which runs on the virtual clock.

A device runs one step at a time. It receives the command after the latency of its link, fetches the inputs it does not
have, computes, and its report arrives after the latency again. A tensor is sent once, directly from a device that has
it to the one that reads it; small ones travel with the report, and are then at the driver (`Cluster.is_small`). All
tensors that one device sends for one step are one message. The inputs of a request are at the driver, and its outputs
are sent there once all of its steps are done. At the start all parts are loaded.
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
from ..running.executors.protocol import Died, Done, Event, Executor, Handle, Lost, Ready, Step
from ..running.values import Value
from .clock import Clock, ScheduledEvent
from .network import Network, Transfer
from .scenario import Scenario

DETECTION_S: Final = 1.0  #: a device that does not answer for this time counts as failed.
#: ONNX Runtime reads and prepacks about 1 GB of weights per second when it loads a part.
LOAD_BYTES_PER_S: Final = 1e9


@dataclass(slots=True, eq=False)
class SimulatedTensor:
    """A tensor."""

    size_bytes: int
    devices: dict[SimulatedDevice, None]  #: those that have it; the first one sends it to others.
    is_small: bool = False  #: it travels in the messages of steps, and has no latency of its own.


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
    step: Step | None = None  #: the step that it runs.
    step_start_s: float = 0.0  #: when the command for the step arrived.
    #: the transfers that it waits for, with the sender.
    fetching: dict[Transfer, SimulatedDevice] = field(default_factory=dict)
    #: the transfers from it, with the receiver and the tensors.
    sending: dict[Transfer, tuple[SimulatedDevice, list[SimulatedTensor]]] = field(default_factory=dict)
    next_event: ScheduledEvent | None = None  #: the next event of its step.
    #: the next event of loading: a transfer of weights, or the end of loading.
    next_load: ScheduledEvent | Transfer | None = None
    tensors: dict[SimulatedTensor, None] = field(default_factory=dict)
    steps: int = 0
    computing_s: float = 0.0
    fetching_s: float = 0.0  #: how long it has waited for inputs,
    reporting_s: float = 0.0  #: and until tensors in its reports were sent, besides the latency.
    down_s: float = 0.0  #: how long it was down, until it last came up.
    failures: int = 0

    def come_up(self, now_s: float) -> None:
        """End the downtime."""
        if self.down_since_s is not None:
            self.down_s += now_s - self.down_since_s
            self.down_since_s = None


class SimulatedExecutor(Executor):
    """Simulated devices; worker numbers are device indices."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        cluster = scenario.cluster
        self.clock = Clock()
        self.network = Network(cluster, self.clock, random.Random(f"network {seed}"))  # noqa: S311 - not for security
        self.devices = [
            SimulatedDevice(i, device.name, cluster.message_s(device.name)) for i, device in enumerate(cluster.devices)
        ]
        self._driver = SimulatedDevice(-1, cluster.driver.name, 0.0)
        self._coming: set[SimulatedTensor] = set()  # those that are on their way to the driver
        #: the requests, with the number of the attempt, that were restarted since a device lost a tensor.
        self.restarted: set[tuple[int, int]] = set()
        wanted = {*scenario.outputs, *(name for part in scenario.parts for name in part.reads)}
        self._small = {
            name for name, size in scenario.tensor_bytes.items() if name in wanted and cluster.is_small(size)
        }
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
        if not device.is_loaded:
            return
        self._stop_loading(device)
        device.loading = tuple(parts)
        size_bytes = self._new_weight_bytes(device)
        if device.name == self._driver.name:
            self._load(device)
            return
        device.next_load = self.network.send(self._driver.name, device.name, size_bytes, lambda _: self._load(device))

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        device = self.devices[worker]
        if device.is_loaded:  # a failed device does not receive it
            tensors = [cast("SimulatedTensor", handle) for handle in inputs.values()]
            begins_s = self.clock.now_s + self._scenario.cluster.step_s + device.latency_s
            device.step, device.step_start_s = step, begins_s
            device.next_event = self.clock.at(device.step_start_s, partial(self._fetch, device, tensors))

    def forget(self, sequence: int) -> None:
        pass  # states are not simulated

    def kill(self, worker: int) -> None:
        if self.devices[worker].is_started:
            self._end(self.devices[worker])

    def put(self, value: Value, tensor: str) -> Handle:  # noqa: ARG002 - tensors have no values here
        size = self._scenario.tensor_bytes.get(tensor, 0)
        return SimulatedTensor(size, {self._driver: None}, tensor in self._small)

    def fetch(self, handles: Iterable[Handle]) -> bool:
        tensors = [cast("SimulatedTensor", handle) for handle in handles]
        self._pull(self._driver, [tensor for tensor in tensors if tensor not in self._coming])
        return self._coming.isdisjoint(tensors)

    def get(self, handle: Handle, tensor: str) -> Value:
        if not cast("SimulatedTensor", handle).devices:
            raise LookupError(tensor)
        return None

    def release(self, handle: Handle) -> None:
        tensor = cast("SimulatedTensor", handle)
        for device in tensor.devices:
            device.tensors.pop(tensor, None)
        tensor.devices = {}

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

    def _fetch(self, device: SimulatedDevice, tensors: Iterable[SimulatedTensor]) -> None:
        """Fetch the tensors that the device lacks; compute if nothing is missing."""
        is_possible = self._pull(device, tensors)
        if device is self._driver:
            self.wake()
        elif not is_possible:
            self._lose_inputs(device)
        elif not device.fetching:
            self._compute(device)

    def _pull(self, device: SimulatedDevice, tensors: Iterable[SimulatedTensor]) -> bool:
        """Begin to send the tensors that the device lacks, in one message from each sender; False if one is lost."""
        missing: dict[SimulatedDevice, list[SimulatedTensor]] = {}
        for tensor in tensors:
            sender = next(iter(tensor.devices), None)
            if sender is None:
                return False
            if tensor.size_bytes and all(holder.name != device.name for holder in tensor.devices):
                missing.setdefault(sender, []).append(tensor)
        for sender, sent in missing.items():
            size_bytes = sum(tensor.size_bytes for tensor in sent)
            latency_s = sum(self._scenario.cluster.stored_s(tensor.size_bytes) for tensor in sent)
            if not all(tensor.is_small for tensor in sent):
                latency_s += self._scenario.cluster.route(sender.name, device.name)[1]
            fetched = partial(self._fetched, device, sent)
            transfer = self.network.send(sender.name, device.name, size_bytes, fetched, latency_s)
            device.fetching[transfer] = sender
            sender.sending[transfer] = (device, sent)
            self._coming.update(sent if device is self._driver else ())
        return True

    def _fetched(self, device: SimulatedDevice, tensors: Sequence[SimulatedTensor], transfer: Transfer) -> None:
        del device.fetching.pop(transfer).sending[transfer]
        for tensor in tensors:
            tensor.devices[device] = None
            device.tensors[tensor] = None
        if device is self._driver:
            self._coming.difference_update(tensors)
            self.wake()
        elif not device.fetching:
            self._compute(device)

    def _compute(self, device: SimulatedDevice) -> None:
        step = cast("Step", device.step)
        device.fetching_s += self.clock.now_s - device.step_start_s
        seconds = tuple(self._scenario.seconds[device.index][part] for part in step.parts)
        device.next_event = self.clock.after(sum(seconds), partial(self._computed, device, step, seconds))

    def _computed(self, device: SimulatedDevice, step: Step, seconds: tuple[float, ...]) -> None:
        device.steps += 1
        device.computing_s += sum(seconds)
        device.step = None
        is_far, sizes = device.name != self._driver.name, self._scenario.tensor_bytes
        reported = self._small.intersection(step.writes) if is_far else set[str]()
        homes = {name: self._driver if name in reported else device for name in step.writes}
        outputs = {name: SimulatedTensor(sizes[name], {at: None}, name in self._small) for name, at in homes.items()}
        device.tensors.update({tensor: None for name, tensor in outputs.items() if name not in reported})
        done = Done(device.index, step, outputs, seconds)
        if size_bytes := sum(sizes[name] for name in reported):
            arrived = partial(self._reported, device, done, self.clock.now_s)
            report = self.network.send(device.name, self._driver.name, size_bytes, arrived, device.latency_s)
            device.fetching[report] = device  # it waits until that has arrived
        else:
            self._report(device, done)

    def _reported(self, device: SimulatedDevice, event: Event, began_s: float, transfer: Transfer) -> None:
        del device.fetching[transfer]
        device.reporting_s += self.clock.now_s - began_s - device.latency_s
        self._events.append(event)

    def _lose_inputs(self, device: SimulatedDevice) -> None:
        step = cast("Step", device.step)
        self._stop_step(device)
        self.restarted.add((step.request, step.attempt))
        self._report(device, Lost(device.index, step))

    def _report(self, device: SimulatedDevice, event: Event, delay_s: float = 0.0) -> None:
        """Report an event to the scheduler, which receives it after the latency of the link, and after a delay."""
        self.clock.after(delay_s + device.latency_s, partial(self._events.append, event))

    # Loading

    def _new_weight_bytes(self, device: SimulatedDevice) -> int:
        return sum(self._scenario.weight_bytes[part] for part in device.loading if part not in device.parts)

    def _load(self, device: SimulatedDevice) -> None:
        seconds = self._new_weight_bytes(device) / LOAD_BYTES_PER_S
        device.next_load = self.clock.after(seconds, partial(self._loaded, device))

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
        was_up = device.down_since_s is None
        if was_up:
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
        self._stop_step(device)
        self._stop_loading(device)
        device.is_started = device.is_loaded = False
        device.parts = frozenset()
        for tensor in device.tensors:
            tensor.devices.pop(device, None)
        device.tensors = {}
        sending, device.sending = device.sending, {}
        for transfer, (receiver, tensors) in sending.items():
            if receiver.fetching.pop(transfer, None) is not None:  # otherwise that step was stopped already
                self.network.cancel(transfer)
                self._coming.difference_update(tensors)
                self._fetch(receiver, tensors)
        self._report(device, Died(device.index, "it failed", is_permanent=device.down_until_s == inf), delay_s)

    def _stop_step(self, device: SimulatedDevice) -> None:
        if device.next_event is not None:
            device.next_event.cancel()
        for transfer, sender in device.fetching.items():
            self.network.cancel(transfer)
            sender.sending.pop(transfer, None)
        device.step, device.next_event, device.fetching = None, None, {}

    def _stop_loading(self, device: SimulatedDevice) -> None:
        match device.next_load:
            case ScheduledEvent() as event:
                event.cancel()
            case Transfer() as transfer:
                self.network.cancel(transfer)
        device.next_load, device.loading = None, ()
