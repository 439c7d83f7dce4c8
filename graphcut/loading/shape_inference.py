"""Type and shape of every tensor, merged from three sources.

1. What the model declares: its inputs, outputs and value_info.
2. ONNX shape inference.
3. For tensors without a known rank: ONNX Runtime, which infers the type of an output that is declared by name only.

If two sources contradict each other in a dimension, it is unknown: otherwise stale value_info would make a part refuse
inputs that the model accepts. Symbols keep their names, and symbols that inference generated are unknown dimensions, so
that a symbol always means what the author of the model meant.

Dimensions that remain unknown can be computed for given numbers of the symbols: see `bound_sizes`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from pathlib import Path
from typing import Final

import onnx
from onnx import ModelProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto
from onnx.helper import (
    make_map_type_proto,
    make_optional_type_proto,
    make_sequence_type_proto,
    make_sparse_tensor_type_proto,
    make_tensor_type_proto,
)

from ..core.tensors import ELEMENT_TYPES, UNDEFINED, Dim, Tensor
from .subgraphs import FIRST_IR_WITH_DEFAULTS, remove_named

_OUR_WORDS: Final = {"float": "float32", "double": "float64", "seq": "sequence", "sparse_tensor": "sparse"}
#: the names of element types by their numbers in ONNX.
DTYPES: Final = {0: UNDEFINED, **{kind.number: dtype for dtype, kind in ELEMENT_TYPES.items()}}
_NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}
_LONG: Final = 1 << 20  #: a vector with more elements is long for data propagation: 2**40 of them took all memory.
FEW_NODES: Final = 5_000  #: shape inference on so many nodes takes a tenth of a second.


def infer_tensors(model: ModelProto, wanted: AbstractSet[str], *, folder: Path) -> dict[str, Tensor]:
    """The types of `wanted` and of all tensors that the model declares, except unknown ones.

    Nodes are in topological order. Large weights are references into `folder`, and are not read. If the rank of a
    wanted tensor is unknown, ONNX Runtime is asked.
    """
    declared = tensors_of_values([*model.graph.value_info, *model.graph.output, *model.graph.input])
    own = own_symbols(declared.values())
    declared = {name: _with_symbols(tensor, own) for name, tensor in declared.items()}
    names = {*declared, *wanted, *(value.name for value in model.graph.output)}
    inferred = (value for value in infer_values(without_value_info(model)) if value.name in names)
    tensors = _merged_all(declared, tensors_of_values(inferred, own))
    for weight in model.graph.initializer:
        tensors.setdefault(weight.name, tensor_of_initializer(weight))
    if gaps := [n for n in sorted(wanted) if n not in tensors or (tensors[n].is_plain and tensors[n].shape is None)]:
        tensors = _merged_all(tensors, ort_types(model, gaps, folder, own))
    return tensors


def own_symbols(tensors: Iterable[Tensor]) -> set[str]:
    """The symbols in shapes, without those that an earlier inference made: they mean nothing."""
    symbols = {dim for tensor in tensors for dim in tensor.shape or () if isinstance(dim, str)}
    return {symbol for symbol in symbols if not re.search("(^|/)unk__", symbol)}  # a merged model's: `b/unk__0`


def tensor_of_type(name: str, kind: TypeProto, *, symbols: AbstractSet[str] | None = None) -> Tensor:
    """The `Tensor` of a TypeProto; symbols that are not in `symbols` (None: all) are unknown dimensions."""
    dtype, tensor = _dtype(kind), kind.tensor_type
    if dtype == UNDEFINED or not tensor.HasField("shape"):
        return Tensor(name=name, dtype=dtype, shape=None)
    return Tensor(name=name, dtype=dtype, shape=tuple(_dim(dim, symbols) for dim in tensor.shape.dim))


def _dim(dim: TensorShapeProto.Dimension, symbols: AbstractSet[str] | None) -> Dim:
    number, symbol = dim.dim_value, dim.dim_param
    if number > 0 or (number == 0 and dim.HasField("dim_value")):
        return number
    return symbol if symbol and (symbols is None or symbol in symbols) else None


def _dtype(kind: TypeProto) -> str:
    match kind.WhichOneof("value"):
        case "tensor_type":
            return DTYPES.get(kind.tensor_type.elem_type, UNDEFINED)
        case "sequence_type" | "optional_type" as field:
            return f"{field.removesuffix('_type')}({_dtype(getattr(kind, field).elem_type)})"
        case "map_type":
            return f"map({DTYPES.get(kind.map_type.key_type, UNDEFINED)}, {_dtype(kind.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse({DTYPES.get(kind.sparse_tensor_type.elem_type, UNDEFINED)})"
        case _:
            return UNDEFINED


def type_proto(tensor: Tensor) -> TypeProto:
    """The `TypeProto` of a tensor; the inverse of `tensor_of_type`, except for the shapes of sequence elements."""
    return make_tensor_type_proto(_NUMBERS[tensor.dtype], tensor.shape) if tensor.is_plain else _type(tensor.dtype)


def _type(dtype: str) -> TypeProto:
    head, _, inner = dtype.removesuffix(")").partition("(")
    match head:
        case "sequence":
            return make_sequence_type_proto(_type(inner))
        case "optional":
            return make_optional_type_proto(_type(inner))
        case "map":
            key, _, value = inner.partition(", ")
            return make_map_type_proto(_NUMBERS[key], _type(value))
        case "sparse":
            return make_sparse_tensor_type_proto(_NUMBERS[inner], None)
        case _:
            return make_tensor_type_proto(_NUMBERS[dtype], None)


def tensor_of_initializer(values: TensorProto) -> Tensor:
    """The `Tensor` of an initializer."""
    return Tensor(name=values.name, dtype=DTYPES[values.data_type], shape=tuple(values.dims))


def tensors_of_values(values: Iterable[ValueInfoProto], symbols: AbstractSet[str] | None = None) -> dict[str, Tensor]:
    """The `Tensor` of each ValueInfoProto by name, without those of unknown type."""
    kinds: dict[bytes, Tensor] = {}  # a model has many tensors of few types, and reading a message takes long
    found: dict[str, Tensor] = {}
    for value in values:
        if value.HasField("type"):
            key = value.type.SerializeToString()
            if key not in kinds:
                kinds[key] = tensor_of_type("", value.type, symbols=symbols)
            kind = kinds[key]
            if kind.dtype != UNDEFINED:
                found[value.name] = Tensor(name=value.name, dtype=kind.dtype, shape=kind.shape)
    return found


def without_value_info(model: ModelProto) -> ModelProto:
    """A copy of `model` without value_info, which may be stale, and without defaults, which users may override."""
    copy = deepcopy(model)
    del copy.graph.value_info[:]
    inputs = {value.name for value in copy.graph.input} if copy.ir_version >= FIRST_IR_WITH_DEFAULTS else set()
    remove_named(copy.graph.initializer, inputs)
    return copy


def infer_values(model: ModelProto) -> Sequence[ValueInfoProto]:
    """The types that ONNX shape inference finds for inner tensors and outputs.

    Its data propagation makes a message for each element of a vector: it is left out if a vector is long. In small
    models, where that takes little time, vectors are found by inference without it.
    """
    found = _infer(model, data_prop=False) if len(model.graph.node) < FEW_NODES else ()
    shapes = (value.type.tensor_type.shape.dim for value in (*model.graph.input, *found))
    if any(len(dims) == 1 and dims[0].dim_value > _LONG for dims in shapes):
        return found
    return _infer(model, data_prop=True)


def _infer(model: ModelProto, *, data_prop: bool) -> Sequence[ValueInfoProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except Exception:  # noqa: BLE001 - it raises many kinds of errors for models that run; ONNX Runtime is asked next
        return ()
    return (*inferred.graph.value_info, *inferred.graph.output)


def with_shape(tensor: Tensor, shape: Sequence[Dim] | None) -> Tensor:
    """The same tensor with another shape."""
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=None if shape is None else tuple(shape))


def _with_symbols(tensor: Tensor, symbols: AbstractSet[str]) -> Tensor:
    """The tensor with all other symbols as unknown dimensions."""
    if tensor.shape is None:
        return tensor
    return with_shape(tensor, [None if isinstance(dim, str) and dim not in symbols else dim for dim in tensor.shape])


def has_unknown_dims(tensor: Tensor) -> bool:
    """Whether a dimension or the rank is unknown."""
    return (tensor.shape is None or None in tensor.shape) and tensor.is_plain


def _merged_all(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**second, **{name: merged(tensor, second.get(name, tensor)) for name, tensor in first.items()}}


def merged(first: Tensor, second: Tensor) -> Tensor:
    """The tensor that both describe; `first` wins if the dtypes differ."""
    if first.dtype != second.dtype or first.shape == second.shape or second.shape is None:
        return first
    if first.shape is None:
        return with_shape(first, second.shape)
    return with_dims_of(first, second, _merged_dim)


def with_dims_of(first: Tensor, second: Tensor, dim_of: Callable[[Dim, Dim], Dim]) -> Tensor:
    """`first` with the dimensions that `dim_of` makes of those of both; an unknown rank if theirs are not the same."""
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return with_shape(first, None)
    return with_shape(first, list(map(dim_of, first.shape, second.shape)))


def _merged_dim(first: Dim, second: Dim) -> Dim:
    """A number in `first` that `second` contradicts is stale, or was frozen at export."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, int) and first != second:
        return None if isinstance(second, int) else second
    return first


