"""Simulations compared with theory: queues, pipelines, shared links, message loss, failures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

import graphcut
from graphcut import Across, Cluster, Device, Into, Objective, UsageError, demos
from graphcut import NetworkLink as DirectLink
from graphcut.core.states import Cache, travelling
from graphcut.costs.cluster import Host, ReliabilityModel, ScheduledFailure, SimulatedCluster
from graphcut.simulating.network import RETRANSMIT_S, LinkDirection, Route, Transfer, fair_shares
from graphcut.simulating.scenario import Scenario, scenario_of_cascade, scenario_of_plan
from graphcut.simulating.simulated_executor import DETECTION_S, LOAD_BYTES_PER_S
from graphcut.simulating.simulator import latency_of, simulate
from graphcut.solving.transfers import DRIVER, SentTensor, request_times
from graphcut.workers.scheduling.requests import ScheduledPart

from cases import FUZZ, each, seeded

KB = 1000
RATE = 1000.0 * KB
"""The bandwidth of each link in these tests, in bytes/s. Tensors are too large to travel in messages."""


def devices_of(number: int, **fields: Any) -> tuple[Device, ...]:  # noqa: ANN401 - fields of a device
    return tuple(Device(name=f"d{i}", **{"link_bytes_per_s": RATE, "latency_s": 0.0} | fields) for i in range(number))


def chain(
    seconds: Sequence[float],
    *,
    sent_bytes: int = 0,
    weight_bytes: int = 0,
    latency_s: float = 0.0,
    faults: Sequence[ReliabilityModel] = (),
    failures: Sequence[ScheduledFailure] = (),
    memory_bytes: int | None = None,
) -> Scenario:
    """A chain of parts, each on its own device, each sending `sent_bytes` to the next."""
    number = len(seconds)
    devices = devices_of(number, latency_s=latency_s, memory_bytes=memory_bytes)
    return Scenario(
        tuple(ScheduledPart(f"part {i}", (f"t{i}",), (f"t{i + 1}",), weight_bytes) for i in range(number)),
        (weight_bytes,) * number,
        ("t0",),
        (f"t{number}",),
        {f"t{i}": sent_bytes * (0 < i < number) for i in range(number + 1)},  # the driver's tensors take no time
        SimulatedCluster(devices=devices, faults=tuple(faults), failures=tuple(failures)),
        tuple((i,) for i in range(number)),
        (tuple(seconds),) * number,
    )


# Pipelines


def test_a_single_request_takes_all_part_times_transfers_and_two_latencies_per_device() -> None:
    """A device adds two latencies: one for the command and one for its report. Each transfer adds one."""
    scenario = chain([1.0, 2.0, 4.0], sent_bytes=500 * KB, latency_s=0.25)
    found = simulate(scenario, requests=1)
    assert found.total_s == 1 + 2 + 4 + 3 * 2 * 0.25 + 2 * (0.25 + 500 * KB / RATE)
    assert found.latency is not None
    assert found.latency.mean == found.total_s
    assert [device.messaging * found.total_s for device in found.devices] == [0.5, 0.5, 0.5]


def test_the_scheduler_takes_its_time_for_each_step() -> None:
    scenario = chain([1.0, 2.0], latency_s=0.25)
    slower = replace(scenario, cluster=changed(scenario.cluster, step_s=0.5))
    assert simulate(slower, requests=1).total_s == simulate(scenario, requests=1).total_s + 2 * 0.5
    assert [device.messaging for device in simulate(slower, requests=1).devices] == [1 / 5.0, 1 / 5.0]


def test_the_throughput_of_a_pipeline_is_that_of_its_slowest_stage() -> None:
    scenario = chain([1.0, 2.0, 0.5], sent_bytes=250 * KB)
    found = simulate(scenario, requests=100)
    assert found.total_s == pytest.approx(1 + 2.25 + 0.75 + 99 * 2)
    assert [device.steps for device in found.devices] == [100, 100, 100]
    assert [device.computing * found.total_s for device in found.devices] == pytest.approx([100, 200, 50])
    assert [device.fetching * found.total_s for device in found.devices] == pytest.approx([0, 0.25, 25])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_total_time_equals_the_pipeline_recurrence_for_any_stages_and_window(
    stages: list[int], window: int, requests: int
) -> None:
    """Request k enters stage i when it has left stage i - 1, k - 1 has left stage i, and k - window is answered."""
    left: list[list[int]] = []
    for k in range(requests):
        time = left[k - window][-1] if k >= window else 0
        row = []
        for i, seconds in enumerate(stages):
            time = max(time, left[k - 1][i] if k else 0) + seconds
            row.append(time)
        left.append(row)
    found = simulate(chain([float(seconds) for seconds in stages]), requests=requests, window=window)
    assert found.total_s == left[-1][-1]


@each("window", [1, 2, 3, 8, 20])
def test_a_closed_loop_obeys_littles_law(window: int) -> None:
    """With W in flight, each takes W periods, but at least the sum of all stages."""
    found = simulate(chain([1.0, 3.0, 2.0]), requests=400, window=window)
    assert found.latency is not None
    assert found.latency.p50 == max(6.0, 3.0 * window)
    assert found.total_s == pytest.approx(6 + 399 * max(6 / window, 3.0), abs=6)


def test_independent_parts_run_in_parallel() -> None:
    """Part 0 feeds 1 and 2, both feed 3. The two transfers from part 0 share its link."""
    units = (
        ScheduledPart("part 0", ("x",), ("a",)),
        ScheduledPart("part 1", ("a",), ("b",)),
        ScheduledPart("part 2", ("a",), ("c",)),
        ScheduledPart("part 3", ("a", "b", "c"), ("y",)),
    )
    scenario = Scenario(
        units,
        (0,) * 4,
        ("x",),
        ("y",),
        {"a": 1000 * KB, "b": 1000 * KB, "c": 500 * KB, "y": 0},
        SimulatedCluster(devices=devices_of(4)),
        ((0,), (1,), (2,), (3,)),
        ((1.0, 5.0, 2.0, 1.0),) * 4,
    )
    found = simulate(scenario, requests=1)
    # To 1 and to 2 at half the rate of 0's link: 2 s. At 8 s b is made, and 3 hears of its step: it fetches a, b and c
    # over its link together, 2,500 KB.
    assert found.total_s == 1 + 2 + 5 + 2.5 + 1
    assert {(link.source, link.target): link.bytes for link in found.links} == {
        ("driver", None): 0,
        (None, "driver"): 0,
        ("d0", None): 3000 * KB,
        ("d1", None): 1000 * KB,
        ("d2", None): 500 * KB,
        ("d3", None): 0,
        (None, "d0"): 0,
        (None, "d1"): 1000 * KB,
        (None, "d2"): 1000 * KB,
        (None, "d3"): 2500 * KB,
    }


def test_parts_of_one_device_run_in_one_step_and_send_nothing() -> None:
    scenario = replace(chain([1.0, 2.0], sent_bytes=1000 * KB), assignment=((0, 1), ()))
    found = simulate(scenario, requests=10)
    assert found.total_s == 30
    assert [device.steps for device in found.devices] == [10, 0]
    assert not any(link.bytes for link in found.links)


def test_a_direct_link_is_used_instead_of_the_router() -> None:
    scenario = chain([1.0, 1.0], sent_bytes=1000 * KB)
    link = DirectLink(between=("d1", "d0"), bytes_per_s=4 * RATE, latency_s=0.5)
    cluster = SimulatedCluster(devices=scenario.cluster.devices, links=(link,))
    found = simulate(replace(scenario, cluster=cluster), requests=1)
    assert found.total_s == 1 + 0.5 + 0.25 + 1
    carried = {(link.source, link.target): link.bytes for link in found.links if link.bytes}
    assert carried == {("d0", "d1"): 1000 * KB}


def test_load_balancing_moves_parts_to_the_faster_device() -> None:
    """Of six equal parts each device has three, but one is twice as fast: with four and two parts both take 4 s."""
    scenario = replace(
        chain([1.0] * 6),
        cluster=SimulatedCluster(devices=devices_of(2)),
        assignment=((0, 1, 2), (3, 4, 5)),
        seconds=((2.0,) * 6, (1.0,) * 6),
    )
    found = simulate(scenario, requests=1000)
    assert found.total_s / 1000 == pytest.approx(4.0, rel=0.05)


# Queues


@pytest.mark.parametrize("load", [0.5, 0.8] if FUZZ else [0.5])
def test_the_mean_wait_for_one_device_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek-Khinchine formula: with a service time of 1 s, the mean wait is load / (2 (1 - load))."""
    means = []
    for seed in range(12):
        latency = simulate(chain([1.0]), requests=1500, rate_per_s=load, seed=seed).latency
        assert latency is not None
        means.append(latency.mean - 1.0)
    expected, error = load / (2 * (1 - load)), stdev(means) / sqrt(len(means))
    assert error < expected / 8  # or the next line would say little
    assert abs(fmean(means) - expected) < 4 * error


