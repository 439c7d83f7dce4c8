"""Tensor edges between units, the dependency maps of LinguaLinked, and the bytes of a tensor."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcut import GraphcutError, Tensor, TensorEdge, Wiring
from graphcut.core.tensors import BITS, Dim
from graphcut.core.wiring import run_phases, wire

from cases import each


@dataclass(frozen=True)
class Row:
    """A unit."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def row(text: str) -> Row:
    """`"x a > b"` reads x and a, and writes b."""
    reads, _, writes = text.partition(">")
    return Row(tuple(reads.split()), tuple(writes.split()))


def wired(*rows: str, reads: str = "x", writes: str = "y") -> Wiring:
    return wire([row(text) for text in rows], reads=reads.split(), writes=writes.split())


def refusal(*rows: str, reads: str = "x", writes: str = "y") -> str:
    with pytest.raises(GraphcutError) as caught:
        wired(*rows, reads=reads, writes=writes)
    return str(caught.value)


def test_what_runs_once_at_each_step_and_at_the_end() -> None:
    """Of the first two nothing changes, and no step reads the second; the last reads what the step makes."""
    units = [row(text) for text in ("text > said", "text > title", "noise said > next", "next > picture")]
    for has_end, phases in ((True, (0, 0, 1, 2)), (False, (0, 0, 1, 1))):
        assert run_phases(units, ["noise"], ["next"], has_end=has_end) == phases


def test_the_sequential_and_the_residual_map() -> None:
    """Four subgraphs as in LinguaLinked: a chain, and two residual connections that skip units."""
    wiring = wired("x > h0 mask", "h0 mask > h1", "h1 h0 > h2", "h2 mask h0 > y")
    assert wiring.sequential == {0: {1: ("h0", "mask")}, 1: {2: ("h1",)}, 2: {3: ("h2",)}}
    assert wiring.residual == {0: {2: ("h0",), 3: ("mask", "h0")}}
    assert wiring.boundary_tensors == {
        "h0": (0, (1, 2, 3)),
        "mask": (0, (1, 3)),
        "h1": (1, (2,)),
        "h2": (2, (3,)),
    }
    assert wiring.edges == (
        TensorEdge("x", None, 0),
        TensorEdge("h0", 0, 1),
        TensorEdge("mask", 0, 1),
        TensorEdge("h1", 1, 2),
        TensorEdge("h0", 0, 2),
        TensorEdge("h2", 2, 3),
        TensorEdge("mask", 0, 3),
        TensorEdge("h0", 0, 3),
        TensorEdge("y", 3, None),
    )


def test_inputs_and_outputs_of_the_model_are_in_neither_map() -> None:
    wiring = wired("x > a y1", "x a > y", writes="y1 y")
    assert (wiring.sequential, wiring.residual) == ({0: {1: ("a",)}}, {})
    assert TensorEdge("x", None, 1) in wiring.edges
    assert TensorEdge("y1", 0, None) in wiring.edges


def test_an_output_of_the_model_may_also_be_read_by_a_later_unit() -> None:
    wiring = wired("x > y", "y > z", writes="y z")
    assert wiring.edges == (
        TensorEdge("x", None, 0),
        TensorEdge("y", 0, 1),
        TensorEdge("y", 0, None),
        TensorEdge("z", 1, None),
    )


def test_an_input_that_is_an_output_has_an_edge_without_units() -> None:
    assert wired("x > y", writes="x y").edges[1:] == (TensorEdge("x", None, None), TensorEdge("y", 0, None))


def test_a_tensor_that_a_unit_reads_twice_has_one_edge() -> None:
    wiring = wired("x x > a", "a a > y", writes="y y")
    assert wiring.edges == (TensorEdge("x", None, 0), TensorEdge("a", 0, 1), TensorEdge("y", 1, None))


def test_without_units_there_are_only_edges_from_inputs_to_outputs() -> None:
    assert wired(writes="x").edges == (TensorEdge("x", None, None),)
    assert wired(writes="").edges == ()


