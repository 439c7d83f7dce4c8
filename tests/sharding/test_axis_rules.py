"""The rule table says what ONNX Runtime does: found again by running each operator on halves of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from axis_cases import CASES, Array, Case, ints, microsoft, small
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper
from operator_runs import OperatorRuns

from graphcut.loading.opening import load
from graphcut.loading.operations import Operation, operations_of
from graphcut.sharding.axes.factors import Bounds, Factor, Place, ShapeInput, SplitSizes, fixed
from graphcut.sharding.axes.rules import RULES, factors_of
from graphcut.sharding.axes.rules.shapes import _runs

from cases import each
from conftest import ORT_VERSION, floats, model_of

Values = dict[int, Array]
Way = tuple[frozenset[tuple[int, int]], tuple[tuple[int, int], ...], frozenset[str]]
"""A way to halve a node: axes of inputs, axes of outputs (none: they are added), attributes that are halved."""


def values_of(case: Case, seed: int = 0) -> Values:
    rng = np.random.default_rng([len(case.title), seed])
    made = {}
    for slot, data in enumerate(case.inputs):
        if isinstance(data, tuple):
            made[slot] = (rng.uniform(0.1, 0.9, data)).astype(np.float32)
        elif data is not None:
            made[slot] = np.asarray(data)
    return made


def model_with(case: Case, values: Values, attributes: Mapping[str, Any]) -> ModelProto:
    names = [f"x{slot}" if slot in values else "" for slot in range(len(case.inputs))]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **attributes)
    inputs, weights = [], []
    for slot, value in values.items():
        if slot in case.constants:
            weights.append(numpy_helper.from_array(value, f"x{slot}"))
        else:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(f"x{slot}", kind, value.shape))
    graph = helper.make_graph([node], "case", inputs, [ValueInfoProto(name=name) for name in outputs], weights)
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(case: Case, values: Values) -> dict[str, Array]:
    return {f"x{slot}": value for slot, value in values.items() if slot not in case.constants}


def run(case: Case, values: Values, attributes: Mapping[str, Any]) -> list[Array]:
    return OperatorRuns(model_with(case, values, attributes)).run(feeds_of(case, values))


def discovered(case: Case) -> tuple[Factor, ...]:
    """What running the operator shows."""
    runs = OperatorRuns(model_with(case, values_of(case), case.attributes))
    return runs.factors([feeds_of(case, values_of(case, seed)) for seed in (0, 1)])


def is_equal(found: Sequence[Array], want: Sequence[Array]) -> bool:
    pairs = list(zip(found, want, strict=True))
    return all(a.shape == b.shape for a, b in pairs) and all(
        np.allclose(a, b, 1e-4, 1e-4, equal_nan=True) for a, b in pairs
    )


def operation_of(case: Case) -> Operation:
    return operations_of(load(model_with(case, values_of(case), case.attributes)))[-1]


def has_halves(operation: Operation, factor: Factor) -> bool:
    """Whether halves of a factor are halves of axes."""
    has_segments = any(place.segments for place in (*factor.reads, *factor.writes))
    is_biased = any(operation.has(slot) for slot in factor.once)
    return factor.units % 2 == 0 and not has_segments and not is_biased


def way_of(factor: Factor) -> Way:
    return (
        frozenset((place.slot, place.axis) for place in factor.reads),
        tuple((place.slot, place.axis) for place in factor.writes),
        frozenset(factor.counts),
    )


@each("case", CASES)
def test_the_table_has_every_way_in_which_onnx_runtime_can_be_halved_and_no_other(case: Case) -> None:
    units = {way_of(factor): factor.units for factor in discovered(case)}
    found = {way for way in units if not way[1] or way[1][0][1] not in case.unused}
    operation = operation_of(case)
    factors = [factor for factor in factors_of(operation) if has_halves(operation, factor)]
    # A constant that changes with the number of units need not, where it is -1 for example.
    assert {way_of(factor) for factor in factors if factor.change is None} <= found
    assert found <= {way_of(factor) for factor in factors}
    assert all(units.get(way_of(factor), factor.units) % factor.units == 0 for factor in factors)


def divided(case: Case, operation: Operation, factor: Factor, units: slice) -> list[Array]:
    """What ONNX Runtime computes from these units of a factor."""
    values, attributes = values_of(case), dict(case.attributes)
    share = len(range(factor.units)[units]), factor.units
    for place in factor.reads:
        values[place.slot] = units_of(values[place.slot], place, factor.units, units)
    for name in factor.counts:
        count = attributes[name]
        numbers = [n * share[0] // share[1] for n in (count if isinstance(count, list) else [count])]
        attributes[name] = numbers if isinstance(count, list) else numbers[0]
    for slot in factor.once if units.start else ():
        values.pop(slot, None)
    change_constants(operation, factor, values, share)
    return run(case, values, attributes)


def units_of(value: Array, place: Place, all_units: int, units: slice) -> Array:
    sizes = place.segments or (value.shape[place.axis],)
    segments = np.split(value, np.cumsum(sizes)[:-1], place.axis)
    runs = [np.split(segment, all_units, place.axis)[units] for segment in segments]
    return np.concatenate([piece for run in runs for piece in run], place.axis)


def change_constants(operation: Operation, factor: Factor, values: Values, share: tuple[int, int]) -> None:
    match factor.change:
        case ShapeInput(slot):
            (place,) = factor.writes
            shape = operation.written() or ()
            values[slot] = np.array(shape, np.int64)
            values[slot][place.axis] = values[slot][place.axis] * share[0] // share[1]
        case SplitSizes() if operation.has(1):
            values[1] = values[1] * share[0] // share[1]
        case Bounds(element):
            start, end, size = *(int(values[slot][element]) for slot in (1, 2)), values_size(operation, factor)
            start, end, _ = slice(start, end).indices(size)
            for slot, position in ((1, start), (2, end)):
                values[slot] = values[slot].copy()
                values[slot][element] = position * share[0] // share[1]


def values_size(operation: Operation, factor: Factor) -> int:
    size = (operation.read(0) or ())[factor.reads[0].axis]
    assert isinstance(size, int)
    return size


@each("case", CASES)
def test_every_factor_divides_into_a_first_unit_and_the_others(case: Case) -> None:
    whole, operation = run(case, values_of(case), case.attributes), operation_of(case)
    for factor in factors_of(operation):
        cut = factor.units // 2
        pieces = [divided(case, operation, factor, units) for units in (slice(0, cut), slice(cut, factor.units))]
        if factor.is_contracted:
            assert is_equal([pieces[0][0] + pieces[1][0]], whole), factor
        for place in factor.writes:
            halves = (slice(0, cut), slice(cut, factor.units))
            want = [units_of(whole[place.slot], place, factor.units, units) for units in halves]
            assert is_equal([piece[place.slot] for piece in pieces], want), factor


def test_channels_of_one_element_are_divided_in_fours() -> None:
    """ONNX Runtime multiplies a matrix by a vector four rows at a time."""
    cases = [Case("Conv", ((1, 4, size, size), (8, 4, 1, 1))) for size in (1, 2)]
    factors = [factor for case in cases for factor in factors_of(operation_of(case))]
    assert [factor.units for factor in factors if factor.writes == (Place(0, 1),)] == [8 // 4, 8 // 2]


def test_channels_are_divided_by_the_least_prime_up_to_seven_or_not_at_all() -> None:
    cases = [Case("Conv", ((1, 4, 2, 2), (channels, 4, 1, 1))) for channels in (6, 15, 25, 49, 121)]
    factors = [factor for case in cases for factor in factors_of(operation_of(case))]
    assert [factor.units for factor in factors if factor.writes == (Place(0, 1),)] == [3, 5, 5, 7]


def test_a_reshape_divides_the_first_axis_that_it_joins_or_the_heads_after_queries_keys_and_values() -> None:
    shapes = ((3, 4), (12,)), ((3, 4, 2), (24,)), ((24,), (3, 4, 2)), ((0, 4, 6, 5), (0, 24, 5)), ((0, 6), (4, 6))
    found = [_runs([*a], [*b]) for a, b in shapes]  # 0 is an unknown size
    from_front = [([0, 1], [0])], [([0, 1, 2], [0])], [([0], [0, 1, 2])]
    assert [*map(list, found)] == [*from_front, [([3], [2]), ([1, 2], [1])], [([1], [1])]]
    cases = [Case("Reshape", (a, ints(*b)), constants=(1,)) for a, b in shapes[:3]]
    assert [factor.units for case in cases for factor in factors_of(operation_of(case))] == [3, 4, 4]


def test_a_third_product_of_experts_is_divided_with_all_that_belongs_to_an_inner_element() -> None:
    """ONNX Runtime has it on a GPU alone. Axes of 8 elements, or of 4 bytes of two each, are of inner elements."""
    plain, coded = ((3, 8, 5), (3, 8)), (small(3, 8, 5), (3, 8), (3, 8))
    cases = [
        microsoft("MoE", ((1, 5), (1, 3), *plain, (3, 5, 8), (3, 5), *plain)),
        microsoft("QMoE", ((1, 10), (1, 3), *coded, small(3, 10, 4), (3, 10), (3, 10), *coded)),
    ]
    for case in cases:
        shapes = enumerate(operation_of(case).reads)
        inner = {(slot, axis) for slot, shape in shapes for axis, size in enumerate(shape or ()) if size in {4, 8}}
        contracted = [factor for factor in factors_of(operation_of(case)) if factor.is_contracted]
        assert [{(slot, axis) for slot, axis, *_ in factor.reads} for factor in contracted] == [inner]


def test_an_axis_that_a_slice_cuts_is_divided_in_what_is_before_inside_and_behind() -> None:
    case = Case("Slice", ((8, 3), ints(2), ints(6), ints(0)), constants=(1, 2, 3))
    (cut,) = (factor for factor in factors_of(operation_of(case)) if factor.change == Bounds(0))
    assert (cut.units, cut.reads[0].segments, cut.writes) == (2, (2, 4, 2), (Place(0, 0, labels=(1,)),))


_CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}


@pytest.mark.parametrize(
    ("case", "axes"),
    [
        (Case("CumSum", ((4, 6), ints(1))), set()),  # an axis that is computed
        (Case("Slice", ((6, 8), ints(2), ints(6), ints(1)), constants=(2, 3)), set()),
        (Case("Slice", ((6, 8), ints(2), ints(6), ints(1), ints(1)), constants=(1, 2, 3)), set()),
        (Case("Pad", ((4, 6), ints(0, 1, 0, 0))), set()),
        (Case("Pad", ((4, 6), ints(0, 1, 0, 0), None, ints(1, 0)), constants=(1, 3)), set()),
        (Case("Tile", ((4, 6), ints(2, 1))), set()),
        (Case("Tile", ((4, 6), ints(2, 17)), constants=(1,)), {0}),
        (Case("Expand", ((4, 6), ints(6)), constants=(1,)), set()),  # its element 0 is the size of axis 1
        (Case("MaxPool", ((2, 4, 5, 5),), {"kernel_shape": [3, 3]}, outputs=2), set()),  # places in the whole tensor
        (Case("Resize", ((2, 4, 3, 3), None, None, ints(5, 5)), {"axes": [2, 3]}, constants=(3,)), set()),
        (Case("Resize", ((2, 4, 3, 3), (8,), None, ints(2, 4, 5, 5)), _CROP, constants=(3,)), set()),
        (Case("Dropout", ((4, 6),), outputs=2), {0, 1}),
        (Case("BatchNormalization", ((4,), (1,), (1,), (1,), (1,))), set()),  # of one channel
        (Case("Einsum", ((4, 4),), {"equation": "ii->i"}), set()),
        (Case("Einsum", ((4, 6), (6, 8)), {"equation": "ij,jk"}), set()),
        (Case("Einsum", ((4, 6),), {"equation": "...i->...i"}), set()),
        (Case("Einsum", ((4, 1), (8, 6)), {"equation": "ij,jk->ik"}), {0, 1}),  # j is repeated
    ],
)
def test_an_axis_is_whole_where_it_is_computed_or_elements_depend_on_it(case: Case, axes: set[int]) -> None:
    factors = factors_of(operation_of(case))
    assert {place.axis for factor in factors for place in factor.writes} == axes
    assert not any(factor.is_contracted for factor in factors)


Axes = Sequence[int | str] | None
SUM = -1  #: an axis that is contracted.


def factors_with(op: str, reads: Sequence[Axes], written: Sequence[int | str], **attributes: int) -> Sequence[Factor]:
    """The factors of a node with inputs of these shapes, None for an omitted one."""
    name, _, kind = op.rpartition(".")
    names = [f"x{slot}" * (shape is not None) for slot, shape in enumerate(reads)]
    node = helper.make_node(kind, names, ["y"], "", "", name, None, **attributes)
    inputs = [floats(f"x{slot}", *shape) for slot, shape in enumerate(reads) if shape is not None]
    (operation,) = operations_of(load(model_of([node], inputs, [floats("y", *written)], opset=24)))
    return factors_of(operation)


_ROWS = (1, 3, 32)
_OF_KEYS = (1, 2, 5, 8)
_OPEN = (1, 3, "w")


@pytest.mark.parametrize(
    ("op", "reads", "written", "attributes", "axes"),
    [
        ("Gemm", [(4, 6), (6, 8), ("c",)], (4, 8), {}, {0, SUM}),  # a bias for each column or one for all
        ("ReduceSum", [(4, 6), (1,)], (4, 1), {}, set()),  # axes that are computed
        ("QLinearMatMul", [(2, 3, 4), (), (), (2, 4, 8), (8,), (8,), (), ()], (2, 3, 8), {}, set()),
        ("MatMulInteger", [(2, 3, 4), (2, 4, 8)], (2, 3, 8), {}, set()),
        ("ConvInteger", [(1, 4, 5, 5), (8, 2, 3, 3)], (1, 8, 3, 3), {"group": 2}, set()),
        ("com.microsoft.MatMulNBits", [(3, 64), (6, 2, 16), (6, 2)], (3, 6), {"N": 6}, set()),
        ("com.microsoft.MatMulNBits", [(3, 64), (8, 2, 16), (8, 2), None, (64,)], (3, 8), {"N": 8}, {1}),  # in an order
        ("com.microsoft.MatMulNBits", [(3, 64), (8, 2, 16), (8, 2), (8, 1)], (3, 8), {"N": 8}, {1}),  # both in a byte
        ("com.microsoft.MoE", [(2, 5), (2, 3), (3, 8, 5), None, (3, 5, 8)], (2, 5), {"swiglu_fusion": 1}, set()),
        ("com.microsoft.MoE", [(2, 5), (2, 3), (3, 8, 5), *[None] * 5, (3,)], (2, 5), {}, set()),
        ("com.microsoft.GroupQueryAttention", [_ROWS, _ROWS, _ROWS], _ROWS, {"kv_num_heads": 4}, {2}),
        ("com.microsoft.GroupQueryAttention", [_ROWS, _ROWS, _ROWS], _ROWS, {"kv_num_heads": 3}, set()),
        ("com.microsoft.GroupQueryAttention", [_OPEN, _ROWS, _ROWS], _OPEN, {"kv_num_heads": 4}, set()),
        ("com.microsoft.GroupQueryAttention", [_ROWS, *[None] * 11, (1,)], _ROWS, {"kv_num_heads": 4}, set()),
        ("com.microsoft.MultiHeadAttention", [_ROWS, _ROWS, _ROWS, *[None] * 6, (1, 1, 1)], _ROWS, {}, set()),
        ("com.microsoft.MultiHeadAttention", [_ROWS, (1, 4, 5, 8), (1, 4, 5, 8), (96,)], _ROWS, {}, set()),
        ("com.microsoft.Attention", [_ROWS, (32, 96), (96,), *[None] * 3, (1,)], _ROWS, {}, set()),
        ("com.microsoft.Attention", [_ROWS, (32, "w"), (96,)], _ROWS, {}, set()),
        ("Attention", [(1, 4, 3, 8), _OF_KEYS, _OF_KEYS, *[None] * 3, (1,)], (1, 4, 3, 8), {}, set()),
        ("Attention", [(1, 4, 3, 8), (1, "k", 5, 8), _OF_KEYS], (1, 4, 3, 8), {}, set()),
        ("Attention", [(1, 3, 3, 8), _OF_KEYS, _OF_KEYS], (1, 3, 3, 8), {}, set()),
    ],
)
def test_products_and_heads_are_whole_where_other_inputs_do_not_tell_how_they_are_divided(
    op: str, reads: Sequence[Axes], written: Sequence[int | str], attributes: dict[str, int], axes: set[int]
) -> None:
    sizes = {"K": 64, "block_size": 32} if "NBits" in op else {"num_heads": 4} if op.startswith("com") else {}
    factors = factors_with(op, reads, written, **sizes, **attributes)
    assert {place.axis for factor in factors for place in factor.writes or (Place(0, SUM),)} == axes


@pytest.mark.parametrize(
    ("op", "reads", "written"),
    [
        ("Gemm", [(4,), (4, 8)], (8,)),
        ("MatMul", [(), (4, 8)], (8,)),
        ("Conv", [(4,), (8, 4)], (8, 4)),
        ("com.microsoft.GroupQueryAttention", [(3, 32), (3, 32), (3, 32)], (3, 32)),
    ],
)
def test_a_node_that_no_runtime_takes_is_whole(op: str, reads: Sequence[Axes], written: Sequence[int]) -> None:
    """Of fewer axes than its operator needs. That the model is not valid is said where it runs."""
    counts = {"num_heads": 4, "kv_num_heads": 4} if "Group" in op else {}
    assert factors_with(op, reads, written, **counts) == []


def test_a_node_with_a_tensor_of_unknown_rank_is_whole() -> None:
    """What is declared of the output does not tell along which axes it has the elements of the input."""
    node = helper.make_node("Add", ["x", "b"], ["y"])
    model = model_of([node], [helper.make_tensor_value_info("x", 1, None), floats("b", 4, 8)], [floats("y", 4, 8)])
    assert factors_of(operations_of(load(model))[0]) == []


def test_sizes_of_a_split_that_are_computed_can_not_be_those_of_a_rank() -> None:
    node = helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1)
    sizes = helper.make_tensor_value_info("sizes", 7, [2])
    model = model_of([node], [floats("x", 4, 6), sizes], [floats("a", 4, 4), floats("b", 4, 2)])
    assert [factor.writes for factor in factors_of(operations_of(load(model))[0])] == [(Place(0, 0), Place(1, 0))]


def test_an_output_of_a_split_that_is_omitted_leaves_it_whole() -> None:
    node = helper.make_node("Split", ["x"], ["a", ""], axis=1, num_outputs=2)
    assert factors_of(operations_of(load(model_of([node], [floats("x", 4, 6)], [floats("a", 4, 3)])))[0]) == []


def test_scales_of_blocks_of_an_inner_width_are_divided_with_it() -> None:
    """16 elements, in two blocks of 8, which each scale of the second product is for."""
    reads = (1, 32), (1, 3), (3, 16, 16), (3, 16, 4), None, (3, 32, 8), (3, 32, 2)
    (factor,) = factors_with("com.microsoft.QMoE", reads, (1, 32), block_size=8)
    assert (factor.units, Place(6, 2) in factor.reads) == (2, True)


def test_axes_of_one_element_or_of_unknown_size_are_never_divided() -> None:
    assert [fixed(dim) for dim in (2, 1, 0, "n", None)] == [2, 0, 0, 0, 0]


def test_every_rule_has_a_case() -> None:
    tried = {f"{case.domain}.{case.op}" if case.domain else case.op for case in CASES}
    refused = {"com.microsoft.QMoE", "QLinearConv"} if ORT_VERSION <= (1, 24) else set()
    assert set(RULES) - tried == {"com.microsoft.DequantizeLinear", "com.microsoft.QuantizeLinear"} | refused
