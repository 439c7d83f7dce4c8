"""A table of changes: what `verify` says of each, whether or not all digests were redone afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, GraphcutError
from graphcut.core.manifest import Host, Manifest, Part, SessionSettings, Source, State
from graphcut.core.wiring import Tensor

from conftest import ORT_VERSION, floats
from tampering import Record, edit_manifest, edit_part, flip, redo_digests

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
RANDOM = np.random.default_rng(0)


def values(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(RANDOM.random(shape, np.float32) - 0.5, name)


def constant(name: str, *shape: int) -> NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=values(name, *shape))


def branch(name: str) -> onnx.GraphProto:
    nodes = [constant(f"{name}_k", 16, 16), helper.make_node("MatMul", ["b", f"{name}_k"], [name], name=name)]
    return helper.make_graph(nodes, name, [], [floats(name, "n", 16)])


def function(overload: str) -> FunctionProto:
    """x times a large constant of its own."""
    nodes = [constant("k", 16, 16), helper.make_node("MatMul", ["x", "k"], ["y"], name="product")]
    return helper.make_function("local", "F", ["x"], ["y"], nodes, OPSETS[:1], overload=overload)


def step(layer: str, read: str) -> list[NodeProto]:
    """A cache that grows by `read`."""
    past, present = f"past_key_values.0.{layer}", f"present.0.{layer}"
    return [
        helper.make_node("Unsqueeze", [read, "axis"], [f"new_{layer}"], name=f"unsqueeze_{layer}"),
        helper.make_node("Concat", [past, f"new_{layer}"], [present], name=f"concat_{layer}", axis=1),
    ]


def subject() -> ModelProto:
    """A model with one of everything that can be changed; `first` and `second` read nothing of each other."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="product0"),
        helper.make_node("F", ["a"], ["f0"], name="call0", domain="local", overload="one"),
        helper.make_node("Sub", ["f0", "a"], ["b"], name="sub"),
        helper.make_node("If", ["flag"], ["c"], name="if", then_branch=branch("then"), else_branch=branch("else")),
        constant("k", 16, 16),
        helper.make_node("MatMul", ["c", "k"], ["d"], name="product_k"),
        helper.make_node("Elu", ["d"], ["e"], name="elu", alpha=0.5),
        helper.make_node("QuantizeLinear", ["e", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"], name="dequantize"),
        helper.make_node("F", ["dq"], ["g"], name="call1", domain="local", overload="two"),
        helper.make_node("Add", ["g", "shift"], ["h"], name="shift_it"),
        *step("key", "h"),
        *step("value", "h"),
        helper.make_node("MatMul", ["h", "sparse"], ["i"], name="sparse_product"),
        helper.make_node("Neg", ["i"], ["first"], name="first"),
        helper.make_node("Abs", ["i"], ["second"], name="second"),
        helper.make_node("Add", ["first", "second"], ["y"], name="y"),
    ]
    caches = [f"past_key_values.0.{layer}" for layer in ("key", "value")]
    presents = [f"present.0.{layer}" for layer in ("key", "value")]
    inputs = [
        floats("x", "n", 16),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        floats("shift", 16),
        *(floats(name, "n", "past", 16) for name in caches),
    ]
    outputs = [floats("y", "n", 16), *(floats(name, "n", "total", 16) for name in presents)]
    scale, zero = (
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    )
    axis = numpy_helper.from_array(np.array([1]), "axis")
    places = numpy_helper.from_array(np.arange(0, 256, 2), "places")
    sparse = helper.make_sparse_tensor(values("sparse", 128), places, [16, 16])
    weights = [values("w0", 16, 16), values("shift", 16), scale, zero, axis]
    graph = helper.make_graph(nodes, "subject", inputs, outputs, weights, sparse_initializer=[sparse])
    functions = [function("one"), function("two")]
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=10)


