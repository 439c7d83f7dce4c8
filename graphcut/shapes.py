"""Type and shape of every tensor, merged from several sources.

1. What the model declares: its inputs, outputs and value_info.
2. What ONNX shape inference finds.
3. Only where these leave a gap: what ONNX Runtime finds when the tensor is asked for as an output that has only a name.

Where two sources contradict each other in a size, the size is left open: an exporter's stale value_info would
otherwise make a part refuse what the whole model accepts. Symbols keep their names, and symbols that inference made up
are left out, so that a name always means what the author of the model meant.

Once numbers are put in for symbols, most of what is open can be computed: `infer_bound`, on which the names that sizes
get at borders rest as well.
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

from .scopes import FIRST_IR_WITH_DEFAULTS, domain, function_key, has_bodies, is_external, is_stateful, key_of
from .wiring import BITS, Dim, Tensor

_NUMPY_WORDS: Final = {"float": "float32", "double": "float64"}
_WORDS: Final[Mapping[int, str]] = {
    number: _NUMPY_WORDS.get(name.lower(), name.lower()) for name, number in TensorProto.DataType.items()
}
_ELEMENTS: Final[Mapping[str, int]] = {word: number for number, word in _WORDS.items()}
_UNKNOWN: Final = "undefined"
_WHOLE: Final = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_SMALL_ELEMENTS: Final = 1024
_FEW: Final = 500
"""The sizes of so many tensors are found one by one in less time than it takes onnx to infer those of 5,000."""
_COUNTING: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose values must be known for the size of what they write; it is no larger than what they read."""


def infer_tensors(model: ModelProto, wanted: AbstractSet[str], *, folder: Path) -> dict[str, Tensor]:
    """The types of `wanted`, and of everything that the model declares; what no source knows is left out.

    Args:
        model: its nodes in topological order; large weights as references, which are not read.
        wanted: the tensors for which a gap is worth asking ONNX Runtime.
        folder: where the files lie that external tensors name.
    """
    declared = _described([*model.graph.value_info, *model.graph.output, *model.graph.input])
    symbols = {dim for tensor in declared.values() for dim in tensor.shape or () if isinstance(dim, str)}
    # What an earlier inference made up means nothing, and would mix with what ours makes up.
    own = {symbol for symbol in symbols if not symbol.startswith("unk__")}
    declared = {name: _without_made_up(tensor, own) for name, tensor in declared.items()}
    names = {*declared, *wanted, *(value.name for value in model.graph.output)}
    tensors = _merged_all(declared, _inferred(model, names, own))
    for weight in model.graph.initializer:
        if weight.name in names:
            tensors.setdefault(weight.name, _tensor_of(weight))
    gaps = [name for name in sorted(wanted) if name not in tensors or (_is_open(tensors[name]))]
    if gaps:
        tensors = _merged_all(tensors, _probed(model, gaps, folder, own))
    return tensors


def infer_bound(model: ModelProto, dims: Mapping[str, int], wanted: AbstractSet[str]) -> dict[str, Tensor]:
    """What is known of `wanted` once `dims` are put in for the symbols of inputs: for sizes, not for parts.

    ONNX shape inference comes first. It follows sizes through the arithmetic of few operators (Shape, Slice, Concat,
    Add), so that what goes through others (Range, Equal, Where, ConstantOfShape) is open after it; small values that
    depend on nothing but sizes and constants are then computed, and the sizes that follow from them.
    """
    bound = _bare(model)
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
        bound.graph.value_info.extend(ValueInfoProto(name=name, type=type_of(tensor)) for name, tensor in found)
        arithmetic, still_open = _begun(bound, wanted)
        arithmetic.settle(still_open)
    return {name: tensor for name, tensor in {**arithmetic.read, **arithmetic.found}.items() if name in wanted}


def _begun(model: ModelProto, wanted: AbstractSet[str]) -> tuple[_Arithmetic, list[str]]:
    """What ONNX shape inference finds, and those of `wanted` that it leaves open, in topological order."""
    inferred = {value.name: value for value in _infer_values(model)}
    found = _described((value for name, value in inferred.items() if name in wanted), set())
    return _Arithmetic(model, inferred, found), [name for name, tensor in found.items() if _is_partly_open(tensor)]


