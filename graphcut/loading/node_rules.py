"""What ONNX asks of nodes and functions: inputs, outputs, attributes, subgraphs, and calls that end."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

import onnx
from onnx import NodeProto, OperatorSetIdProto

from ..core.errors import ModelError
from ..core.units import count
from .subgraphs import (
    CONTROL_FLOW,
    FunctionKey,
    Functions,
    OwnEnds,
    callee_key,
    domain,
    functions_called,
    nodes_within,
    subgraphs,
)

MAX_CALLED_NODES: Final = 200_000
MAX_CALL_DEPTH: Final = 100  #: that of ONNX Runtime.
"""The most nodes that the calls of functions may stand for. ONNX Runtime copies a function for each call: 131,072 nodes
take it 12 s, and 40 functions that each call the next one twice stand for 2**40."""


class _Schema(NamedTuple):
    """What an operator or a function asks of its nodes."""

    inputs: tuple[int, int]  #: the smallest and the largest number of inputs.
    outputs: tuple[int, int]
    attributes: Mapping[str, bool]  #: those that must be given, and whether each is a graph.


def check_nodes(nodes: Iterable[NodeProto], opsets: Iterable[OperatorSetIdProto], functions: Functions) -> None:
    """Raise a ModelError if a node, or one inside it, has not the inputs, outputs and attributes of its operator.

    ONNX Runtime refuses such a model, too. Operators that onnx doesn't know are not checked.
    """
    versions = {domain(opset.domain): opset.version for opset in opsets}
    for node in nodes_within(nodes):
        space = domain(node.domain)
        schema = _schema(node.op_type, space, versions.get(space, 0))
        if functions and (function := functions.get(callee_key(node))):
            schema = _Schema((0, len(function.input)), (0, len(function.output)), {})
        if schema is not None and (problem := next(_problems(node, schema), "")):
            raise ModelError(problem, hint="the model is damaged; check it with onnx.checker.check_model")


def operator_schema(op: str, space: str, version: int) -> onnx.defs.OpSchema | None:
    """What onnx says of an operator; None if it does not know it."""
    try:
        return onnx.defs.get_schema(op, version, space)
    except (onnx.defs.SchemaError, TypeError):  # a TypeError: a version that is no 32-bit number
        return None


@cache
def _schema(op: str, space: str, version: int) -> _Schema | None:
    found = operator_schema(op, space, version)
    if found is None:
        if space or op not in CONTROL_FLOW:  # these are checked whatever the version: others rely on them
            return None
        found = onnx.defs.get_schema(op)
    graph = onnx.defs.OpSchema.AttrType.GRAPH
    attributes = {name: one.type == graph for name, one in found.attributes.items() if one.required}
    return _Schema((found.min_input, found.max_input), (found.min_output, found.max_output), attributes)


def _problems(node: NodeProto, schema: _Schema) -> Iterator[str]:
    """What a schema does not allow in a node, one sentence each."""
    ends = ("input", len(node.input), schema.inputs), ("output", len(node.output), schema.outputs)
    for what, number, (least, most) in ends:
        if not least <= number <= most:
            limit = f"at least {least}" if number < least else f"at most {most}"
            yield f"{place(node)} has {count(number, what)}, and its operator has {limit}"
    for name, is_graph in schema.attributes.items():
        if not (found := [attribute for attribute in node.attribute if attribute.name == name]):
            yield f"{place(node)} has no attribute {name!r}"
        elif is_graph and not any(attribute.HasField("g") or attribute.ref_attr_name for attribute in found):
            yield f"the attribute {name!r} of {place(node)} is not a graph"
    if True in schema.attributes.values():
        yield from _problems_of_bodies(node)


def _problems_of_bodies(node: NodeProto) -> Iterator[str]:
    """A body must have an input for each value that it gets, and an output for each that its node carries or writes."""
    own = CONTROL_FLOW.get(node.op_type, OwnEnds(len(node.input)))
    passed = max(0, len(node.input) - own.reads)
    fed = own.inputs + passed
    for body in subgraphs(node):
        inputs, outputs = len(body.input), len(body.output)
        # A Scan of opset 8 has one input that is not fed.
        if fed and inputs != fed and (node.op_type, inputs) != ("Scan", fed - 1):
            yield f"the body of {place(node)} has {count(inputs, 'input')}, and gets {fed}"
        if node.op_type == "If" and outputs != len(node.output):
            yield f"a branch of {place(node)} has {count(outputs, 'output')}, and the node {len(node.output)}"
        if node.op_type == "Loop" and outputs < own.outputs + passed:
            yield f"the body of {place(node)} has {count(outputs, 'output')}, and needs {own.outputs + passed}"


def place(node: NodeProto) -> str:
    """Which node it is, for messages: its operator, and its name or that of its first output."""
    return f"the {node.op_type} node {node.name or next(iter(node.output), '')!r}"


def check_calls(nodes: Iterable[NodeProto], functions: Functions) -> None:
    """Raise a ModelError if functions call themselves, or stand for too many nodes. Nothing is copied."""
    if not functions:
        return
    nodes = list(nodes)
    called = functions_called(nodes, functions)
    calls = {key: [callee_key(node) for node in nodes_within(functions[key].node)] for key in called}
    number, depth = dict[FunctionKey, int](), dict[FunctionKey, int]()
    try:
        for key in TopologicalSorter(calls).static_order():
            number[key] = sum(number[inner] for inner in calls[key]) if key in calls else 1
            depth[key] = 1 + max((depth[inner] for inner in calls[key]), default=0) if key in calls else 0
    except CycleError as error:
        names = " calls ".join(repr(key[1]) for key in reversed(error.args[1]))
        raise ModelError(f"functions call themselves: {names}", hint="ONNX functions must not be recursive") from None
    if (deepest := max(depth.values(), default=0)) > MAX_CALL_DEPTH:
        message = f"functions call each other {deepest} deep, and ONNX Runtime takes at most {MAX_CALL_DEPTH}"
        raise ModelError(message, hint="put their nodes into the graph with onnx.inliner.inline_local_functions")
    total = sum(number[callee_key(node)] for node in nodes_within(nodes) if callee_key(node) in calls)
    if total > MAX_CALLED_NODES:
        message = f"the calls of functions stand for {total:,} nodes, and at most {MAX_CALLED_NODES:,} are read"
        raise ModelError(message, hint="each call of a function copies its nodes; export the model without functions")
