"""A model read without its weights is the model, and what is no model is refused in words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TrainingInfoProto,
    helper,
    numpy_helper,
)

from graphcut import ModelError, load
from graphcut.loading.external_data import read_bytes
from graphcut.loading.wire_format import LARGE_BYTES, field_header, read_without_weights

from cases import each
from conftest import floats, model_of


def messages(root: Message) -> Iterator[Message]:
    """A message and all messages in it. Knows nothing of ONNX."""
    yield root
    for _, value in root.ListFields():
        for message in value if hasattr(value, "extend") else [value]:
            if isinstance(message, Message):
                yield from messages(message)


def tensors_in(root: Message) -> Iterator[TensorProto]:
    return (message for message in messages(root) if isinstance(message, TensorProto))


def refilled(skeleton: ModelProto, content: bytes, file: str) -> ModelProto:
    """The skeleton with its payload put back from where it says that it lies."""
    for tensor in tensors_in(skeleton):
        place = {entry.key: entry.value for entry in tensor.external_data}
        assert len(tensor.raw_data) < LARGE_BYTES
        if tensor.data_location == TensorProto.EXTERNAL and place["location"] == file:
            assert list(place) == ["location", "offset", "length"]
            assert int(place["length"]) >= LARGE_BYTES
            tensor.raw_data = content[int(place["offset"]) :][: int(place["length"])]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return skeleton


def check(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    original = ModelProto.FromString(raw)
    for tensor in tensors_in(original):
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")  # absent and zero mean the same
    skeleton = ModelProto.FromString(read_without_weights(path))
    for tensor in tensors_in(skeleton):
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    whole = refilled(skeleton, raw, path.name)
    assert whole.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)


def stray(message: Message, payload: bytes) -> None:
    """Give `message` a field 2047 that no version of ONNX has."""
    assert len(payload) in {3, 2000}
    head = b"\xfa\x7f" + (b"\x03" if len(payload) == 3 else b"\xd0\x0f")
    message.MergeFromString(head + payload)


SIZES = (0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 5000)


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    made = TensorProto(name=draw(st.sampled_from(["", "w", "ü"])), data_type=TensorProto.UINT8)
    number = draw(st.sampled_from(SIZES))
    made.dims.append(number)
    match draw(st.sampled_from(["raw", "raw", "typed", "elsewhere"])):
        case "raw":
            step = draw(st.integers(1, 255))
            made.raw_data = bytes(i * step % 251 for i in range(number))
            if draw(st.booleans()):
                made.data_location = TensorProto.DEFAULT
        case "typed":
            made.int32_data.extend(range(number))
        case _:
            made.data_location = TensorProto.EXTERNAL
            made.external_data.add(key="location", value="elsewhere.bin")
    if draw(st.booleans()):
        stray(made, draw(st.sampled_from([b"abc", bytes(2000)])))
    if draw(st.booleans()):
        made.doc_string = "d" * draw(st.sampled_from([1, 2000]))
    return made


def sparse_tensors() -> st.SearchStrategy[SparseTensorProto]:
    return st.builds(lambda values, indices: SparseTensorProto(values=values, indices=indices), tensors(), tensors())


@st.composite
def attributes(draw: st.DrawFn, depth: int) -> AttributeProto:
    made = AttributeProto(name="a")
    kinds = ["t", "tensors", "sparse_tensor", "sparse_tensors", "ints", "s", *(["g", "graphs"] if depth else [])]
    match draw(st.sampled_from(kinds)):
        case "t":
            made.t.CopyFrom(draw(tensors()))
        case "tensors":
            made.tensors.extend(draw(st.lists(tensors(), max_size=2)))
        case "sparse_tensor":
            made.sparse_tensor.CopyFrom(draw(sparse_tensors()))
        case "sparse_tensors":
            made.sparse_tensors.extend(draw(st.lists(sparse_tensors(), max_size=2)))
        case "ints":
            made.ints.extend(range(-3, 2000))
        case "s":
            made.s = b"\xff\x00" * 1000
        case "g":
            made.g.CopyFrom(draw(graphs(depth - 1)))
        case _:
            made.graphs.extend(draw(st.lists(graphs(depth - 1), max_size=2)))
    return made


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> NodeProto:
    made = NodeProto(op_type="Op", input=["a", ""], output=["b"])
    made.attribute.extend(draw(st.lists(attributes(depth), max_size=2)))
    if draw(st.booleans()):
        stray(made, bytes(2000))
    return made


@st.composite
def graphs(draw: st.DrawFn, depth: int) -> GraphProto:
    made = GraphProto(name="g", input=[floats("x", "n", 3)], output=[floats("y", 1)])
    made.node.extend(draw(st.lists(nodes(depth), max_size=2)))
    made.initializer.extend(draw(st.lists(tensors(), max_size=2)))
    made.sparse_initializer.extend(draw(st.lists(sparse_tensors(), max_size=1)))
    if draw(st.booleans()):
        stray(made, bytes(2000))
    return made


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    made = ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)], graph=draw(graphs(2)))
    if draw(st.booleans()):
        function = FunctionProto(name="f", domain="own", node=[draw(nodes(1))])
        function.attribute_proto.append(draw(attributes(1)))
        made.functions.append(function)
    if draw(st.booleans()):
        made.training_info.append(TrainingInfoProto(initialization=draw(graphs(0)), algorithm=draw(graphs(1))))
    if draw(st.booleans()):
        stray(made, bytes(2000))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("skeleton")


@settings(deadline=None)
@given(models())
def test_only_raw_data_is_removed_and_it_is_at_the_location_given(folder: Path, model: ModelProto) -> None:
    check(folder / "model.onnx", model.SerializeToString())


@settings(deadline=None, max_examples=30)
@given(models(), models())
def test_a_file_of_two_messages_is_merged_as_by_protobuf(folder: Path, first: ModelProto, second: ModelProto) -> None:
    check(folder / "model.onnx", first.SerializeToString() + second.SerializeToString())


def weighted(number: int = 1000) -> ModelProto:
    """x + w → a → Neg → y, with a weight of that many floats."""
    weight = numpy_helper.from_array(np.arange(number, dtype=np.float32), "w")
    steps = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    return model_of(steps, [floats("x", number)], [floats("y", number)], [weight])


def weight_read(path: Path) -> list[float]:
    """The values of the one weight, from where the opened model says that they lie."""
    model = load(path)
    (tensor,) = model.proto.graph.initializer
    assert tensor.data_location == TensorProto.EXTERNAL
    return list(np.frombuffer(read_bytes(model.range_of(tensor)), np.float32))


def test_a_weight_is_found_by_its_range_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(weighted(), path)
    assert weight_read(path) == list(range(1000))


def test_a_weight_just_below_the_limit_stays_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for number in (LARGE_BYTES // 4 - 1, LARGE_BYTES // 4):
        onnx.save(weighted(number), path)
        (tensor,) = load(path).proto.graph.initializer
        assert (tensor.data_location == TensorProto.EXTERNAL) == (number == LARGE_BYTES // 4)


def test_floats_that_are_not_packed_are_read_as_by_protobuf(tmp_path: Path) -> None:
    """Each has a header of its own, as writers of other languages leave them."""
    floats_apart = b"".join(b"\x25" + np.float32(number).tobytes() for number in range(300))
    tensor = TensorProto(dims=[300], data_type=TensorProto.FLOAT, name="w").SerializeToString() + floats_apart
    graph = GraphProto(name="g").SerializeToString() + field_header(GraphProto.INITIALIZER_FIELD_NUMBER, len(tensor))
    graph += tensor
    check(tmp_path / "m.onnx", field_header(ModelProto.GRAPH_FIELD_NUMBER, len(graph)) + graph)


def test_a_model_that_onnx_has_loaded_from_external_data_and_saved_whole_keeps_its_weights(tmp_path: Path) -> None:
    """onnx.load notes `data_location: DEFAULT` on each tensor that it has loaded, and onnx.save writes it down."""
    onnx.save(weighted(), tmp_path / "external.onnx", save_as_external_data=True, location="external.bin")
    onnx.save(onnx.load(tmp_path / "external.onnx"), tmp_path / "whole.onnx")
    assert weight_read(tmp_path / "whole.onnx") == list(range(1000))


@pytest.mark.parametrize("location", [None, TensorProto.DEFAULT])
def test_a_location_that_is_not_used_is_ignored(tmp_path: Path, location: int | None) -> None:
    """As ONNX Runtime has it: `raw_data` holds the values unless `data_location` says EXTERNAL."""
    model = weighted()
    (tensor,) = model.graph.initializer
    tensor.external_data.add(key="location", value="gone.bin")
    if location is not None:
        tensor.data_location = TensorProto.DEFAULT
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert weight_read(tmp_path / "model.onnx") == list(range(1000))


def test_an_external_tensor_is_external_even_with_raw_data(tmp_path: Path) -> None:
    """As ONNX Runtime has it, too."""
    model = weighted()
    (tensor,) = model.graph.initializer
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(np.arange(5000, 6000, dtype=np.float32).tobytes())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert weight_read(tmp_path / "model.onnx") == list(range(5000, 6000))


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    return caught.value


def loads(path: Path, raw: bytes) -> bool:
    """Does it open? What does not open is refused with a ModelError, which any other exception is not."""
    path.write_bytes(raw)
    try:
        load(path)
    except ModelError:
        return False
    return True


def everything() -> ModelProto:
    """A valid model that has some of all, in few bytes."""
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["b"])], "body", [], [floats("b", 2)])
    twice = helper.make_function(
        "own", "Twice", ["p"], ["q"], [helper.make_node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 17)]
    )
    value = numpy_helper.from_array(np.ones(2, np.float32))
    steps = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Add", ["x", "c"], ["a"], name="add", doc_string="d"),
        helper.make_node("If", ["f"], ["b"], then_branch=body, else_branch=body),
        helper.make_node("Twice", ["b"], ["y"], domain="own"),
    ]
    flag = helper.make_tensor_value_info("f", TensorProto.BOOL, [])
    model = model_of(steps, [floats("x", "n"), flag], [floats("y", "n")], [value], opset=17)
    model.graph.initializer[0].name = "w"
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(twice)
    helper.set_model_props(model, {"key": "value"})
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'm', 'n']")
    onnx.checker.check_model(model)
    return model


def test_a_truncated_model_is_refused_or_is_a_valid_model(tmp_path: Path) -> None:
    raw = everything().SerializeToString()
    opening = [end for end in range(len(raw) + 1) if loads(tmp_path / "model.onnx", raw[:end])]
    # Only between the fields of the model itself can protobuf not tell; what opens is a whole graph with an opset.
    assert opening[-1] == len(raw)
    assert all(ModelProto.FromString(raw[:end]).opset_import for end in opening)


def test_a_model_truncated_in_a_weight_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    raw = weighted().SerializeToString()
    for end in (*range(100), *range(100, 4000, 97), *range(4000, len(raw) - 40)):
        assert not loads(path, raw[:end])
    path.write_bytes(raw[:2000])
    caught = refusal(path)
    assert str(caught).startswith(f"{path} is not an ONNX model, or is truncated: a field that begins at byte ")
    assert str(caught).endswith("after the end at 2,000")
    assert caught.hint == "export the model again, or compare its size with the one it was copied from"


Spoiled = list[tuple[int, int]]


@settings(deadline=None, max_examples=400, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_model_with_corrupted_bytes_opens_or_is_refused(folder: Path, spoiled: Spoiled) -> None:
    raw = bytearray(everything().SerializeToString())
    for place, byte in spoiled:
        raw[place % len(raw)] = byte
    loads(folder / "model.onnx", bytes(raw))


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_random_bytes_are_refused(folder: Path, noise: bytes) -> None:
    assert not loads(folder / "model.onnx", noise)


@each(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01",
        b"hello world, this is a text",
        b"\xff" * 2000,
        bytes(2000),
        "äöü".encode(),
    ],
    ids=["png", "text", "ones", "zeros", "utf-8"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    message = str(refusal(path))
    assert message.startswith(f"{path} is ")
    assert "not an ONNX model" in message


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    caught = refusal(path)
    assert (str(caught), caught.hint) == (f"{path} is empty", "export the model again, or check the copy")


def test_a_folder_is_refused_and_a_model_in_it_is_suggested(tmp_path: Path) -> None:
    caught = refusal(tmp_path)
    hint = "name the .onnx file, or write pipeline.toml there"
    assert (str(caught), caught.hint) == (f"{tmp_path} is a folder, not a model", hint)
    (tmp_path / "it.onnx").touch()
    assert refusal(tmp_path).hint == f"did you mean {tmp_path / 'it.onnx'}?"


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To open one would wait for who writes to it."""
    path = tmp_path / "model.onnx"
    os.mkfifo(path)
    assert str(refusal(path)) == f"{path} is not a regular file"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gone.onnx"
    caught = refusal(path)
    assert (str(caught), caught.hint) == (f"there is no file {path}", "check the path")


