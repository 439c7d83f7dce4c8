"""`force` replaces an export as it was written, and no file that only has the name of one of its files."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import ExportFormat, Into, UsageError

from cases import each
from conftest import floats, model_of

FORMATS = sorted({*get_args(ExportFormat)} - {"genai", "qnn"})  # they need a language model, and parts for QNN
THEIRS = [
    ("cpp", "part-7.onnx"),
    ("js", "part-1.onnx"),
    ("js", "part-7.onnx.data"),
    ("mobile", "part-7.ort"),
    ("triton", "m-part-7/config.pbtxt"),
    ("triton", "m-part-7/1/model.onnx"),
    ("triton", "m/1/tokenizer.json"),
    ("model-package", "part-7/part-7.onnx"),
    ("model-package", "shared_assets/sha256-0/w"),
    ("ort-annotations", "model.onnx"),
    ("ort-annotations", "model.onnx.data"),
    ("lingualinked", "module7/module_name_7.json"),
]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A model of three nodes, the weights of which are in a data file."""
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"m{i}") for i in range(3)]
    weights = [numpy_helper.from_array(np.full((600, 2 if i == 2 else 600), i, np.float32), f"w{i}") for i in range(3)]
    model = model_of(nodes, [floats("t0", 1, 600)], [floats("t3", 1, 2)], weights)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    return tmp_path / "m.onnx"


@each("to", FORMATS)
def test_an_export_of_more_parts_is_replaced(to: ExportFormat, chain: Path, tmp_path: Path) -> None:
    three, two = (graphcut.split(chain, Into(n), tmp_path / f"{n}") for n in (3, 2))
    graphcut.export(three, tmp_path / "out", to=to)
    files = graphcut.export(two, tmp_path / "out", to=to, force=True)
    assert [file.relative_to(tmp_path / "out") for file in files] == [
        file.relative_to(tmp_path / "new") for file in graphcut.export(two, tmp_path / "new", to=to)
    ]


@each(("to", "name"), THEIRS)
def test_a_file_that_the_export_has_not_is_named(to: ExportFormat, name: str, chain: Path, tmp_path: Path) -> None:
    cascade = graphcut.split(chain, Into(2), tmp_path / "parts")
    graphcut.export(cascade, tmp_path / "out", to=to)
    theirs = tmp_path / "out" / name
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_bytes(b"theirs")
    with pytest.raises(
        UsageError, match=rf"contains '{name}', which (is not a file of an export to|was changed since)"
    ):
        graphcut.export(cascade, tmp_path / "out", to=to, force=True)
    assert theirs.read_bytes() == b"theirs"


@each("to", FORMATS)
def test_a_file_with_the_name_of_one_of_the_export_is_not_replaced(
    to: ExportFormat, chain: Path, tmp_path: Path
) -> None:
    cascade = graphcut.split(chain, Into(2), tmp_path / "parts")
    written = graphcut.export(cascade, tmp_path / "out", to=to)
    for file in written[:: 3 if to == "mobile" else 1]:  # each export of it takes a second
        before = file.read_bytes()
        file.write_bytes(b"{}")
        with pytest.raises(UsageError, match=r"was changed since|is not a file of an export to"):
            graphcut.export(cascade, tmp_path / "out", to=to, force=True)
        assert file.read_bytes() == b"{}"
        file.write_bytes(before)
    graphcut.export(cascade, tmp_path / "out", to=to, force=True)


def test_an_export_to_another_format_is_not_replaced_nor_one_whose_list_is_gone(chain: Path, tmp_path: Path) -> None:
    cascade = graphcut.split(chain, Into(2), tmp_path / "parts")
    graphcut.export(cascade, tmp_path / "out", to="cpp")
    for to in ("js", "cpp"):
        with pytest.raises(UsageError, match=f"which is not a file of an export to {to}"):
            graphcut.export(cascade, tmp_path / "out", to=to, force=True)
        (tmp_path / "out" / "written.json").unlink(missing_ok=True)
