"""Verifying: a sound cascade passes, and whatever is changed in one is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, CascadeError, Model, RunError
from graphcut.core.digests import digest_of
from graphcut.loading.fingerprint import graph_digest
from graphcut.surgery.splitting import Storage
from graphcut.verifying.numerical import HALF_TOLERANCES, TensorComparison, compare, half_tolerance
from graphcut.verifying.structural import Proof, prove
from graphcut.verifying.verification import find_source

from conftest import floats, model_of

Array = NDArray[Any]
Change = Callable[[ModelProto], object]
INFINITE = float("inf")
F16, F32, F64 = np.float16, np.float32, np.float64


def values(name: str, array: object, dtype: type[np.generic] = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def cut_proto(folder: Path, proto: ModelProto, *names: str, weights: Storage = "copy") -> tuple[Model, Cascade]:
    """Write a model, and cut it after the named places."""
    onnx.save(proto, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    plan = graphcut.plan(graphcut.analyze(model), At(names))
    return model, graphcut.split(model, plan, weights=weights)


def edit_manifest(cascade: Cascade, change: Callable[[dict[str, Any]], object]) -> Cascade:
    record = json.loads(cascade.path.read_text(encoding="utf-8"))
    change(record)
    cascade.path.write_text(json.dumps(record), encoding="utf-8")
    return graphcut.open_cascade(cascade.path)


def tamper(cascade: Cascade, part: int, change: Change, *, is_signed: bool = True) -> Cascade:
    """Change the message of a part; where that `is_signed`, its digest in the manifest too."""
    file = cascade.file(cascade.parts[part])
    proto = onnx.load(file, load_external_data=False)
    change(proto)
    file.write_bytes(proto.SerializeToString())
    if not is_signed:
        return graphcut.open_cascade(cascade.path)
    digests = {"graph": graph_digest(graphcut.load(file).proto), "sha256": digest_of(file.read_bytes())}
    return edit_manifest(cascade, lambda record: record["parts"][part].update(digests))


def node(proto: ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if node.name == name)


def swish() -> onnx.FunctionProto:
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    return helper.make_function("local", "Swish", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])


def network() -> ModelProto:
    """Two products by weights of 1 KiB, and between them a local function, an attribute, a small weight, a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="product0"),
        helper.make_node("Swish", ["a"], ["b"], name="swish", domain="local"),
        helper.make_node("Constant", [], ["k"], name="constant", value=values("k", [2.0])),
        helper.make_node("Mul", ["b", "k"], ["c"], name="double"),
        helper.make_node("Elu", ["c"], ["d"], name="elu", alpha=0.5),
        helper.make_node("Add", ["d", "bias"], ["e"], name="bias"),
        helper.make_node("MatMul", ["e", "w1"], ["f"], name="product1"),
        helper.make_node("Mul", ["f", "k"], ["y"], name="double again"),
    ]
    random = np.random.default_rng(0)
    weights = [values(name, random.random((16, 16)) - 0.5) for name in ("w0", "w1")]
    weights.append(values("bias", [0.25] * 16))
    proto = model_of(nodes, [floats("x", "n", 16)], [floats("y", "n", 16)], weights)
    proto.functions.append(swish())
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """Three parts: up to `double`, up to `bias`, and the rest."""
    return cut_proto(tmp_path, network(), "double", "bias")[1]


@pytest.fixture
def model(cascade: Cascade) -> Model:
    return graphcut.load(find_source(cascade))


X = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)}


# The structural proof


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_an_unchanged_cascade_is_proved(weights: Storage, tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, network(), "double", "bias", weights=weights)
    assert prove(model, cascade) == Proof(objections=(), nodes=8, replicas=1, weight_bytes=2048)


