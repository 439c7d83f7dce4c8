"""Type and shape of every tensor, merged from several sources.

1. What the model declares: its inputs, outputs and value_info.
2. What ONNX shape inference finds.
3. Only where these leave a gap: what ONNX Runtime finds when the tensor is asked for as an output that has only a name.

Where two sources contradict each other in a size, the size is left open: an exporter's stale value_info would
otherwise make a part refuse what the whole model accepts. Symbols keep their names, and symbols that inference made up
are left out, so that a name always means what the author of the model meant.

What is still open can be computed once numbers are put in for symbols: see sizes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import onnx
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto

from ..core.wiring import Dim, Tensor
from .subgraphs import FIRST_IR_WITH_DEFAULTS

_NUMPY_WORDS: Final = {"float": "float32", "double": "float64"}
_WORDS: Final[Mapping[int, str]] = {
    number: _NUMPY_WORDS.get(name.lower(), name.lower()) for name, number in TensorProto.DataType.items()
}
_ELEMENTS: Final[Mapping[str, int]] = {word: number for number, word in _WORDS.items()}
UNKNOWN: Final = "undefined"
"""The dtype of what no source knows."""


def infer_tensors(model: ModelProto, wanted: AbstractSet[str], *, folder: Path) -> dict[str, Tensor]:
    """The types of `wanted`, and of everything that the model declares; what no source knows is left out.

    Args:
        model: its nodes in topological order; large weights as references, which are not read.
        wanted: the tensors for which a gap is worth asking ONNX Runtime.
        folder: where the files lie that external tensors name.
    """
    declared = tensors_of_values([*model.graph.value_info, *model.graph.output, *model.graph.input])
    symbols = {dim for tensor in declared.values() for dim in tensor.shape or () if isinstance(dim, str)}
    # What an earlier inference made up means nothing, and would mix with what ours makes up.
    own = {symbol for symbol in symbols if not symbol.startswith("unk__")}
    declared = {name: _without_made_up(tensor, own) for name, tensor in declared.items()}
    names = {*declared, *wanted, *(value.name for value in model.graph.output)}
    tensors = _merged_all(declared, _inferred(model, names, own))
    for weight in model.graph.initializer:
        if weight.name in names:
            tensors.setdefault(weight.name, tensor_of_initializer(weight))
    gaps = [name for name in sorted(wanted) if name not in tensors or (_is_open(tensors[name]))]
    if gaps:
        tensors = _merged_all(tensors, _probed(model, gaps, folder, own))
    return tensors


def tensor_of_type(name: str, kind: TypeProto, *, symbols: AbstractSet[str] | None = None) -> Tensor:
    """A type message as a record of ours; sizes with symbols that are not among `symbols` are left open."""
    if not kind.HasField("tensor_type"):
        return Tensor(name=name, dtype=_word(kind), shape=None)
    tensor = kind.tensor_type
    if tensor.elem_type not in _WORDS:
        return Tensor(name=name, dtype=UNKNOWN, shape=None)
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
            return _WORDS.get(kind.tensor_type.elem_type, UNKNOWN)
        case "sequence_type":
            return f"sequence({_word(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_word(kind.optional_type.elem_type)})"
        case "map_type":
            return f"map({_WORDS[kind.map_type.key_type]}, {_word(kind.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse({_WORDS[kind.sparse_tensor_type.elem_type]})"
        case _:
            return UNKNOWN


def type_proto(tensor: Tensor) -> TypeProto:
    """The `TypeProto` of a tensor; the inverse of `tensor_of_type`, except for the shapes of sequence elements."""
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


def tensor_of_initializer(values: TensorProto) -> Tensor:
    """An initializer as a record of ours, without its values."""
    return Tensor(name=values.name, dtype=_WORDS[values.data_type], shape=tuple(values.dims))


def tensors_of_values(values: Iterable[ValueInfoProto], symbols: AbstractSet[str] | None = None) -> dict[str, Tensor]:
    """Type messages as records of ours, by name; those of which nothing is known left out."""
    found = (tensor_of_type(value.name, value.type, symbols=symbols) for value in values if value.HasField("type"))
    return {tensor.name: tensor for tensor in found if tensor.dtype != UNKNOWN}


def _inferred(model: ModelProto, wanted: AbstractSet[str], own_symbols: AbstractSet[str]) -> dict[str, Tensor]:
    return tensors_of_values(
        (value for value in infer_values(without_value_info(model)) if value.name in wanted), own_symbols
    )


def without_value_info(model: ModelProto) -> ModelProto:
    """A copy of `model` without what inference would believe although it may be otherwise.

    That is value_info, which may be stale, and the defaults of inputs, which a user may override with other sizes.
    """
    without_value_info = ModelProto()
    without_value_info.CopyFrom(model)
    graph = without_value_info.graph
    del graph.value_info[:]
    inputs = {value.name for value in graph.input} if without_value_info.ir_version >= FIRST_IR_WITH_DEFAULTS else set()
    for i in reversed([i for i, weight in enumerate(graph.initializer) if weight.name in inputs]):
        del graph.initializer[i]
    return without_value_info


def infer_values(model: ModelProto) -> Sequence[ValueInfoProto]:
    """What ONNX shape inference says of tensors inside and of outputs."""
    try:
        done = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - it raises many kinds of errors on models that run; the probe comes next
        return ()
    return (*done.graph.value_info, *done.graph.output)


def with_shape(tensor: Tensor, shape: Sequence[Dim] | None) -> Tensor:
    """The same tensor, of another shape."""
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=None if shape is None else tuple(shape))


def _without_made_up(tensor: Tensor, own: AbstractSet[str]) -> Tensor:
    shape = tensor.shape
    if shape is None or all(not isinstance(dim, str) or dim in own for dim in shape):
        return tensor
    return with_shape(tensor, [None if isinstance(dim, str) and dim not in own else dim for dim in shape])


def _is_open(tensor: Tensor) -> bool:
    return tensor.is_plain and tensor.shape is None


def has_unknown_dims(tensor: Tensor) -> bool:
    """Is some of its sizes, or its rank, not known?"""
    return (tensor.shape is None or None in tensor.shape) and tensor.is_plain


def _merged_all(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = dict(second)
    for name, tensor in first.items():
        found[name] = merged(tensor, second[name]) if name in second else tensor
    return found


def merged(first: Tensor, second: Tensor) -> Tensor:
    """Both pieces of knowledge in one; `first` wins where they differ in kind."""
    if first.dtype != second.dtype or first.shape == second.shape or second.shape is None:
        return first
    if first.shape is None:
        return with_shape(first, second.shape)
    if len(first.shape) != len(second.shape):
        return with_shape(first, None)
    return with_shape(first, [_merged_dim(a, b) for a, b in zip(first.shape, second.shape, strict=True)])


def _merged_dim(first: Dim, second: Dim) -> Dim:
    """One size in both; a number that inference contradicts is stale, or frozen."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, int) and first != second:
        return None if isinstance(second, int) else second
    return first


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
                said[name] = with_shape(said[name], None)
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
            dtype=(word := dtype_from_ort(output.type)),
            shape=None if "(" in word else tuple(dim if isinstance(dim, int) else dim or None for dim in output.shape),
        )
        for output in session.get_outputs()
    }


def dtype_from_ort(text: str) -> str:
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
            return f"map({_NUMPY_WORDS.get(key, key)}, {dtype_from_ort(value)})"
        case "seq":
            return f"sequence({dtype_from_ort(inner)})"
        case _:
            return f"{head}({dtype_from_ort(inner)})"
