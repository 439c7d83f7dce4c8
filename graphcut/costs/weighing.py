"""The costs of nodes: FLOPs, bytes of weights read, bytes of activations moved; and the peak memory of a part."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain
from operator import methodcaller
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from ..core.graph import Graph, post_order
from ..core.manifest import SessionSettings
from ..core.product import Product
from ..core.records import table
from ..core.states import Cache
from ..core.tensors import Dim, Tensor, TensorBytes
from ..loading.model import Model, Sizes
from ..loading.operations import Operation, RuleTable, by_operator
from ..loading.shape_inference import tensor_of_initializer
from ..loading.subgraphs import functions_called, tensors_in
from ..loading.tensor_values import constant_value, values_bytes
from .caches import bound_dims, find_caches, tokens_per_step
from .flops.counting import Context, count_node, has_inner_nodes, infer_nodes, small_values
from .formula import ZERO, Formula, axis, elements, product, rows
from .held_weights import HeldWeights, held_by

_Made = TypeVar("_Made")
VIEWS: Final = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "com.microsoft.ExpandDims"})
"""Operators whose output is the buffer of their input: they move nothing."""

_PICKING: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators that read no more of their first input than they write."""


_SHAPE_ONLY: Final = frozenset({"Shape", "Size"})  #: operators that read the shape of their input and not its values.


