"""The numbers in one tensor: what the steps that read it can work with, else what it is for, else small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from .expressions import evaluate
from .parameters import bound_of, is_positive, parameters_for
from .roles import INTEGERS, Role
from .shape_hints import Shape
from .sizes import DimensionSizes, Guess
from .survey import Survey

Array = np.ndarray[Any, Any]

_RATE: Final = 16_000
_BYTES: Final[Mapping[str, tuple[int, int]]] = {"uint8": (0, 256), "int8": (-128, 128)}
_UNCERTAIN: Final[frozenset[Role]] = frozenset({"length", "extent"})
"""Roles whose numbers are worth a guess."""


@dataclass(frozen=True)
class Numbers:
    """Where the numbers of tensors come from.

    Attributes:
        known: the inputs of the model.
        sizes: what was put in for their open sizes.
        variant: which set of inputs this is.
        guess: what to take where nothing tells.
    """

    known: Survey
    sizes: DimensionSizes
    variant: int
    guess: Guess

    def draw(self, name: str, random: np.random.Generator) -> Array:
        """Numbers for input `name`, or for one tensor inside it; not yet of its type."""
        dtype, shape = self.known.tensors[name].dtype, self.sizes.shapes[name]
        if dtype == "bool":
            return self._flags(name, shape, random)
        parameters = self._parameters(name, shape)
        if parameters is not None:
            return parameters
        return self._integers(name, shape, random) if dtype in INTEGERS else self._floats(name, shape, random)

    def _flags(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        if self.known.roles[name] == "mask":
            return np.ones(shape, bool)
        if prod(shape) == 1:  # each branch of an If in turn; but without its cache a decoder takes another mask
            flag = self.variant % 2 == 0 or "cache" in name
            return np.full(shape, flag != self.guess.flipped)
        return random.integers(0, 2, shape).astype(bool)

    def _floats(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        role = self.known.roles[name]
        if role in {"mask", "extent"}:
            return np.full(shape, 1 if role == "mask" else self.sizes.image)
        if len(shape) <= 1 or role == "scale" or self._is_positive(name):
            return random.uniform(0.25, 1, shape)  # single floats and short rows are scales, speeds and thresholds
        return random.uniform(-1, 1, shape)

    def _integers(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        bound = self._bound(name)
        by_role = self._integers_by_role(name, shape)
        if by_role is not None:
            return by_role if bound is None else by_role % bound
        if bound is not None:
            return random.integers(0, bound, shape)
        least = int(self._is_positive(name))
        if self.guess.integers is not None:
            return np.full(shape, max(self.guess.integers, least))
        if prod(shape) == 1:
            return np.ones(shape)
        low, high = _BYTES.get(self.known.tensors[name].dtype, (0, 2))
        return random.integers(max(low, least), high + least, shape)

    def _integers_by_role(self, name: str, shape: tuple[int, ...]) -> Array | None:
        role = self.known.roles[name]
        if role in _UNCERTAIN and self.guess.integers is not None:
            return None
        along = np.arange(shape[-1]) if shape else np.array(0)
        numbers: Mapping[Role, Array | int] = {
            "position": self.sizes.past + along,
            "type": along * 2 // max(1, along.size),
            "mask": 1,
            "rate": _RATE,
            "total": self.sizes.past + self.sizes.sequence - ("seqlens" in name),  # `seqlens_k` counts from zero
            "length": self._length(name),
            "extent": self.sizes.image,
        }
        return np.broadcast_to(numbers[role], shape) if role in numbers else None

    def _length(self, name: str) -> int:
        if "min" in name:
            return 1
        if "max" in name:  # of a generation: there must be room for something new
            return self.sizes.past + self.sizes.sequence + 2
        return self.sizes.past if "past" in name else self.sizes.length

    def _is_positive(self, name: str) -> bool:
        return any(is_positive(use) for use in self.known.uses[name])

    def _parameters(self, name: str, shape: tuple[int, ...]) -> Array | None:
        for use in self.known.uses[name]:
            found = parameters_for(use, shape, self._shape_of) if use.is_same else None
            if found is not None:
                return np.array(found).reshape(shape)
        return None

    def _bound(self, name: str) -> int | None:
        """One more than the greatest number that every step which takes `name` for indices can work with."""
        uses = [use for use in self.known.uses[name] if use.is_same]
        bounds = (bound_of(use, self.known.steps, self._shape_of) for use in uses)
        return min((bound for bound in bounds if bound is not None), default=None)

    def _shape_of(self, name: str) -> Shape | None:
        """The sizes of a tensor anywhere in the model, with the numbers that were chosen."""
        if name in self.sizes.shapes:
            return self.sizes.shapes[name]
        tensor = self.known.model.tensors.get(name)
        if tensor is None or tensor.shape is None:
            return self.known.shape_of(name)
        numbers = self.sizes.numbers
        return tuple(evaluate(dim, numbers) if isinstance(dim, str) else dim for dim in tensor.shape)
