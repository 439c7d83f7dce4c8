"""Size evaluation: dimensions that ONNX shape inference leaves unknown, for given numbers of the symbols.

ONNX shape inference propagates sizes through few operators (Shape, Slice, Concat, Add, ...). Where a size is computed
by others, the values are evaluated here with onnx's reference implementation, but only values that are known to be
small beforehand: the size of a mask is computed, not the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from ..core.wiring import BITS, Tensor
from .shape_inference import (
    UNKNOWN,
    has_unknown_dims,
    infer_values,
    merged,
    ort_types,
    tensor_of_initializer,
    tensor_of_type,
    tensors_of_values,
    type_proto,
    with_shape,
    without_value_info,
)
from .subgraphs import callee_key, domain, function_key, has_subgraphs, is_external, is_stateful

_WHOLE: Final = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_MAX_ELEMENTS: Final = 1024
"""A value with more elements is not evaluated."""
BATCH: Final = 500
"""Evaluating so many tensors takes less time than ONNX shape inference on 5,000."""
_COUNTING: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose output size depends on the values of their inputs, and is not larger than these."""


def infer_bound(
    model: ModelProto, dims: Mapping[str, int], wanted: AbstractSet[str], known: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The types of `wanted` when the symbols of the inputs are the numbers `dims`. For sizes; parts keep the symbols.

    First ONNX shape inference, then evaluation of small values that depend on sizes and constants only. Of operators
    that onnx does not know ONNX Runtime is asked. `known` are the types that other sources gave.

    Example: y has 2 * seq / 2 elements. Shape inference does not know it, because it does not propagate values through
    Mul and Range. With seq = 5, evaluation computes s = [5], n = 5, d = 10, and from these the size of Range; r itself
    is not computed unless it is small and a size depends on its values.

        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 17]>
        ...     example (float[batch, seq] x) => (int64[rows] y)
        ...     <int64 zero = {0}, int64 two = {2}> {
        ...         s = Shape <start = 1> (x)
        ...         n = Squeeze (s)
        ...         d = Mul (n, two)
        ...         r = Range (zero, d, two)
        ...         y = Identity (r)
        ...     }''')
        >>> inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        >>> [dim.dim_param for value in inferred.graph.value_info if value.name == "r"
        ...  for dim in value.type.tensor_type.shape.dim]
        ['unk__0']
        >>> found = infer_bound(model, {"batch": 1, "seq": 5}, {"d", "r", "y"})
        >>> {name: str(tensor) for name, tensor in sorted(found.items())}
        {'d': 'int64[]', 'r': 'int64[5]', 'y': 'int64[5]'}
    """
    bound = without_value_info(model)
    for value in bound.graph.input:
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    for value in bound.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    given = {name: _with_numbers(tensor, dims) for name, tensor in (known or {}).items()}
    given = {name: tensor for name, tensor in given.items() if not has_unknown_dims(tensor)}
    evaluation, unknown = _infer(bound, wanted, given)
    evaluation.run(unknown[:BATCH])
    if len(unknown) > BATCH:
        # Most of them depend on the first ones: with these known, shape inference finds the others much faster.
        found = evaluation.found.items()
        bound.graph.value_info.extend(ValueInfoProto(name=name, type=type_proto(tensor)) for name, tensor in found)
        evaluation, unknown = _infer(bound, wanted, given)
        evaluation.run(unknown)
    return {name: tensor for name, tensor in {**evaluation.declared, **evaluation.found}.items() if name in wanted}


def _with_numbers(tensor: Tensor, dims: Mapping[str, int]) -> Tensor:
    """The tensor with numbers for its symbols, as far as there are some."""
    return with_shape(tensor, tensor.shape and [dims.get(d) if isinstance(d, str) else d for d in tensor.shape])


def _infer(model: ModelProto, wanted: AbstractSet[str], given: Mapping[str, Tensor]) -> tuple[_Evaluation, list[str]]:
    """The result of ONNX shape inference, and those of `wanted` that it does not know, in topological order."""
    inferred = {value.name: value for value in infer_values(model)}
    found = tensors_of_values((value for name, value in inferred.items() if name in wanted), set())
    found = {**given, **found}
    written = (name for node in model.graph.node for name in node.output if name in wanted)
    unknown = [name for name in written if name not in found or has_unknown_dims(found[name])]
    return _Evaluation(model, inferred, found), unknown


def name_unknown_dims(model: ModelProto, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with unknown dimensions replaced by the symbols that they are equal to, where there is one.

    Shape inference loses symbols in computations (Shape, Slice, Concat, Reshape), but not numbers. So each symbol is
    bound to a different prime: a dimension that is inferred as this prime is equal to the symbol.
    """
    named = dict(tensors)
    unknown = {name for name, tensor in tensors.items() if tensor.shape and None in tensor.shape}
    symbols = sorted({dim for tensor in tensors.values() for dim in tensor.shape or () if isinstance(dim, str)})
    if not symbols or not unknown:
        return named
    binding = _with_total(dict(zip(symbols, distant_primes(10_007, len(symbols)), strict=True)))
    symbol_of = {number: symbol for symbol, number in binding.items()}
    for name, found in infer_bound(model, binding, unknown, tensors).items():
        shape = tensors[name].shape or ()
        if found.shape is not None and len(found.shape) == len(shape):
            dims = [
                symbol_of.get(number) if dim is None and isinstance(number, int) else dim
                for dim, number in zip(shape, found.shape, strict=True)
            ]
            named[name] = with_shape(tensors[name], dims)
    return named


def number_unknown_dims(model: ModelProto, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with unknown dimensions replaced by numbers where these don't depend on the symbols.

    They are those that are the same if all symbols are 1, and if each is another large prime.
    """
    unknown = {name for name, tensor in tensors.items() if tensor.shape and None in tensor.shape}
    symbols = sorted({dim for tensor in tensors.values() for dim in tensor.shape or () if isinstance(dim, str)})
    if not unknown:
        return dict(tensors)
    bindings = (dict.fromkeys(symbols, 1), dict(zip(symbols, distant_primes(10_007, len(symbols)), strict=True)))
    ones, primes = (infer_bound(model, _with_total(binding), unknown) for binding in bindings)
    numbered = dict(tensors)
    for name in unknown & ones.keys() & primes.keys():
        shape, found = tensors[name].shape or (), (ones[name].shape, primes[name].shape)
        if all(other is not None and len(other) == len(shape) for other in found):
            pairs = zip(shape, *(other or () for other in found), strict=True)
            numbered[name] = with_shape(tensors[name], [a if dim is None and a == b else dim for dim, a, b in pairs])
    return numbered


def _with_total(binding: Mapping[str, int]) -> dict[str, int]:
    """The binding, changed so that total = past + new tokens, as decoders require."""
    totals = [symbol for symbol in binding if "total" in symbol]
    pasts = [symbol for symbol in binding if "past" in symbol and symbol not in totals]
    news = [symbol for symbol in binding if symbol.startswith("seq") and symbol not in (*totals, *pasts)]
    if len(totals) == len(pasts) == len(news) == 1:
        return {**binding, totals[0]: binding[pasts[0]] + binding[news[0]]}
    return dict(binding)


def distant_primes(start: int, number: int) -> list[int]:
    """Primes far from each other.

    For a dozen of them no sum, difference, small multiple or fraction (rounded up or down) is another one, so that no
    window, stride, padding or scale changes one into another. Tests try them all.
    """
    found: list[int] = []
    candidate = start
    while len(found) < number:
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
            candidate = candidate * 69 // 40 | 1
        candidate += 2
    return found


class _Evaluation:
    """Evaluates small values that depend on sizes and constants only, and the sizes that depend on these.

    Collects the nodes that unknown sizes depend on, and visits them in topological order: onnx infers the types of a
    node's outputs from the known values of its inputs, and the reference implementation computes values. Only values
    that are known to be small are computed, so that nothing grows with the numbers of the symbols.

    Attributes:
        declared: known types, from shape inference and messages.
        found: the types that evaluation found.
    """

    def __init__(
        self, model: ModelProto, inferred: Mapping[str, ValueInfoProto], declared: Mapping[str, Tensor]
    ) -> None:
        graph = model.graph
        self.declared = dict(declared)
        self.found: dict[str, Tensor] = {}
        self._nodes = graph.node
        self._ir_version = model.ir_version
        self._opsets = {domain(opset.domain): opset for opset in model.opset_import}
        self._functions = {function_key(function) for function in model.functions}
        weights = {weight.name: weight for weight in graph.initializer}
        inputs = {value.name: value for value in graph.input}
        self._messages: dict[str, TensorProto | ValueInfoProto] = {**weights, **inputs, **inferred}
        self._weights = {name: weight for name, weight in weights.items() if not is_external(weight)}
        self._values: dict[str, TensorProto] = {}

    @cached_property
    def _producer(self) -> Mapping[str, int]:
        return {name: i for i, node in enumerate(self._nodes) for name in node.output}

    def run(self, names: Iterable[str]) -> None:
        """Find the sizes of `names`, as far as possible."""
        for node in (self._nodes[i] for i in self._dependencies(names)):
            if not has_subgraphs(node) and callee_key(node) not in self._functions:
                self._infer_types(node)
                self._compute_values(node)

    def _tensor(self, name: str) -> Tensor | None:
        if name not in self.declared and name in self._messages:
            message = self._messages[name]
            if isinstance(message, TensorProto):
                tensor = tensor_of_initializer(message)
            else:
                tensor = tensor_of_type(name, message.type, symbols=set())
            if tensor.dtype != UNKNOWN:
                self.declared[name] = tensor
        return self.found.get(name) or self.declared.get(name)

    def _value(self, name: str) -> TensorProto | None:
        tensor = self._tensor(name)
        if name in self._weights and tensor and _is_small(tensor):
            return self._weights[name]
        return self._values.get(name)

    def _dependencies(self, names: Iterable[str]) -> list[int]:
        """The nodes that the sizes of `names` may depend on, in topological order."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            i = self._producer.get(waiting.pop())
            if i is not None and i not in found:
                found.add(i)
                node = self._nodes[i]
                reads = {name: self._tensor(name) for name in node.input}
                waiting += [name for name, tensor in reads.items() if tensor is None or has_unknown_dims(tensor)]
                small = [name for name, tensor in reads.items() if tensor is not None and _is_small(tensor)]
                waiting += [] if _reads_shape(node) else small
        return sorted(found)

    def _infer_types(self, node: NodeProto) -> None:
        """Infer the types of the outputs of `node`, if one has unknown dimensions."""
        reads = {name: self._tensor(name) for name in node.input if name}
        writes = [self._tensor(name) for name in node.output if name]
        if all(t and not has_unknown_dims(t) for t in writes) or not all(reads.values()):
            return
        types = {name: type_proto(tensor) for name, tensor in reads.items() if tensor}
        values = {name: value for name in reads if (value := self._value(name))}
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
        for name, tensor in found.items():
            if tensor.dtype != UNKNOWN:
                self.found[name] = merged(self._tensor(name) or tensor, tensor)

    def _asked_of_ort(
        self, node: NodeProto, types: Mapping[str, TypeProto], values: Mapping[str, TensorProto]
    ) -> dict[str, Tensor]:
        """The types of the outputs of a node by ONNX Runtime, from a model of this node alone."""
        model = ModelProto(ir_version=self._ir_version, opset_import=self._opsets.values())
        model.graph.name = "node"
        model.graph.node.append(node)
        model.graph.initializer.extend(values.values())
        rest = (ValueInfoProto(name=name, type=kind) for name, kind in types.items() if name not in values)
        model.graph.input.extend(rest)
        return ort_types(model, [name for name in node.output if name], Path(), set())

    def _compute_values(self, node: NodeProto) -> None:
        """Compute the outputs of `node`, if they are small and the inputs are known."""
        writes = [self._tensor(name) for name in node.output if name]
        is_small = node.op_type in _COUNTING or all(tensor and _is_small(tensor) for tensor in writes)
        if not is_small or domain(node.domain) or is_stateful(node, {}):
            return
        try:
            pairs = zip(node.output, self._outputs(node), strict=False)  # there may be no outputs
            values = [numpy_helper.from_array(np.asarray(value), name) for name, value in pairs if name]
        except Exception:  # noqa: BLE001 - the reference implementation can't compute it: it stays unknown
            return
        self._values.update({value.name: value for value in values})
        self.found.update({value.name: tensor_of_initializer(value) for value in values})

    def _outputs(self, node: NodeProto) -> Sequence[Any]:
        """The outputs of `node`; empty if an input is unknown."""
        if _reads_shape(node):
            tensor = self._tensor(node.input[0])
            return [_shape_output(node, _sizes(tensor))] if tensor and not has_unknown_dims(tensor) else []
        values = {name: self._value(name) for name in node.input if name}
        feeds = {name: numpy_helper.to_array(value) for name, value in values.items() if value is not None}
        if len(feeds) < len(values):
            return []
        with np.errstate(all="ignore"):
            return cast(list[Any], ReferenceEvaluator(node, opsets={"": self._opsets[""].version}).run(None, feeds))


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
