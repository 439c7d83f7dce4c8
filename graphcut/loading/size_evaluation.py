"""Size evaluation: sizes that are computed by operators through which ONNX shape inference propagates no values.

Values are evaluated with onnx's reference implementation, or with numpy where that does the same, but only those that
are known to be small beforehand: the size of a mask is computed, not the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper

from ..core.graph import reached
from ..core.tensors import BITS, Tensor
from .shape_inference import (
    has_unknown_dims,
    merged,
    ort_types,
    tensor_of_initializer,
    tensor_of_type,
    tensors_of_values,
    type_proto,
    with_dims_of,
    with_shape,
)
from .subgraphs import (
    CONTROL_FLOW,
    captures,
    domain,
    free_names,
    has_subgraphs,
    is_external,
    is_stateful,
    subgraphs,
)
from .tensor_values import constant_value

_Values = Mapping[str, TensorProto]  #: values by the names of tensors.
_WHOLE: Final = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_MAX_ELEMENTS: Final = 1024  #: a value with more elements is not evaluated.
_COUNTING: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose output size depends on the values of their inputs, and is not larger than these."""
_DEEPEST: Final = 4  #: subgraphs inside so many others are not looked into, and no loop is more often:
_MOST_PASSES: Final = 4  #: nested loops multiply.


