"""The structural proof: a sound cascade passes, and whatever is changed in one is found and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from small_cascades import (
    F32,
    X,
    cascade,
    cut_proto,
    freeze,
    frozen,
    model,
    network,
    node,
    set_alpha,
    swish,
    tamper,
    values,
    with_manifest,
)

import graphcut
from graphcut import Cascade, Model
from graphcut.core.arguments import Storage
from graphcut.costs.held_weights import NODE_BYTES
from graphcut.verifying.numerical import compare
from graphcut.verifying.structural import Proof, _assignment, prove

from cases import each
from conftest import floats, model_of
from tampering import Change, Record

__all__ = ["cascade", "model"]


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_an_unchanged_cascade_is_proved(weights: Storage, tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, network(), "double", "bias", weights=weights)
    assert prove(model, cascade) == Proof(objections=(), nodes=8, replicas=1, weight_bytes=2048)


@each(
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


def describe_input(proto: ModelProto) -> None:
    proto.graph.input[0].doc_string = "what it was not"


def name_the_kind_of_an_input(proto: ModelProto) -> None:
    proto.graph.input[0].type.denotation = "IMAGE"


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
        (1, annotate, ["part-1.onnx: quantization annotation 'd' is not in the model"]),
        (1, describe_input, ["part-1.onnx: the declaration of 'c' differs from the model's"]),
        (1, name_the_kind_of_an_input, ["part-1.onnx: the declaration of 'c' differs from the model's"]),
        (1, note_a_type, ["part-1.onnx: value_info 'd' is not in the model"]),
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
    def move(record: Record) -> None:
        record["parts"][0].update(writes=["d"], nodes=5, flowing=4)
        record["parts"][1].update(reads=["d"], nodes=1, flowing=1, activation_bytes=128)
        for part, more in ((0, NODE_BYTES), (1, -NODE_BYTES)):
            record["parts"][part]["memory"]["load"] += more
        next(tensor for tensor in record["tensors"] if tensor["name"] == "c")["name"] = "d"

    moved = with_manifest(move_elu(cascade), move)
    assert prove(model, moved).objections == ()
    assert all(tensor.is_identical for tensor in compare(model, moved, X, optimized=False))


def test_what_the_first_version_of_manifests_does_not_say_is_not_compared(model: Model, cascade: Cascade) -> None:
    def forget(record: Record) -> None:
        record["format"] = "graphcut.cascade/1"
        for part in record["parts"]:
            del part["memory"], part["flowing"]

    assert prove(model, with_manifest(cascade, forget)).objections == ()


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


def test_a_random_node_in_two_parts_is_found(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["a"], name="noise"), helper.make_node("Neg", ["a"], ["y"])]
    model, _ = cut_proto(tmp_path, model_of(nodes, [floats("x", 4)], [floats("y", 4)]), "noise")
    both, said = (
        ("part-0.onnx", "part-1.onnx"),
        "node 'noise' must run once, but is in 2 parts: part-0.onnx, part-1.onnx",
    )
    assert [*_assignment(model.graph, {0: both, 1: both})] == [said]


def test_a_size_that_is_frozen_in_a_part_and_in_the_manifest_is_found(model: Model, cascade: Cascade) -> None:
    """The model takes any n, and such a cascade 2 alone."""
    objections = prove(model, frozen(cascade)).objections
    assert any("'x'" in sentence for sentence in objections)


def test_a_size_that_is_frozen_in_a_part_alone_is_found(model: Model, cascade: Cascade) -> None:
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
    cascade = with_manifest(cascade, lambda record: record.update({field: value, "tensors": [*record["tensors"], z]}))
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
