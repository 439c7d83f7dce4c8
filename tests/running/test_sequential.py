"""Running a cascade part by part: inputs, outputs, and the values that are kept between parts."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, Part, RunError, SessionConfig
from graphcut.core.arguments import Optimization
from graphcut.core.digests import digest_of
from graphcut.core.tensors import Tensor
from graphcut.running.in_process.sequential import input_values, run_sequentially
from graphcut.running.process_memory import resident_bytes
from graphcut.running.stage import Stage, session_options
from graphcut.running.values import CPU_MEMORY, Feeds, Outputs, first_tokens, to_array, to_value
from graphcut.workers.executors.via import Via

from cases import each
from conftest import floats, model_of

EXACT = SessionConfig(optimize="none")
InferenceSession = ort.InferenceSession
Array = NDArray[Any]


def cut(path: Path, *names: str) -> Cascade:
    model = graphcut.load(path)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(names)), path.with_suffix(".parts"))


def cut_proto(folder: Path, proto: ModelProto, *names: str) -> Cascade:
    onnx.save(proto, folder / "model.onnx")
    return cut(folder / "model.onnx", *names)


@pytest.fixture
def cascade(chain: Path) -> Cascade:
    """Relu and Exp, Neg, then Add, which also reads the first part."""
    return cut(chain, "exp", "neg")


X = np.array([[-1, 0, 1, 2], [3, -4, 0.5, 0.25]], np.float32)


def test_a_cascade_gives_the_outputs_of_the_model(cascade: Cascade, chain: Path) -> None:
    options = session_options(EXACT)
    session = ort.InferenceSession(chain, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": X})
    found = graphcut.run(cascade, {"x": X}, config=EXACT)
    assert list(found) == ["y"]
    np.testing.assert_array_equal(found["y"], expected, strict=True)


@each("optimize", ["none", "basic", "all"])
@each("prepacked", [True, False])
@each("threads", [0, 1, 2])
def test_every_session_config_gives_the_outputs(
    cascade: Cascade, *, optimize: Optimization, prepacked: bool, threads: int
) -> None:
    relu = np.maximum(X, 0)
    config = SessionConfig(optimize=optimize, prepacked=prepacked, threads=threads)
    np.testing.assert_allclose(graphcut.run(cascade, {"x": X}, config=config)["y"], relu - np.exp(relu), rtol=1e-6)


def test_a_cascade_that_is_opened_again_runs(cascade: Cascade) -> None:
    again = graphcut.open_cascade(cascade.root)
    assert again == cascade
    np.testing.assert_array_equal(graphcut.run(again, {"x": X})["y"], graphcut.run(cascade, {"x": X})["y"])


def test_outputs_come_in_the_order_of_the_model(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(3)]
    outputs = [floats(name, 2) for name in ("t2", "t3", "t0", "t1")]
    cascade = cut_proto(tmp_path, model_of(nodes, [floats("t0", 2)], outputs), "n0", "n1")
    found = graphcut.run(cascade, {"t0": np.array([1, 2], np.float32)})
    assert [(name, value.tolist()) for name, value in found.items()] == [
        ("t2", [1, 2]),
        ("t3", [-1, -2]),
        ("t0", [1, 2]),
        ("t1", [-1, -2]),
    ]


def test_an_input_may_be_empty(cascade: Cascade) -> None:
    assert graphcut.run(cascade, {"x": np.zeros((0, 4), np.float32)})["y"].shape == (0, 4)


def test_inputs_are_converted_to_arrays(tmp_path: Path) -> None:
    """A list of whole numbers; a scalar; a view that is not contiguous."""
    nodes = [
        helper.make_node("Mul", ["ids", "factor"], ["a"], name="mul"),
        helper.make_node("Neg", ["a"], ["y"], name="neg"),
    ]
    ids, factor, y = (
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name, shape in (("ids", ["n"]), ("factor", []), ("y", ["n"]))
    )
    cascade = cut_proto(tmp_path, model_of(nodes, [ids, factor], [y]), "mul")
    assert graphcut.run(cascade, {"ids": [1, 2, 3], "factor": 2})["y"].tolist() == [-2, -4, -6]
    assert graphcut.run(cascade, {"ids": np.arange(6)[::-2], "factor": np.int64(2)})["y"].tolist() == [-10, -6, -2]


def test_a_state_that_has_no_place_for_each_token_can_not_be_cut() -> None:
    state = Tensor(name="s", dtype="float32", shape=(None,))
    value = to_value(np.array([7, 8, 9], np.float32), state)
    assert to_array(first_tokens(value, state, 0, 3, 2), state).tolist() == [7, 8]
    for axis, length in ((0, 4), (None, 3)):
        with pytest.raises(RunError, match=f"the state 's' can't be cut to 2 of {length} tokens"):
            first_tokens(value, state, axis, length, 2)


def test_outputs_do_not_share_memory_with_inputs_or_later_runs(cascade: Cascade) -> None:
    fed = X.copy()
    first = graphcut.run(cascade, {"x": fed})["y"]
    kept = first.copy()
    fed[:] = 7
    graphcut.run(cascade, {"x": fed})
    np.testing.assert_array_equal(first, kept)


def test_an_input_that_is_an_output_is_copied(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    proto = model_of(nodes, [floats("x", 2), floats("s", 2)], [floats("y", 2), floats("s", 2)])
    fed = np.ones(2, np.float32)
    found = graphcut.run(cut_proto(tmp_path, proto, "a"), {"x": fed, "s": fed})["s"]
    fed[:] = 7
    assert found.tolist() == [1, 1]


@pytest.mark.skipif(CPU_MEMORY is None, reason="this ONNX Runtime takes values otherwise")
def test_a_run_makes_few_calls_for_each_tensor(tmp_path: Path) -> None:
    """On a GPU a step of a decoder with dozens of inputs and outputs takes some milliseconds: it was 10 µs for each."""
    many, calls = 40, 0
    nodes = [helper.make_node("Neg", [f"x{i}"], [f"y{i}"], name=f"n{i}") for i in range(many)]
    reads, writes = ([floats(f"{end}{i}", "n", 4) for i in range(many)] for end in "xy")
    feeds = {f"x{i}": np.full((2, 4), i, np.float32) for i in range(many)}

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    with graphcut.Runner(cut_proto(tmp_path, model_of(nodes, reads, writes), "n19")) as runner:
        runner.run(feeds)
        sys.setprofile(count)
        found = runner.run(feeds)
        sys.setprofile(None)
    assert [found[f"y{i}"].tolist() for i in range(many)] == [[[-i] * 4] * 2 for i in range(many)]
    assert calls / (2 * many) < 24


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell the largest resident memory alone")
@pytest.mark.usefixtures("own_garbage")
def test_a_large_output_does_not_keep_the_others_in_memory(tmp_path: Path) -> None:
    """Those of a part come in one list, which each of them would keep. The system gets back what is above 32 MiB."""
    size = 10 << 20
    nodes = [helper.make_node("Neg", ["x"], [name], name=name) for name in ("a", "b")]
    proto = model_of(nodes, [floats("x", size)], [floats(name, size) for name in ("a", "b")])
    onnx.save(proto, tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    cascade, config = graphcut.split(model, graphcut.Into(1)), SessionConfig(arena=False)
    fed = input_values(cascade, {"x": np.ones(size, np.float32)})
    made = Stage(cascade, cascade.parts[0], config=config).step(fed)
    before = resident_bytes()
    del made["a"]
    assert before - resident_bytes() >= 0.9 * 4 * size


@pytest.mark.usefixtures("own_garbage")
def test_outputs_are_valid_after_the_parts_are_dropped(cascade: Cascade) -> None:
    with graphcut.Runner(cascade) as runner:
        found = [runner.run({"x": X * factor})["y"] for factor in (1, 2)]
    gc.collect()
    expected = [graphcut.run(cascade, {"x": X * factor})["y"] for factor in (1, 2)]
    assert [array.tolist() for array in found] == [array.tolist() for array in expected]


@pytest.mark.parametrize("dtype", ["int32", "bfloat16"])
def test_an_output_of_another_type_than_the_manifest_says_is_an_error(cascade: Cascade, dtype: str) -> None:
    """Its bytes would be read as other numbers."""
    cascade.path.write_text(re.sub(r'("name": "y",\s*"dtype": )"float32"', rf'\1"{dtype}"', cascade.path.read_text()))
    with pytest.raises(RunError, match=rf"output 'y' is a tensor\(float\), and the manifest says {dtype}"):
        graphcut.run(cascade.path, {"x": X})


@pytest.mark.parametrize("is_folded", [True, False])
def test_writing_to_an_output_that_is_a_constant_changes_no_later_run(tmp_path: Path, *, is_folded: bool) -> None:
    table = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    if is_folded:
        nodes.append(helper.make_node("Neg", ["table"], ["c"], name="c"))
    made = "c" if is_folded else "table"
    proto = model_of(nodes, [floats("x", 2)], [floats("y", 2), floats(made, 4)], [table])
    with graphcut.Runner(cut_proto(tmp_path, proto, "a")) as runner:
        first, second = (runner.run({"x": np.ones(2, np.float32)})[made] for _ in range(2))
        expected = first.tolist()
        first[:] = second[:] = 7
        assert runner.run({"x": np.ones(2, np.float32)})[made].tolist() == expected


# Wrong inputs


def two_inputs(folder: Path) -> Cascade:
    nodes = [
        helper.make_node("Relu", ["hidden"], ["a"], name="relu"),
        helper.make_node("Gather", ["a", "ids"], ["y"], name="gather"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    proto = model_of(nodes, [floats("hidden", 3, "width"), ids, floats("unused", 1)], [floats("y", "n", "width")])
    return cut_proto(folder, proto, "relu")


GOOD: Mapping[str, Array] = {"hidden": np.ones((3, 2), np.float32), "ids": np.array([0, 2])}


@each(
    ("wrong", "message", "hint"),
    [
        (
            {"idz": GOOD["ids"]},
            "the model has no input 'idz'",
            "did you mean 'ids'? its inputs: hidden, ids, unused",
        ),
        ({"qqq": GOOD["ids"]}, "the model has no input 'qqq'", "its inputs: hidden, ids, unused"),
        (
            {"hidden": np.ones((3, 2))},
            "input 'hidden' is fed float64, and the model reads float32",
            "convert it, for instance with .astype('float32')",
        ),
        (
            {"ids": np.array([0, 1], np.int32)},
            "input 'ids' is fed int32, and the model reads int64",
            "convert it, for instance with .astype('int64')",
        ),
        (
            {"ids": np.array(["a"])},
            "input 'ids' is fed <U1, and the model reads int64",
            "convert it, for instance with .astype('int64')",
        ),
        (
            {"hidden": np.ones((4, 2), np.float32)},
            "input 'hidden' is fed shape [4, 2], and the model reads float32[3,width]",
            "give it the shape that the model declares",
        ),
        (
            {"ids": np.array(1)},
            "input 'ids' is fed shape [], and the model reads int64[n]",
            "give it the shape that the model declares",
        ),
    ],
    ids=["unknown", "very unknown", "float64", "int32", "strings", "size", "rank"],
)
def test_a_wrong_input_is_named(tmp_path: Path, wrong: dict[str, Array], message: str, hint: str) -> None:
    with pytest.raises(RunError) as caught:
        graphcut.run(two_inputs(tmp_path), {**GOOD, **wrong})
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("given", [[], ["hidden"], ["ids"]])
def test_a_missing_input_is_named(tmp_path: Path, given: Sequence[str]) -> None:
    missing = "hidden" if "hidden" not in given else "ids"
    kind = {"hidden": "float32[3,width]", "ids": "int64[n]"}[missing]
    with pytest.raises(RunError) as caught:
        graphcut.run(two_inputs(tmp_path), {name: GOOD[name] for name in given})
    assert str(caught.value) == f"the model reads {kind} '{missing}', and nothing is fed for it"


def test_the_hint_for_a_missing_input_lists_the_required_inputs(tmp_path: Path) -> None:
    """Nothing reads `unused`, so it is not required."""
    with pytest.raises(RunError) as caught:
        graphcut.run(two_inputs(tmp_path), {})
    assert caught.value.hint == "it needs hidden, ids"


def test_an_input_that_nothing_reads_may_be_fed_or_not(tmp_path: Path) -> None:
    cascade = two_inputs(tmp_path)
    bare = graphcut.run(cascade, GOOD)["y"]
    np.testing.assert_array_equal(graphcut.run(cascade, {**GOOD, "unused": np.ones(1, np.float32)})["y"], bare)


def test_a_list_of_uneven_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="'hidden'"):
        graphcut.run(two_inputs(tmp_path), {**GOOD, "hidden": [[1.0, 2.0], [3.0]]})


def test_none_for_a_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="'hidden'"):
        graphcut.run(two_inputs(tmp_path), {**GOOD, "hidden": None})


def test_a_value_that_the_model_refuses_is_an_error_of_its_part(tmp_path: Path) -> None:
    """The index 9 is outside 3 rows, which only shows when it runs."""
    with pytest.raises(RunError, match=r"^part-1\.onnx failed: .*9") as caught:
        graphcut.run(two_inputs(tmp_path), {**GOOD, "ids": np.array([9])})
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_part_that_was_changed_after_the_split_is_an_error_that_names_it(cascade: Cascade) -> None:
    cascade.file(cascade.parts[1]).write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"part-1\.onnx was changed after the model was cut") as caught:
        graphcut.run(cascade, {"x": X})
    assert caught.value.hint == "copy it again, or split the model again"


def test_a_part_that_does_not_load_is_an_error_that_names_it(cascade: Cascade) -> None:
    cascade.file(cascade.parts[1]).write_bytes(b"nonsense")
    part = msgspec.structs.replace(cascade.parts[1], sha256=digest_of(b"nonsense"))
    manifest = msgspec.structs.replace(cascade.manifest, parts=(cascade.parts[0], part, cascade.parts[2]))
    with pytest.raises(RunError, match=r"part-1\.onnx can't be loaded: ") as caught:
        graphcut.run(Cascade(cascade.path, manifest), {"x": X})
    assert caught.value.hint == "`verify(...)` checks a cascade"
    assert "\n" not in str(caught.value)


# Optional inputs


@pytest.fixture
def with_default(tmp_path: Path) -> Cascade:
    """`scale` is 2 by default; both parts read it."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["a"], name="first"),
        helper.make_node("Mul", ["a", "scale"], ["y"], name="second"),
    ]
    default = numpy_helper.from_array(np.full(2, 2, np.float32), "scale")
    proto = model_of(nodes, [floats("x", 2), floats("scale", 2)], [floats("y", 2)], [default])
    return cut_proto(tmp_path, proto, "first")