def describe(name: str, kind: TypeProto, *, symbols: AbstractSet[str] | None = None) -> Tensor:
    """A type message as a record of ours; sizes with symbols that are not among `symbols` are left open."""
    if not kind.HasField("tensor_type"):
        return Tensor(name=name, dtype=_word(kind), shape=None)
    tensor = kind.tensor_type
    if tensor.elem_type not in _WORDS:
        return Tensor(name=name, dtype=_UNKNOWN, shape=None)
    if not tensor.HasField("shape"):
        return Tensor(name=name, dtype=_WORDS[tensor.elem_type], shape=None)
    shape: list[Dim] = []
    for dim in tensor.shape.dim:
        number = dim.dim_value
        if number > 0:
            shape.append(number)
        elif symbol := dim.dim_param:
            shape.append(symbol if symbols is None or symbol in symbols else None)
        else:
            shape.append(0 if number == 0 and dim.HasField("dim_value") else None)
    return Tensor(name=name, dtype=_WORDS[tensor.elem_type], shape=tuple(shape))


def _word(kind: TypeProto) -> str:
    match kind.WhichOneof("value"):
        case "tensor_type":
            return _WORDS.get(kind.tensor_type.elem_type, _UNKNOWN)
        case "sequence_type":
            return f"sequence({_word(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_word(kind.optional_type.elem_type)})"
        case "map_type":
            return f"map({_WORDS[kind.map_type.key_type]}, {_word(kind.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse({_WORDS[kind.sparse_tensor_type.elem_type]})"
        case _:
            return _UNKNOWN


def type_of(tensor: Tensor) -> TypeProto:
    """A record of ours as a type message; the inverse of `describe`, but for what a sequence's elements measure."""
    kind = _type_of_word(tensor.dtype)
    if tensor.is_plain and tensor.shape is not None:
        kind.tensor_type.shape.SetInParent()
        for dim in tensor.shape:
            made = kind.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                made.dim_value = dim
            elif dim:
                made.dim_param = dim
    return kind


def _type_of_word(word: str) -> TypeProto:
    kind = TypeProto()
    head, found, inner = word.partition("(")
    inner = inner.removesuffix(")")
    if not found:
        kind.tensor_type.elem_type = _ELEMENTS[word]
    elif head == "sequence":
        kind.sequence_type.elem_type.CopyFrom(_type_of_word(inner))
    elif head == "optional":
        kind.optional_type.elem_type.CopyFrom(_type_of_word(inner))
    elif head == "sparse":
        kind.sparse_tensor_type.elem_type = _ELEMENTS[inner]
    else:
        key, _, value = inner.partition(", ")
        kind.map_type.key_type = _ELEMENTS[key]
        kind.map_type.value_type.CopyFrom(_type_of_word(value))
    return kind


def _described(values: Iterable[ValueInfoProto], symbols: AbstractSet[str] | None = None) -> dict[str, Tensor]:
    found = (describe(value.name, value.type, symbols=symbols) for value in values if value.HasField("type"))
    return {tensor.name: tensor for tensor in found if tensor.dtype != _UNKNOWN}


def _inferred(model: ModelProto, wanted: AbstractSet[str], own_symbols: AbstractSet[str]) -> dict[str, Tensor]:
    return _described((value for value in _infer_values(_bare(model)) if value.name in wanted), own_symbols)


