"""What a path is, without loading a package that reads models."""

from pathlib import Path
from typing import Literal

from ..core.manifest import EXPORTED, MANIFEST, PIPELINE

Kind = Literal["model", "plan", "cascade"]


def kind_of(path: Path) -> Kind:
    """A cascade by its manifest, a model by its name, its files or since it is not JSON, a plan by the format in it."""
    is_model = path.suffix.lower() == ".onnx" or any((path / name).is_file() for name in (PIPELINE, *EXPORTED))
    if is_model and not (path / MANIFEST).exists():
        return "model"
    if path.is_file():
        with path.open("rb") as stream:
            head = stream.read(512)
        if b'"graphcut.plan/' in head:
            return "plan"
        if path.suffix.lower() != ".json" and not head.lstrip().startswith(b"{"):
            return "model"
    return "cascade"
