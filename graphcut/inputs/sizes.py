"""Chooses a number for each open size of the inputs.

Sources, the strongest first: the user, a size that a weight requires, the meaning of the axis (batch, sequence, ...).
Each symbolic dimension has one number, and lengths agree: a mask is as long as past and sequence together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ..core.records import table
from ..loading.expressions import evaluate
from .roles import Meaning
from .survey import InputSurvey

_NUMBERS: Final = table("inputs/sizes.toml", dict[Meaning, tuple[int, int]])
_PER_IMAGE: Final[Mapping[Meaning, int]] = {"image": 1, "volume": 4, "latent": 8}
"""Divisor of an image size for axes that shrink with it."""

_LENGTHS: Final[tuple[Meaning, ...]] = ("sequence", "source", "frames", "samples", "mel", "window")
_ONE_AT_A_TIME: Final = "com.microsoft.GroupQueryAttention"
"""With a past it takes one sequence, or one token of each: "batch_size must be 1 when sequence_length > 1"."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Values to try if the defaults are refused; None keeps a default."""

    batch: int | None = None  #: for every batch axis.
    every: int | None = None  #: for every open size that neither the user nor a weight determines.
    image: int | None = None  #: for heights and widths.
    integers: int | None = None  #: for integer inputs whose purpose is unknown.
    flipped: bool = False  #: single booleans are inverted.


@dataclass(frozen=True)
class DimensionSizes:
    """All sizes of the inputs, as numbers: those given by the user, others as the meaning of the axis demands."""

    survey: InputSurvey  #: the inputs of the model.
    given: Mapping[str, int]  #: numbers by the user, for open sizes.
    variant: int = 0  #: another variant has other numbers where they are free.
    fallback: Fallback = Fallback()  #: values that replace the defaults.

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each open size, by its name."""
        numbers = {**{name: self._number(name) for name in self.survey.open_sizes}, **self.given}
        past = self._first("past", numbers) or 0
        sequence = self._first("sequence", numbers)
        sequence = self._usual("sequence") if sequence is None else sequence
        numbers.update(dict.fromkeys(self._free("total"), past + sequence))
        total = self._first("total", numbers)
        if total is not None and total != past + sequence:  # it is given: adapt what is free
            if total > past and self._free("sequence"):
                numbers.update(dict.fromkeys(self._free("sequence"), total - past))
            elif total >= sequence:
                numbers.update(dict.fromkeys(self._free("past"), total - sequence))
        return numbers

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each input; for a sequence or an optional, of the tensors in it."""
        return {name: tuple(max(0, _size(d, self.numbers)) for d in dims) for name, dims in self.survey.dims.items()}

    @cached_property
    def past(self) -> int:
        """Length of the past of the sequence."""
        return self._first("past", self.numbers) or 0

    @cached_property
    def length(self) -> int:
        """Length of the data, whatever its unit (tokens, frames, samples)."""
        return next(filter(None, (self._first(each, self.numbers) for each in _LENGTHS)), self._usual("sequence"))

    def of(self, meaning: Meaning) -> int:
        """The size of the first axis with that meaning, or the usual one."""
        return self._first(meaning, self.numbers) or self._usual(meaning)

    def _first(self, meaning: Meaning, numbers: Mapping[str, int]) -> int | None:
        """The size of the first axis with that meaning; None if there is none."""
        axes = ((name, found.index(meaning)) for name, found in self.survey.meanings.items() if meaning in found)
        return next((_size(self.survey.dims[name][axis], numbers) for name, axis in axes), None)

    def _usual(self, meaning: Meaning, axis: int = 1) -> int:
        if self.fallback.every is not None:
            return self.fallback.every
        first, more = _NUMBERS.get(meaning, (4 + axis, 2))
        return first + self.variant * more

    def _number(self, name: str) -> int:
        if name in self.survey.required:
            return self.survey.required[name]
        meaning = self.survey.meaning(name)
        if meaning == self._single:
            return 1
        if meaning == "batch" and self.fallback.batch is not None:
            return self.fallback.batch
        if meaning in _PER_IMAGE and self.fallback.image is not None:
            return self.fallback.image // _PER_IMAGE[meaning]
        return self._usual(meaning, axis=next((axis for _, axis in self.survey.open_sizes[name]), 1))

    @cached_property
    def _single(self) -> Meaning | None:
        """The axis that must be 1 so that a model continues from a past: batch and sequence in turn."""
        is_fed_a_past = "past" in self.survey.roles.values()
        if not is_fed_a_past or all(node.op != _ONE_AT_A_TIME for node in self.survey.nodes.row):
            return None
        return "sequence" if self.variant % 2 else "batch"

    def _free(self, meaning: Meaning) -> list[str]:
        names = (name for name in self.survey.open_sizes if name not in self.given and name not in self.survey.required)
        return [name for name in names if self.survey.meaning(name) == meaning]


def _size(dim: int | str, numbers: Mapping[str, int]) -> int:
    size = dim if isinstance(dim, int) else evaluate(dim, numbers)
    return 1 if size is None else size  # None: a division by zero
