"""Greedy decoding: each step feeds the tokens that are new, and every part keeps its own cache."""

from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast

from ...core.errors import RunError, UsageError
from ...core.manifest import CascadeLike, open_cascade
from ...core.units import count
from ..executors.threads import InlineExecutor
from ..run_log import RunLog
from ..scheduling.assignment import Via, assign_parts, make_executor, scheduled_parts, share_threads
from ..scheduling.requests import Request, Routing
from ..scheduling.scheduler import Answer, Scheduler
from ..stage import SessionConfig
from ..values import Value
from .decoder import Decoder, decoder_of
from .token_inputs import TokenChunk

FinishReason = Literal["stop", "max_tokens", "full"]
"""Why a sequence ended: a stop token; `max_tokens` were generated; the model takes no more tokens."""

_LAST_TOKEN: Final = 2**31 - 1  #: the largest id that every type of token input can hold.
_NO_TOKENS: Final = TokenChunk(0, ())


class Token(NamedTuple):
    """The id of a generated token, and the index of its prompt."""

    sequence: int
    token: int


@dataclass(slots=True)
class _Sequence:
    """The sequence of the prompt at `index`. `states` are the sent states, `chunk` the tokens, of its last step."""

    index: int
    unfed: tuple[int, ...]
    states: Mapping[str, Value]
    fed: tuple[int, ...] = ()
    generated: int = 0
    chunk: TokenChunk = _NO_TOKENS

    def request(self, decoder: Decoder) -> Request:
        """The request of the next step. Its tokens count as fed."""
        new = self.unfed[: decoder.most]
        self.chunk = TokenChunk(0, self.fed + new) if decoder.is_stateless else TokenChunk(len(self.fed), new)
        zero_states = {} if self.fed else decoder.zero_states
        self.fed, self.unfed = self.fed + new, self.unfed[len(new) :]
        return Request(decoder.feeds(self.chunk, self.states), self.index, zero_states, f"sequence {self.index}")


class Generation:
    """Generated tokens. Iterate over them once, or call `all`.

    Attributes:
        log: the log of the run.
        workers: the names of the workers in the log.
        ends: by index of the prompt, why a sequence ended.
    """

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        prompts: Sequence[tuple[int, ...]],
        *,
        max_tokens: int,
        stop: frozenset[int],
    ) -> None:
        """Nothing runs before the first token is asked for. See `generate`."""
        self.log = scheduler.log
        self.workers = tuple(worker.name for worker in scheduler.pool.workers)
        self.ends: dict[int, FinishReason] = {}
        self._decoder = decoder
        self._scheduler = scheduler
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._stop = stop
        self._ready: deque[_Sequence] = deque()
        self._in_flight: deque[_Sequence] = deque()
        self._begun = 0
        self._tokens = self._decode()

    def __iter__(self) -> Iterator[Token]:
        """The tokens of all sequences as they are generated; those of one sequence in order."""
        return self._tokens

    def close(self) -> None:
        """End early."""
        self._tokens.close()

    def all(self) -> list[list[int]]:
        """The tokens of each sequence, by prompt. Tokens that were already iterated over are not included."""
        found: list[list[int]] = [[] for _ in self._prompts]
        for sequence, token in self._tokens:
            found[sequence].append(token)
        return found

    def _decode(self) -> Generator[Token, None, None]:
        with closing(cast("Generator[Answer]", self._scheduler.run(self._requests()))) as answers:
            try:
                for answer in answers:
                    yield from self._continued(cast("Mapping[str, Value]", answer))  # errors are raised
            except RunError as error:
                if (cause := self._outside_vocabulary()) is not None:
                    raise cause from error
                raise

    def _continued(self, answer: Mapping[str, Value]) -> Iterator[Token]:
        one = self._in_flight.popleft()
        one.states = self._decoder.states_after(answer, one.states)
        if one.unfed:  # the rest of its prompt
            self._ready.append(one)
            return
        token = self._decoder.token(answer, one.chunk)
        one.generated += 1
        end = self._end(one, token)
        if end is None:
            one.unfed = (token,)
            self._ready.append(one)
        else:
            self.ends[one.index] = end
            self._scheduler.forget(one.index)
        yield Token(one.index, token)

    def _end(self, one: _Sequence, token: int) -> FinishReason | None:
        if token in self._stop:
            return "stop"
        if one.generated >= self._max_tokens:
            return "max_tokens"
        return "full" if len(one.fed) == self._decoder.capacity else None

    def _outside_vocabulary(self) -> RunError | None:
        """The error for a token of a prompt that the model has no logits for: the likely cause of a failed step."""
        vocabulary = self._decoder.vocabulary
        for index, prompt in enumerate(self._prompts):
            if vocabulary is not None and max(prompt) >= vocabulary:
                return RunError(
                    f"token id {max(prompt)} of prompt {index} is outside the vocabulary ({vocabulary})",
                    hint="use the tokenizer of this model",
                )
        return None

    def _requests(self) -> Iterator[Request | None]:
        """The next step of each sequence after its last answer; new ones as the window allows; None if all wait."""
        while len(self.ends) < len(self._prompts):
            if not self._ready and self._begun < len(self._prompts):
                self._ready.append(_Sequence(self._begun, self._prompts[self._begun], self._decoder.sent))
                self._begun += 1
            if not self._ready:
                yield None
                continue
            one = self._ready.popleft()
            self._in_flight.append(one)
            yield one.request(self._decoder)