def _bare(model: ModelProto) -> ModelProto:
    """A copy of `model` without what inference would believe although it may be otherwise.

    That is value_info, which may be stale, and the defaults of inputs, which a user may override with other sizes.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    del graph.value_info[:]
    inputs = {value.name for value in graph.input} if bare.ir_version >= FIRST_IR_WITH_DEFAULTS else set()
    for i in reversed([i for i, weight in enumerate(graph.initializer) if weight.name in inputs]):
        del graph.initializer[i]
    return bare


def _infer_values(model: ModelProto) -> Sequence[ValueInfoProto]:
    """What ONNX shape inference says of tensors inside and of outputs."""
    try:
        done = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - it raises many kinds of errors on models that run; the probe comes next
        return ()
    return (*done.graph.value_info, *done.graph.output)


def _with_shape(tensor: Tensor, shape: Sequence[Dim] | None) -> Tensor:
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=None if shape is None else tuple(shape))


def _without_made_up(tensor: Tensor, own: AbstractSet[str]) -> Tensor:
    shape = tensor.shape
    if shape is None or all(not isinstance(dim, str) or dim in own for dim in shape):
        return tensor
    return _with_shape(tensor, [None if isinstance(dim, str) and dim not in own else dim for dim in shape])


def _is_open(tensor: Tensor) -> bool:
    return tensor.is_plain and tensor.shape is None


def _is_partly_open(tensor: Tensor) -> bool:
    return (tensor.shape is None or None in tensor.shape) and tensor.is_plain


def _merged_all(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    merged = dict(second)
    for name, tensor in first.items():
        merged[name] = _merged(tensor, second[name]) if name in second else tensor
    return merged


def _merged(first: Tensor, second: Tensor) -> Tensor:
    """Both pieces of knowledge in one; `first` wins where they differ in kind."""
    if first.dtype != second.dtype or first.shape == second.shape or second.shape is None:
        return first
    if first.shape is None:
        return _with_shape(first, second.shape)
    if len(first.shape) != len(second.shape):
        return _with_shape(first, None)
    return _with_shape(first, [_merged_dim(a, b) for a, b in zip(first.shape, second.shape, strict=True)])


def _merged_dim(first: Dim, second: Dim) -> Dim:
    """One size in both; a number that inference contradicts is stale, or frozen."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, int) and first != second:
        return None if isinstance(second, int) else second
    return first