CUTS = ("sub", "dequantize", "sparse_product", "first", "second")
DEVICES = ("left", "left", "middle", "middle", "right", "right")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and a cascade of six parts on three devices."""
    folder = tmp_path_factory.mktemp("subject")
    onnx.save(subject(), folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx", dims={"n": 2, "past": 3})
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(CUTS)))

    def give_devices(record: Record) -> None:
        names = dict.fromkeys(DEVICES)
        record["devices"] = [{"name": name, "memory_bytes": None, "provider": "CPUExecutionProvider"} for name in names]
        for part, name in zip(record["parts"], DEVICES, strict=True):
            part["device"] = name

    edit_manifest(cascade.path, give_devices)
    return folder


@pytest.fixture
def cascade(original: Path, tmp_path: Path) -> Cascade:
    """A copy of it."""
    shutil.copytree(original, tmp_path / "copy")
    return graphcut.open_cascade(tmp_path / "copy" / "model.parts")


def by_structure(path: Path) -> str:
    """The objections of `verify --structural`, or its error; empty if it says yes."""
    try:
        report = graphcut.verify(path.parent.parent / "model.onnx", path.parent, structural_only=True)
    except GraphcutError as error:
        return str(error)
    return "\n".join(report.proof.objections)


def by_files(path: Path) -> str:
    """The same of `verify --files`, which has no model."""
    try:
        return "\n".join(graphcut.verify_files(path).objections)
    except GraphcutError as error:
        return str(error)


def assert_said(found: str, expected: str) -> None:
    """Check that the expected words were said, or nothing if none are expected."""
    assert expected in found, found
    assert bool(found) == bool(expected), found


def test_the_untouched_cascade_is_the_model(cascade: Cascade) -> None:
    assert by_structure(cascade.path) == by_files(cascade.path) == ""
    report = graphcut.verify(cascade.source, cascade)
    is_right = ORT_VERSION >= (
        1,
        27,
    )  # before, ONNX Runtime ignores overloads
    assert (report.same, report.is_identical, len(report.runs)) == (is_right, is_right, 2)
    assert [len(part.replicas) for part in cascade.parts] == [0, 1, 0, 0, 0, 0]


# Changes of a part


def node(proto: ModelProto, name: str) -> NodeProto:
    return next(node for node in proto.graph.node if node.name == name)


def initializer(proto: ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def body(proto: ModelProto) -> onnx.GraphProto:
    return node(proto, "if").attribute[0].g


def lose(tensor: TensorProto) -> None:
    """What is left if a tool forgets where the values are."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def embed(folder: Path, tensor: TensorProto, change: float = 0.0) -> None:
    """Put the values into the message; for a change, other values."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    start, length = int(entries["offset"]), int(entries["length"])
    raw = (folder / entries["location"]).read_bytes()[start : start + length]
    lose(tensor)
    tensor.raw_data = (np.frombuffer(raw, np.float32) + np.float32(change)).tobytes()


@dataclass(frozen=True)
class Row:
    """A change of a part, and words of the objection of `verify --structural`; "" is a yes.

    `verify --files` finds each as long as the digests are those of before. With other digests it finds those that
    contradict the part or the manifest, and no others: what is right only the model knows.
    """

    what: str
    part: int
    change: Callable[[ModelProto], object]
    naive: str  #: with the digests of before.
    redone: str  #: with digests of what is there now.
    is_valid: bool = True  #: whether the part is still a valid model, with the boundary tensors of the manifest.


def same(what: str, part: int, change: Callable[[ModelProto], object], objection: str) -> Row:
    """Found in the part itself, so that digests don't matter."""
    return Row(what, part, change, objection, objection)


def invalid(what: str, part: int, change: Callable[[ModelProto], object], objection: str) -> Row:
    """Found in the part itself, even without the model."""
    return Row(what, part, change, objection, objection, is_valid=False)


def harmless(what: str, part: int, change: Callable[[ModelProto], object]) -> Row:
    """It computes the same: named as another file than the one that was written, and right if that is made so."""
    return Row(what, part, change, "digest differs", "")


