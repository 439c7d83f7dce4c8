"""The documents of `--json`: each has the shape that its schema says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import graphcut
from graphcut import Across, Cluster, Device, Into
from graphcut.benchmarking.comparison import BenchmarkRecord
from graphcut.benchmarking.environment import Environment
from graphcut.drawing import json_records
from graphcut.drawing.changes.differences import changes_between
from graphcut.drawing.changes.record import Changes
from graphcut.drawing.run_records import GenerationRecord
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_plan
from graphcut.drawing.verification_records import RECORDS, verification_record
from graphcut.simulating.simulator import simulate
from graphcut.surgery.sharding import ShardingRecord
from graphcut.verifying.files import verify_files
from graphcut.verifying.numerical import TensorComparison
from graphcut.verifying.two_models import ModelComparison

from cases import each

TYPES = (
    json_records.AnalysisRecord,
    json_records.CascadeRecord,
    json_records.SimulationRecord,
    Changes,
    ShardingRecord,
    BenchmarkRecord,
    Environment,
    GenerationRecord,
)
CLUSTER = Cluster(devices=(Device(name="a"), Device(name="b")))


@pytest.fixture
def documents(chain: Path, tmp_path: Path) -> dict[str, msgspec.Struct]:
    """One of each, of a small model."""
    model = graphcut.load(chain, dims={"n": 2})
    analysis = graphcut.analyze(model)
    plan = graphcut.plan(analysis, Across(CLUSTER))
    cascade = graphcut.split(model, graphcut.plan(analysis, Into(2)), tmp_path / "parts")
    result = simulate(graphcut.scenario_of_plan(plan, model, None), requests=3)
    scenes = scene_of_plan(plan, analysis), scene_of_cascade(cascade, model)
    return {
        "graphcut.analysis/1": json_records.analysis_record(analysis),
        "graphcut.view/1": json_records.cascade_record(cascade),
        "graphcut.report/1": verification_record(graphcut.verify(model, cascade)),
        "graphcut.files/1": verification_record(verify_files(cascade)),
        "graphcut.changes/1": changes_between(*scenes),
        "graphcut.simulated/1": json_records.simulation_record(result, "plan.json"),
    }


def test_a_document_names_its_schema_and_has_its_shape(documents: dict[str, msgspec.Struct]) -> None:
    for name, document in documents.items():
        text = json_records.dumps(document)
        assert json.loads(text)["format"] == name
        assert json_records.dumps(msgspec.json.decode(text, type=type(document))) == text


@each("record", [*TYPES, *RECORDS.values()])
def test_every_document_has_a_json_schema(record: type[msgspec.Struct]) -> None:
    definition = msgspec.json.schema(record)["$defs"][record.__name__]
    assert definition["properties"]["format"]["enum"] == [record.__struct_config__.tag]
    assert definition["description"]


def test_an_infinite_difference_is_null() -> None:
    infinite = TensorComparison(
        tensor="y", is_identical=False, max_abs=float("inf"), max_rel=float("inf"), max_ulps=0, allowed=0.0
    )
    found = ModelComparison((infinite,), (), (), (), (), float("-inf"), "y", has_tolerance=False)
    record = json.loads(json_records.dumps(verification_record(found)))
    assert (record["outputs"][0]["max_abs"], record["outputs"][0]["passes"]) == (None, False)
    assert (record["worst_db"], record["same"]) == (None, False)


def test_a_verification_has_its_fields_and_its_figures(documents: dict[str, msgspec.Struct]) -> None:
    record = json.loads(json_records.dumps(documents["graphcut.report/1"]))
    assert (record["same"], record["is_identical"], record["first_difference"]) == (True, True, None)
    assert (record["proof"]["holds"], record["proof"]["approximate"]) == (True, 0)
    assert all(tensor["passes"] for run in record["runs"] for tensor in run)
