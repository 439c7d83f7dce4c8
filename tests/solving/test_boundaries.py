"""What parts pay at least for values that they compute or receive, on workloads small enough to add up by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_solver import problem_for, seconds_of

from graphcut.costs.cluster import Cluster, Host, NetworkLink, Overlap
from graphcut.costs.device import Device
from graphcut.planning.by_goal.cluster_mapping import ClusterEvaluator, plan_across
from graphcut.planning.by_goal.memory_budget import plan_within
from graphcut.planning.goals import Across, Objective, Within
from graphcut.planning.problem import PlanningProblem
from graphcut.solving.boundaries import Relaxation
from graphcut.solving.cost_tables import DeviceClass, device_classes, pair_costs, time_quantum
from graphcut.solving.instance import Hyperedges, Replicas, Workload, quantum_for
from graphcut.solving.linked_chains import driver_s
from graphcut.solving.order_ideals import ideal_tables
from graphcut.solving.relaxed_tables import LowerBounds
from graphcut.solving.transfers import DRIVER, SentTensor, request_times

from workloads import workload

__all__ = ("problem_for",)
Problems = Callable[..., PlanningProblem]


def with_value(
    without: Workload, readers: tuple[int, ...], *, work: float = 0, own: int = 0, sent: int = 0
) -> Workload:
    """The workload, and a value: seconds and bytes of computing it, and bytes to receive it instead."""
    users, rows = Hyperedges.of([readers]), np.full((len(without.work), 1), float(work))
    replicas = Replicas(users, ((),), rows, np.array([own]), np.array([sent]), np.array([0]), without)
    return replace(without, sharers=users, shared_bytes=np.array([own]), shared_work=rows, replicas=replicas)


def test_answers_that_others_read_and_those_that_do_not_count_are_left_out() -> None:
    load = replace(workload([[1, 1]], [(0, (1,), 8)]), answers=((0, 8, 0), (1, 4, -1), (1, 2, -1)))
    tables = ideal_tables(load, most=9)
    assert tables
    assert tables.answers[1:, 0].tolist() == [8, 14]
    assert tables.answers_of(lambda number: number > 2)[1:, 0].tolist() == [0, 4]


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_part_that_nothing_runs_before_computes_its_values_for_certain(is_first: bool) -> None:  # noqa: FBT001
    """Of the parts {0, 1} and {1}; a value is computed of an input of 40 bytes; another one of 10 goes to group 1."""
    without = replace(
        workload([[1, 1]], []),
        sharers=Hyperedges.of([(1,)]),
        shared_bytes=np.array([2]),
        shared_work=np.zeros((1, 1)),
        input_bytes=np.array([10]),
    )
    numbers = (np.array([6]), np.array([8]), np.array([1]))
    replicas = Replicas(Hyperedges.of([(0, 1)]), ((),), np.zeros((1, 1)), *numbers, without)
    load = replace(
        without,
        sharers=Hyperedges.of([(0, 1), (0, 1), (1,)]),
        shared_bytes=np.array([7, 5, 2]),
        shared_work=np.zeros((1, 3)),
        input_bytes=np.array([0, 40, 10]),
        replicas=replicas,
    )
    given, of_value = ideal_tables(load, most=9), np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
    assert given
    relaxation = Relaxation(given, replicas, ([[], [0]], of_value), is_first=is_first)
    tables = relaxation.tables
    assert tables.shared_bytes[3, :2].tolist() == [7 + 5 + 2 if is_first else 2 + 1, 2 + 1]
    assert tables.inputs[3, :2].tolist() == [40 + 10 if is_first else 10, 10]
    assert tables.inputs_of(lambda number: number > 20)[3, :2].tolist() == [40 if is_first else 0, 0]
    own, of_value_alone = SentTensor(10, DRIVER, [1]), SentTensor(40, DRIVER, (0,))
    assert tables.transfers([(0,), (1,)]) == [own, of_value_alone][: 1 + is_first]


def test_a_part_that_holds_a_value_alone_counts_as_one_more(problem_for: Problems) -> None:
    """Whoever computes the value of 60 bytes has no room for 0 and 1, or for 1 and 2 beside what 1 reads: 3 parts.

    But groups 0, 1 and 2 fit into one part of 100 bytes that receives it from another one.
    """
    without = workload([[0, 0, 0]], [(0, (1,), 50), (1, (2,), 0)], [20, 40, 40])
    problem = problem_for(with_value(without, (0, 2), own=60))
    solution = plan_within(problem, Within(100, counting=("inputs",)), Device(name="d"))
    assert solution.found.parts == ((0,), (1,), (2,))
    assert solution.bounds == LowerBounds(simple=2, of_own_nodes=3, of_all=2)
    three = with_value(workload([[0, 0, 0]], [], [60, 60, 60]), (0, 1, 2), own=5)
    solution = plan_within(problem_for(three), Within(100, ()), Device(name="d"))
    assert solution.bounds == LowerBounds(simple=2, of_own_nodes=3, of_all=3)
    # Without the value 0 and 1 fill a part; with a part for the value alone there are 3, too.
    full = with_value(workload([[0, 0, 0]], [(0, (1,), 0), (1, (2,), 0)], [45, 55, 60]), (0, 2), own=10)
    solution = plan_within(problem_for(full), Within(100, ()), Device(name="d"))
    assert solution.bounds == LowerBounds(simple=2, of_own_nodes=3, of_all=3)


def bounds_of(problem: PlanningProblem, load: Workload, goal: Across) -> tuple[float, float]:
    """Of plans whose parts each hold a group: the lower bound, and that of the dynamic programming alone."""
    rows = {device.name: seconds_of(load, i) for i, device in enumerate(goal.cluster.devices)}
    solution = plan_across(problem, goal, lambda device: rows[device.name])
    assert solution.relaxed is not None
    evaluator = ClusterEvaluator.of(problem, goal, lambda device: rows[device.name])
    return solution.bounds.of_own_nodes, evaluator.lower_bound_over(solution.relaxed.found.tables)


@pytest.mark.parametrize(
    ("objective", "overlap", "tensor_s", "value_s", "best_s"),
    [
        ("latency", "all", 0, 2, (2 + 3) + (6 + 2)),  # b waits for the value
        ("throughput", "all", 0, 2, 6),  # b computes one request, and receives the value of the next meanwhile
        ("throughput", "none", 0, 2, 6 + 2),
        ("throughput", "all", 10, 0, 10),  # b computes the value, and receives the tensor meanwhile
    ],
)
def test_no_plan_on_linked_devices_is_below_the_bound_and_one_reaches_it(
    objective: Objective, overlap: Overlap, tensor_s: int, value_s: int, best_s: float, problem_for: Problems
) -> None:
    """Groups of 2 s and 6 s, one on each device, read a value that takes 3 s to compute and 2 s over the link.

    Faster links lead from b to the driver, and to device c, which has no room for a group.
    """
    rate = 1_000_000
    a, b = (Device(name=name, memory_bytes=15 * 10**9, link_bytes_per_s=rate / 10, latency_s=0) for name in "ab")
    c = Device(name="c", memory_bytes=1, link_bytes_per_s=rate * 100, latency_s=0)
    rates = {("a", "b"): rate, ("driver", "b"): rate * 100}
    links = tuple(NetworkLink(between=pair, bytes_per_s=number, latency_s=0) for pair, number in rates.items())
    cluster = Cluster(devices=(a, b, c), links=links, origin=Host(latency_s=0), overlap=overlap)
    tensors = [(0, (1,), tensor_s * rate)] if tensor_s else []
    load = with_value(workload([[2, 6]] * 3, tensors, [10**10] * 2), (0, 1), work=3, sent=2 * rate)
    sent = [SentTensor(seconds * rate, 0, (1,)) for seconds in (tensor_s, value_s) if seconds]
    times = request_times(sent, [2 + 3, 6 if value_s else 6 + 3], [a, b], cluster)
    assert times.objective(objective, 1) == pytest.approx(best_s)
    assert bounds_of(problem_for(load), load, Across(cluster, objective)) == pytest.approx((best_s, best_s))


@pytest.mark.parametrize(("readers", "best_s"), [((0,), 1 + 3 + 6 + 1), ((1,), 1 + 6 + 1), ((0, 1), 1 + 3 + 6 + 1)])
def test_of_inputs_that_values_are_computed_of_only_the_first_part_waits_for_its_own_for_certain(
    readers: tuple[int, ...], best_s: int, problem_for: Problems
) -> None:
    """Groups of 6 s and 2 s, one on each device; the driver sends the first one an input for 1 s, and it sends for 1 s.

    A value is computed in no time, of an input that the driver sends for 3 s to each part that computes it.
    """
    rate = 1_000_000
    devices = tuple(Device(name=name, memory_bytes=15 * 10**9, link_bytes_per_s=rate, latency_s=0) for name in "ab")
    cluster = Cluster(devices=devices, origin=Host(link_bytes_per_s=rate, latency_s=0), overlap="none")
    without = replace(
        workload([[6, 2]] * 2, [(0, (1,), rate)], [10**10] * 2),
        sharers=Hyperedges.of([(0,)]),
        shared_bytes=np.zeros(1, dtype=np.int64),
        shared_work=np.zeros((2, 1)),
        input_bytes=np.array([rate]),
    )
    load = replace(
        with_value(without, readers, sent=rate),
        sharers=Hyperedges.of([readers, readers, (0,)]),
        shared_bytes=np.zeros(3, dtype=np.int64),
        shared_work=np.zeros((2, 3)),
        input_bytes=np.array([0, 3 * rate, rate]),
    )
    solution = plan_across(problem_for(load), Across(cluster), lambda _: seconds_of(load))
    assert solution.relaxed is not None
    assert (solution.bounds.of_own_nodes, solution.value) == pytest.approx((best_s, best_s))


def test_a_part_that_computes_a_value_waits_less_for_what_it_receives_and_sends(problem_for: Problems) -> None:
    """Device b receives and sends for 10 s, and computes for 2 s; the value takes 3 s more, or 0.1 s over its link."""
    a, b = (
        Device(name=n, memory_bytes=15 * 10**6, link_bytes_per_s=r, latency_s=0) for n, r in (("a", 1e9), ("b", 1e4))
    )
    cluster = Cluster(devices=(a, b), origin=Host(link_bytes_per_s=1e9, latency_s=0))
    without = workload([[2.0, 2.0], [float("inf"), 2.0]], [(0, (1,), 100_000)], [10**7] * 2)
    without = replace(without, answers=((1, 100_000, -1),))
    load = with_value(without, (0, 1), work=3, sent=1000)
    usual = [SentTensor(100_000, 0, (1,)), SentTensor(100_000, 1, (DRIVER,))]
    computed = request_times(usual, [2 + 3, 2 + 3], [a, b], cluster)
    sent = request_times([*usual, SentTensor(1000, 0, (1,))], [2 + 3, 2], [a, b], cluster)
    assert 16 < computed.period_s == 17.5 < sent.period_s
    assert bounds_of(problem_for(load), load, Across(cluster)) == pytest.approx((16, 16.05))


def test_a_device_may_compute_a_value_alone(problem_for: Problems) -> None:
    """Of groups of 6 s the one that comes first computes the value of 3 s, too, unless a third device does that."""
    devices = tuple(Device(name=name, memory_bytes=15 * 10**9, link_bytes_per_s=1e6, latency_s=0) for name in "abc")
    cluster = Cluster(devices=devices, origin=Host(link_bytes_per_s=1e9, latency_s=0))
    load = with_value(workload([[6, 6]], [], [10**10] * 2), (0, 1), work=3, sent=2_000_000)
    solution = plan_across(problem_for(load), Across(cluster), lambda _: seconds_of(load))
    assert solution.bounds == LowerBounds(simple=6, of_own_nodes=9, of_all=6)


@pytest.mark.parametrize(
    ("work", "share_s"),
    [
        ([[1, 1, 1, 1], [1, 1, 1, 1]], 2),
        ([[1, 1, 1, 1], [2, 2, 2, 2]], 4 / (1 + 1 / 2)),
        ([[1, 1, 1, 1], [np.inf, 1, 1, 1]], 1),  # only the largest group is known to be a lower bound
    ],
)
def test_no_device_has_less_than_its_share_if_groups_could_be_divided(
    work: list[list[float]], share_s: float, problem_for: Problems
) -> None:
    load = workload(work, [])
    cluster = Cluster(devices=(Device(name="a"), Device(name="b", flops_per_s=1.0)))
    solution = plan_across(problem_for(load), Across(cluster), lambda device: seconds_of(load, "ab".index(device.name)))
    assert solution.bounds.simple == pytest.approx(share_s, rel=1e-3)


def test_the_simple_bound_of_a_latency_has_what_the_driver_receives(problem_for: Problems) -> None:
    device = Device(name="a", link_bytes_per_s=1e6, latency_s=0)
    cluster = Cluster(devices=(device,), origin=Host(link_bytes_per_s=1e6, latency_s=0), overlap="none")
    load = replace(workload([[2]], []), answers=((0, 3_000_000, -1),))
    solution = plan_across(problem_for(load), Across(cluster, "latency"), lambda _: seconds_of(load))
    assert solution.bounds.simple == pytest.approx(2 + 3)
    times = request_times([SentTensor(3_000_000, 0, (DRIVER,))], [2], [device], cluster)
    assert solution.found.chain.values[0] == pytest.approx(times.latency_s)


def test_the_driver_sends_and_receives_in_turn_or_both_at_once() -> None:
    """It sends for 2 s and receives for 3 s; an answer comes after half a second."""
    devices = (Device(name="a", link_bytes_per_s=1e6, latency_s=0.5),)
    load = replace(workload([[1]], []), answers=((0, 3_000_000, -1),), input_bytes=np.array([2_000_000]))
    found, overlaps = {}, tuple[Overlap, ...](("none", "all"))
    for overlap in overlaps:
        cluster = Cluster(devices=devices, origin=Host(link_bytes_per_s=1e6, latency_s=0.5), overlap=overlap)
        pairs = pair_costs(device_classes(cluster), cluster, load)
        found[overlap] = [driver_s("max", load, pairs, cluster), driver_s("sum", load, pairs, cluster)]
    assert found == {"none": [5.5, 5.5], "all": [3, 0.5]}


@pytest.mark.parametrize("total", [0.0, 1e-9, 1.0, 3.0, 1e9, np.inf])
def test_numbers_are_rounded_to_a_power_of_two(total: float) -> None:
    quantum = quantum_for(total)
    assert quantum > 0
    assert np.log2(quantum) % 1 == 0
    assert total / quantum <= 2**50 or total == np.inf


def test_times_up_to_the_longest_possible_one_add_up_exactly() -> None:
    load = workload([[1] * 9], [(group, (group + 1,), 1000) for group in range(8)])
    late_s = 2.0**20
    classes = [DeviceClass((Device(name=str(s)),), np.inf, 0.0, s) for s in (0.0, late_s)]
    assert time_quantum(load, classes) * 2**50 >= load.groups * late_s
    cluster = Cluster(devices=tuple(Device(name=f"{rate}", link_bytes_per_s=rate, latency_s=0) for rate in (1, 1e9)))
    kinds = device_classes(cluster)
    assert time_quantum(load, kinds, pair_costs(kinds, cluster, load)) * 2**50 >= 8 * 1000 / 1
