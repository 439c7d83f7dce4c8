"""Simulations against what theory says of them: queues, pipelines, links that are shared, losses, failures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcut
from graphcut import Across, Cluster, Device, Into, UsageError, demos
from graphcut import NetworkLink as DirectLink
from graphcut.planning.cluster import ReliabilityModel, ScheduledFailure, SimulatedCluster
from graphcut.running.executors.protocol import Step
from graphcut.running.run_log import RunLog
from graphcut.running.scheduling.requests import ScheduledPart
from graphcut.simulating.network import RETRY_S, LinkDirection, Route, Transfer, fair_shares
from graphcut.simulating.scenario import Scenario, scenario_of_cascade, scenario_of_log, scenario_of_plan
from graphcut.simulating.simulated_executor import LOAD_BYTES_PER_S, NOTICE_S
from graphcut.simulating.simulator import latency_of, simulate

RATE = 1000.0
"""Bytes a second of each link here."""


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
    """Parts in a row, each on a device of its own, that send each other so many bytes."""
    number = len(seconds)
    devices = devices_of(number, latency_s=latency_s, memory_bytes=memory_bytes)
    return Scenario(
        tuple(ScheduledPart(f"part {i}", (f"t{i}",), (f"t{i + 1}",), weight_bytes) for i in range(number)),
        (weight_bytes,) * number,
        ("t0",),
        (f"t{number}",),
        {f"t{i + 1}": sent_bytes for i in range(number)},
        SimulatedCluster(devices=devices, faults=tuple(faults), failures=tuple(failures)),
        tuple((i,) for i in range(number)),
        (tuple(seconds),) * number,
    )


# Pipelines


def test_a_request_alone_takes_all_stages_and_transfers_and_the_word_to_and_from_each_device() -> None:
    """Of each device two latencies: to hear what to do, and to be heard; and one for what it is sent."""
    scenario = chain([1.0, 2.0, 4.0], sent_bytes=500, latency_s=0.25)
    found = simulate(scenario, requests=1)
    assert found.total_s == 1 + 2 + 4 + 3 * 2 * 0.25 + 2 * (0.25 + 500 / RATE)
    assert found.latency is not None
    assert found.latency.mean == found.total_s
    assert [device.messaging * found.total_s for device in found.devices] == [0.5, 0.5, 0.5]


def test_a_pipeline_answers_as_often_as_its_slowest_stage() -> None:
    scenario = chain([1.0, 2.0, 0.5], sent_bytes=250)
    found = simulate(scenario, requests=100)
    assert found.total_s == pytest.approx(1 + 2.25 + 0.75 + 99 * 2.25)
    assert [device.steps for device in found.devices] == [100, 100, 100]
    assert [device.computing * found.total_s for device in found.devices] == pytest.approx([100, 200, 50])
    assert [device.fetching * found.total_s for device in found.devices] == pytest.approx([0, 25, 25])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_any_window_and_any_stages_end_when_the_recurrence_of_a_pipeline_says(
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


@pytest.mark.parametrize("window", [1, 2, 3, 8, 20])
def test_a_closed_loop_keeps_littles_law(window: int) -> None:
    """Of W on their way each takes W periods; with fewer than the stages can hold, the time of all stages."""
    found = simulate(chain([1.0, 3.0, 2.0]), requests=400, window=window)
    assert found.latency is not None
    assert found.latency.p50 == max(6.0, 3.0 * window)
    assert found.total_s == pytest.approx(6 + 399 * max(6 / window, 3.0), abs=6)


def test_parts_that_do_not_depend_on_each_other_run_side_by_side() -> None:
    """0 feeds 1 and 2, both feed 3; each tensor moves on a link of its own, but what 0 sends shares its own."""
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
        {"a": 1000, "b": 1000, "c": 500, "y": 0},
        SimulatedCluster(devices=devices_of(4)),
        ((0,), (1,), (2,), (3,)),
        ((1.0, 5.0, 2.0, 1.0),) * 4,
    )
    found = simulate(scenario, requests=1)
    # To 1 and to 2 at half the rate of 0's link: 2 s. At 8 s b is made, and 3 hears of its step: it fetches a, b and c
    # over its link together, 2,500 bytes.
    assert found.total_s == 1 + 2 + 5 + 2.5 + 1
    assert {(link.source, link.target): link.bytes for link in found.links} == {
        ("d0", None): 3000,
        ("d1", None): 1000,
        ("d2", None): 500,
        ("d3", None): 0,
        (None, "d0"): 0,
        (None, "d1"): 1000,
        (None, "d2"): 1000,
        (None, "d3"): 2500,
    }


def test_parts_of_one_device_are_one_step_and_send_nothing_to_each_other() -> None:
    scenario = replace(chain([1.0, 2.0], sent_bytes=1000), owns=((0, 1), ()))
    found = simulate(scenario, requests=10)
    assert found.total_s == 30
    assert [device.steps for device in found.devices] == [10, 0]
    assert [link.bytes for link in found.links] == [0, 0, 0, 0]


def test_a_direct_line_is_taken_instead_of_the_router() -> None:
    scenario = chain([1.0, 1.0], sent_bytes=1000)
    link = DirectLink(between=("d1", "d0"), bytes_per_s=4 * RATE, latency_s=0.5)
    world = SimulatedCluster(devices=scenario.world.devices, links=(link,))
    found = simulate(replace(scenario, world=world), requests=1)
    assert found.total_s == 1 + 0.5 + 0.25 + 1
    carried = {(link.source, link.target): link.bytes for link in found.links if link.bytes}
    assert carried == {("d0", "d1"): 1000}


def test_parts_move_to_the_faster_device_as_they_do_in_a_real_run() -> None:
    """Of six alike parts each device has three; one is twice as fast. With four there and two here both take 4 s."""
    scenario = replace(
        chain([1.0] * 6),
        world=SimulatedCluster(devices=devices_of(2)),
        owns=((0, 1, 2), (3, 4, 5)),
        seconds=((2.0,) * 6, (1.0,) * 6),
    )
    found = simulate(scenario, requests=1000)
    assert found.total_s / 1000 == pytest.approx(4.0, rel=0.05)


# Queues


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waiting_before_one_device_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: with service of one second requests wait load / (2 (1 - load)) on average."""
    means = []
    for seed in range(12):
        latency = simulate(chain([1.0]), requests=1500, rate_per_s=load, seed=seed).latency
        assert latency is not None
        means.append(latency.mean - 1.0)
    expected, error = load / (2 * (1 - load)), stdev(means) / sqrt(len(means))
    assert error < expected / 8  # or the next line would say little
    assert abs(fmean(means) - expected) < 4 * error


