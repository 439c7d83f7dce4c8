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

from .core.product import Product
from .core.version import __version__ as __version__

if TYPE_CHECKING:
    from .analysis.cut_points import Analysis, CutPoint, analyze
    from .analysis.dataflow import to_networkx
    from .benchmarking.cost_measurement import MeasuredCosts, measure
    from .core.errors import (
        CascadeError,
        GraphcutError,
        LossWarning,
        MemoryCapError,
        ModelError,
        PlanError,
        RecordError,
        RunError,
        UsageError,
    )
    from .core.graph import Block, Graph, Node, Partition
    from .core.manifest import Cascade, Manifest, Part, open_cascade
    from .core.wiring import Tensor, TensorEdge, Wiring
    from .costs.caches import Cache
    from .costs.device import Device
    from .costs.tables import CostTable, read_table, save_table, table_of
    from .costs.weighing import Costs, weigh
    from .loading.model import Model, load
    from .model_splitter import ModelSplitter
    from .planning.cluster import (
        Cluster,
        NetworkLink,
        ReliabilityModel,
        ScheduledFailure,
        SimulatedCluster,
        read_cluster,
        read_simulated_cluster,
    )
    from .planning.goals import Across, At, Heads, Into, Limits, Within
    from .planning.plan_files import replay, save_plan
    from .planning.plans import Plan, plan
    from .running.decoding.generation import Generation, generate
    from .running.in_process.runner import Runner, run
    from .running.pipelined import Pipeline, stream
    from .running.run_log import RunLog
    from .running.stage import SessionConfig
    from .simulating.results import SimulationResult
    from .simulating.scenario import Scenario, scenario_of_cascade, scenario_of_plan
    from .simulating.simulator import simulate
    from .surgery.graphsurgeon import to_graphsurgeon
    from .surgery.merging import merge
    from .surgery.splitting import split
    from .verifying.verification import Verification, verify


__all__ = [
    "Across",
    "Analysis",
    "At",
    "Block",
    "Cache",
    "Cascade",
    "CascadeError",
    "Cluster",
    "CostTable",
    "Costs",
    "CutPoint",
    "Device",
    "Generation",
    "Graph",
    "GraphcutError",
    "Heads",
    "Into",
    "Limits",
    "LossWarning",
    "Manifest",
    "MeasuredCosts",
    "MemoryCapError",
    "Model",
    "ModelError",
    "ModelSplitter",
    "NetworkLink",
    "Node",
    "Part",
    "Partition",
    "Pipeline",
    "Plan",
    "PlanError",
    "RecordError",
    "ReliabilityModel",
    "RunError",
    "RunLog",
    "Runner",
    "Scenario",
    "ScheduledFailure",
    "SessionConfig",
    "SimulatedCluster",
    "SimulationResult",
    "Tensor",
    "TensorEdge",
    "UsageError",
    "Verification",
    "Wiring",
    "Within",
    "analyze",
    "generate",
    "load",
    "measure",
    "merge",
    "open_cascade",
    "plan",
    "read_cluster",
    "read_simulated_cluster",
    "read_table",
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
    "to_graphsurgeon",
    "to_networkx",
    "verify",
    "weigh",
]

_HOMES: Final = {
    "analysis.cut_points": ("Analysis", "CutPoint", "analyze"),
    "analysis.dataflow": ("to_networkx",),
    "core.manifest": ("Cascade", "Manifest", "Part", "open_cascade"),
    "costs.caches": ("Cache",),
    "costs.device": ("Device",),
    "costs.tables": ("CostTable", "read_table", "save_table", "table_of"),
    "costs.weighing": ("Costs", "weigh"),
    "core.errors": (
        "CascadeError",
        "GraphcutError",
        "LossWarning",
        "MemoryCapError",
        "ModelError",
        "PlanError",
        "RecordError",
        "RunError",
        "UsageError",
    ),
    "core.graph": ("Block", "Graph", "Node", "Partition"),
    "benchmarking.cost_measurement": ("MeasuredCosts", "measure"),
    "surgery.graphsurgeon": ("to_graphsurgeon",),
    "surgery.merging": ("merge",),
    "loading.model": ("Model", "load"),
    "planning.cluster": (
        "Cluster",
        "ScheduledFailure",
        "ReliabilityModel",
        "NetworkLink",
        "SimulatedCluster",
        "read_cluster",
        "read_simulated_cluster",
    ),
    "planning.plan_files": ("replay", "save_plan"),
    "planning.goals": ("Across", "At", "Heads", "Into", "Limits", "Within"),
    "planning.plans": ("Plan", "plan"),
    "running.decoding.generation": ("Generation", "generate"),
    "running.run_log": ("RunLog",),
    "running.pipelined": ("Pipeline", "stream"),
    "running.in_process.runner": ("Runner", "run"),
    "running.stage": ("SessionConfig",),
    "simulating.simulator": ("simulate",),
    "simulating.results": ("SimulationResult",),
    "simulating.scenario": ("Scenario", "scenario_of_cascade", "scenario_of_plan"),
    "surgery.splitting": ("split",),
    "model_splitter": ("ModelSplitter",),
    "verifying.verification": ("Verification", "verify"),
    "core.wiring": ("TensorEdge", "Tensor", "Wiring"),
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


Product.draw = _draw


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
