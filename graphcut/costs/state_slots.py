"""States by structure: which output an input of a model becomes, found by following it through operators that keep one.

What they keep stands in their definitions: attention gives its past keys back with the new ones, a recurrent cell its
hidden state. Slots by the schemas of ai.onnx (opset 24) and of ONNX Runtime's contributed operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from onnx import FunctionProto, GraphProto, NodeProto

from ..loading.model import Model
from ..loading.subgraphs import FunctionKey, callee_key, captures, subgraphs


class StateSlot(NamedTuple):
    """Where an operator reads a state and where it gives it back.

    Attributes:
        read: which of its inputs.
        written: which of its outputs.
        axis: along which the tokens of the state stand, from the last where negative; None for none, or where the node
            says it.
        is_sure: it is a state whatever becomes of it; else only where others read it on its way out, too.
    """

    read: int
    written: int
    axis: int | None = None
    is_sure: bool = True


_KEYS_AND_VALUES: Final = -2
_SLOTS: Final[Mapping[str, tuple[StateSlot, ...]]] = {
    "Concat": (StateSlot(0, 0, is_sure=False),),
    "ScatterND": (StateSlot(0, 0, is_sure=False),),
    "ScatterElements": (StateSlot(0, 0, is_sure=False),),
    "TensorScatter": (StateSlot(0, 0),),
    "Attention": (StateSlot(4, 1, _KEYS_AND_VALUES), StateSlot(5, 2, _KEYS_AND_VALUES)),
    "LSTM": (StateSlot(5, 1), StateSlot(6, 2)),
    "GRU": (StateSlot(5, 1),),
    "RNN": (StateSlot(5, 1),),
    "com.microsoft.GroupQueryAttention": (StateSlot(3, 1, _KEYS_AND_VALUES), StateSlot(4, 2, _KEYS_AND_VALUES)),
    "com.microsoft.SparseAttention": (StateSlot(3, 1, _KEYS_AND_VALUES), StateSlot(4, 2, _KEYS_AND_VALUES)),
    "com.microsoft.PagedAttention": (StateSlot(3, 1), StateSlot(4, 2)),
    "com.microsoft.MultiHeadAttention": (StateSlot(6, 1, _KEYS_AND_VALUES), StateSlot(7, 2, _KEYS_AND_VALUES)),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (
        StateSlot(5, 1, _KEYS_AND_VALUES),
        StateSlot(6, 2, _KEYS_AND_VALUES),
    ),
    "com.microsoft.DecoderMaskedSelfAttention": (StateSlot(4, 1, _KEYS_AND_VALUES),),
    "com.microsoft.Attention": (StateSlot(4, 1, _KEYS_AND_VALUES),),
    "com.microsoft.QAttention": (StateSlot(8, 1, _KEYS_AND_VALUES),),
    "com.microsoft.LinearAttention": (StateSlot(3, 1),),
    "com.microsoft.CausalConvWithState": (StateSlot(3, 1),),
}
_AXES: Final[Mapping[str, int | None]] = {"Concat": None, "ScatterElements": 0, "TensorScatter": -2}
"""Operators whose attribute `axis` says where tokens stand, and what it is where it isn't written."""

