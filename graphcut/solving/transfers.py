"""What parts send over the links of a cluster, and the times of a request, by the rules of the cluster.

Searches value their plans here, predictions are made of it, and simulations agree where nothing queues.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ..core.graph import grouped
from ..costs.cluster import Cluster, LinkEnds
from ..costs.device import Device
from ..costs.device_groups import ranks_of
from .instance import Workload

DRIVER: Final = -1  #: the index of the driver among parts.
STEPS_AT_ONCE: Final = 2  #: so many a device has, unless nothing overlaps: one runs, and the inputs of the other come.


class SentTensor(NamedTuple):
    """A tensor that crosses: an input of the model, a boundary tensor, or an output that is asked for."""

    bytes: int
    source: int  #: the part that writes it, or the driver.
    readers: Sequence[int]  #: the other parts that read it, and the driver where it is asked for.


class RequestTimes(NamedTuple):
    """Predicted seconds."""

    busy_s: tuple[float, ...]  #: how long a request keeps the device of each part busy with it.
    period_s: float  #: between two requests, when many are in flight.
    latency_s: float  #: of one request: its parts run one after the other.

    def objective(self, name: str, in_flight: int) -> float:
        """The value of an objective that is a time; for `decode` the time of a step, else of one request."""
        times = {"throughput": self.period_s, "decode": max(self.latency_s / in_flight, self.period_s)}
        return times.get(name, self.latency_s)


def request_times(
    transfers: Sequence[SentTensor],
    run_s: Sequence[float],
    devices: Sequence[Device],
    cluster: Cluster,
    most_run_s: Sequence[float] | None = None,
) -> RequestTimes:
    """The times of parts that run for `run_s` on their devices; lower bounds if they may run for up to `most_run_s`.

    A device receives a tensor once, however many of its parts read it, at the bandwidth of the slower link, one tensor
    after the other; the greatest latency counts once if a part receives anything, and for each tensor that is not small
    `Cluster.store_s`. A step also takes `Cluster.overhead_s`. A link carries a tensor once for each device that reads
    it. A device has two steps at a time: it computes one, while messages and inputs of the other come. If that takes
    longer than computing, both share its link. Where nothing overlaps, tensors are sent and received one after the
    other, over the router once for all readers, and messages cost nothing. Each rank of a group receives what the group
    reads; its first rank sends what it writes.
    A small tensor travels in the messages of steps, and has no latency of its own; its writer waits until the driver
    has it. One between two parts goes on from there with the message to each reader, and shares the driver's link with
    what the writer reads next, if requests wait for it.
    """
    in_turn = cluster.overlap == "none"
    names = [*(device.name for device in devices), cluster.driver.name]  # DRIVER is the index of the last one
    members = [*(tuple(r.device.name for r in ranks_of(device)) for device in devices), (cluster.driver.name,)]
    received_s, sent_s, late_s, reported_s, stored_s = ([0.0] * len(names) for _ in range(5))
    load_s: dict[LinkEnds, float] = defaultdict(float)
    carried: dict[tuple[int, int], _Transfer] = {}  # by writer and reader, what the driver's link carries
    sent = (one for one in transfers if one.bytes)
    alike = grouped(((one.source, (*one.readers,), cluster.is_small(one.bytes)), one.bytes) for one in sent)
    for (source, readers, is_small), sizes in alike.items():
        number, reached, used = sum(sizes), {names[source]}, set[LinkEnds]()
        far = [reader for reader in readers if names[reader] != names[source]]
        is_relayed = is_small and bool(far) and source != DRIVER
        for reader in (DRIVER, *far) if is_relayed else far:
            if names[reader] in reached:
                continue
            reached.add(names[reader])
            sender = DRIVER if is_relayed and reader != DRIVER else source
            rates, latency_s = cluster.routes(members[sender][0], members[reader])
            if not rates:  # the driver is on the first rank
                continue
            first = next(iter(rates))
            waiting_s, waiting = (reported_s, source) if is_small and reader == DRIVER else (received_s, reader)
            waiting_s[waiting] += number / min(rate for ends, rate in rates.items() if ends[1] or not in_turn)
            if not is_small:
                stored_s[reader] += len(sizes) * cluster.stored_s(number)
                late_s[reader] = max(late_s[reader], latency_s)
            sent_s[sender] += number / rates[first] if first not in used or not in_turn else 0.0
            used.add(first)
            for ends, bytes_per_s in rates.items():
                load_s[ends] += number / bytes_per_s
            if first == (cluster.driver.name, None):
                before = carried[source, reader].bytes if (source, reader) in carried else 0
                carried[source, reader] = _Transfer(before + number, min(rates.values()), latency_s, rates[first])
    reading = {reader for number, _, readers in transfers if number for reader in readers}
    steps = enumerate(zip(run_s, members, strict=False))  # a part that ran before has none
    own_s = [*(s + cluster.overhead_s(own) if s or part in reading else s for part, (s, own) in steps), 0.0]
    step_s = [sum(seconds) for seconds in zip(own_s, received_s, reported_s, stored_s, late_s, strict=True)]
    if in_turn:
        step_s = [a + b for a, b in zip(step_s, sent_s, strict=True)]
        return RequestTimes(tuple(step_s[:-1]), max(totals(names, step_s).values()), sum(step_s))
    # Both steps of a device receive, or report, at the same time where that takes longer than computing.
    waited_s = zip(received_s, reported_s, most_run_s or run_s, strict=False)
    both_s = [max(a - c, 0.0) + max(b - c, 0.0) for a, b, c in waited_s]
    halves_s = [(step_s[part] + _slowed_s(part, carried) + both_s[part]) / STEPS_AT_ONCE for part in range(len(run_s))]
    busy_s = tuple(map(max, run_s, halves_s, received_s, sent_s))
    longest_s = max(*totals(names[:-1], run_s).values(), *totals(names[:-1], halves_s).values())
    return RequestTimes(busy_s, max(longest_s, *load_s.values(), 0.0), sum(step_s))


class _Transfer(NamedTuple):
    """What a step reads, or what goes on from the one before it, over the link of the driver."""

    bytes: int
    bytes_per_s: float  #: if nothing else uses that link.
    begins_s: float  #: when it begins, after the step before has ended.
    most_bytes_per_s: float  #: bandwidth of the link.

    def slowed_s(self, other: "_Transfer") -> float:
        """How much longer it takes since the other one uses the link, too, in max-min fair shares."""
        both_s, rates = [], []
        for one, two in ((self, other), (other, self)):
            ahead = max(two.begins_s - one.begins_s, 0.0) * one.bytes_per_s
            rates.append(min(one.bytes_per_s, max(self.most_bytes_per_s / 2, self.most_bytes_per_s - two.bytes_per_s)))
            both_s.append(max(one.bytes - ahead, 0.0) / rates[-1])
        return min(both_s) * (1 - rates[0] / self.bytes_per_s)


def _slowed_s(part: int, carried: Mapping[tuple[int, int], _Transfer]) -> float:
    """How much longer a part waits for what it reads, since what goes on from its step before uses the link, too."""
    if not (read := [one for (_, reader), one in carried.items() if reader == part]):
        return 0.0
    own = read[0]._replace(bytes=sum(one.bytes for one in read))
    return sum(own.slowed_s(one) for (writer, _), one in carried.items() if writer == part)


def totals(names: Sequence[str], numbers: Iterable[float]) -> dict[str, float]:
    """For each name the sum of its numbers."""
    return {name: sum(own) for name, own in grouped(zip(names, numbers, strict=True)).items()}


def transfers_of(load: Workload, parts: Sequence[Sequence[int]]) -> list[SentTensor]:
    """What parts of a workload send."""
    home = np.empty(load.groups, dtype=np.int64)
    home[[group for part in parts for group in part]] = np.repeat(np.arange(len(parts)), [*map(len, parts)])
    found = list[SentTensor]()
    for item in np.flatnonzero(load.input_bytes).tolist():
        groups = load.sharers.groups_of_items[item]
        found.append(SentTensor(int(load.input_bytes[item]), DRIVER, np.unique(home[[*groups]]).tolist()))
    answered, writer, reader = {tensor for *_, tensor in load.answers}, home[load.writer], home[load.readers.group]
    is_sent = reader != writer[load.readers.item]
    sent = grouped(zip(load.readers.item[is_sent].tolist(), reader[is_sent].tolist(), strict=True))
    for tensor, others in sent.items():
        readers = (*sorted({*others}), *[DRIVER] * (tensor in answered))
        found.append(SentTensor(int(load.tensor_bytes[tensor]), int(writer[tensor]), readers))
    answers = ((group, number) for group, number, tensor in load.answers if number and tensor not in sent)
    return found + [SentTensor(number, int(home[group]), (DRIVER,)) for group, number in answers]