def swap(field: Any, first: int, second: int) -> None:  # noqa: ANN401 - a repeated field of protobuf
    items = [type(item).FromString(item.SerializeToString()) for item in field]
    items[first], items[second] = items[second], items[first]
    del field[:]
    field.extend(items)


def set_scale(p: ModelProto) -> None:
    initializer(p, "scale").raw_data = np.float32(0.02).tobytes()


def swap_operands(p: ModelProto) -> None:
    node(p, "sub").input[:] = ["a", "f0"]


def name_a_symbol(p: ModelProto) -> None:
    p.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "another"


def fix_a_size(p: ModelProto) -> None:
    p.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def write_doubles(p: ModelProto) -> None:
    p.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def repeat_function(p: ModelProto) -> None:
    """The wrong one comes first."""
    wrong = FunctionProto.FromString(p.functions[0].SerializeToString())
    wrong.node[1].op_type = "Add"
    right = p.functions.pop()
    p.functions.extend([wrong, right])


def repeat_weight(p: ModelProto) -> None:
    p.graph.initializer.add().CopyFrom(initializer(p, "scale"))
    set_scale(p)


def misspell(message: Any, field: str, value: object) -> None:  # noqa: ANN401 - messages of many types
    setattr(message, field, value)


CHANGED_PARTS = [
    invalid("weight lost", 0, lambda p: lose(initializer(p, "w0")), "'w0'"),
    invalid("constant lost", 1, lambda p: lose(node(p, "k").attribute[0].t), "'k'"),
    invalid("constant of a body lost", 1, lambda p: lose(body(p).node[0].attribute[0].t), "'else_k'"),
    invalid("constant of a function lost", 0, lambda p: lose(p.functions[0].node[0].attribute[0].t), "'k'"),
    invalid("sparse weight lost", 2, lambda p: p.graph.sparse_initializer[0].values.ClearField("raw_data"), "'sparse'"),
    same("weight of other values", 1, set_scale, "weight 'scale' differs"),
    same("attribute", 1, lambda p: misspell(node(p, "elu").attribute[0], "f", 0.75), "node 'elu' differs"),
    same("order of operands", 0, swap_operands, "node 'sub' differs"),
    same("operator", 3, lambda p: misspell(node(p, "first"), "op_type", "Abs"), "node 'first' differs"),
    same("body of an If", 1, lambda p: misspell(body(p).node[1], "op_type", "Add"), "node 'if' differs"),
    same("branches of an If", 1, lambda p: swap(node(p, "if").attribute, 0, 1), "node 'if' differs"),
    same("function", 0, lambda p: misspell(p.functions[0].node[1], "op_type", "Add"), "function 'local.F' differs"),
    same("function of its overload", 0, lambda p: misspell(p.functions[0], "overload", "two"), "'local.F'"),
    invalid("function twice", 0, repeat_function, "defined 2 times"),
    same("overload that is called", 0, lambda p: misspell(node(p, "call0"), "overload", ""), "node 'call0' differs"),
    invalid("weight twice", 1, repeat_weight, "two initializers define 'scale'"),
    same("opset", 3, lambda p: misspell(p.opset_import[0], "version", 20), "IR version, opsets"),
    invalid(
        "symbol of a boundary", 4, name_a_symbol, "'i' is float32[another,16] in it, but float32[n,16] in the model"
    ),
    invalid("fixed size of a boundary", 4, fix_a_size, "'i' is float32[2,16] in it, but float32[n,16] in the model"),
    invalid("type of a boundary", 3, write_doubles, "'first' is float64[n,16] in it, but float32[n,16] in the model"),
    invalid("name of a boundary", 3, lambda p: misspell(p.graph.output[0], "name", "z"), "part-3.onnx"),
    same("text of a node", 3, lambda p: misspell(node(p, "first"), "doc_string", "?"), "node 'first' differs"),
    same("value_info", 1, lambda p: p.graph.value_info.append(floats("d", 7)), "the value_info of 'd'"),
    harmless("order of initializers", 1, lambda p: swap(p.graph.initializer, 0, 1)),
    harmless("order of nodes", 1, lambda p: swap(p.graph.node, 0, 1)),
]


