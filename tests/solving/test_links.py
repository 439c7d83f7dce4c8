"""Plans over links that differ, with the driver's inputs and answers, against all divisions on all devices."""

# ruff: noqa: S311 - seeds make the same workloads each time, and keep no secrets

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import pytest
from msgspec import structs
from test_solver import Brute, Division, divided, less_is_better, problem_for, seconds_of

from graphcut.costs.cluster import Cluster, Host, NetworkLink, Overlap
from graphcut.costs.device import COUNTING, Device
from graphcut.planning.by_goal.cluster_mapping import ClusterEvaluator, plan_across
from graphcut.planning.goals import Across, Objective
from graphcut.planning.problem import PlanningProblem
from graphcut.solving.chain_dp import ChainPartition
from graphcut.solving.cost_tables import device_classes, pair_costs, time_quantum
from graphcut.solving.instance import Hyperedges, Workload
from graphcut.solving.linked_chains import LinkedChains
from graphcut.solving.order_ideals import ideal_tables
from graphcut.solving.transfers import RequestTimes, _Transfer, request_times, transfers_of

from cases import each, seeded
from workloads import workload

__all__ = ("problem_for",)
OBJECTIVES: tuple[tuple[Objective, int], ...] = (("throughput", 1), ("latency", 1), ("decode", 3))
OVERLAPS: tuple[Overlap, ...] = ("none", "all")


def random_chain_or_graph(draw: random.Random, groups: int, kinds: int) -> Workload:
    """A workload of one kind of device for each device, with inputs and answers."""
    is_chain = draw.random() < 0.4
    smallest = draw.choice((1, 101, 1))  # in thousands; some workloads have small tensors, which go by the driver
    largest = draw.choice((100, 1000, 1000)) if smallest == 1 else 1000
    tensors = []
    for writer in range(groups - 1):
        readers = {writer + 1} if is_chain or draw.random() < 0.6 else set()
        if not is_chain:
            readers |= {reader for reader in range(writer + 1, groups) if draw.random() < 0.4}
        if readers:
            tensors.append((writer, readers, draw.randint(smallest, largest) * 1000))
    seconds = [draw.uniform(0.1, 5) for _ in range(groups)]
    factors = [draw.choice((1, 2, 5)) for _ in range(kinds)]
    inputs = [draw.sample(range(groups), draw.randint(1, groups)) for _ in range(draw.randint(0, 2))]
    answers = [draw.randrange(groups) for _ in range(draw.randint(0, 4))]
    load = workload(
        [[s * factor for s in seconds] for factor in factors], tensors, [draw.randint(1, 5) for _ in seconds]
    )
    return dataclasses.replace(
        load,
        sharers=Hyperedges.of(inputs),
        shared_bytes=np.zeros(len(inputs), dtype=np.int64),
        shared_work=np.zeros((kinds, len(inputs))),
        input_bytes=np.array([draw.choice((1, 1, 10)) * draw.randint(1, 100) * 1000 for _ in inputs], dtype=np.int64),
        answers=tuple((group, draw.choice((0, 8, 60_000, 400_000)), -1) for group in answers),
    )


def with_read_outputs(draw: random.Random, load: Workload) -> Workload:
    """The workload, of which some tensors that other groups read are outputs, too."""
    tensors = [tensor for tensor in range(len(load.writer)) if draw.random() < 0.6]
    return dataclasses.replace(
        load,
        answers=(*load.answers, *((int(load.writer[t]), int(load.tensor_bytes[t]), t) for t in tensors)),
    )


def random_cluster(draw: random.Random, number: int, overlap: Overlap) -> Cluster:
    """Devices, links and a driver whose bandwidths differ by up to 300 times."""
    late = partial(draw.choice, (0.0, 0.01, 0.3))

    def rate() -> float:
        return 10 ** draw.uniform(4.5, 7)

    names = [f"d{i}" for i in range(number)]
    room = partial(draw.choice, (None, None, 9))
    devices = tuple(Device(name=n, link_bytes_per_s=rate(), latency_s=late(), memory_bytes=room()) for n in names)
    host = Host(name="laptop", link_bytes_per_s=rate(), latency_s=late())
    origin = draw.choice((None, "d0", host))
    pairs = list(itertools.combinations([*names, *(["laptop"] if origin is host else [])], 2))
    chosen = draw.sample(pairs, draw.randint(0, len(pairs)))
    links = tuple(NetworkLink(between=pair, bytes_per_s=rate(), latency_s=late()) for pair in chosen)
    store_s, step_s = draw.choice((0.0, 0.2)), late()
    return Cluster(devices=devices, links=links, origin=origin, overlap=overlap, store_s=store_s, step_s=step_s)


