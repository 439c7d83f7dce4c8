"""A cascade as a decoder: the roles of its inputs, the states kept between steps, and the logits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Literal, TypedDict

from msgspec.structs import replace

from ..core.errors import RunError, UsageError, check_names
from ..core.manifest import Cascade, CascadeLike, State
from ..core.states import LOGITS, kept_states, states_of
from ..core.tensors import Dim, Tensor
from ..core.units import count
from ..running.providers import CPU
from ..running.sampling import TOKENS
from ..running.stage import SessionConfig
from ..running.values import Value, from_array, shape_of, symbol_sizes, to_value, zeros
from ..workers.executors.via import Via
from ..workers.run_log import RunLog
from ..workers.scheduling.assignment import scheduled_parts
from ..workers.scheduling.requests import Routing
from .genai_config import GenaiConfig, encoder_roles
from .generation_config import GenerationConfig
from .token_inputs import Roles, TokenChunk, has_axis_of_batch, input_array, role_of

_FLOATS: Final = {"float32", "float16", "bfloat16", "float64"}
_IN_CONFIG: Final = "in a genai_config.json beside the model"
_BATCH: Final = re.compile(r"batch", re.IGNORECASE)


class DecodingSettings(TypedDict, total=False):
    """How a cascade is decoded. All have defaults."""

    #: inputs that are the same in each step, such as what an encoder reads; for a state, its first value. They are
    #: sent at the first step of a sequence, and what reads nothing else runs there alone, see `Decoder.once`.
    inputs: Mapping[str, object]
    #: states that the manifest does not know: the output that becomes each of these inputs in the next step.
    states: Mapping[str, str]
    dims: Mapping[str, int]  #: sizes of states that are not known otherwise, by symbol.
    #: the maximum number of tokens of a sequence that are fed, prompt included (the last generated one is not); by
    #: default `context_length` in `genai_config.json`. Buffers of a fixed size limit it as well.
    max_context: int | None
    via: Via  #: where workers run, see `stream`.
    #: the number of workers, not more than parts; by default one for each device of the plan, or else one for each
    #: core, but not more than parts or batches: a batch is on one worker at a time.
    workers: int | None
    window: int | None  #: the maximum number of batches in flight; by default twice the number of workers.
    #: memory limit of this process, for one worker in it. Parts that don't stay loaded are loaded in each step. The
    #: need is predicted for prompts and the tokens after them; see `Runner`.
    memory_bytes: int | None
    exact: bool  #: see `Runner`.
    #: keep the states of sequences that have ended, up to so many bytes, for prompts that begin with the same tokens.
    #: `generate` decodes sequences one by one then.
    cache_bytes: int
    #: what proposes tokens for a sequence that is decoded alone: `lookup` (what came after the last tokens before), or
    #: a smaller decoder of the same tokenizer. The tokens are those without it, up to the rounding of longer steps.
    draft: CascadeLike | Literal["lookup"] | None
    config: SessionConfig | None  #: how sessions are built.
    log: RunLog | None  #: the log to write to.


class Decoder:
    """How a cascade is decoded."""

    def __init__(self, cascade: Cascade, settings: DecodingSettings) -> None:
        """See `generate` for errors."""
        if cascade.manifest.loop is not None:
            message = "the steps of this pipeline of models are counted: it generates no tokens"
            raise UsageError(message, hint="run it with `run(...)`")
        inputs, dims, tensors = settings.get("inputs", {}), settings.get("dims", {}), cascade.tensors
        config, known = GenaiConfig(cascade), {state.past for state in cascade.manifest.states}
        named = {past: present for past, present in config.states.items() if past not in known}
        states = states_of(cascade, {**named, **settings.get("states", {})})
        _check_given(cascade, states, inputs, dims)
        self.cascade = cascade
        self.says = GenerationConfig(cascade)  #: what the model's files say of the tokens that it generates.
        #: the inputs that a sequence's prompt is fed to at its first step alone, with their roles: those of an encoder.
        self.encoded = encoder_roles(cascade, inputs)
        #: the inputs that are computed for each step, with their roles.
        self.roles = _roles(cascade, states, inputs.keys() | self.encoded, config.roles)
        self.logits = config.logits or _logits(cascade, states)  #: the output with the scores of the next token.
        given = {name: to_value(value, tensors[name]) for name, value in inputs.items()}
        ids_batch = self._find_batch(states)
        self._begin_states(states, given, dims, ids_batch)
        #: the inputs that are the same in each step.
        self.constants = {name: value for name, value in given.items() if name not in self.sent}
        #: the parts that depend on nothing else: they run at the first step of a sequence.
        self.once = set[int]()
        #: by index of another part, what it reads of constants and of what these parts write. It keeps them.
        self.keeps = dict[int, tuple[str, ...]]()
        self._divide_parts()
        self._find_axes_of_rows(states, ids_batch, may_differ=not (given or dims or self.encoded))
        types = {tensors[name].dtype for name in (self.logits, *(state.past for state in states))}
        self.is_precise = types <= {"float32", "float64"}  #: its logits and states have 32 bits or more.
        #: where the states of a shorter sequence in a batch have unused places; None if all must have one length.
        self.padding = self._padding(states)
        #: the maximum length of a sequence, prompt included; None for no limit.
        self.capacity = _capacity(cascade, self.roles, states, settings.get("max_context") or config.context_length)
        session = settings.get("config") or SessionConfig()
        in_place = all((session.provider or cascade.settings(part).provider) == CPU for part in cascade.parts)
        shared = (s for s in states if in_place and s.is_shareable and s.past in self.zero_states)
        #: the axis of the tokens of each state that is written where it is read.
        self.room_axes = {state.past: state.axis for state in shared if state.axis is not None}

    def _find_batch(self, states: Sequence[State]) -> Dim | None:
        """Find how many tokens and rows a step takes; return the size of the batch's axis of the token ids."""
        ids = self.cascade.tensors[next(name for name, role in self.roles.items() if role == "ids")]
        self.most = _most(ids, states)  #: the maximum number of tokens in a step; None for no limit.
        # One token of each sequence may have no axis of its own.
        is_column = self.most == 1 and not isinstance((ids.shape or (1,))[0], int)
        #: the token ids have an axis for the sequences of a batch.
        self.has_batch = is_column or len(ids.shape or (None, None)) > 1
        ids_batch = ids.shape[0] if ids.shape and self.has_batch else None
        #: the number of rows that the model requires; all are the same. 1 if it takes any number.
        self.batch = max(1, ids_batch) if isinstance(ids_batch, int) else 1
        return ids_batch

    def _begin_states(
        self, states: Sequence[State], given: Mapping[str, Value], dims: Mapping[str, int], ids_batch: Dim | None
    ) -> None:
        """Find which states stay with a part and which are sent, and what they are when a sequence begins."""
        tensors = self.cascade.tensors
        # A state with a given beginning is sent: states that stay with a part begin with zeros.
        #: by index of the part, the states that stay with it.
        self.kept = kept_states(self.cascade.parts, [state for state in states if state.past not in given])
        local, read = {state.past for row in self.kept.values() for state in row}, _read(self.cascade)
        #: for each state that a part reads, the output that becomes it in the next step. Without any, each step is fed
        #: the whole sequence.
        self.presents = {state.past: state.present for state in states if state.past in read}
        self.token_axes = {state.past: state.axis for state in states}  #: the axis of each state for its tokens.
        sent = [state for state in states if state.past in read - local]
        self._is_rolling = fills_from_the_end(states)
        symbols = dict.fromkeys(dim for state in states for dim in state.start or () if isinstance(dim, str))
        sizes = {
            **self.cascade.manifest.given_dims,
            **{dim: self.batch for dim in symbols if dim == ids_batch or _BATCH.search(dim)},
            **symbol_sizes({name: shape_of(value) for name, value in given.items() if tensors[name].is_plain}, tensors),
            **dims,
        }
        zero_shape = partial(_zero_shape, sizes=sizes, batch=self.batch, has_branch="branch" in self.roles.values())
        #: the other states at the beginning of a sequence. They are fed and returned like any tensor.
        self.sent = {s.past: given[s.past] if s.past in given else zeros(tensors[s.past], zero_shape(s)) for s in sent}
        #: the shapes of the states that stay with their part at the beginning of a sequence.
        self.zero_states = {state.past: zero_shape(state) for state in states if state.past in local}

    def _find_axes_of_rows(self, states: Sequence[State], ids_batch: Dim | None, *, may_differ: bool) -> None:
        """Find the axes along which several rows, of one or of different sequences, are decoded at once."""
        tensors = self.cascade.tensors
        #: the axis of each state for several rows; None if it takes one row only.
        self.row_axes = _batch_axes(ids_batch, states, tensors[self.logits]) if self.has_batch else None
        #: the same where rows may be different sequences, which have no inputs of their own.
        self.batch_axes = self.row_axes if may_differ else None
        #: what parts keep that is the same in each step.
        self.kept_constants = kept = {name for row in self.keeps.values() for name in row}
        same = {n: _axis_of_batch(tensors[n].shape, ids_batch) for n in (*kept, *self.constants, *self.encoded)}
        #: the axis of the rows of what is the same in all rows: what is fed at the first step, and kept beside states.
        self.copy_axes = {name: axis for name, axis in same.items() if axis is not None}
        #: what is kept can be copied for more rows; else it may be the number of rows.
        self.is_copyable = all(name in self.copy_axes or tensors[name].dtype in _FLOATS for name in kept)

    def _divide_parts(self) -> None:
        """Find the parts that run once for a sequence. An input that is not fed is the same in each step, too."""
        after = {self.logits, *self.presents.values()}  # what each step must return
        absent = {*self.cascade.manifest.reads} - {*self.roles, *self.presents, *self.constants, *self.encoded}
        same = {*self.constants, *self.encoded}
        for index, part in enumerate(self.cascade.parts):
            read = tuple(name for name in part.reads if name in same)
            if read and {*part.reads} <= same | absent and after.isdisjoint(part.writes):
                self.once.add(index)
                same.update(part.writes)
            else:
                self.keeps.update({index: read} if read else {})
                same.difference_update(part.writes)  # it may write what it reads

    def _padding(self, states: Sequence[State]) -> Literal["before", "after"] | None:
        """By what the inputs and the states are: whether it computes the right thing is found when it is tried.

        A state that grows gets what is new at its end, so unused places are at its beginning, unless an operator knows
        the length of each row. What tells lengths must have an axis for the batch.
        """
        tensors, told = self.cascade.tensors, self.roles.items()
        each = {role for name, role in told if has_axis_of_batch(role, tensors[name])}
        is_told = not {role for _, role in told} - each - {"ids", "types", "keep", "total"}
        if self.batch_axes is None or self.sent or self._is_rolling or not states or not is_told:
            return None
        places = [(state, state.axis) for state in states if state.axis is not None and state.start]
        is_known = {state.is_shareable or state.start[axis] != 0 for state, axis in places if state.start}
        if not is_known:
            return "after"  # nothing has places for tokens
        if len(is_known) > 1 or not each & {"mask", "past", "total", "last"}:
            return None
        return "after" if True in is_known or "last" in each else "before"

    @property
    def is_cuttable(self) -> bool:
        """Whether its states can forget the last tokens, and it scores each token that it is fed."""
        states = [state for row in self.kept.values() for state in row]
        shape = self.cascade.tensors[self.logits].shape or ()
        is_scored = len(shape) == 2 + self.has_batch and shape[-2] != 1
        is_kept = bool(self.presents) and not self.sent and all(s.axis is not None and s.start for s in states)
        is_single = self.most is None and self.batch == 1 and "branch" not in self.roles.values() and not self.encoded
        return is_scored and is_kept and is_single and not self._is_rolling

    @property
    def vocabulary(self) -> int | None:
        """The number of different tokens that the logits score; None if it is not fixed."""
        size = (self.cascade.tensors[self.logits].shape or (None,))[-1]
        return size if isinstance(size, int) else None

    def feeds(self, chunk: TokenChunk, states: Mapping[str, Value]) -> dict[str, Value]:
        """The inputs for a step, without `constants`; `states` are those that are sent."""
        return {**self._fed(self.roles, chunk), **states}

    def _fed(self, roles: Roles, chunk: TokenChunk) -> dict[str, Value]:
        tensors = self.cascade.tensors
        filled = chunk if self.batch == 1 else chunk._replace(rows=chunk.rows * self.batch)
        made = {n: input_array(role, tensors[n], filled, is_rolling=self._is_rolling) for n, role in roles.items()}
        return {name: from_array(array, tensors[name]) for name, array in made.items()}

    def own_inputs(self, inputs: Mapping[str, object]) -> dict[str, Value]:
        """The values of inputs that one sequence has in place of `constants`; a UsageError if one is none of these."""
        check_names(inputs, self.constants, "no value for all was given of", "give any value of it for all, as of")
        return {name: to_value(value, self.cascade.tensors[name]) for name, value in inputs.items()}

    def begin_with(self, prompt: tuple[int, ...], name: str) -> tuple[tuple[int, ...], dict[str, Value]]:
        """The first tokens of the sequence for a prompt of this name, and the inputs that an encoder reads of it.

        Where the prompt is fed to an encoder, or empty, sequences begin as the model's files say.

        Raises:
            UsageError: there is no first token, the prompt is too long, or has what is not a token.
        """
        # The largest id that every type of token input holds.
        if strange := [token for token in prompt if not 0 <= token <= 2**31 - 1]:
            hint = "token ids range from 0 to the size of the vocabulary"
            raise UsageError(f"{name} has {strange[0]}, which is not a token id", hint=hint)
        is_read = bool(prompt and self.encoded)
        if not (tokens := self.says.begin if is_read else prompt or self.says.begin):
            hint = "name it as decoder_start_token_id in a generation_config.json beside the model, and split again"
            if not is_read:
                hint = "give at least one token id: no generation_config.json says what a sequence begins with"
            what = "the token that the decoder begins with is not known" if is_read else f"{name} is empty"
            raise UsageError(what, hint=hint)
        if self.capacity is not None and len(tokens) > self.capacity:
            message = f"{name} has {count(len(tokens), 'token')}, and the model takes {self.capacity}"
            raise UsageError(message, hint="shorten it")
        return tokens, self._fed(self.encoded, TokenChunk(0, (prompt,))) if is_read else {}

    def begin(self, sequences: int, room: int = 0) -> tuple[dict[str, Value], dict[str, tuple[int, ...]]]:
        """At the beginning of a batch, the states that are sent, and the shapes of those that are not.

        `room` is the number of tokens for which those in `room_axes` have room.
        """

        def resized(name: str, shape: Sequence[int]) -> tuple[int, ...]:
            sizes = {self.room_axes.get(name): room, axes.get(name): sequences}
            return tuple(sizes.get(i, size) for i, size in enumerate(shape))

        axes, tensors = (self.row_axes if sequences > 1 else self.batch_axes) or {}, self.cascade.tensors
        sent = {n: zeros(tensors[n], resized(n, shape_of(v))) if n in axes else v for n, v in self.sent.items()}
        return sent, {name: resized(name, shape) for name, shape in self.zero_states.items()}

    def routing(self) -> Routing:
        """The parts as the scheduler sees them: who writes the logits makes the tokens."""
        parts = scheduled_parts(self.cascade, self.kept, self.keeps)
        parts = [replace(p, writes=(*p.writes, TOKENS.name)) if self.logits in p.writes else p for p in parts]
        return Routing(parts, (TOKENS.name, *(self.presents[past] for past in self.sent)))


