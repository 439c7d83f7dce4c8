"""`merge_models`: several models as one, which computes what they compute one after another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import CascadeError, Into, Model, ModelError, UsageError, demos
from graphcut.verifying.numerical import EXACT, compare_tensor, run_whole

from cases import each
from conftest import floats, model_of
from hazards import HAZARDS
from tampering import flip

TWO = np.array([1.5, -2], np.float32)


def ran(path: Path, feeds: Mapping[str, Any]) -> dict[str, list[float]]:
    session = ort.InferenceSession(path)
    names = [one.name for one in session.get_outputs()]
    return {name: value.tolist() for name, value in zip(names, session.run(names, dict(feeds)), strict=True)}


def saved(folder: Path, **models: ModelProto) -> list[Path]:
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    return [folder / f"{name}.onnx" for name in models]


def scaled(factor: float, *, opset: int = 17) -> ModelProto:
    """y = x * factor, with names that all such models share."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["t"], name="n"), helper.make_node("Neg", ["t"], ["y"], name="m")]
    weight = numpy_helper.from_array(np.array([factor], np.float32), "w")
    return model_of(nodes, [floats("x", "batch")], [floats("y", "batch")], [weight], opset=opset)


def test_clashing_names_are_renamed_and_one_symbol_stays(tmp_path: Path) -> None:
    a, b = saved(tmp_path, a=scaled(2), b=scaled(3))
    made = graphcut.merge_models([a, b], tmp_path / "ab.onnx", connect={(1, "x"): (0, "y")})
    onnx.checker.check_model(str(made.path), full_check=True)
    assert (made.graph.reads, made.graph.writes) == (("x",), ("b/y",))
    assert [node.name for node in made.graph.nodes] == ["n", "m", "b/n", "b/m"]
    assert made.symbols == ("batch",)
    assert {made.tensors[name].shape for name in made.tensors} == {("batch",)}
    assert ran(made.path, {"x": TWO}) == {"b/y": (TWO * 6).tolist()}


def test_what_is_not_connected_keeps_its_own_symbol(tmp_path: Path) -> None:
    """Otherwise ONNX Runtime would take both for one size, and reuse memory of the wrong size."""
    a, b = saved(tmp_path, a=scaled(2), b=scaled(3))
    made = graphcut.merge_models([a, b], tmp_path / "ab.onnx", connect={})
    assert (made.graph.reads, made.symbols) == (("x", "b/x"), ("batch", "b/batch"))
    found = ran(made.path, {"x": TWO, "b/x": np.ones(3, np.float32)})
    assert found == {"y": (TWO * -2).tolist(), "b/y": [-3.0] * 3}


def test_models_are_connected_in_any_order_and_both_ways(tmp_path: Path) -> None:
    """b reads y0 of a, and a reads z of b."""
    one = [helper.make_node("Neg", ["x"], ["y0"]), helper.make_node("Abs", ["back"], ["y1"])]
    a = model_of(one, [floats("x", 2), floats("back", 2)], [floats("y0", 2), floats("y1", 2)])
    b = model_of([helper.make_node("Add", ["p", "p"], ["z"])], [floats("p", 2)], [floats("z", 2)])
    paths = saved(tmp_path, a=a, b=b)
    connect = {(1, "p"): (0, "y0"), (0, "back"): (1, "z")}
    made = graphcut.merge_models(paths, tmp_path / "ab.onnx", connect=connect)
    onnx.checker.check_model(str(made.path))
    assert ran(made.path, {"x": TWO}) == {"y1": [3.0, 4.0]}
    with pytest.raises(ModelError, match="cycle"):
        graphcut.merge_models(paths, tmp_path / "x.onnx", connect={(1, "p"): (0, "y1"), (0, "back"): (1, "z")})


def test_models_are_connected_by_names_in_any_order(tmp_path: Path) -> None:
    late = model_of([helper.make_node("Neg", ["t"], ["y"])], [floats("t", 2)], [floats("y", 2)])
    early = model_of([helper.make_node("Mul", ["x", "x"], ["t"])], [floats("x", 2)], [floats("t", 2)])
    made = graphcut.merge_models(saved(tmp_path, late=late, early=early), tmp_path / "both.onnx")
    assert [value.name for value in made.proto.graph.value_info] == ["t"]
    assert ran(made.path, {"x": TWO}) == {"y": (-TWO * TWO).tolist()}


def test_two_inputs_of_a_model_read_one_output(tmp_path: Path) -> None:
    b = model_of([helper.make_node("Add", ["p", "q"], ["out"])], [floats("p", 2), floats("q", 2)], [floats("out", 2)])
    paths = saved(tmp_path, a=scaled(2), b=b)
    made = graphcut.merge_models(paths, tmp_path / "ab.onnx", connect={(1, "p"): (0, "y"), (1, "q"): (0, "y")})
    assert ran(made.path, {"x": TWO}) == {"out": (-4 * TWO).tolist()}


