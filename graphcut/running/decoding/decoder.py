"""A cascade seen as a decoder: which input is fed the tokens, what is kept between steps, where the answer stands."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ...core.errors import RunError, UsageError
from ...core.manifest import Cascade, State
from ...core.states import kept_states, next_state, states_of
from ...core.wiring import Dim, Tensor
from ..batches import shape_of
from ..values import NON_NUMPY_TYPES, Value, to_value, zeros
from .token_inputs import DecoderInputRole, Stretch, fed, role_of

_INTEGERS: Final = frozenset({"int64", "int32"})
_FLOATS: Final = frozenset({"float32", "float16", "bfloat16", "float64"})
_LOGITS: Final = re.compile(r"(^|[._/])(lm_)?logits$")
_BATCH: Final = re.compile(r"batch", re.IGNORECASE)


@dataclass(frozen=True)
class Decoder:
    """How a cascade is decoded.

    Attributes:
        cascade: the cascade.
        roles: what the inputs are for that are worked out at each step.
        constants: what is fed as it is at every step.
        kept: states that stay with their part, by its place.
        zero_states: the shapes of these when a sequence begins.
        begins: the other states when a sequence begins: they are fed and answered like any tensor.
        becomes: the outputs that these are fed from at the next step, by input.
        logits: the output that says which token comes next.
        ids_rank: how many axes the tokens have: two with a batch, else one.
        batch: how many rows the model wants; all are the same.
        most: how many tokens a step takes at most; None for any number.
        capacity: how many tokens a sequence can have, prompt included; None for any number.
    """

    cascade: Cascade
    roles: Mapping[str, DecoderInputRole]
    constants: Mapping[str, Value]
    kept: Mapping[int, tuple[State, ...]]
    zero_states: Mapping[str, tuple[int, ...]]
    begins: Mapping[str, Value]
    becomes: Mapping[str, str]
    logits: str
    ids_rank: int
    batch: int
    most: int | None
    capacity: int | None

    @property
    def is_stateless(self) -> bool:
        """Is nothing kept, so that each step is fed the whole sequence?"""
        return not (self.kept or self.becomes)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What a step is to be answered with."""
        return (self.logits, *self.becomes.values())

    def feeds(self, at: Stretch, states: Mapping[str, Value]) -> dict[str, Value]:
        """What the cascade is fed for a step; `states` are those that are sent."""
        tensors = self.cascade.tensors
        made = {name: fed(role, tensors[name], at, self.batch) for name, role in self.roles.items()}
        return {**{name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in made.items()}, **self.constants, **states}

    def states_after(self, answer: Mapping[str, Value], before: Mapping[str, Value]) -> dict[str, Value]:
        """The sent states for the next step."""
        return {past: next_state(before[past], answer[present]) for past, present in self.becomes.items()}

    def token(self, answer: Mapping[str, Value], at: Stretch) -> int:
        """The token that is most likely to come next; of those that are equally likely the first."""
        value = answer[self.logits]
        *before, vocabulary = value.shape()
        # [batch, tokens, vocabulary], [batch, vocabulary]; and [tokens, vocabulary] where the ids have no batch.
        rows = before[-1] if before and len(before) == self.ids_rank else 1
        row = min(rows, len(at.tokens)) - 1
        return int(np.argmax(_numbers(value, self.cascade.tensors[self.logits].dtype, row * vocabulary, vocabulary)))


