"""Search for inputs that a model accepts: the generated ones first, then a fixed list of other sizes and integers."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from ..core.errors import OpeningError
from ..core.records import table
from ..core.tensors import Dims
from ..loading.model import Model
from .generating import Generated, given_sizes, make_feeds
from .sizes import DimensionSizes, Fallback
from .survey import InputSurvey

Run = Callable[[Generated], object]  #: runs a model on feeds, and raises if they are refused.
_Attempt = tuple[DimensionSizes, Generated]
_FALLBACKS: Final = table("inputs/fallbacks.toml", dict[str, tuple[Fallback, ...]])["fallbacks"]


class AcceptedInputs(NamedTuple):
    """Inputs that a model accepted."""

    #: one for each variant, with different sizes where the model allows; fewer if it refused all of one.
    feeds: tuple[Generated, ...]
    refusal: str  #: the error for the first feeds of a variant of which none was accepted; otherwise empty.


def find_accepted_inputs(
    model: Model, run: Run, *, seed: int = 0, sizes: Dims | None = None, variants: int = 2
) -> AcceptedInputs:
    """Inputs for `model` that `run` accepts; it runs the model on feeds, and raises if they are refused.

    `sizes` are numbers for open sizes, as in `generate`, which are never varied. So many `variants` are found, unless
    all feeds of one are refused. The errors are those of `generate`, and an OpeningError of `run`.
    """
    survey = InputSurvey(model)
    given = given_sizes(survey, sizes or {})
    accepted: list[_Attempt] = []
    refusals: list[str] = []
    while len(accepted) < variants and not refusals:
        for attempt in _attempts(survey, given, seed, [used for used, _ in accepted]):
            try:
                run(attempt[1])
            except OpeningError:  # which has nothing to do with the inputs
                raise
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
                refusals.append(" ".join(str(error).split()) or type(error).__name__)
            else:
                accepted.append(attempt)
                refusals.clear()
                break
    return AcceptedInputs(tuple(feeds for _, feeds in accepted), refusals[0] if refusals else "")


def _attempts(survey: InputSurvey, given: Dims, seed: int, used: Sequence[DimensionSizes]) -> Iterator[_Attempt]:
    """Feeds for the next variant with their sizes, the most likely first, none twice; `used` are those accepted so far.

    After a first variant was accepted, fallbacks of the same kind come first, and among them sizes not used before.
    """
    choices = [DimensionSizes(survey, given, len(used), fallback) for fallback in _FALLBACKS]
    shapes, kinds = [one.shapes for one in used], {_varied(one.fallback) for one in used} | {_varied(Fallback())}
    seen: set[Hashable] = set()
    for is_kin, was_used, sizes in product((True, False), (False, True), choices):
        if (not used or _varied(sizes.fallback) in kinds) is not is_kin or (sizes.shapes in shapes) is not was_used:
            continue
        feeds = make_feeds(sizes, seed)
        key = tuple(_key(value) for value in feeds.values())
        if key not in seen:
            seen.add(key)
            yield sizes, feeds


def _varied(fallback: Fallback) -> frozenset[str]:
    """The attributes of a fallback that differ from the defaults."""
    return frozenset(field.name for field in fields(fallback) if getattr(fallback, field.name) != field.default)


def _key(value: object) -> Hashable:
    """A key that is equal for equal values of one input. Floats of one shape always have equal keys."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.dtype.kind in "biu" else b""
    return tuple(_key(inner) for inner in value) if isinstance(value, list) else None