@pytest.mark.parametrize(
    ("read", "inner", "written"),
    [
        (floats("x", "unk__6", 4), None, floats("y", "unk__7", 4)),  # tf2onnx
        (floats("x", None, 4), floats("a", "unk__6", 4), floats("y", None, None)),
        (floats("x", "n", 4), floats("a", "m", "w"), floats("y", "k", "w")),  # known better than declared
        (
            floats("x", "n", 4),
            floats("a", 3, 4),
            floats("y", 3, 4),
        ),  # frozen at export: only inference says what is true
        (floats("x", "n", 4), None, ValueInfoProto(name="y")),  # ONNX Runtime takes an output without a type
        (helper.make_tensor_value_info("x", TensorProto.FLOAT, None), None, ValueInfoProto(name="y")),
    ],
)
def test_declarations_that_say_little_or_wrong_are_no_objection(
    read: ValueInfoProto, inner: ValueInfoProto | None, written: ValueInfoProto, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    proto = model_of(nodes, [read], [written])
    proto.graph.value_info.extend([inner] if inner else [])
    model, cascade = cut_proto(tmp_path, proto, "relu")
    assert prove(model, cascade).objections == ()
    assert graphcut.verify(model.path, cascade, inputs=[{"x": np.ones((3, 4), F32)}]).is_identical


def test_a_changed_weight_byte_is_found(model: Model, cascade: Cascade) -> None:
    file = cascade.root / "part-2.onnx.data"
    raw = bytearray(file.read_bytes())
    raw[517] ^= 1
    file.write_bytes(raw)
    assert prove(model, cascade).objections == ("part-2.onnx: the values of 'w1' differ from the model's",)


def test_a_changed_weight_byte_of_the_model_is_found(model: Model, cascade: Cascade) -> None:
    raw = bytearray(model.path.read_bytes())
    start = model.range_of(model.proto.graph.initializer[0]).offset
    raw[start] ^= 1
    model.path.write_bytes(raw)
    assert prove(graphcut.load(model.path), cascade).objections == (
        "part-0.onnx: the values of 'w0' differ from the model's",
    )


def set_alpha(proto: ModelProto) -> None:
    node(proto, "elu").attribute[0].f = 0.75


def set_bias(proto: ModelProto) -> None:
    proto.graph.initializer[0].CopyFrom(values("bias", [0.25] * 15 + [0.5]))


def set_constant(proto: ModelProto) -> None:
    node(proto, "constant").attribute[0].t.CopyFrom(values("k", [3.0]))


def read_another(proto: ModelProto) -> None:
    node(proto, "bias").input[:] = ["c", "bias"]


def rename_node(proto: ModelProto) -> None:
    node(proto, "elu").name = "selu"


def describe_node(proto: ModelProto) -> None:
    node(proto, "elu").doc_string = "what it was not"


def change_function(proto: ModelProto) -> None:
    proto.functions[0].node[1].op_type = "Add"


def drop_function(proto: ModelProto) -> None:
    del proto.functions[:]


def insert_node(proto: ModelProto) -> None:
    node(proto, "elu").output[:] = ["inserted"]
    proto.graph.node.append(helper.make_node("Identity", ["inserted"], ["d"], name="extra"))


def merge_nodes(proto: ModelProto) -> None:
    """`elu` is left out, and `bias` reads what it read."""
    proto.graph.node.remove(node(proto, "elu"))
    node(proto, "bias").input[0] = "c"


def change_opset(proto: ModelProto) -> None:
    proto.opset_import[0].version = 18


def change_ir(proto: ModelProto) -> None:
    proto.ir_version = 9


def change_metadata(proto: ModelProto) -> None:
    proto.metadata_props.add(key="author", value="somebody else")


def change_graph_name(proto: ModelProto) -> None:
    proto.graph.name = "another"


def annotate(proto: ModelProto) -> None:
    proto.graph.quantization_annotation.add(tensor_name="d")


def note_a_type(proto: ModelProto) -> None:
    proto.graph.value_info.append(floats("d", 7))


HEAD = "its IR version, opsets, metadata, configuration or the name of its graph differ from the model's"


@pytest.mark.parametrize(
    ("part", "change", "objections"),
    [
        (1, set_alpha, ["part-1.onnx: node 'elu' differs from the model's"]),
        (1, set_bias, ["part-1.onnx: weight 'bias' differs from the model's"]),
        (0, set_constant, ["part-0.onnx: node 'constant' differs from the model's"]),
        (1, rename_node, ["part-1.onnx: node 'selu' differs from the model's"]),
        (1, describe_node, ["part-1.onnx: node 'elu' differs from the model's"]),
        (0, change_function, ["part-0.onnx: function 'local.Swish' differs from the model's"]),
        (0, drop_function, ["part-0.onnx: function 'local.Swish' is called, but missing"]),
        (1, change_opset, [f"part-1.onnx: {HEAD}"]),
        (1, change_ir, [f"part-1.onnx: {HEAD}"]),
        (1, change_metadata, [f"part-1.onnx: {HEAD}"]),
        (1, change_graph_name, [f"part-1.onnx: {HEAD}"]),
        (1, annotate, ["part-1.onnx: the quantization annotation of 'd' is not the model's"]),
        (1, note_a_type, ["part-1.onnx: the value_info of 'd' is not the model's"]),
        (1, merge_nodes, ["part-1.onnx: node 'bias' differs from the model's", "node 'elu' is in no part"]),
        (
            1,
            read_another,
            [
                "part-1.onnx: it has 1 node that no output depends on, such as 'elu'",
                "part-1.onnx: node 'bias' differs from the model's",
                "node 'elu' is in no part",
            ],
        ),
        (
            1,
            insert_node,
            [
                "part-1.onnx: node 'elu' is not in the model",
                "part-1.onnx: node 'extra' differs from the model's",
            ],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_change_in_a_part_is_found_and_named(
    model: Model, cascade: Cascade, part: int, change: Change, objections: list[str]
) -> None:
    """Even where the digest in the manifest is put right."""
    assert list(prove(model, tamper(cascade, part, change)).objections) == objections


@pytest.mark.parametrize("change", [set_alpha, set_bias, change_opset, rename_node])
def test_a_change_in_a_part_contradicts_the_digest(model: Model, cascade: Cascade, change: Change) -> None:
    objections = prove(model, tamper(cascade, 1, change, is_signed=False)).objections
    assert objections[0] == "part-1.onnx: its graph is not the one that was written: the digest differs"


def add_a_weight(proto: ModelProto) -> None:
    proto.graph.initializer.append(values("stowaway", [1.0]))


def add_a_function(proto: ModelProto) -> None:
    proto.functions.append(swish())
    proto.functions[-1].name = "Stowaway"


@pytest.mark.parametrize("change", [add_a_weight, add_a_function])
def test_nodes_and_weights_that_no_output_needs_are_found(model: Model, cascade: Cascade, change: Change) -> None:
    """It changes no answer, but the part is not the one that was written."""
    assert not prove(model, tamper(cascade, 1, change, is_signed=False)).holds


def test_swapped_weights_are_found(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", [a, w], [b], name=b) for a, w, b in (("x", "w0", "a"), ("a", "w1", "y"))]
    random = np.random.default_rng(0)
    weights = [values(name, random.random((16, 16))) for name in ("w0", "w1")]
    nodes.append(helper.make_node("Neg", ["y"], ["z"], name="z"))
    proto = model_of(nodes, [floats("x", 1, 16)], [floats("z", 1, 16)], weights)
    model, cascade = cut_proto(tmp_path, proto, "y")

    def swap(part: ModelProto) -> None:
        first, second = part.graph.initializer
        first.name, second.name = second.name, first.name

    assert prove(model, tamper(cascade, 0, swap)).objections == (
        "part-0.onnx: the values of 'w1' differ from the model's",
        "part-0.onnx: the values of 'w0' differ from the model's",
    )


def test_a_changed_large_constant_is_found(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["k"], name="k", value=values("k", np.ones((16, 16))))
    nodes = [
        constant,
        helper.make_node("MatMul", ["x", "k"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["y"], name="y"),
    ]
    model, cascade = cut_proto(tmp_path, model_of(nodes, [floats("x", 1, 16)], [floats("y", 1, 16)]), "a")
    file = cascade.root / "part-0.onnx.data"
    file.write_bytes(b"\x01" + file.read_bytes()[1:])
    assert prove(model, cascade).objections == ("part-0.onnx: the values of 'k' differ from the model's",)


def test_a_renamed_output_is_found(model: Model, cascade: Cascade) -> None:
    def rename(proto: ModelProto) -> None:
        node(proto, "bias").output[0] = proto.graph.output[0].name = "z"

    assert prove(model, tamper(cascade, 1, rename)).objections == (
        "part-1.onnx: it writes ['z'], but the manifest lists ['e']",
        "part-1.onnx: node 'bias' is not in the model",
        "node 'bias' is in no part",
    )


def move_elu(cascade: Cascade) -> Cascade:
    """`elu` goes from the second part to the first; only the files change."""
    elu = node(onnx.load(cascade.file(cascade.parts[1])), "elu")

    def give(proto: ModelProto) -> None:
        proto.graph.node.append(elu)
        proto.graph.output[0].name = "d"

    def take(proto: ModelProto) -> None:
        proto.graph.node.remove(node(proto, "elu"))
        proto.graph.input[0].name = "d"

    return tamper(tamper(cascade, 0, give), 1, take)


def test_a_node_moved_to_another_part_contradicts_the_manifest(model: Model, cascade: Cascade) -> None:
    assert prove(model, move_elu(cascade)).objections == (
        "part-0.onnx: it writes ['d'], but the manifest lists ['c']",
        "part-1.onnx: it reads ['d'], but the manifest lists ['c']",
    )


def test_a_node_moved_together_with_the_manifest_is_correct(model: Model, cascade: Cascade) -> None:
    def move(record: dict[str, Any]) -> None:
        record["parts"][0].update(writes=["d"], nodes=5)
        record["parts"][1].update(reads=["d"], nodes=1, activation_bytes=128)
        next(tensor for tensor in record["tensors"] if tensor["name"] == "c")["name"] = "d"

    moved = edit_manifest(move_elu(cascade), move)
    assert prove(model, moved).objections == ()
    assert all(tensor.is_identical for tensor in compare(model, moved, X, optimized=False))


def test_a_node_in_two_parts_is_found(model: Model, cascade: Cascade) -> None:
    elu = node(onnx.load(cascade.file(cascade.parts[1])), "elu")

    def give(proto: ModelProto) -> None:
        proto.graph.node.append(elu)
        proto.graph.output.append(floats("d", "n", 16))

    cascade = tamper(cascade, 0, give)
    assert prove(model, cascade).objections == (
        "part-0.onnx: it writes ['c', 'd'], but the manifest lists ['c']",
        "part-1.onnx: the manifest gives replicas as [], but it is ['elu']",
    )


def test_a_size_that_is_frozen_in_a_part_and_in_the_manifest_is_found(model: Model, cascade: Cascade) -> None:
    """The model takes any n, and such a cascade 2 alone."""

    def freeze(proto: ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2

    def note(record: dict[str, Any]) -> None:
        next(tensor for tensor in record["tensors"] if tensor["name"] == "x")["shape"] = [2, 16]

    objections = prove(model, edit_manifest(tamper(cascade, 0, freeze), note)).objections
    assert any("'x'" in sentence for sentence in objections)


def test_a_size_that_is_frozen_in_a_part_alone_is_found(model: Model, cascade: Cascade) -> None:
    def freeze(proto: ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2

    assert prove(model, tamper(cascade, 1, freeze)).objections == (
        "part-1.onnx: 'c' is float32[2,16] in it, but float32[n,16] in the model",
    )


@pytest.mark.parametrize(
    ("field", "value", "objection"),
    [
        ("optional", ["x"], "the manifest gives optional as ['x'], but it is []"),
        ("writes", ["y", "e"], "the manifest gives writes as ['y', 'e'], but it is ['y']"),
        ("reads", ["x", "z"], "the manifest gives reads as ['x', 'z'], but it is ['x']"),
    ],
)
def test_an_interface_that_is_not_the_models_is_found(
    model: Model, cascade: Cascade, field: str, value: list[str], objection: str
) -> None:
    z = {"name": "z", "dtype": "float32", "shape": []}
    cascade = edit_manifest(cascade, lambda record: record.update({field: value, "tensors": [*record["tensors"], z]}))
    assert prove(model, cascade).objections == (
        objection,
        "the manifest lists 'z' in tensors, where it does not belong",
    )


def test_a_truncated_part_is_an_objection(model: Model, cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.write_bytes(file.read_bytes()[:-20])
    (objection,) = prove(model, cascade).objections
    assert objection.startswith("part-1.onnx: ")
    assert "is not an ONNX model, or is truncated" in objection


def test_a_constant_that_no_part_needs_may_be_missing(tmp_path: Path) -> None:
    """A replica stands in one part or in many."""
    model, cascade = cut_proto(tmp_path, network(), "double", "bias", "product1")
    assert [part.replicas for part in cascade.parts] == [("constant",), (), (), ("constant",)]
    assert prove(model, cascade) == Proof((), 8, 1, 2048)


# The numerical check


def additions(*summands: float, dtype: type[np.generic] = F32) -> ModelProto:
    """x plus one number after the other: the nodes and tensors s0, s1, …"""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = ["x", *(f"s{i}" for i in range(len(summands)))]
    nodes = [
        helper.make_node("Add", [tensors[i], f"k{i}"], [tensors[i + 1]], name=tensors[i + 1])
        for i in range(len(summands))
    ]
    ends = [helper.make_tensor_value_info(name, elem, ["n"]) for name in (tensors[0], tensors[-1])]
    return model_of(nodes, ends[:1], ends[1:], [values(f"k{i}", [k], dtype) for i, k in enumerate(summands)])


def add(summand: float, dtype: type[np.generic] = F32) -> Change:
    """Let a part add something else."""

    def change(proto: ModelProto) -> None:
        name = proto.graph.initializer[0].name
        proto.graph.initializer[0].CopyFrom(values(name, [summand], dtype))

    return change


def compared(tensor: str, part: int, **fields: Any) -> TensorComparison:  # noqa: ANN401 - fields of many types
    flags = {"is_output": False, "is_identical": True, "is_random": False}
    numbers = {"max_abs": 0.0, "max_rel": 0.0, "max_ulps": 0, "allowed": 0.0}
    return TensorComparison(tensor=tensor, part=part, **{**flags, **numbers, **fields})


def test_every_output_and_every_boundary_tensor_is_compared(model: Model, cascade: Cascade) -> None:
    found = compare(model, cascade, X, optimized=False)
    assert found == (compared("c", 0), compared("e", 1), compared("y", 2, is_output=True))


def test_the_first_boundary_tensor_that_differs_is_named(tmp_path: Path) -> None:
    """2, 3 and 4 plus 1 are 3, 4 and 5; plus 1.5 they are 3.5, 4.5 and 5.5."""
    model, cascade = cut_proto(tmp_path, additions(0, 1, 0, 0), "s0", "s1", "s2")
    found = compare(model, tamper(cascade, 1, add(1.5)), {"x": np.array([2, 3, 4], F32)}, optimized=False)
    wrong = {"is_identical": False, "max_abs": 0.5, "max_rel": 0.5 / 3, "max_ulps": 2**21}
    assert found == (
        compared("s0", 0),
        compared("s1", 1, **wrong),
        compared("s2", 2, **wrong),
        compared("s3", 3, is_output=True, **wrong),
    )
    assert [tensor.passes for tensor in found] == [True, False, False, False]


def test_a_difference_makes_the_result_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cascade = cut_proto(tmp_path, additions(0, 1, 0), "s0", "s1")
    cascade = tamper(cascade, 1, add(1.5))
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 3, 0, 0))
    report = graphcut.verify(model, cascade, inputs=[{"x": np.array([2], F32)}])
    assert not report
    assert (report.same, report.is_identical, report.is_random) == (False, False, False)
    assert report.first_difference is not None
    assert (report.first_difference.tensor, report.first_difference.part) == ("s1", 1)


def test_the_sign_of_a_zero_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are compared: -0.0 + -0.0 is -0.0, and -0.0 + 0.0 is 0.0."""
    model, cascade = cut_proto(tmp_path, additions(-0.0, -0.0), "s0")
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 2, 0, 0))
    feeds = {"x": np.array([-0.0], F32)}
    assert graphcut.verify(model, cascade, inputs=[feeds]).is_identical
    report = graphcut.verify(model, tamper(cascade, 1, add(0.0)), inputs=[feeds])
    assert not report.is_identical
    assert not report, "bit-identical is required, and these bits differ"


def test_a_large_integer_that_differs_by_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=np.int64), "s0")
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 2, 0, 0))
    feeds = {"x": np.array([2**60], np.int64)}
    assert graphcut.verify(model, cascade, inputs=[feeds])
    assert not graphcut.verify(model, tamper(cascade, 1, add(2, np.int64)), inputs=[feeds])


def test_nan_is_identical_to_nan(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    found = compare(model, cascade, {"x": np.array([np.nan, np.inf, -np.inf], F32)}, optimized=False)
    assert found == (compared("s0", 0), compared("s1", 1, is_output=True))


def test_nan_in_place_of_a_number_is_found(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    feeds = {"x": np.array([1], F32)}
    (_, last) = compare(model, tamper(cascade, 1, add(np.nan)), feeds, optimized=False)
    assert (last.max_abs, last.passes) == (INFINITE, False)


# Half precision


@pytest.mark.parametrize(("dtype", "fraction"), [(F16, 2e-3), (F32, 0.0), (F64, 0.0)])
def test_a_model_that_computes_in_half_precision_has_a_tolerance(
    tmp_path: Path, dtype: type[np.generic], fraction: float
) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=dtype), "s0")
    assert half_tolerance(model) == fraction
    report = graphcut.verify(model, cascade, inputs=[{"x": np.array([2], dtype)}])
    assert report
    assert [tensor.allowed for run in report.runs for tensor in run] == [3 * fraction, 4 * fraction]
    assert ("half precision" in report.reason) == bool(fraction)
    assert (f"{fraction:g} of a tensor's largest value" in report.reason) == bool(fraction)


def test_bfloat16_has_the_tolerance_of_its_precision() -> None:
    assert HALF_TOLERANCES == {"float16": 2e-3, "bfloat16": 1.6e-2}


def test_half_precision_beyond_the_tolerance_differs(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=F16), "s0")
    feeds = {"x": np.array([2], F16)}
    within = compare(model, tamper(cascade, 1, add(1 + 2**-8, F16)), feeds, optimized=False)
    assert [(tensor.is_identical, tensor.passes) for tensor in within] == [(True, True), (False, True)]
    beyond = compare(model, tamper(cascade, 1, add(1 + 2**-6, F16)), feeds, optimized=False)
    assert [(tensor.is_identical, tensor.passes) for tensor in beyond] == [(True, True), (False, False)]


def test_integers_are_exact_in_a_model_of_half_precision(tmp_path: Path) -> None:
    """The tolerance is one of rounding: an index of 1000 that is 1001 is wrong."""
    nodes = [
        helper.make_node("Add", ["ids", "k"], ["shifted"], name="shifted"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Neg", ["r"], ["half"], name="neg"),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("h", TensorProto.FLOAT16, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("shifted", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("half", TensorProto.FLOAT16, [1]),
    ]
    proto = model_of(nodes, inputs, outputs, [values("k", [1], np.int64)])
    model, cascade = cut_proto(tmp_path, proto, "shifted")
    feeds = {"ids": np.array([1000]), "h": np.array([1], F16)}
    found = compare(model, tamper(cascade, 0, add(2, np.int64)), feeds, optimized=False)
    assert {tensor.tensor: tensor.passes for tensor in found} == {"shifted": False, "half": True}


# With optimisations


def test_with_optimizations_only_outputs_are_compared_with_the_noise_allowed(model: Model, cascade: Cascade) -> None:
    report = graphcut.verify(model, cascade, inputs=[X], optimized=True)
    assert report
    ((only,),) = report.runs
    assert only.tensor == "y"
    assert only.allowed > 0
    assert report.reason == (
        "with graph optimizations, 4 times what they change in the unsplit model is allowed, at least 1e-5"
    )


def test_a_wrong_part_differs_by_more_than_the_noise(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(0, 1), "s0")
    feeds = {"x": np.array([2], F32)}
    (only,) = compare(model, tamper(cascade, 1, add(1.001)), feeds, optimized=True)
    assert only.allowed == pytest.approx(3e-5)
    assert not only.passes


@pytest.mark.parametrize("optimized", [False, True])
def test_a_wrong_token_is_found_though_it_is_within_a_hundred_thousandth(tmp_path: Path, *, optimized: bool) -> None:
    """Token 151000 is not token 151001."""
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=np.int64), "s0")
    feeds = {"x": np.array([150998])}
    *_, last = compare(model, tamper(cascade, 1, add(2, np.int64)), feeds, optimized=optimized)
    assert (last.max_abs, last.allowed, last.passes) == (1.0, 0.0, False)


# Models that draw random numbers


def noisy(*ends: onnx.NodeProto, output: onnx.ValueInfoProto) -> ModelProto:
    """Noise of the shape of x, drawn at `noise`, which does not stand first in its model and does in its part."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("RandomNormalLike", ["a"], ["r"], name="noise"),
        *ends,
    ]
    return model_of(nodes, [floats("x", 8)], [output])


ADDED = (helper.make_node("Add", ["r", "a"], ["y"], name="add"),)


def test_a_random_model_is_reported_as_random(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, noisy(*ADDED, output=floats("y", 8)), "relu")
    report = graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])
    assert (report.is_random, report.same, report.proof.holds) == (True, True, True)


def test_a_random_tensor_that_no_output_depends_on_is_no_difference(tmp_path: Path) -> None:
    """What crosses is random; the output is its length."""
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    ends = helper.make_node("Neg", ["r"], ["n"], name="neg"), helper.make_node("Shape", ["n"], ["y"], name="shape")
    model, cascade = cut_proto(tmp_path, noisy(*ends, output=output), "relu", "noise", "neg")
    assert [part.reads for part in cascade.parts] == [("x",), ("a",), ("r",), ("n",)]
    assert graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])


def test_a_dropout_that_is_off_allows_no_difference(tmp_path: Path) -> None:
    """It draws nothing: what comes after it is the same in every run, and must be the same in the cascade."""
    nodes = [
        helper.make_node("Dropout", ["x", "ratio", "training"], ["d"], name="dropout"),
        helper.make_node("Add", ["d", "k"], ["y"], name="add"),
    ]
    weights = [values("ratio", 0.5), values("training", False, np.bool_), values("k", [1.0])]
    model, cascade = cut_proto(tmp_path, model_of(nodes, [floats("x", 2)], [floats("y", 2)], weights), "dropout")
    found = compare(model, tamper(cascade, 1, add(2.0)), {"x": np.ones(2, F32)}, optimized=False)
    assert [(tensor.tensor, tensor.is_identical, tensor.passes) for tensor in found] == [
        ("d", True, True),
        ("y", False, False),
    ]


def test_a_wrong_part_of_a_random_model_is_found_by_the_proof(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, noisy(*ADDED, output=floats("y", 8)), "noise")
    cascade = tamper(cascade, 1, lambda proto: setattr(node(proto, "add"), "op_type", "Sub"))
    report = graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])
    assert not report
    assert report.proof.objections == ("part-1.onnx: node 'add' differs from the model's",)


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
    with pytest.raises(RunError, match=r"ONNX Runtime refuses the whole model: .*x") as caught:
        graphcut.verify(model, cascade, inputs=[{}])
    assert caught.value.hint == "feed it with --inputs"


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
    assert "reshape" in report.refusal.lower()


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
    assert caught.value.hint == "name the model it was cut from with --model, or split again"