def test_requests_come_at_the_rate_that_is_asked_for() -> None:
    """A device that is never busy answers as they come: n gaps have a mean of n / rate, and vary by its root of n."""
    found = simulate(chain([0.0]), requests=4000, rate_per_s=5.0)
    assert abs(found.total_s - 4000 / 5) < 4 * sqrt(4000) / 5


def test_two_devices_with_the_same_part_answer_twice_as_often() -> None:
    scenario = chain([1.0]).copied(2)
    assert [device.name for device in scenario.world.devices] == ["d0", "d0#2"]
    found = simulate(scenario, requests=100)
    assert found.total_s == 50
    assert [device.steps for device in found.devices] == [50, 50]


def test_copies_have_the_lines_and_faults_of_the_first_and_its_failures_are_its_own() -> None:
    fault, failure = ReliabilityModel(device="d0", loss=0.5), ScheduledFailure(device="d1", at_s=1.0)
    link = DirectLink(between=("d0", "d1"), bytes_per_s=1.0)
    scenario = chain([1.0, 2.0])
    world = SimulatedCluster(devices=scenario.world.devices, links=(link,), faults=(fault,), failures=(failure,))
    copied = replace(scenario, world=world).copied(2)
    assert [device.name for device in copied.world.devices] == ["d0", "d1", "d0#2", "d1#2"]
    assert [link.between for link in copied.world.links] == [("d0", "d1"), ("d0#2", "d1#2")]
    assert [fault.device for fault in copied.world.faults] == ["d0", "d0#2"]
    assert copied.world.failures == (failure,)
    assert copied.owns == ((0,), (1,), (0,), (1,))


# Links


