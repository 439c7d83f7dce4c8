"""Values of tensors between parts, and their conversion from and to numpy.

Numeric tensors are OrtValues: nothing is copied, and types that numpy lacks (bfloat16, 8-bit floats) keep their bits.
Strings, sequences, maps and optionals are the Python objects that ONNX Runtime takes and returns.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ..core.errors import InputError, RunError, ShapeWarning, check_names, wrong_type
from ..core.manifest import Cascade
from ..core.tensors import ELEMENT_TYPES, NON_NUMPY_TYPES, UNDEFINED, Dim, Tensor, Tensors

try:  # What ONNX Runtime's Python classes wrap: they take several times as long as the calls. A version in which it is
    # missing is used by way of these classes.
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    CPU_MEMORY: Any = ort.OrtDevice.make("cpu", 0)._get_c_device()  # noqa: SLF001 - see above
    if not hasattr(ort.OrtValue.ortvalue_from_numpy(np.empty(0, np.uint8)), "_ortvalue"):
        CPU_MEMORY = None
except (ImportError, AttributeError):
    CPU_MEMORY = None

Array = np.ndarray[Any, Any]  #: of any shape and type.
Value = Any  #: an OrtValue; an array of strings; a list, a dict or None for what is not a tensor.
Values = Mapping[str, Value]  #: by tensor name.
RunPart = Callable[[int, Values], dict[str, Value]]  #: runs the part with an index on what it reads.
Feeds = Mapping[str, object]  #: a user's inputs by name: arrays, or lists, dicts and None for what is not a tensor.
Outputs = dict[str, Any]  #: outputs for a user, likewise.


class UserInputs:
    """A user's inputs. If fetching one raises an error, they end there; the error is raised after what came before."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self._feeds = feeds
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Feeds]:
        """The inputs up to the error."""
        try:
            yield from self._feeds
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    def check(self) -> None:
        """Raise the error, if there was one."""
        if self._error is not None:
            raise self._error


_HELD_BY_NUMPY: Final = frozenset(dtype for dtype, kind in ELEMENT_TYPES.items() if kind.array is not None)
_SMALL_BYTES: Final = 16 << 10  #: to copy so much takes less time than to make an array of memory of others.


@cache
def bits_type(dtype: str) -> np.dtype[Any]:
    """The numpy type of an array for such numbers; the unsigned type of the same width if numpy lacks theirs."""
    return np.dtype(ELEMENT_TYPES[dtype].array)


class _Memory:
    """The memory of a tensor for numpy, whose arrays keep it alive, and with it the tensor."""

    def __init__(self, value: ort.OrtValue) -> None:
        self.value = value
        place, size = (value.data_ptr(), False), (value.tensor_size_in_bytes(),)
        self.__array_interface__ = {"data": place, "shape": size, "typestr": "|u1", "version": 3}


def memory_of(value: ort.OrtValue) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor of numbers, where they are; of one in the memory of a device a copy.

    The array keeps `value` alive.
    """
    if value.device_name() != "cpu":
        return np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint8)
    # Nothing has no address, which numpy 1 refuses.
    return np.asarray(_Memory(value)) if value.tensor_size_in_bytes() else np.empty(0, np.uint8)


def view_of(value: ort.OrtValue, dtype: str) -> Array:
    """The numbers of a tensor where they are, see `memory_of`; their bits if numpy lacks the type."""
    return memory_of(value).view(bits_type(dtype)).reshape(value.shape())


def is_numeric_tensor(tensor: Tensor) -> bool:
    """Is it a tensor of numbers? ONNX Runtime's Python interface makes OrtValues of nothing else."""
    return tensor.is_plain and tensor.dtype != "string"


def copied(value: Value) -> Value:
    """`value` in memory of its own. An optional that ONNX Runtime returns may share the memory of an input."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [copied(item) for item in value] if isinstance(value, list) else value


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tuple(value.shape()) if isinstance(value, ort.OrtValue) else np.shape(value)


def symbol_sizes(shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes of dimensions without a number (`Tensor.dim_names`), from the shapes of values."""
    pairs = [pair for name, shape in shapes.items() for pair in zip(tensors[name].dim_names, shape, strict=False)]
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def check_fed(
    feeds: Feeds, reads: Sequence[str], needed: Sequence[str], tensors: Tensors, elsewhere: Mapping[str, str]
) -> None:
    """Raise an InputError if what is fed is no input of the model, or one that it needs is not fed.

    `elsewhere` are the parts, not here, that write inputs. A TypeError if the inputs are not given by name.
    """
    if not isinstance(feeds, Mapping):
        raise wrong_type(feeds, "inputs by name", hint="one set of inputs is a dict such as {'x': array}")
    check_names(feeds, reads, "the model has no input", "its inputs:", error=InputError)
    if missing := next((name for name in needed if name not in feeds), None):
        writer = f"; it is written by {elsewhere[missing]}, not here" if missing in elsewhere else ""
        message = f"the model reads {tensors[missing]} {missing!r}, and nothing is fed for it{writer}"
        raise InputError(message, hint=f"it needs {', '.join(needed)}")