def messages(load: Workload, division: Division) -> Iterator[tuple[int, int, set[int]]]:
    """Bytes, the part that has them, the parts that read them; the driver has the number behind the last part."""
    home = {g: p for p, part in enumerate(division) for g in range(load.groups) if part >> g & 1}
    end = len(division)
    for number, groups in zip(load.input_bytes.tolist(), load.sharers.groups_of_items, strict=True):
        yield number, end, {home[g] for g in groups}
    tensors = zip(load.tensor_bytes.tolist(), load.writer.tolist(), load.readers.groups_of_items, strict=True)
    answered = {tensor for *_, tensor in load.answers if tensor >= 0}
    for tensor, (number, writer, groups) in enumerate(tensors):
        yield (
            number,
            home[writer],
            ({home[g] for g in groups} | ({end} if tensor in answered else set())) - {home[writer]},
        )
    for group, number, tensor in load.answers:
        if tensor < 0:
            yield number, home[group], {end}


def arrival_s(own: Sequence[float], other: Sequence[float], link: float) -> float:
    """When the first of two transfers over a link has arrived; each has its bytes, its rate alone and its begin."""
    left, now = [own[0], other[0]], 0.0
    while left[0] > 0:
        on = [i for i, one in enumerate((own, other)) if one[2] <= now and left[i] > 0]
        rates = [own[1], other[1]]
        if len(on) == 2 and sum(rates) > link:
            slower = rates.index(min(rates))
            rates[slower] = min(rates[slower], link / 2)
            rates[1 - slower] = link - rates[slower]
        ends = [(now + left[i] / rates[i], i) for i in on]
        begins = [(one[2], None) for one in (own, other) if one[2] > now]
        after, which = min([*ends, *begins], key=lambda event: event[0])
        for i in on:
            left[i] = 0.0 if i == which else left[i] - rates[i] * (after - now)
        now = after
    return now


def slowed_s(part: int, carried: Mapping[tuple[int, int], Sequence[float]], link: float) -> float:
    """How much longer what a part reads takes, since each transfer of what it wrote uses the link, too."""
    read = [one for (_, reader), one in carried.items() if reader == part]
    others = [one for (writer, _), one in carried.items() if writer == part]
    if not read:
        return 0.0
    whole = (sum(number for number, *_ in read), *read[0][1:])
    alone_s = whole[2] + whole[0] / whole[1]
    return sum(arrival_s(whole, other, link) - alone_s for other in others)


def reference(  # noqa: C901 - one rule after the other
    load: Workload, division: Division, row: Sequence[int], cluster: Cluster
) -> tuple[float, float]:
    """The period and the latency as docs/explanation/planning.md has them: each message written down, and added up."""
    at = [*(cluster.devices[i] for i in row), cluster.driver]
    direct = {frozenset(link.between): link for link in cluster.links}
    in_turn, end = cluster.overlap == "none", len(division)
    received, reported, stored, sending = ([0.0] * (end + 1) for _ in range(4))
    link_s = defaultdict[object, float](float)
    late: list[set[float]] = [{0.0} for _ in at]
    carried = dict[tuple[int, int], tuple[float, float, float]]()
    for number, source, readers in messages(load, division):
        over_router, is_relayed, reached = False, False, set[str]()
        is_small = not in_turn and number <= 100_000
        if is_small and source != end:
            is_relayed = any(at[reader].name != at[source].name for reader in readers)
        for reader in (
            ([end] if is_relayed else []) + sorted(readers - {end} if is_relayed else readers) if number else ()
        ):
            a, b = at[end if is_relayed and reader != end else source], at[reader]
            if a.name == b.name or at[source].name == b.name or b.name in reached:
                continue
            reached.add(b.name)
            stored[reader] += cluster.store_s * (not in_turn and not is_small)
            if (link := direct.get(frozenset((a.name, b.name)))) is not None:
                waiting, waits = (source, reported) if is_small and reader == end else (reader, received)
                waits[waiting] += number / link.bytes_per_s
                sending[source] += number / link.bytes_per_s
                link_s[a.name, b.name] += number / link.bytes_per_s
                late[reader].add(link.latency_s * (not is_small))
            else:
                slower = b.link_bytes_per_s if in_turn else min(a.link_bytes_per_s, b.link_bytes_per_s)
                waiting, waits = (source, reported) if is_small and reader == end else (reader, received)
                waits[waiting] += number / slower
                sending[source] += number / a.link_bytes_per_s * (not over_router)
                link_s["up", a.name] += number / a.link_bytes_per_s
                link_s["down", b.name] += number / b.link_bytes_per_s
                late[reader].add(b.latency_s * (not is_small))
                over_router = True
                if a.name == cluster.driver.name:
                    total = number + carried.get((source, reader), (0,))[0]
                    carried[source, reader] = (total, slower, b.latency_s)
    groups = [[g for g in range(load.groups) if part >> g & 1] for part in division]
    own = [float(load.work[i, members].sum()) for i, members in zip(row, groups, strict=True)]
    run = [*own]
    for part in range(end):
        link = direct.get(frozenset((cluster.driver.name, at[part].name)))
        message_s = at[part].latency_s if link is None else link.latency_s
        own[part] += 0 if in_turn else cluster.step_s
        own[part] += 0 if in_turn or at[part].name == cluster.driver.name else 2 * message_s
    waited = [sum(seconds) for seconds in zip(received, reported, stored, map(max, late), strict=True)]
    step = [a + b for a, b in zip([*own, 0.0], waited, strict=True)]
    if not in_turn:
        link_rate = cluster.driver.link_bytes_per_s
        halves = [(step_s + slowed_s(i, carried, link_rate)) / 2 for i, step_s in enumerate(step[:end])]
        for i, (run_s, *transfers) in enumerate(zip(run, received, reported, strict=False)):
            halves[i] += sum(max(seconds - run_s, 0) for seconds in transfers) / 2
        return max(*run, *halves, *link_s.values(), 0.0), sum(step)
    busy = defaultdict[str, float](float)
    for machine, waiting_s, sending_s in zip(at, step, sending, strict=True):
        busy[machine.name] += waiting_s + sending_s
    return max(busy.values()), sum(busy.values())


