"""Rules of attention: heads, in units of those of keys and values."""

from collections.abc import Iterator, Mapping
from typing import Final

from ....core.records import table
from ....loading.operations import Operation, RuleTable, by_operator
from ..factors import Factor, Place, Rule, fixed


def group_query_attention(o: Operation) -> Iterator[Factor]:
    """Heads of keys and values, with the query heads that share each of them; queries may hold keys and values too."""
    heads, groups = o.given("num_heads", 0), o.given("kv_num_heads", 0)
    query = o.read(0) or ()
    if not fixed(query[-1]) or not groups or heads % groups or any(o.has(i) for i in range(12, 16)):
        return
    width = fixed(query[-1]) // (heads if o.has(1) else heads + 2 * groups)
    packed = () if o.has(1) else (heads * width, groups * width, groups * width)
    places = [Place(0, 2, packed), *_placed(o, {1: 2, 2: 2, 3: 1, 4: 1, 11: 0}), *_bias(o, 10, heads)]
    yield Factor(groups, tuple(places), _outputs(o, {0: 2, 1: 1, 2: 1, 3: 1}), ("num_heads", "kv_num_heads"))


def multi_head_attention(o: Operation) -> Iterator[Factor]:
    """Heads; the bias holds those of queries, keys and values."""
    heads, shapes = o.given("num_heads", 0), [o.read(i) or () for i in range(3) if o.has(i)]
    places = [Place(i, 1 if len(shape) == 4 else 2) for i, shape in enumerate(shapes)]
    if o.has(3):
        sizes = [fixed(shape[2]) if len(shape) != 4 else 0 for shape in shapes]
        if len(sizes) != 3 or not all(sizes):
            return
        places.append(Place(3, 0, (sizes[0], sizes[0], sizes[2])))
    places += [*_placed(o, {6: 1, 7: 1}), *_bias(o, 5, heads)]
    if not o.has(9):
        yield Factor(heads, tuple(places), _outputs(o, {0: 2, 1: 1, 2: 1, 3: 1}), ("num_heads",))


def packed_attention(o: Operation) -> Iterator[Factor]:
    """com.microsoft.Attention: heads, in the columns of a weight that holds queries, keys and values."""
    heads, weight = o.given("num_heads", 0), o.read(1) or ()
    if not fixed(weight[1]) or o.has(6):
        return
    sizes = tuple(o.given("qkv_hidden_sizes", [fixed(weight[1]) // 3] * 3))
    counts = ("num_heads", *(("qkv_hidden_sizes",) if "qkv_hidden_sizes" in o.attributes else ()))
    bias = [Place(2, 0, sizes)] if o.has(2) else []
    places = [Place(1, 1, sizes), *bias, *_placed(o, {4: 2}), *_bias(o, 5, heads)]
    yield Factor(heads, tuple(places), _outputs(o, {0: 2, 1: 2}), counts)


def attention(o: Operation) -> Iterator[Factor]:
    """Attention of ONNX: the heads of keys and values."""
    query, key = o.read(0) or (), o.read(1) or ()
    if o.has(6):
        return
    is_flat = len(query) == 3
    heads = o.given("q_num_heads", 0) if is_flat else fixed(query[1])
    groups = o.given("kv_num_heads", 0) if is_flat else fixed(key[1])
    if not groups or heads % groups:
        return
    axis = 2 if is_flat else 1
    places = [Place(i, axis) for i in range(3)] + [*_placed(o, {4: 1, 5: 1}), *_bias(o, 3, heads)]
    counts = ("q_num_heads", "kv_num_heads") if is_flat else ()
    yield Factor(groups, tuple(places), _outputs(o, {0: axis, 1: 1, 2: 1, 3: 1}), counts)


def rotary_embedding(o: Operation) -> Iterator[Factor]:
    """Heads. A flat input needs their number; com.microsoft's may leave it open if the angles tell the width."""
    shape, heads = o.read(0) or (), o.given("num_heads", 0)
    axis, units = (1, fixed(shape[1])) if len(shape) == 4 else (2, heads)
    angles = o.read(2 if o.op.startswith("com.") else 1)
    if not units and axis == 2 and angles and (half := fixed(angles[-1])):
        units = fixed(shape[2]) // (2 * half)
    yield Factor(units, (Place(0, axis),), (Place(0, axis),), ("num_heads",) if heads else ())


def _placed(o: Operation, axes: Mapping[int, int]) -> list[Place]:
    """The inputs that the node has, each with its axis of heads."""
    return [Place(slot, axis) for slot, axis in axes.items() if o.has(slot)]


def _bias(o: Operation, slot: int, heads: int) -> list[Place]:
    """What is added to the scores [batch, heads, queries, keys], unless it is the same for all heads."""
    shape = o.read(slot) if o.has(slot) else None
    has_heads = shape is not None and len(shape) > 2 and shape[-3] == heads
    return [Place(slot, len(shape) - 3)] if shape is not None and has_heads and heads > 1 else []


def _outputs(o: Operation, axes: Mapping[int, int]) -> tuple[Place, ...]:
    return tuple(Place(slot, axis) for slot, axis in axes.items() if o.writes_to(slot))


RULES: Final[Mapping[str, Rule]] = by_operator(table("sharding/axes/rules/attention.toml", RuleTable), globals())