def _batch_axes(batch: Dim | None, states: Sequence[State], logits: Tensor) -> dict[str, int] | None:
    """The axis of each state for the batch; None if they don't say that the model takes any number of sequences."""
    if isinstance(batch, int) or not logits.shape or isinstance(logits.shape[0], int):
        return None
    axes = {state.past: _axis_of_batch(state.start, batch) for state in states}
    known = {past: axis for past, axis in axes.items() if axis is not None}
    return known if len(known) == len(axes) else None


def _axis_of_batch(shape: Sequence[Dim | None] | None, batch: Dim | None) -> int | None:
    """The only axis for several rows; None if there is none, or more than one."""
    found = [
        axis
        for axis, dim in enumerate(shape or ())
        if (axis == 0 if dim is None else isinstance(dim, str) and (dim == batch or _BATCH.search(dim)))
    ]
    return found[0] if len(found) == 1 else None


def _check_given(cascade: Cascade, states: Sequence[State], inputs: Iterable[str], dims: Iterable[str]) -> None:
    check_names(inputs, cascade.manifest.reads, "the model has no input", "its inputs:")
    shapes = [cascade.tensors[state.past].shape or () for state in states]
    known = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
    check_names(dims, known, "no state has a size called", "their sizes with a name:")


def _read(cascade: Cascade) -> set[str]:
    return {name for part in cascade.parts for name in part.reads}