@pytest.mark.parametrize("row", CHANGED_PARTS, ids=lambda row: row.what)
def test_a_changed_part(row: Row, cascade: Cascade) -> None:
    edit_part(cascade, row.part, row.change)
    assert_said(by_structure(cascade.path), row.naive)
    assert by_files(cascade.path)
    redo_digests(cascade.path)
    assert_said(by_structure(cascade.path), row.redone)
    assert bool(by_files(cascade.path)) != row.is_valid


# What another version of onnx or ONNX Runtime would have inferred


def declare(cascade: Cascade, dims: Sequence[int | str | None] | None) -> None:
    """Write a cascade in which `i`, between two parts, has these dimensions, everywhere alike."""
    shape = None if dims is None else list(dims)
    value = helper.make_tensor_value_info("i", TensorProto.FLOAT, shape)

    def change_part(proto: ModelProto) -> None:
        for old in (*proto.graph.input, *proto.graph.output):
            if old.name == "i":
                old.CopyFrom(value)

    for part in (2, 3, 4):
        edit_part(cascade, part, change_part)

    def change(record: Record) -> None:
        next(tensor for tensor in record["tensors"] if tensor["name"] == "i")["shape"] = shape

    edit_manifest(cascade.path, change)
    redo_digests(cascade.path)


@pytest.mark.parametrize("dims", [("n", None), (None, 16), (None, None), None])
def test_types_that_are_known_less_well_are_no_objection(
    dims: Sequence[int | str | None] | None, cascade: Cascade
) -> None:
    declare(cascade, dims)
    assert_said(by_structure(cascade.path), "")
    assert_said(by_files(cascade.path), "")


@pytest.mark.parametrize("dims", [("n", 15), ("past", 16), (2, 16), ("n", 16, 1), (None, 15)])
def test_types_that_can_not_both_be_right_are_an_objection(dims: Sequence[int | str | None], cascade: Cascade) -> None:
    declare(cascade, dims)
    assert_said(by_structure(cascade.path), "but float32[n,16] in the model")
    assert_said(by_files(cascade.path), "")  # what is right only the model knows


def test_the_manifest_and_the_parts_give_each_boundary_the_same_type(cascade: Cascade) -> None:
    """Both are files of the cascade, so that no inference is between them."""
    place = next(i for i, tensor in enumerate(cascade.manifest.tensors) if tensor.name == "i")
    edit_manifest(cascade.path, put(f"tensors/{place}/shape", [None, 16]))
    for found in (by_structure(cascade.path), by_files(cascade.path)):
        assert_said(found, "'i' is float32[n,16] in it, but float32[?,16] in the manifest")


@pytest.mark.parametrize(
    ("forged", "objection"),
    [
        (lambda exact: exact, ""),
        (lambda exact: exact - 1, ""),  # a dimension that is unknown elsewhere counts as 1
        (lambda exact: exact + 1, "the manifest gives activation_bytes"),
        (lambda _: 2 * 16 * 4 - 1, "the manifest gives activation_bytes"),  # less than it writes
    ],
)
def test_activations_are_between_what_a_part_writes_and_what_all_known_sizes_take(
    forged: Callable[[int], int], objection: str, cascade: Cascade
) -> None:
    edit_manifest(cascade.path, put("parts/0/activation_bytes", forged(cascade.parts[0].activation_bytes)))
    assert_said(by_structure(cascade.path), objection)


# Changes of data files


def edit_data(cascade: Cascade, part: int, change: Callable[[Path], object]) -> None:
    (name,) = cascade.parts[part].data
    change(cascade.root / name)


