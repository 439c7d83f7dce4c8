"""Tensors: name, type and shape, and how the numbers of each element type are held."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple, TypeVar

import msgspec

from .records import table

_Result = TypeVar("_Result")

TensorBytes = Mapping[str, tuple[int, bool]]
"""Sizes of tensors in bytes by name, and whether each is exact; otherwise it is a lower bound."""

Dim = int | str | None  #: a dimension: a number (`3`), a symbol (`"batch"`), or unknown (`None`).


class ElementType(NamedTuple):
    """How the elements of one type are held."""

    number: int  #: in TensorProto.DataType.
    bits: int | None  #: of one element; types below 8 bits are packed. None: elements have no fixed size.
    #: the numpy type of an array of them: the unsigned type of the same width if numpy lacks theirs; None for a type
    #: that ONNX Runtime takes in values of its own alone.
    array: str | None


#: by numpy's name (ONNX IR spec, TensorProto).
ELEMENT_TYPES: Final = table("core/element_types.json", dict[str, ElementType])
BITS: Final = {dtype: kind.bits for dtype, kind in ELEMENT_TYPES.items() if kind.bits is not None}
NON_NUMPY_TYPES: Final = frozenset(
    dtype for dtype, kind in ELEMENT_TYPES.items() if kind.array not in {None, dtype, "object"}
)  #: types that numpy lacks, and whose bits its arrays hold.
UNDEFINED: Final = "undefined"  #: the dtype of a tensor of unknown type.
_WORDS: Final = frozenset((*ELEMENT_TYPES, UNDEFINED, "sequence", "map", "optional", "sparse"))  #: of types.
MAX_BYTES: Final = 1 << 56  #: all tensors together take at most so much, so that 64 bits hold every sum of sizes.


Dims = Mapping[str, int]  #: the numbers of dimensions, by their symbols (`Tensor.dim_names`).


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name, type and shape of a tensor."""

    name: str  #: its name in the model and in every part.
    #: numpy's name of the element type, such as `"float32"`; for a value that is not a tensor the whole type, such as
    #: `"sequence(float32)"` or `"map(string, float32)"`.
    dtype: str
    shape: tuple[Dim, ...] | None  #: one `Dim` for each axis; `()` for a scalar; None if the rank is unknown.

    @property
    def is_plain(self) -> bool:
        """Whether it is a tensor, not a sequence, a map or an optional."""
        return "(" not in self.dtype

    @property
    def has_known_type(self) -> bool:
        """Whether its type is made of words that types are made of."""
        return _WORDS.issuperset(re.findall(r"\w+", self.dtype))

    @property
    def dim_names(self) -> tuple[int | str, ...]:
        """The number or the symbol of each dimension; `NAME.AXIS` for one without either, such as `x.0`."""
        return tuple(f"{self.name}.{axis}" if dim is None else dim for axis, dim in enumerate(self.shape or ()))

    def with_numbers(self, dims: Mapping[str, int]) -> "Tensor":
        """The tensor with the numbers `dims` for its `dim_names`; what has no number is unknown."""
        shape = [dims.get(dim) if isinstance(dim, str) else dim for dim in self.dim_names]
        return Tensor(name=self.name, dtype=self.dtype, shape=None if self.shape is None else tuple(shape))

    def bytes_for(self, dims: Mapping[str, int]) -> tuple[int, bool]:
        """Its size in bytes with the numbers `dims` for its `dim_names`, and whether that is exact.

        A dimension without a number counts as 1: then the size is a lower bound, and the second value is False.
        """
        bits = BITS.get(self.dtype)
        if bits is None or self.shape is None:
            return 0, False
        sizes = [dims.get(dim) if isinstance(dim, str) else dim for dim in self.dim_names]
        elements = prod(1 if size is None else size for size in sizes)
        return (elements * bits + 7) // 8, None not in sizes

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[…]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


Tensors = Mapping[str, Tensor]  #: tensors by name.


def by_kind(compute: Callable[[Tensor], _Result], dims: Collection[str] = ()) -> Callable[[Tensor], _Result]:
    """`compute`, called once for each type and shape: a model has many tensors of few kinds.

    It may read the name of a tensor for its `dim_names` in `dims` alone.
    """
    found: dict[object, _Result] = {}
    own = {dim.rpartition(".")[0] for dim in dims}

    def computed(tensor: Tensor) -> _Result:
        kind = tensor.name if tensor.name in own else (tensor.dtype, tensor.shape)
        if kind not in found:
            found[kind] = compute(tensor)
        return found[kind]

    return computed


def shapes_contradict(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes of a tensor can't both be right: another rank, number or symbol. None is no contradiction."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(None not in {x, y} and x != y for x, y in zip(a, b, strict=True))
