"""Names that a model defines twice. ONNX Runtime takes the last definition of a weight or Constant, with a warning."""

from collections import Counter
from collections.abc import Callable, Sequence

from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..core.errors import ModelError
from ..core.units import count
from .external_data import ByteRange, same_bytes
from .fingerprint import canonical
from .subgraphs import domain, function_key, is_external, tensors_in

RangeOf = Callable[[TensorProto], ByteRange]
"""The bytes of an external tensor."""


def is_constant(node: NodeProto) -> bool:
    """Whether it is a Constant of ONNX. ONNX Runtime reads it as an initializer, so its name needn't be unique."""
    return node.op_type == "Constant" and not domain(node.domain)


def drop_equal_definitions(model: ModelProto, range_of: RangeOf) -> list[str]:
    """Keep one of equal definitions of a weight or Constant, and say so in notes.

    Raises:
        ModelError: definitions of one name differ; or a function is defined twice, which ONNX Runtime refuses.
    """
    functions = Counter(map(function_key, model.functions))
    for key, times in functions.items():
        if times > 1:
            raise ModelError(
                f"the function {'.'.join(filter(None, key))!r} is defined {times} times",
                hint="the model is invalid, and ONNX Runtime refuses it: keep one definition",
            )
    graph = model.graph
    notes = []
    weights = _repeated([tensor.name for tensor in graph.initializer], graph.initializer, "initializers", range_of)
    for i in reversed(weights):
        del graph.initializer[i]
    if weights:
        notes.append(f"removed {count(len(weights), 'initializer')} defined again with the same values")
    if constants := _repeated_constants(graph, range_of):
        first = graph.node[constants[0]].output[0]
        notes.append(
            f"removed {count(len(constants), 'Constant node')} that repeated another, such as that of {first!r}"
        )
        for i in reversed(constants):
            del graph.node[i]
    return notes


def _repeated_constants(graph: GraphProto, range_of: RangeOf) -> list[int]:
    found = [i for i, node in enumerate(graph.node) if is_constant(node)]
    found = [i for i in found if len(graph.node[i].output) == len(graph.node[i].attribute) == 1]
    names = [graph.node[i].output[0] for i in found]
    values = [graph.node[i].attribute[0] for i in found] if len(set(names)) < len(names) else []
    return [found[i] for i in _repeated(names, values, "Constant nodes", range_of)]


def _repeated(names: Sequence[str], values: Sequence[Message], kind: str, range_of: RangeOf) -> list[int]:
    """The indices of definitions that repeat an earlier one of their name."""
    if len(set(names)) == len(names):
        return []
    first: dict[str, Message] = {}
    repeated = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if name not in first:
            first[name] = value
        elif _is_same(first[name], value, range_of):
            repeated.append(i)
        else:
            raise ModelError(
                f"the model is invalid: two {kind} define {name!r}, with different values",
                hint="ONNX Runtime takes the last of them, other tools the first; give each a name of its own",
            )
    return repeated


def _is_same(a: Message, b: Message, range_of: RangeOf) -> bool:
    """Whether two messages are equal; the values of large tensors are compared in their files."""
    if canonical(a) != canonical(b):
        return False
    pairs = zip(filter(is_external, tensors_in(a)), filter(is_external, tensors_in(b)), strict=True)
    return all(same_bytes(range_of(x), range_of(y)) for x, y in pairs)
