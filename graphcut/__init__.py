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

# ONNX Runtime's telemetry is on by default on some systems, and is read when onnxruntime is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

with open(f"{__file__}i", encoding="utf-8") as _lines:  # noqa: PTH123 - what is imported delays the handling of Ctrl-C
    _MODULES = {words[3]: words[1] for words in map(str.split, _lines) if words[:1] == ["from"]}

__all__ = [name for name in sorted(_MODULES) if not name.startswith("_")]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)


def _draw(product: object) -> str | None:
    from .drawing.notebook import picture_of

    return picture_of(product)