def test_requests_arrive_at_the_given_rate() -> None:
    """With instant service, the total time is a sum of n exponential gaps: mean n / rate, deviation sqrt(n) / rate."""
    found = simulate(chain([0.0]), requests=4000, rate_per_s=5.0)
    assert abs(found.total_s - 4000 / 5) < 4 * sqrt(4000) / 5


def test_two_copies_of_a_device_double_the_throughput() -> None:
    scenario = chain([1.0]).copied(2)
    assert [device.name for device in scenario.cluster.devices] == ["d0", "d0#2"]
    found = simulate(scenario, requests=100)
    assert found.total_s == 50
    assert [device.steps for device in found.devices] == [50, 50]


def test_copies_repeat_links_and_faults_but_not_scheduled_failures() -> None:
    fault, failure = ReliabilityModel(device="d0", loss=0.5), ScheduledFailure(device="d1", at_s=1.0)
    link = DirectLink(between=("d0", "d1"), bytes_per_s=1.0)
    scenario = chain([1.0, 2.0])
    cluster = SimulatedCluster(devices=scenario.cluster.devices, links=(link,), faults=(fault,), failures=(failure,))
    copied = replace(scenario, cluster=cluster).copied(2)
    assert [device.name for device in copied.cluster.devices] == ["d0", "d1", "d0#2", "d1#2"]
    assert [link.between for link in copied.cluster.links] == [("d0", "d1"), ("d0#2", "d1#2")]
    assert [fault.device for fault in copied.cluster.faults] == ["d0", "d0#2"]
    assert copied.cluster.failures == (failure,)
    assert copied.assignment == ((0,), (1,), (0,), (1,))


