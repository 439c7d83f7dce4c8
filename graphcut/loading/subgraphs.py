"""What is inside a NodeProto: subgraphs, the outer tensors that these read, functions that it calls, tensors.

Recursion goes into nested subgraphs only, never along the graph. Scoping follows the ONNX IR spec, "Names Within a
Graph" and "Value Information"; where a subgraph redefines an outer name, the inner one wins, as in ONNX Runtime.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from msgspec import Struct
from onnx import (
    FunctionProto,
    GraphProto,
    NodeProto,
    StringStringEntryProto,
    TensorAnnotation,
    TensorProto,
    ValueInfoProto,
)

from ..core.records import table

FunctionKey = tuple[str, str, str]  #: domain, name and overload of a model-local function (ONNX IR spec, "Functions").
_M = TypeVar("_M", bound=Message)
Functions = Mapping[FunctionKey, FunctionProto]  #: model-local functions.
FIRST_IR_WITH_DEFAULTS: Final = 4
"""Before this IR version every initializer is an input too, and must not be fed (ONNX IR spec, "Graphs")."""


class OwnEnds(NamedTuple):
    """What an operator with subgraphs keeps for itself; inputs and outputs after these are passed on in order."""

    reads: int = 0  #: the first inputs of its node that no subgraph gets.
    inputs: int = 0  #: the first inputs of a subgraph that the operator makes.
    outputs: int = 0  #: the first outputs of a subgraph that are none of its node.


class _Names(Struct):
    """Operators and messages whose names decide what is done with them."""

    tensor_holders: frozenset[str]
    random: frozenset[str]
    pure_domains: frozenset[str]
    control_flow: dict[str, OwnEnds]


_NAMES: Final = table("loading/subgraphs.toml", _Names)
CONTROL_FLOW: Final = _NAMES.control_flow  #: the operators of ONNX with subgraphs.
TENSOR_HOLDERS: Final = _NAMES.tensor_holders  #: types of messages that are or contain a TensorProto.


def domain(name: str) -> str:
    """The domain, with `""` for ONNX's own, which has two spellings."""
    return "" if name == "ai.onnx" else name


def operator(node: NodeProto) -> str:
    """The operator of a node, with its domain unless that is ONNX's own."""
    space = domain(node.domain)
    return f"{space}.{node.op_type}" if space else node.op_type


def callee_key(node: NodeProto) -> FunctionKey:
    """The key of the function that a node calls, if the model has such a function."""
    return domain(node.domain), node.op_type, node.overload


def function_key(function: FunctionProto) -> FunctionKey:
    """The key by which nodes call `function`."""
    return domain(function.domain), function.name, function.overload


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs that are attributes of `node` itself."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def has_subgraphs(node: NodeProto) -> bool:
    """Whether an attribute of `node` is a subgraph."""
    for attribute in node.attribute:  # noqa: SIM110 - a generator for each of 100,000 nodes is slower
        if attribute.HasField("g") or attribute.graphs:
            return True
    return False


def captures(node: NodeProto) -> list[str]:
    """The names that the subgraphs of `node` read from outside of it, in the order in which they are first read."""
    return list(dict.fromkeys(name for subgraph in subgraphs(node) for name in free_names(subgraph)))


