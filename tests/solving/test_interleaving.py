"""Interleaved plans: a device may have several parts. Against brute force over all assignments of groups to devices."""

# ruff: noqa: S311 - seeds make the same workloads each time, and keep no secrets

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from graphcut.costs.cluster import Cluster
from graphcut.costs.device import Device
from graphcut.planning.by_goal.interleaved_mapping import Valuation
from graphcut.planning.goals import Across
from graphcut.solving.cost_tables import DeviceClass, device_classes
from graphcut.solving.instance import Ints, Workload
from graphcut.solving.interleaving import Interleaving, _Along, _Placement, improved, merged
from graphcut.solving.milp import MilpProblem, solve
from graphcut.solving.order_prefixes import prefix_tables
from graphcut.solving.topological_orders import orders
from graphcut.solving.unavoidable_load import unavoidable_load

from cases import FUZZ
from workloads import workload

GROUPS = 7
CASES = range(FUZZ or 5)
SECOND = 1024  #: bytes that cross a link in a second.


def drawn(seed: int, *, memory_bytes: int | None = None) -> tuple[Workload, Cluster]:
    """Up to seven groups, on two equal devices and a slower one. With a memory limit nothing is sent."""
    draw = random.Random(seed)
    groups = draw.randint(3, GROUPS)
    work = [draw.randint(0, 1024) / 1024 for _ in range(groups)]
    dear = 0 if memory_bytes else draw.choice((64, 512))
    tensors = [
        (
            g,
            sorted(draw.sample(range(g + 1, groups), draw.randint(1, min(3, groups - g - 1)))),
            draw.randint(0, 1) * dear,
        )
        for g in range(groups - 1)
    ]
    load = workload([work, [2 * s for s in work]], tensors, [draw.randint(1, 4) for _ in range(groups)])
    devices = [
        Device(name=name, flops_per_s=speed, link_bytes_per_s=SECOND, latency_s=0.0, memory_bytes=memory_bytes)
        for name, speed in (("a", 2.0), ("b", 2.0), ("slow", 1.0))
    ]
    return load, Cluster(devices=tuple(devices), overlap="none")