def with_functions(inner: str) -> ModelProto:
    """y = F(x), and F calls G: of two such models the texts of F are equal."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="own")], [floats("x", 2)], [floats("y", 2)])
    model.opset_import.append(opsets[1])
    for name, op, place in (("F", "G", "own"), ("G", inner, "")):
        node = helper.make_node(op, ["p"], ["q"], domain=place)
        model.functions.append(helper.make_function("own", name, ["p"], ["q"], [node], opsets))
    return model


def test_functions_of_one_name_are_renamed_also_if_only_those_that_they_call_differ(tmp_path: Path) -> None:
    paths = saved(tmp_path, a=with_functions("Neg"), b=with_functions("Abs"))
    made = graphcut.merge_models(paths, tmp_path / "ab.onnx", connect={(1, "x"): (0, "y")})
    assert [key[1] for key in made.functions] == ["F", "G", "b_F", "b_G"]
    assert ran(made.path, {"x": TWO}) == {"b/y": [1.5, 2.0]}


def test_models_of_one_file_name_have_different_functions_and_tensors(tmp_path: Path) -> None:
    paths = []
    for folder, op in (("one", "Neg"), ("two", "Abs"), ("three", "Exp")):
        (tmp_path / folder).mkdir()
        paths += saved(tmp_path / folder, model=with_functions(op))
    connect = {(1, "x"): (0, "y"), (2, "x"): (1, "y")}
    made = graphcut.merge_models(paths, tmp_path / "all.onnx", connect=connect)
    assert len(made.functions) == 6
    (found,) = ran(made.path, {"x": TWO}).values()
    np.testing.assert_allclose(found, np.exp(np.abs(-TWO)), rtol=1e-6)


def test_different_operator_sets_are_refused(tmp_path: Path) -> None:
    paths = saved(tmp_path, a=scaled(2, opset=14), b=scaled(3, opset=17))
    with pytest.raises(ModelError, match=r"versions 14 and 17 of the operator set ai\.onnx"):
        graphcut.merge_models(paths, tmp_path / "ab.onnx", connect={(1, "x"): (0, "y")})


def test_connections_that_cannot_be_are_refused(tmp_path: Path) -> None:
    wide = model_of([helper.make_node("Neg", ["x"], ["z"])], [floats("x", 3)], [floats("z", 3)])
    four = model_of([helper.make_node("Neg", ["x"], ["z"])], [floats("x", 4)], [floats("z", 4)])
    a, b = saved(tmp_path, a=wide, b=four)
    output = tmp_path / "ab.onnx"
    with pytest.raises(UsageError, match=r"'x' of b.onnx is float32\[4\], and 'z' of a.onnx is float32\[3\]"):
        graphcut.merge_models([a, b], output, connect={(1, "x"): (0, "z")})
    with pytest.raises(UsageError, match=r"a.onnx has nothing called 'zz' to be connected") as caught:
        graphcut.merge_models([a, b], output, connect={(1, "x"): (0, "zz")})
    assert caught.value.hint == "did you mean 'z'? it has z, x"
    with pytest.raises(UsageError, match="'x' would read 'x', an input that is connected itself"):
        graphcut.merge_models([a, b], output, connect={(1, "x"): (1, "x")})
    (other,) = saved(tmp_path, c=model_of([helper.make_node("Neg", ["v"], ["w"])], [floats("v", 3)], [floats("w", 3)]))
    with pytest.raises(UsageError, match="no output has the name of another model's input"):
        graphcut.merge_models([a, other], output)
    output.mkdir()
    with pytest.raises(UsageError, match=r"ab\.onnx is a folder"):
        graphcut.merge_models([a, b], output, connect={(1, "x"): (0, "z")}, force=True)


def test_two_inputs_of_one_name_and_different_symbols_may_be_two(tmp_path: Path) -> None:
    """As the masks of an encoder and a decoder."""
    add = [helper.make_node("Add", ["x", "mask"], ["y"])]
    ends = [floats("y", "batch", "a")]
    first = model_of(add, [floats("x", "batch", "a"), floats("mask", "batch", "a")], ends)
    second = model_of(add, [floats("z", "batch", "b"), floats("mask", "batch", "b")], [floats("w", "batch", "b")])
    second.graph.node[0].input[0], second.graph.node[0].output[0] = "z", "w"
    a, b = saved(tmp_path, a=first, b=second)
    what = "'mask' is float32[batch,a] in a.onnx, and float32[batch,b] in b.onnx: it may be one input or two"
    with pytest.raises(UsageError, match=re.escape(what)):
        graphcut.merge_models([a, b], tmp_path / "ab.onnx")
    two = graphcut.merge_models([a, b], tmp_path / "two.onnx", connect={(1, "z"): (0, "y")})
    assert two.graph.reads == ("x", "mask", "b/mask")
    both = {(1, "z"): (0, "y"), (1, "mask"): (0, "mask")}
    assert graphcut.merge_models([a, b], tmp_path / "one.onnx", connect=both).graph.reads == ("x", "mask")


@pytest.mark.parametrize("shape", [("batch", "a"), (None, None), None])
@pytest.mark.parametrize("first", [0, 1])
def test_an_input_that_several_models_read_has_the_numbers_of_each(
    shape: tuple[str | None, ...] | None, first: int, tmp_path: Path
) -> None:
    def model(shape: tuple[str | int | None, ...] | None, output: str) -> ModelProto:
        mask, found = (helper.make_tensor_value_info(name, 1, shape) for name in ("mask", output))
        return model_of([helper.make_node("Neg", ["mask"], [output])], [mask], [found])

    paths = saved(tmp_path, a=model(shape, "y"), b=model(("batch", 4), "z"))
    order = [paths[first], paths[1 - first]]
    if shape and shape[1]:
        with pytest.raises(UsageError, match="it may be one input or two"):
            graphcut.merge_models(order, tmp_path / "ab.onnx")
    made = graphcut.merge_models(order, tmp_path / "ab.onnx", connect={(1, "mask"): (0, "mask")})
    assert made.tensors["mask"].shape is not None
    assert made.tensors["mask"].shape[1] == 4
    with pytest.raises(Exception, match="mask"):
        ran(made.path, {"mask": np.zeros((1, 5), np.float32)})


def test_a_damaged_part_is_refused_by_the_manifest_beside_it(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=64, layers=2)
    cascade = graphcut.split(tmp_path / "llm.onnx", Into(2), tmp_path / "parts")
    flip(cascade.root / "part-0.onnx.data")
    paths = [cascade.file(part) for part in cascade.parts]
    for use in (
        lambda path: graphcut.merge_models([path, paths[1]], tmp_path / "again.onnx"),
        lambda path: graphcut.extract(path, tmp_path / "again.onnx", expose=cascade.parts[0].writes[0]),
        lambda path: graphcut.split(path, Into(2), tmp_path / "again"),
        lambda path: graphcut.compare_models(path, path),
    ):
        with pytest.raises(CascadeError, match=r"part-0\.onnx\.data was changed after the model was cut"):
            use(paths[0])
    graphcut.analyze(paths[0])  # which reads no weights
    flip(paths[0])
    with pytest.raises(CascadeError, match=r"part-0\.onnx was changed after the model was cut"):
        graphcut.analyze(paths[0])
    graphcut.extract(paths[1], tmp_path / "again.onnx", expose=cascade.parts[1].writes[0])


def test_the_ends_of_a_connection_are_named_if_they_are_exchanged(tmp_path: Path) -> None:
    a, b = saved(tmp_path, a=scaled(2), b=scaled(3))
    with pytest.raises(UsageError, match=r"'y' is an output of a\.onnx, and only inputs read others") as caught:
        graphcut.merge_models([a, b], tmp_path / "ab.onnx", connect={(0, "y"): (1, "x")})
    assert caught.value.hint == "exchange the ends, if 'x' is an input of b.onnx"


RUNNING = {name: hazard for name, make in HAZARDS.items() if (hazard := make()).cut and hazard.runs}


@each("name", RUNNING, together=16)
def test_each_hazard_is_joined_with_itself_and_both_compute_what_they_did(name: str, tmp_path: Path) -> None:
    """All names clash, at every depth."""
    model = graphcut.load(RUNNING[name].write(tmp_path))
    if any(node.is_stateful for node in model.graph.nodes):
        pytest.skip("random")
    made = graphcut.merge_models([model, model], tmp_path / "twice.onnx", connect={})
    feeds = RUNNING[name].feeds
    twins = dict(zip(made.graph.reads[len(model.graph.reads) :], model.graph.reads, strict=True))
    found = run_whole(
        made, {**feeds, **{new: feeds[own] for new, own in twins.items()}}, made.graph.writes, config=EXACT
    )
    values = run_whole(model, feeds, model.graph.writes, config=EXACT)
    half = len(model.graph.writes)
    for names in (made.graph.writes[:half], made.graph.writes[half:]):
        for new, own in zip(names, model.graph.writes, strict=True):
            compared = compare_tensor(model.tensors[own], values[own], found[new], 0.0, None)
            assert compared.is_identical


@pytest.mark.parametrize("external", [False, True])
def test_parts_are_joined_by_the_names_of_their_tensors(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """And the states and masks that several parts read are one input."""
    demos.write("llm", tmp_path / "m.onnx", hidden=16, layers=2, heads=2, kv_heads=1, vocab=32, external=external)
    model = graphcut.load(tmp_path / "m.onnx")
    cascade = graphcut.split(model, Into(2), tmp_path / "parts")
    made: Model = graphcut.merge_models([cascade.file(part) for part in cascade.parts], tmp_path / "again.onnx")
    assert set(made.graph.reads) == set(model.graph.reads)
    assert set(made.graph.writes) == set(model.graph.writes)
    assert graphcut.compare_models(model, made)
