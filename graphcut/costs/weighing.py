"""What the nodes of a model weigh: FLOPs, bytes of weights, bytes moved; and what a part holds at its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from onnx import NodeProto, TensorProto

from ..core.graph import Graph
from ..core.product import Product
from ..core.wiring import Dim, Tensor
from ..loading.bound_sizes import infer_bound
from ..loading.graph_reader import values_bytes
from ..loading.model import Model, TensorBytes
from ..loading.shape_inference import tensor_of_initializer
from ..loading.subgraphs import functions_called, tensors_in_function, tensors_within
from .caches import Cache, bound_dims, find_caches
from .flops.counting import Scope, constant_value, count_node, has_insides, infer_nodes, small_values
from .flops.operation import Operation, axis, elements, rows
from .formula import Formula, product

VIEWS: Final = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "com.microsoft.ExpandDims"})
"""Operators that hand on the buffer they read: they move nothing."""

_PICKING: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators that touch no more of their first input than they write."""

_SIZING: Final = frozenset({"Shape", "Size"})
"""Operators that look at how large their input is, and not into it."""


@dataclass(frozen=True, repr=False)
class Costs(Product):
    """What the flowing nodes of a model weigh, for one binding of its symbols. Aligned with `model.graph.flow`.

    Attributes:
        model: the model.
        dims: the numbers that were put in for symbols: the model's own, those given on top, and what follows from
            them (`caches.bound_dims`).
        formulas: the floating-point operations of each node, in the symbols.
        flops: the same for `dims`. Where a formula holds a size that is unknown until numbers are put in, from these.
        weight_bytes: bytes of initializers that one run of a node touches: of an embedding or a rotary table the rows
            it picks, of experts those that tokens can reach, of packed weights the packed ones with scales and zero
            points. What constant nodes make of initializers counts as made, but packed where they dequantise it.
        moved_bytes: bytes of activations that a node reads and writes. Views (`VIEWS`) move nothing, Shape and Size
            read nothing, and what picks from an activation reads as much as it writes.
        tensor_bytes: what each activation, input and output of the model takes, and whether that is all.
        uncounted: operators that have no formula, and how many nodes, bodies included; their FLOPs count as 0.
        caches: the inputs that come back as outputs.
    """

    model: Model
    dims: Mapping[str, int]
    formulas: tuple[Formula, ...]
    flops: tuple[int, ...]
    weight_bytes: tuple[int, ...]
    moved_bytes: tuple[int, ...]
    tensor_bytes: TensorBytes
    uncounted: Mapping[str, int]
    caches: tuple[Cache, ...]

    @cached_property
    def is_view(self) -> tuple[bool, ...]:
        """Does a node only hand on a buffer? Such a node takes no time."""
        graph = self.model.graph
        return tuple(graph.nodes[i].op in VIEWS for i in graph.flow)

    @cached_property
    def cache_bytes(self) -> int:
        """What the caches take once the new tokens are in them: keys and values of all layers."""
        return sum(self.tensor_bytes[cache.present][0] for cache in self.caches)


def weigh(model: Model, dims: Mapping[str, int] | None = None) -> Costs:
    """What each flowing node of `model` weighs.

    Takes a second or two for 100,000 nodes, and what shape inference takes: twice where sizes stay open until numbers
    are put in.

    Args:
        model: an opened model.
        dims: numbers for its symbols, on top of `model.dims`; a symbol without one counts as 1.
    """
    numbers = bound_dims(model, {**model.dims, **(dims or {})})
    sizes = {name: tensor.bytes_for(numbers) for name, tensor in model.boundary_types.items()}
    known = _bound_tensors(model, numbers, sizes)
    sizes.update({name: tensor.bytes_for(numbers) for name, tensor in known.items()})
    scope = _scope_of(model, numbers)
    bound = replace(scope, tensors={**scope.tensors, **known}, called={})
    constants = _constant_bytes(model, bound)
    counted = [count_node(model.proto.graph.node[i], scope) for i in model.graph.flow]
    formulas = tuple(found.flops for found in counted)
    uncounted = Counter[str]()
    for found in counted:
        uncounted.update(found.uncounted)
    return Costs(
        model=model,
        dims=MappingProxyType(numbers),
        formulas=formulas,
        flops=_evaluated(model, formulas, bound) if known else tuple(formula.at(numbers) for formula in formulas),
        weight_bytes=tuple(_touched(model, i, constants, sizes, bound) for i in model.graph.flow),
        moved_bytes=tuple(_moved(model, i, sizes) for i in model.graph.flow),
        tensor_bytes=MappingProxyType(sizes),
        uncounted=MappingProxyType(dict(sorted(uncounted.items()))),
        caches=find_caches(model),
    )