@pytest.mark.parametrize(("fed", "expected"), [({}, 4), ({"scale": np.full(2, 3, np.float32)}, 9)])
def test_an_input_with_a_default_may_be_left_out(
    with_default: Cascade, fed: Mapping[str, Array], expected: float
) -> None:
    assert with_default.manifest.optional == ("scale",)
    found = graphcut.run(with_default, {"x": np.ones(2, np.float32), **fed})
    assert found["y"].tolist() == [expected] * 2


def test_an_optional_input_is_checked_when_it_is_fed(with_default: Cascade) -> None:
    with pytest.raises(RunError, match=r"input 'scale' is fed shape \[3\]"):
        graphcut.run(with_default, {"x": np.ones(2, np.float32), "scale": np.ones(3, np.float32)})


# Values between parts


def test_values_are_dropped_after_their_last_reader(cascade: Cascade) -> None:
    held = [sorted(step) for step in run_sequentially(cascade, {"x": X}, config=EXACT)]
    assert held == [["x"], ["a", "b"], ["a", "c"], ["y"]]


def test_outputs_are_kept_to_the_end(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(3)]
    outputs = [floats(name, 2) for name in ("t3", "t1", "t0")]
    cascade = cut_proto(tmp_path, model_of(nodes, [floats("t0", 2)], outputs), "n0", "n1")
    held = [sorted(step) for step in run_sequentially(cascade, {"t0": np.ones(2, np.float32)}, config=EXACT)]
    assert held == [["t0"], ["t0", "t1"], ["t0", "t1", "t2"], ["t0", "t1", "t3"]]