# Links


def moving(capacities: Sequence[float], ways: Sequence[Sequence[int]]) -> tuple[list[LinkDirection], list[Transfer]]:
    links = [LinkDirection(capacity) for capacity in capacities]
    transfers = []
    for way in ways:
        transfer = Transfer(Route(tuple(links[i] for i in way), (), 0.0), 1, 0.0, lambda _: None)
        transfers.append(transfer)
        for link in transfer.route.links:
            link.transfers[transfer] = None
    return links, transfers


def test_bandwidth_that_one_transfer_can_not_use_goes_to_the_others() -> None:
    """Three transfers share a link of 10. Another link limits one of them to 1, so the others get 4.5 each."""
    links, transfers = moving([10.0, 1.0], [(0, 1), (0,), (0,)])
    shares = dict(fair_shares(links))
    assert [shares[transfer] for transfer in transfers] == [1.0, 4.5, 4.5]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_fair_shares_are_max_min_fair(data: st.DataObject) -> None:
    """Each transfer uses a full link on which no other transfer gets more (Bertsekas & Gallager, section 6.5.2)."""
    number = data.draw(st.integers(1, 6))
    capacities = data.draw(st.lists(st.floats(0.1, 100), min_size=number, max_size=number))
    way = st.lists(st.integers(0, number - 1), min_size=1, max_size=3, unique=True)
    links, transfers = moving(capacities, data.draw(st.lists(way, min_size=1, max_size=10)))
    found = fair_shares([link for link in links if link.transfers])
    assert len(found) == len(transfers)
    shares = dict(found)
    used = {link: sum(shares[transfer] for transfer in link.transfers) for link in links}
    assert all(used[link] <= link.bytes_per_s * (1 + 1e-9) for link in links)
    for transfer in transfers:
        assert any(
            used[link] >= link.bytes_per_s * (1 - 1e-9)
            and shares[transfer] >= max(shares[other] for other in link.transfers) * (1 - 1e-9)
            for link in transfer.route.links
        )


def test_two_transfers_share_a_link_until_the_smaller_has_arrived() -> None:
    """Part 0 sends 1,000 KB to part 1 and 3,000 to part 2: at half the rate for 2 s, then the last 2,000 in 2 s."""
    units = (
        ScheduledPart("part 0", ("x",), ("a", "b")),
        ScheduledPart("part 1", ("a",), ("y",)),
        ScheduledPart("part 2", ("b",), ("z",)),
    )
    scenario = Scenario(
        units,
        (0,) * 3,
        ("x",),
        ("y", "z"),
        {"a": 1000 * KB, "b": 3000 * KB, "y": 0, "z": 0},
        SimulatedCluster(devices=devices_of(3)),
        ((0,), (1,), (2,)),
        ((0.0, 0.0, 0.0),) * 3,
    )
    found = simulate(scenario, requests=1)
    assert found.total_s == 4
    assert [device.fetching * 4 for device in found.devices] == [0, 2, 4]


