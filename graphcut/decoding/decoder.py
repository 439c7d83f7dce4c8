"""A cascade as a decoder: the roles of its inputs, the states kept between steps, and the logits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ..core.errors import RunError, UsageError
from ..core.manifest import Cascade, State
from ..core.states import LOGITS, kept_states, next_state, states_of
from ..core.tensors import Dim, Tensor
from ..running.sampling import TOKENS, LogitsChoice, Sampling, ScoredRow
from ..running.values import Value, from_array, rows_of, shape_of, symbol_sizes, to_value, zeros
from ..workers.scheduling.assignment import scheduled_parts
from ..workers.scheduling.requests import ScheduledPart
from .token_inputs import DecoderInputRole, TokenChunk, input_array, role_of

_INTEGERS: Final = frozenset({"int64", "int32"})
_FLOATS: Final = frozenset({"float32", "float16", "bfloat16", "float64"})
_BATCH: Final = re.compile(r"batch", re.IGNORECASE)


@dataclass(frozen=True)
class Decoder:
    """How a cascade is decoded."""

    cascade: Cascade  #: the cascade.
    roles: Mapping[str, DecoderInputRole]  #: the inputs that are computed for each step, with their roles.
    constants: Mapping[str, Value]  #: the inputs that are the same in each step.
    kept: Mapping[int, tuple[State, ...]]  #: by index of the part, the states that stay with it.
    zero_states: Mapping[str, tuple[int, ...]]  #: the shapes of these states at the beginning of a sequence.
    #: the other states at the beginning of a sequence. They are fed and returned like any tensor.
    sent: Mapping[str, Value]
    next_sent: Mapping[str, str]  #: for each of these states, the output that becomes it in the next step.
    logits: str  #: the output with the scores of the next token.
    has_batch: bool  #: the token ids have an axis for the sequences of a batch.
    batch: int  #: the number of rows that the model requires; all are the same. 1 if it takes any number.
    batch_axes: Mapping[str, int] | None  #: the axis of each state for the batch; None if it takes one sequence only.
    most: int | None  #: the maximum number of tokens in a step; None for no limit.
    capacity: int | None  #: the maximum length of a sequence, prompt included; None for no limit.
    room_axes: Mapping[str, int]  #: the axis of the tokens of each state that is written where it is read.

    @property
    def is_stateless(self) -> bool:
        """Are there no states? Then each step is fed the whole sequence."""
        return not (self.kept or self.next_sent)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (TOKENS.name, *self.next_sent.values())

    @property
    def presents(self) -> dict[str, str]:
        """For each state, the output that becomes it in the next step."""
        return {**self.next_sent, **{state.past: state.present for row in self.kept.values() for state in row}}

    @property
    def vocabulary(self) -> int | None:
        """The number of different tokens that the logits score; None if it is not fixed."""
        size = (self.cascade.tensors[self.logits].shape or (None,))[-1]
        return size if isinstance(size, int) else None

    def feeds(self, chunk: TokenChunk, states: Mapping[str, Value]) -> dict[str, Value]:
        """The inputs for a step; `states` are those that are sent."""
        tensors = self.cascade.tensors
        filled = chunk if self.batch == 1 else chunk._replace(rows=chunk.rows * self.batch)
        values = {
            name: from_array(input_array(role, tensors[name], filled), tensors[name])
            for name, role in self.roles.items()
        }
        return {**values, **self.constants, **states}

    def begin(self, sequences: int, room: int = 0) -> tuple[dict[str, Value], dict[str, tuple[int, ...]]]:
        """At the beginning of a batch, the states that are sent, and the shapes of those that are not.

        `room` is the number of tokens for which those in `room_axes` have room.
        """

        def resized(name: str, shape: Sequence[int]) -> tuple[int, ...]:
            sizes = {self.room_axes.get(name): room, axes.get(name): sequences}
            return tuple(sizes.get(i, size) for i, size in enumerate(shape))

        axes, tensors = self.batch_axes or {}, self.cascade.tensors
        sent = {n: zeros(tensors[n], resized(n, shape_of(v))) if n in axes else v for n, v in self.sent.items()}
        return sent, {name: resized(name, shape) for name, shape in self.zero_states.items()}

    def rows(self, going_on: Sequence[int]) -> dict[str, tuple[int, tuple[int, ...]]]:
        """For each state, the axis of the batch, and the rows of it that go on."""
        return {name: (axis, tuple(going_on)) for name, axis in (self.batch_axes or {}).items()}

    def some_of(self, states: Mapping[str, Value], rows: Sequence[int]) -> dict[str, Value]:
        """These rows of the states that are sent."""
        axes, tensors = self.batch_axes or {}, self.cascade.tensors
        return {n: rows_of(v, tensors[n], axes[n], rows) if n in axes else v for n, v in states.items()}

    def states_after(self, answer: Mapping[str, Value], before: Mapping[str, Value]) -> dict[str, Value]:
        return {past: next_state(before[past], answer[present]) for past, present in self.next_sent.items()}

    def choice(self, chunk: TokenChunk, sampling: Sampling, rows: tuple[ScoredRow, ...]) -> LogitsChoice:
        """How the next tokens of `rows` of the batch are chosen after `chunk`."""
        dtype = self.cascade.tensors[self.logits].dtype
        return LogitsChoice(self.logits, dtype, self.has_batch, chunk.length, sampling, rows)

    def scheduled_parts(self) -> list[ScheduledPart]:
        """The parts as the scheduler sees them: who writes the logits makes the tokens."""
        parts = scheduled_parts(self.cascade, self.kept)
        return [
            replace(part, writes=(*part.writes, TOKENS.name)) if self.logits in part.writes else part for part in parts
        ]


def decoder_of(
    cascade: Cascade,
    *,
    inputs: Mapping[str, object],
    pairs: Mapping[str, str],
    dims: Mapping[str, int],
    max_context: int | None,
    in_place: bool = False,
) -> Decoder:
    """How `cascade` is decoded. See `generate` for the arguments and errors; `pairs` are its `states`.

    Where states can share a buffer, they do if decoding is `in_place`.
    """
    states = states_of(cascade, pairs)
    tensors = cascade.tensors
    _check_names(cascade, states, inputs, dims)
    roles = _roles(cascade, states, inputs)
    ids = tensors[next(name for name, role in roles.items() if role == "ids")]
    given = {name: to_value(value, tensors[name]) for name, value in inputs.items()}
    # A state with a given beginning is sent: states that stay with a part begin with zeros.
    kept = kept_states(cascade.parts, [state for state in states if state.past not in given])
    local = {state.past for row in kept.values() for state in row}
    sent = [s for s in states if s.past not in local and _is_read(cascade, s.past)]
    most = _most(ids, states)
    # One token of each sequence may have no axis of its own.
    has_batch = len(ids.shape or (None, None)) > 1 or (most == 1 and not isinstance((ids.shape or (1,))[0], int))
    ids_batch = ids.shape[0] if ids.shape and has_batch else None
    batch = ids_batch if isinstance(ids_batch, int) else 1
    symbols = dict.fromkeys(dim for state in states for dim in state.start or () if isinstance(dim, str))
    sizes = {
        **cascade.manifest.given_dims,
        **{dim: batch for dim in symbols if dim == ids_batch or _BATCH.search(dim)},
        **symbol_sizes({name: shape_of(value) for name, value in given.items() if tensors[name].is_plain}, tensors),
        **dims,
    }
    logits = _logits(cascade, states)
    zero_shape = partial(_zero_shape, sizes=sizes, batch=batch, has_branch="branch" in roles.values())
    begins = {s.past: given[s.past] if s.past in given else zeros(tensors[s.past], zero_shape(s)) for s in sent}
    return Decoder(
        cascade=cascade,
        roles=roles,
        constants={name: value for name, value in given.items() if name not in begins},
        kept=kept,
        zero_states={state.past: zero_shape(state) for state in states if state.past in local},
        sent=begins,
        next_sent={state.past: state.present for state in sent},
        logits=logits,
        has_batch=has_batch,
        batch=batch,
        batch_axes=None if given or dims or not has_batch else _batch_axes(ids_batch, states, tensors[logits]),
        most=most,
        capacity=_capacity(cascade, roles, states, max_context),
        room_axes={
            state.past: state.axis
            for state in states
            if in_place and state.is_shareable and state.past in local and state.axis is not None
        },
    )


def _batch_axes(batch: Dim | None, states: Sequence[State], logits: Tensor) -> dict[str, int] | None:
    """The axis of each state for the batch; None if they don't say that the model takes any number of sequences."""
    if isinstance(batch, int) or not logits.shape or isinstance(logits.shape[0], int):
        return None
    found = {}
    for state in states:
        axes = [i for i, dim in enumerate(state.start or ()) if _is_batch(i, dim, batch)]
        if len(axes) != 1:
            return None
        found[state.past] = axes[0]
    return found