def moving(capacities: Sequence[float], ways: Sequence[Sequence[int]]) -> tuple[list[LinkDirection], list[Transfer]]:
    links = [LinkDirection(None, None, capacity) for capacity in capacities]
    transfers = []
    for way in ways:
        transfer = Transfer(Route(tuple(links[i] for i in way), 0.0, (), 0.0), 1, lambda _: None)
        transfers.append(transfer)
        for link in transfer.way.links:
            link.moving[transfer] = None
    return links, transfers


def test_what_one_can_not_use_goes_to_the_others() -> None:
    """Three share a link of 10; one of them is held up elsewhere to 1, so the others have 4.5 each."""
    links, transfers = moving([10.0, 1.0], [(0, 1), (0,), (0,)])
    shares = dict(fair_shares(links))
    assert [shares[transfer] for transfer in transfers] == [1.0, 4.5, 4.5]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_shares_are_max_min_fair(data: st.DataObject) -> None:
    """Each is held up by a link that is full, and on which nobody has more (Bertsekas & Gallager, section 6.5.2)."""
    number = data.draw(st.integers(1, 6))
    capacities = data.draw(st.lists(st.floats(0.1, 100), min_size=number, max_size=number))
    way = st.lists(st.integers(0, number - 1), min_size=1, max_size=3, unique=True)
    links, transfers = moving(capacities, data.draw(st.lists(way, min_size=1, max_size=10)))
    found = fair_shares([link for link in links if link.moving])
    assert len(found) == len(transfers)
    shares = dict(found)
    used = {link: sum(shares[transfer] for transfer in link.moving) for link in links}
    assert all(used[link] <= link.bytes_per_s * (1 + 1e-9) for link in links)
    for transfer in transfers:
        assert any(
            used[link] >= link.bytes_per_s * (1 - 1e-9)
            and shares[transfer] >= max(shares[other] for other in link.moving) * (1 - 1e-9)
            for link in transfer.way.links
        )


def test_two_tensors_on_a_line_share_it_until_the_shorter_has_arrived() -> None:
    """Part 0 sends 1,000 bytes to part 1 and 3,000 to part 2: both at half the rate for 2 s, then 2,000 in 2 s."""
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
        {"a": 1000, "b": 3000, "y": 0, "z": 0},
        SimulatedCluster(devices=devices_of(3)),
        ((0,), (1,), (2,)),
        ((0.0, 0.0, 0.0),) * 3,
    )
    found = simulate(scenario, requests=1)
    assert found.total_s == 4
    assert [device.fetching * 4 for device in found.devices] == [0, 2, 4]


def test_each_lost_message_costs_a_timeout_and_goes_again() -> None:
    """Of n messages n p / (1 - p) are lost on average, with a variance of n p / (1 - p)² (negative binomial)."""
    loss, requests = 0.2, 2000
    scenario = chain([0.0, 0.5], sent_bytes=100, faults=[ReliabilityModel(device="d1", loss=loss)])
    found = simulate(scenario, requests=requests, window=1)
    expected = requests * loss / (1 - loss)
    assert abs(found.lost - expected) < 4 * sqrt(expected / (1 - loss))
    assert found.total_s == pytest.approx(requests * (0.5 + 0.1) + found.lost * (RETRY_S + 0.1))
    assert sum(link.bytes for link in found.links) == 2 * 100 * (requests + found.lost)


def test_over_the_router_a_message_must_pass_both_lines() -> None:
    faults = [ReliabilityModel(device="d0", loss=0.5), ReliabilityModel(device="d1", loss=0.5)]
    found = simulate(chain([0.0, 0.0], sent_bytes=1, faults=faults), requests=2000, window=1)
    expected = 2000 * 0.75 / 0.25
    assert abs(found.lost - expected) < 4 * sqrt(expected / 0.25)


def test_jitter_has_the_mean_that_is_told() -> None:
    """The sum of n exponential times has a mean of n, and a deviation of the root of n, times theirs."""
    faults = [ReliabilityModel(device="d0", jitter_s=0.01), ReliabilityModel(device="d1", jitter_s=0.03)]
    found = simulate(chain([0.0, 1.0], sent_bytes=1, faults=faults), requests=2000, window=1)
    assert abs(found.total_s - 2000 * (1.04 + 1 / RATE)) < 4 * sqrt(2000) * (0.01 + 0.03)