def test_each_lost_message_is_sent_again_after_a_timeout() -> None:
    """For n messages the number of losses has mean n p / (1 - p) and variance n p / (1 - p)² (negative binomial)."""
    loss, requests = 0.2, 2000
    scenario = chain([0.0, 0.5], sent_bytes=200 * KB, faults=[ReliabilityModel(device="d1", loss=loss)])
    found = simulate(scenario, requests=requests, window=1)
    expected = requests * loss / (1 - loss)
    assert abs(found.lost - expected) < 4 * sqrt(expected / (1 - loss))
    assert found.total_s == pytest.approx(requests * (0.5 + 0.2) + found.lost * (RETRANSMIT_S + 0.2))
    assert sum(link.bytes for link in found.links) == 2 * 200 * KB * (requests + found.lost)


def test_a_message_through_the_router_can_be_lost_on_both_links() -> None:
    faults = [ReliabilityModel(device="d0", loss=0.5), ReliabilityModel(device="d1", loss=0.5)]
    found = simulate(chain([0.0, 0.0], sent_bytes=200 * KB, faults=faults), requests=2000, window=1)
    expected = 2000 * 0.75 / 0.25
    assert abs(found.lost - expected) < 4 * sqrt(expected / 0.25)


def test_jitter_has_the_given_mean() -> None:
    """The sum of n exponential times of mean m has mean n m and deviation sqrt(n) m."""
    faults = [ReliabilityModel(device="d0", jitter_s=0.01), ReliabilityModel(device="d1", jitter_s=0.03)]
    found = simulate(chain([0.0, 1.0], sent_bytes=200 * KB, faults=faults), requests=2000, window=1)
    assert abs(found.total_s - 2000 * (1.04 + 0.2)) < 4 * sqrt(2000) * (0.01 + 0.03)


# Failures


def test_a_failed_device_loads_and_repeats_its_step_when_it_is_up_again() -> None:
    """It fails during its eleventh step, which is repeated after 5 s of downtime and 1 s of loading."""
    failure = ScheduledFailure(device="d0", at_s=10.5, for_s=5.0)
    found = simulate(chain([1.0], weight_bytes=int(LOAD_BYTES_PER_S), failures=[failure]), requests=20)
    assert found.total_s == 20 + (15.5 - 10.0) + 1
    assert found.without_failures is not None
    assert found.without_failures.total_s == 20
    assert found.devices[0].failures == 1
    assert found.devices[0].down * found.total_s == pytest.approx(5)
    other = ScheduledFailure(device="d0", at_s=12.5, for_s=3.0)  # ends at the same time
    both = simulate(chain([1.0], weight_bytes=int(LOAD_BYTES_PER_S), failures=[failure, other]), requests=20)
    assert (both.total_s, both.devices[0].failures, both.devices[0].steps) == (found.total_s, 2, 20)
    assert both.devices[0].down * both.total_s == pytest.approx(5)


def test_a_short_failure_costs_the_time_until_it_is_detected() -> None:
    failure = ScheduledFailure(device="d0", at_s=10.5, for_s=0.25)
    found = simulate(chain([1.0], failures=[failure]), requests=20)
    assert found.total_s == 20 + (10.5 + DETECTION_S - 10.0)


def test_a_request_restarts_when_its_only_tensor_is_lost() -> None:
    """The device of part 0 fails while part 1 fetches its output for 4 s: the request restarts from its inputs."""
    failure = ScheduledFailure(device="d0", at_s=3.0, for_s=2.0)
    found = simulate(chain([1.0, 1.0], sent_bytes=4000 * KB, failures=[failure]), requests=1)
    assert (found.answered, found.restarted) == (1, 1)
    assert found.total_s == 5 + 1 + 4 + 1


def test_a_tensor_is_fetched_from_another_device_that_has_it() -> None:
    """Part 2 reads what part 0 wrote and part 1 fetched. When the device of part 0 is lost, part 1's sends it."""
    units = (
        ScheduledPart("part 0", ("x",), ("a",)),
        ScheduledPart("part 1", ("a",), ("b",)),
        ScheduledPart("part 2", ("a", "b"), ("y",)),
    )
    scenario = Scenario(
        units,
        (0,) * 3,
        ("x",),
        ("y",),
        {"a": 1000 * KB, "b": 0, "y": 0},
        SimulatedCluster(devices=devices_of(3), failures=(ScheduledFailure(device="d0", at_s=3.0, for_s=50.0),)),
        ((0,), (1,), (2,)),
        ((1.0, 3.0, 1.0),) * 3,
    )
    found = simulate(scenario, requests=1)
    assert (found.total_s, found.restarted) == (1 + 1 + 3 + 1 + 1, 0)


