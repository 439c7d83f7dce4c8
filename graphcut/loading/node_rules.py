"""What ONNX asks of nodes and functions: inputs, outputs, attributes, subgraphs, and calls that end."""

from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

import onnx
from onnx import FunctionProto, NodeProto, OperatorSetIdProto

from ..core.errors import ModelError
from ..core.units import count
from .subgraphs import FunctionKey, callee_key, domain, functions_called, nodes_within, subgraphs

MAX_CALLED_NODES: Final = 200_000
"""The most nodes that the calls of functions may stand for. ONNX Runtime copies a function for each call: 131,072 nodes
take it 12 s, and 40 functions that each call the next one twice stand for 2**40."""

_WITH_BODIES: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators with subgraphs, which are checked even where onnx does not know the version: others rely on these."""

_DAMAGED: Final = "the model is damaged; check it with onnx.checker.check_model"


def check_nodes(
    nodes: Iterable[NodeProto], opsets: Iterable[OperatorSetIdProto], functions: Mapping[FunctionKey, FunctionProto]
) -> None:
    """Check the inputs, outputs and attributes of nodes and of those inside them, as ONNX Runtime does.

    Raises:
        ModelError: they are not those of the operator. Operators that onnx doesn't know are not checked.
    """
    versions = {domain(opset.domain): opset.version for opset in opsets}
    for node in nodes_within(nodes):
        space = domain(node.domain)
        schema = _schema(node.op_type, space, versions.get(space, 0))
        if function := functions.get(callee_key(node)):
            schema = _Schema((0, len(function.input)), (0, len(function.output)), (), ())
        if schema is not None:
            _check_node(node, schema)


class _Schema(NamedTuple):
    inputs: tuple[int, int]  #: the smallest and the largest number of inputs.
    outputs: tuple[int, int]
    attributes: tuple[str, ...]  #: those that must be given.
    subgraphs: tuple[str, ...]  #: those of them that are graphs.


def _check_node(node: NodeProto, schema: _Schema) -> None:
    for what, number, (least, most) in (
        ("input", len(node.input), schema.inputs),
        ("output", len(node.output), schema.outputs),
    ):
        if not least <= number <= most:
            limit = f"at least {least}" if number < least else f"at most {most}"
            message = f"{place(node)} has {count(number, what)}, and its operator has {limit}"
            raise ModelError(message, hint=_DAMAGED)
    for name in schema.attributes:
        if not any(attribute.name == name for attribute in node.attribute):
            raise ModelError(f"{place(node)} has no attribute {name!r}", hint=_DAMAGED)
    for name in schema.subgraphs:
        if not any(a.name == name and (a.HasField("g") or a.ref_attr_name) for a in node.attribute):
            raise ModelError(f"the attribute {name!r} of {place(node)} is not a graph", hint=_DAMAGED)
        _check_body(node)


@cache
def _schema(op: str, space: str, version: int) -> _Schema | None:
    try:
        found = onnx.defs.get_schema(op, version, space)
    except (onnx.defs.SchemaError, TypeError):  # a TypeError: a version that is no 32-bit number
        if space or op not in _WITH_BODIES:
            return None
        found = onnx.defs.get_schema(op)
    needed = {name: attribute.type for name, attribute in found.attributes.items() if attribute.required}
    graphs = [name for name, kind in needed.items() if kind == onnx.defs.OpSchema.AttrType.GRAPH]
    return _Schema(
        (found.min_input, found.max_input), (found.min_output, found.max_output), tuple(needed), tuple(graphs)
    )


def _check_body(node: NodeProto) -> None:
    """Check that a body has an input for each value it gets, and an output for each that its node carries or writes."""
    fed = {"Loop": max(2, len(node.input)), "Scan": len(node.input), "SequenceMap": len(node.input)}.get(node.op_type)
    for body in subgraphs(node):
        inputs, outputs = len(body.input), len(body.output)
        if fed is not None and inputs not in ({fed, fed - 1} if node.op_type == "Scan" else {fed}):
            raise ModelError(f"the body of {place(node)} has {count(inputs, 'input')}, and gets {fed}", hint=_DAMAGED)
        if node.op_type == "If" and outputs != len(node.output):
            message = f"a branch of {place(node)} has {count(outputs, 'output')}, and the node {len(node.output)}"
            raise ModelError(message, hint=_DAMAGED)
        if node.op_type == "Loop" and fed is not None and outputs < fed - 1:
            raise ModelError(
                f"the body of {place(node)} has {count(outputs, 'output')}, and needs {fed - 1}", hint=_DAMAGED
            )


def place(node: NodeProto) -> str:
    """Which node it is, for messages: its operator, and its name or that of its first output."""
    return f"the {node.op_type} node {node.name or next(iter(node.output), '')!r}"


def check_calls(nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Check that functions don't call themselves, and stand for at most `MAX_CALLED_NODES` nodes. Nothing is copied.

    Raises:
        ModelError: they do, or stand for more.
    """
    if not functions:
        return
    nodes = list(nodes)
    called = functions_called(nodes, functions)
    calls = {key: [callee_key(node) for node in nodes_within(functions[key].node)] for key in called}
    try:
        order = list(
            TopologicalSorter(
                {key: [one for one in inner if one in calls] for key, inner in calls.items()}
            ).static_order()
        )
    except CycleError as error:
        names = " calls ".join(repr(key[1]) for key in reversed(error.args[1]))
        raise ModelError(f"functions call themselves: {names}", hint="ONNX functions must not be recursive") from None
    number: dict[FunctionKey, int] = {}
    for key in order:
        number[key] = sum(number.get(inner, 1) for inner in calls[key])
    total = sum(number.get(callee_key(node), 0) for node in nodes_within(nodes))
    if total > MAX_CALLED_NODES:
        raise ModelError(
            f"the calls of functions stand for {total:,} nodes, and at most {MAX_CALLED_NODES:,} are read",
            hint="each call of a function copies its nodes; export the model without functions",
        )