@dataclass(frozen=True, repr=False)
class Costs(Product):
    """The costs of the flowing nodes of a model for one binding of its symbols, in the order of `graph.flow`."""

    model: Model  #: the model.
    #: numbers for symbols: those of the model, those given, and what follows from them (`caches.bound_dims`).
    dims: Mapping[str, int]
    formulas: tuple[Formula, ...]  #: the FLOPs of each node, in the symbols.
    #: the FLOPs of each node for `dims`. If a formula has a size that is unknown until symbols are bound, the size that
    #: inference then finds counts.
    flops: tuple[int, ...]
    #: bytes of initializers that a run of the node reads. Of an embedding or a rotary table the rows that it looks up,
    #: of experts those that tokens can reach. Packed weights count packed, with scales and zero points. What constant
    #: nodes compute of initializers counts as computed, unless they dequantize them.
    weight_bytes: tuple[int, ...]
    #: bytes of activations that the node reads and writes. A view (`VIEWS`) moves nothing, Shape and Size read nothing,
    #: and an operator that picks from an activation reads as much as it writes.
    moved_bytes: tuple[int, ...]
    sizes: Sizes  #: sizes of all activations, inputs and outputs of the model.
    #: operators without a rule for FLOPs, and how many nodes each, in subgraphs too; they count as 0.
    uncounted: Mapping[str, int]
    caches: tuple[Cache, ...]  #: the inputs that are outputs of the step before.
    sends_half: bool = False  #: float32 tensors are sent as float16.
    #: nodes that a step of a sequence does not run, because they ran once before: they take no time, and send nothing.
    run_before: frozenset[int] = frozenset()

    @property
    def step_tokens(self) -> int:
        """See `tokens_per_step`."""
        return tokens_per_step(self.model, self.dims)

    @property
    def tensor_bytes(self) -> TensorBytes:
        """`sizes.bytes`."""
        return self.sizes.bytes

    @cached_property
    def sent_bytes(self) -> TensorBytes:
        """Sizes of tensors as they are sent between parts."""
        if not (self.sends_half or self.run_before):
            return self.tensor_bytes
        types, inputs = self.model.tensors, self.model.graph.reads
        floats = {name for name, tensor in types.items() if self.sends_half and tensor.dtype == "float32"}
        half, sizes = floats.difference(inputs), self.tensor_bytes.items()
        found = {name: (size // 2, exact) if name in half else (size, exact) for name, (size, exact) in sizes}
        return found | {name: (0, found[name][1]) for name in self.kept}

    @cached_property
    def kept(self) -> frozenset[str]:
        """What a step does not send, because it is there since the first one."""
        graph, nodes = self.model.graph, self.run_before
        inputs = {*graph.reads}.difference(self.model.stepwise) if nodes else ()
        return frozenset(name for node in nodes for name in graph.nodes[node].writes).union(inputs)

    @cached_property
    def held(self) -> Callable[[SessionSettings], HeldWeights]:
        """The weights as a device holds them."""
        return held_by(self.model)

    def once(self, key: object, make: Callable[[], _Made]) -> _Made:
        """What is made of these costs for a key, made once: plans that are compared have parts in common."""
        made: dict[object, _Made] = self._made
        return made[key] if key in made else made.setdefault(key, make())

    @cached_property
    def _made(self) -> dict[object, Any]:
        return {}

    @cached_property
    def is_view(self) -> tuple[bool, ...]:
        """Whether each node is a view, which takes no time."""
        graph = self.model.graph
        return tuple(graph.nodes[i].op in VIEWS for i in graph.flow)


def weigh(model: Model, dims: Mapping[str, int] | None = None) -> Costs:
    """The costs of each flowing node of `model`.

    Takes a second or two for 100,000 nodes, plus shape inference: twice if sizes are unknown until symbols are bound.

    Args:
        model: the model.
        dims: numbers for its symbols, in addition to `model.dims`; a symbol without a number counts as 1.
    """
    numbers = bound_dims(model, {**model.dims, **(dims or {})})
    sized = model.with_dims(numbers).sizes
    sizes, known = sized.bytes, sized.found
    context = _context_of(model, numbers)
    bound = replace(context, tensors={**context.tensors, **known}, called={})
    constants = _constant_bytes(model, bound)
    counted = [count_node(model.proto.graph.node[i], context) for i in model.graph.flow]
    formulas = tuple(found.flops for found in counted)
    flops = [*map(cache(methodcaller("at", numbers)), formulas)]
    for i, formula in enumerate(formulas) if known else ():
        if not formula.is_exact_at(numbers):  # it is counted again with all known sizes
            flops[i] = max(flops[i], count_node(model.proto.graph.node[model.graph.flow[i]], bound).flops.at(numbers))
    uncounted = sum((Counter(found.uncounted) for found in counted if found.uncounted), Counter[str]())
    return Costs(
        model=model,
        dims=MappingProxyType(numbers),
        formulas=formulas,
        flops=tuple(flops),
        weight_bytes=tuple(_weights_read(model, i, constants, sizes, bound) for i in model.graph.flow),
        moved_bytes=tuple(_moved(model, i, sizes) for i in model.graph.flow),
        sizes=sized,
        uncounted=MappingProxyType(dict(sorted(uncounted.items()))),
        caches=find_caches(model),
    )


Casts = Callable[[int], Collection[int]]
"""The nodes whose outputs are cast for a node, in the order of its inputs."""


def peak_bytes(
    graph: Graph,
    nodes: Sequence[int],
    sizes: TensorBytes,
    *,
    writes: Collection[str],
    copies: Collection[int] = (),
    work: Mapping[int, int] = MappingProxyType({}),
    casts: Casts = lambda _: (),
) -> int:
    """The most bytes of activations that a part holds at once while ONNX Runtime runs `nodes`, in `execution_order`.

    A tensor from outside is held all the time, since the caller holds it; an output to the end; any other tensor until
    after its last reader. While a node runs, its inputs and outputs are all held. Views count as copies. Linear in the
    nodes and edges of the part.

    `writes` are the outputs of the part, `copies` the nodes that it repeats, `work` what nodes take besides while they
    run, or less. A tensor not in `sizes` counts as 0.
    """
    nodes = execution_order(graph, nodes, copies, casts)
    own = {n: graph.copy_of(n) if n in copies else graph.nodes[n] for n in nodes}
    last = {tensor: n for n in nodes for tensor in (*own[n].reads, *own[n].writes)}
    bytes_of = {tensor: sizes.get(tensor, (0, True))[0] for tensor in last}
    zeros = (node for n, node in own.items() if node is not graph.nodes[n])
    bytes_of |= {node.writes[1]: bytes_of[node.reads[0]] for node in zeros}
    written = {n: sum(map(bytes_of.__getitem__, node.writes)) for n, node in own.items()}
    freed, inside = dict.fromkeys(nodes, 0), {tensor for node in own.values() for tensor in node.writes}
    for tensor in inside.difference(writes):
        freed[last[tensor]] += bytes_of[tensor]
    held, peaks = sum(number for tensor, number in bytes_of.items() if tensor not in inside), list[int]()
    for n in nodes:
        held += written[n]
        peaks.append(held + work.get(n, 0))
        held -= freed[n]
    return max(peaks, default=held)


def execution_order(
    graph: Graph, nodes: Sequence[int], copies: Collection[int] = (), casts: Casts = lambda _: ()
) -> list[int]:
    """The order in which ONNX Runtime runs a part that lists `nodes` in this order, by default and without fusions.

    It is the post-order of a depth-first search from the nodes that none of the others reads, back along the tensors;
    of several nodes the one that is listed last comes first (onnxruntime/core/graph/graph_viewer.cc). Those whose
    outputs are cast for the reader come first (`casts`), since casts are listed behind all. Linear.

    Example: where b and c read the tensor of a, and d those of b and c, a file that lists a, b, c, d runs a, c, b, d.
    """
    index = {n: i for i, n in enumerate(nodes)}
    own = {n: graph.copy_of(n) if n in copies else graph.nodes[n] for n in nodes}
    producer = {tensor: n for n, node in own.items() for tensor in node.writes}
    before = {n: [producer[tensor] for tensor in node.reads if tensor in producer] for n, node in own.items()}
    read = set[int]().union(*before.values())
    starts = [n for n in nodes if n not in read]

    def sources(n: int) -> Collection[int]:
        """What a node reads, in the order of the file, and then what is cast for it, in the order of its inputs."""
        last = [b for b in dict.fromkeys(casts(n)) if b in before[n]] if len(before[n]) > 1 else []
        return [*sorted({*before[n]}.difference(last), key=index.__getitem__), *last]

    return post_order(starts, sources)


def _context_of(model: Model, dims: Mapping[str, int]) -> Context:
    """What is known in the main graph: types of activations, of weights, and of what constant nodes compute."""
    graph = model.proto.graph
    weights = {tensor.name: tensor_of_initializer(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        dtype = tensor_of_initializer(sparse.values).dtype
        weights[sparse.values.name] = Tensor(name=sparse.values.name, dtype=dtype, shape=tuple(sparse.dims))
    nodes = [graph.node[i] for i, node in enumerate(model.graph.nodes) if node.is_constant]
    constants = [v for node in nodes if node.op_type == "Constant" and (v := constant_value(node)) is not None]
    values = small_values((*graph.initializer, *constants))
    types = {**model.boundary_types, **weights}
    context = Context(types, values, list(model.proto.opset_import), model.functions, dims)
    types.update({value.name: tensor_of_initializer(value) for value in constants})
    if len(nodes) > len(constants):
        read = {name for node in nodes for name in node.input}
        given = {name: tensor for name, tensor in weights.items() if name in read}
        known = {name: value for name, value in values.items() if name in given}
        types.update(infer_nodes(nodes, replace(context, tensors=given, values=known)))
    return context


def _moved(model: Model, index: int, sizes: TensorBytes) -> int:
    """Bytes of activations that a run of a node reads and writes."""
    node = model.graph.nodes[index]
    if node.op in VIEWS:
        return 0
    written = sum(sizes[tensor][0] for tensor in node.writes)
    read = {tensor: sizes[tensor][0] for tensor in node.reads if node.op not in _SHAPE_ONLY}
    source = model.proto.graph.node[index].input[0] if read and node.op in _PICKING else ""
    if source in read:
        read[source] = min(read[source], written)
    return sum(read.values()) + written


def _constant_bytes(model: Model, context: Context) -> dict[str, int]:
    """Bytes of the tensors that constant nodes compute for flowing ones.

    ONNX Runtime computes them when it loads the model, except for DequantizeLinear, which it fuses with its reader: the
    packed weights count then, and also if the size of the tensor is unknown.
    """
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for i in model.graph.flow for name in model.graph.nodes[i].constants):
        nodes = [model.graph.nodes[i] for i in model.graph.constants_for([name])]
        packed = sum(model.graph.weights[weight].bytes for weight in {w for node in nodes for w in node.weights})
        tensor = context.tensors.get(name)
        computed, is_exact = tensor.bytes_for(context.dims) if tensor is not None else (0, False)
        is_unpacked = any(node.op.endswith("DequantizeLinear") for node in nodes)
        least = min(computed, packed) if is_unpacked else computed
        found[name] = least if is_exact else max(computed, packed)
    return found


def _weights_read(model: Model, index: int, constants: Mapping[str, int], sizes: TensorBytes, context: Context) -> int:
    """Bytes of weights that a run of a node reads."""
    node, proto = model.graph.nodes[index], model.proto.graph.node[index]
    read = {name: model.graph.weights[name].bytes for name in node.weights}
    read.update((name, constants[name]) for name in node.constants)
    if node.op in _PICKING and proto.input[0] in read:
        read[proto.input[0]] = min(read[proto.input[0]], sum(sizes[tensor][0] for tensor in node.writes))
    if read and node.op in _ROWS_READ:
        inputs, formula, total = _ROWS_READ[node.op](Operation(proto, context.tensors))
        share = Fraction(formula.at(context.dims), total) if isinstance(total, int) and total > 0 else Fraction(1)
        for name in [proto.input[i] for i in inputs if i < len(proto.input) and proto.input[i] in read]:
            read[name] = min(read[name], -(-read[name] * share.numerator // share.denominator))
    inside = inner_bytes(model, [index]) if has_inner_nodes(proto, node.op, context) else {}
    return sum(read.values()) + sum(inside.values())


def inner_bytes(model: Model, nodes: Sequence[int]) -> Mapping[object, int]:
    """The bytes of tensors inside nodes, by their indices, and inside the functions that they call, by their keys."""
    inside = model.once(_bytes_inside)
    called = [model.proto.graph.node[node] for node in nodes] if model.functions else []
    keys: Iterable[object] = (*nodes, *functions_called(called, model.functions))
    return {key: inside[key] for key in keys if key in inside}


def _bytes_inside(model: Model) -> Mapping[object, int]:
    """`inner_bytes` of all nodes and functions, without those of none."""
    rows = chain[tuple[object, Message]](enumerate(model.proto.graph.node), model.functions.items())
    return {key: number for key, one in rows if (number := sum(map(values_bytes, tensors_in(one))))}


_RowsRead = tuple[Iterable[int], Formula, Dim]
"""The inputs of a node that are tables, how many rows of these a run of it reads, and how many rows they have."""


def _indexed(operation: Operation) -> _RowsRead:
    """One for each index."""
    return (0, 2, 3), elements(operation.read(1)), axis(operation.read(0), operation.given("gather_axis", 0))


def _words(operation: Operation) -> _RowsRead:
    """A row of the word table for each token."""
    return (2,), elements(operation.read(0)), axis(operation.read(2), 0)


def _rotary(operation: Operation, first: int) -> _RowsRead:
    """Rotary tables: one for each token, of those for all positions."""
    shape, angles = operation.read(0), operation.read(first)
    if shape is None or angles is None or len(angles) != 2:
        return (), ZERO, None
    return (first, first + 1), product((shape[0], shape[-2])), angles[0]


def _experts(operation: Operation) -> _RowsRead:
    """MoE: at most `k` experts for each token."""
    return range(2, 21), rows(operation.read(0)) * operation.given("k", 1), axis(operation.read(2), 0)


#: operators that read some rows of tables.
_ROWS_READ: Final = by_operator(table("costs/rows_read.toml", RuleTable), globals())