def test_parts_of_a_lost_device_are_sent_to_the_device_that_takes_over() -> None:
    """d1 fails permanently at 2.5 s. This is detected 1 s later, and its part is sent to d0: 2,000 KB in 2 s.

    Four requests are in flight, and d0 has run the first part of all of them. It runs the second part, 1 s each. After
    the first of these the last request arrives, whose two parts run in one step.
    """
    failure = ScheduledFailure(device="d1", at_s=2.5)
    scenario = chain([1.0, 1.0], weight_bytes=2000 * KB, failures=[failure], memory_bytes=4000 * KB)
    found = simulate(scenario, requests=6)
    assert (found.answered, found.stopped) == (6, "")
    assert found.total_s == pytest.approx(2.5 + DETECTION_S + 2 + 2000 * KB / LOAD_BYTES_PER_S + 4 + 2, rel=1e-12)
    assert [device.steps for device in found.devices] == [10, 1]
    assert found.devices[1].down * found.total_s == pytest.approx(found.total_s - 2.5)
    # It may fail for some time, and be lost before that is detected.
    short = ScheduledFailure(device="d1", at_s=2.5, for_s=50.0), ScheduledFailure(device="d1", at_s=3.0)
    lost = replace(scenario, cluster=changed(scenario.cluster, failures=short))
    assert simulate(lost, requests=6).total_s == found.total_s
    # d0 may have all files. It loads the part while it runs the fourth request, and has not run the fifth.
    at_home = replace(scenario, cluster=changed(scenario.cluster, origin="d0"))
    assert simulate(at_home, requests=6).total_s == 4 + 3 + 2 * 2


def test_a_run_stops_when_no_device_has_room_for_the_parts_of_a_lost_device() -> None:
    scenario = chain(
        [1.0, 1.0],
        weight_bytes=2000 * KB,
        failures=[ScheduledFailure(device="d1", at_s=2.5)],
        memory_bytes=3999 * KB,
    )
    found = simulate(scenario, requests=6)
    assert found.answered == 1
    assert found.total_s == 2.5 + DETECTION_S
    assert found.stopped == ("d1 is lost (it failed), and no other worker has memory for part 1, which needs 1.91 MiB")
    assert found.without_failures is not None
    assert (found.without_failures.answered, found.without_failures.stopped) == (6, "")


def test_availability_follows_from_mean_up_and_down_times() -> None:
    """The share of downtime has mean m / (M + m) and variance 2 M² m² / ((M + m)³ T) (alternating renewal process)."""
    up, down = 20.0, 4.0
    scenario = chain([0.5], faults=[ReliabilityModel(device="d0", mean_up_s=up, mean_down_s=down)])
    found = [simulate(scenario, requests=2000, seed=seed) for seed in range(3)]
    total_s = sum(one.total_s for one in found)
    share = sum(one.devices[0].down * one.total_s for one in found) / total_s
    deviation = sqrt(2 * up**2 * down**2 / ((up + down) ** 3 * total_s))
    assert abs(share - down / (up + down)) < 4 * deviation
    assert deviation < down / (up + down) / 8
    assert all(one.answered == 2000 for one in found)


@seeded(4)
def test_every_request_is_answered_or_given_up_whatever_fails(seed: int) -> None:
    """A graph of parts with branches and residuals, on pairs of devices that fail and recover, over lossy links."""
    draw = random.Random(seed)  # noqa: S311 - a net, no secret
    units, made = [], ["x"]
    for i in range(6):
        reads = tuple(sorted({draw.choice(made[-3:]) for _ in range(3)}))
        units.append(ScheduledPart(f"part {i}", reads, (f"t{i}",)))
        made.append(f"t{i}")
    read = {name for unit in units for name in unit.reads}
    outputs = tuple(name for name in made[1:] if name not in read)
    devices = devices_of(6)
    scenario = Scenario(
        tuple(units),
        (1000,) * 6,
        ("x",),
        outputs,
        {name: draw.randrange(1, 300) * KB for name in made},
        SimulatedCluster(
            devices=devices,
            faults=tuple(ReliabilityModel(device=d.name, loss=0.05, mean_up_s=20, mean_down_s=2) for d in devices),
        ),
        tuple((i,) for i in range(6)),
        tuple(tuple(draw.uniform(0.01, 0.5) for _ in range(6)) for _ in range(6)),
    ).copied(2)
    found = simulate(scenario, requests=200, rate_per_s=1.5, seed=seed)
    assert found.stopped == ""
    assert found.answered + found.failed == 200
    assert found.without_failures is not None
    assert (found.without_failures.answered, found.without_failures.failed) == (200, 0)
    assert sum(device.failures for device in found.devices) > 0
    assert all(0 <= device.computing + device.fetching <= 1 for device in found.devices)