# Failures


def test_a_device_that_fails_takes_up_its_step_when_it_is_back_and_has_loaded() -> None:
    """It fails in the middle of its eleventh step, which begins anew 5 s later and a second of loading."""
    failure = ScheduledFailure(device="d0", at_s=10.5, for_s=5.0)
    found = simulate(chain([1.0], weight_bytes=int(LOAD_BYTES_PER_S), failures=[failure]), requests=20)
    assert found.total_s == 20 + (15.5 - 10.0) + 1
    assert found.without_failures is not None
    assert found.without_failures.total_s == 20
    assert found.devices[0].failures == 1
    assert found.devices[0].down * found.total_s == pytest.approx(5)


def test_a_short_failure_costs_until_it_is_noticed() -> None:
    failure = ScheduledFailure(device="d0", at_s=10.5, for_s=0.25)
    found = simulate(chain([1.0], failures=[failure]), requests=20)
    assert found.total_s == 20 + (10.5 + NOTICE_S - 10.0)


def test_what_lay_on_a_device_that_failed_is_made_anew() -> None:
    """Part 0 has made what part 1 fetches, for 4 s, when its device fails: the request begins at its inputs."""
    failure = ScheduledFailure(device="d0", at_s=3.0, for_s=2.0)
    found = simulate(chain([1.0, 1.0], sent_bytes=4000, failures=[failure]), requests=1)
    assert (found.answered, found.restarted) == (1, 1)
    assert found.total_s == 5 + 1 + 4 + 1


def test_a_tensor_that_another_device_has_too_comes_from_there() -> None:
    """Part 2 reads what part 0 wrote and part 1 has fetched; when the device of part 0 is gone, it asks part 1."""
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
        {"a": 1000, "b": 0, "y": 0},
        SimulatedCluster(devices=devices_of(3), failures=(ScheduledFailure(device="d0", at_s=3.0, for_s=50.0),)),
        ((0,), (1,), (2,)),
        ((1.0, 3.0, 1.0),) * 3,
    )
    found = simulate(scenario, requests=1)
    assert (found.total_s, found.restarted) == (1 + 1 + 3 + 1 + 1, 0)


def test_parts_of_a_device_that_is_gone_come_over_the_line_of_their_heir() -> None:
    """d1 fails at 2.5 s for good; a second later that is noticed, and its part goes to d0, 2,000 bytes in 2 s.

    Four are on their way: d0 has made by then what the second part reads of all of them. It runs that, a second each;
    after the first of these the last request comes, which takes both parts in one step.
    """
    failure = ScheduledFailure(device="d1", at_s=2.5)
    scenario = chain([1.0, 1.0], weight_bytes=2000, failures=[failure], memory_bytes=4000)
    found = simulate(scenario, requests=6)
    assert (found.answered, found.stopped) == (6, "")
    assert found.total_s == pytest.approx(2.5 + NOTICE_S + 2 + 2000 / LOAD_BYTES_PER_S + 4 + 2, rel=1e-12)
    assert [device.steps for device in found.devices] == [10, 1]
    assert found.devices[1].down * found.total_s == pytest.approx(found.total_s - 2.5)


def test_without_room_for_the_parts_of_a_device_that_is_gone_the_run_stops_and_says_so() -> None:
    scenario = chain(
        [1.0, 1.0], weight_bytes=2000, failures=[ScheduledFailure(device="d1", at_s=2.5)], memory_bytes=3999
    )
    found = simulate(scenario, requests=6)
    assert found.answered == 1
    assert found.total_s == 2.5 + NOTICE_S
    assert found.stopped == ("d1 is lost (it failed), and no other worker has room for part 1, which needs 1.95 KiB")
    assert found.without_failures is not None
    assert (found.without_failures.answered, found.without_failures.stopped) == (6, "")


