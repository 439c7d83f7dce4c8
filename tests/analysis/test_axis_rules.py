"""The rule table says what ONNX Runtime does: found again by running each operator on halves of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from axis_cases import CASES, Array, Case
from onnx import ValueInfoProto, helper, numpy_helper

from graphcut.analysis.axes.factors import Bounds, Factor, Parts, Place, Sizes
from graphcut.analysis.axes.rules import RULES, factors_of
from graphcut.loading.model import load
from graphcut.loading.operations import Operation, operations_of

from conftest import ORT_VERSION

COUNTS = ("num_heads", "kv_num_heads", "q_num_heads", "group", "num_groups", "N", "K")
Values = dict[int, Array]
Way = tuple[frozenset[tuple[int, int]], tuple[tuple[int, int], ...], frozenset[str]]
"""A way to halve a node: axes of inputs, axes of outputs (none: they are added), attributes that are halved."""


def values_of(case: Case) -> Values:
    rng = np.random.default_rng(len(case.title))
    made = {}
    for slot, data in enumerate(case.inputs):
        if isinstance(data, tuple):
            made[slot] = (rng.uniform(0.1, 0.9, data)).astype(np.float32)
        elif data is not None:
            made[slot] = np.asarray(data)
    return made


def model_bytes(case: Case, values: Values, attributes: Mapping[str, Any]) -> bytes:
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
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def run(case: Case, values: Values, attributes: Mapping[str, Any]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model_bytes(case, values, attributes), options, ["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, {f"x{s}": v for s, v in values.items() if s not in case.constants})
    return outputs


def discovered(case: Case) -> set[Way]:
    """The smallest ways in which halves of the inputs give halves, or summands, of all outputs."""
    values = values_of(case)
    whole = run(case, values, case.attributes)
    free = [slot for slot in values if slot not in case.constants]
    choices = [[None, *(axis for axis, size in enumerate(values[slot].shape) if size % 2 == 0)] for slot in free]
    counts = [name for name in COUNTS if case.attributes.get(name, 1) % 2 == 0]
    subsets = list(chain.from_iterable(combinations(counts, n) for n in range(len(counts) + 1)))
    found: set[Way] = set()
    for axes, halved in product(product(*choices), subsets):
        chosen = {slot: axis for slot, axis in zip(free, axes, strict=True) if axis is not None}
        if chosen and (places := joined(case, values, chosen, halved, whole)) is not None:
            found.add((frozenset(chosen.items()), places, frozenset(halved)))
    return {way for way in found if not any(is_within(other, way) for other in found if other != way)}


def is_within(small: Way, large: Way) -> bool:
    return small[0] <= large[0] and small[1] == large[1] and small[2] <= large[2]


def joined(
    case: Case, values: Values, chosen: Mapping[int, int], halved: Sequence[str], whole: Sequence[Array]
) -> tuple[tuple[int, int], ...] | None:
    """The axes of the outputs along which those of two halves are the whole; empty if they add up to it."""
    attributes = {name: value // 2 if name in halved else value for name, value in case.attributes.items()}
    try:
        first, second = (
            run(case, values | {s: np.split(values[s], 2, axis)[half] for s, axis in chosen.items()}, attributes)
            for half in (0, 1)
        )
    except Exception:  # noqa: BLE001 - ONNX Runtime refuses this way
        return None
    if len(whole) == 1 and is_equal([first[0] + second[0]], whole):
        return ()
    places = []
    for i, (a, b, want) in enumerate(zip(first, second, whole, strict=True)):
        axes = [axis for axis in range(want.ndim) if is_concatenation(a, b, want, axis)]
        if not axes:
            return None
        places.append((i, axes[0]))
    return tuple(places)


def is_concatenation(a: Array, b: Array, want: Array, axis: int) -> bool:
    return a.ndim == b.ndim == want.ndim and is_equal([a, b], [*np.split(want, [a.shape[axis]], axis)])


def is_equal(found: Sequence[Array], want: Sequence[Array]) -> bool:
    pairs = list(zip(found, want, strict=True))
    return all(a.shape == b.shape for a, b in pairs) and all(
        np.allclose(a, b, 1e-4, 1e-4, equal_nan=True) for a, b in pairs
    )


def operation_of(case: Case) -> Operation:
    import onnx

    model = onnx.load_from_string(model_bytes(case, values_of(case), case.attributes))
    return operations_of(load(model))[-1]


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_table_has_every_way_in_which_onnx_runtime_can_be_halved_and_no_other(case: Case) -> None:
    found = {way for way in discovered(case) if not way[1] or way[1][0][1] not in case.unused}
    operation = operation_of(case)
    factors = [factor for factor in factors_of(operation) if has_halves(operation, factor)]
    # A constant that changes with the number of units need not, where it is -1 for example.
    assert {way_of(factor) for factor in factors if factor.change is None} <= found
    assert found <= {way_of(factor) for factor in factors}


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
        case Sizes(slot):
            (place,) = factor.writes
            shape = operation.written() or ()
            values[slot] = np.array(shape, np.int64)
            values[slot][place.axis] = values[slot][place.axis] * share[0] // share[1]
        case Parts(slot) if operation.has(slot):
            values[slot] = values[slot] * share[0] // share[1]
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
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


def test_every_rule_has_a_case() -> None:
    tried = {f"{case.domain}.{case.op}" if case.domain else case.op for case in CASES}
    refused = {"com.microsoft.QMoE"} if ORT_VERSION <= (1, 24) else set()
    assert set(RULES) - tried == {"com.microsoft.DequantizeLinear", "com.microsoft.QuantizeLinear"} | refused