def test_one_part_is_loaded_at_a_time(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, most = [0], [0]

    class Counted(Stage):
        def __init__(self, cascade: Cascade, part: Part, *, config: SessionConfig) -> None:
            super().__init__(cascade, part, config=config)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            alive[0] -= 1

    monkeypatch.setattr("graphcut.running.in_process.sequential.Stage", Counted)
    graphcut.run(cascade, {"x": X})
    assert (alive[0], most[0]) == (0, 1)


# Strings, sequences and half precision


def test_strings_are_fed_and_returned(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["s"], ["a"], name="same"),
        helper.make_node("Concat", ["a", "a"], ["y"], name="twice", axis=0),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("s", "y")]
    cascade = cut_proto(tmp_path, model_of(nodes, ends[:1], ends[1:]), "same")
    for fed in (np.array(["a", "bc"]), np.array(["a", "bc"], object), ["a", "bc"]):
        assert graphcut.run(cascade, {"s": fed})["y"].tolist() == ["a", "bc", "a", "bc"]


def test_a_sequence_between_parts_is_a_list(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="construct"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0),
    ]
    cascade = cut_proto(tmp_path, model_of(nodes, [floats("x", 2)], [floats("y", 4)]), "construct")
    assert graphcut.run(cascade, {"x": np.array([1, 2], np.float32)})["y"].tolist() == [1, 2, 1, 2]
    _, held, _ = run_sequentially(cascade, {"x": np.array([1, 2], np.float32)}, config=EXACT)
    assert [array.tolist() for array in held["s"]] == [[1, 2], [1, 2]]


