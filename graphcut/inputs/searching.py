"""Inputs that a model accepts: generated ones first, then a short ladder of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from ..loading.model import Model
from .generating import Feeds, given_sizes, make_feeds
from .sizes import DimensionSizes, Guess, choose
from .survey import Survey, survey

_USUAL: Final = Guess()
_LADDER: Final = (
    # Sizes and integers as small as these made 151 models more run, of 4408 public ones of which 3889 ran at once.
    _USUAL,
    Guess(batch=1),
    *(Guess(image=size, batch=batch) for size in (224, 256, 512) for batch in (None, 1)),
    *(Guess(every=size) for size in (1, 2, 3, 4, 8, 16)),
    *(Guess(integers=value) for value in (0, 1, 2, 3)),
    *(Guess(every=size, integers=value) for size in (1, 2, 4) for value in (0, 1, 2)),
    Guess(flipped=True),
)


@dataclass(frozen=True)
class AcceptedInputs:
    """Feeds that a model accepts.

    Attributes:
        feeds: one for each variant, of different sizes wherever the model allows; fewer where it refused.
        sizes: for each of these the number of every open size, by its symbol, or as `input[0]`.
        refusal: what the model said of the first feeds of a variant for which it accepted none; else empty.
        tries: how often it was run.
    """

    feeds: tuple[Feeds, ...]
    sizes: tuple[Mapping[str, int], ...]
    refusal: str
    tries: int


@dataclass(frozen=True)
class _Attempt:
    guess: Guess
    sizes: DimensionSizes
    feeds: Feeds


def find_accepted_inputs(
    model: Model,
    run: Callable[[Feeds], object],
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    variants: int = 2,
) -> AcceptedInputs:
    """Feeds for `model` that `run` accepts.

    Args:
        model: the model.
        run: runs it on feeds, and raises where it refuses them. What it returns is dropped.
        seed: for the values.
        sizes: numbers for open sizes, as in `generate`. They are never varied.
        variants: how many sets to find. Where all of one are refused, no further one is tried.

    Raises:
        UsageError: `sizes` names a dimension that the inputs do not have.
        ModelError: an input is of a type for which nothing can be made up.
    """
    known = survey(model)
    given = given_sizes(known, sizes or {})
    found: list[_Attempt] = []
    refusals: list[str] = []
    tries = 0
    while len(found) < variants and not refusals:
        for attempt in _attempts(known, given, seed=seed, found=found):
            tries += 1
            refusal = _refusal(run, attempt.feeds)
            if refusal is None:
                found.append(attempt)
                refusals.clear()
                break
            refusals.append(refusal)
    return AcceptedInputs(
        feeds=tuple(attempt.feeds for attempt in found),
        sizes=tuple(attempt.sizes.numbers for attempt in found),
        refusal=refusals[0] if refusals else "",
        tries=tries,
    )


def _attempts(known: Survey, given: Mapping[str, int], *, seed: int, found: Sequence[_Attempt]) -> Iterator[_Attempt]:
    """Feeds for the next variant, the likeliest first, none twice.

    Once a variant was found, that is what it was found by, and of this first the sizes that were not met yet.
    """
    variant = len(found)
    rungs = [(guess, choose(known, given=given, variant=variant, guess=guess)) for guess in _LADDER]
    met = [attempt.sizes.shapes for attempt in found]
    likely = {_USUAL, *(guess for guess in _LADDER for attempt in found if _varies(guess) == _varies(attempt.guess))}
    rungs.sort(key=lambda rung: (bool(found) and rung[0] not in likely, rung[1].shapes in met))
    seen: set[Hashable] = set()
    for guess, sizes in rungs:
        feeds = make_feeds(known, sizes, seed=seed, variant=variant, guess=guess)
        marks = tuple(_mark(value) for value in feeds.values())
        if marks not in seen:
            seen.add(marks)
            yield _Attempt(guess, sizes, feeds)


def _varies(guess: Guess) -> frozenset[str]:
    """Which attributes of a guess differ from the usual."""
    return frozenset(field.name for field in fields(guess) if getattr(guess, field.name) != field.default)


def _mark(value: object) -> Hashable:
    """What tells two values of one input apart. Floats of one shape are drawn alike."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.dtype.kind in "biu" else b""
    return tuple(_mark(inner) for inner in value) if isinstance(value, list) else None


def _refusal(run: Callable[[Feeds], object], feeds: Feeds) -> str | None:
    try:
        run(feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
        return " ".join(str(error).split()) or type(error).__name__
    return None
