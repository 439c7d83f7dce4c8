"""Sizes that ONNX shape inference leaves open, computed once numbers are put in for the symbols of a model.

Inference follows sizes through the arithmetic of few operators. What goes through others is computed here, with onnx's
reference implementation, from values that are known beforehand to be small: a mask of any size is sized without being
made. The names that sizes get at the borders of parts rest on the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from ..core.wiring import BITS, Tensor
from .shape_inference import (
    UNKNOWN,
    has_unknown_dims,
    infer_values,
    merged,
    tensor_of_initializer,
    tensor_of_type,
    tensors_of_values,
    type_proto,
    with_shape,
    without_value_info,
)
from .subgraphs import callee_key, domain, function_key, has_subgraphs, is_external, is_stateful

_WHOLE: Final = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_SMALL_ELEMENTS: Final = 1024
_FEW: Final = 500
"""The sizes of so many tensors are found one by one in less time than it takes onnx to infer those of 5,000."""
_COUNTING: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose values must be known for the size of what they write; it is no larger than what they read."""


def infer_bound(model: ModelProto, dims: Mapping[str, int], wanted: AbstractSet[str]) -> dict[str, Tensor]:
    """What is known of `wanted` once `dims` are put in for the symbols of inputs: for sizes, not for parts.

    ONNX shape inference comes first. It follows sizes through the arithmetic of few operators (Shape, Slice, Concat,
    Add), so that what goes through others (Range, Equal, Where, ConstantOfShape) is open after it; small values that
    depend on nothing but sizes and constants are then computed, and the sizes that follow from them.
    """
    bound = without_value_info(model)
    for value in bound.graph.input:
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    for value in bound.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    arithmetic, still_open = _begun(bound, wanted)
    arithmetic.settle(still_open[:_FEW])
    if len(still_open) > _FEW:
        # So many inherit what is open: once the first sizes stand, onnx infers the others many times faster.
        found = arithmetic.found.items()
        bound.graph.value_info.extend(ValueInfoProto(name=name, type=type_proto(tensor)) for name, tensor in found)
        arithmetic, still_open = _begun(bound, wanted)
        arithmetic.settle(still_open)
    return {name: tensor for name, tensor in {**arithmetic.read, **arithmetic.found}.items() if name in wanted}


def _begun(model: ModelProto, wanted: AbstractSet[str]) -> tuple[_Arithmetic, list[str]]:
    """What ONNX shape inference finds, and those of `wanted` that it leaves open, in topological order."""
    inferred = {value.name: value for value in infer_values(model)}
    found = tensors_of_values((value for name, value in inferred.items() if name in wanted), set())
    return _Arithmetic(model, inferred, found), [name for name, tensor in found.items() if has_unknown_dims(tensor)]


