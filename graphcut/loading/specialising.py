"""Specialise a model: give inputs a fixed value, and replace each If that this decides by the branch that it takes."""

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from ..core.errors import UsageError, check_names
from ..core.graph import reached
from ..core.tensors import Dims
from .fingerprint import head_of
from .joining import rename_in
from .model import Model, read_model
from .size_reads import read_sizes_of_needed
from .subgraphs import captures, domain, fresh, is_external, is_stateful, names_in, own_names, remove_named, subgraphs

Number = bool | int | float


def specialise(model: ModelProto, values: Mapping[str, Number]) -> None:
    """Change a model so that inputs have these values, in all their elements, and are no inputs any more.

    Each If of the main graph whose condition follows from them, or from constants, becomes the nodes of the branch that
    it takes. Outputs keep their names.

    Raises:
        UsageError: there is no such input, its type can't hold the value, or it has an axis of any size.
    """
    graph = model.graph
    for name, value in values.items():
        _make_constant(graph, name, value)
    while (found := _decided(model)) is not None:
        _inline(graph, *found)


def specialised(
    model: Model, values: Mapping[str, Number], outputs: Sequence[str] = (), dims: Dims = MappingProxyType({})
) -> Model:
    """A model whose inputs have these values, see `specialise`, with those of its outputs alone that match globs.

    Symbolic dimensions in `dims` get these numbers where its inputs have them; outputs get what follows from that.
    Inputs that it does not read then are left out, and those of which chosen outputs need sizes only (`size_reads`).
    Errors are those of `specialise`; and a UsageError if there is no such output.
    """
    if not (values or outputs or dims):
        return model
    proto = deepcopy(model.proto)
    specialise(proto, values)
    known = {dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim} - {""}
    if wrong := next((name for name, number in dims.items() if name not in known or number < 0), None):
        what = f"no dimension {wrong!r} of an input of {model.path.name} can be {dims[wrong]}"
        raise UsageError(what, hint=f"its dimensions: {', '.join(sorted(known)) or 'none has a name'}; from 0")
    for dim in _symbols(proto.graph.input, dims):
        dim.dim_value = dims[dim.dim_param]
    for dim in _symbols(proto.graph.output, dims):
        dim.ClearField("dim_param")  # an If has one symbol for both branches, whose outputs may have other sizes
    kept = {name for name in model.graph.writes if not outputs or any(fnmatchcase(name, glob) for glob in outputs)}
    if not kept:
        names = ", ".join(model.graph.writes)
        raise UsageError(f"{model.path.name} has no output {' or '.join(outputs)}", hint=f"its outputs: {names}")
    remove_named(proto.graph.output, {*model.graph.writes} - kept)
    pruned = read_model(model.path, proto)  # removes the nodes that the outputs don't depend on
    if outputs and read_sizes_of_needed(pruned, proto := deepcopy(proto)):
        read_model(model.path, proto)
    _drop_unread_inputs(proto.graph)
    return read_model(model.path, proto)


def _symbols(values: Iterable[ValueInfoProto], names: Container[str]) -> list[Any]:
    """The dimensions that are one of these symbols."""
    return [dim for one in values for dim in one.type.tensor_type.shape.dim if dim.dim_param in names]


def _drop_unread_inputs(graph: GraphProto) -> None:
    """Remove the inputs that no node and no output reads."""
    read = {name for node in graph.node for name in (*node.input, *captures(node))}
    read.update(value.name for value in graph.output)
    remove_named(graph.input, {value.name for value in graph.input} - read)


def _make_constant(graph: GraphProto, name: str, value: Number) -> None:
    known = {one.name: one for one in graph.input}
    check_names([name], known, "the model has no input", "it has")
    kind = known[name].type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if not all(shape):
        hint = "fix its shape first; a value is assumed of inputs such as use_cache_branch"
        raise UsageError(f"the input {name!r} has an axis of any size, so no value of it can be assumed", hint=hint)
    dtype = tensor_dtype_to_np_dtype(kind.elem_type)
    array = np.full(shape, value).astype(dtype) if dtype.kind in "biuf" else None
    if array is None or (array != value).any():
        raise UsageError(f"the input {name!r} is {dtype}, and can't be {value!r}", hint="give a value of its type")
    remove_named(graph.input, {name})
    remove_named(graph.initializer, {name})
    graph.initializer.append(numpy_helper.from_array(array, name))


def _decided(model: ModelProto) -> tuple[NodeProto, GraphProto] | None:
    """The first If of the main graph whose condition is known, and its branch."""
    for node in (node for node in model.graph.node if node.op_type == "If" and not domain(node.domain)):
        if (condition := _value(model, node.input[0])) is not None:
            name = "then_branch" if condition.all() else "else_branch"
            return node, next(one.g for one in node.attribute if one.name == name)
    return None


def _value(model: ModelProto, name: str) -> np.ndarray[Any, Any] | None:
    """The value of a tensor; None if it depends on an input."""
    graph, fed = model.graph, {value.name for value in model.graph.input}
    read = {output: node.input for node in graph.node for output in node.output if output}
    weights = {one.name: one for one in graph.initializer if one.name not in fed and not is_external(one)}
    needed = reached([name], lambda one: read.get(one, ())) - {""}
    nodes = [node for node in graph.node if needed.intersection(node.output)]
    if needed - read.keys() - weights.keys() or not all(map(_is_known, nodes)):
        return None
    from onnx.reference import ReferenceEvaluator  # it takes long, and few models need it

    made = head_of(model)
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(tensor for one, tensor in weights.items() if one in needed)
    made.graph.output.add(name=name)
    return np.asarray(next(iter(ReferenceEvaluator(made).run([name], {}))))


def _is_known(node: NodeProto) -> bool:
    """Whether the reference implementation of ONNX computes a node, and always the same."""
    return not domain(node.domain) and not is_stateful(node, {}) and not any(subgraphs(node))


def _inline(graph: GraphProto, node: NodeProto, branch: GraphProto) -> None:
    """Put the nodes of a branch in the place of its If."""
    at = next(i for i, one in enumerate(graph.node) if one is node)
    taken, own, branch = own_names(graph), names_in(branch), deepcopy(branch)
    names = {name: fresh(f"{node.name or node.output[0]}/{name}", taken | own) for name in own & taken}
    names |= {value.name: output for value, output in zip(branch.output, node.output, strict=True) if output}
    rename_in(branch, names)
    ends = zip(branch.output, node.output, strict=True)
    copies = [NodeProto(op_type="Identity", input=[a.name], output=[b]) for a, b in ends if b and a.name != b]
    used = {one.name for one in graph.node}
    for inner in branch.node:
        inner.name = inner.name and fresh(inner.name, used)
    del graph.node[at]
    graph.node.extend((*branch.node, *copies))  # they are sorted when the graph is read
    graph.initializer.extend(branch.initializer)
    graph.sparse_initializer.extend(branch.sparse_initializer)
    outputs = {value.name for value in graph.output}
    graph.value_info.extend(value for value in branch.value_info if value.name not in outputs)