def _unsqueezed(data: NDArray[np.int64], axes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.expand_dims(data, tuple(axes))


_SIMPLE: Final = dict[str, Any](
    Add=np.add, Sub=np.subtract, Mul=np.multiply, Gather=np.take, Range=np.arange, Unsqueeze=_unsqueezed
)
"""What most sizes are computed by: of numbers and vectors numpy does the same as the reference implementation."""
_TRUE: Final = numpy_helper.from_array(np.array(True))


@dataclass
class SizeEvaluation:
    """Evaluates small values that depend on sizes and constants only, and the sizes that depend on these.

    Collects the nodes that unknown sizes depend on, and visits them in topological order: onnx infers the types of a
    node's outputs from the known values of its inputs, and the reference implementation computes values. Only values
    that are known to be small are computed, so that nothing grows with the numbers of the symbols. Of an If the branch
    that it takes is visited, or both; of a Loop the body, once or until what it carries keeps its shape.
    """

    model: ModelProto
    graph: GraphProto  #: the graph of the model, or a subgraph.
    dims: Mapping[str, int]  #: numbers for symbols.
    declared: Mapping[str, Tensor]  #: the types that shape inference found, or that are known otherwise.
    values: dict[str, TensorProto] = field(default_factory=dict)  #: known values, without those of initializers.
    depth: int = 0  #: in so many others it is.
    found: dict[str, Tensor] = field(default_factory=dict)  #: the types that evaluation found.

    def __post_init__(self) -> None:
        self._opsets = {domain(opset.domain): opset for opset in self.model.opset_import}
        weights = {weight.name: tensor_of_initializer(weight) for weight in self.graph.initializer}
        self.declared = {**weights, **tensors_of_values(self.graph.input, set()), **self.declared}
        self._weights = {weight.name: weight for weight in self.graph.initializer if not is_external(weight)}

    @cached_property
    def _producer(self) -> Mapping[str, int]:
        return {name: i for i, node in enumerate(self.graph.node) for name in node.output}

    def run(self, names: Iterable[str]) -> None:
        """Find the sizes of `names`, as far as possible."""
        for i in self._dependencies(names):
            self._visit(self.graph.node[i])

    def _visit(self, node: NodeProto) -> None:
        if has_subgraphs(node):
            if self.depth < _DEEPEST and not domain(node.domain):
                self._look_inside(node)
        else:
            self._infer_types(node)
            self._compute_values(node)
        for tensor in filter(None, map(self.tensor, node.output)):
            if has_unknown_dims(tensor):
                self.found[tensor.name] = tensor.with_numbers(self.dims)

    def tensor(self, name: str) -> Tensor | None:
        """What is known of the type of a tensor."""
        return self.found.get(name) or self.declared.get(name)

    def value(self, name: str) -> TensorProto | None:
        """The value of a tensor, if it is small and known."""
        tensor = self.tensor(name)
        if name in self._weights and tensor and _is_small(tensor):
            return self._weights[name]
        return self.values.get(name)

    def _dependencies(self, names: Iterable[str]) -> list[int]:
        """The nodes that the sizes of `names` may depend on, in topological order."""

        def needed(name: str) -> Iterator[str]:
            node = self.graph.node[self._producer[name]]
            for read in self._producer.keys() & {*node.input, *captures(node)}:
                tensor = self.tensor(read)
                if tensor is None or has_unknown_dims(tensor) or (_is_small(tensor) and not _reads_shape(node)):
                    yield read

        return sorted({self._producer[name] for name in reached(self._producer.keys() & {*names}, needed)})

    def _infer_types(self, node: NodeProto) -> None:
        """Infer the types of the outputs of `node`, if one has unknown dimensions."""
        reads = {name: self.tensor(name) for name in node.input if name}
        writes = [self.tensor(name) for name in node.output if name]
        if all(t and not has_unknown_dims(t) for t in writes) or not all(reads.values()):
            return
        types = {name: type_proto(tensor) for name, tensor in reads.items() if tensor}
        values = {name: value for name in reads if (value := self.value(name))}
        try:
            opset = self._opsets[domain(node.domain)]
            if not onnx.defs.has(node.op_type, domain=opset.domain):
                found = self._asked_of_ort(node, types, values)
            else:
                schema = onnx.defs.get_schema(node.op_type, opset.version, opset.domain)
                kinds = onnx.shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=[opset])
                found = {name: tensor_of_type(name, kind, symbols=set()) for name, kind in kinds.items()}
        except Exception:  # noqa: BLE001 - nobody knows the operator or a type: the sizes stay unknown
            return
        self.found.update((name, merged(self.tensor(name) or tensor, tensor)) for name, tensor in found.items())

    def _look_inside(self, node: NodeProto) -> None:
        """Infer the types of the outputs of an If or a Loop from its subgraphs."""
        types: Iterable[Tensor | None] = ()
        if node.op_type == "If":
            condition = self.scalar(node.input[0])
            branches = [a for a in node.attribute if a.HasField("g")]
            taken = [a.g for a in branches if condition is None or (a.name == "then_branch") == bool(condition)]
            insides = [self._inside(branch, {}, {}) for branch in taken]
            types = [_common(ends) for ends in zip(*map(_outputs, insides, taken), strict=False)]
            if condition is not None:
                values = zip(node.output, (insides[0].value(end.name) for end in taken[0].output), strict=False)
                self.values.update({name: value for name, value in values if value is not None})
        elif node.op_type == "Loop":
            types = self._loop_types(node, next(subgraphs(node)))
        for name, tensor in zip(node.output, types, strict=False):
            if name and tensor is not None:
                self.found[name] = Tensor(name=name, dtype=tensor.dtype, shape=tensor.shape)

    def _loop_types(self, node: NodeProto, body: GraphProto) -> Sequence[Tensor | None]:
        """The types of what a Loop carries, as far as no iteration changes them, and of what it collects."""
        step, condition, *names = (value.name for value in body.input)
        kinds = (step, "int64"), (condition, "bool")
        scalars = {name: Tensor(name=name, dtype=dtype, shape=()) for name, dtype in kinds}
        own = CONTROL_FLOW["Loop"]
        states = [self.tensor(name) for name in node.input[own.reads :]]
        for _ in range(_MOST_PASSES):
            inside = self._inside(body, scalars | dict(zip(names, states, strict=False)), {condition: _TRUE})
            ends = _outputs(inside, body)[own.outputs :]
            common = [_common(pair) for pair in zip(states, ends, strict=False)]
            if common == states:
                break
            states = common
        else:
            return ()
        is_endless = inside.scalar(body.output[0].name) and (not node.input[1] or self.scalar(node.input[1]))
        steps = self.scalar(node.input[0]) if is_endless else None
        return [*states, *(_stacked(end, steps) for end in ends[len(states) :])]

    def _inside(self, graph: GraphProto, inputs: Mapping[str, Tensor | None], values: _Values) -> SizeEvaluation:
        """The evaluation of all nodes of a subgraph, whose inputs have these types and values."""
        outer = list(dict.fromkeys(free_names(graph)))
        types = {**{name: self.tensor(name) for name in outer}, **inputs}
        declared = {name: tensor for name, tensor in types.items() if tensor is not None}
        known = {**{name: self.value(name) for name in outer}, **values}
        own = {name: value for name, value in known.items() if value is not None}
        inside = SizeEvaluation(self.model, graph, self.dims, declared, own, self.depth + 1)
        for node in graph.node:
            inside._visit(node)
        return inside

    def scalar(self, name: str) -> int | None:
        """The value of a tensor with one element; None if it is not known."""
        value = self.value(name)
        is_number = value is not None and math.prod(value.dims) == 1 and tensor_of_initializer(value).dtype in _WHOLE
        return int(numpy_helper.to_array(value).item()) if value is not None and is_number else None

    def _asked_of_ort(self, node: NodeProto, types: Mapping[str, TypeProto], values: _Values) -> dict[str, Tensor]:
        """The types of the outputs of a node by ONNX Runtime, from a model of this node alone."""
        model = ModelProto(ir_version=self.model.ir_version, opset_import=self._opsets.values())
        model.graph.name = "node"
        model.graph.node.append(node)
        model.graph.initializer.extend(values.values())
        rest = (ValueInfoProto(name=name, type=kind) for name, kind in types.items() if name not in values)
        model.graph.input.extend(rest)
        return ort_types(model, [name for name in node.output if name], Path(), set())

    def _compute_values(self, node: NodeProto) -> None:
        """Compute the outputs of `node`, if they are small and the inputs are known."""
        writes = [self.tensor(name) for name in node.output if name]
        is_small = node.op_type in _COUNTING or all(tensor and _is_small(tensor) for tensor in writes)
        if not is_small or domain(node.domain) or is_stateful(node, {}):
            return
        try:
            pairs = zip(node.output, self._outputs(node), strict=False)  # there may be no outputs
            values = [numpy_helper.from_array(np.asarray(value), name) for name, value in pairs if name]
        except Exception:  # noqa: BLE001 - the reference implementation can't compute it: it stays unknown
            return
        self.values.update({value.name: value for value in values})
        self.found.update({value.name: tensor_of_initializer(value) for value in values})

    def _outputs(self, node: NodeProto) -> Sequence[Any]:
        """The outputs of `node`; empty if an input is unknown."""
        if _reads_shape(node):
            tensor = self.tensor(node.input[0])
            return [_shape_output(node, _sizes(tensor))] if tensor and not has_unknown_dims(tensor) else []
        values = {name: self.value(name) for name in node.input if name}
        feeds = {name: numpy_helper.to_array(value) for name, value in values.items() if value is not None}
        if len(feeds) < len(values):
            return []
        if node.op_type == "Constant" and (known := constant_value(node)) is not None:
            return [numpy_helper.to_array(known)]
        with np.errstate(all="ignore"):
            if node.op_type in _SIMPLE and all(one.dtype == np.int64 and one.ndim < 2 for one in feeds.values()):
                axes = [np.array(one.ints) for one in node.attribute if one.name == "axes"]  # of Unsqueeze, to opset 12
                return [_SIMPLE[node.op_type](*(feeds[name] for name in node.input), *axes)]
            from onnx.reference import ReferenceEvaluator  # takes 12 MiB, and few models need it

            alone = NodeProto.FromString(node.SerializeToString())  # a reference cycle would keep its model in memory
            return cast(list[Any], ReferenceEvaluator(alone, opsets={"": self._opsets[""].version}).run(None, feeds))