def _is_batch(axis: int, dim: Dim | None, batch: str | None) -> bool:
    return axis == 0 if dim is None else isinstance(dim, str) and (dim == batch or _BATCH.search(dim) is not None)


def _check_names(cascade: Cascade, states: Sequence[State], inputs: Iterable[str], dims: Iterable[str]) -> None:
    reads = cascade.manifest.reads
    if unknown := next((name for name in inputs if name not in reads), None):
        raise UsageError(f"the model has no input {unknown!r}", hint=f"its inputs: {', '.join(reads)}")
    shapes = [cascade.tensors[state.past].shape or () for state in states]
    known = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
    if unknown := next((name for name in dims if name not in known), None):
        hint = f"their sizes: {', '.join(known) or 'none has a name'}"
        raise UsageError(f"no state has a size called {unknown!r}", hint=hint)


def _is_read(cascade: Cascade, name: str) -> bool:
    return any(name in part.reads for part in cascade.parts)


def _roles(cascade: Cascade, states: Sequence[State], inputs: Mapping[str, object]) -> dict[str, DecoderInputRole]:
    """The roles of the inputs that are neither states nor given."""
    known = {state.past for state in states} | inputs.keys()
    unknown = [name for name in cascade.manifest.reads if name not in known and _is_read(cascade, name)]
    roles = {name: role for name in unknown if (role := role_of(cascade.tensors[name])) is not None}
    rest = [name for name in unknown if name not in roles]
    if "ids" not in roles.values():
        if given := next((name for name in inputs if role_of(cascade.tensors[name]) == "ids"), None):
            raise UsageError(f"{given!r} is among the inputs, but prompts are fed there", hint="leave it out of them")
        integers = [name for name in rest if cascade.tensors[name].dtype in _INTEGERS]
        if len(integers) != 1 and "inputs_embeds" in rest:
            raise RunError(
                "the model reads embeddings (inputs_embeds), and tokens can't be fed to it",
                hint="export it with its embedding, so that it reads input_ids",
            )
        if len(integers) != 1:
            raise RunError(
                f"no input of the model is known to read tokens; there is {', '.join(rest) or 'none'}",
                hint="a decoder reads integers from an input called input_ids",
            )
        roles[integers[0]] = "ids"
    for name in rest:
        if name not in roles and name not in cascade.manifest.optional:
            raise RunError(
                f"the model reads {cascade.tensors[name]} {name!r}, and it is not known what to feed there",
                hint="feed it with `inputs`; or, if an output becomes it, say so when you split, with `states`",
            )
    return roles


