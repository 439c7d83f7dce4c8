"""What differs in the graphs and weights of two models, as records and as sentences."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from typing import Any, Final, Literal

import numpy as np
from onnx import AttributeProto, numpy_helper
from onnx.helper import get_attribute_value

from ..core.graph import Graph
from ..core.product import short_repr
from ..loading.fingerprint import same_message, same_values
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_initializer
from ..loading.subgraphs import is_external
from ..running.values import Array
from .differences import numpy_type
from .matching import SAME_VALUES
from .sections import CODES, CREST, EXCESS, ROUNDOFF, Pair, Side, quantization_noise

Change = Literal["added", "removed", "operator", "attribute", "input", "weight"]
_CHUNK: Final = 1 << 20
_MULTIPLE: Final = 1e-3  #: a weight is a multiple of another one if no larger fraction of it remains.
_BIAS: Final = 0.125  #: rounding makes weights larger or smaller by no larger fraction; of 2 bits, by what they lose.


@dataclass(frozen=True)
class ModelChange:
    """Something that differs between two models."""

    kind: Change  #: a node that only the second model has, or only the first one; or what of a node differs.
    node: str  #: the node, by its name in the first model, if that has it.
    module: str  #: its module; empty if unknown.
    text: str  #: what differs: `MatMul: 'w' differs in 3 of 16 values, by at most 0.5`; the operator of a node.
    weight_bytes: int = 0  #: the size of the weight that differs, in the first model.
    largest: float = 0.0  #: the largest difference of its values; infinite if the shape differs, 0 for codes.
    is_rounding: bool = False  #: it has another type, which explains the difference.


def changes_of(pair: Pair) -> Iterator[ModelChange]:
    """What differs: nodes that one model alone has, operators, attributes, inputs, weights.

    A weight that several nodes read is named once. Takes the time to read all weights, and memory for 1 MiB of them,
    and for one at a time that constant nodes compute.
    """
    graph, other = pair.first.model.graph, pair.second.model.graph
    pairs = _node_pairs(pair, graph.flow, other.flow)
    for n in (n for n in graph.flow if n not in pairs):
        yield ModelChange("removed", graph.nodes[n].name, graph.nodes[n].module, graph.nodes[n].op)
    for n in sorted({*other.flow} - {*pairs.values()}):
        yield ModelChange("added", other.nodes[n].name, other.nodes[n].module, other.nodes[n].op)
    yield from _all_changes(pair, pairs)


def causes_of(pair: Pair, tensor: str) -> tuple[str, ...]:
    """What differs in the nodes that compute a tensor in both models, one sentence each."""
    graph, other = pair.first.model.graph, pair.second.model.graph
    ours, theirs = pair.first.section([tensor]).nodes, pair.second.section([pair.there[tensor]]).nodes
    ops = Counter(graph.nodes[n].op for n in ours), Counter(other.nodes[n].op for n in theirs)
    gone, new = (", ".join(sorted((a - b).elements())) for a, b in (ops, ops[::-1]))
    found = [f"{new} instead of {gone}" if new and gone else f"{new or gone} {'added' if new else 'removed'}"]
    same = {i: j for i, j in _node_pairs(pair, ours, theirs).items() if graph.nodes[i].op == other.nodes[j].op}
    changes = [*_all_changes(pair, same)]
    found = [*(found if new or gone else ()), *(change.text for change in changes if not change.is_rounding)]
    types = [kind.dtype for kind in pair.kinds(tensor)]
    how = f"the type is {types[1]}, was {types[0]}" if types[0] != types[1] else "the difference is in how they are run"
    return tuple(found or [change.text for change in changes]) or (f"the same nodes and weights: {how}",)


def _node_pairs(pair: Pair, ours: Iterable[int], theirs: Iterable[int]) -> dict[int, int]:
    """Nodes of the first model with those of the second that write the same tensor.

    If their operators differ, what only converts a value stands for the node that computes this value.
    """
    graph, other = pair.first.model.graph, pair.second.model.graph
    writer = {name: j for j in theirs for name in other.nodes[j].writes}
    # What is not compared, such as a sequence or what is random, has no partner: it is the tensor of the same name.
    written = ((i, pair.there.get(n, "" if n in pair.here else n)) for i in ours for n in graph.nodes[i].writes)
    found = dict[int, int]()
    for i, j in ((i, writer[partner]) for i, partner in written if partner in writer):
        here, there = _converted_node(graph, i, pair.there), _converted_node(other, j, pair.here)
        is_better = graph.nodes[i].op != other.nodes[j].op and graph.nodes[here].op == other.nodes[there].op
        found |= {here: there} if is_better else {i: j}
    return found


def _converted_node(graph: Graph, n: int, known: Mapping[str, str]) -> int:
    """The node whose value a node converts, if no tensor of both models is between them; else the node itself."""
    while graph.nodes[n].op in SAME_VALUES and (source := next(iter(graph.nodes[n].reads), "")) not in known:
        if source not in graph.producer:
            break
        n = graph.producer[source]
    return n


def _all_changes(pair: Pair, pairs: dict[int, int]) -> Iterator[ModelChange]:
    """What differs in pairs of nodes."""
    first, second, seen = pair.first.model, pair.second.model, set[tuple[str, str]]()
    for i, j in pairs.items():
        node, other = first.graph.nodes[i], second.graph.nodes[j]
        change = partial(ModelChange, node=node.name, module=node.module)
        if node.op != other.op:
            yield change("operator", text=f"{other.op} instead of {node.op}")
            continue
        for text in _attributes(first, second, i, j):
            yield change("attribute", text=f"{node.op}: {text}")
        constants, other_constants = ({*one.weights, *one.constants} for one in (node, other))
        inputs, others = first.proto.graph.node[i].input, second.proto.graph.node[j].input
        if len(inputs) != len(others):
            yield change("input", text=f"{node.op}: {len(others)} inputs, were {len(inputs)}")
        for number, names in enumerate(zip(inputs, others, strict=False)):
            partner = pair.there.get(names[0])
            if partner and names[1] in pair.here and partner != names[1]:
                yield change("input", text=f"{node.op}: input {number} is {names[1]!r}, was {partner!r}")
            are_constant = names[0] in constants and names[1] in other_constants
            if are_constant and names not in seen and (found := _weight_change(pair, *names)):
                yield change("weight", text=f"{node.op}: {names[0]!r} {found[0]}", **found[1])
            seen.add(names)


def _attributes(model: Model, other: Model, i: int, j: int) -> Iterator[str]:
    ours, theirs = ({a.name: a for a in m.proto.graph.node[n].attribute} for m, n in ((model, i), (other, j)))
    for name in sorted({*ours, *theirs}):
        one, two = ours.get(name), theirs.get(name)
        if one is None or two is None or not same_message(one, model.range_of, two, other.range_of):
            yield f"{name} is {_shown(two)}, was {_shown(one)}"


def _shown(attribute: AttributeProto | None) -> str:
    value = "not given" if attribute is None else get_attribute_value(attribute)
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if attribute is None else short_repr(value.decode() if isinstance(value, bytes) else value)


def _weight_change(pair: Pair, name: str, other: str) -> tuple[str, dict[str, Any]] | None:
    """How a constant differs in the second model, and what a `ModelChange` says of it."""
    one, two = pair.first.weights.get(name), pair.second.weights.get(other)
    if one and two and same_values(one, pair.first.model.range_of, two, pair.second.model.range_of):
        return None
    a, b = _values(pair.first, name), _values(pair.second, other)
    if a.shape != b.shape:
        return f"has the shape {[*b.shape]}, was {[*a.shape]}", {"weight_bytes": a.nbytes, "largest": inf}
    differing, largest, sums = _difference(a, b)
    if not differing:
        return None
    if a.dtype != b.dtype and CODES & {str(a.dtype), str(b.dtype)}:
        return f"is {b.dtype}, was {a.dtype}", {"weight_bytes": a.nbytes, "is_rounding": True}
    allowed = max(ROUNDOFF.get(str(one.dtype), 0.0) for one in (a, b)) if a.dtype != b.dtype else 0.0
    if one is None or two is None:  # constant nodes convert it
        _, bits = pair.second.types(pair.second.section([other])) if two is None else (0.0, 8)
        crest = max(float(a.max()), -float(a.min())) * sqrt(a.size / sums[0]) if bits == 8 and sums[0] else 0.0
        allowed = max(allowed, quantization_noise(bits or 8, max(CREST, crest)))
    text = f"differs in {differing:,} of {a.size:,} values, by at most {largest:.3g}"
    factor = sums[1] / sums[0] if sums[0] else 0.0
    is_small = sums[0] - 2 * sums[1] + sums[2] <= (EXCESS * allowed) ** 2 * sums[0]
    is_rounding = is_small and abs(factor - 1) <= max(_BIAS, EXCESS * allowed**2)
    if is_rounding:
        text = f"is rounded: {text}"
    elif a.ndim == 2 and a.shape[0] == a.shape[1] and np.array_equal(a.T, b):
        text = f"is transposed: {text}"
    elif sums[2] and sums[2] - factor * sums[1] < _MULTIPLE * sums[2]:
        text = f"is {factor:.4g} times what it was: {text}"
    return text, {"weight_bytes": a.nbytes, "largest": largest, "is_rounding": is_rounding}


def _values(side: Side, name: str) -> Array:
    """The values of a constant; those in a file are mapped."""
    if (proto := side.weights.get(name)) is None:
        return np.asarray(side.run([name], {})[name].numpy())
    if not is_external(proto):
        return np.asarray(numpy_helper.to_array(proto))
    span, kind = side.model.range_of(proto), numpy_type(tensor_of_initializer(proto))
    return np.memmap(span.file, kind, "r", span.offset, tuple(proto.dims))


def _difference(a: Array, b: Array) -> tuple[int, float, tuple[float, float, float]]:
    """How many values differ, the largest difference, and the sums of a * a, a * b and b * b."""
    differing, largest, sums = 0, 0.0, np.zeros(3)
    flat = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _CHUNK):
        one, two = (each[start : start + _CHUNK].astype(np.float64) for each in flat)
        with np.errstate(all="ignore"):
            gap = np.where((one == two) | (np.isnan(one) & np.isnan(two)), 0.0, np.abs(one - two))
            sums += (one @ one, one @ two, two @ two)
        differing += int(np.count_nonzero(gap))
        largest = max(largest, float(np.nan_to_num(gap, nan=inf, posinf=inf).max(initial=0.0)))
    return differing, largest, (float(sums[0]), float(sums[1]), float(sums[2]))