def test_a_copy_of_the_model_is_accepted(model: Model, cascade: Cascade, tmp_path: Path) -> None:
    copy = tmp_path / "moved" / "renamed.onnx"
    copy.parent.mkdir()
    model.path.rename(copy)
    with pytest.raises(CascadeError, match=r"is not at .*model\.onnx") as caught:
        find_source(cascade)
    assert caught.value.hint == "name it with --model FILE"
    assert graphcut.verify(graphcut.load(copy), cascade, inputs=[X])


def test_a_cascade_that_refuses_inputs_that_the_model_accepts_is_wrong(model: Model, cascade: Cascade) -> None:
    """Whether the proof finds that or the run: the cascade does not do what its model does."""

    def freeze(proto: ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2

    def note(record: dict[str, Any]) -> None:
        next(tensor for tensor in record["tensors"] if tensor["name"] == "x")["shape"] = [2, 16]

    frozen = edit_manifest(tamper(cascade, 0, freeze), note)
    assert not graphcut.verify(model, frozen, inputs=[{"x": np.ones((3, 16), F32)}])


def every_crossing(cascade: Cascade, feeds: Mapping[str, object], model: Model) -> Iterator[str]:
    return (tensor.tensor for tensor in compare(model, cascade, feeds, optimized=False))


def test_an_input_that_is_an_output_is_compared_too(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    proto = model_of(nodes, [floats("x", 2), floats("s", 2)], [floats("y", 2), floats("s", 2)])
    model, cascade = cut_proto(tmp_path, proto, "a")
    feeds = {"x": np.ones(2, F32), "s": np.zeros(2, F32)}
    assert list(every_crossing(cascade, feeds, model)) == ["a", "y", "s"]


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