def _roles(cascade: Cascade, states: Sequence[State], inputs: AbstractSet[str], named: Roles) -> Roles:
    """The roles of the inputs that are neither states nor given: those that are `named`, or by their names."""
    unasked = _read(cascade) - {state.past for state in states} - inputs
    stepwise = cascade.manifest.stepwise or cascade.manifest.reads
    unknown = [name for name in cascade.manifest.reads if name in unasked and name in stepwise]
    roles = {name: role for name in unknown if (role := named.get(name) or role_of(cascade.tensors[name])) is not None}
    rest = [name for name in unknown if name not in roles]
    if "ids" not in roles.values():
        if given := next((name for name in inputs if role_of(cascade.tensors[name]) == "ids"), None):
            raise UsageError(f"{given!r} is among the inputs, but prompts are fed there", hint="leave it out of them")
        integers = [name for name in rest if cascade.tensors[name].dtype in {"int64", "int32"}]
        if len(integers) != 1 and "inputs_embeds" in rest:
            hint = "join it with the model that makes them from tokens (`merge_models(...)`), and split both as one"
            raise RunError("the model reads embeddings (inputs_embeds), and tokens can't be fed to it", hint=hint)
        if len(integers) != 1:
            message = f"no input of the model is known to read tokens; there is {', '.join(rest) or 'none'}"
            raise RunError(message, hint=f"name it {_IN_CONFIG}, as model.decoder.inputs.input_ids, and split again")
        roles[integers[0]] = "ids"
    for name in (*rest, *(name for name in cascade.manifest.reads if name in unasked and name not in stepwise)):
        if name not in roles and name not in cascade.manifest.optional:
            message = f"the model reads {cascade.tensors[name]} {name!r}, and it is not known what to feed there"
            hint = "feed it with `inputs`; or, if an output becomes it, say so with `states`"
            if cascade.tensors[name].dtype not in _FLOATS:
                hint = f"feed it with `inputs`; or name it {_IN_CONFIG}, as model.decoder.inputs.attention_mask"
            raise RunError(message, hint=hint)
    return roles