def to_value(given: object, tensor: Tensor) -> Value:
    """A user's input as a value. Types that numpy lacks are given as ml_dtypes arrays or as their bits."""
    if isinstance(given, ort.OrtValue) or not tensor.is_plain:
        return given
    try:
        array = np.asarray(given)
    except ValueError:
        message = f"input {tensor.name!r} is fed rows of unequal length, and the model reads {tensor}"
        raise InputError(message, hint="make all rows of one axis equally long") from None
    _check(array, tensor)
    if tensor.dtype == "string":
        return array.astype(object)
    return from_array(array if array.flags.c_contiguous else np.ascontiguousarray(array), tensor)


def to_array(value: Value, tensor: Tensor, *, copy: bool = True) -> Any:  # noqa: ANN401 - or what is no tensor
    """A value for the user: a numpy array; its bits as unsigned integers if numpy lacks the type.

    Warns if its shape is not the declared one, which ONNX Runtime accepts. Without `copy` the array may be the
    memory of the value, which it keeps alive: for values that nothing else writes.

    Raises:
        RunError: it is of another type.
    """
    if tensor.is_plain and not _has_shape(shape_of(value), tensor.shape):
        message = f"output {tensor.name!r} has shape {list(shape_of(value))}, and the model declares {tensor}"
        warnings.warn(message, ShapeWarning, stacklevel=2)
    if not isinstance(value, ort.OrtValue):
        return value
    if tensor.dtype not in ELEMENT_TYPES or value.element_type() != ELEMENT_TYPES[tensor.dtype].number:
        message = f"output {tensor.name!r} is a {value.data_type()}, and the manifest says {tensor.dtype}"
        raise RunError(message, hint="split the model again")
    if tensor.dtype not in NON_NUMPY_TYPES and (copy or value.tensor_size_in_bytes() <= _SMALL_BYTES):
        return value.numpy().copy()  # what `numpy` returns may be the memory of the array that the value was made of
    array = view_of(value, tensor.dtype)
    return array.copy() if copy else array


def outputs_of(cascade: Cascade, values: Values) -> Outputs:
    """The model's outputs for a user. ONNX Runtime allocated them, unless an input is an output at the same time."""
    reads, tensors = cascade.manifest.reads, cascade.tensors
    return {n: to_array(values[n], tensors[n], copy=n in reads) for n in cascade.manifest.writes}


def from_array(array: Any, tensor: Tensor) -> Value:  # noqa: ANN401 - an array, or the object for a sequence or map
    """The inverse of `to_array`, without a copy."""
    if not is_numeric_tensor(tensor):
        return array
    if tensor.dtype in NON_NUMPY_TYPES:
        kind = ELEMENT_TYPES[tensor.dtype]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(kind.array), kind.number)
    if CPU_MEMORY is not None:
        return ort.OrtValue(OrtValue.ortvalue_from_numpy(array, CPU_MEMORY), array)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _check(array: Array, tensor: Tensor) -> None:
    # Names are compared last: that takes a hundred times as long.
    is_bits = tensor.dtype in _HELD_BY_NUMPY and array.dtype == bits_type(tensor.dtype)
    is_string = tensor.dtype == "string" and array.dtype.kind in "OUS"
    is_right = is_bits or is_string or tensor.dtype == UNDEFINED
    if not is_right and str(array.dtype) not in {tensor.dtype, ml_dtypes_name(tensor.dtype)}:
        hint = f"convert it, for instance with .astype({tensor.dtype!r})"
        raise InputError(f"input {tensor.name!r} is fed {array.dtype}, and the model reads {tensor.dtype}", hint=hint)
    if not _has_shape(array.shape, tensor.shape):
        message = f"input {tensor.name!r} is fed shape {list(array.shape)}, and the model reads {tensor}"
        raise InputError(message, hint="give it the shape that the model declares")


@lru_cache(maxsize=1024)  # most tensors have the shape of the run before
def _has_shape(shape: tuple[int, ...], dims: tuple[Dim, ...] | None) -> bool:
    pairs = zip(dims or shape, shape, strict=False)
    return dims is None or (len(dims) == len(shape) and not any(d != n and isinstance(d, int) for d, n in pairs))


def ml_dtypes_name(dtype: str) -> str:
    """The name in ml_dtypes of a type that numpy lacks: `float8_e4m3fn` for `float8e4m3fn`."""
    return dtype.replace("float8", "float8_") if dtype.startswith("float8") else dtype


def zeros(tensor: Tensor, shape: tuple[int, ...]) -> Value:
    """A tensor of zeros, of the element type of `tensor`."""
    return from_array(np.zeros(shape, bits_type(tensor.dtype)), tensor)


def first_tokens(
    value: Value, tensor: Tensor, axis: int | None, length: int, kept: int, room: Value | None = None
) -> Value:
    """A state after `length` tokens as it was after `kept`. RunError if it has no place for each on `axis`.

    Both may have room for more tokens. Then `room`, where it is copied to, is returned.
    """
    if room is not None and axis is not None:
        places = (*(slice(None) for _ in range(axis)), slice(kept))
        view_of(room, tensor.dtype)[places] = to_array(value, tensor, copy=False)[places]
        return room
    if kept < length and (axis is None or shape_of(value)[axis] != length):
        raise RunError(f"the state {tensor.name!r} can't be cut to {kept} of {length} tokens")
    return value if axis is None or kept == length else rows_of(value, tensor, axis, range(kept))


def rows_of(value: Value, tensor: Tensor, axis: int, rows: Sequence[int]) -> Value:
    """Some rows of a tensor along `axis`."""
    return from_array(np.ascontiguousarray(to_array(value, tensor, copy=False).take(rows, axis)), tensor)