def busy_s(load: Workload, device_of: Sequence[int]) -> list[float]:
    """Seconds that each device computes, sends and receives, each tensor once."""
    found = [0.0, 0.0, 0.0]
    for group, device in enumerate(device_of):
        found[device] += float(load.work[device // 2, group])
    for writer, readers, number in zip(
        load.writer.tolist(), load.readers.groups_of_items, load.tensor_bytes.tolist(), strict=True
    ):
        home = device_of[writer]
        others = {device_of[reader] for reader in readers} - {home}
        for device in (*others, *([home] if others else [])):
            found[device] += number / SECOND
    return found


def assignments(load: Workload, memory_bytes: float = inf) -> Iterator[tuple[int, ...]]:
    """All ways to give each group a device that have the memory."""
    own = load.own_bytes.tolist()
    for device_of in itertools.product(range(3), repeat=load.groups):
        held = [0, 0, 0]
        for group, device in enumerate(device_of):
            held[device] += own[group]
        if max(held) <= memory_bytes:
            yield device_of


@cache
def planned(seed: int, memory_bytes: int | None = None) -> tuple[Interleaving, float, float]:
    """The interleaving found from everything on the first device, its period, and a lower bound."""
    load, cluster = drawn(seed, memory_bytes=memory_bytes)
    valuation = Valuation(load, device_classes(cluster), Across(cluster))
    bound = unavoidable_load(load, valuation.classes)
    return *valuation.best_interleaving(Interleaving((next(orders(load)),), (0,)), bound), bound


def test_interleavings_are_valued_exactly_and_are_hardly_above_the_best_of_all_assignments() -> None:
    equal = 0
    for seed in CASES:
        load, _ = drawn(seed)
        found, period_s, bound = planned(seed)
        home = {group: device for part, device in zip(found.parts, found.devices, strict=True) for group in part}
        best = min(max(busy_s(load, device_of)) for device_of in assignments(load))
        assert sorted(home) == list(range(load.groups))
        assert period_s == pytest.approx(max(busy_s(load, [home[g] for g in range(load.groups)])), rel=1e-12)
        assert bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-12) <= period_s <= best * 1.2
        equal += period_s <= best * (1 + 1e-9)
    assert equal >= 0.9 * len(CASES)


def test_parts_of_an_interleaving_run_in_order() -> None:
    for seed in CASES:
        load, parts = drawn(seed)[0], planned(seed)[0].parts
        home = {group: p for p, part in enumerate(parts) for group in part}
        assert all(home[writer] <= home[reader] for writer, after in enumerate(load.edges[1]) for reader in after)


@pytest.mark.parametrize("memory_bytes", [7, 9])
def test_the_parts_of_a_device_fit_in_its_memory_together(memory_bytes: int) -> None:
    for seed in CASES[:6]:
        load, _ = drawn(seed, memory_bytes=memory_bytes)
        found, period_s, _ = planned(seed, memory_bytes)
        best = min((max(busy_s(load, of)) for of in assignments(load, memory_bytes)), default=inf)
        held = [0, 0, 0]
        for part, device in zip(found.parts, found.devices, strict=True):
            held[device] += int(load.own_bytes[list(part)].sum())
        assert (period_s < inf) == (best < inf)
        assert best * (1 - 1e-12) <= period_s
        assert period_s == inf or max(held) <= memory_bytes


@pytest.mark.parametrize(
    ("seconds", "memory_bytes", "better", "worse"),
    [
        ([[1, 0], [1, 0]], 3, [0, 1], [0, 0]),  # each group on its own device lacks less
        ([[2, 1], [2, 2]], None, [1, 0], [0, 1]),  # the other device computes 1 s, not 2
    ],
)
def test_of_candidates_of_one_period_the_one_that_lacks_and_computes_less_is_better(
    seconds: list[list[float]], memory_bytes: int | None, better: list[int], worse: list[int]
) -> None:
    load = workload(seconds, [], [4, 4])
    devices = [Device(name=str(flops), flops_per_s=flops, memory_bytes=memory_bytes) for flops in (2.0, 1.0)]
    cluster = Cluster(devices=tuple(devices), overlap="none")
    along = _Along(prefix_tables(load, (0, 1), [0, 1, 2]), device_classes(cluster), cluster)
    one, other = _Placement(along, better), _Placement(along, worse)
    assert one.busiest_s == other.busiest_s
    assert one.score < other.score


def test_a_change_costs_what_the_placement_that_it_makes_costs() -> None:
    for seed in CASES:
        load, cluster = drawn(seed)
        along = _Along(
            prefix_tables(load, next(orders(load)), range(load.groups + 1)), device_classes(cluster), cluster
        )
        draw, found = random.Random(seed), _Placement(along, [0] * load.groups)
        for _ in range(20):
            found = found.changed(found.drawn_changes(draw))
            anew = _Placement(along, found.device_of)
            assert found.ends == anew.ends
            assert found.score == pytest.approx(anew.score, rel=1e-12)


def test_the_first_and_the_last_part_are_on_one_device_where_they_share_a_large_tensor() -> None:
    """Twelve layers of ten groups of 1 s; 2 s are sent between layers, 30 s inside them, 40 s from first to last."""
    last, devices = 119, [Device(name=str(i), link_bytes_per_s=SECOND, latency_s=0.0) for i in range(6)]
    tensors = [(g, (g + 1,), (2 if g % 10 == 9 else 30) * SECOND) for g in range(1, last)]
    load = workload([[1.0] * (last + 1)], [(0, (1, last), 40 * SECOND), *tensors])
    cluster = Cluster(devices=tuple(devices), overlap="none")
    layers = tuple(tuple(range(20 * i, 20 * i + 20)) for i in range(6))
    classes = device_classes(cluster)
    found = improved(Interleaving(layers, (0, 1, 2, 3, 4, 5)), load, classes, cluster)
    two_layers_s = 20 + 2 + 2
    assert Valuation(load, classes, Across(cluster)).period_s(found) == two_layers_s


def test_a_device_on_the_machine_of_the_driver_sends_it_answers_in_no_time() -> None:
    devices = tuple(Device(name=name, link_bytes_per_s=SECOND, latency_s=0) for name in "ab")
    cluster = Cluster(devices=devices, origin="a", overlap="none")
    load = replace(workload([[1], [1]], []), answers=((0, 3 * SECOND, -1),))
    classes = [DeviceClass((device,), inf, 1 / SECOND, 0.0) for device in devices]
    along = _Along(prefix_tables(load, (0,), [0, 1]), classes, cluster)
    assert [_Placement(along, [device]).busiest_s for device in (0, 1)] == [1, 1 + 3]


def test_the_unavoidable_load_is_the_least_of_any_device_that_runs_the_group() -> None:
    for seed in CASES:
        load, cluster = drawn(seed)
        classes = device_classes(cluster)
        least = [
            min(busy_s(load, of)[device] for of in assignments(load) for device in (0, 2) if of[group] == device)
            for group in range(load.groups)
        ]
        assert unavoidable_load(load, classes) == pytest.approx(max(least), rel=1e-9)


def test_a_device_receives_what_it_cannot_compute_itself() -> None:
    """Device b runs group 1 in 2 s and can't run group 0, so it receives 4 s; device a would compute for 1 + 10 s."""
    load = workload([[1.0, 10.0], [np.inf, 2.0]], [(0, (1,), 4 * SECOND)])
    classes = [DeviceClass((Device(name=name),), np.inf, 1 / SECOND, 0.0) for name in "ab"]
    assert unavoidable_load(load, classes) == 2 + 4


def test_the_unavoidable_load_is_0_of_more_groups_than_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    load = workload([[1.0] * 4], [])
    classes = [DeviceClass((Device(name="a"),), np.inf, 0.0, 0.0)]
    for most, bound in ((4, 1.0), (3, 0.0)):
        monkeypatch.setattr("graphcut.solving.unavoidable_load._MOST_GROUPS", most)
        assert unavoidable_load(load, classes) == bound


def test_the_unavoidable_load_bounds_devices_that_receive_while_they_compute() -> None:
    """A device has two steps at a time: it computes, or half of what it computes and receives is more."""
    is_reached = 0
    for seed in CASES:
        load, cluster = drawn(seed)
        classes, nothing = device_classes(cluster), np.zeros_like(load.tensor_bytes)

        def two_steps(device_of: Sequence[int], load: Workload = load, nothing: Ints = nothing) -> list[float]:
            computed = busy_s(replace(load, tensor_bytes=nothing), device_of)
            sent = [0.0, 0.0, 0.0]
            for writer, readers, number in zip(
                load.writer, load.readers.groups_of_items, load.tensor_bytes, strict=True
            ):
                if any(device_of[reader] != device_of[writer] for reader in readers):
                    sent[device_of[writer]] += number / SECOND
            every = zip(computed, busy_s(load, device_of), sent, strict=True)
            return [max(run_s, (step_s - sent_s) / 2) for run_s, step_s, sent_s in every]

        least = [
            min(two_steps(of)[device] for of in assignments(load) for device in (0, 2) if of[group] == device)
            for group in range(load.groups)
        ]
        bound = unavoidable_load(load, classes, "all")
        assert bound <= max(least) * (1 + 1e-9)
        is_reached += bound >= max(least) * (1 - 1e-9)
    assert is_reached


def test_the_exact_solver_bounds_all_assignments() -> None:
    for seed in CASES[:6]:
        load, cluster = drawn(seed)
        problem = MilpProblem(load, device_classes(cluster), (2, 1), "period", is_ordered=False)
        best = min(max(busy_s(load, device_of)) for device_of in assignments(load))
        assert solve(problem, time_limit_s=60).bound == pytest.approx(best, rel=1e-6)


def test_parts_of_a_device_are_merged_where_nothing_must_run_between_them() -> None:
    """Groups 0 → 1 → 2, and 3: with 1 elsewhere 0 and 2 stay apart, and 3 joins one of them."""
    load = workload([[1.0] * 4], [(0, (1,), 1), (1, (2,), 1)])
    apart = Interleaving(((0,), (1,), (2,), (3,)), (0, 1, 0, 0))
    assert merged(load, apart) == Interleaving(((0, 3), (1,), (2,)), (0, 1, 0))
    assert merged(load, Interleaving(((0,), (3,), (1,), (2,)), (0, 1, 0, 0))) == Interleaving(((0, 1, 2), (3,)), (0, 1))


def test_of_interleavings_of_one_period_that_with_fewer_parts_is_taken() -> None:
    load, cluster = workload([[1.0] * 2], [(0, (1,), 1)]), Cluster(devices=(Device(name="a"),), overlap="none")
    valuation = Valuation(load, device_classes(cluster), Across(cluster))
    assert valuation.best_interleaving(Interleaving(((0,), (1,)), (0, 0)), 0.0) == (Interleaving(((0, 1),), (0,)), 2.0)


def test_latency_counts_for_each_part_that_receives_and_a_tensor_once_for_each_device() -> None:
    """Parts of a: 0, 2 and 4; of b: 1 and 3. Group 0 is read in both parts of b and in the last one of a."""
    tensors = [(0, (1, 3, 4), 10 * SECOND), (1, (2,), SECOND), (2, (3,), SECOND), (3, (4,), SECOND)]
    load = workload([[1.0] * 5], tensors)
    devices = tuple(Device(name=name, link_bytes_per_s=SECOND, latency_s=0.25) for name in "ab")
    cluster = Cluster(devices=devices, overlap="none")
    valuation = Valuation(load, device_classes(cluster), Across(cluster))
    alternating = Interleaving(((0,), (1,), (2,), (3,), (4,)), (0, 1, 0, 1, 0))
    sent_s = 10 + 1 + 1 + 1
    assert valuation.period_s(alternating) == max(3 + sent_s + 2 * 0.25, 2 + sent_s + 2 * 0.25)


@pytest.mark.parametrize(("latency_s", "best_s", "parts"), [(0, 2, 3), (2, 3, 2)])
def test_the_more_parts_receive_the_more_latency_their_devices_wait(latency_s: int, best_s: int, parts: int) -> None:
    """Of groups of 1, 2 and 1 s one device takes the outer ones, or else the first two: only one part receives then.

    With latency two devices of 2 s would each wait for 2 s more.
    """
    load = workload([[1, 2, 1]], [(0, (1,), 1), (1, (2,), 1)])
    devices = tuple(Device(name=name, link_bytes_per_s=1e9, latency_s=latency_s) for name in "ab")
    cluster = Cluster(devices=devices, overlap="none")
    classes = device_classes(cluster)
    found = improved(Interleaving(((0,), (1, 2)), (0, 1)), load, classes, cluster)
    assert len(found.parts) == parts
    assert Valuation(load, classes, Across(cluster)).period_s(found) == pytest.approx(best_s)
