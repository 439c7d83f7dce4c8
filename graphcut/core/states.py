"""States of a decoder: outputs that are inputs of the next step, such as a KV cache."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from .errors import UsageError, check_names
from .manifest import Cascade, State
from .tensors import UNDEFINED, Dim, Dims, Tensor, Tensors
from .wiring import Unit, asked_for

Value = Any
_TOKEN_BYTES: Final = 8  #: of the token that a step returns while decoding.
#: the output with the scores of the next token, in small letters.
LOGITS: Final = re.compile(r"(^|[._/])(lm_)?logits$")


def start_of(past: Tensor, present: Tensor, axis: int | None, sizes: Dims) -> tuple[Dim, ...] | None:
    """The shape of a state before the first step: 0 along `axis` of the tokens, unless it is a buffer of fixed size.

    The numbers of `present`, which becomes the input, hold for the input too; `sizes` are those of symbols that don't
    depend on the inputs, such as the width of a head.
    """
    if past.shape is None:
        return None
    after = past.shape if present.shape is None else present.shape
    known = (b if isinstance(b, int) else a for a, b in zip(past.shape, after, strict=True))
    shape = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in known]
    return tuple(0 if i == axis and not isinstance(dim, int) else dim for i, dim in enumerate(shape))


def check_state_pairs(pairs: Mapping[str, str], reads: Sequence[str], writes: Sequence[str], tensors: Tensors) -> None:
    """Raise a UsageError unless `pairs` maps inputs of the model to different outputs of it that can become them."""
    for past, present in pairs.items():
        for name, known, kind in ((past, reads, "input"), (present, writes, "output")):
            what, which = f"the state {past}={present} names", f", which is not an {kind} of the model"
            check_names([name], known, what, f"its {kind}s:", which)
    outputs = list(pairs.values())
    if twice := next((name for name in outputs if outputs.count(name) > 1), None):
        raise UsageError(f"{twice!r} can't become two inputs", hint="name each output once in `states`")
    for past, present in pairs.items():
        if not _can_become(tensors[present], tensors[past]):
            what = f"{present!r} is {tensors[present]}, and can't become the input {past!r}, which is {tensors[past]}"
            raise UsageError(what, hint="a state keeps its type, and its sizes but that along which it grows")


def _can_become(present: Tensor, past: Tensor) -> bool:
    """Whether nothing that is known of the types says that it can't."""
    if len({present.dtype, past.dtype} - {UNDEFINED}) > 1:
        return False
    if present.shape is None or past.shape is None:
        return True
    sizes = zip(past.shape, present.shape, strict=False)
    fixed = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int) and a != b]
    return len(present.shape) == len(past.shape) and len(fixed) <= 1


def states_of(cascade: Cascade, pairs: Mapping[str, str]) -> tuple[State, ...]:
    """The states of the manifest, overridden by those that a user names in `pairs`, outputs by inputs.

    These grow along the only axis with another symbol after the step, if there is one.
    """
    manifest, tensors = cascade.manifest, cascade.tensors
    check_state_pairs(pairs, manifest.reads, manifest.writes, tensors)
    presents = set(pairs.values())
    states = [state for state in manifest.states if state.past not in pairs and state.present not in presents]
    for past, present in pairs.items():
        dims = enumerate(zip(tensors[past].shape or (), tensors[present].shape or (), strict=False))
        grown = [i for i, (before, after) in dims if before != after and not isinstance(after, int)]
        axis = grown[0] if len(grown) == 1 else None
        start = start_of(tensors[past], tensors[present], axis, {})
        states.append(State(past=past, present=present, axis=axis, start=start, is_given=True, is_shareable=False))
    return tuple(states)


@dataclass(frozen=True, slots=True)
class Cache:
    """A tensor that a decoder gets back at its next step."""

    past: str  #: the input of the model.
    present: str  #: the output that becomes this input.
    layer: int | None  #: the number in its name; `None` if it has none.


StatePair = Cache | State  #: an input, and the output that becomes it.
AnyPair = TypeVar("AnyPair", bound=StatePair)


def kept_states(parts: Sequence[Unit], states: Iterable[AnyPair]) -> dict[int, tuple[AnyPair, ...]]:
    """The states that never leave their part, by its index: no other part reads the input, and it writes the output."""
    reads, kept = [{*part.reads} for part in parts], dict[int, tuple[AnyPair, ...]]()
    for state in states:
        home = [i for i, names in enumerate(reads) if state.past in names]
        if len(home) == 1 and state.present in parts[home[0]].writes:
            kept[home[0]] = (*kept.get(home[0], ()), state)
    return kept


def sent_states(parts: Sequence[Unit], states: Iterable[AnyPair]) -> list[AnyPair]:
    """The states that are sent to a part at each step."""
    states, read = list(states), {name for part in parts for name in part.reads}
    kept = {state.past for found in kept_states(parts, states).values() for state in found}
    return [state for state in states if state.past in read and state.past not in kept]


def travelling(
    model: Unit,
    parts: Sequence[Unit],
    states: Iterable[StatePair],
    sizes: Mapping[str, int],
    outputs: Sequence[str] | None = None,
) -> dict[str, int]:
    """The inputs of the model that the driver sends for a request, the outputs that it gets, and their bytes.

    A request for a model with states is a step of a sequence: a state stays in its part; one that a cut separates is
    sent. If nobody names `outputs`, the token that is chosen comes in place of the logits; what is named comes whole.
    """
    states, named = [*states], asked_for(model.writes, outputs)
    sent = {name for state in sent_states(parts, states) for name in (state.past, state.present)}
    kept = {name for state in states for name in (state.past, state.present)} - sent
    is_step = bool(states) and outputs is None
    moved = [name for name in model.reads if name not in kept]
    moved += [name for name in named if name not in kept or outputs is not None]
    return {name: _TOKEN_BYTES if is_step and LOGITS.search(name.lower()) else sizes[name] for name in moved}


def next_state(before: Value, after: Value) -> Value:
    """The state after a step: `after`, or `before` if `after` is empty and `before` is not.

    Decoders that optimum merged write empty caches of the encoder's keys when they are given a cache.
    """
    return before if 0 in after.shape() and 0 not in before.shape() else after