def test_bfloat16_is_fed_as_its_bits_or_as_ml_dtypes(tmp_path: Path) -> None:
    import ml_dtypes

    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="widen", to=TensorProto.FLOAT),
        helper.make_node("Neg", ["a"], ["b"], name="neg"),
        helper.make_node("Cast", ["b"], ["y"], name="narrow", to=TensorProto.BFLOAT16),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [2]) for name in ("x", "y")]
    cascade = cut_proto(tmp_path, model_of(nodes, ends[:1], ends[1:]), "neg")
    typed = np.array([1, -2], ml_dtypes.bfloat16)
    for fed in (typed, typed.view(np.uint16)):
        found = graphcut.run(cascade, {"x": fed})["y"]
        assert (found.dtype, found.view(ml_dtypes.bfloat16).tolist()) == (np.uint16, [-1, 2])


def test_strings_and_bfloat16_may_be_read_together(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["s"], ["t"], name="same"),
        helper.make_node("Cast", ["x"], ["y"], name="widen", to=TensorProto.FLOAT),
    ]
    ends = [("s", TensorProto.STRING), ("x", TensorProto.BFLOAT16), ("t", TensorProto.STRING), ("y", TensorProto.FLOAT)]
    values = [helper.make_tensor_value_info(name, kind, [1]) for name, kind in ends]
    onnx.save(model_of(nodes, values[:2], values[2:]), tmp_path / "model.onnx")
    cascade = graphcut.split(tmp_path / "model.onnx", graphcut.Into(1))
    found = graphcut.run(cascade, {"s": ["a"], "x": np.array([0x3F80], np.uint16)})
    assert [value.tolist() for value in found.values()] == [["a"], [1.0]]
    assert graphcut.verify(graphcut.load(cascade.source), cascade).is_identical


