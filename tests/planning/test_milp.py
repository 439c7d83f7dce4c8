"""The exact solver: its bound is the optimum that the dynamic program finds on all ideals, whatever is asked."""

from __future__ import annotations

import random

import numpy as np
import pytest

from graphcut.costs.device import Device
from graphcut.planning.by_goal.part_count import lightest
from graphcut.planning.instance import Hyperedges, Workload
from graphcut.planning.solver import milp
from graphcut.planning.solver.boundaries import BoundaryTables
from graphcut.planning.solver.chain_dp import ChainPartition, Criterion, chain_dp_table
from graphcut.planning.solver.cost_tables import DeviceClass, busy_s, memory_bytes, received_bytes, time_quantum
from graphcut.planning.solver.milp import MilpProblem, Sense, solve
from graphcut.planning.solver.optimality import prove
from graphcut.planning.solver.order_ideals import ideal_tables
from graphcut.planning.solver.order_prefixes import prefix_tables
from graphcut.planning.solver.search import result_on
from graphcut.planning.solver.topological_orders import orders

KINDS = (
    DeviceClass((Device(name="a"),), np.inf, 2**-30, 2**-20),
    DeviceClass((Device(name="b"), Device(name="c")), np.inf, 2**-29, 2**-18),
)
COUNTS = (1, 2)
SENSES: tuple[Sense, ...] = ("period", "latency", "token", "received")
SECONDS = 30.0


def drawn(seed: int) -> Workload:
    """Four to seven groups, tensors of kilobytes that several read, two things that some groups share."""
    draw = random.Random(seed)  # noqa: S311 - the same draws each time
    groups = draw.randint(4, 7)
    readers = [draw.sample(range(g + 1, groups), min(groups - g - 1, draw.randint(1, 3))) for g in range(groups - 1)]
    things = [draw.sample(range(groups), draw.randint(1, 3)) for _ in range(2)]
    numbers = np.zeros(groups, dtype=np.int64)
    return Workload(
        work=np.array([[draw.randint(1, 99) * speed / 2**20 for _ in range(groups)] for speed in (1, 2)]),
        held=np.array([draw.randint(1, 50) for _ in range(groups)]),
        inner=numbers,
        writer=np.arange(groups - 1),
        readers=Hyperedges.of(readers),
        tensor_bytes=np.array([draw.randint(0, 9) * 1000 for _ in readers]),
        declared=np.array([draw.randint(0, 3) for _ in readers]),
        is_output=np.zeros(groups - 1, dtype=bool),
        sharers=Hyperedges.of(things),
        shared=np.array([draw.randint(1, 50) for _ in things]),
        shared_work=np.array([[draw.randint(0, 9) / 2**20 for _ in things] for _ in KINDS]),
        part_bytes=2,
    )


def ladder_of(load: Workload) -> BoundaryTables:
    ladder = ideal_tables(load, 10_000)
    assert ladder is not None
    return ladder


def best(load: Workload, sense: Sense) -> float:
    """The optimum on all ideals; for `token` over every period that can be kept."""
    ladder, grain = ladder_of(load), time_quantum(load, KINDS)
    busy = [busy_s(ladder, number, kind, grain) for number, kind in enumerate(KINDS)]
    match sense:
        case "period":
            terms = [Criterion(busy, "max")]
        case "latency":
            terms = [Criterion(busy, "sum")]
        case "received":
            terms = [Criterion([received_bytes(ladder)] * len(KINDS), "sum")]
        case _:
            return min(token_s(busy, float(period)) for period in np.unique(np.concatenate(busy)))
    climb = chain_dp_table(terms, COUNTS).best()
    assert climb is not None
    return climb.ranks[0]


def token_s(busy: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]], period: float) -> float:
    kept = [np.where(table <= period, table, np.inf) for table in busy]
    climb = chain_dp_table([Criterion(kept, "sum")], COUNTS).best() if np.isfinite(period) else None
    return np.inf if climb is None else max(climb.ranks[0] / 2, period)


@pytest.mark.parametrize("sense", SENSES)
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_the_optimum_on_unequal_devices(seed: int, sense: Sense) -> None:
    load = drawn(seed)
    answer = solve(MilpProblem(load, KINDS, COUNTS, sense, in_flight=2), time_limit_s=SECONDS)
    assert answer is not None
    assert answer.bound == pytest.approx(best(load, sense), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_the_optimum_for_the_size_of_so_many_parts_and_with_a_pin(seed: int) -> None:
    load = drawn(seed)
    ladder = ladder_of(load)
    free = DeviceClass((Device(name="d"),), np.inf, 0.0, 0.0)
    for pins in ({}, {load.groups - 2: 1}):
        climb = lightest(ladder, memory_bytes(ladder, ()), 3, pins)
        question = MilpProblem(load, (free,), (3,), "size", pins=pins, exactly=True)
        answer = solve(question, time_limit_s=SECONDS)
        assert answer is not None
        if climb is None:
            assert answer.parts == ()
        else:
            assert answer.bound + load.part_bytes == pytest.approx(climb.ranks[0], rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_the_fewest_parts_that_a_budget_allows(seed: int) -> None:
    load = drawn(seed)
    ladder = ladder_of(load)
    needed = memory_bytes(ladder, ())
    budget = float(np.sort(needed[np.isfinite(needed)])[int(np.isfinite(needed).sum() * 0.6)])
    fits = [np.where(needed <= budget, received_bytes(ladder), np.inf)]
    climb = chain_dp_table([Criterion(fits, "sum")], (load.groups,), enough=True).best()
    kind = DeviceClass((Device(name="d"),), budget, 0.0, 0.0)
    answer = solve(MilpProblem(load, (kind,), (load.groups,), "parts"), time_limit_s=SECONDS)
    assert answer is not None
    if climb is None:
        assert answer.parts == ()
    else:
        assert round(answer.bound) == len(climb.kinds)


@pytest.mark.parametrize("seed", range(5))
def test_a_poor_plan_is_replaced_by_the_solvers_and_proven(seed: int) -> None:
    """The search is given one order alone, and of it but one bar: what it finds is rarely the best."""
    load = drawn(seed)
    grain = time_quantum(load, KINDS[:1])

    def judge(ladder: BoundaryTables) -> ChainPartition | None:
        return lightest(ladder, busy_s(ladder, 0, KINDS[0], grain), 2, allowed_pins)

    allowed_pins: dict[int, int] = {}
    poor = prefix_tables(load, next(orders(load)), [0, 1, load.groups])
    climb, optimum = judge(poor), judge(ladder_of(load))
    assert climb is not None
    assert optimum is not None
    question = MilpProblem(load, KINDS[:1], (2,), "period", exactly=True)
    found, bound = prove(result_on(poor, climb), 0.0, question, judge, time_limit_s=SECONDS)
    assert found.ranks[0] == optimum.ranks[0]
    assert bound == pytest.approx(optimum.ranks[0], rel=1e-6)


def test_what_is_too_large_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "_MOST_BINARIES", 5)
    load = drawn(0)
    assert solve(MilpProblem(load, KINDS, COUNTS, "period"), time_limit_s=SECONDS) is None


def test_the_solver_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS writes lines of its own past Python, and a command may be printing JSON."""
    for seed in range(8):
        solve(MilpProblem(drawn(seed), KINDS, COUNTS, "period"), time_limit_s=SECONDS)
    assert capfd.readouterr().out == ""
