"""What a model *is*, apart from how it is written down: canonical facts for digests and for the structural proof.

Two messages have the same facts when they mean the same model. The order of nodes and initializers does not count, nor
do the types noted on inner tensors (value_info), nor where the values of large tensors lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from .subgraphs import FIRST_IR_WITH_DEFAULTS, is_external, tensors_in_function, tensors_of


def graph_digest(model: ModelProto) -> str:
    """A digest of everything in `model` but the values of large tensors: `sha256:` and 64 hexadecimal digits."""
    whole = hashlib.sha256()
    for fact in canonical_messages(model):
        whole.update(len(fact).to_bytes(8, "little"))
        whole.update(fact)
    return f"sha256:{whole.hexdigest()}"


def canonical_messages(model: ModelProto) -> Iterator[bytes]:
    """All facts of `model`, in an order that does not depend on how it is written down."""
    rest = ModelProto()
    copy_fields(model, rest, but={"graph", "functions", "training_info"})
    yield rest.SerializeToString(deterministic=True)
    yield from sorted(canonical_function(function) for function in model.functions)
    graph = model.graph
    head = GraphProto(name=graph.name, doc_string=graph.doc_string)
    # In IR 3 every initializer is listed among the inputs as well, and only the order of the others means anything.
    listed = {t.name for t in graph.initializer} if model.ir_version < FIRST_IR_WITH_DEFAULTS else set()
    head.input.extend(sorted(graph.input, key=lambda value: value.name if value.name in listed else ""))
    head.output.extend(graph.output)
    head.metadata_props.extend(graph.metadata_props)
    yield head.SerializeToString(deterministic=True)
    yield from sorted(canonical_node(node) for node in graph.node)
    yield from sorted(canonical_tensor(tensor) for tensor in graph.initializer)
    yield from sorted(canonical_sparse(sparse) for sparse in graph.sparse_initializer)
    yield from sorted(note.SerializeToString(deterministic=True) for note in graph.quantization_annotation)


def copy_fields(source: ModelProto, target: ModelProto, *, but: Set[str]) -> None:
    """Copy every field of `source` but those called `but`, those that this graphcut doesn't know of included."""
    for field, value in source.ListFields():
        if field.name in but:
            continue
        if isinstance(value, str | int | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)


def canonical_function(function: FunctionProto) -> bytes:
    """A function with everything in it, but for where the values of large tensors lie."""
    bare = FunctionProto()
    bare.CopyFrom(function)
    for tensor in tensors_in_function(bare):
        _forget_place(tensor)
    return bare.SerializeToString(deterministic=True)


def canonical_node(node: NodeProto) -> bytes:
    """A node with all its attributes, byte for byte, but for where the values of large tensors lie."""
    if not has_external(node):
        return node.SerializeToString(deterministic=True)
    bare = NodeProto()
    bare.CopyFrom(node)
    _forget_places([bare])
    return bare.SerializeToString(deterministic=True)


def canonical_tensor(tensor: TensorProto) -> bytes:
    """A tensor with its values where they are small, and without them where they lie in a file."""
    if not is_external(tensor):
        return tensor.SerializeToString(deterministic=True)
    bare = TensorProto()
    bare.CopyFrom(tensor)
    _forget_place(bare)
    return bare.SerializeToString(deterministic=True)


def canonical_sparse(sparse: SparseTensorProto) -> bytes:
    """A sparse tensor, likewise."""
    bare = SparseTensorProto()
    bare.CopyFrom(sparse)
    _forget_place(bare.values)
    _forget_place(bare.indices)
    return bare.SerializeToString(deterministic=True)


def has_external(node: NodeProto) -> bool:
    """Does `node` carry a tensor whose values lie in a file?"""
    return any(is_external(tensor) for attribute in node.attribute for tensor in tensors_of(attribute))


def _forget_places(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            for tensor in tensors_of(attribute):
                _forget_place(tensor)


def _forget_place(tensor: TensorProto) -> None:
    if is_external(tensor):
        del tensor.external_data[:]
        tensor.ClearField("data_location")