def ort_types(model: ModelProto, names: Sequence[str], folder: Path, symbols: AbstractSet[str]) -> dict[str, Tensor]:
    """The types of `names` by ONNX Runtime; empty if it can't load the model (custom operators)."""
    outputs = {value.name for value in model.graph.output}
    probe = deepcopy(model)
    probe.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in outputs)
    found = {name: tensor for name, tensor in _session_outputs(probe, folder).items() if name in set(names)}
    # ORT's Python API gives the shape [] both for a scalar and for an unknown rank. The shape of the output of a Shape
    # node tells them apart: [0] for a scalar, [None] for an unknown rank.
    unclear = {name: f"graphcut.rank.of {name}" for name, one in found.items() if one.is_plain and one.shape == ()}
    probe.graph.node.extend(onnx.helper.make_node("Shape", [name], [rank]) for name, rank in unclear.items())
    probe.graph.output.extend(ValueInfoProto(name=rank) for rank in unclear.values())
    ranks = _session_outputs(probe, folder) if unclear else {}
    for name, rank in unclear.items():
        if rank not in ranks or ranks[rank].shape != (0,):
            found[name] = with_shape(found[name], None)
    return {name: _with_symbols(tensor, symbols) for name, tensor in found.items()}


def _session_outputs(model: ModelProto, folder: Path) -> dict[str, Tensor]:
    import onnxruntime  # takes a quarter of a second to import, and few models need it

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # otherwise it starts a thread for each core, and nothing is computed
    options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay on disk
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    try:
        raw = model.SerializeToString()
        session = onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:  # noqa: BLE001 - ORT's errors share no base class
        return {}
    found: dict[str, Tensor] = {}
    for output in session.get_outputs():
        dtype = dtype_from_ort(output.type)
        dims = (dim if isinstance(dim, int) else dim or None for dim in output.shape)
        found[output.name] = Tensor(name=output.name, dtype=dtype, shape=None if "(" in dtype else tuple(dims))
    return found


def dtype_from_ort(text: str) -> str:
    """The dtype of a type that ONNX Runtime writes as `seq(map(int64,tensor(float)))`."""
    text = re.sub(r"\btensor\((\w+)\)", r"\1", text)
    return re.sub(r"\w+", lambda word: _OUR_WORDS.get(word[0], word[0]), text).replace(",", ", ")