def peak_bytes(
    graph: Graph, nodes: Sequence[int], tensor_bytes: TensorBytes, *, writes: Collection[str] | None = None
) -> int:
    """The most bytes of activations that a part holds at once when it runs `nodes` in this order.

    All that it reads from outside is held throughout, since the caller holds it; what it writes for outside stays to
    the end; any other tensor dies after its last reader in the part. While a node runs, what it reads and what it
    writes are both alive. Views count as if they were copied. Linear in the number of nodes and edges of the part.

    Args:
        graph: the graph of the model.
        nodes: flowing nodes, by their places in `graph.nodes`.
        tensor_bytes: what tensors take, as in `Costs.tensor_bytes`; one that is not there counts as 0.
        writes: what the part gives out; if not given, what nodes outside read and what the model gives out.
    """
    bytes_of = {
        t: tensor_bytes.get(t, (0, True))[0] for n in nodes for t in (*graph.nodes[n].reads, *graph.nodes[n].writes)
    }
    made = {tensor for n in nodes for tensor in graph.nodes[n].writes}
    given = set(_given_out(graph, nodes, made) if writes is None else writes)
    last = {
        tensor: place for place, n in enumerate(nodes) for tensor in (*graph.nodes[n].writes, *graph.nodes[n].reads)
    }
    peak = live = sum(number for tensor, number in bytes_of.items() if tensor not in made)
    for place, n in enumerate(nodes):
        node = graph.nodes[n]
        live += sum(bytes_of[tensor] for tensor in node.writes)
        peak = max(peak, live)
        for tensor in dict.fromkeys((*node.reads, *node.writes)):
            if tensor in made and tensor not in given and last[tensor] == place:
                live -= bytes_of[tensor]
    return peak


def _given_out(graph: Graph, nodes: Sequence[int], made: Iterable[str]) -> list[str]:
    inside, outputs = set(nodes), set(graph.writes)
    return [t for t in made if t in outputs or any(reader not in inside for reader in graph.readers.get(t, ()))]


def _bound_tensors(model: Model, dims: Mapping[str, int], sizes: TensorBytes) -> dict[str, Tensor]:
    """The types of tensors whose sizes only come out once numbers are put in for the symbols of the inputs."""
    still_open = {name for name, (_, is_exact) in sizes.items() if not is_exact and model.boundary_types[name].is_plain}
    if not dims or not still_open:
        return {}
    found = infer_bound(model.proto, dims, still_open)
    return {name: tensor for name, tensor in found.items() if tensor.bytes_for(dims) > (sizes[name][0], False)}


def _scope_of(model: Model, dims: Mapping[str, int]) -> Scope:
    """What the nodes of the main graph see: activations, weights, and what constant nodes make."""
    weights = {tensor.name: tensor_of_initializer(tensor) for tensor in model.proto.graph.initializer}
    dense = {sparse.values.name: sparse for sparse in model.proto.graph.sparse_initializer}
    weights.update(
        {n: Tensor(name=n, dtype=tensor_of_initializer(s.values).dtype, shape=tuple(s.dims)) for n, s in dense.items()}
    )
    nodes = [model.proto.graph.node[i] for i, node in enumerate(model.graph.nodes) if node.is_constant]
    made = [value for node in nodes if node.op_type == "Constant" and (value := constant_value(node)) is not None]
    values = small_values((*model.proto.graph.initializer, *made))
    scope = Scope({**model.boundary_types, **weights}, values, list(model.proto.opset_import), model.functions, dims)
    tensors = {value.name: tensor_of_initializer(value) for value in made}
    if len(nodes) > len(made):
        read = {name for node in nodes for name in node.input}
        given = {name: tensor for name, tensor in weights.items() if name in read}
        used = {name: value for name, value in values.items() if name in given}
        tensors.update(infer_nodes(nodes, given, used, scope))
    return replace(scope, tensors={**scope.tensors, **tensors})


def _evaluated(model: Model, formulas: Sequence[Formula], bound: Scope) -> tuple[int, ...]:
    """The formulas for the bound dims; those that these leave open, again from the sizes that are known for them."""
    dims = bound.dims
    return tuple(
        formula.at(dims)
        if formula.is_exact_at(dims)
        else max(formula.at(dims), count_node(model.proto.graph.node[i], bound).flops.at(dims))
        for i, formula in zip(model.graph.flow, formulas, strict=True)
    )


def _moved(model: Model, place: int, sizes: TensorBytes) -> int:
    node = model.graph.nodes[place]
    if node.op in VIEWS:
        return 0
    written = sum(sizes[tensor][0] for tensor in node.writes)
    if node.op in _SIZING:
        return written
    read = {tensor: sizes[tensor][0] for tensor in node.reads}
    if node.op in _PICKING:
        source = model.proto.graph.node[place].input[0]
        if source in read:
            read[source] = min(read[source], written)
    return sum(read.values()) + written


