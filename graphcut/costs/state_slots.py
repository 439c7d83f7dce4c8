"""States by structure: which output an input becomes, found by following it through operators that keep a state.

Attention returns its past keys with the new ones, a recurrent cell its hidden state. The slots are those in the schemas
of ai.onnx (opset 24) and of ONNX Runtime's contributed operators.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from onnx import FunctionProto, GraphProto, NodeProto

from ..core.graph import grouped
from ..core.records import table
from ..loading.model import Model
from ..loading.subgraphs import Functions, callee_key, captures, operator, subgraphs


class StateSlot(msgspec.Struct, frozen=True):
    """Where an operator reads a state and where it writes it."""

    read: int  #: index of the input.
    written: int  #: index of the output.
    axis: int | None = None  #: the axis of the tokens; `None` if there is none, or an attribute has it.
    is_sure: bool = True  #: it is always a state; else only if other nodes read it after the operator, too.


_SLOTS: Final = table("costs/state_slots.toml", dict[str, tuple[StateSlot, ...]])
_DEFAULT_AXIS: Final[Mapping[str, int | None]] = {"Concat": None, "ScatterElements": 0, "TensorScatter": -2}
"""Operators with the axis of the tokens in the attribute `axis`, and its default."""

_RESHAPING: Final = frozenset({"Transpose", "Squeeze", "Unsqueeze", "Reshape"})
_PASSING: Final = _RESHAPING | {"Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "Slice"}
"""Operators whose output is the state that is their first input; `_RESHAPING` ones change its axes."""

_PICKING: Final = frozenset({"Split", "Gather"})  #: operators that take the state of one layer from that of all layers.


class StateRoute(NamedTuple):
    """What is known of a state that was followed to a tensor."""

    is_kept: bool = False  #: it passed an operator with a state slot.
    is_sure: bool = False  #: one of these is always a state.
    is_used: bool = False  #: another node reads it after that.
    axis: int | None = None  #: the axis of its tokens, if an operator has it.
    is_reshaped: bool = False  #: its axes changed before an operator had the axis of the tokens.
    is_appended: bool = False  #: a Concat added what is new.
    is_cropped: bool = False  #: a piece of it was taken.


class _Names(NamedTuple):
    """A graph, subgraph or function in which tensors are followed by name."""

    readers: Callable[[str], Sequence[NodeProto]]
    functions: Functions


def routes_from(model: Model, name: str) -> dict[str, StateRoute]:
    """The outputs of `model` that its input `name` becomes. Visits the nodes on the way and their readers."""
    graph, nodes = model.graph, model.proto.graph.node
    names = _Names(lambda tensor: [nodes[i] for i in graph.readers.get(tensor, ())], model.functions)
    found = _follow(names, name, StateRoute())
    routes = {output: found[output] for output in graph.writes if output in found}
    return {output: route for output, route in routes.items() if route.is_kept and (route.is_sure or route.is_used)}


def _follow(names: _Names, start: str, route: StateRoute) -> dict[str, StateRoute]:
    """All tensors that `start` becomes, itself included."""
    found: dict[str, StateRoute] = {}
    stack = [(start, route)]
    while stack:
        name, here = stack.pop()
        if name in found:
            continue
        steps = [list(_steps(names, node, name, here)) for node in names.readers(name)]
        if here.is_kept and not all(steps):  # a reader that it doesn't pass through
            here = here._replace(is_used=True)
            steps = [[(made, step._replace(is_used=True)) for made, step in found_by] for found_by in steps]
        found[name] = here
        stack.extend(step for found_by in steps for step in found_by)
    if any(route.is_used for route in found.values()):
        found = {name: route._replace(is_used=route.is_kept) for name, route in found.items()}
    return found


def _steps(names: _Names, node: NodeProto, name: str, route: StateRoute) -> Iterator[tuple[str, StateRoute]]:
    """The outputs of `node` that `name` becomes."""
    op = operator(node)
    if op == "If":
        for subgraph in subgraphs(node):
            outputs = [value.name for value in subgraph.output]
            yield from _through(_names_in(subgraph, names), name, outputs, node, route)
    elif (function := names.functions.get(callee_key(node))) is not None:
        for formal, actual in zip(function.input, node.input, strict=False):
            if actual == name:
                yield from _through(_names_in(function, names), formal, function.output, node, route)
    elif op in _PASSING and node.input[0] == name:
        is_reshaped = route.is_reshaped or (op in _RESHAPING and route.axis is None)
        yield node.output[0], route._replace(is_reshaped=is_reshaped, is_cropped=route.is_cropped or op == "Slice")
    elif op in _PICKING and node.input[0] == name:
        yield from ((made, route._replace(is_reshaped=True, is_cropped=True)) for made in node.output if made)
    elif op == "Concat" and route.is_kept and list(node.input).count(name) == 1:
        yield node.output[0], route  # the states of all layers together
    elif list(node.input).count(name) == 1:
        yield from _through_slots(node, op, name, route)


def _through_slots(node: NodeProto, op: str, name: str, route: StateRoute) -> Iterator[tuple[str, StateRoute]]:
    for slot in _SLOTS.get(op, ()):
        is_read = len(node.input) > slot.read and node.input[slot.read] == name
        if is_read and len(node.output) > slot.written and node.output[slot.written]:
            given = (attribute.i for attribute in node.attribute if attribute.name == "axis")
            axis = next(given, _DEFAULT_AXIS[op]) if op in _DEFAULT_AXIS else slot.axis
            known = route.axis if route.axis is not None or route.is_reshaped else axis
            made = route._replace(is_kept=True, is_sure=route.is_sure or slot.is_sure, axis=known)
            yield node.output[slot.written], made._replace(is_appended=op == "Concat")


def _through(
    inner: _Names, name: str, outputs: Sequence[str], node: NodeProto, route: StateRoute
) -> Iterator[tuple[str, StateRoute]]:
    """The outputs of `node` that `name` becomes in its subgraph or function."""
    found = _follow(inner, name, route)
    for made, outer in zip(outputs, node.output, strict=False):
        if made in found and outer and made != name:
            yield outer, found[made]


def _names_in(owner: GraphProto | FunctionProto, names: _Names) -> _Names:
    readers = grouped((name, node) for node in owner.node for name in dict.fromkeys((*node.input, *captures(node))))
    return _Names(lambda name: readers.get(name, ()), names.functions)
