"""What the graph tells about the inputs of a model, before sizes and values are chosen.

An open size has the name that `Tensor.dim_names` gives it.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
from onnx import TypeProto

from ..core.graph import grouped
from ..core.tensors import Tensor
from ..loading.expressions import atoms
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type
from .consumers import Consumer, consumers_of
from .flattening import FlatNodes, flatten
from .roles import Meaning, Role, meaning_of_symbol, meanings_of_axes, role_of
from .shape_hints import Shape, axis_meanings, required_channels, required_rank, required_sizes


@dataclass(frozen=True)
class InputSurvey:
    """The inputs of a model."""

    model: Model  #: the model.

    @cached_property
    def nodes(self) -> FlatNodes:
        """Its nodes, those of bodies and functions included."""
        return flatten(self.model)

    @cached_property
    def types(self) -> Mapping[str, TypeProto]:
        """The declared type of each input."""
        declared = {value.name: value.type for value in self.model.proto.graph.input}
        return {name: declared[name] for name in self.model.graph.reads}

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Each input, or the tensor in it if it is a sequence or an optional; without maps. All ranks are known."""
        found = [tensor_of_type(name, _innermost(kind)) for name, kind in self.types.items()]
        return {tensor.name: self._ranked(tensor) for tensor in found if tensor.is_plain}

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        """The role of each input."""
        return {name: role_of(tensor) for name, tensor in self.tensors.items()}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Consumer, ...]]:
        """The consumers of each input, see `consumers_of`."""
        return {name: consumers_of(name, len(tensor.shape or ()), self.nodes) for name, tensor in self.tensors.items()}

    @cached_property
    def dims(self) -> Mapping[str, tuple[int | str, ...]]:
        """The shape of each input, with a name for each open size."""
        return {name: tensor.dim_names for name, tensor in self.tensors.items()}

    @cached_property
    def open_sizes(self) -> Mapping[str, list[tuple[str, int]]]:
        """Each open size in order of appearance, and the (input, axis) pairs whose dimension is exactly this size."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, dims in self.dims.items():
            for axis, dim in enumerate(dims):
                for atom in () if isinstance(dim, int) else atoms(dim):
                    alone = found.setdefault(atom, [])
                    if atom == dim:
                        alone.append((name, axis))
        return found

    @cached_property
    def required(self) -> Mapping[str, int]:
        """The open sizes that a weight determines, with their numbers."""
        reads = ((name, consumer) for name, consumers in self.consumers.items() for consumer in consumers)
        required = ((name, required_sizes(consumer, self.shape_of)) for name, consumer in reads)
        found = grouped((self.dims[name][axis], size) for name, sizes in required for axis, size in sizes.items())
        return {dim: sizes[0] for dim, sizes in found.items() if isinstance(dim, str)}

    @cached_property
    def meanings(self) -> Mapping[str, tuple[Meaning | None, ...]]:
        """The meaning of each axis, from its symbol, the role of the input, or a node that reads it."""
        return {name: self._meanings_of(tensor) for name, tensor in self.tensors.items()}

    def meaning(self, size: str) -> Meaning:
        """The meaning of an open size."""
        open_sizes = self.open_sizes[size]
        found = [self.meanings[name][axis] for name, axis in open_sizes] or [meaning_of_symbol(size)]
        usual: Meaning = "batch" if open_sizes and open_sizes[0][1] == 0 else "other"
        return next((meaning for meaning in found if meaning is not None), usual)

    def shape_of(self, name: str) -> Shape | None:
        """The shape of any tensor of the model, as far as it is known."""
        if (constant := self.nodes.shape_of_constant(name)) is not None:
            return constant
        tensor = self.model.tensors.get(name)
        if tensor is None or tensor.shape is None:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in tensor.shape)

    def _ranked(self, tensor: Tensor) -> Tensor:
        if tensor.shape is not None:
            return tensor
        required = (required_rank(consumer, self.shape_of) for consumer in consumers_of(tensor.name, 0, self.nodes))
        rank = next((rank for rank in required if rank is not None), 2)
        return msgspec.structs.replace(tensor, shape=(None,) * rank)

    def _meanings_of(self, tensor: Tensor) -> tuple[Meaning | None, ...]:
        shape, role = tensor.shape or (), self.roles[tensor.name]
        by_symbol = [meaning_of_symbol(dim) if isinstance(dim, str) and atoms(dim) == (dim,) else None for dim in shape]
        by_role = meanings_of_axes(tensor.name, role, len(shape))
        by_step = ChainMap(*map(axis_meanings, self.consumers[tensor.name]))  # the nearest consumer counts
        found = [by_symbol[axis] or by_step.get(axis) or by_role[axis] for axis in range(len(shape))]
        if role in {"samples", "mel"}:  # longer than the `sequence_length` that exporters call their last axis
            found = [by_role[axis] or found[axis] for axis in range(len(shape))]
        return self._refined(found, self._channels(tensor.name))

    def _channels(self, name: str) -> int | None:
        """The channels of an image or a sound: those of the convolution that reads it, else the second size."""
        required = (required_channels(consumer, self.shape_of) for consumer in self.consumers[name])
        dims = self.dims[name]
        second = dims[1] if len(dims) > 1 and isinstance(dims[1], int) else None
        return next(filter(None, required), second)

    def _refined(self, meanings: list[Meaning | None], channels: int | None) -> tuple[Meaning | None, ...]:
        """The meanings, with latents distinguished from images, and sound from other rows."""
        if len(meanings) == 2 and meanings[1] in {None, "frames"} and "rate" in self.roles.values():
            meanings = [meanings[0], "window"]
        better: dict[Meaning | None, Meaning] = {}
        if channels not in {1, 3, None}:
            better["image"] = "latent"
        if channels == 1:
            better["frames"] = "samples"
        return tuple(better.get(meaning, meaning) for meaning in meanings)


def _innermost(kind: TypeProto) -> TypeProto:
    """The element type of a sequence or an optional, at any depth."""
    while (field := kind.WhichOneof("value")) in {"sequence_type", "optional_type"}:
        kind = getattr(kind, field).elem_type
    return kind