@pytest.mark.parametrize("name", ["x" * 300, "a.onnx/b.onnx"])
def test_an_impossible_file_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.onnx").touch()
    refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("model", "lacks"),
    [
        (ModelProto(ir_version=8), "graph"),
        (ModelProto(ir_version=8, graph=GraphProto(output=[floats("y")])), "outputs or opset"),
        (ModelProto(opset_import=[helper.make_opsetid("", 17)], graph=GraphProto(name="g")), "outputs or opset"),
    ],
)
def test_a_message_without_graph_outputs_or_opset_is_refused(tmp_path: Path, model: ModelProto, lacks: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    caught = refusal(path)
    assert str(caught) == f"{path} is not an ONNX model: it has no {lacks}"
    assert caught.hint == "export the model to ONNX first"


def length_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


@pytest.mark.parametrize("depth", [40, 400, 4000])
def test_subgraphs_nested_too_deeply_are_refused(tmp_path: Path, depth: int) -> None:
    """Protobuf gives up at 100 messages in each other; a file may be made to go on."""
    graph = length_field(5, length_field(9, bytes(2000)))
    for _ in range(depth):
        graph = length_field(1, length_field(5, length_field(6, graph)))
    assert not loads(tmp_path / "model.onnx", length_field(7, graph))


@each("tail", [b"\x0b", b"\x0e", b"\x00\x00", b"\x80", b"\x80" * 11, b"\x0a\x05abc", b"\x09abc"])
def test_a_file_with_random_bytes_at_the_end_is_refused(tmp_path: Path, tail: bytes) -> None:
    assert not loads(tmp_path / "model.onnx", weighted().SerializeToString() + tail)


def big(path: Path, payload_bytes: int) -> None:
    """A whole model in one file, most of which is a hole that takes no place on disk."""
    small = weighted(8)
    small.graph.initializer[0].dims[0] = payload_bytes // 4
    small.graph.initializer[0].ClearField("raw_data")
    head = small.graph.initializer[0].SerializeToString() + varint(9 << 3 | 2) + varint(payload_bytes)
    del small.graph.initializer[:]
    graph_tail = small.graph.SerializeToString()
    initializer_head = varint(5 << 3 | 2) + varint(len(head) + payload_bytes)
    graph_bytes = len(initializer_head) + len(head) + payload_bytes + len(graph_tail)
    small.ClearField("graph")
    with path.open("wb") as stream:
        stream.write(small.SerializeToString() + varint(7 << 3 | 2) + varint(graph_bytes) + initializer_head + head)
        stream.seek(payload_bytes, 1)
        stream.write(graph_tail)


def test_a_model_of_two_gigabytes_opens_in_a_few_megabytes(tmp_path: Path) -> None:
    payload_bytes = 1_900_000_000
    big(tmp_path / "big.onnx", payload_bytes)
    onnx.save(weighted(), tmp_path / "small.onnx")
    code = (
        "import resource, sys; from graphcut import load; load(sys.argv[1]);"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak();"
        "print(load(sys.argv[2]).weight_bytes, peak() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "small.onnx"), str(tmp_path / "big.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    weight_bytes, grown_kib = map(int, done.stdout.split())
    assert weight_bytes == payload_bytes
    assert grown_kib < 150 * 1024
    assert (tmp_path / "big.onnx").stat().st_blocks * 512 < 1 << 20
