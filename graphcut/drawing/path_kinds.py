"""What a path is, without loading a package that reads models."""

from pathlib import Path
from typing import Literal


def kind_of(path: Path) -> Literal["model", "plan", "cascade"]:
    """A model by its name, a plan by the format in the file; anything else can only be a cascade."""
    if path.suffix.lower() == ".onnx":
        return "model"
    if path.is_file():
        with path.open("rb") as stream:
            if b'"graphcut.plan/' in stream.read(512):
                return "plan"
    return "cascade"