def decoder_of(
    cascade: Cascade,
    *,
    inputs: Mapping[str, object],
    pairs: Mapping[str, str],
    dims: Mapping[str, int],
    max_context: int | None,
) -> Decoder:
    """How `cascade` is decoded.

    Args:
        cascade: from `split` or `open_cascade`.
        inputs: what is fed as it is; for a state, what it is when a sequence begins.
        pairs: states that the manifest does not know, outputs by inputs.
        dims: sizes of states that nothing tells.
        max_context: how many tokens a sequence may have, prompt included.

    Raises:
        RunError: an input is there of which nothing tells what it is for, or no output is found that says which token
            comes next.
        UsageError: a name or a size does not fit the model.
    """
    states = states_of(cascade, pairs)
    tensors = cascade.tensors
    _check_names(cascade, inputs)
    _check_dims(dims, [tensors[state.past] for state in states])
    roles = _roles(cascade, states, inputs)
    ids = tensors[next(name for name, role in roles.items() if role == "ids")]
    given = {name: to_value(value, tensors[name]) for name, value in inputs.items()}
    # A state whose beginning is given is sent: what stays with a part begins with zeros.
    kept = kept_states(cascade.parts, [state for state in states if state.past not in given])
    local = {state.past for row in kept.values() for state in row}
    sent = [s for s in states if s.past not in local and _is_read(cascade, s.past)]
    batch = ids.shape[0] if ids.shape and len(ids.shape) > 1 and isinstance(ids.shape[0], int) else 1
    sizes = _StateSizes(
        cascade, ids, batch, {**_sizes_of(given, tensors), **dims}, has_branch="branch" in roles.values()
    )
    starts = {state.past: sizes.start(state) for state in states if state.past in local}
    zero = {s.past: zeros(tensors[s.past], sizes.start(s)) for s in sent if s.past not in given}
    begins = {state.past: given.get(state.past, zero.get(state.past)) for state in sent}
    return Decoder(
        cascade=cascade,
        roles=roles,
        constants={name: value for name, value in given.items() if name not in begins},
        kept=kept,
        zero_states=starts,
        begins=begins,
        becomes={state.past: state.present for state in sent},
        logits=_logits(cascade, states),
        ids_rank=len(ids.shape or (0, 0)),
        batch=batch,
        most=_most(ids, states),
        capacity=_capacity(cascade, roles, states, max_context),
    )


def _check_names(cascade: Cascade, inputs: Mapping[str, object]) -> None:
    reads = cascade.manifest.reads
    if strange := next((name for name in inputs if name not in reads), None):
        raise UsageError(f"the model has no input {strange!r}", hint=f"its inputs: {', '.join(reads)}")


def _check_dims(dims: Mapping[str, int], states: Sequence[Tensor]) -> None:
    known = dict.fromkeys(dim for tensor in states for dim in tensor.shape or () if isinstance(dim, str))
    if strange := next((name for name in dims if name not in known), None):
        raise UsageError(
            f"no state has a size called {strange!r}", hint=f"their sizes: {', '.join(known) or 'none has a name'}"
        )


def _is_read(cascade: Cascade, name: str) -> bool:
    return any(name in part.reads for part in cascade.parts)


def _roles(cascade: Cascade, states: Sequence[State], inputs: Mapping[str, object]) -> dict[str, DecoderInputRole]:
    """What the inputs are for that neither are states nor given."""
    known = {state.past for state in states} | inputs.keys()
    open_ = [name for name in cascade.manifest.reads if name not in known and _is_read(cascade, name)]
    roles = {name: role for name in open_ if (role := role_of(cascade.tensors[name])) is not None}
    rest = [name for name in open_ if name not in roles]
    if "ids" not in roles.values():
        if given := next((name for name in inputs if role_of(cascade.tensors[name]) == "ids"), None):
            raise UsageError(f"{given!r} is among the inputs, and prompts are fed there", hint="leave it out of them")
        whole = [name for name in rest if cascade.tensors[name].dtype in _INTEGERS]
        if len(whole) != 1:
            raise _no_ids(rest)
        roles[whole[0]] = "ids"
    for name in rest:
        if name not in roles and name not in cascade.manifest.optional:
            raise RunError(
                f"the model reads {cascade.tensors[name]} {name!r}, and nothing tells what a decoder is fed there",
                hint=f"feed it with --inputs FILE.npz; or, if an output becomes it, say so with --state {name}=OUTPUT",
            )
    return roles


def _no_ids(names: Sequence[str]) -> RunError:
    if "inputs_embeds" in names:
        return RunError(
            "the model reads embeddings (inputs_embeds), and tokens can't be fed to it",
            hint="export it with its embedding, so that it reads input_ids",
        )
    return RunError(
        f"no input of the model is known to read tokens; there is {', '.join(names) or 'none'}",
        hint="a decoder reads integers, and calls them input_ids",
    )


def _logits(cascade: Cascade, states: Sequence[State]) -> str:
    presents = {state.present for state in states}
    others = [name for name in cascade.manifest.writes if name not in presents]
    called = [name for name in others if _LOGITS.search(name.lower())]
    likely = called or [name for name in others if _may_be_logits(cascade.tensors[name])]
    if len(likely) != 1:
        raise RunError(
            f"which output says what token comes next is not clear; there is {', '.join(others) or 'none'}",
            hint="a decoder calls it logits; if some of these become inputs again, say so with --state INPUT=OUTPUT",
        )
    return likely[0]


