"""Split ONNX models into parts that together compute the same, verify them, and run them.

Example:
    model = graphcut.load("llm.onnx", dims={"batch": 1, "seq": 16})
    plan = graphcut.plan(model, graphcut.Into(3))
    cascade = graphcut.split(model, plan, "llm.parts")
    assert graphcut.verify(model, cascade)

The public names are those of `__init__.pyi`. A module is imported when one of its names is first used (PEP 562,
Scientific Python SPEC 1), so that the command starts fast, and a machine that only runs parts needs no onnx.
"""

import os
import re
from importlib import import_module
from pathlib import Path

from .core.product import Product

# ONNX Runtime's telemetry is on by default on some systems, and is read when onnxruntime is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_IMPORT = re.compile(r"^from (\S+) import (\w+) as \w+$", flags=re.MULTILINE)
_MODULES = {name: module for module, name in _IMPORT.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))}

__all__ = [name for name in sorted(_MODULES) if not name.startswith("_")]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)


def _draw(product: object) -> str | None:
    from .drawing.notebook import picture_of

    return picture_of(product)


Product.draw = _draw
