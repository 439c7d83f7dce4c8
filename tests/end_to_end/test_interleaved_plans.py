"""Interleaved plans from the plan to the run: a device has several parts, and everything knows it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import Across, At, Cascade, Cluster, Device, Limits, Plan, PlanError, SessionConfig, UsageError
from graphcut.drawing.sentences import plan_notes
from graphcut.planning.plan_files import replay, save_plan

from conftest import Draw, floats, model_of

COLUMNS = (64, 64, 128, 32)  #: the products of this row take 1, 2 and 1 times as long as the first.
IDEAL = Device(
    name="a", flops_per_s=2.0 * 64 * 64 * 100, bytes_per_s=1e15, dispatch_s=0.0, link_bytes_per_s=1e12, latency_s=0.0
)
CLUSTER = Cluster(devices=(IDEAL, msgspec.structs.replace(IDEAL, name="b")))
STEP_S = 0.01  #: of the first product.
EXACT = SessionConfig(optimize="none")


def products(columns: Sequence[int]) -> onnx.ModelProto:
    """Three products in a row."""
    draw = np.random.default_rng(0)
    nodes, weights = [], []
    for i, shape in enumerate(pairwise(columns)):
        weights.append(numpy_helper.from_array(draw.random(shape, dtype=np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}"))
    return model_of(nodes, [floats("t0", 1, columns[0])], [floats("t3", 1, columns[-1])], weights)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> graphcut.Model:
    proto = products(COLUMNS)
    path = tmp_path_factory.mktemp("interleaved") / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return graphcut.load(path)


@pytest.fixture(scope="module")
def made(model: graphcut.Model) -> Plan:
    return graphcut.plan(model, Across(CLUSTER, interleave=True))


@pytest.fixture(scope="module")
def cascade(model: graphcut.Model, made: Plan) -> Cascade:
    return graphcut.split(model, made, model.path.parent / "model.parts")


def test_the_outer_products_are_on_one_device(model: graphcut.Model, made: Plan) -> None:
    contiguous = graphcut.plan(model, Across(CLUSTER))
    assert made.parts == ((0,), (1,), (2,))
    assert [device.name for device in made.devices] in (["a", "b", "a"], ["b", "a", "b"])
    assert made.outcome is not None
    assert contiguous.outcome is not None
    assert contiguous.outcome.value == pytest.approx(3 * STEP_S, rel=1e-3)
    assert made.outcome.value == pytest.approx(2 * STEP_S, rel=1e-3)
    assert made.minimized(np.inf) == pytest.approx(2 * STEP_S, rel=1e-3)
    assert made.outcome.bound == pytest.approx(2 * STEP_S, rel=1e-3)


def test_a_device_with_room_for_the_outer_products_has_both_and_with_a_byte_less_there_is_no_plan(
    opened: Draw,
) -> None:
    """Weights of 2, 4 and 2 MiB: no device has room for two products in a row."""
    model = opened(products((512, 1024, 1024, 512)))
    first, _, last = (memory.needs for memory in graphcut.plan(model, At(("n0", "n1"))).memory)

    def on_devices_of(memory_bytes: int, *, interleave: bool) -> Plan:
        devices = tuple(msgspec.structs.replace(one, memory_bytes=memory_bytes) for one in CLUSTER.devices)
        return graphcut.plan(model, Across(Cluster(devices=devices), ranks=1, interleave=interleave))

    made = on_devices_of(first + last, interleave=True)
    assert made.parts == ((0,), (1,), (2,))
    assert made.devices[0] == made.devices[2] != made.devices[1]
    for memory_bytes, interleave in ((first + last, False), (first + last - 1, True)):
        with pytest.raises(PlanError, match="no division fits the devices"):
            on_devices_of(memory_bytes, interleave=interleave)


def test_the_exact_solver_proves_that_three_equal_products_take_two_devices_as_long_as_two(opened: Draw) -> None:
    """Shared out at will they would take half as long again as one."""
    model = opened(products((64, 64, 64, 64)))
    searched, proven = (graphcut.plan(model, Across(CLUSTER, interleave=True), prove_s=s).outcome for s in (0, 10))
    assert searched is not None
    assert proven is not None
    assert searched.value == pytest.approx(2 * STEP_S, rel=1e-3)
    assert searched.bound == pytest.approx(1.5 * STEP_S, rel=1e-3)
    assert (proven.value, proven.is_optimal) == (searched.value, True)
    assert not searched.is_optimal


def test_the_plan_says_which_device_has_several_parts(model: graphcut.Model, made: Plan) -> None:
    assert f"{made.devices[0].name} has p0, p2, and computes for 20 ms of each request" in plan_notes(made, model)


def test_a_plan_file_is_replayed(model: graphcut.Model, made: Plan, tmp_path: Path) -> None:
    save_plan(made, model, tmp_path / "plan.json")
    again = replay(graphcut.analyze(model), tmp_path / "plan.json")
    assert (again.parts, again.devices, again.goal, again.metrics) == (
        made.parts,
        made.devices,
        made.goal,
        made.metrics,
    )
    assert again.outcome == made.outcome


def test_the_manifest_names_the_device_of_each_part_and_verifies(model: graphcut.Model, cascade: Cascade) -> None:
    outer, inner, last = (part.device for part in cascade.parts)
    assert outer == last != inner
    assert [host.name for host in cascade.manifest.devices] == [outer, inner]
    assert graphcut.verify(model, cascade)


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_a_worker_for_each_device_runs_its_parts_with_the_same_bits(
    cascade: Cascade, via: Literal["threads", "processes"]
) -> None:
    draw = np.random.default_rng(1)
    feeds = [{"t0": draw.random((1, 64), dtype=np.float32)} for _ in range(5)]
    expected = [graphcut.run(cascade, feed, config=EXACT)["t3"].tobytes() for feed in feeds]
    with graphcut.Pipeline(cascade, via=via, config=EXACT) as pipeline:
        assert set(pipeline.workers) == {"a", "b"}
        assert [pipeline.submit(feed).result()["t3"].tobytes() for feed in feeds] == expected


def test_the_simulation_takes_the_planned_time_between_two_requests(model: graphcut.Model, made: Plan) -> None:
    from graphcut.simulating.scenario import scenario_of_plan
    from graphcut.simulating.simulator import simulate

    result = simulate(scenario_of_plan(made, model, None), requests=1000, window=6)
    assert {device.parts for device in result.devices} == {(0, 2), (1,)}
    assert 1 / result.per_s == pytest.approx(2 * STEP_S, rel=0.01)


@pytest.mark.parametrize(
    ("goal", "limits", "said"),
    [
        (Across(CLUSTER, "latency", interleave=True), Limits(), "several parts on a device don't help the objective"),
        (Across(CLUSTER, interleave=True), Limits(pins=(("n0", 0),)), "nodes can't be pinned to parts of an interlea"),
    ],
)
def test_what_interleaving_excludes_is_refused(model: graphcut.Model, goal: Across, limits: Limits, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        graphcut.plan(model, goal, limits=limits)