_PASSING: Final = frozenset(
    {"Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "Slice", "Transpose", "Squeeze", "Unsqueeze", "Reshape"}
)
"""Operators that hand on the state they read first."""

_PARTING: Final = frozenset({"Split", "Gather"})
"""Operators that take the state of one layer out of all: on the way to a cell."""

_SHAPING: Final = frozenset({"Transpose", "Squeeze", "Unsqueeze", "Reshape"})
"""Operators after which the axes of a state are others."""


@dataclass(frozen=True, slots=True)
class StateRoute:
    """How far a state was followed.

    Attributes:
        is_kept: an operator that keeps states was passed.
        is_sure: by this it is a state, without looking who else reads it.
        is_used: something else reads it after that.
        axis: along which its tokens stand, as far as operators tell.
        is_moved: an operator changed its axes before the first one told.
    """

    is_kept: bool = False
    is_sure: bool = False
    is_used: bool = False
    axis: int | None = None
    is_moved: bool = False

    @property
    def is_state(self) -> bool:
        """Is what came by here a state?"""
        return self.is_kept and (self.is_sure or self.is_used)


class _Place(NamedTuple):
    """A graph, a body or a function: where names are followed."""

    readers: Callable[[str], Sequence[NodeProto]]
    functions: Mapping[FunctionKey, FunctionProto]


def routes_from(model: Model, name: str) -> dict[str, StateRoute]:
    """The outputs of `model` that the input `name` becomes, and how. Visits what is on the way, and its readers."""
    graph, nodes = model.graph, model.proto.graph.node
    place = _Place(lambda tensor: [nodes[i] for i in graph.readers.get(tensor, ())], model.functions)
    outputs = set(graph.writes)
    return {
        tensor: route
        for tensor, route in _follow(place, name, StateRoute()).items()
        if tensor in outputs and tensor != name and route.is_state
    }


def _follow(place: _Place, start: str, route: StateRoute) -> dict[str, StateRoute]:
    """All tensors that `start` becomes, itself included."""
    found: dict[str, StateRoute] = {}
    waiting = [(start, route)]
    while waiting:
        name, here = waiting.pop()
        if name in found:
            continue
        readers = place.readers(name)
        steps = [list(_steps(place, node, name, here)) for node in readers]
        if here.is_kept and not all(steps):
            here = replace(here, is_used=True)
            steps = [[(made, replace(route, is_used=True)) for made, route in step] for step in steps]
        found[name] = here
        waiting.extend(step for way in steps for step in way)
    if any(route.is_used for route in found.values()):
        found = {name: replace(route, is_used=route.is_kept) for name, route in found.items()}
    return found


def _steps(place: _Place, node: NodeProto, name: str, route: StateRoute) -> Iterator[tuple[str, StateRoute]]:
    """What `name` becomes in `node`."""
    kind = node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}.{node.op_type}"
    if kind == "If":
        for body in subgraphs(node):
            yield from _through(_Place(_readers_in(body), place.functions), name, _outputs(body), node, route)
    elif (function := place.functions.get(callee_key(node))) is not None:
        inner = _Place(_readers_in(function), place.functions)
        for formal, actual in zip(function.input, node.input, strict=False):
            if actual == name:
                yield from _through(inner, formal, list(function.output), node, route)
    elif kind in _PASSING and node.input[0] == name:
        moved = route.is_moved or (kind in _SHAPING and route.axis is None)
        yield node.output[0], replace(route, is_moved=moved)
    elif kind in _PARTING and node.input[0] == name:
        yield from ((made, replace(route, is_moved=True)) for made in node.output if made)
    elif kind == "Concat" and route.is_kept and list(node.input).count(name) == 1:
        yield node.output[0], route  # the states of all layers are put together again
    else:
        yield from _kept(node, kind, name, route)


def _kept(node: NodeProto, kind: str, name: str, route: StateRoute) -> Iterator[tuple[str, StateRoute]]:
    for slot in _SLOTS.get(kind, ()):
        is_here = len(node.input) > slot.read and node.input[slot.read] == name and list(node.input).count(name) == 1
        if is_here and len(node.output) > slot.written and node.output[slot.written]:
            axis = slot.axis
            if kind in _AXES:
                axis = next((a.i for a in node.attribute if a.name == "axis"), _AXES[kind])
            known = route.axis if route.axis is not None or route.is_moved else axis
            yield (
                node.output[slot.written],
                replace(route, is_kept=True, is_sure=route.is_sure or slot.is_sure, axis=known),
            )


def _through(
    inner: _Place, name: str, outputs: Sequence[str], node: NodeProto, route: StateRoute
) -> Iterator[tuple[str, StateRoute]]:
    """What comes out of a body or function."""
    found = _follow(inner, name, route)
    for made, outer in zip(outputs, node.output, strict=False):
        if made in found and outer and made != name:
            yield outer, found[made]


def _outputs(body: GraphProto) -> list[str]:
    return [value.name for value in body.output]


def _readers_in(within: GraphProto | FunctionProto) -> Callable[[str], Sequence[NodeProto]]:
    readers: dict[str, list[NodeProto]] = {}
    for node in within.node:
        for name in dict.fromkeys((*node.input, *captures(node))):
            readers.setdefault(name, []).append(node)
    return lambda name: readers.get(name, ())