def generate(  # noqa: PLR0913 - independent settings, all with defaults
    cascade: CascadeLike,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop: Collection[int] = (),
    inputs: Mapping[str, object] = MappingProxyType({}),
    states: Mapping[str, str] = MappingProxyType({}),
    dims: Mapping[str, int] = MappingProxyType({}),
    max_context: int | None = None,
    via: Via = "threads",
    workers: int | None = None,
    window: int | None = None,
    config: SessionConfig | None = None,
    log: RunLog | None = None,
) -> Generation:
    """The most likely tokens after each of `prompts`, as they are generated (greedy decoding).

    Each prompt is a sequence of its own; several are decoded at the same time. A state that only one part reads and
    writes stays with that part. A stateless model is fed the whole sequence at each step. Each step feeds what the
    whole model would be fed.

    Args:
        cascade: a cascade or its path.
        prompts: the token ids of each prompt.
        max_tokens: the maximum number of generated tokens for each prompt.
        stop: token ids that end a sequence; they are returned, too.
        inputs: what is fed in each step, such as the output of an encoder; for a state, its first value.
        states: states that the manifest does not know: the output that becomes each of these inputs in the next step.
        dims: sizes of states that are not known otherwise, by symbol.
        max_context: the maximum number of tokens of a sequence that are fed, prompt included (the last generated one
            is not). Buffers of a fixed size limit it as well.
        via: where workers run, see `stream`.
        workers: the number of workers, not more than parts; by default one for each device of the plan, or else one for
            each core, but not more than parts or prompts: a sequence is on one worker at a time.
        window: the maximum number of sequences in flight; by default twice the number of workers.
        config: how sessions are built.
        log: the log to write to.

    Raises:
        UsageError: a prompt is empty or too long, or a name or number does not fit the model.
        RunError: it is not known what to feed to an input, or which output holds the logits; later: a part fails.
    """
    prompt_ids = [tuple(int(token) for token in prompt) for prompt in prompts]
    cascade = open_cascade(cascade)
    decoder = decoder_of(cascade, inputs=inputs, pairs=states, dims=dims, max_context=max_context)
    _check(prompt_ids, max_tokens, decoder.capacity, workers, len(cascade.parts))
    pool = assign_parts(cascade, workers)
    if workers is None and not cascade.manifest.devices:
        pool = assign_parts(cascade, max(1, min(len(pool), len(prompt_ids))))
    window = window or 2 * len(pool)
    config = share_threads(config or SessionConfig(), max(1, min(len(pool), window, len(prompt_ids))), via)
    executor = (
        InlineExecutor(cascade, config, decoder.kept)
        if via == "threads" and len(pool) == 1
        else make_executor(cascade, via, config, decoder.kept, pool)
    )
    routing = Routing(scheduled_parts(cascade, decoder.kept), decoder.outputs)
    scheduler = Scheduler(routing, executor, pool, window=window, log=log)
    return Generation(decoder, scheduler, prompt_ids, max_tokens=max_tokens, stop=frozenset(stop))


def _check(
    prompts: Sequence[tuple[int, ...]], max_tokens: int, capacity: int | None, workers: int | None, parts: int
) -> None:
    if max_tokens < 1:
        raise UsageError(f"can't generate {max_tokens} tokens", hint="ask for 1 or more")
    if workers is not None and workers > parts:
        raise UsageError(
            f"{count(workers, 'worker')} can't share {count(parts, 'part')}: the states of a sequence stay with a part",
            hint=f"take {parts} or fewer, or split the model into more parts",
        )
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise UsageError(f"prompt {index} is empty", hint="give at least one token id")
        if strange := [token for token in prompt if not 0 <= token <= _LAST_TOKEN]:
            raise UsageError(
                f"prompt {index} has {strange[0]}, which is not a token id",
                hint="token ids range from 0 to the size of the vocabulary",
            )
        if capacity is not None and len(prompt) > capacity:
            raise UsageError(
                f"prompt {index} has {count(len(prompt), 'token')}, and the model takes {capacity}", hint="shorten it"
            )
