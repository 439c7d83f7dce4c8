"""Names that a model defines twice. ONNX Runtime takes the last definition of a weight or Constant, with a warning."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..core.errors import ModelError
from ..core.units import count
from .fingerprint import RangeOf, same_message, same_values
from .subgraphs import domain, function_key
from .tensor_values import constant_value


def is_constant(node: NodeProto) -> bool:
    """Whether it is a Constant of ONNX. ONNX Runtime reads it as an initializer, so its name needn't be unique."""
    return node.op_type == "Constant" and not domain(node.domain)


def drop_equal_definitions(model: ModelProto, range_of: RangeOf) -> list[str]:
    """Keep one of the definitions of a weight or Constant that have the same values, and say so in notes.

    A ModelError if definitions of one name differ, or a function is defined twice, which ONNX Runtime refuses.
    """
    for key, times in Counter(map(function_key, model.functions)).items():
        if times > 1:
            message = f"the function {'.'.join(filter(None, key))!r} is defined {times} times"
            raise ModelError(message, hint="the model is invalid, and ONNX Runtime refuses it: keep one definition")
    graph = model.graph
    weights = [(tensor.name, "initializer", graph.initializer, tensor, tensor) for tensor in graph.initializer]
    nodes = [node for node in graph.node if is_constant(node) and len(node.output) == 1]
    constants = [(node.output[0], "Constant node", graph.node, node, constant_value(node) or node) for node in nodes]
    first: dict[str, tuple[str, Message]] = {}
    repeated = Counter[str]()
    found: list[tuple[str, str, Any, Message, Message]] = [*weights, *constants]
    for name, kind, field, definition, value in found:
        known_kind, known = first.setdefault(name, (kind, value))
        if known is value:
            continue
        if not _is_equal(known, value, range_of):
            kinds, taken = (f"two {kind}s", "last") if kind == known_kind else (f"an {known_kind} and a {kind}", kind)
            hint = f"ONNX Runtime takes the {taken}, other tools another; give each a name of its own"
            raise ModelError(f"the model is invalid: {kinds} define {name!r}, with different values", hint=hint)
        del field[next(i for i, one in enumerate(field) if one is definition)]
        repeated[kind] += 1
    removed = [f"removed {count(n, kind)} defined again with the same values" for kind, n in repeated.items()]
    return [*removed, *_read_as_defaults(graph)]


def _read_as_defaults(graph: GraphProto) -> Iterator[str]:
    """Make initializers of Constant nodes with the name of an input, as ONNX Runtime does; a note if there are any."""
    inputs = {value.name for value in graph.input}
    nodes = [node for node in graph.node if is_constant(node) and inputs.intersection(node.output)]
    pairs = [(node, value) for node in nodes if (value := constant_value(node)) is not None]
    for node, value in pairs:
        graph.node.remove(node)
        graph.initializer.append(value)
    if pairs:
        yield f"{count(len(pairs), 'Constant node')} with the name of an input: read as its default"


def _is_equal(a: Message, b: Message, range_of: RangeOf) -> bool:
    """Whether two tensors have one type, shape and values; or whether other messages are equal."""
    if isinstance(a, TensorProto) and isinstance(b, TensorProto) and a.data_type == b.data_type:
        return a.dims == b.dims and same_values(a, range_of, b, range_of)
    return same_message(a, range_of, b, range_of)
