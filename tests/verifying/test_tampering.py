"""A table of changes: what `verify` says of each, whether or not all digests were redone afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto
from subject import assert_said, by_files, by_structure, cascade, original

import graphcut
from graphcut import Cascade, demos

from conftest import ORT_VERSION, floats
from tampering import Record, edit_manifest, edit_part, flip, redo_digests

__all__ = ["cascade", "original"]


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
    same("value_info", 1, lambda p: p.graph.value_info.append(floats("d", 7)), "value_info 'd'"),
    harmless("order of initializers", 1, lambda p: swap(p.graph.initializer, 0, 1)),
    harmless("order of nodes", 1, lambda p: swap(p.graph.node, 0, 1)),
]


@pytest.mark.parametrize("row", CHANGED_PARTS)
def test_a_changed_part(row: Row, cascade: Cascade) -> None:
    edit_part(cascade, row.part, row.change)
    assert_said(by_structure(cascade.path), row.naive)
    assert by_files(cascade.path)
    redo_digests(cascade.path)
    assert_said(by_structure(cascade.path), row.redone)
    assert bool(by_files(cascade.path)) != row.is_valid


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


# Changes of several files


def without_shift(p: ModelProto) -> None:
    p.graph.input.remove(next(value for value in p.graph.input if value.name == "shift"))


def forget_shift(record: Record) -> None:
    record["parts"][2]["reads"].remove("shift")


def lose_an_optional_input(cascade: Cascade) -> None:
    edit_part(cascade, 2, without_shift)
    edit_manifest(cascade.path, forget_shift)


def lose_a_default(cascade: Cascade) -> None:
    edit_part(cascade, 2, lambda p: p.graph.initializer.remove(initializer(p, "shift")))


def another_default(cascade: Cascade) -> None:
    edit_part(cascade, 2, lambda p: misspell(initializer(p, "shift"), "raw_data", bytes(64)))


def change_text(name: str, cascade: Cascade) -> None:
    flip(cascade.root / name)


def lose_text(name: str, cascade: Cascade) -> None:
    (cascade.root / name).unlink()


OTHER_TEXT = "the manifest gives another {} than there is beside the model"


@pytest.mark.parametrize(
    ("change", "naive", "redone"),
    [
        (lose_an_optional_input, "digest differs", "'shift' is no input of it, unlike in the model"),
        (lose_a_default, "digest differs", "'shift' has no default in it, unlike in the model"),
        (another_default, "digest differs", "weight 'shift' differs"),
        *(
            (partial(change, name), said, OTHER_TEXT.format(name))
            for name in ("tokenizer.json", "generation_config.json")
            for change, said in ((change_text, "was changed after the model was cut"), (lose_text, "is missing"))
        ),
    ],
)
def test_changes_that_are_forged_in_the_manifest_too(
    change: Callable[[Cascade], object], naive: str, redone: str, cascade: Cascade
) -> None:
    """By the structure alone, and before the numbers, which are not compared then."""
    change(cascade)
    assert naive in by_files(cascade.path)
    assert by_structure(cascade.path)
    redo_digests(cascade.path)
    assert_said(by_structure(cascade.path), redone)
    report = graphcut.verify(cascade.source, cascade.path)
    assert (report.same, report.runs) == (False, ())
    assert redone in "".join(report.proof.objections)


def test_a_tokenizer_that_is_added_is_found_and_one_that_the_model_lacks_is_said_to_be_unknown(
    cascade: Cascade, tmp_path: Path
) -> None:
    model = shutil.copy(cascade.source, tmp_path / "model.onnx")  # no tokenizer is beside it
    report = graphcut.verify(model, cascade, structural_only=True)
    assert report.same
    assert report.structure_summary.endswith(
        "tokenizer.json, generation_config.json not compared: none beside the model"
    )
    (cascade.root / "chat_template.jinja").write_text("theirs")
    edit_manifest(cascade.path, lambda record: record["text_files"].update({"chat_template.jinja": ""}))
    redo_digests(cascade.path)
    said = "part-0.onnx was written for other files of the tokenizer than the manifest lists"
    assert said in by_files(cascade.path)
    assert not graphcut.verify(model, cascade.path, structural_only=True).same


# Changes of ranks


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder, and its parts on two ranks."""
    folder = tmp_path_factory.mktemp("ranked")
    demos.write("llm", folder / "model.onnx", hidden=16, layers=1, heads=2, kv_heads=2, vocab=32)
    graphcut.split_by_rank(folder / "model.onnx", folder / "parts", ranks=2)
    return folder


def exchange(first: str, second: str, root: Path) -> None:
    raw = (root / first).read_bytes()
    shutil.copy(root / second, root / first)
    (root / second).write_bytes(raw)


def exchange_ranks(root: Path) -> None:
    def change(record: Record) -> None:
        for part in record["parts"]:
            part["rank"] = 1 - part["rank"]

    edit_manifest(root / "cascade.json", change)


OF_RANKS: list[tuple[Callable[[Path], object], str]] = [
    (partial(exchange, "part-rank-0.onnx.data", "part-rank-1.onnx.data"), "are not those of its slice of"),
    (partial(exchange, "part-2.rank-0.onnx", "part-2.rank-1.onnx"), "part-2.rank-0.onnx: it writes"),
    (exchange_ranks, "the manifest gives rank as 1, but it is 0"),
    (lambda root: flip(root / "part-rank-1.onnx.data"), "are not those of its slice of"),
]


@pytest.mark.parametrize(("change", "objection"), OF_RANKS)
def test_a_change_of_ranks(change: Callable[[Path], object], objection: str, ranked: Path, tmp_path: Path) -> None:
    shutil.copytree(ranked, tmp_path / "copy")
    root = tmp_path / "copy" / "parts"
    change(root)
    for is_redone in (False, True):
        if is_redone:
            redo_digests(root / "cascade.json")
        for structural_only in (True, False):
            report = graphcut.verify(tmp_path / "copy" / "model.onnx", root, structural_only=structural_only)
            assert not report
            assert objection in "".join(report.proof.objections)


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