def _logits(cascade: Cascade, states: Sequence[State]) -> str:
    presents = {state.present for state in states}
    others = [name for name in cascade.manifest.writes if name not in presents]
    floats = [name for name in others if cascade.tensors[name].dtype in _FLOATS]
    likely = [name for name in others if LOGITS.search(name.lower())]
    likely = likely or [name for name in floats if len(cascade.tensors[name].shape or ()) in {2, 3}]
    if len(likely) != 1:
        message = f"it is not clear which output holds the logits; there is {', '.join(others) or 'none'}"
        hint = f"name it {_IN_CONFIG}, as model.decoder.outputs.logits, and split again"
        raise RunError(message, hint=f"{hint}; if some of these become inputs again, say so with `states`")
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
        hint = "export it with a sequence length that is a symbol, or 1"
        raise RunError(f"the model reads exactly {length} tokens at each step, and tokens come one by one", hint=hint)
    return length


def fills_from_the_end(states: Sequence[State]) -> bool:
    """Whether the tokens of buffers are at their end; else they are at their beginning."""
    rolling = [state for state in states if state.is_rolling]
    filled = [s for s in states if s.axis is not None and s.start and s.start[s.axis] != 0 and not s.is_rolling]
    if rolling and filled:
        message = f"{rolling[0].past!r} has its tokens at the end and {filled[0].past!r} at the beginning"
        raise RunError(f"{message}, and one mask can't say both", hint="export all caches in one way")
    if unsized := next((s.past for s in rolling if s.axis is None or not s.start or s.start[s.axis] == 0), None):
        hint = "split the model again with a size for its symbol (`dims`)"
        raise RunError(f"{unsized!r} keeps a fixed number of tokens, and it is not known how many", hint=hint)
    return bool(rolling)