def test_a_scalar_of_bfloat16_stays_a_scalar(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="widen", to=TensorProto.FLOAT),
        helper.make_node("Neg", ["a"], ["y"], name="neg"),
    ]
    scalar = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [])
    cascade = cut_proto(tmp_path, model_of(nodes, [scalar], [floats("y")]), "widen")
    one = np.array(0x3F80, np.uint16)  # 1.0: sign 0, exponent 127, mantissa 0
    np.testing.assert_array_equal(graphcut.run(cascade, {"x": one})["y"], np.array(-1, np.float32), strict=True)


def submitted(cascade: Cascade, feeds: Feeds, via: Via) -> Outputs:
    with graphcut.Pipeline(cascade, via=via, workers=2) as pipeline:
        return pipeline.submit(feeds).result()


ANSWERS: dict[str, Callable[[Cascade, Feeds], Outputs]] = {
    "in process": graphcut.run,
    "threads": partial(submitted, via="threads"),
    "processes": partial(submitted, via="processes"),
}


def wrongly_declared(folder: Path, kind: int, op: str) -> Cascade:
    """Two parts; the shape [None, 1] is declared of outputs of shape [1, 2]."""
    nodes = [helper.make_node(op, [read], [write], name=write) for read, write in (("x", "a"), ("a", "y"))]
    value, wrong = helper.make_tensor_value_info("x", kind, [None, 2]), [None, 1]
    declared = [helper.make_tensor_value_info(name, kind, wrong) for name in ("y", "a")]
    model = model_of(nodes, [value], declared[:1])
    model.graph.value_info.append(declared[1])
    onnx.save(model, folder / "m.onnx")
    return graphcut.split(folder / "m.onnx", At("a"), folder / "parts")