def _reads_shape(node: NodeProto) -> bool:
    """Whether it reads the shape of its input, not its values."""
    return node.op_type in {"Shape", "Size"} and not domain(node.domain)


def _shape_output(node: NodeProto, sizes: Sequence[int]) -> NDArray[np.int64]:
    """The output of a Shape or Size node for an input of the shape `sizes`."""
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    found = math.prod(sizes) if node.op_type == "Size" else sizes[ends.get("start", 0) : ends.get("end")]
    return np.array(found, np.int64)


def _is_small(tensor: Tensor) -> bool:
    """Whether its value may be evaluated. Not a float matrix: it may be an activation of a small model."""
    if not tensor.is_plain or has_unknown_dims(tensor) or tensor.dtype not in BITS:
        return False
    sizes = _sizes(tensor)
    return math.prod(sizes) <= _MAX_ELEMENTS and (len(sizes) <= 1 or tensor.dtype in _WHOLE)


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor without unknown dimensions."""
    return cast(tuple[int, ...], tensor.shape)


def _outputs(inside: SizeEvaluation, graph: GraphProto) -> list[Tensor | None]:
    return [inside.tensor(value.name) for value in graph.output]


def _stacked(tensor: Tensor | None, steps: int | None) -> Tensor | None:
    return tensor and with_shape(tensor, None if tensor.shape is None else (steps, *tensor.shape))


def _common(types: Iterable[Tensor | None]) -> Tensor | None:
    """The type that all of `types` have, with unknown dimensions where they differ; its name is that of the first."""
    first, *others = types
    for other in others:
        if first is None or other is None or first.dtype != other.dtype:
            return None
        first = with_dims_of(first, other, lambda a, b: a if a == b else None)
    return first
