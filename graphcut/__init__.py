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

from .pictured import Pictured

if TYPE_CHECKING:
    from .analysis import Analysis, CutPoint, analyze, to_networkx
    from .cascade import Cascade, Manifest, Part, open_cascade
    from .costs.caches import Cache
    from .costs.device import Device
    from .costs.tables import Table, read_table, save_table, table_of
    from .costs.weighing import Costs, weigh
    from .errors import CascadeError, GraphcutError, ModelError, PlanError, RecordError, RunError, UsageError
    from .graph import Block, Graph, Node, Partition
    from .measuring.measured import Measured, measure
    from .merging import merge
    from .model import Model, load
    from .planning.cluster import Cluster, Line, read_cluster
    from .planning.files import replay, save_plan
    from .planning.goals import Across, At, Heads, Into, Limits, Within
    from .planning.plans import Plan, plan
    from .running.sequential import run
    from .running.stage import Policy
    from .splitting import split
    from .verifying.reports import Report, verify
    from .wiring import Link, Tensor, Wiring

__version__ = "0.1.0"

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
    "Graph",
    "GraphcutError",
    "Heads",
    "Into",
    "Limits",
    "Line",
    "Link",
    "Manifest",
    "Measured",
    "Model",
    "ModelError",
    "Node",
    "Part",
    "Partition",
    "Plan",
    "PlanError",
    "Policy",
    "RecordError",
    "Report",
    "RunError",
    "Table",
    "Tensor",
    "UsageError",
    "Wiring",
    "Within",
    "analyze",
    "load",
    "measure",
    "merge",
    "open_cascade",
    "plan",
    "read_cluster",
    "read_table",
    "replay",
    "run",
    "save_plan",
    "save_table",
    "split",
    "table_of",
    "to_networkx",
    "verify",
    "weigh",
]

_HOMES: Final = {
    "analysis": ("Analysis", "CutPoint", "analyze", "to_networkx"),
    "cascade": ("Cascade", "Manifest", "Part", "open_cascade"),
    "costs.caches": ("Cache",),
    "costs.device": ("Device",),
    "costs.tables": ("Table", "read_table", "save_table", "table_of"),
    "costs.weighing": ("Costs", "weigh"),
    "errors": ("CascadeError", "GraphcutError", "ModelError", "PlanError", "RecordError", "RunError", "UsageError"),
    "graph": ("Block", "Graph", "Node", "Partition"),
    "measuring.measured": ("Measured", "measure"),
    "merging": ("merge",),
    "model": ("Model", "load"),
    "planning.cluster": ("Cluster", "Line", "read_cluster"),
    "planning.files": ("replay", "save_plan"),
    "planning.goals": ("Across", "At", "Heads", "Into", "Limits", "Within"),
    "planning.plans": ("Plan", "plan"),
    "running.sequential": ("run",),
    "running.stage": ("Policy",),
    "splitting": ("split",),
    "verifying.reports": ("Report", "verify"),
    "wiring": ("Link", "Tensor", "Wiring"),
}


def __getattr__(name: str) -> object:
    # A room is entered when something in it is first asked for (PEP 562): `--help` waits for nothing, and a machine
    # that only runs parts needs no onnx.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _draw(product: object) -> str | None:
    from .notebook import picture_of

    return picture_of(product)


Pictured.draw = _draw


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
