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

_modules: dict[str, str] = {}  #: the modules of the public names.


def _public() -> dict[str, str]:
    """`_modules`, read when first needed: until the command can explain a Ctrl-C, little should be imported."""
    if not _modules:
        import re
        from pathlib import Path

        lines = re.compile(r"^from (\S+) import (\w+) as \w+$", flags=re.MULTILINE)
        found = lines.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
        _modules.update((name, module) for module, name in found)
    return _modules


def __getattr__(name: str) -> object:
    if name == "__all__":
        return [name for name in sorted(_public()) if not name.startswith("_")]
    if name not in _public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_public()[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_public())


def _draw(product: object) -> str | None:
    from .drawing.notebook import picture_of

    return picture_of(product)
