"""How much two values differ, and the memory that finding out takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphcut.core.tensors import Tensor
from graphcut.running.values import to_value
from graphcut.verifying.differences import Error, are_identical, decibels, difference, error_between, flatten, largest

from cases import each

Array = NDArray[Any]
INFINITE = float("inf")
F16, F32, F64 = np.float16, np.float32, np.float64
TINY = np.nextafter(F32(0), F32(1))


def arrays(left: object, right: object, dtype: type[np.generic] = F32) -> tuple[Array, Array]:
    return np.asarray(left, dtype), np.asarray(right, dtype)


@each(
    ("pair", "expected"),
    [
        (arrays([1, 2], [1, 2]), (0.0, 0.0, 0)),
        (arrays([1, 2], [1, 2.5]), (0.5, 0.25, 2**21)),
        (arrays([4, -1], [4, -3]), (2.0, 2.0, 3 * 2**22)),
        (arrays(1, np.nextafter(F32(1), F32(2))), (2.0**-23, 2.0**-23, 1)),
        (arrays(1, np.nextafter(1, 2), F64), (2.0**-52, 2.0**-52, 1)),
        (arrays(1, 1 + 2.0**-10, F16), (2.0**-10, 2.0**-10, 1)),
        (arrays(-TINY, TINY), (2 * float(TINY), 2.0, 2)),
        (arrays(0, 1), (1.0, INFINITE, 0x3F800000)),
        (arrays(np.nan, np.nan), (0.0, 0.0, 0)),
        (arrays(np.inf, np.inf), (0.0, 0.0, 0)),
        (arrays([], []), (0.0, 0.0, 0)),
        (arrays([3, 9], [3, 6], np.int32), (3.0, 1 / 3, 0)),
        (arrays(0, 255, np.uint8), (255.0, INFINITE, 0)),
        (arrays([True], [False], np.bool_), (1.0, 1.0, 0)),
        (arrays(3 + 4j, 3 + 3j, np.complex64), (1.0, 0.2, 0)),
    ],
)
def test_a_difference_is_as_computed_by_hand(pair: tuple[Array, Array], expected: tuple[float, float, int]) -> None:
    max_abs, max_rel, ulps = difference([pair[0]], [pair[1]])
    assert (max_abs, ulps) == (expected[0], expected[2])
    assert max_rel == pytest.approx(expected[1], rel=1e-12)


@each(
    "pair",
    [
        arrays(1, np.nan),
        arrays(np.nan, 1),
        arrays(np.inf, -np.inf),
        arrays(np.inf, 1),
        arrays([1, 2], [[1, 2]]),
        arrays([1], [1, 1]),
        (np.ones(1, F32), np.ones(1, F64)),
        (np.array(["a"], object), np.array(["b"], object)),
    ],
)
def test_differences_that_no_tolerance_allows_are_infinite(pair: tuple[Array, Array]) -> None:
    assert difference([pair[0]], [pair[1]])[0] == INFINITE


def test_sequences_of_different_lengths_differ_infinitely() -> None:
    tensor = Tensor(name="s", dtype="sequence(float32)", shape=None)
    one, two = (flatten([np.ones(1, F32)] * length, tensor) for length in (1, 2))
    assert difference(one, two) == (INFINITE, INFINITE, 0)
    assert difference(two, two) == (0.0, 0.0, 0)


def test_maps_are_compared_key_by_key() -> None:
    tensor = Tensor(name="m", dtype="sequence(map(int64, float32))", shape=None)
    ours, theirs = (flatten([{2: 0.5, 1: value}], tensor) for value in (0.25, 0.75))
    assert difference(ours, theirs)[0] == 0.5


@each(
    ("left", "right", "dtype", "expected"),
    [
        (2**60, 2**60 + 1, np.int64, (1.0, 2.0**-60, 0)),
        (-(2**63), 2**63 - 1, np.int64, (2.0**64, 2.0, 0)),
        (2**64 - 1, 2**64 - 2, np.uint64, (1.0, 2.0**-64, 0)),
        ([-3, 0], [3, 0], np.int8, (6.0, 2.0, 0)),
    ],
)
def test_integers_are_compared_exactly(
    left: object, right: object, dtype: type[np.generic], expected: tuple[float, float, int]
) -> None:
    """Also where a difference needs more bits than float64 has."""
    assert difference(*([array] for array in arrays(left, right, dtype))) == expected


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=1, max_size=9))
def test_differences_of_integers_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array(numbers, np.int64) for numbers in zip(*pairs, strict=True))
    gaps = [(abs(a - b), abs(a)) for a, b in pairs]
    relative = max(0.0 if gap == 0 else gap / size if size else INFINITE for gap, size in gaps)
    found = difference([left], [right])
    assert (found[0], found[2]) == (float(max(gap for gap, _ in gaps)), 0)
    assert found[1] == pytest.approx(relative, rel=1e-15)


@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=9))
def test_ulps_count_the_numbers_between(pairs: list[tuple[float, float]]) -> None:
    """Of the bits of a double, read as an integer, negative ones count down from zero."""

    def steps(number: float) -> int:
        bits = int(np.float64(number).view(np.int64))
        return bits if bits >= 0 else -(2**63) - bits

    left, right = (np.array(numbers, np.float64) for numbers in zip(*pairs, strict=True))
    assert difference([left], [right])[2] == max(abs(steps(a) - steps(b)) for a, b in pairs)


def test_keys_must_be_equal() -> None:
    """A key is a name, not a number: 151000 and 151001 are two tokens, and no tolerance makes them one."""
    tensor = Tensor(name="m", dtype="sequence(map(int64, float32))", shape=None)
    ours, theirs = (flatten([{key: 1e6}], tensor) for key in (151000, 151001))
    assert difference(ours, theirs)[0] == INFINITE


def test_the_next_bfloat16_is_one_ulp_away() -> None:
    """1.0 and the next number, as bits."""
    tensor = Tensor(name="b", dtype="bfloat16", shape=(1,))
    one, following = (flatten(np.array([bits], np.uint16), tensor) for bits in (0x3F80, 0x3F81))
    assert difference(one, following) == (2.0**-7, 2.0**-7, 1)


@each("dtype", [F16, F32, F64, np.complex64, np.int8, np.int64, np.uint64])
def test_comparing_takes_less_than_32_mib_however_large_the_tensors_are(dtype: type[np.generic]) -> None:
    shape = (16, 1 << 18)
    tensor = Tensor(name="a", dtype=np.dtype(dtype).name, shape=shape)
    ours, theirs = (np.full(shape, number, dtype) for number in (1, 3))
    items = flatten(ours, tensor), flatten(theirs, tensor)
    tracemalloc.start()
    assert not are_identical(*items)
    assert difference(*items)[:2] == (2.0, 2.0)
    assert largest(items[1]) == 3.0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 32 << 20


def test_values_of_onnx_runtime_are_compared_where_they_are() -> None:
    array = np.arange(1 << 20)
    tensor = Tensor(name="a", dtype="int64", shape=None)
    value = to_value(array, tensor)
    tracemalloc.start()
    _, *chunks = flatten(value, tensor)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(np.concatenate(chunks), array)
    assert peak_bytes < 1 << 16


def test_large_arrays_of_other_shapes_or_types_differ_infinitely() -> None:
    tensor = Tensor(name="a", dtype="float32", shape=None)
    wide, tall = (flatten(np.ones(shape, F32), tensor) for shape in ((3, 1 << 18), (1 << 18, 3)))
    double = flatten(np.ones((3, 1 << 18), F64), tensor)
    assert difference(wide, tall)[0] == difference(wide, double)[0] == INFINITE
    assert not are_identical(wide, tall)
    assert are_identical(wide, wide)


def test_the_error_of_a_large_value_is_that_of_all_its_chunks() -> None:
    value = np.ones(300_000, np.float32)
    other = value.copy()
    other[[0, 200_000, 299_999]] = 3, 0, np.nan
    tensor = Tensor(name="x", dtype="float32", shape=None)
    assert error_between(flatten(value, tensor), flatten(other, tensor)) == Error(300_000, 2.0**2 + 1, 1)


@pytest.mark.parametrize("shapes", [((4,), (1, 4)), ((300_000,), (4,)), ((4,), (300_000,)), ((2, 150_000), (300_000,))])
def test_a_value_of_another_shape_has_an_infinite_error(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    one, two = (flatten(np.ones(shape, np.float32), Tensor(name="x", dtype="float32", shape=None)) for shape in shapes)
    assert error_between(one, two).relative == INFINITE


def test_an_optional_value_that_is_not_there_differs_from_one_that_is() -> None:
    tensor = Tensor(name="x", dtype="optional(float32)", shape=None)
    nothing, something = flatten(None, tensor), flatten(np.ones(2, np.float32), tensor)
    assert (are_identical(nothing, nothing), are_identical(nothing, something)) == (True, False)


def test_a_number_counts_unless_it_is_a_mask_on_both_sides() -> None:
    """Of which the others are at most 100."""
    one, two = np.array([1, 1e5, 1e5, 3], np.float64), np.array([2, 2e5, 3, 1e5], np.float64)
    gap = (1e5 - 3) ** 2
    assert error_between([one], [two], 100) == Error(1 + 1e10 + 9, 1 + 2 * gap, 0)


def test_a_ratio_is_in_decibels_of_the_root_of_noise_over_signal() -> None:
    assert [decibels(ratio) for ratio in (0, 0.001, 1, 10, INFINITE)] == [INFINITE, 60, 0, -20, -INFINITE]
    assert [Error(*one).relative for one in ((100, 4, 0), (100, 4, 1), (0, 4, 0), (0, 0, 0))] == [
        0.2,
        *[INFINITE] * 2,
        0,
    ]


def test_the_largest_number_of_a_value_is_finite() -> None:
    assert largest([(3,), np.array([1, -7, np.inf]), np.array([np.nan, 2.5])]) == 7
    assert (largest([]), largest([np.array([])])) == (0, 0)