def test_results_depend_on_the_seed_only() -> None:
    fault = ReliabilityModel(device="d1", jitter_s=0.1, loss=0.1, mean_up_s=10, mean_down_s=1)
    scenario = chain([0.1, 0.2], sent_bytes=100, faults=[fault])
    first = simulate(scenario, requests=200, rate_per_s=2.0, seed=3)
    assert simulate(scenario, requests=200, rate_per_s=2.0, seed=3) == first
    assert simulate(scenario, requests=200, rate_per_s=2.0, seed=4) != first


def test_failures_do_not_change_arrival_times() -> None:
    failing = chain([0.0], faults=[ReliabilityModel(device="d0", mean_up_s=1e9, mean_down_s=1.0)])
    found = simulate(failing, requests=100, rate_per_s=3.0)
    assert found.without_failures == replaced(found)


def replaced(found: Any) -> Any:  # noqa: ANN401 - a record
    return changed(found, without_failures=None)


# Arguments


@each(
    ("asked", "said"),
    [
        ({"requests": 0}, "0 requests can't be simulated"),
        ({"rate_per_s": 0.0}, "requests can't arrive at 0 per second"),
        ({"rate_per_s": float("nan")}, "requests can't arrive at nan per second"),
        ({"window": 0}, "0 requests can't be in flight"),
        ({"window": 1, "rate_per_s": 1.0}, "a rate excludes a number of requests in flight"),
    ],
)
def test_numbers_out_of_range_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        simulate(chain([1.0]), **asked)
    assert str(caught.value) == said
    assert caught.value.hint


def test_a_failure_of_an_unknown_device_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no device 'pi' to fail") as caught:
        chain([1.0, 1.0]).with_failures([ScheduledFailure(device="pi", at_s=1.0)])
    assert caught.value.hint == "there are d0, d1"


def test_the_number_of_copies_and_their_names_are_checked() -> None:
    with pytest.raises(UsageError, match="0 copies can't run anything"):
        chain([1.0]).copied(0)
    scenario = chain([1.0, 1.0])
    devices = tuple(Device(name=name) for name in ("d", "d#2"))
    with pytest.raises(UsageError, match="2 devices are called 'd#2', counting copies"):
        replace(scenario, cluster=SimulatedCluster(devices=devices)).copied(2)


def test_percentiles_are_latencies_of_requests() -> None:
    found = latency_of([float(i) for i in range(1, 101)])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p99, found.max) == (50.5, 50.0, 90.0, 99.0, 100.0)
    assert latency_of([]) is None


# Plans and cascades

CLUSTER = Cluster(
    devices=(
        Device(name="pi", flops_per_s=1e9, link_bytes_per_s=1e8),
        Device(name="jetson", flops_per_s=3e9, link_bytes_per_s=1e8),
        Device(name="spare", flops_per_s=1e6),
    )
)
FAULTLESS = SimulatedCluster(devices=CLUSTER.devices)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> graphcut.Model:
    path = tmp_path_factory.mktemp("simulating") / "llm.onnx"
    demos.write("llm", path, hidden=64, layers=2, heads=2, kv_heads=1, vocab=64)
    return graphcut.load(path, dims={"batch": 1, "seq": 512, "past": 0})


@pytest.fixture(scope="module")
def analysis(model: graphcut.Model) -> graphcut.Analysis:
    return graphcut.analyze(model)


def test_a_plan_keeps_its_devices_and_predicted_times(model: graphcut.Model, analysis: graphcut.Analysis) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER))
    scenario = scenario_of_plan(made, model, None)
    names = [device.name for device in made.devices]
    assert sorted(names) == ["jetson", "pi"]
    at = [next(i for i, device in enumerate(CLUSTER.devices) if device.name == name) for name in names]
    assert [scenario.assignment[device] for device in at] == [(0,), (1,)]
    assert scenario.assignment[2] == ()
    predicted = [metrics.run_s for metrics in made.metrics]
    assert [scenario.seconds[device][i] for i, device in enumerate(at)] == pytest.approx(predicted)


