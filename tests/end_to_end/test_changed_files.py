"""Whatever reads the files of a cascade compares them with their digests first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import graphcut
from graphcut import Cascade, CascadeError, Device, Into, RunError, SimulatedCluster, demos
from graphcut.simulating.scenario import scenario_of_cascade

from cases import each
from tampering import flip

Reader = Callable[[Cascade, Path], object]


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """Two parts with weights of their own, and a tokenizer."""
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    (tmp_path / "tokenizer.json").write_text("{}")
    return graphcut.split(tmp_path / "llm.onnx", Into(2), tmp_path / "llm.parts")


def merged(cascade: Cascade, output: Path) -> None:
    graphcut.merge(cascade, output)


def exported(to: Any, cascade: Cascade, output: Path) -> None:  # noqa: ANN401 - a format
    graphcut.export(cascade, output, to=to)


def simulated(cascade: Cascade, _: Path) -> None:
    scenario_of_cascade(cascade, SimulatedCluster(devices=(Device(name="pi"),)))


EXPORTS = [partial(exported, to) for to in ("cpp", "js", "mobile", "model-package", "ort-annotations", "triton")]


def refused(cascade: Cascade, reader: Reader, output: Path, name: str, change: Callable[[Path], object]) -> None:
    """Check that nothing is made while the file is changed."""
    file = cascade.root / name
    raw = file.read_bytes()
    change(file)
    with pytest.raises((CascadeError, RunError), match=f"{name} (was changed after the model was cut|is missing)"):
        reader(cascade, output)
    assert not output.exists()
    file.write_bytes(raw)


def test_a_part_whose_data_have_another_size_is_not_opened(cascade: Cascade) -> None:
    """Their digest is not compared, as that may take long; their size is."""
    data = cascade.root / "part-0.onnx.data"
    raw = data.read_bytes()
    data.write_bytes(raw + b"x")
    with pytest.raises(CascadeError, match=f"has {len(raw) + 1:,} bytes, but had {len(raw):,} when"):
        graphcut.load(cascade.root / "part-0.onnx")


@each("reader", [merged, *EXPORTS])
@each("name", ["part-1.onnx", "part-1.onnx.data"])
def test_what_is_made_of_parts_is_not_made_of_changed_ones(
    reader: Reader, name: str, cascade: Cascade, tmp_path: Path
) -> None:
    refused(cascade, reader, tmp_path / "made", name, flip)


def test_what_simulates_parts_compares_their_files(cascade: Cascade, tmp_path: Path) -> None:
    """Of the weights it reads nothing."""
    refused(cascade, simulated, tmp_path / "made", "part-1.onnx", flip)


@each("reader", [merged, *EXPORTS])
@each("change", [flip, Path.unlink])
def test_a_changed_tokenizer_is_not_carried_along(
    reader: Reader, change: Callable[[Path], object], cascade: Cascade, tmp_path: Path
) -> None:
    refused(cascade, reader, tmp_path / "made", "tokenizer.json", change)
