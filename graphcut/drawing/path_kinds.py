"""What a path is, without loading a package that reads models."""

from pathlib import Path


def is_model(path: Path) -> bool:
    """Whether the name is that of a model."""
    return path.suffix.lower() == ".onnx"


def is_plan(path: Path) -> bool:
    """Whether the file names the format of a plan."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return b'"graphcut.plan/' in stream.read(512)