@seeded(20, together=5)
def test_a_chain_takes_the_time_that_is_planned_for_it(seed: int) -> None:
    """The time of one request to rounding; between two, too, where no device waits for what others do.

    That is so for a single device, and where tensors are large and the slowest device computes all the time.
    """
    draw = random.Random(seed)  # noqa: S311
    number = draw.randint(1, 4)
    names = [f"d{i}" for i in range(number)]
    rate, late = partial(draw.choice, (1e5, 5e5, 2e6, 1e7)), partial(draw.choice, (0.0, 0.01, 0.05))
    devices = tuple(Device(name=name, link_bytes_per_s=rate(), latency_s=late()) for name in names)
    pairs = draw.sample(list(pairwise(names)), draw.randint(0, number - 1))
    links = tuple(DirectLink(between=pair, bytes_per_s=rate(), latency_s=late()) for pair in pairs)
    origin = draw.choice([None, names[0], names[-1], Host(name="laptop", link_bytes_per_s=rate(), latency_s=late())])
    store_s, step_s = draw.choice((0.0, 0.03)), late()
    cluster = SimulatedCluster(devices=devices, links=links, origin=origin, store_s=store_s, step_s=step_s)
    seconds, sent = [draw.random() for _ in names], [draw.randint(0, 20) * 10_000 for _ in range(number + 1)]
    scenario = replace(chain(seconds), cluster=cluster, tensor_bytes={f"t{i}": n for i, n in enumerate(sent)})
    steps = pairwise([DRIVER, *range(number), DRIVER])
    transfers = [SentTensor(size, a, (b,)) for size, (a, b) in zip(sent, steps, strict=True)]
    times = request_times(transfers, seconds, devices, cluster.planned)
    assert simulate(scenario, requests=1).total_s == pytest.approx(times.latency_s, rel=1e-9)
    few, many = (simulate(scenario, requests=number, window=32).total_s for number in (100, 200))
    period_s = (many - few) / 100
    assert period_s > max(seconds) * (1 - 1e-9)
    computes = not any(map(cluster.is_small, sent[1:-1])) and times.period_s == max(seconds)
    if number == 1 or computes:
        assert period_s == pytest.approx(times.period_s, rel=1e-9)


def test_what_a_part_reads_next_shares_the_driver_s_link_with_what_goes_on_from_it() -> None:
    """A step of 30 ms, two messages of 1 ms; 10 KB at 1 MB/s to be read, reported, and 10 ms more to be read."""
    devices, seconds, sent = devices_of(3, latency_s=0.001), [0.01, 0.03, 0.005], 10 * KB
    host = Host(name="laptop", link_bytes_per_s=RATE, latency_s=0.001)
    cluster = SimulatedCluster(devices=devices, origin=host)
    transfers = [SentTensor(sent, 0, (1,)), SentTensor(sent, 1, (2,))]
    times = request_times(transfers, seconds, devices, cluster.planned)
    scenario = replace(chain(seconds, sent_bytes=sent), cluster=cluster)
    few, many = (simulate(scenario, requests=number, window=8).total_s for number in (100, 200))
    assert times.period_s == pytest.approx((0.03 + 2 * 0.001 + 3 * 0.01) / 2)
    assert (many - few) / 100 == pytest.approx(times.period_s)


def test_outputs_that_nobody_asks_for_are_not_sent(model: graphcut.Model, analysis: graphcut.Analysis) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER, outputs=("logits",)))
    scenario = scenario_of_plan(made, model, None)
    assert made.costs is not None
    sizes, caches = made.costs.tensor_bytes, set(model.graph.writes) - {"logits"}
    found, everything = (
        {link.source: link.bytes for link in simulate(one, requests=10).links if link.target is None}
        for one in (scenario, scenario_of_plan(made, model, None, model.graph.writes))
    )
    assert sum(everything.values()) - sum(found.values()) == 10 * sum(sizes[name][0] for name in caches)


@each("objective", ["throughput", "decode", *(["latency", "bytes"] if FUZZ else [])])
def test_states_stay_where_they_are_in_a_plan_in_its_cascade_and_in_what_is_simulated_of_both(
    objective: Objective, model: graphcut.Model, tmp_path: Path
) -> None:
    """A step of a decoder with 512 tokens in its caches: the driver sends some ids and gets a token."""
    step = graphcut.load(model.path, dims={"batch": 1, "seq": 1, "past": 512})
    made = graphcut.plan(step, Across(CLUSTER, objective, 2, ranks=1))
    cascade = graphcut.split(step, made, tmp_path / "parts")
    of_plan, of_cascade = scenario_of_plan(made, step, None), scenario_of_cascade(cascade, FAULTLESS)
    driven = sum(part.input_bytes + part.output_bytes for part in made.metrics)
    assert driven < 5000 < sum(part.cache_bytes for part in made.metrics) / 10
    assert sum(part.output_bytes for part in made.metrics) == 8
    assert (of_cascade.tensor_bytes, of_cascade.outputs) == (of_plan.tensor_bytes, of_plan.outputs)
    assert of_plan.outputs == ("logits",)
    by_plan, by_cascade = (simulate(one, requests=20, window=2) for one in (of_plan, of_cascade))
    assert by_cascade.per_s == pytest.approx(by_plan.per_s, rel=5e-3)
    assert [link.bytes for link in by_cascade.links] == [link.bytes for link in by_plan.links]


