"""Cut an ONNX model into parts that together do what it did, and prove it.

model = graphcut.load("llm.onnx", dims={"batch": 1, "seq": 16})
analysis = graphcut.analyze(model)
plan = graphcut.plan(analysis, graphcut.At(("/model/layers.1/add_1",)))
cascade = graphcut.split(model, plan, "llm.parts")
assert graphcut.verify(model, cascade)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from .core.html_repr import Pictured
from .core.version import __version__ as __version__

if TYPE_CHECKING:
    from .analysis.cut_points import Analysis, CutPoint, analyze, to_networkx
    from .benchmarking.cost_measurement import Measured, measure
    from .core.errors import (
        CascadeError,
        GraphcutError,
        MemoryCapError,
        ModelError,
        PlanError,
        RecordError,
        RunError,
        UsageError,
    )
    from .core.graph import Block, Graph, Node, Partition
    from .core.manifest import Cascade, Manifest, Part, open_cascade
    from .core.wiring import Link, Tensor, Wiring
    from .costs.caches import Cache
    from .costs.device import Device
    from .costs.tables import Table, read_table, save_table, table_of
    from .costs.weighing import Costs, weigh
    from .loading.model import Model, load
    from .model_splitter import ModelSplitter
    from .planning.cluster import Cluster, Failure, Fault, Line, World, read_cluster, read_world
    from .planning.goals import Across, At, Heads, Into, Limits, Within
    from .planning.plan_files import replay, save_plan
    from .planning.plans import Plan, plan
    from .running.decoding.generation import Generation, generate
    from .running.in_process.runner import Runner, run
    from .running.pipelined import Pipeline, stream
    from .running.run_log import Log
    from .running.stage import Policy
    from .simulating.results import Simulated
    from .simulating.scenario import Scenario, scenario_of_cascade, scenario_of_plan
    from .simulating.simulate_run import simulate
    from .surgery.merging import merge
    from .surgery.splitting import split
    from .verifying.reports import Report, verify


__all__ = [
    "Across",
    "Analysis",
    "At",
    "Block",
    "Cache",
    "Cascade",
    "CascadeError",
    "Cluster",
    "Costs",
    "CutPoint",
    "Device",
    "Failure",
    "Fault",
    "Generation",
    "Graph",
    "GraphcutError",
    "Heads",
    "Into",
    "Limits",
    "Line",
    "Link",
    "Log",
    "Manifest",
    "Measured",
    "MemoryCapError",
    "Model",
    "ModelError",
    "ModelSplitter",
    "Node",
    "Part",
    "Partition",
    "Pipeline",
    "Plan",
    "PlanError",
    "Policy",
    "RecordError",
    "Report",
    "RunError",
    "Runner",
    "Scenario",
    "Simulated",
    "Table",
    "Tensor",
    "UsageError",
    "Wiring",
    "Within",
    "World",
    "analyze",
    "generate",
    "load",
    "measure",
    "merge",
    "open_cascade",
    "plan",
    "read_cluster",
    "read_table",
    "read_world",
    "replay",
    "run",
    "save_plan",
    "save_table",
    "scenario_of_cascade",
    "scenario_of_plan",
    "simulate",
    "split",
    "stream",
    "table_of",
    "to_networkx",
    "verify",
    "weigh",
]

_HOMES: Final = {
    "analysis.cut_points": ("Analysis", "CutPoint", "analyze", "to_networkx"),
    "core.manifest": ("Cascade", "Manifest", "Part", "open_cascade"),
    "costs.caches": ("Cache",),
    "costs.device": ("Device",),
    "costs.tables": ("Table", "read_table", "save_table", "table_of"),
    "costs.weighing": ("Costs", "weigh"),
    "core.errors": (
        "CascadeError",
        "GraphcutError",
        "MemoryCapError",
        "ModelError",
        "PlanError",
        "RecordError",
        "RunError",
        "UsageError",
    ),
    "core.graph": ("Block", "Graph", "Node", "Partition"),
    "benchmarking.cost_measurement": ("Measured", "measure"),
    "surgery.merging": ("merge",),
    "loading.model": ("Model", "load"),
    "planning.cluster": ("Cluster", "Failure", "Fault", "Line", "World", "read_cluster", "read_world"),
    "planning.plan_files": ("replay", "save_plan"),
    "planning.goals": ("Across", "At", "Heads", "Into", "Limits", "Within"),
    "planning.plans": ("Plan", "plan"),
    "running.decoding.generation": ("Generation", "generate"),
    "running.run_log": ("Log",),
    "running.pipelined": ("Pipeline", "stream"),
    "running.in_process.runner": ("Runner", "run"),
    "running.stage": ("Policy",),
    "simulating.simulate_run": ("simulate",),
    "simulating.results": ("Simulated",),
    "simulating.scenario": ("Scenario", "scenario_of_cascade", "scenario_of_plan"),
    "surgery.splitting": ("split",),
    "model_splitter": ("ModelSplitter",),
    "verifying.reports": ("Report", "verify"),
    "core.wiring": ("Link", "Tensor", "Wiring"),
}


def __getattr__(name: str) -> object:
    # A room is entered when something in it is first asked for (PEP 562): `--help` waits for nothing, and a machine
    # that only runs parts needs no onnx.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _draw(product: object) -> str | None:
    from .drawing.notebook import picture_of

    return picture_of(product)


Pictured.draw = _draw


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