def all_plans(load: Workload, cluster: Cluster) -> Iterator[tuple[float, float]]:
    brute = Brute(load)
    for division in brute.divisions(len(cluster.devices)):
        needed = [brute.memory(part, COUNTING) for part in division]
        for row in itertools.permutations(range(len(cluster.devices)), len(division)):
            room = [cluster.devices[i].memory_bytes for i in row]
            if all(most is None or need <= most for most, need in zip(room, needed, strict=True)):
                yield reference(load, division, row, cluster)


def value(objective: Objective, in_flight: int, period: float, latency: float) -> float:
    if objective == "decode":
        return max(latency / in_flight, period)
    return period if objective == "throughput" else latency


@each("overlap", OVERLAPS)
@seeded(10, 52, 95, 104, 116, 625, together=5)  # the last ones: small tensors that are late, object stores
def test_no_plan_is_better_on_any_links(
    seed: int, overlap: Overlap, problem_for: Callable[..., PlanningProblem]
) -> None:
    """The value is the true one, it is the best of all, and proven to be."""
    draw = random.Random(seed)
    number = draw.randint(2, 4)
    load, cluster = random_chain_or_graph(draw, draw.randint(2, 5), number), random_cluster(draw, number, overlap)
    load = with_read_outputs(draw, load) if seed % 3 == 1 else load
    known = list(all_plans(load, cluster))
    for objective, in_flight in OBJECTIVES if known else ():
        goal = Across(cluster, objective, in_flight)
        solution = plan_across(problem_for(load), goal, lambda device: seconds_of(load, int(device.name[1:])))
        row = [int(device.name[1:]) for device in solution.devices]
        own = value(objective, in_flight, *reference(load, divided(solution), row, cluster))
        assert less_is_better(solution.outcome.value, objective) == pytest.approx(own, rel=1e-9)
        assert own == pytest.approx(min(value(objective, in_flight, *times) for times in known), rel=1e-9)
        assert solution.outcome.is_optimal


