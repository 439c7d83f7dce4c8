"""`verify` of sharded models: what is right is proven, and each change of a weight, a node or a boundary is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import ModelError, UsageError, demos, shard
from graphcut.costs.device_groups import RankMode
from graphcut.verifying import verification
from graphcut.verifying.sharded import prove_sharded

from cases import crossed, each
from conftest import FIXTURES, ORT_VERSION, floats, model_of, weight
from hazards import HAZARDS

sys.path.insert(0, str(Path(__file__).parents[1] / "surgery"))
from sharded_models import STYLES, moe_like

Edit = Callable[[ModelProto], None]
Sharded = Callable[[str, RankMode], tuple[Path, Path]]


@pytest.fixture
def sharded(tmp_path: Path) -> Sharded:
    """The paths of a model and of the model that it becomes on 3 ranks of unequal shares."""

    def made(name: str, mode: RankMode) -> tuple[Path, Path]:
        path = tmp_path / "model.onnx"
        if name in STYLES:
            onnx.save(STYLES[name](), path)
        elif name in demos.DEMOS:
            demos.write(name, path, external=None, **({"layers": 2} if name == "llm" else {}))
        else:
            path = FIXTURES / name
        return path, shard(path, tmp_path / "sharded.onnx", ranks=(2, 2, 1), mode=mode).path

    return made


@crossed(
    ("name", "mode"),
    ["llm", "resnet", *STYLES, "clip.onnx", "lstm.onnx", "unet.onnx", "tiny-llama-int4/model.onnx"],
    ["exact", "sum"],
    times=1,
    together=1,
)
def test_a_sharded_model_is_proven_and_computes_the_same(name: str, mode: RankMode, sharded: Sharded) -> None:
    path, made = sharded(name, mode)
    report = graphcut.verify(path, made)
    assert graphcut.verify(made, structural_only=True), "its metadata name the model"
    model = graphcut.load(path)
    assert (report.same, report.subject, report.proof.objections) == (True, "sharded model", ())
    assert report.proof.nodes == len(model.graph.flow)
    assert 0 < report.proof.replicas <= 2 * report.proof.nodes  # at most one in each of three ranks
    assert report.is_identical or report.reason


def test_exact_needs_the_same_bits_and_sums_need_a_reason(sharded: Sharded) -> None:
    path, made = sharded("llm", "exact")
    report = graphcut.verify(path, made)
    assert (report.reason, report.is_identical) == ("", True)
    made.unlink()
    report = graphcut.verify(*sharded("llm", "sum"))
    assert report.reason == "partial sums are added: differences up to 0.0001 of a tensor's largest value"
    assert report.is_identical is False


@each("op", ["Gemm", "Clip"])
def test_a_rank_that_leaves_out_an_optional_input_is_found(op: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "bias"], ["a"]),
        helper.make_node("Clip", ["a", "least", "most"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    shapes = {"w0": (8, 8), "w1": (8, 8), "bias": (8,), "least": (), "most": ()}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    onnx.save(model_of(nodes, [floats("x", "n", 8)], [floats("y", "n", 8)], weights), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    assert graphcut.verify(tmp_path / "model.onnx", made)
    changed = onnx.load(made)
    of_ranks = [one for one in changed.graph.node if one.op_type == op]
    assert len(of_ranks) == 2
    del of_ranks[1].input[2]
    onnx.save(changed, made)
    (objection,) = graphcut.verify(tmp_path / "model.onnx", made, structural_only=True).proof.objections
    assert "is no node of the model, nor a rank's share of one" in objection


@pytest.mark.parametrize(
    ("field", "objection"),
    [("initializer", "'bias' has no default in it, unlike in the model"), ("input", "'bias' is not whole in it")],
)
def test_an_input_with_a_default_stays_one(field: str, objection: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    shapes = {"w0": (8, 8), "w1": (8, 8), "bias": (8,)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    proto = model_of(nodes, [floats("x", "n", 8), floats("bias", 8)], [floats("y", "n", 8)], weights)
    onnx.save(proto, tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    assert graphcut.verify(tmp_path / "model.onnx", made)
    changed = onnx.load(made)
    items = getattr(changed.graph, field)
    items.remove(next(one for one in items if one.name == "bias"))
    onnx.save(changed, made)
    report = graphcut.verify(tmp_path / "model.onnx", made, structural_only=True)
    assert objection in "".join(report.proof.objections)


def node(model: ModelProto, output: str) -> NodeProto:
    return next(one for one in model.graph.node if output in one.output)


def initializer(model: ModelProto, name: str) -> TensorProto:
    return next(one for one in model.graph.initializer if one.name == name)


def alike(model: ModelProto) -> tuple[TensorProto, TensorProto]:
    """The slices of ranks 0 and 1 of a weight of which both have as much."""
    pairs = ([initializer(model, f"g{layer}.rank-{rank}") for rank in (0, 1)] for layer in (0, 1))
    return next((a, b) for a, b in pairs if a.dims == b.dims)


def swap_slices(model: ModelProto) -> None:
    a, b = alike(model)
    a.raw_data, b.raw_data = b.raw_data, a.raw_data


def swap_slices_and_notes(model: ModelProto) -> None:
    """Each rank has the columns of the other, and says so; but the other weights of its layer are its own."""
    swap_slices(model)
    a, b = alike(model)
    a.doc_string, b.doc_string = b.doc_string, a.doc_string


def shift_boundary(model: ModelProto) -> None:
    """Four columns of one weight move from rank 0 to rank 1; the notes say so."""
    a, b = (initializer(model, f"g0.rank-{rank}") for rank in (0, 1))
    left, right = numpy_helper.to_array(a), numpy_helper.to_array(b)
    moved = left[:, :-4], np.concatenate([left[:, -4:], right], axis=1)
    boundary = left.shape[1]
    for one, values in zip((a, b), moved, strict=True):
        note = one.doc_string.replace(f"[0,{boundary}]", f"[0,{boundary - 4}]").replace(
            f"[{boundary},", f"[{boundary - 4},"
        )
        one.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), one.name))
        one.doc_string = note


def give_the_bias_of_another_rank(model: ModelProto) -> None:
    reader = next(one for one in model.graph.node if "k0.bias.rank-1" in one.input)
    reader.input[1] = "k0.bias.rank-2"


def count_a_sum_twice(model: ModelProto) -> None:
    total = next(one for one in model.graph.node if one.op_type == "Sum")
    total.input[1] = total.input[0]


def add_a_summand_again(model: ModelProto) -> None:
    total = next(one for one in model.graph.node if one.op_type == "Sum")
    total.input.append(total.input[0])


def leave_a_summand_out(model: ModelProto) -> None:
    total = next(one for one in model.graph.node if one.op_type == "Sum")
    del total.input[-1]


def swap_joined(model: ModelProto) -> None:
    join = next(n for n in model.graph.node if n.op_type == "Concat" and n.input[0].endswith(".rank-0"))
    join.input[0], join.input[1] = join.input[1], join.input[0]


def flip_a_bit(model: ModelProto) -> None:
    values = bytearray(initializer(model, "d1.rank-2").raw_data)
    values[5] ^= 1
    initializer(model, "d1.rank-2").raw_data = bytes(values)


def forget_a_note(model: ModelProto) -> None:
    initializer(model, "u0.rank-0").ClearField("doc_string")


def change_a_shape(model: ModelProto) -> None:
    name = next(name for one in model.graph.node if one.op_type == "Reshape" for name in one.input if "shape" in name)
    shape = initializer(model, name)
    numbers = numpy_helper.to_array(shape).copy()
    numbers[-1], numbers[-2] = numbers[-2], numbers[-1]
    shape.CopyFrom(numpy_helper.from_array(numbers, name))


def change_an_operator(model: ModelProto) -> None:
    next(one for one in model.graph.node if one.op_type == "Sigmoid").op_type = "Tanh"


def change_a_weight_that_all_read(model: ModelProto) -> None:
    whole = initializer(model, "n0")
    whole.raw_data = whole.raw_data[::-1]


def read_a_piece_as_a_whole(model: ModelProto) -> None:
    model.graph.output[0].name = next(one for one in model.graph.node if one.op_type == "Sigmoid").output[0]


EXACT: list[Edit] = [
    swap_slices,
    swap_slices_and_notes,
    shift_boundary,
    give_the_bias_of_another_rank,
    swap_joined,
    flip_a_bit,
    forget_a_note,
    change_a_shape,
    change_an_operator,
    change_a_weight_that_all_read,
    read_a_piece_as_a_whole,
]
SUMS: list[Edit] = [count_a_sum_twice, add_a_summand_again, leave_a_summand_out]


@pytest.mark.parametrize(
    ("mode", "edit"),
    [*(("exact", edit) for edit in EXACT), *(("sum", edit) for edit in SUMS)],
)
def test_a_change_is_found_without_running_anything(mode: RankMode, edit: Edit, sharded: Sharded) -> None:
    path, made = sharded("qwen", mode)
    proto = onnx.load(made)
    edit(proto)
    onnx.save(proto, made)
    report = graphcut.verify(path, made, structural_only=True)
    assert not report
    assert report.proof.objections


def swaps(proto: ModelProto) -> Iterator[tuple[NodeProto, int, str]]:
    """Each input that is a piece, and the same piece of the next rank."""
    names = {name for one in proto.graph.node for name in (*one.input, *one.output)}
    for one in proto.graph.node:
        for slot, name in enumerate(one.input):
            for rank in range(3):
                other = name.replace(f".rank-{rank}", f".rank-{(rank + 1) % 3}")
                if other != name and other in names and not name.endswith("/sizes"):
                    yield one, slot, other


@crossed(("name", "mode"), ["bert", "convolutions"], ["exact", "sum"], times=1, together=1)
def test_reading_a_piece_of_another_rank_is_found_wherever_it_is(name: str, mode: RankMode, sharded: Sharded) -> None:
    path, made = sharded(name, mode)
    model, proto = graphcut.load(path), onnx.load(made)
    for one, slot, other in swaps(proto):
        own, one.input[slot] = one.input[slot], other
        assert not prove_sharded(model, graphcut.load(proto)).proof.holds, (one.name, own, other)
        one.input[slot] = own
    assert prove_sharded(model, graphcut.load(proto)).proof.holds


@pytest.mark.parametrize("name", ["vit", "phi"])
def test_pieces_are_joined_in_their_order_also_where_an_output_is_joined(name: str, sharded: Sharded) -> None:
    path, made = sharded(name, "exact")
    model, proto = graphcut.load(path), onnx.load(made)
    joins = [one for one in proto.graph.node if one.op_type == "Concat" and ".rank-1" in "".join(one.input)]
    assert any(one.output[0] in model.graph.writes for one in joins) == (name == "vit")
    for one in joins:
        own = list(one.input)
        one.input[:] = own[::-1]
        assert not prove_sharded(model, graphcut.load(proto)).proof.holds, one.name
        one.input[:] = own


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def fails(model: graphcut.Model, proto: ModelProto) -> bool:
    return not prove_sharded(model, graphcut.load(proto)).proof.holds


@pytest.mark.parametrize("opset", [12, 13])
def test_a_tensor_that_is_whole_is_cut_and_joined_by_segments(opset: int, tmp_path: Path) -> None:
    """Columns of queries and of keys, to which an input is added. Sizes are an attribute of Split before version 13."""
    attributes: dict[str, Any] = {"split": [16, 8]} if opset == 12 else {}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "more"], ["all"]),
        helper.make_node("Split", ["all", "sizes"][: opset - 11], ["q", "k"], axis=1, **attributes),
        helper.make_node("Reshape", ["q", "heads"], ["of heads"]),
        helper.make_node("Reshape", ["k", "groups"], ["of groups"]),
        helper.make_node("Expand", ["of groups", "repeated"], ["all groups"]),
        helper.make_node("Add", ["of heads", "all groups"], ["y"]),
    ]
    shapes = {"sizes": (16, 8), "heads": (3, 2, 2, 4), "groups": (3, 2, 1, 4), "repeated": (3, 2, 2, 4)}
    weights = [weight("w", 6, 24), *(ints(name, *sizes) for name, sizes in shapes.items())]
    inputs = [floats("x", 3, 6), floats("more", 3, 24)]
    onnx.save(model_of(nodes, inputs, [floats("y", 3, 2, 2, 4)], weights, opset=opset), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2)
    assert made.divided_share == 1
    assert graphcut.verify(tmp_path / "model.onnx", made.path).is_identical
    model, proto = graphcut.load(tmp_path / "model.onnx"), onnx.load(made.path)
    join = node(proto, "more.rank-0")
    join.input[:] = reversed(join.input)
    assert fails(model, proto), "keys come before queries"
    join.input[:] = reversed(join.input)
    cut = node(proto, join.input[0])
    for sizes in ((8, 8, 4, 5), (8, 8, 8)):
        if opset == 12:
            cut.attribute[1].ints[:] = sizes
        else:
            initializer(proto, cut.input[1]).CopyFrom(ints(cut.input[1], *sizes))
        assert fails(model, proto), sizes


def test_integers_are_added_one_after_another_and_no_rank_leaves_out_zero_points(tmp_path: Path) -> None:
    """Sum adds floats alone."""
    rng = np.random.default_rng(0)
    shapes = {"w": (12, 1), "zero": (1,)}
    weights = [numpy_helper.from_array(rng.integers(-9, 9, shape, np.int8), name) for name, shape in shapes.items()]
    ends = helper.make_tensor_value_info("x", TensorProto.INT8, [3, 12]), helper.make_tensor_value_info("y", 6, [3, 1])
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "", "zero"], ["y"])]
    onnx.save(model_of(nodes, ends[:1], ends[1:], weights), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=3, mode="sum").path
    assert graphcut.verify(tmp_path / "model.onnx", made).is_identical
    proto = onnx.load(made)
    assert [one.op_type for one in proto.graph.node] == ["Split", *["MatMulInteger"] * 3, "Add", "Add"]
    del proto.graph.node[2].input[2:]
    assert fails(graphcut.load(tmp_path / "model.onnx"), proto)


def test_a_split_of_equal_elements_is_proven(tmp_path: Path) -> None:
    """Of which only the number counts, in each of its segments."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "zeros"], ["sum"]),
        helper.make_node("Split", ["sum", "sizes"], ["a", "b"], axis=1),
        helper.make_node("Split", ["zeros", "sizes"], ["c", "d"], axis=1),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    weights = [weight("w", 6, 24), ints("shape", 3, 24), ints("sizes", 16, 8)]
    without_shape = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx.save(model_of(nodes, [floats("x", 3, 6)], [without_shape], weights), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2)
    assert {one.op_type for one in made.model.proto.graph.node if ".rank-1" in one.output[0]} >= {"ConstantOfShape"}
    assert graphcut.verify(tmp_path / "model.onnx", made.path).is_identical
    model, proto = graphcut.load(tmp_path / "model.onnx"), onnx.load(made.path)
    forged = {node(proto, "c.rank-0").input[1]: (9, 3), node(proto, "zeros.rank-0").input[0]: (3, 13)}
    for name, numbers in forged.items():
        kept = initializer(proto, name).SerializeToString()
        initializer(proto, name).CopyFrom(ints(name, *numbers))
        assert fails(model, proto), numbers
        initializer(proto, name).ParseFromString(kept)


