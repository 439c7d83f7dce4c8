"""States of a decoder: what they are when a sequence begins, and which of them never leave their part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from .errors import UsageError
from .manifest import Cascade, State
from .wiring import Dim, Tensor, Unit

Value = Any


def token_axis(past: Tensor, present: Tensor) -> int | None:
    """The axis along which a state grows: the one whose size has another symbol after the step."""
    if past.shape is None or present.shape is None or len(past.shape) != len(present.shape):
        return None
    sizes = enumerate(zip(past.shape, present.shape, strict=True))
    differing = [axis for axis, (a, b) in sizes if a != b and not isinstance(b, int)]
    return differing[0] if len(differing) == 1 else None


def start_of(past: Tensor, present: Tensor, axis: int | None, sizes: Mapping[str, int]) -> tuple[Dim, ...] | None:
    """The shape of a state before the first step: nothing along `axis`, unless it is a buffer of a fixed size.

    Args:
        past: the input it is fed to.
        present: the output that becomes it; a size that this one fixes is that of both.
        axis: the axis along which its tokens stand.
        sizes: numbers for symbols that don't hang on the inputs, such as the width of a head.
    """
    if past.shape is None:
        return None
    after = present.shape if present.shape is not None and len(present.shape) == len(past.shape) else past.shape
    known = (b if isinstance(b, int) else a for a, b in zip(past.shape, after, strict=True))
    sized = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in known]
    return tuple(0 if place == axis and not isinstance(dim, int) else dim for place, dim in enumerate(sized))


def states_from_pairs(pairs: Mapping[str, str], tensors: Mapping[str, Tensor]) -> tuple[State, ...]:
    """The states that a user names, outputs by inputs."""
    return tuple(_by_hand(tensors[past], tensors[present]) for past, present in pairs.items())


def _by_hand(past: Tensor, present: Tensor) -> State:
    axis = token_axis(past, present)
    return State(past=past.name, present=present.name, axis=axis, start=start_of(past, present, axis, {}))


def parse_state_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Outputs by the inputs they become, from words like `past=present`.

    Raises:
        UsageError: a word does not say that, or an input is named twice.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        past, found, present = text.partition("=")
        if not (past and found and present):
            raise UsageError(f"--state {text}: expected INPUT=OUTPUT", hint="for example --state past=present")
        if past in pairs:
            raise UsageError(f"--state names the input {past!r} twice", hint="one output becomes it")
        pairs[past] = present
    return pairs


def check_state_pairs(pairs: Mapping[str, str], reads: Sequence[str], writes: Sequence[str]) -> None:
    """Each input and each output that a user pairs up is one of the model, and stands in one pair.

    Raises:
        UsageError: it is not so.
    """
    for past, present in pairs.items():
        for name, known, kind in ((past, reads, "input"), (present, writes, "output")):
            if name not in known:
                raise UsageError(
                    f"the state {past}={present} names {name!r}, which is no {kind} of the model",
                    hint=f"its {kind}s: {', '.join(known) or 'none'}",
                )
    presents = list(pairs.values())
    if twice := next((name for name in presents if presents.count(name) > 1), None):
        raise UsageError(f"{twice!r} can't become two inputs", hint="name each output in one --state alone")


def states_of(cascade: Cascade, pairs: Mapping[str, str]) -> tuple[State, ...]:
    """The states of the manifest, and those that a user names, which win.

    Raises:
        UsageError: a name is none of the model's.
    """
    manifest = cascade.manifest
    check_state_pairs(pairs, manifest.reads, manifest.writes)
    presents = set(pairs.values())
    known = [state for state in manifest.states if state.past not in pairs and state.present not in presents]
    return (*known, *states_from_pairs(pairs, cascade.tensors))


class StatePair(Protocol):
    """A state: the input `past`, and the output `present` that becomes it."""

    @property
    def past(self) -> str:
        """The input."""

    @property
    def present(self) -> str:
        """The output."""


AnyPair = TypeVar("AnyPair", bound=StatePair)


def kept_states(parts: Sequence[Unit], states: Iterable[AnyPair]) -> dict[int, tuple[AnyPair, ...]]:
    """The states that stay with their part, by its place: it alone reads them, and it makes what they become."""
    readers: dict[str, list[int]] = {}
    writers: dict[str, int] = {}
    for place, part in enumerate(parts):
        writers.update(dict.fromkeys(part.writes, place))
        for name in part.reads:
            readers.setdefault(name, []).append(place)
    kept: dict[int, tuple[AnyPair, ...]] = {}
    for state in states:
        home = readers.get(state.past, [])
        if len(home) == 1 and writers.get(state.present) == home[0]:
            kept[home[0]] = (*kept.get(home[0], ()), state)
    return kept


def sent_states(parts: Sequence[Unit], states: Iterable[AnyPair]) -> list[AnyPair]:
    """The states that parts read and that are sent to them at each step."""
    states = list(states)
    kept = {state.past for row in kept_states(parts, states).values() for state in row}
    read = {name for part in parts for name in part.reads}
    return [state for state in states if state.past in read and state.past not in kept]


def next_state(before: Value, after: Value) -> Value:
    """The state after a step. One that comes back without elements stays what it was: nothing was added to it.

    So do the caches of an encoder's keys in decoders that optimum merged: the branch with a cache gives out none.
    """
    return before if 0 in after.shape() and 0 not in before.shape() else after