@each("overlap", OVERLAPS)
@seeded(4, together=4)
def test_every_plan_has_the_times_of_the_rules(seed: int, overlap: Overlap) -> None:
    draw = random.Random(seed)
    load = random_chain_or_graph(draw, 5, 3)
    load = dataclasses.replace(load, tensor_bytes=load.tensor_bytes // draw.choice((1, 10)))
    load, cluster = with_read_outputs(draw, load), random_cluster(draw, 3, overlap)
    for division in Brute(load).divisions(3):
        parts = [[group for group in range(load.groups) if part >> group & 1] for part in division]
        for row in itertools.permutations(range(3), len(parts)):
            run_s = [float(load.work[i, part].sum()) for i, part in zip(row, parts, strict=True)]
            times = request_times(transfers_of(load, parts), run_s, [cluster.devices[i] for i in row], cluster)
            assert (times.period_s, times.latency_s) == pytest.approx(reference(load, division, row, cluster))


@seeded(3)
def test_twelve_linked_devices_are_planned_with_a_valid_bound(
    seed: int, problem_for: Callable[..., PlanningProblem]
) -> None:
    draw = random.Random(100 + seed)
    load, cluster = random_chain_or_graph(draw, 3, 12), random_cluster(draw, 12, "all")
    least = min(value("throughput", 1, *times) for times in all_plans(load, cluster))
    found = plan_across(problem_for(load), Across(cluster), lambda d: seconds_of(load, int(d.name[1:])))
    assert found.bound * (1 - 1e-9) <= least <= found.value * (1 + 1e-9) <= least * 1.03


@pytest.mark.parametrize("many", [160, 1])
def test_of_plans_with_the_shortest_period_that_with_the_least_latency_is_taken(
    many: int, problem_for: Callable[..., PlanningProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last group takes 4 s on any device, and what it reads comes later over the link of `slow`.

    So it is of many groups, too, if all order ideals are known.
    """
    monkeypatch.setattr("graphcut.planning.by_goal.cluster_mapping._MANY_GROUPS", many)
    rates = {"slow": 1e6, "near": 1e9, "far": 1e9}
    devices = tuple(Device(name=name, link_bytes_per_s=rate, latency_s=0) for name, rate in rates.items())
    load = workload([[1, 1, 4]] * 3, [(0, (1,), 200_000), (1, (2,), 200_000)])
    solution = plan_across(problem_for(load), Across(Cluster(devices=devices)), lambda _: seconds_of(load))
    assert solution.value == 4
    assert {device.name for device in solution.devices} == {"near", "far"}


def chains_of(load: Workload, cluster: Cluster, cls: type[LinkedChains] = LinkedChains) -> LinkedChains:
    """All partitions of a workload that has a row for each kind of device in the cluster."""
    classes, tables = device_classes(cluster), ideal_tables(load, most=1000)
    assert tables
    pairs, fits = pair_costs(classes, cluster, load), [np.isfinite(tables.work(c)) for c in range(len(classes))]
    return cls(tables, classes, pairs, cluster, time_quantum(load, classes, pairs), fits, None, None, 1e9)


@pytest.mark.parametrize(
    ("seconds", "number", "latency_s"),
    [
        (3, 200_000, (0.5 + 3) + (0.5 + 2 + 1)),
        (3, 100_000, (0.5 + 3 + 1) + (0.5 + 1 + 1)),  # a small tensor goes to the driver, and on from there
        (0, 200_000, 0.5 + 2 + 1),  # what ran before has no step
    ],
)
def test_the_bound_of_a_chain_is_what_its_only_plan_takes(seconds: int, number: int, latency_s: float) -> None:
    """A device each can run only one group: `a` the first, in some seconds, and `b` the second, in 1 s.

    A step takes 0.5 s besides, and links carry 100 kB a second.
    """
    load = workload([[seconds, np.inf], [np.inf, 1]], [(0, (1,), number)])
    a = Device(name="a", link_bytes_per_s=1e5, latency_s=0)
    b = structs.replace(a, name="b", flops_per_s=1.0)
    host = Host(link_bytes_per_s=1e9, latency_s=0)
    chains = chains_of(load, Cluster(devices=(a, b), origin=host, step_s=0.5))
    best = chains.best("sum")
    assert best is not None
    assert (chains.lower_bound("sum"), best.values[0]) == pytest.approx((latency_s, latency_s))


@each("seconds", [0, 2])
def test_a_limit_of_the_period_may_be_reached(seconds: int) -> None:
    load = workload([[seconds] * 3], [])
    devices = tuple(Device(name=name, latency_s=0) for name in "abc")
    best = chains_of(load, Cluster(devices=devices, origin=Host(latency_s=0))).best("sum", limit=seconds)
    assert best is not None
    assert best.values[1] == pytest.approx(seconds)


@seeded(20, together=20)
def test_a_search_values_a_plan_in_full_only_if_it_is_better_than_those_before(seed: int) -> None:
    """What a part waits for is known as soon as the devices are that wrote what it reads, if these tensors are large.

    So no plan is completed whose parts take longer together than the best plan so far. A device can run half of the
    groups, so that much is sent.
    """
    valued = list[float]()

    class Valued(LinkedChains):
        def times(self, boundaries: Sequence[int], classes: Sequence[int]) -> RequestTimes:
            found = super().times(boundaries, classes)
            valued.append(found.latency_s)
            return found

    draw = random.Random(seed)
    load, cluster = random_chain_or_graph(draw, 8, 6), random_cluster(draw, 6, "all")
    work = np.array([[s if draw.random() < 0.5 else np.inf for s in row] for row in load.work.tolist()])
    load = dataclasses.replace(load, work=work, tensor_bytes=load.tensor_bytes + 100_000, answers=())
    best = chains_of(load, structs.replace(cluster, store_s=0.0), Valued).best("sum")
    assert all(after < before for before, after in itertools.pairwise(valued))
    assert valued[-1:] == ([] if best is None else [best.values[0]])


@pytest.mark.parametrize(("work", "best"), [([[1], [1]], 0), ([[np.inf], [1]], 400 + 300)])
def test_inputs_and_answers_cross_no_link_to_a_device_where_the_driver_is(
    work: list[list[float]], best: int, problem_for: Callable[..., PlanningProblem]
) -> None:
    """The driver is on `d0`. A plan for the fewest bytes runs the group there if it can."""
    load = dataclasses.replace(
        workload(work, []),
        sharers=Hyperedges.of([(0,)]),
        shared_bytes=np.zeros(1, dtype=np.int64),
        shared_work=np.zeros((2, 1)),
        input_bytes=np.array([400]),
        answers=((0, 300, -1),),
    )
    goal = Across(Cluster(devices=(Device(name="d0"), Device(name="d1")), origin="d0"), "bytes")
    solution = plan_across(problem_for(load), goal, lambda device: seconds_of(load, int(device.name[1:])))
    assert solution.value == best


@seeded(40, together=20)
def test_no_plan_sends_fewer_bytes_over_links_than_the_best_or_than_the_bound_that_takes_no_search(
    seed: int, problem_for: Callable[..., PlanningProblem]
) -> None:
    """The bound has all inputs and answers, unless the driver is on one of the devices."""
    draw = random.Random(seed)
    number = draw.randint(2, 4)
    load, cluster = random_chain_or_graph(draw, draw.randint(2, 5), number), random_cluster(draw, number, "all")
    load = with_read_outputs(draw, load) if seed % 3 == 1 else load
    names, brute, best = [*(device.name for device in cluster.devices), cluster.driver.name], Brute(load), np.inf
    for division in brute.divisions(number):
        for row in itertools.permutations(cluster.devices, len(division)):
            needed = zip((brute.memory(part, COUNTING) for part in division), row, strict=True)
            if all(device.memory_bytes is None or need <= device.memory_bytes for need, device in needed):
                at = [*(device.name for device in row), cluster.driver.name]
                sent = messages(load, division)
                best = min(best, sum(n * sum(at[r] != at[source] for r in readers) for n, source, readers in sent))
    if best < np.inf:
        solution = plan_across(problem_for(load), Across(cluster, "bytes"), lambda d: seconds_of(load, int(d.name[1:])))
        driven = int(load.input_bytes.sum()) + sum(size for _, size, _ in load.answers)
        assert (solution.value, solution.outcome.is_optimal) == (best, True)
        assert solution.bounds.simple == (driven if names.count(cluster.driver.name) == 1 else 0) <= best


def test_after_a_search_that_was_stopped_nothing_is_proven(problem_for: Callable[..., PlanningProblem]) -> None:
    """With a limit of 6 s the search stops at a plan of 7 s. The best takes 6.4 s, and is found with a larger limit."""

    class Chains:
        def lower_bound(self, aggregation: str) -> float:
            return 4.0 if aggregation == "sum" else 1.0

        def best(self, _: str, limit: float = np.inf) -> ChainPartition | None:
            latency_s = {np.inf: 8.0, 6.0: 7.0}.get(limit, 6.4)
            is_found = latency_s <= limit or limit == 6.0
            return ChainPartition((), (), (latency_s, 1.0), is_best=limit != 6.0) if is_found else None

    load, cluster = workload([[1]], []), Cluster(devices=(Device(name="d0"),))
    evaluator = ClusterEvaluator.of(problem_for(load), Across(cluster, "decode", 1), lambda _: seconds_of(load))
    found = evaluator._most_tokens(cast(LinkedChains, Chains()))
    assert found is not None
    assert (found.values[0], found.is_best) == (6.4, False)


@pytest.mark.parametrize(("later_s", "longer_s"), [(0, 10), (2, 8)])
def test_a_transfer_takes_longer_by_what_another_one_takes_of_its_link_meanwhile(later_s: int, longer_s: int) -> None:
    """1,000 bytes at 100 bytes a second, or at 50 while the other one uses the link, too."""
    own = _Transfer(1000, 100.0, 1.0, 100.0)
    assert own.slowed_s(own._replace(begins_s=1.0 + later_s)) == longer_s