def test_the_shape_of_axes_that_are_whole_is_that_of_a_piece(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Shape", ["h"], ["rows"], end=1),
        helper.make_node("Shape", ["h"], ["columns"], start=1),
        helper.make_node("MatMul", ["h", "down"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in ("rows", "columns")]
    weights = [weight("up", 6, 8), weight("down", 8, 6)]
    onnx.save(model_of(nodes, [floats("x", "n", 6)], [floats("y", "n", 6), *outputs], weights), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2, mode="sum")
    patched = [one for one in made.model.proto.graph.node if one.op_type == "Where"]
    assert [one.output[0] for one in patched] == ["columns"]
    assert graphcut.verify(tmp_path / "model.onnx", made.path)


def test_each_number_that_a_rank_has_instead_of_those_of_the_model_counts(tmp_path: Path) -> None:
    """Of shapes, their masks and the bounds of slices."""
    onnx.save(STYLES["phi"](), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    model, proto = graphcut.load(tmp_path / "model.onnx"), onnx.load(made)
    own = {
        one.name: one for one in proto.graph.initializer if not one.doc_string and one.name not in model.graph.weights
    }
    kinds = {name.rsplit("/", 1)[-1]: own[name] for name in reversed(own)}
    for one in (kinds[kind] for kind in ("shape", "mask", "bounds-1", "bounds-2")):
        values, kept = numpy_helper.to_array(one), one.SerializeToString()
        for changed in (*(values ^ (np.arange(values.size) == i) for i in range(values.size)), values[:-1]):
            one.CopyFrom(numpy_helper.from_array(changed, one.name))
            assert fails(model, proto), (one.name, values, changed)
        one.ParseFromString(kept)


@each("order", [1, -1])
def test_bounds_and_axes_of_a_slice_are_those_of_the_model_where_nothing_is_divided(order: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Slice", ["h", "from", "to", "axes"], ["y"]),
    ]
    bounds = {"from": (1, 8), "to": (3, 24), "axes": (0, 1)}
    weights = [weight("w", 6, 32), *(ints(name, *numbers[::order]) for name, numbers in bounds.items())]
    onnx.save(model_of(nodes, [floats("x", 5, 6)], [floats("y", 2, 16)], weights), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    assert graphcut.verify(tmp_path / "model.onnx", made).is_identical
    model, proto = graphcut.load(tmp_path / "model.onnx"), onnx.load(made)
    cut = node(proto, "y.rank-0")
    others = ints("other rows", *(0, 4)[::order]), ints("other axes", *(0, -1)[::order])
    proto.graph.initializer.extend(others)
    for slot, other in ((1, "other rows"), (3, "other axes")):
        own, cut.input[slot] = cut.input[slot], other
        assert fails(model, proto), other
        cut.input[slot] = own
    assert not fails(model, proto)


def test_a_shape_has_as_many_numbers_as_are_put_into_it(tmp_path: Path) -> None:
    """One number would be for all axes."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "shape"], ["y"])]
    inputs = floats("x", 6), helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    onnx.save(model_of(nodes, inputs, [floats("y", 4, 4)], [weight("w", 6, 16)]), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    model, proto = graphcut.load(tmp_path / "model.onnx"), onnx.load(made)
    mask, sizes, _ = next(one for one in proto.graph.node if one.op_type == "Where").input
    assert [numpy_helper.to_array(initializer(proto, name)).tolist() for name in (mask, sizes)] == [[1, 0], [2, 0]]
    assert not fails(model, proto)
    for masked, numbers in (([True], [2]), ([True, False], [2, 0, 0])):
        initializer(proto, mask).CopyFrom(numpy_helper.from_array(np.array(masked), mask))
        initializer(proto, sizes).CopyFrom(ints(sizes, *numbers))
        assert fails(model, proto), masked


@each("way", ["put no size into it", "cut and join its rows", "join along the rows", "join numbers, too"])
def test_a_piece_of_the_columns_is_not_the_whole_whatever_is_done_to_it(way: str, tmp_path: Path) -> None:
    shape = () if way == "put no size into it" else (4,) if way == "cut and join its rows" else (8,)
    ends = floats("x", *shape, 6), floats("y", *shape, 8)
    proto = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], ends[:1], ends[1:], [weight("w", 6, 8)])
    onnx.save(proto, tmp_path / "model.onnx")
    made = onnx.load(shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path)
    join = node(made, "y")
    if way == "put no size into it":
        made.graph.initializer.extend([numpy_helper.from_array(np.zeros(8, bool), "mask"), ints("numbers", *[0] * 8)])
        join.CopyFrom(helper.make_node("Where", ["mask", "numbers", "y.rank-0"], ["y"]))
    elif way == "join numbers, too":
        made.graph.initializer.append(ints("numbers", 0))
        join.input.insert(1, "numbers")
    else:
        join.attribute[0].i = 0
    if way == "cut and join its rows":
        made.graph.initializer.append(ints("rows", 1, 3))
        made.graph.node.insert(2, helper.make_node("Split", ["y.rank-0", "rows"], ["first", "second"], axis=0))
        node(made, "y").input[:] = ["first", "second"]
    assert fails(graphcut.load(tmp_path / "model.onnx"), made)


def rename_a_slice(model: ModelProto) -> None:
    initializer(model, "up.rank-0").doc_string = initializer(model, "up.rank-0").doc_string.replace("up", "over")


def note_more_than_there_is(model: ModelProto) -> None:
    initializer(model, "up.rank-1").doc_string = initializer(model, "up.rank-1").doc_string.replace("8", "9")


def note_a_range_twice(model: ModelProto) -> None:
    one = initializer(model, "up.rank-0")
    one.doc_string = one.doc_string.replace("[0,4]", "[0,2],[0,2]")


def note_an_empty_range(model: ModelProto) -> None:
    one = initializer(model, "up.rank-0")
    one.doc_string = one.doc_string.replace("[0,4]", "[0,4],[4,4]")


def note_no_range(model: ModelProto) -> None:
    one = initializer(model, "up.rank-0")
    empty = numpy_helper.from_array(np.zeros((6, 0), np.float32), one.name)
    empty.doc_string = one.doc_string.replace("[0,4]", "")
    one.CopyFrom(empty)


def draw_again(model: ModelProto) -> None:
    again = helper.make_node("RandomNormalLike", ["x"], ["noise.rank-1"])
    model.graph.node.insert(0, again)
    node(model, "noisy").input[1] = "noise.rank-1"


def write_a_mask(model: ModelProto) -> None:
    node(model, "dropped").output.append("mask")


def change_a_sparse_weight(model: ModelProto) -> None:
    model.graph.sparse_initializer[0].values.float_data[0] += 1


def read_another_weight(model: ModelProto) -> None:
    node(model, "clipped").input[1] = "shift"


def read_one_more(model: ModelProto) -> None:
    node(model, "clipped").input.append("shift")


def write_a_part_of_a_shape(model: ModelProto) -> None:
    node(model, "sizes.of-a-piece").attribute.append(helper.make_attribute("end", 1))


def write_another_version(model: ModelProto) -> None:
    model.opset_import[0].version += 1


def fix_a_size(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5


def read_another_input(model: ModelProto) -> None:
    model.graph.input.append(floats("z", 2))


@pytest.mark.parametrize(
    ("edit", "objection"),
    [
        (rename_a_slice, "'up.rank-0' is noted as a slice of 'over' that the model has not"),
        (note_more_than_there_is, "'up.rank-1' is noted as a slice of 'up' that the model has not"),
        (note_a_range_twice, "'up.rank-0' is noted as a slice of 'up' that the model has not"),
        (note_an_empty_range, "'up.rank-0' is noted as a slice of 'up' that the model has not"),
        (note_no_range, "'up.rank-0' is noted as a slice of 'up' that the model has not"),
        (draw_again, "is no node of the model, nor a rank's share of one"),
        (write_a_mask, "is no node of the model, nor a rank's share of one"),
        (change_a_sparse_weight, "reads 'few', which is nothing of the model"),
        (read_another_weight, "is no node of the model, nor a rank's share of one"),
        (read_one_more, "is no node of the model, nor a rank's share of one"),
        (write_a_part_of_a_shape, "is no node of the model, nor a rank's share of one"),
        (write_another_version, "its IR version, opsets, functions or metadata differ from the model's"),
        (fix_a_size, "the input 'x' is declared otherwise than in the model"),
        (read_another_input, "its input 'z' is none of the model"),
    ],
)
def test_what_is_not_the_models_is_named(edit: Edit, objection: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Shape", ["h"], ["sizes"]),
        helper.make_node("MatMul", ["h", "down"], ["rows"]),
        helper.make_node("Clip", ["rows", "least"], ["clipped"]),
        helper.make_node("Add", ["clipped", "shift"], ["added"]),
        helper.make_node("Dropout", ["added"], ["dropped"]),
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Add", ["dropped", "noise"], ["once"]),
        helper.make_node("Mul", ["once", "noise"], ["noisy"]),
        helper.make_node("Add", ["noisy", "few"], ["y"]),
    ]
    few = helper.make_tensor("few", TensorProto.FLOAT, [1], [0.5]), helper.make_tensor("", TensorProto.INT64, [1], [2])
    weights = [weight("up", 6, 8), weight("down", 8, 6), weight("least"), weight("shift")]
    outputs = [floats("y", "n", 6), helper.make_tensor_value_info("sizes", TensorProto.INT64, [2])]
    model = model_of(nodes, [floats("x", "n", 6)], outputs, weights)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*few, [6]))
    onnx.save(model, tmp_path / "model.onnx")
    proto = onnx.load(shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2, mode="sum").path)
    edit(proto)
    found = prove_sharded(graphcut.load(tmp_path / "model.onnx"), graphcut.load(proto)).proof.objections
    assert objection in found[0]


def test_a_state_must_stay_in_its_rank(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "model.onnx", layers=1, external=None, kv_heads=2)
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    proto = onnx.load(made)
    values = {value.name: value for value in proto.graph.input}
    a, b = (values[f"past_key_values.0.key.rank-{rank}"] for rank in (0, 1))
    a.doc_string, b.doc_string = b.doc_string, a.doc_string
    onnx.save(proto, made)
    report = graphcut.verify(tmp_path / "model.onnx", made, structural_only=True)
    assert not report


def test_a_state_that_is_whole_before_a_step_is_whole_after_it(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "model.onnx", layers=1, external=None, kv_heads=2)
    proto = onnx.load(shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path)
    model, name = graphcut.load(tmp_path / "model.onnx"), "past_key_values.0.key"
    first, second = (one for one in proto.graph.input if one.name.startswith(f"{name}."))
    nodes = [helper.make_node("Split", [name, "sizes"], [first.name, second.name], axis=1), *proto.graph.node]
    proto.graph.initializer.append(ints("sizes", 1, 1))
    first.CopyFrom(next(one for one in model.proto.graph.input if one.name == name))
    proto.graph.input.remove(second)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    found = prove_sharded(model, graphcut.load(proto)).proof.objections
    assert found == (f"the state {name!r} is divided otherwise than 'present.0.key', which becomes it",)


def test_slices_in_files_are_compared_with_the_bytes_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    demos.write("llm", tmp_path / "model.onnx", layers=2, external=True)
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    report = graphcut.verify(tmp_path / "model.onnx", made, structural_only=True)
    assert report
    assert report.proof.weight_bytes >= graphcut.load(made).weight_bytes * 0.9
    data = tmp_path / "sharded.onnx.data"
    content = bytearray(data.read_bytes())
    for at in range(0, len(content), 4096):
        content[at] ^= 255
    data.write_bytes(content)
    report = graphcut.verify(tmp_path / "model.onnx", made, structural_only=True)
    assert any("the values of" in sentence for sentence in report.proof.objections)


def test_the_model_that_was_sharded_must_be_there(tmp_path: Path) -> None:
    demos.write("resnet", tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"the model that was sharded is not at .*model\.onnx"):
        graphcut.verify(made)


def test_the_model_that_was_sharded_must_be_named() -> None:
    with pytest.raises(UsageError, match="does not say which model it was sharded from"):
        graphcut.verify(FIXTURES / "unet.onnx")


def test_experts_are_divided_inside_where_sums_may_be(tmp_path: Path) -> None:
    onnx.save(moe_like(), tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=3, mode="sum")
    assert made.divided_share > 0.95
    assert graphcut.verify(tmp_path / "model.onnx", made.path, structural_only=True)


def test_a_mixture_that_computes_from_zeros_is_named_where_onnx_runtime_does_that(tmp_path: Path) -> None:
    """Where a MoE's output takes the memory of its input, which it does not in a model that joins that input anew."""
    model = moe_like()
    for attribute in (one for node in model.graph.node if node.op_type == "MoE" for one in node.attribute):
        attribute.i *= attribute.name != "normalize_routing_weights"
    onnx.save(model, tmp_path / "model.onnx")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2)
    report = graphcut.verify(tmp_path / "model.onnx", made.path)
    assert report.proof.holds
    is_wrong = ORT_VERSION < (1, 32) and not report.is_identical
    assert ("a MoE without normalize_routing_weights computes from zeros" in str(report)) == is_wrong
    assert report.is_identical or is_wrong


def test_a_difference_of_mixtures_is_explained_by_their_defect_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_HAS_MIXTURES", False)
    right, wrong = (cast(Any, SimpleNamespace(is_identical=is_identical)) for is_identical in (True, False))
    normalized = graphcut.load(moe_like())
    assert verification._with_defect("", normalized, [(wrong,)]) == ""
    plain = moe_like()
    for attribute in (one for node in plain.graph.node if node.op_type == "MoE" for one in node.attribute):
        attribute.i *= attribute.name != "normalize_routing_weights"
    assert verification._with_defect("", graphcut.load(plain), [(right,)]) == ""
    assert "computes from zeros" in verification._with_defect("", graphcut.load(plain), [(right, wrong)])


@pytest.mark.parametrize("mode", ["exact", "sum"])
def test_half_precision_is_divided_alike_and_compared_with_its_tolerance(mode: RankMode, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "model.onnx", layers=2, external=None, dtype="float16")
    made = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=(2, 1), mode=mode)
    assert made.divided_share > 0.95
    report = graphcut.verify(tmp_path / "model.onnx", made.path)
    assert report.same
    assert "half precision" in report.reason


def test_a_constant_node_with_its_values_in_a_file_is_compared_too(tmp_path: Path) -> None:
    path = HAZARDS["external_data"]().write(tmp_path)
    made = shard(path, tmp_path / "sharded.onnx", ranks=2, mode="sum").path
    assert graphcut.verify(path, made)
    proto = onnx.load(made)
    constant = next(one for one in proto.graph.node if one.op_type == "Constant").attribute[0].t
    constant.raw_data = bytes(len(constant.raw_data))
    onnx.save(proto, made)
    assert not graphcut.verify(path, made, structural_only=True)