def _capacity(cascade: Cascade, roles: Roles, states: Sequence[State], max_context: int | None) -> int | None:
    """The maximum length of a sequence: by the user, by buffers of a fixed size, and by masks of a fixed size."""
    buffers = [(state.past, state.axis) for state in states if state.axis is not None]
    masks = [(name, -1) for name, role in roles.items() if role == "mask" or (role == "ids" and not states)]
    shapes = [(cascade.tensors[name].shape, axis) for name, axis in (*buffers, *masks)]
    limits = [max_context, *(shape[axis] for shape, axis in shapes if shape)]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def _zero_shape(state: State, sizes: Mapping[str, int], batch: int, *, has_branch: bool) -> tuple[int, ...]:
    """The shape of `state` at the beginning of a sequence."""
    if state.start is None:
        raise RunError(f"the shape of the state {state.past!r} is not known", hint="feed its first value with `inputs`")
    shape = []
    for axis, dim in enumerate(state.start):
        size = batch if dim is None and axis == 0 else sizes.get(dim) if isinstance(dim, str) else dim
        if size is None and not has_branch:
            hint = "give it with `dims`" if dim else "feed its first value with `inputs`"
            raise RunError(f"the size {dim or '?'!r} of the state {state.past!r} is not known", hint=hint)
        shape.append(size or 0)  # with a branch, the first step takes the one that reads no cache
    return tuple(shape)