def test_failures_and_repairs_leave_the_availability_that_their_means_say() -> None:
    """Down for m / (M + m) of the time T; its variance is 2 M² m² / ((M + m)³ T) (alternating renewal process)."""
    up, down = 20.0, 4.0
    scenario = chain([0.5], faults=[ReliabilityModel(device="d0", mean_up_s=up, mean_down_s=down)])
    found = [simulate(scenario, requests=2000, seed=seed) for seed in range(3)]
    total_s = sum(one.total_s for one in found)
    share = sum(one.devices[0].down * one.total_s for one in found) / total_s
    deviation = sqrt(2 * up**2 * down**2 / ((up + down) ** 3 * total_s))
    assert abs(share - down / (up + down)) < 4 * deviation
    assert deviation < down / (up + down) / 8
    assert all(one.answered == 2000 for one in found)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_every_request_is_answered_once_and_in_order(seed: int) -> None:
    """A net of parts that branches and skips, on pairs of devices that fail and come back, over links that lose."""
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
        {name: draw.randrange(1, 300) for name in made},
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


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    fault = ReliabilityModel(device="d1", jitter_s=0.1, loss=0.1, mean_up_s=10, mean_down_s=1)
    scenario = chain([0.1, 0.2], sent_bytes=100, faults=[fault])
    first = simulate(scenario, requests=200, rate_per_s=2.0, seed=3)
    assert simulate(scenario, requests=200, rate_per_s=2.0, seed=3) == first
    assert simulate(scenario, requests=200, rate_per_s=2.0, seed=4) != first


def test_failures_do_not_change_when_requests_come() -> None:
    failing = chain([0.0], faults=[ReliabilityModel(device="d0", mean_up_s=1e9, mean_down_s=1.0)])
    found = simulate(failing, requests=100, rate_per_s=3.0)
    assert found.without_failures == replaced(found)


def replaced(found: Any) -> Any:  # noqa: ANN401 - a record
    from msgspec.structs import replace as changed

    return changed(found, without_failures=None)


# What is asked for


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"requests": 0}, "0 requests can't be played"),
        ({"rate_per_s": 0.0}, "requests can't come at 0 a second"),
        ({"rate_per_s": float("nan")}, "requests can't come at nan a second"),
        ({"window": 0}, "nothing runs with 0 requests on their way"),
        ({"window": 1, "rate_per_s": 1.0}, "requests come at a rate, or when one has left, and not both"),
    ],
)
def test_what_can_not_be_played_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        simulate(chain([1.0]), **asked)
    assert str(caught.value) == said
    assert caught.value.hint


def test_a_failure_of_a_stranger_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no device 'pi' to fail") as caught:
        chain([1.0, 1.0]).with_failures([ScheduledFailure(device="pi", at_s=1.0)])
    assert caught.value.hint == "there are d0, d1"


def test_copies_are_at_least_one_and_their_names_new() -> None:
    with pytest.raises(UsageError, match="0 copies can't run anything"):
        chain([1.0]).copied(0)
    scenario = chain([1.0, 1.0])
    devices = tuple(Device(name=name) for name in ("d", "d#2"))
    with pytest.raises(UsageError, match="2 devices are called 'd#2', counting copies"):
        replace(scenario, world=SimulatedCluster(devices=devices)).copied(2)


def test_quantiles_are_times_that_some_request_took() -> None:
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
WORLD = SimulatedCluster(devices=CLUSTER.devices)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> graphcut.Model:
    path = tmp_path_factory.mktemp("simulating") / "llm.onnx"
    demos.write("llm", path, hidden=64, layers=4, heads=2, kv_heads=1, vocab=64)
    return graphcut.load(path, dims={"batch": 1, "seq": 64, "past": 0})


@pytest.fixture(scope="module")
def analysis(model: graphcut.Model) -> graphcut.Analysis:
    return graphcut.analyze(model)


def test_a_plan_runs_where_it_was_planned_and_takes_what_was_predicted(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER))
    scenario = scenario_of_plan(made, model, None)
    names = [device.name for device in made.devices]
    assert sorted(names) == ["jetson", "pi"]
    at = [next(i for i, device in enumerate(CLUSTER.devices) if device.name == name) for name in names]
    assert [scenario.owns[device] for device in at] == [(0,), (1,)]
    assert scenario.owns[2] == ()
    predicted = [figures.run_s for figures in made.metrics]
    assert [scenario.seconds[device][i] for i, device in enumerate(at)] == pytest.approx(predicted)