def _logits(cascade: Cascade, states: Sequence[State]) -> str:
    presents = {state.present for state in states}
    others = [name for name in cascade.manifest.writes if name not in presents]
    tensors = [cascade.tensors[name] for name in others]
    likely = [name for name in others if LOGITS.search(name.lower())] or [
        tensor.name for tensor in tensors if tensor.dtype in _FLOATS and len(tensor.shape or ()) in {2, 3}
    ]
    if len(likely) != 1:
        raise RunError(
            f"it is not clear which output holds the logits; there is {', '.join(others) or 'none'}",
            hint="name it logits; if some of these become inputs again, say so with `states`",
        )
    return likely[0]


def _most(ids: Tensor, states: Sequence[State]) -> int | None:
    """The maximum number of tokens in a step. Prompts may have any length, so a fixed number above one is refused."""
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
    """The maximum length of a sequence: by the user, by buffers of a fixed size, and by masks of a fixed size."""
    limits: list[Dim | None] = [max_context]
    for state in states:
        shape = cascade.tensors[state.past].shape
        if state.axis is not None and shape is not None:
            limits.append(shape[state.axis])
    for name, role in roles.items():
        shape = cascade.tensors[name].shape
        if shape and (role == "mask" or (role == "ids" and not states)):
            limits.append(shape[-1])
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def _zero_shape(state: State, sizes: Mapping[str, int], batch: int, *, has_branch: bool) -> tuple[int, ...]:
    """The shape of `state` at the beginning of a sequence."""
    if state.start is None:
        message = f"the shape of the state {state.past!r} is not known"
        raise RunError(message, hint="feed its first value with `inputs`")
    shape = []
    for axis, dim in enumerate(state.start):
        size = batch if dim is None and axis == 0 else sizes.get(dim) if isinstance(dim, str) else dim
        if size is None and not has_branch:
            raise RunError(
                f"the size {dim or '?'!r} of the state {state.past!r} is not known",
                hint="give it with `dims`" if dim else "feed its first value with `inputs`",
            )
        shape.append(size or 0)  # with a branch, the first step takes the one that reads no cache
    return tuple(shape)