def _constant_bytes(model: Model, scope: Scope) -> dict[str, int]:
    """What the tensors take that constant nodes make for flowing ones; what these dequantise, packed.

    ONNX Runtime folds constant nodes when it loads the model, but for a DequantizeLinear, which it fuses with the node
    that reads it. Where nothing tells what is made, the initializers beneath count.
    """
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for i in model.graph.flow for name in model.graph.nodes[i].constants):
        makers = model.graph.constants_for([name])
        weights = dict.fromkeys(weight for i in makers for weight in model.graph.nodes[i].weights)
        beneath = sum(model.graph.weights[weight].bytes for weight in weights)
        tensor = scope.tensors.get(name)
        made, is_exact = tensor.bytes_for(scope.dims) if tensor is not None else (0, False)
        is_packed = any(model.graph.nodes[i].op.endswith("DequantizeLinear") for i in makers)
        found[name] = min(made, beneath) if is_exact and is_packed else made if is_exact else max(made, beneath)
    return found


def _touched(model: Model, place: int, constants: Mapping[str, int], sizes: TensorBytes, scope: Scope) -> int:
    """The bytes of weights that one run of a node touches."""
    node, proto = model.graph.nodes[place], model.proto.graph.node[place]
    fixed = {name: model.graph.weights[name].bytes for name in node.weights}
    fixed.update((name, constants[name]) for name in node.constants)
    if fixed and node.op in _PICKING and proto.input[0] in fixed:
        written = sum(sizes[tensor][0] for tensor in node.writes)
        fixed[proto.input[0]] = min(fixed[proto.input[0]], written)
    if fixed and node.op in _SHARING:
        places, share_of = _SHARING[node.op]
        share = min(Fraction(1), share_of(Operation(proto, scope.tensors), scope.dims))
        for name in [proto.input[i] for i in places if i < len(proto.input) and proto.input[i] in fixed]:
            fixed[name] = -(-fixed[name] * share.numerator // share.denominator)
    own = _own_bytes(proto, scope) if has_insides(proto, node.op, scope) else 0
    return sum(fixed.values()) + own


def _own_bytes(node: NodeProto, scope: Scope) -> int:
    """Initializers and constants in the bodies of a node, and in the functions that it calls."""
    called = functions_called([node], scope.functions)
    tensors: list[TensorProto] = list(tensors_within([node]))
    for key in called:
        tensors.extend(tensors_in_function(scope.functions[key]))
    return sum(values_bytes(tensor) for tensor in tensors)


def _rows_picked(operation: Operation, dims: Mapping[str, int]) -> Fraction:
    """GatherBlockQuantized: the indices, of the rows there are along the axis."""
    there = axis(operation.read(0), operation.number("gather_axis", 0))
    return _share(elements(operation.read(1)).at(dims), there)


def _angles_looked_up(table: int, operation: Operation, dims: Mapping[str, int]) -> Fraction:
    """Rotary tables: a row for each token, of those there are for all positions."""
    shape, angles = operation.read(0), operation.read(table)
    if shape is None or angles is None or len(angles) != 2:
        return Fraction(1)
    return _share(product((shape[0], shape[-2])).at(dims), angles[0])


def _words_looked_up(operation: Operation, dims: Mapping[str, int]) -> Fraction:
    """EmbedLayerNormalization: a row of the word table for each token."""
    return _share(elements(operation.read(0)).at(dims), axis(operation.read(2), 0))


def _experts_reached(operation: Operation, dims: Mapping[str, int]) -> Fraction:
    """MoE: no more experts than tokens pass, of those there are."""
    passed = rows(operation.read(0)).at(dims) * operation.number("k", 1)
    return _share(passed, axis(operation.read(2), 0))


def _share(taken: int, there: Dim) -> Fraction:
    return Fraction(taken, there) if isinstance(there, int) and there > 0 else Fraction(1)


def _rotary_tables(first: int) -> tuple[tuple[int, ...], Callable[[Operation, Mapping[str, int]], Fraction]]:
    return (first, first + 1), partial(_angles_looked_up, first)


_EMBEDDINGS: Final = ((2,), _words_looked_up)
_EXPERTS: Final = (tuple(range(2, 21)), _experts_reached)
_SHARING: Final[Mapping[str, tuple[tuple[int, ...], Callable[[Operation, Mapping[str, int]], Fraction]]]] = {
    "com.microsoft.GatherBlockQuantized": ((0, 2, 3), _rows_picked),
    "com.microsoft.EmbedLayerNormalization": _EMBEDDINGS,
    "com.microsoft.QEmbedLayerNormalization": _EMBEDDINGS,
    "RotaryEmbedding": _rotary_tables(1),
    "com.microsoft.RotaryEmbedding": _rotary_tables(2),
    "com.microsoft.MRotaryEmbedding": _rotary_tables(2),
    "com.microsoft.GroupQueryAttention": _rotary_tables(7),
    "com.microsoft.MoE": _EXPERTS,
    "com.microsoft.QMoE": _EXPERTS,
}
"""Operators that touch a share of their weights: at which places of their inputs, and which share."""