def test_a_plan_is_simulated_as_fast_as_planned_but_for_words_and_what_overlaps(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    """Planning counts sending as work of the device, and each tensor once a link; a device here computes meanwhile."""
    made = graphcut.plan(analysis, Across(CLUSTER))
    found = simulate(scenario_of_plan(made, model, None), requests=500)
    period = found.total_s / 500
    runs = [figures.run_s for figures in made.metrics]
    slowest = max(figures.busy_s for figures in made.metrics)
    assert max(runs) < period < slowest + 3 * 1e-4 + (sum(runs) + slowest) / 500
    sent = sum(figures.sent_bytes for figures in made.metrics)
    assert sum(link.bytes for link in found.links if link.target is None) == 500 * sent


def test_a_plan_for_no_cluster_is_spread_over_the_devices_in_order(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    made = graphcut.plan(analysis, Into(2))
    scenario = scenario_of_plan(made, model, WORLD)
    assert scenario.owns == ((0,), (1,), ())
    # Slower by the ratio of what they compute a second, but for the dispatch of nodes and what only moves bytes.
    assert scenario.seconds[0][0] > scenario.seconds[1][0] > made.metrics[0].run_s
    with pytest.raises(UsageError, match="the plan was made for no cluster") as caught:
        scenario_of_plan(made, model, None)
    assert caught.value.hint == "name a file that lists devices with --cluster"


def test_nothing_waits_for_a_tensor_of_no_bytes() -> None:
    """Planning counts no latency for it either."""
    assert simulate(chain([1.0, 2.0], latency_s=0.25), requests=1).total_s == 1 + 2 + 2 * 2 * 0.25


def test_what_was_measured_here_is_played_with_the_times_that_it_took(
    model: graphcut.Model, analysis: graphcut.Analysis, tmp_path: Path
) -> None:
    """Part 0 took 2 s on the first worker; part 1 took 1 s on the second and 3 s on the third."""
    cascade = graphcut.split(model, graphcut.plan(analysis, Into(2)), tmp_path / "parts")
    log = RunLog(2, 3)
    for worker, part, seconds in ((0, 0, 1.0), (0, 0, 3.0), (1, 1, 1.0), (2, 1, 3.0)):
        log.done(worker, Step(0, (part,), ()), [seconds], 10.0)
    scenario = scenario_of_log(cascade, log, overhead_s=0.5)
    assert scenario.owns == ((0,), (1,), (1,))
    assert scenario.seconds == ((2.0, 2.0), (2.0, 1.0), (2.0, 3.0))
    assert simulate(scenario, requests=1).total_s == 2 + 1 + 2 * 0.5


def test_more_parts_than_devices_are_shared_out_evenly(model: graphcut.Model, analysis: graphcut.Analysis) -> None:
    made = graphcut.plan(analysis, Into(4))
    world = SimulatedCluster(devices=CLUSTER.devices[:2])
    scenario = scenario_of_plan(made, model, world)
    assert [len(parts) for parts in scenario.owns] == [2, 2]
    loads = [sum(scenario.seconds[0][i] for i in parts) for parts in scenario.owns]
    every = [[sum(scenario.seconds[0][i] for i in range(*s)) for s in pairwise((0, b, 4))] for b in (1, 2, 3)]
    assert max(loads) == min(max(pair) for pair in every)


def test_a_device_of_the_plan_that_the_cluster_lacks_is_named(
    model: graphcut.Model, analysis: graphcut.Analysis
) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER))
    with pytest.raises(UsageError, match=r"part \d is to run on '(pi|jetson)', which is no device of this cluster"):
        scenario_of_plan(made, model, SimulatedCluster(devices=(Device(name="other"),)))


def test_a_cascade_is_simulated_as_its_plan(model: graphcut.Model, analysis: graphcut.Analysis, tmp_path: Path) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER))
    cascade = graphcut.split(model, made, tmp_path / "parts")
    of_plan, of_cascade = scenario_of_plan(made, model, WORLD), scenario_of_cascade(cascade, WORLD)
    assert of_cascade.owns == of_plan.owns
    assert of_cascade.weight_bytes == of_plan.weight_bytes
    assert of_cascade.tensor_bytes == of_plan.tensor_bytes
    # Sizes that hang on values another part computes (of a mask by Range) count as one in a part.
    for device in range(3):
        assert of_cascade.seconds[device] == pytest.approx(of_plan.seconds[device], rel=5e-3)