def with_data(raw: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(raw(path.read_bytes()))


CHANGED_DATA = [
    ("a bit of a weight", 0, partial(flip, offset=3), "the values of 'w0' differ"),
    ("a bit of a constant", 1, flip, "the values of 'k' differ"),
    ("a hole", 1, with_data(lambda raw: raw[:1024] + bytes(1024) + raw[2048:]), "the values of "),
]


@pytest.mark.parametrize(("what", "part", "change", "objection"), CHANGED_DATA)
def test_a_changed_data_file(
    what: str, part: int, change: Callable[[Path], object], objection: str, cascade: Cascade
) -> None:
    """Found by structure in any case; by the files alone as long as nobody redoes the digests."""
    edit_data(cascade, part, change)
    assert_said(by_structure(cascade.path), objection)
    assert "has other bytes in 1 of 1 block" in by_files(cascade.path), what
    redo_digests(cascade.path)
    assert_said(by_structure(cascade.path), objection)
    assert_said(by_files(cascade.path), "")


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        (with_data(lambda raw: raw[:-1]), "part-1.onnx.data, which has 3,071"),
        (with_data(lambda raw: raw + b"more"), ""),  # bytes that no part reads
    ],
)
def test_a_data_file_of_another_size(change: Callable[[Path], object], redone: str, cascade: Cascade) -> None:
    edit_data(cascade, 1, change)
    for verdict in (by_structure, by_files):
        assert_said(verdict(cascade.path), "bytes, but had 3,072 when the model was split")
    redo_digests(cascade.path)
    for verdict in (by_structure, by_files):
        assert_said(verdict(cascade.path), redone)


@pytest.mark.parametrize(("change", "objection"), [(0.0, ""), (1.0, "the values of 'w0' differ")])
def test_a_weight_that_was_put_into_the_message_counts_by_its_values(
    change: float, objection: str, cascade: Cascade
) -> None:
    edit_part(cascade, 0, lambda proto: embed(cascade.root, initializer(proto, "w0"), change))
    redo_digests(cascade.path)
    assert_said(by_structure(cascade.path), objection)
    assert_said(by_files(cascade.path), "")  # nothing of the cascade was changed
    assert bool(by_structure(cascade.path)) == bool(objection)


# Changes of the manifest


def at(record: Record, path: str) -> tuple[Any, Any]:
    """The object or list that holds a field, and the key of the field in it; the path is such as `parts/0/nodes`."""
    *places, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    holder: Any = record
    for place in places:
        holder = holder[place]
    return holder, last


def put(path: str, value: object) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder, key = at(record, path)
        holder[key] = value

    return change


def drop(path: str) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder, key = at(record, path)
        del holder[key]

    return change


def exchange(path: str, first: int, second: int) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        items, _ = at(record, f"{path}/0")
        items[first], items[second] = items[second], items[first]

    return change


def swap_states(record: Record) -> None:
    first, second = record["states"]
    first["present"], second["present"] = second["present"], first["present"]


def declare_swapped_states(record: Record) -> None:
    swap_states(record)
    for state in record["states"]:
        state["is_given"] = True


def exchange_files(record: Record) -> None:
    first, second = record["parts"][3:5]
    first["file"], second["file"] = second["file"], first["file"]


KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
OTHER = "sha256:" + 64 * "0"
NO_STATE = {"past": "x", "present": "y", "axis": None, "start": None, "is_given": False}
WRONG_STATE = {"past": "x", "present": "present.0.key", "axis": None, "start": None, "is_given": True}
DEVICE = {"name": "left", "memory_bytes": None, "provider": "CPUExecutionProvider"}
ODD = {"name": "z", "dtype": "float32", "shape": []}