def _may_be_logits(tensor: Tensor) -> bool:
    return tensor.dtype in _FLOATS and tensor.shape is not None and len(tensor.shape) in {2, 3}


def _most(ids: Tensor, states: Sequence[State]) -> int | None:
    """How many tokens a step takes.

    Raises:
        RunError: a fixed number that is not one, which a prompt is no multiple of.
    """
    length = (ids.shape or (None,))[-1]
    if isinstance(length, str) and ids.shape is not None and len(ids.shape) == 1:
        is_batch = _BATCH.search(length) or any(length in (state.start or ()) for state in states)
        return 1 if is_batch else None
    if not isinstance(length, int):
        return None
    if states and length > 1:
        raise RunError(
            f"the model reads exactly {length} tokens at each step, and tokens come one by one",
            hint="export it with a sequence length that is a symbol, or 1",
        )
    return length


def _capacity(
    cascade: Cascade, roles: Mapping[str, DecoderInputRole], states: Sequence[State], max_context: int | None
) -> int | None:
    """How many tokens fit: what the user allows, buffers of a fixed size, masks of a fixed size."""
    limits = [max_context]
    for state in states:
        shape = cascade.tensors[state.past].shape
        if state.axis is not None and shape is not None:
            limits.append(size if isinstance(size := shape[state.axis], int) else None)
    for name, role in roles.items():
        shape = cascade.tensors[name].shape
        if shape and (role == "mask" or (role == "ids" and not states)):
            limits.append(size if isinstance(size := shape[-1], int) else None)
    return min((limit for limit in limits if limit is not None), default=None)


def _sizes_of(given: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The symbols that what is fed tells."""
    found: dict[str, int] = {}
    for name, value in given.items():
        shape = tensors[name].shape
        if shape is not None and tensors[name].is_plain:
            found.update((dim, size) for dim, size in zip(shape, shape_of(value), strict=True) if isinstance(dim, str))
    return found


class _StateSizes:
    """Numbers for the sizes of states when a sequence begins."""

    def __init__(
        self, cascade: Cascade, ids: Tensor, batch: int, sizes: Mapping[str, int], *, has_branch: bool
    ) -> None:
        self._cascade = cascade
        self._ids = ids
        self._batch = batch
        self._sizes = sizes
        self._has_branch = has_branch

    def start(self, state: State) -> tuple[int, ...]:
        """The shape of `state`.

        Raises:
            RunError: nothing tells it.
        """
        if state.start is None:
            raise RunError(
                f"the shape of the state {state.past!r} is not known", hint="feed what it begins with, by --inputs"
            )
        return tuple(self._size(state, place, dim) for place, dim in enumerate(state.start))

    def _size(self, state: State, place: int, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        rows = self._ids.shape[0] if self._ids.shape and len(self._ids.shape) > 1 else None
        if isinstance(dim, str):
            if dim in self._sizes:
                return self._sizes[dim]
            if dim == rows or _BATCH.search(dim):
                return self._batch
            if dim in self._cascade.manifest.dims:
                return self._cascade.manifest.dims[dim]
        elif place == 0:
            return self._batch
        if self._has_branch:
            return 0  # the first step takes the branch without a cache, and reads none
        raise RunError(
            f"the size {dim or '?'!r} of the state {state.past!r} is not known",
            hint=f"say it with --dim {dim}=N" if dim else "feed what it begins with, by --inputs",
        )


def _numbers(value: Value, dtype: str, begin: int, length: int) -> np.ndarray[Any, Any]:
    """Some of the elements of a tensor of floats, read where they lie: use them while `value` lives."""
    kind = np.dtype(NON_NUMPY_TYPES[dtype][0] if dtype in NON_NUMPY_TYPES else dtype)
    place = (ctypes.c_char * (length * kind.itemsize)).from_address(value.data_ptr() + begin * kind.itemsize)
    found: np.ndarray[Any, Any] = np.ndarray(length, kind, memoryview(place).cast("B"))
    if dtype != "bfloat16":
        return found
    widened: np.ndarray[Any, Any] = found.astype(np.uint32) << 16  # a bfloat16 is the upper half of a float32
    return widened.view(np.float32)