def free_names(graph: GraphProto) -> Iterator[str]:
    """The names that a subgraph reads from outside of it; each as often as it is read."""
    own = own_names(graph) | {""}
    for node in graph.node:
        yield from (name for name in (*node.input, *captures(node)) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def own_names(graph: GraphProto) -> set[str]:
    """The names of the tensors that a graph defines; `""` among them if a node omits an output."""
    tensors = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    outputs = (name for node in graph.node for name in node.output)
    return {*(value.name for value in graph.input), *(tensor.name for tensor in tensors), *outputs}


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and all nodes in their subgraphs at any depth."""
    for node in nodes:
        yield node
        for subgraph in subgraphs(node):
            yield from nodes_within(subgraph.node)


def graphs_within(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and the subgraphs in it at any depth."""
    yield graph
    for node in nodes_within(graph.node):
        yield from subgraphs(node)


def names_in(graph: GraphProto) -> set[str]:
    """The names of the tensors that a graph and the subgraphs in it define."""
    return set[str]().union(*map(own_names, graphs_within(graph))) - {""}


def fresh(name: str, taken: Set[str]) -> str:
    """`name`, or one like it that is not taken."""
    while name in taken:
        name += "'"
    return name


def remove_named(values: Any, names: Set[str]) -> None:  # noqa: ANN401 - protobuf's repeated fields share no public type
    """Remove the messages with these names from a field."""
    for i in reversed(range(len(values))):
        if values[i].name in names:
            del values[i]


def add_notes(graph: GraphProto, values: Iterable[ValueInfoProto], annotations: Iterable[TensorAnnotation]) -> None:
    """Add types of inner tensors, and annotations for quantization, for the tensors that a graph has."""
    outside = {value.name for value in (*graph.input, *graph.output)}
    inside = {name for node in graph.node for name in node.output} - outside
    graph.value_info.extend(value for value in values if value.name in inside)
    known = inside | outside | {tensor.name for tensor in graph.initializer}
    graph.quantization_annotation.extend(note for note in annotations if note.tensor_name in known)


def tensors_in(message: Message) -> Iterator[TensorProto]:
    """Every TensorProto in a message, at any depth and in the order of fields; without training_info."""
    return messages_in(message, TensorProto, TENSOR_HOLDERS.__contains__)


def messages_in(message: Message, kind: type[_M], is_holder: Callable[[str], bool]) -> Iterator[_M]:
    """Every message of a kind in a message, itself included, at any depth and in the order of fields.

    It is looked for in messages whose kind `is_holder`.
    """
    if isinstance(message, kind):
        yield message
        return
    if isinstance(message, NodeProto) and not message.attribute:  # as most nodes; listing fields takes long
        return
    for field, value in message.ListFields():
        if field.message_type is not None and is_holder(field.message_type.name):
            for inner in (value,) if isinstance(value, Message) else value:
                yield from messages_in(inner, kind, is_holder)


def is_external(tensor: TensorProto) -> bool:
    """Whether the values of `tensor` are in a file, not in the message."""
    return tensor.data_location == TensorProto.EXTERNAL


def locations_in(message: Message) -> Iterator[StringStringEntryProto]:
    """Where the external tensors of a message say that their files are."""
    tensors = filter(is_external, tensors_in(message))
    return (entry for tensor in tensors for entry in tensor.external_data if entry.key == "location")


def functions_called(nodes: Iterable[NodeProto], functions: Functions) -> dict[FunctionKey, None]:
    """The functions that the nodes call: directly, in their subgraphs, or through other functions."""
    needed: dict[FunctionKey, None] = {}
    if not functions:
        return needed
    waiting = [callee_key(node) for node in nodes_within(nodes)]
    while waiting:
        key = waiting.pop()
        if key in functions and key not in needed:
            needed[key] = None
            waiting.extend(callee_key(node) for node in nodes_within(functions[key].node))
    return needed


def is_stateful(node: NodeProto, functions: Functions, off: Set[str] = frozenset()) -> bool:
    """Whether two runs of `node` on the same values may differ.

    True for random operators, Dropout in training mode, and operators of unknown domains; also if they are in a
    subgraph or in a function that the node calls. A Dropout whose training mode is in `off` is not in training.
    """
    called = nodes_within(inner for key in functions_called([node], functions) for inner in functions[key].node)
    inside = chain(((one, off) for one in nodes_within([node])), ((one, frozenset[str]()) for one in called))
    return any(_is_stateful_alone(one, names) and callee_key(one) not in functions for one, names in inside)


def _is_stateful_alone(node: NodeProto, off: Set[str]) -> bool:
    if node.domain not in _NAMES.pure_domains or node.op_type in _NAMES.random:
        return True
    if not node.op_type.endswith("Dropout"):
        return False
    training = 4 if node.op_type in {"BiasDropout", "BitmaskBiasDropout"} else 2
    return len(node.input) > training and node.input[training] not in {"", *off}