FORGED = [
    ("source/graph", put("source/graph", OTHER), "the graphs differ"),
    ("source/data", put("source/data", {}), "the manifest gives source.data as {}"),
    ("weights", put("weights", "share"), "the manifest gives weights as 'share', but it is 'copy'"),
    ("dims", put("dims", {"m": 1}), "dims: model.onnx has no symbolic dimension 'm'"),
    ("dims", put("dims", {"n": 3, "past": 3}), "the manifest gives activation_bytes"),
    ("reads", exchange("reads", 3, 4), "the manifest gives reads as"),
    ("optional", put("optional", []), "the manifest gives optional as [], but it is ['shift']"),
    ("writes", exchange("writes", 0, 1), "the manifest gives writes as"),
    ("tensors", drop("tensors/0"), "`tensors` lacks 'x'"),
    ("tensors", lambda record: record["tensors"].append(ODD), "lists 'z' in tensors, where it does not belong"),
    ("tensors/dtype", put("tensors/0/dtype", "int8"), "gives tensors['x'].dtype as 'int8', but it is 'float32'"),
    ("tensors/shape", put("tensors/0/shape", [2, 16]), "gives tensors['x'].shape as [2, 16], but it is ['n', 16]"),
    ("tensors/name", put("tensors/0/name", "z"), "`tensors` lacks 'x'"),
    ("states", drop("states/0"), f"the manifest lacks {KEY!r} in states"),
    ("states", lambda record: record["states"].append(NO_STATE), "lists 'x' in states, where it does not belong"),
    (
        "states",
        lambda record: record["states"].append(WRONG_STATE),
        "states: 'present.0.key' is float32[n,total,16]",
    ),
    ("states/past", put("states/0/past", "x"), "lists 'x' in states, where it does not belong"),
    ("states/present", swap_states, f"gives states[{KEY!r}].present as 'present.0.value', but it is 'present.0.key'"),
    ("states/axis", put("states/0/axis", 0), f"the manifest gives states[{KEY!r}].axis as 0, but it is 1"),
    ("states/start", put("states/0/start", ["n", 1, 16]), f"the manifest gives states[{KEY!r}].start as ['n', 1, 16]"),
    ("devices", drop("devices/1"), "which `devices` does not list"),
    ("devices", lambda record: record["devices"].append(DEVICE), "['left', 'middle', 'right', 'left'], but its parts"),
    ("devices", exchange("devices", 0, 1), "['middle', 'left', 'right'], but its parts are for ['left', 'middle'"),
    ("devices/name", put("devices/0/name", "elsewhere"), "which `devices` does not list"),
    ("parts", exchange("parts", 0, 1), "before any part writes it"),
    ("parts", drop("parts/2"), "before any part writes it"),
    ("parts/file", exchange_files, "it writes ['second'], but the manifest lists ['first']"),
    ("parts/reads", exchange("parts/2/reads", 0, 1), "part-2.onnx: it reads"),
    ("parts/writes", exchange("parts/2/writes", 0, 1), "part-2.onnx: it writes"),
    ("parts/nodes", put("parts/0/nodes", 1), "part-0.onnx: the manifest gives nodes as 1, but it is 3"),
    (
        "parts/derived",
        put("parts/1/derived", {"b": "a"}),
        "part-1.onnx: the manifest derives 'b' from 'a', for which there is no rule",
    ),
    ("parts/replicas", put("parts/1/replicas", []), "part-1.onnx: the manifest gives replicas as [], but it is ['k']"),
    ("parts/weight_bytes", put("parts/0/weight_bytes", 1), "gives weight_bytes as 1, but it is 1024"),
    ("parts/looked_up_bytes", put("parts/0/looked_up_bytes", 1), "gives looked_up_bytes as 1, but it"),
    ("parts/largest_weight_bytes", put("parts/0/largest_weight_bytes", 1), "gives largest_weight_bytes as 1, but it"),
    ("parts/activation_bytes", put("parts/0/activation_bytes", 1), "part-0.onnx: the manifest gives activation_bytes"),
    ("parts/device", put("parts/3/device", "right"), ""),  # another plan: nothing in the files says which one was made
    ("parts/device", put("parts/0/device", "right"), "['left', 'middle', 'right'], but its parts are for ['right'"),
    ("parts/device", put("parts/3/device", None), "the manifest gives part-3.onnx no device, and other parts one"),
    ("parts/graph", put("parts/3/graph", OTHER), "part-3.onnx: its graph is not the one that was written"),
    ("parts/sha256", put("parts/3/sha256", OTHER), "part-3.onnx is not the file that was written"),
    (
        "parts/data",
        put("parts/0/data", {}),
        "the manifest gives data as [], but it is ['part-0.onnx.data']",
    ),
    ("parts/data", put("parts/0/data/part-0.onnx.data/bytes", 1), "bytes, but had 1 when"),
    ("parts/data", put("parts/0/data/part-0.onnx.data/digest", None), "lacks a digest of all that the part reads of"),
    (
        "parts/data",
        put("parts/0/data/part-0.onnx.data/digest", {"ranges": [], "blocks": []}),
        "lacks a digest of all that the part reads of",
    ),
    (
        "parts/data",
        put("parts/0/data/part-0.onnx.data/digest/blocks/0", OTHER),
        "part-0.onnx.data has other bytes in 1 of 1 block",
    ),
    ("states", exchange("states", 0, 1), ""),  # each names its own input and output
    ("tensors", exchange("tensors", 0, 1), ""),
    ("parts", exchange("parts", 3, 4), ""),  # neither reads what the other writes
    ("states/is_given", declare_swapped_states, ""),  # then it is the word of the user, and said to be
]