def test_a_tensor_read_before_it_is_written_is_refused() -> None:
    assert refusal("a > y", "x > a") == "unit 0 reads 'a' before any unit writes it"
    assert refusal("x a > a y") == "unit 0 reads 'a' before any unit writes it"


def test_a_cycle_is_refused_in_every_order() -> None:
    cycle = ("x b > a", "a > b y")
    for rows in itertools.permutations(cycle):
        assert "before any unit writes it" in refusal(*rows)


@pytest.mark.parametrize(
    "rows",
    [
        ("x > a", "x > a y"),
        ("x > a a y",),
        ("> x y",),
    ],
)
def test_a_tensor_written_twice_is_refused(rows: tuple[str, ...]) -> None:
    assert "which is already written" in refusal(*rows)


def test_the_message_of_a_double_write_names_unit_and_tensor() -> None:
    assert refusal("x > a", "x > a y") == "unit 1 writes 'a', which is already written"


def test_an_output_that_no_unit_writes_is_refused() -> None:
    assert refusal("x > a") == "no unit writes 'y', an output of the model"


def test_a_unit_may_write_an_input_that_it_reads() -> None:
    """An input with a default may be an output too: a unit that reads it knows its value."""
    wiring = wired("x d > a", "a d > d y", reads="x d", writes="y d")
    assert [link for link in wiring.edges if link.tensor == "d"] == [
        TensorEdge("d", None, 0),
        TensorEdge("d", None, 1),
        TensorEdge("d", 1, None),
    ]
    assert wiring.boundary_tensors == {"a": (0, (1,))}


def test_a_unit_may_not_write_what_another_unit_wrote() -> None:
    """Two writers of one tensor would be ambiguous."""
    assert refusal("x > a", "a > a", "a > y") == "unit 1 writes 'a', which is already written"


def test_two_units_may_not_both_write_an_input() -> None:
    assert refusal("x > x", "x > x y") == "unit 1 writes 'x', which is already written"


Rows = tuple[tuple[Row, ...], tuple[str, ...]]


@st.composite
def rows_in_order(draw: st.DrawFn) -> Rows:
    """Up to six units that read what stands and write what does not, and some outputs."""
    standing = ["x0", "x1"]
    units = []
    for place in range(draw(st.integers(0, 6))):
        reads = draw(st.lists(st.sampled_from(standing), max_size=4))
        writes = [f"t{place}.{i}" for i in range(draw(st.integers(0, 3)))]
        units.append(Row(tuple(reads), tuple(writes)))
        standing += writes
    return tuple(units), tuple(draw(st.lists(st.sampled_from(standing), max_size=3)))


@settings(deadline=None)
@given(rows_in_order())
def test_links_are_those_of_all_pairs(drawn: Rows) -> None:
    units, outputs = drawn
    wiring = wire(units, reads=("x0", "x1"), writes=outputs)
    sources: Sequence[tuple[int | None, tuple[str, ...]]] = [
        (None, ("x0", "x1")),
        *((i, unit.writes) for i, unit in enumerate(units)),
    ]
    targets: Sequence[tuple[int | None, tuple[str, ...]]] = [
        *((i, unit.reads) for i, unit in enumerate(units)),
        (None, outputs),
    ]
    naive = {
        TensorEdge(tensor, source, target)
        for (source, writes), (target, reads) in itertools.product(sources, targets)
        for tensor in set(writes) & set(reads)
    }
    assert len(wiring.edges) == len(set(wiring.edges))
    assert set(wiring.edges) == naive


@settings(deadline=None)
@given(rows_in_order())
def test_the_two_maps_and_the_boundary_tensors_tell_the_same_links(drawn: Rows) -> None:
    units, outputs = drawn
    wiring = wire(units, reads=("x0", "x1"), writes=outputs)
    inner = {link for link in wiring.edges if link.source is not None and link.target is not None}
    maps = [
        {
            TensorEdge(tensor, source, target)
            for source, row_ in found.items()
            for target, tensors in row_.items()
            for tensor in tensors
        }
        for found in (wiring.sequential, wiring.residual)
    ]
    assert maps[0] | maps[1] == inner
    assert maps[0] & maps[1] == set()
    assert {
        TensorEdge(t, source, reader) for t, (source, readers) in wiring.boundary_tensors.items() for reader in readers
    } == inner


