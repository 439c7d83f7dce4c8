"""`verify` as a whole: what it says if it can't compare, and what its result says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data
from small_cascades import (
    F32,
    X,
    add,
    additions,
    cascade,
    cut_proto,
    frozen,
    model,
    network,
    set_alpha,
    tamper,
    values,
)

import graphcut
from graphcut import At, Cascade, CascadeError, Model, RunError
from graphcut.verifying.numerical import compare
from graphcut.verifying.structural import Proof
from graphcut.verifying.verification import find_source

from conftest import floats, model_of, of_unknown_operator

__all__ = ["cascade", "model"]

# What verify says when it can't compare


def test_structural_only_runs_nothing(model: Model, cascade: Cascade) -> None:
    report = graphcut.verify(model, cascade, structural_only=True)
    assert report
    assert (report.runs, report.refusal) == ((), "")


def test_nothing_is_run_if_the_proof_fails(model: Model, cascade: Cascade) -> None:
    report = graphcut.verify(model, tamper(cascade, 1, set_alpha), inputs=[X])
    assert (report.same, report.runs, report.is_identical) == (False, (), None)


def test_given_inputs_that_the_model_refuses_are_an_error(model: Model, cascade: Cascade) -> None:
    with pytest.raises(RunError, match="input 'x' is fed shape"):
        graphcut.verify(model, cascade, inputs=[{"x": np.ones((2, 3), F32)}])
    for refused in (partial(graphcut.verify, model, cascade), partial(graphcut.compare_models, model, model)):
        with pytest.raises(RunError, match="the model has no input 'z'") as caught:
            refused(inputs=[{**X, "z": np.ones(1)}])
        assert caught.value.hint == "its inputs: x"
    with pytest.raises(RunError, match="the model has no input 1"):
        graphcut.verify(model, cascade, inputs=[{1: 2}])  # type: ignore[dict-item]
    with pytest.raises(RunError, match=r"the model reads float32\[n,16\] 'x', and nothing is fed for it") as caught:
        graphcut.verify(model, cascade, inputs=[{}])
    assert caught.value.hint == "it needs x"


@pytest.mark.parametrize("given", [X, "random", 3, [3]])
def test_inputs_that_are_no_list_of_inputs_by_name_are_refused_as_such(
    model: Model, cascade: Cascade, given: object
) -> None:
    expected = "inputs by name, got int" if given == [3] else "a list of sets of inputs, got"
    with pytest.raises(TypeError, match=expected):
        graphcut.verify(model, cascade, inputs=given)  # type: ignore[arg-type]


def test_what_onnx_runtime_does_not_return_to_python_is_said_instead_of_asking_for_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [a], [b], name=b) for a, b in (("b", "c"), ("c", "d"), ("s", "t"))]
    types = {"b": TensorProto.BFLOAT16, "s": TensorProto.STRING, "d": TensorProto.BFLOAT16, "t": TensorProto.STRING}
    b, s, d, t = (helper.make_tensor_value_info(name, dtype, [2]) for name, dtype in types.items())
    model, cascade = cut_proto(tmp_path, model_of(nodes, [b, s], [d, t]), "c")
    report = graphcut.verify(model, cascade)
    assert (report.same, report.runs, report.refusal) == (True, (), "")
    assert report.reason == "beside string[2] 's', ONNX Runtime returns no bfloat16[2] 'd' to Python"


# A model that is stored otherwise


@pytest.mark.parametrize("size", [2, 1000])
def test_values_in_another_field_of_the_message_are_the_same_model_and_said(size: int, tmp_path: Path) -> None:
    def proto(weight: TensorProto) -> ModelProto:
        nodes = [helper.make_node("Add", ["x", "w"], ["a"], name="add"), helper.make_node("Neg", ["a"], ["y"])]
        return model_of(nodes, [floats("x", size)], [floats("y", size)], [weight])

    numbers = np.arange(size, dtype=F32)
    _, cascade = cut_proto(tmp_path, proto(values("w", numbers)), "add")
    onnx.save(proto(helper.make_tensor("w", TensorProto.FLOAT, [size], numbers)), tmp_path / "again.onnx")
    report = graphcut.verify(tmp_path / "again.onnx", cascade)
    assert (report.same, report.is_identical, report.proof.stored_otherwise) == (True, True, ("w",))
    assert ", 1 constant in another field of the message now, such as 'w'" in report.structure_summary
    onnx.save(proto(helper.make_tensor("w", TensorProto.FLOAT, [size], numbers + 1)), tmp_path / "other.onnx")
    with suppress(CascadeError):  # the digest of a graph has the values of small tensors
        assert not graphcut.verify(tmp_path / "other.onnx", cascade)


def test_the_order_of_initializers_does_not_count_in_subgraphs_either(tmp_path: Path) -> None:
    def proto(*order: int) -> ModelProto:
        weights = [values(name, np.full(1000, i, F32)) for i, name in enumerate("wv")]
        nodes = [helper.make_node("Add", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "v"], ["q"])]
        then = helper.make_graph(nodes, "t", [], [floats("q", 1000)], [weights[i] for i in order])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "e", [], [floats("r", 1000)])
        chosen = helper.make_node("If", ["c"], ["z"], name="if", then_branch=then, else_branch=other)
        inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), floats("x", 1000)]
        return model_of([chosen, helper.make_node("Neg", ["z"], ["y"])], inputs, [floats("y", 1000)])

    _, cascade = cut_proto(tmp_path, proto(0, 1), "if")
    onnx.save(proto(1, 0), tmp_path / "again.onnx")
    assert graphcut.verify(tmp_path / "again.onnx", cascade, structural_only=True)


@pytest.mark.parametrize("smallest_bytes", [0, 1, 1024])
def test_the_model_that_was_cut_may_be_stored_otherwise(
    model: Model, cascade: Cascade, smallest_bytes: int, tmp_path: Path
) -> None:
    """With small weights, and the values of constants, in a file of their own too."""
    (tmp_path / "again").mkdir()
    again, proto = tmp_path / "again" / "model.onnx", onnx.load(model.path)
    convert_model_to_external_data(proto, True, "weights", smallest_bytes, convert_attribute=True)
    onnx.save(proto, again)
    report = graphcut.verify(again, cascade, inputs=[X])
    assert (report.same, report.is_identical) == (True, True)
    assert report.structure_summary.endswith(", the model's weights are stored in weights now")
    shutil.copytree(model.path.parent, tmp_path / "before", ignore=shutil.ignore_patterns("again"))
    shutil.copytree(again.parent, model.path.parent, dirs_exist_ok=True)
    in_place = graphcut.verify(model.path, cascade, structural_only=True)
    assert (in_place.same, in_place.structure_summary) == (True, report.structure_summary)
    shutil.copytree(tmp_path / "before", model.path.parent, dirs_exist_ok=True)
    moved = model.path.rename(tmp_path / "moved.onnx")
    assert "stored" not in graphcut.verify(moved, cascade, structural_only=True).structure_summary
    moved.rename(model.path)
    assert graphcut.compare_models(again, model, inputs=[X]).same
    own = graphcut.split(again, At(("double", "bias")), again.with_name("model.parts"))
    assert graphcut.verify(model, own, structural_only=True)


def test_a_model_that_refuses_all_inputs_is_reported_and_proved(tmp_path: Path) -> None:
    """Nothing has 7 elements in rows of 2."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Reshape", ["a", "seven"], ["b"], name="reshape"),
        helper.make_node("Neg", ["b"], ["y"], name="neg"),
    ]
    proto = model_of(nodes, [floats("x", "n", 2)], [floats("y", 7)], [values("seven", [7], np.int64)])
    model, cascade = cut_proto(tmp_path, proto, "relu")
    report = graphcut.verify(model, cascade)
    assert report
    assert report.runs == ()
    assert report.refusal.startswith("model.onnx refuses the generated inputs: ONNX Runtime refuses the whole model: ")
    assert "reshape" in report.refusal.lower()
    assert report.refusal.endswith("; feed it with `inputs`")