class _Arithmetic:
    """Small values that depend on nothing but sizes and constants, and the sizes that follow from them.

    Goes back from what is open to all that it may depend on, and forth again node by node: onnx infers the types of
    what a node writes from the values that it reads, and onnx's reference implementation computes its own. Whether a
    value is small is known before it is computed, so that nothing grows with the numbers that were put in.
    """

    def __init__(
        self, model: ModelProto, inferred: Mapping[str, ValueInfoProto], described: Mapping[str, Tensor]
    ) -> None:
        graph = model.graph
        self.nodes = graph.node
        self.opsets = {domain(opset.domain): opset for opset in model.opset_import}
        self.functions = {key_of(function) for function in model.functions}
        weights = {weight.name: weight for weight in graph.initializer}
        inputs = {value.name: value for value in graph.input}
        self.messages: dict[str, TensorProto | ValueInfoProto] = {**weights, **inputs, **inferred}
        self.weights = {name: weight for name, weight in weights.items() if not is_external(weight)}
        self.read = dict(described)
        self.found: dict[str, Tensor] = {}
        self.values: dict[str, TensorProto] = {}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Which node writes a tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output}

    def settle(self, names: Iterable[str]) -> None:
        """Find the sizes of `names`, as far as they follow."""
        for node in (self.nodes[i] for i in self._behind(names)):
            if not has_bodies(node) and function_key(node) not in self.functions:
                self._infer(node)
                self._compute(node)

    def tensor(self, name: str) -> Tensor | None:
        """What is known of the type of `name`."""
        if name not in self.read and name in self.messages:
            message = self.messages[name]
            tensor = (
                _tensor_of(message) if isinstance(message, TensorProto) else describe(name, message.type, symbols=set())
            )
            if tensor.dtype != _UNKNOWN:
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
                waiting += [t.name for t in reads if _is_partly_open(t) or (_is_small(t) and not _is_measure(node))]
        return sorted(found)

    def _infer(self, node: NodeProto) -> None:
        """The types of what `node` writes, where some of their sizes are open."""
        reads = {name: self.tensor(name) for name in node.input if name}
        writes = [self.tensor(name) for name in node.output if name]
        if all(t and not _is_partly_open(t) for t in writes) or not all(reads.values()):
            return
        types = {name: type_of(tensor) for name, tensor in reads.items() if tensor}
        values = {name: value for name in reads if (value := self._value(name))}
        try:
            opset = self.opsets[domain(node.domain)]
            schema = onnx.defs.get_schema(node.op_type, opset.version, opset.domain)
            made = onnx.shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=[opset])
        except Exception:  # noqa: BLE001 - an operator or a type that onnx does not know: its sizes stay open
            return
        for name, kind in made.items():
            tensor = describe(name, kind, symbols=set())
            if tensor.dtype != _UNKNOWN:
                self.found[name] = _merged(self.tensor(name) or tensor, tensor)

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
        self.found.update({value.name: _tensor_of(value) for value in values})

    def _results(self, node: NodeProto) -> Sequence[Any]:
        """What `node` writes; nothing where something that it reads is not known."""
        if _is_measure(node):
            tensor = self.tensor(node.input[0])
            return [_measured(node, _sizes(tensor))] if tensor and not _is_partly_open(tensor) else []
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
    if not tensor.is_plain or _is_partly_open(tensor) or tensor.dtype not in BITS:
        return False
    sizes = _sizes(tensor)
    return math.prod(sizes) <= _SMALL_ELEMENTS and (len(sizes) <= 1 or tensor.dtype in _WHOLE)


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor none of whose sizes is open."""
    return cast(tuple[int, ...], tensor.shape)


def _tensor_of(values: TensorProto) -> Tensor:
    return Tensor(name=values.name, dtype=_WORDS[values.data_type], shape=tuple(values.dims))


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
            named[name] = _with_shape(tensors[name], sizes)
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


def _probed(model: ModelProto, names: Sequence[str], folder: Path, own: AbstractSet[str]) -> dict[str, Tensor]:
    """What ONNX Runtime says of the types of `names`; nothing where it can't load the model (custom operators)."""
    outputs = {value.name for value in model.graph.output}
    asked = ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in outputs)
    said = {name: found for name, found in _session_outputs(asked, folder).items() if name in set(names)}
    # For ORT's Python interface a scalar and a tensor of unknown rank look alike: []. The shape of the output of a
    # Shape node tells them apart: [0] for a scalar, [None] where the rank is unknown.
    unclear = [name for name, tensor in said.items() if tensor.is_plain and tensor.shape == ()]
    if unclear:
        for i, name in enumerate(unclear):
            asked.graph.node.append(onnx.helper.make_node("Shape", [name], [f"graphcut.rank.{i}"]))
            asked.graph.output.append(ValueInfoProto(name=f"graphcut.rank.{i}"))
        ranks = _session_outputs(asked, folder)
        for i, name in enumerate(unclear):
            rank = ranks.get(f"graphcut.rank.{i}")
            if rank is None or rank.shape != (0,):
                said[name] = _with_shape(said[name], None)
    return {name: _without_made_up(tensor, own) for name, tensor in said.items()}


def _session_outputs(model: ModelProto, folder: Path) -> dict[str, Tensor]:
    import onnxruntime  # most models leave no gap, and it takes a quarter of a second to import

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay on disk
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - ORT's errors share no base class
        return {}
    return {
        output.name: Tensor(
            name=output.name,
            dtype=(word := word_from_ort(output.type)),
            shape=None if "(" in word else tuple(dim if isinstance(dim, int) else dim or None for dim in output.shape),
        )
        for output in session.get_outputs()
    }


def word_from_ort(text: str) -> str:
    """ONNX Runtime's word for a type, such as `seq(map(int64,tensor(float)))`, as ours."""
    head, _, inner = text.partition("(")
    inner = inner.removesuffix(")")
    match head:
        case "tensor":
            return _NUMPY_WORDS.get(inner, inner)
        case "sparse_tensor":
            return f"sparse({_NUMPY_WORDS.get(inner, inner)})"
        case "map":
            key, _, value = inner.partition(",")
            return f"map({_NUMPY_WORDS.get(key, key)}, {word_from_ort(value)})"
        case "seq":
            return f"sequence({word_from_ort(inner)})"
        case _:
            return f"{head}({word_from_ort(inner)})"