def name_open_sizes(model: ModelProto, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a size that inference left open the symbol it is equal to, where there is one.

    Inference loses symbols in the arithmetic of shapes (Shape, Slice, Concat, Reshape), and keeps numbers: once a
    prime of its own stands for each symbol, a size that comes out as that prime is the symbol.
    """
    named = dict(tensors)
    partly_open = {name for name, tensor in tensors.items() if tensor.shape and None in tensor.shape}
    symbols = sorted({dim for tensor in tensors.values() for dim in tensor.shape or () if isinstance(dim, str)})
    if not symbols or not partly_open:
        return named
    binding = _agreeing(dict(zip(symbols, _primes(10_007, len(symbols)), strict=True)))
    symbol_of = {number: symbol for symbol, number in binding.items()}
    for name, found in infer_bound(model, binding, partly_open).items():
        shape = tensors[name].shape or ()
        if found.shape is not None and len(found.shape) == len(shape):
            sizes = [
                symbol_of.get(number) if dim is None and isinstance(number, int) else dim
                for dim, number in zip(shape, found.shape, strict=True)
            ]
            named[name] = with_shape(tensors[name], sizes)
    return named


def _agreeing(binding: Mapping[str, int]) -> dict[str, int]:
    """The binding, with the one sum put right that decoders rely on: all tokens are the past ones and the new ones."""
    totals = [symbol for symbol in binding if "total" in symbol]
    pasts = [symbol for symbol in binding if "past" in symbol and symbol not in totals]
    news = [symbol for symbol in binding if symbol.startswith("seq") and symbol not in (*totals, *pasts)]
    if len(totals) == len(pasts) == len(news) == 1:
        return {**binding, totals[0]: binding[pasts[0]] + binding[news[0]]}
    return dict(binding)


def _primes(start: int, number: int) -> list[int]:
    found: list[int] = []
    candidate = start
    while len(found) < number:
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
            # Far from the next one, and so that for a dozen of them no sum, difference, small multiple or part, however
            # rounded, is another one: no window, stride, padding or scale turns one into the other. Tests try them all.
            candidate = candidate * 69 // 40 | 1
        candidate += 2
    return found


class _Arithmetic:
    """Small values that depend on nothing but sizes and constants, and the sizes that follow from them.

    Goes back from what is open to all that it may depend on, and forth again node by node: onnx infers the types of
    what a node writes from the values that it reads, and onnx's reference implementation computes its own. Whether a
    value is small is known before it is computed, so that nothing grows with the numbers that were put in.
    """

    def __init__(self, model: ModelProto, inferred: Mapping[str, ValueInfoProto], known: Mapping[str, Tensor]) -> None:
        graph = model.graph
        self.nodes = graph.node
        self.opsets = {domain(opset.domain): opset for opset in model.opset_import}
        self.functions = {function_key(function) for function in model.functions}
        weights = {weight.name: weight for weight in graph.initializer}
        inputs = {value.name: value for value in graph.input}
        self.messages: dict[str, TensorProto | ValueInfoProto] = {**weights, **inputs, **inferred}
        self.weights = {name: weight for name, weight in weights.items() if not is_external(weight)}
        self.read = dict(known)
        self.found: dict[str, Tensor] = {}
        self.values: dict[str, TensorProto] = {}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Which node writes a tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output}

    def settle(self, names: Iterable[str]) -> None:
        """Find the sizes of `names`, as far as they follow."""
        for node in (self.nodes[i] for i in self._behind(names)):
            if not has_subgraphs(node) and callee_key(node) not in self.functions:
                self._infer(node)
                self._compute(node)

    def tensor(self, name: str) -> Tensor | None:
        """What is known of the type of `name`."""
        if name not in self.read and name in self.messages:
            message = self.messages[name]
            tensor = (
                tensor_of_initializer(message)
                if isinstance(message, TensorProto)
                else tensor_of_type(name, message.type, symbols=set())
            )
            if tensor.dtype != UNKNOWN:
                self.read[name] = tensor
        return self.found.get(name) or self.read.get(name)

    def _value(self, name: str) -> TensorProto | None:
        tensor = self.tensor(name)
        if name in self.weights and tensor and _is_small(tensor):
            return self.weights[name]
        return self.values.get(name)

    def _behind(self, names: Iterable[str]) -> list[int]:
        """The nodes that the sizes of `names` may depend on, in topological order."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            place = self.producer.get(waiting.pop())
            if place is not None and place not in found:
                found.add(place)
                node = self.nodes[place]
                reads = [tensor for name in node.input if (tensor := self.tensor(name))]
                waiting += [t.name for t in reads if has_unknown_dims(t) or (_is_small(t) and not _is_measure(node))]
        return sorted(found)

    def _infer(self, node: NodeProto) -> None:
        """The types of what `node` writes, where some of their sizes are open."""
        reads = {name: self.tensor(name) for name in node.input if name}
        writes = [self.tensor(name) for name in node.output if name]
        if all(t and not has_unknown_dims(t) for t in writes) or not all(reads.values()):
            return
        types = {name: type_proto(tensor) for name, tensor in reads.items() if tensor}
        values = {name: value for name in reads if (value := self._value(name))}
        try:
            opset = self.opsets[domain(node.domain)]
            schema = onnx.defs.get_schema(node.op_type, opset.version, opset.domain)
            made = onnx.shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=[opset])
        except Exception:  # noqa: BLE001 - an operator or a type that onnx does not know: its sizes stay open
            return
        for name, kind in made.items():
            tensor = tensor_of_type(name, kind, symbols=set())
            if tensor.dtype != UNKNOWN:
                self.found[name] = merged(self.tensor(name) or tensor, tensor)

    def _compute(self, node: NodeProto) -> None:
        """The values that `node` writes, where they are small and it reads nothing but sizes and known values."""
        writes = [self.tensor(name) for name in node.output if name]
        is_small = node.op_type in _COUNTING or all(tensor and _is_small(tensor) for tensor in writes)
        if not is_small or domain(node.domain) or is_stateful(node, {}):
            return
        try:
            made = self._results(node)
            pairs = zip(node.output, made, strict=False)  # `made` may be empty
            values = [numpy_helper.from_array(np.asarray(value), name) for name, value in pairs if name]
        except Exception:  # noqa: BLE001 - what the reference implementation can't do stays unknown
            return
        self.values.update({value.name: value for value in values})
        self.found.update({value.name: tensor_of_initializer(value) for value in values})

    def _results(self, node: NodeProto) -> Sequence[Any]:
        """What `node` writes; nothing where something that it reads is not known."""
        if _is_measure(node):
            tensor = self.tensor(node.input[0])
            return [_measured(node, _sizes(tensor))] if tensor and not has_unknown_dims(tensor) else []
        values = {name: self._value(name) for name in node.input if name}
        fed = {name: numpy_helper.to_array(value) for name, value in values.items() if value is not None}
        if len(fed) < len(values):
            return []
        with np.errstate(all="ignore"):
            return cast(list[Any], ReferenceEvaluator(node, opsets={"": self.opsets[""].version}).run(None, fed))


def _is_measure(node: NodeProto) -> bool:
    """Does it read nothing of a tensor but its shape?"""
    return node.op_type in {"Shape", "Size"} and not domain(node.domain)


def _measured(node: NodeProto, sizes: Sequence[int]) -> NDArray[np.int64]:
    """What a Shape or a Size gives for a tensor of these `sizes`."""
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    found = math.prod(sizes) if node.op_type == "Size" else sizes[ends.get("start", 0) : ends.get("end")]
    return np.array(found, np.int64)


def _is_small(tensor: Tensor) -> bool:
    """Can its value be part of the arithmetic of sizes? The activations of a small model should not look as if."""
    if not tensor.is_plain or has_unknown_dims(tensor) or tensor.dtype not in BITS:
        return False
    sizes = _sizes(tensor)
    return math.prod(sizes) <= _SMALL_ELEMENTS and (len(sizes) <= 1 or tensor.dtype in _WHOLE)


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor none of whose sizes is open."""
    return cast(tuple[int, ...], tensor.shape)