def test_a_model_that_can_not_be_opened_is_reported_and_proved(tmp_path: Path) -> None:
    report = graphcut.verify(*cut_proto(tmp_path, of_unknown_operator(), "relu"))
    assert report
    assert report.runs == ()
    assert report.refusal.startswith("ONNX Runtime can't open the model: ")
    assert report.refusal.endswith("; install what it needs, or take a model that it opens")


def test_inputs_of_two_sizes_are_generated(model: Model, cascade: Cascade) -> None:
    report = graphcut.verify(model, cascade, seed=3)
    assert report
    assert report.is_identical
    assert [len(run) for run in report.runs] == [3, 3]


def test_another_model_is_refused_by_its_digest(cascade: Cascade, tmp_path: Path) -> None:
    other = network()
    set_alpha(other)
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(CascadeError, match=r"model\.parts was not cut from .*other\.onnx: the graphs differ") as caught:
        graphcut.verify(graphcut.load(tmp_path / "other.onnx"), cascade)
    assert caught.value.hint == "name the model it was cut from with `model`, or split again"


def test_a_cascade_alone_is_verified_against_the_model_that_it_names(model: Model, cascade: Cascade) -> None:
    assert graphcut.verify(cascade, inputs=[X])
    assert graphcut.verify(cascade.root, structural_only=True)
    model.path.unlink()
    with pytest.raises(CascadeError, match=r"the model that was cut is not at .*model\.onnx") as caught:
        graphcut.verify(cascade)
    assert caught.value.hint == "name it with `model`"


