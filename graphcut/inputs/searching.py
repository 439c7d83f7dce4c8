"""Search for inputs that a model accepts: the generated ones first, then a fixed list of other sizes and integers."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from ..loading.model import Model
from .generating import Feeds, given_sizes, make_feeds
from .sizes import DimensionSizes, Fallback, choose_sizes
from .survey import InputSurvey

_DEFAULT: Final = Fallback()
_FALLBACKS: Final = (
    # Of 4,408 public models 3,889 accepted the defaults, and 151 more accepted one of these.
    _DEFAULT,
    Fallback(batch=1),
    *(Fallback(image=size, batch=batch) for size in (224, 256, 512) for batch in (None, 1)),
    *(Fallback(every=size) for size in (1, 2, 3, 4, 8, 16)),
    *(Fallback(integers=value) for value in (0, 1, 2, 3)),
    *(Fallback(every=size, integers=value) for size in (1, 2, 4) for value in (0, 1, 2)),
    Fallback(flipped=True),
)


@dataclass(frozen=True)
class AcceptedInputs:
    """Inputs that a model accepted."""

    #: one for each variant, with different sizes where the model allows; fewer if it refused all of one.
    feeds: tuple[Feeds, ...]
    refusal: str  #: the error for the first feeds of a variant of which none was accepted; otherwise empty.


@dataclass(frozen=True)
class _Attempt:
    fallback: Fallback
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
    """Inputs for `model` that `run` accepts; it runs the model on feeds, and raises if they are refused.

    `sizes` are numbers for open sizes, as in `generate`, which are never varied. So many `variants` are found, unless
    all feeds of one are refused. The errors are those of `generate`.
    """
    survey = InputSurvey(model)
    given = given_sizes(survey, sizes or {})
    found: list[_Attempt] = []
    refusals: list[str] = []
    while len(found) < variants and not refusals:
        for attempt in _attempts(survey, given, seed=seed, found=found):
            refusal = _refusal(run, attempt.feeds)
            if refusal is None:
                found.append(attempt)
                refusals.clear()
                break
            refusals.append(refusal)
    return AcceptedInputs(tuple(attempt.feeds for attempt in found), refusals[0] if refusals else "")


def _attempts(
    survey: InputSurvey, given: Mapping[str, int], *, seed: int, found: Sequence[_Attempt]
) -> Iterator[_Attempt]:
    """Feeds for the next variant, the most likely first, none twice.

    After a first variant was accepted, fallbacks of the same kind come first, and among them sizes not used before.
    """
    variant = len(found)
    choices = [(other, choose_sizes(survey, given=given, variant=variant, fallback=other)) for other in _FALLBACKS]
    used = [attempt.sizes.shapes for attempt in found]
    kinds = {_varied(attempt.fallback) for attempt in found}
    likely = {_DEFAULT, *(other for other in _FALLBACKS if _varied(other) in kinds)}
    choices.sort(key=lambda choice: (bool(found) and choice[0] not in likely, choice[1].shapes in used))
    seen: set[Hashable] = set()
    for fallback, sizes in choices:
        feeds = make_feeds(survey, sizes, seed=seed, variant=variant, fallback=fallback)
        key = tuple(_key(value) for value in feeds.values())
        if key not in seen:
            seen.add(key)
            yield _Attempt(fallback, sizes, feeds)


def _varied(fallback: Fallback) -> frozenset[str]:
    """The attributes of a fallback that differ from the defaults."""
    return frozenset(field.name for field in fields(fallback) if getattr(fallback, field.name) != field.default)


def _key(value: object) -> Hashable:
    """A key that is equal for equal values of one input. Floats of one shape always have equal keys."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.dtype.kind in "biu" else b""
    return tuple(_key(inner) for inner in value) if isinstance(value, list) else None


def _refusal(run: Callable[[Feeds], object], feeds: Feeds) -> str | None:
    try:
        run(feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
        return " ".join(str(error).split()) or type(error).__name__
    return None
