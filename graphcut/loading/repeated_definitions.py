"""Names that a model defines twice. ONNX Runtime takes the last definition of a weight or Constant, with a warning."""

from collections import Counter
from collections.abc import Iterable

from google.protobuf.message import Message
from onnx import ModelProto, NodeProto, TensorProto

from ..core.errors import ModelError
from ..core.units import count
from .fingerprint import RangeOf, inline_bytes, same_message, same_values
from .subgraphs import domain, function_key, is_external
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
    graph, notes = model.graph, []
    weights = [(i, tensor.name, tensor) for i, tensor in enumerate(graph.initializer)]
    nodes = [(i, node) for i, node in enumerate(graph.node) if is_constant(node)]
    constants = [(i, n.output[0], constant_value(n) or n) for i, n in nodes if len(n.output) == 1]
    kinds = ("initializer", graph.initializer, weights), ("Constant node", graph.node, constants)
    for kind, field, found in kinds:
        repeated = _repeated(kind, found, range_of)
        for i in reversed(repeated):
            del field[i]
        if repeated:
            notes.append(f"removed {count(len(repeated), kind)} defined again with the same values")
    return notes


def _repeated(kind: str, definitions: Iterable[tuple[int, str, Message]], range_of: RangeOf) -> list[int]:
    """The indices of definitions that repeat an earlier one of their name."""
    first: dict[str, Message] = {}
    repeated = []
    for i, name, value in definitions:
        if first.setdefault(name, value) is value:
            continue
        if not _is_equal(first[name], value, range_of):
            hint = "ONNX Runtime takes the last of them, other tools the first; give each a name of its own"
            raise ModelError(f"the model is invalid: two {kind}s define {name!r}, with different values", hint=hint)
        repeated.append(i)
    return repeated


def _is_equal(a: Message, b: Message, range_of: RangeOf) -> bool:
    """Whether two tensors have one type, shape and values; or whether other messages are equal."""
    if not (isinstance(a, TensorProto) and isinstance(b, TensorProto)) or TensorProto.STRING in {
        a.data_type,
        b.data_type,
    }:
        return same_message(a, range_of, b, range_of)
    if (a.data_type, a.dims) != (b.data_type, b.dims):
        return False
    if is_external(a) or is_external(b):
        return same_values(a, range_of, b, range_of)
    return inline_bytes(a) == inline_bytes(b)
