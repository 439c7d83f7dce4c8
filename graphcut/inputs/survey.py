"""What is known of the inputs of a model before any number is chosen.

An open size has a name: its symbol, or `input[0]` for an axis without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.wiring import Tensor
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type
from .consumers import Use, uses_of
from .expressions import atoms
from .flattening import FlatNodes, lay_open
from .roles import Meaning, Role, meaning_of_symbol, meanings_of_axes, role_of
from .shape_hints import Shape, meant_axes, told_channels, told_rank, told_sizes

if TYPE_CHECKING:
    from onnx import TypeProto

_USUAL_RANK: Final = 2
"""Of an input that says nothing of its rank: rows and columns."""

_SOUND: Final[frozenset[Role]] = frozenset({"samples", "mel"})
"""Inputs that are longer than the `sequence_length` that exporters call their last axis."""

_IMAGE_CHANNELS: Final = frozenset({1, 3, None})


@dataclass(frozen=True)
class Survey:
    """The inputs of a model.

    Attributes:
        model: the model.
        steps: its operations.
    """

    model: Model
    steps: FlatNodes

    @cached_property
    def types(self) -> Mapping[str, TypeProto]:
        """The type of each input, with what sequences and maps hold."""
        declared = {value.name: value.type for value in self.model.proto.graph.input}
        return {name: declared[name] for name in self.model.graph.reads}

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Each input, or the tensor inside it where it is a sequence or an optional; no maps. All ranks are known."""
        known = {name: tensor_of_type(name, _innermost(kind)) for name, kind in self.types.items()}
        plain = {name: tensor for name, tensor in known.items() if tensor.is_plain}
        return {name: tensor if tensor.shape is not None else self._ranked(tensor) for name, tensor in plain.items()}

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        """What each input is for."""
        return {name: role_of(tensor) for name, tensor in self.tensors.items()}

    @cached_property
    def uses(self) -> Mapping[str, tuple[Use, ...]]:
        """Where the values of each input end up."""
        return {name: uses_of(name, len(tensor.shape or ()), self.steps) for name, tensor in self.tensors.items()}

    @cached_property
    def dims(self) -> Mapping[str, tuple[int | str, ...]]:
        """The shape of each input, with a name for each open size."""
        return {
            name: tuple(f"{name}[{axis}]" if dim is None else dim for axis, dim in enumerate(tensor.shape or ()))
            for name, tensor in self.tensors.items()
        }

    @cached_property
    def places(self) -> Mapping[str, list[tuple[str, int]]]:
        """Each open size in the order it appears, and the axes of inputs where it stands alone."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, dims in self.dims.items():
            for axis, dim in enumerate(dims):
                for atom in () if isinstance(dim, int) else atoms(dim):
                    alone = found.setdefault(atom, [])
                    if atom == dim:
                        alone.append((name, axis))
        return found

    @cached_property
    def told(self) -> Mapping[str, int]:
        """The open sizes of which a weight tells the number."""
        found: dict[str, int] = {}
        for name, uses in self.uses.items():
            for use in uses:
                for axis, size in told_sizes(use, self.shape_of).items():
                    dim = self.dims[name][axis]
                    if isinstance(dim, str):
                        found.setdefault(dim, size)
        return found

    @cached_property
    def meanings(self) -> Mapping[str, tuple[Meaning | None, ...]]:
        """What each axis of each input counts: its symbol tells, or the role of the input, or a step that reads it."""
        return {name: self._meanings_of(tensor) for name, tensor in self.tensors.items()}

    def meaning(self, size: str) -> Meaning:
        """What an open size counts."""
        places = self.places[size]
        found = [self.meanings[name][axis] for name, axis in places] or [meaning_of_symbol(size)]
        usual: Meaning = "batch" if places and places[0][1] == 0 else "other"
        return next((meaning for meaning in found if meaning is not None), usual)

    def shape_of(self, name: str) -> Shape | None:
        """The sizes of a tensor anywhere in the model, as far as the model tells."""
        constant = self.steps.shape_of_constant(name)
        if constant is not None:
            return constant
        tensor = self.model.tensors.get(name)
        if tensor is None or tensor.shape is None:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in tensor.shape)

    def _ranked(self, tensor: Tensor) -> Tensor:
        told = (told_rank(use, self.shape_of) for use in uses_of(tensor.name, 0, self.steps))
        rank = next((rank for rank in told if rank is not None), _USUAL_RANK)
        return msgspec.structs.replace(tensor, shape=(None,) * rank)

    def _meanings_of(self, tensor: Tensor) -> tuple[Meaning | None, ...]:
        shape, role = tensor.shape or (), self.roles[tensor.name]
        by_symbol = [meaning_of_symbol(dim) if isinstance(dim, str) and atoms(dim) == (dim,) else None for dim in shape]
        by_role = meanings_of_axes(tensor.name, role, len(shape))
        by_step: dict[int, Meaning] = {}
        for use in self.uses[tensor.name]:
            by_step = {**meant_axes(use), **by_step}
        found = [by_symbol[axis] or by_step.get(axis) or by_role[axis] for axis in range(len(shape))]
        if role in _SOUND:
            found = [by_role[axis] or found[axis] for axis in range(len(shape))]
        return self._sharpened(found, self._channels(tensor.name))

    def _channels(self, name: str) -> int | None:
        """The channels of an image or a sound: what a convolution wants, else the second size."""
        told = (told_channels(use, self.shape_of) for use in self.uses[name])
        dims = self.dims[name]
        second = dims[1] if len(dims) > 1 and isinstance(dims[1], int) else None
        return next(filter(None, told), second)

    def _sharpened(self, meanings: list[Meaning | None], channels: int | None) -> tuple[Meaning | None, ...]:
        """Tell a latent from an image, and sound from other rows."""
        if len(meanings) == 2 and meanings[1] in {None, "frames"} and "rate" in self.roles.values():
            meanings = [meanings[0], "window"]
        better: dict[Meaning | None, Meaning] = {}
        if channels not in _IMAGE_CHANNELS:
            better["image"] = "latent"
        if channels == 1:
            better["frames"] = "samples"
        return tuple(better.get(meaning, meaning) for meaning in meanings)


def survey(model: Model) -> Survey:
    """Look at the inputs of `model`. Infers its types where that was not done yet; linear in its nodes."""
    return Survey(model, lay_open(model))


def _innermost(kind: TypeProto) -> TypeProto:
    """The type of what a sequence or an optional holds."""
    while True:
        match kind.WhichOneof("value"):
            case "sequence_type":
                kind = kind.sequence_type.elem_type
            case "optional_type":
                kind = kind.optional_type.elem_type
            case _:
                return kind