NOT_DERIVED = {"format", "assumed", "source/file", "devices/memory_bytes"} | {
    f"devices/{field}" for field in SessionSettings.__struct_fields__
}
"""The format is checked when a manifest is read; for the others see docs/reference/claims.md."""


@pytest.mark.parametrize(("field", "change", "objection"), FORGED)
def test_a_forged_manifest(field: str, change: Callable[[Record], object], objection: str, cascade: Cascade) -> None:
    edit_manifest(cascade.path, change)
    assert_said(by_structure(cascade.path), objection)
    if field in FOUND_BY_FILES:
        assert by_files(cascade.path)


FOUND_BY_FILES = {f"parts/{field}" for field in Part.__struct_fields__} - {
    "parts/replicas",
    "parts/derived",
    "parts/activation_bytes",
    "parts/device",
}
"""What is about the files; the others are about the model or the plan."""


def test_each_field_of_a_manifest_is_forged_above() -> None:
    kinds = {"": Manifest, "source/": Source, "tensors/": Tensor, "states/": State, "devices/": Host, "parts/": Part}
    fields = {f"{place}{field}" for place, kind in kinds.items() for field in kind.__struct_fields__}
    assert fields - {field for field, _, _ in FORGED} == NOT_DERIVED | {"source"}


def test_states_that_are_said_to_be_given_are_counted(cascade: Cascade) -> None:
    edit_manifest(cascade.path, declare_swapped_states)
    report = graphcut.verify(cascade.source, graphcut.open_cascade(cascade.path), structural_only=True)
    assert report.structure_summary.endswith("2 states as given with --state")


# Changes of the model


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        (lambda p: misspell(initializer(p, "w0"), "raw_data", bytes(1024)), "part-0.onnx: the values of 'w0' differ"),
        (set_scale, "the graphs differ"),
        (lambda p: misspell(node(p, "elu").attribute[0], "f", 0.75), "the graphs differ"),
        (lambda p: misspell(p, "producer_name", "another"), "the graphs differ"),
        (lambda p: swap(p.graph.initializer, 0, 1), ""),
    ],
)
def test_a_changed_model(change: Callable[[ModelProto], object], objection: str, cascade: Cascade) -> None:
    proto = onnx.load(cascade.source)
    change(proto)
    onnx.save(proto, cascade.source)
    assert_said(by_structure(cascade.path), objection)
    assert_said(by_files(cascade.path), "")  # nothing of the cascade was changed