@settings(deadline=None)
@given(rows_in_order(), st.randoms())
def test_another_order_is_refused_exactly_when_somebody_reads_too_early(drawn: Rows, chance: random.Random) -> None:
    units, outputs = drawn
    shuffled = list(units)
    chance.shuffle(shuffled)
    standing = {"x0", "x1"}
    is_early = False
    for unit in shuffled:
        is_early = is_early or not standing.issuperset(unit.reads)
        standing.update(unit.writes)
    if is_early:
        with pytest.raises(GraphcutError, match="before any unit writes it"):
            wire(shuffled, reads=("x0", "x1"), writes=outputs)
    else:
        wire(shuffled, reads=("x0", "x1"), writes=outputs)


def tensor(dtype: str, shape: tuple[Dim, ...] | None) -> Tensor:
    return Tensor(name="t", dtype=dtype, shape=shape)


@each(
    ("dtype", "shape", "found"),
    [
        ("float32", (2, 3), (24, True)),
        ("float32", (), (4, True)),  # a scalar
        ("float32", None, (0, False)),  # not even the rank is known
        ("float32", ("batch", 3), (24, True)),
        ("float32", ("other", 3), (12, False)),  # at least one row
        ("float32", (None, 3), (12, False)),
        ("float32", (0, 3), (0, True)),
        ("bool", (3,), (3, True)),
        ("bfloat16", (3,), (6, True)),
        ("complex128", (3,), (48, True)),
        ("int4", (4,), (2, True)),
        ("int4", (3,), (2, True)),  # the last half byte is padding
        ("uint2", (5,), (2, True)),
        ("float4e2m1", ("batch", 3), (3, True)),
        ("float6e3m2", (5,), (4, True)),  # four in three bytes
        ("int4", (), (1, True)),
        ("string", (3,), (0, False)),
        ("sequence(float32)", None, (0, False)),
        ("undefined", (3,), (0, False)),
    ],
)
def test_what_a_tensor_takes(dtype: str, shape: tuple[Dim, ...] | None, found: tuple[int, bool]) -> None:
    assert tensor(dtype, shape).bytes_for({"batch": 2}) == found


@each("dtype", sorted(BITS))
def test_elements_are_packed_over_the_whole_tensor_and_not_row_by_row(dtype: str) -> None:
    assert tensor(dtype, (3, 5)).bytes_for({}) == (-(-15 * BITS[dtype] // 8), True)


@pytest.mark.parametrize(
    ("shape", "said"),
    [(None, "float32[…]"), ((), "float32[]"), (("batch", None, 3), "float32[batch,?,3]")],
)
def test_an_unknown_rank_does_not_look_like_a_scalar(shape: tuple[Dim, ...] | None, said: str) -> None:
    assert str(tensor("float32", shape)) == said


def test_what_is_not_a_tensor_is_not_plain() -> None:
    words = {"float32": True, "string": True, "undefined": True, "sequence(float32)": False, "optional(int64)": False}
    assert {word: tensor(word, None).is_plain for word in words} == words


@pytest.mark.parametrize("shape", [None, (), ("batch", None, 3)])
def test_a_tensor_is_read_as_it_was_written(shape: tuple[Dim, ...] | None) -> None:
    written = msgspec.json.encode(tensor("float32", shape))
    assert msgspec.json.decode(written, type=Tensor) == tensor("float32", shape)


@each("wrong", [{"shape": [1.5]}, {"shape": [True]}, {"shape": "ab"}, {"dtype": None}, {"rank": 2}])
def test_a_tensor_of_another_form_is_not_read(wrong: Mapping[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "t", "dtype": "float32", "shape": [1], **wrong}, Tensor)
