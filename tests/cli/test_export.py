"""`graphcut export`: which files it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from test_show import House, house

import graphcut
from graphcut.exporting.lingualinked import SIZES

from command_line import Result, Run, holdings, run
from conftest import FIXTURES, floats, model_of

__all__ = ["house", "run"]


def test_a_pipeline_of_genai_is_written_beside_its_tokenizer(run: Run, tmp_path: Path) -> None:
    model, parts = FIXTURES / "tiny-llama-int4" / "model.onnx", tmp_path / "parts"
    assert run("split", model, "--num-splits", 2, "-o", parts, "-q").code == 0
    words = ("export", parts, "--to", "genai", "-o", tmp_path / "out")
    names = ["genai_config.json", "part-0.onnx", "part-0.onnx.data", "part-1.onnx", "part-1.onnx.data"]
    names.append("written.json")
    assert run(*words) == Result(0, "", "".join(f"wrote {tmp_path / 'out' / name}\n" for name in names))
    assert run(*words).error[0] == f"{tmp_path / 'out'} already exists"
    assert run(*words, "--dim", "n=8").error[0] == "--dim applies to --to lingualinked"
    assert run(*words, "--force").code == 0


def test_a_model_without_a_configuration_of_genai_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    result = run("export", house.cascade, "--to", "genai", "-o", tmp_path / "out")
    assert (result.code, result.error[0]) == (
        2,
        f"{house.model.parent / 'genai_config.json'} can't be read: No such file or directory",
    )
    assert holdings(tmp_path) == set()


# LinguaLinked's maps


def test_the_maps_of_lingualinked_are_the_files_that_the_function_writes(
    run: Run, house: House, tmp_path: Path
) -> None:
    result = run("export", house.cascade, "--to", "lingualinked", "-o", tmp_path / "told")
    files = graphcut.export(house.opened(), tmp_path / "given", to="lingualinked")
    names = [file.relative_to(tmp_path / "given") for file in files]
    assert result == Result(0, "", "".join(f"wrote {tmp_path / 'told' / name}\n" for name in names))
    assert holdings(tmp_path / "told") == holdings(tmp_path / "given")
    for name in names:
        assert (tmp_path / "told" / name).read_bytes() == (tmp_path / "given" / name).read_bytes()


def test_maps_are_sized_by_dims_and_by_the_model(run: Run, tmp_path: Path) -> None:
    """The first half of `n` rows crosses. How many these are stands in no shape: the model has to compute it."""
    weights = [numpy_helper.from_array(np.array([i], np.int64), name) for i, name in ((2, "two"), (0, "zero"))]
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], name="shape", start=0, end=1),
        helper.make_node("Div", ["rows", "two"], ["middle"], name="div"),
        helper.make_node("Slice", ["x", "zero", "middle"], ["half"], name="slice"),
        helper.make_node("Relu", ["half"], ["y"], name="relu"),
    ]
    path = tmp_path / "half.onnx"
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", None, 4)], weights), path)
    model = graphcut.load(path)
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.At(("slice",))))
    words = ("export", cascade.root, "--to", "lingualinked", "--dim", "n=8", "-o")
    assert run(*words, tmp_path / "bare").code == 0
    assert not (tmp_path / "bare" / SIZES).exists()
    assert run(*words, tmp_path / "maps", "--model", path).code == 0
    half = 8 // 2 * 4 * 4
    assert json.loads((tmp_path / "maps" / SIZES).read_text(encoding="utf-8")) == {
        "0": {"seq": {"1": [half]}, "res": {}},
        "1": {"seq": {"0": [half]}, "res": {}},
    }


def test_existing_maps_are_replaced_only_with_force(run: Run, house: House, tmp_path: Path) -> None:
    words = ("export", house.cascade, "--to", "lingualinked", "-o", tmp_path / "maps")
    assert run(*words).code == 0
    result = run(*words)
    assert (result.code, result.error[0]) == (2, f"{tmp_path / 'maps'} already exists")
    assert run(*words, "--force").code == 0


@pytest.mark.parametrize("thing", ["model", "plan"])
def test_the_maps_of_lingualinked_are_of_a_cascade_alone(run: Run, house: House, tmp_path: Path, thing: str) -> None:
    result = run("export", house.place(thing), "--to", "lingualinked", "-o", tmp_path / "maps")
    assert result.code in {2, 3}
    assert result.error[0].startswith(str(house.place(thing)))
    assert holdings(tmp_path) == set()