def test_a_state_that_a_cut_separates_is_sent_from_and_to_the_driver() -> None:
    """As `generate` does: the part that writes it is not the one that reads it."""

    class Part(NamedTuple):
        reads: tuple[str, ...]
        writes: tuple[str, ...]

    model = Part(("x", "past.0", "past.1"), ("logits", "present.0", "present.1"))
    parts = (Part(("x", "past.0", "past.1"), ("h", "present.0")), Part(("h",), ("logits", "present.1")))
    states = [Cache(f"past.{i}", f"present.{i}", i) for i in range(2)]
    sizes = {"x": 4, "logits": 400, **{f"{side}.{i}": 1000 for side in ("past", "present") for i in range(2)}}
    assert travelling(model, parts, states, sizes) == {"x": 4, "past.1": 1000, "logits": 8, "present.1": 1000}
    named = travelling(model, parts, states, sizes, ["logits", "present.0"])
    assert named == {"x": 4, "past.1": 1000, "logits": 400, "present.0": 1000}
    assert travelling(model, parts, [], sizes) == sizes


def test_a_rule_of_plans_changes_no_simulation() -> None:
    cluster = SimulatedCluster(devices=devices_of(2), store_s=0.5, step_s=0.1)
    by_rule = [
        simulate(
            replace(chain([1.0, 2.0], sent_bytes=sent * KB), cluster=changed(cluster, overlap=overlap)), requests=9
        )
        for sent in (10, 500)
        for overlap in ("all", "none")
    ]
    assert by_rule[0] == by_rule[1] != by_rule[2] == by_rule[3]


def test_a_plan_without_cluster_is_spread_over_the_devices_in_order(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    made = graphcut.plan(analysis, Into(2))
    scenario = scenario_of_plan(made, model, FAULTLESS)
    assert scenario.assignment == ((0,), (1,), ())
    # Slower by the ratio of what they compute a second, but for the dispatch of nodes and what only moves bytes.
    assert scenario.seconds[0][0] > scenario.seconds[1][0] > made.metrics[0].run_s
    with pytest.raises(UsageError, match="the plan was not made for a cluster") as caught:
        scenario_of_plan(made, model, None)
    assert caught.value.hint == "name one with `cluster`"


def test_empty_tensors_take_no_time() -> None:
    """Planning counts no latency for it either."""
    assert simulate(chain([1.0, 2.0], latency_s=0.25), requests=1).total_s == 1 + 2 + 2 * 2 * 0.25


def test_parts_are_balanced_over_fewer_devices(model: graphcut.Model, analysis: graphcut.Analysis) -> None:
    made = graphcut.plan(analysis, Into(4))
    cluster = SimulatedCluster(devices=CLUSTER.devices[:2])
    scenario = scenario_of_plan(made, model, cluster)
    assert sum(map(len, scenario.assignment)) == 4
    loads = [sum(scenario.seconds[0][i] for i in parts) for parts in scenario.assignment]
    every = [[sum(scenario.seconds[0][i] for i in range(*s)) for s in pairwise((0, b, 4))] for b in (1, 2, 3)]
    assert max(loads) == min(max(pair) for pair in every)


def test_an_error_names_a_planned_device_that_the_cluster_lacks(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER))
    with pytest.raises(UsageError, match=r"a part is planned for '(pi|jetson)', which is not a device"):
        scenario_of_plan(made, model, SimulatedCluster(devices=(Device(name="other"),)))


def test_a_cascade_and_its_plan_have_equal_scenarios(
    model: graphcut.Model, analysis: graphcut.Analysis, tmp_path: Path
) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER, "latency"))
    cascade = graphcut.split(model, made, tmp_path / "parts")
    of_plan, of_cascade = (
        scenario_of_plan(made, model, FAULTLESS),
        scenario_of_cascade(cascade, FAULTLESS),
    )
    assert of_cascade.assignment == of_plan.assignment
    assert of_cascade.weight_bytes == of_plan.weight_bytes
    assert [part.memory_bytes for part in of_cascade.parts] == [part.memory_bytes for part in of_plan.parts]
    assert of_cascade.tensor_bytes == of_plan.tensor_bytes
    # Sizes that hang on values another part computes (of a mask by Range) count as one in a part.
    for device in range(3):
        assert of_cascade.seconds[device] == pytest.approx(of_plan.seconds[device], rel=5e-3)