@each(("kind", "op"), [(TensorProto.FLOAT, "Neg"), (TensorProto.STRING, "Identity")])
@each("via", ANSWERS)
def test_an_output_of_another_shape_than_declared_passes_with_a_warning(
    tmp_path: Path, kind: int, op: str, via: str
) -> None:
    """As in ONNX Runtime, which merges the declared shape with that of the operator as far as they agree."""
    cascade = wrongly_declared(tmp_path, kind, op)
    x = np.array([["a", "b"]], object) if kind == TensorProto.STRING else np.array([[1, -2]], np.float32)
    with pytest.warns(graphcut.ShapeWarning, match=r"output 'y' has shape \[1, 2\], and the model declares"):
        outputs = ANSWERS[via](cascade, {"x": x})
    np.testing.assert_array_equal(outputs["y"], x)


@pytest.mark.filterwarnings("error::graphcut.ShapeWarning")
@pytest.mark.parametrize("via", ANSWERS)
def test_a_warning_that_is_an_error_is_raised_where_the_answer_is_asked_for(tmp_path: Path, via: str) -> None:
    cascade = wrongly_declared(tmp_path, TensorProto.FLOAT, "Neg")
    with pytest.raises(graphcut.ShapeWarning, match=r"output 'y' has shape \[1, 2\]"):
        ANSWERS[via](cascade, {"x": np.array([[1, -2]], np.float32)})


class PublicSession:
    """A session of an ONNX Runtime that has its public methods alone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of InferenceSession
        self.session = InferenceSession(*arguments, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.session, name)


@pytest.mark.parametrize("run", [graphcut.run, partial(submitted, via="threads")])
def test_the_public_methods_of_onnx_runtime_suffice(
    chain: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Cascade, Feeds], Outputs]
) -> None:
    cascade = graphcut.split(chain, At(("exp", "neg")))
    x = np.array([[1, -2, 3, 0]], np.float32)
    expected = graphcut.run(cascade, {"x": x})
    monkeypatch.setattr(ort, "InferenceSession", PublicSession)
    np.testing.assert_array_equal(run(cascade, {"x": x})["y"], expected["y"], strict=True)