def test_a_copy_of_the_model_is_accepted(model: Model, cascade: Cascade, tmp_path: Path) -> None:
    copy = tmp_path / "moved" / "renamed.onnx"
    copy.parent.mkdir()
    model.path.rename(copy)
    with pytest.raises(CascadeError, match=r"is not at .*model\.onnx") as caught:
        find_source(cascade)
    assert caught.value.hint == "name it with `model`"
    assert graphcut.verify(graphcut.load(copy), cascade, inputs=[X])


def test_a_cascade_that_refuses_inputs_that_the_model_accepts_is_wrong(
    model: Model, cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the proof finds that or the run: the cascade does not do what its model does."""
    inputs = [{"x": np.ones((3, 16), F32)}]
    assert not graphcut.verify(model, frozen(cascade), inputs=inputs)
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 8, 0, 0))
    report = graphcut.verify(model, frozen(cascade), inputs=inputs)
    assert (report.same, report.runs, report.proof.holds) == (False, (), True)
    assert str(report).endswith(f"numbers: not run; {report.failure}")


def boundary_tensors(cascade: Cascade, feeds: Mapping[str, object], model: Model) -> Iterator[str]:
    return (tensor.tensor for tensor in compare(model, cascade, feeds, optimized=False))


def test_an_input_that_is_an_output_is_compared_too(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    proto = model_of(nodes, [floats("x", 2), floats("s", 2)], [floats("y", 2), floats("s", 2)])
    model, cascade = cut_proto(tmp_path, proto, "a")
    feeds = {"x": np.ones(2, F32), "s": np.zeros(2, F32)}
    assert list(boundary_tensors(cascade, feeds, model)) == ["a", "y", "s"]


# What a result says


def test_a_result_is_printed_in_three_lines(model: Model, cascade: Cascade) -> None:
    assert str(graphcut.verify(model, cascade, inputs=[X])).splitlines() == [
        "the cascade matches the model",
        "structure: 8 nodes matched, 2 KiB of large weights compared, 1 replica",
        "numbers: 1 run, 3 of 3 tensors bit-identical",
    ]
    assert str(graphcut.verify(model, cascade, structural_only=True)).splitlines()[2] == "numbers: not run"


def test_a_printed_result_names_objections_and_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cascade = cut_proto(tmp_path, additions(0, 1), "s0")
    cascade = tamper(cascade, 1, add(1.5))
    assert str(graphcut.verify(model, cascade)).splitlines()[:2] == [
        "the cascade does not match the model",
        "structure: 2 nodes matched, 0 B of large weights compared; part-1.onnx: weight 'k1' differs from the model's",
    ]
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 2, 0, 0))
    printed = str(graphcut.verify(model, cascade, inputs=[{"x": np.array([2], F32)}]))
    assert printed.endswith("numbers: 1 run, 1 of 2 tensors bit-identical; 's1' differs by 0.5, 0 is allowed")
