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

if TYPE_CHECKING:
    from .analysis import Analysis, CutPoint, analyze, to_networkx
    from .cascade import Cascade, Manifest, Part, open_cascade
    from .errors import CascadeError, GraphcutError, ModelError, PlanError, RecordError, RunError, UsageError
    from .graph import Block, Graph, Node, Partition
    from .merging import merge
    from .model import Model, load
    from .planning.goals import At
    from .planning.plans import Plan, plan
    from .running.sequential import run
    from .running.stage import Policy
    from .splitting import split
    from .verifying.reports import Report, verify
    from .wiring import Link, Tensor, Wiring

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "At",
    "Block",
    "Cascade",
    "CascadeError",
    "CutPoint",
    "Graph",
    "GraphcutError",
    "Link",
    "Manifest",
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
    "Tensor",
    "UsageError",
    "Wiring",
    "analyze",
    "load",
    "merge",
    "open_cascade",
    "plan",
    "run",
    "split",
    "to_networkx",
    "verify",
]

_HOMES: Final = {
    "analysis": ("Analysis", "CutPoint", "analyze", "to_networkx"),
    "cascade": ("Cascade", "Manifest", "Part", "open_cascade"),
    "errors": ("CascadeError", "GraphcutError", "ModelError", "PlanError", "RecordError", "RunError", "UsageError"),
    "graph": ("Block", "Graph", "Node", "Partition"),
    "merging": ("merge",),
    "model": ("Model", "load"),
    "planning.goals": ("At",),
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


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
