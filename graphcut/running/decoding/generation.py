"""Decoding: each step feeds the tokens that are new, and every part keeps its own cache."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from math import ceil, inf
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast

from ...core.errors import GraphcutError, RunError, UsageError
from ...core.manifest import Cascade, CascadeLike, open_cascade
from ...core.units import count as count_of
from ..executors.worker import Worker
from ..in_process.limited_worker import LimitedWorker
from ..in_process.memory_plan import available_memory
from ..run_log import RunLog
from ..scheduling.assignment import Via, assign_parts, make_executor, share_threads
from ..scheduling.one_worker import OneWorker
from ..scheduling.requests import Request, Routing
from ..scheduling.scheduler import Answer, Scheduler
from ..scheduling.worker_pool import WorkerState
from ..stage import SessionConfig, Stage
from ..values import OnError, Value
from .decoder import Decoder, decoder_of
from .decoding_memory import predict_decoding
from .sampling import Sampling
from .token_sequences import SequenceBatch, TokenSequence

FinishReason = Literal["stop", "max_tokens", "full", "failed"]
"""Why a sequence ended: what `stop` says; `max_tokens` were generated; the model takes no more tokens; an error."""

GREEDY: Final = Sampling()  #: the most likely token.
BATCH: Final = 8  #: the maximum number of sequences in a batch, unless another one is asked for.

_LAST_TOKEN: Final = 2**31 - 1  #: the largest id that every type of token input can hold.


class Token(NamedTuple):
    """The id of a generated token, and the index of its prompt."""

    sequence: int
    token: int


class Generation:
    """Generated tokens. Iterate over them once, or call `all`.

    Attributes:
        log: the log of the run.
        workers: the names of the workers in the log.
        ends: by index of the prompt, why a sequence ended.
        errors: by index of the prompt, the error of a sequence that failed.
        limited: with a memory limit, the worker, which knows the predicted and the measured memory; else None.
    """

    def __init__(  # noqa: PLR0913 - independent settings
        self,
        decoder: Decoder,
        scheduler: Scheduler | OneWorker,
        prompts: Sequence[Sequence[int]],
        later: Iterator[Sequence[int]] | None,
        *,
        batch: int,
        max_tokens: int,
        stop: frozenset[int] | Callable[[int, int], bool],
        on_error: OnError,
        limited: LimitedWorker | None,
    ) -> None:
        """Nothing runs before the first token is asked for. See `generate`."""
        self.log = scheduler.log
        self.workers = scheduler.worker_names
        self.errors: dict[int, GraphcutError] = {}
        self.ends: dict[int, FinishReason] = {}
        self.limited = limited
        self._decoder = decoder
        self._scheduler = scheduler
        self._later = later
        self._batch = batch
        self._max_tokens = max_tokens
        self._stop = stop
        self._on_error = on_error
        self._prompts = 0  # how many there are
        self._waiting: list[TokenSequence] = []
        for prompt in prompts:
            self._add(prompt)
        self._waiting.sort(key=lambda one: (-len(one.unfed), -one.index))  # similar lengths are decoded together
        self._ready: deque[SequenceBatch] = deque()
        self._in_flight: deque[SequenceBatch] = deque()
        self._batches = count()
        self._tokens = self._decode()

    def __iter__(self) -> Iterator[Token]:
        """The tokens of all sequences as they are generated; those of one sequence in order."""
        return self._tokens

    def close(self) -> None:
        """End early."""
        self._tokens.close()

    def all(self) -> list[list[int]]:
        """The tokens of each sequence, by prompt. Tokens that were already iterated over are not included."""
        found: list[list[int]] = [[] for _ in range(self._prompts)]
        for sequence, token in self._tokens:
            found += [[] for _ in range(len(found), sequence + 1)]
            found[sequence].append(token)
        return found

    def _decode(self) -> Generator[Token, None, None]:
        with closing(cast("Generator[Answer]", self._scheduler.run(self._requests()))) as answers:
            for answer in answers:
                batch = self._in_flight.popleft()
                if isinstance(answer, RunError):
                    self._failed(batch, answer)
                else:
                    yield from self._continued(batch, answer)
                del answer  # its memory is free in the next step

    def _continued(self, batch: SequenceBatch, answer: Mapping[str, Value]) -> Iterator[Token]:
        for one, token in batch.step_done(answer):
            one.generated += 1
            end = self._end(one, token)
            if end is None:
                one.unfed = (token,)
            else:
                self.ends[one.index] = end
            yield Token(one.index, token)
        if batch.drop_ended():
            self._ready.append(batch)
        else:
            self._scheduler.forget(batch.number)

    def _end(self, one: TokenSequence, token: int) -> FinishReason | None:
        if self._stop(one.index, token) if callable(self._stop) else token in self._stop:
            return "stop"
        if one.generated >= self._max_tokens:
            return "max_tokens"
        return "full" if len(one.fed) == self._decoder.capacity else None

    def _failed(self, batch: SequenceBatch, error: RunError) -> None:
        """A step of a batch failed: find the sequences that are to blame, and begin again with the others."""
        self._scheduler.forget(batch.number)
        causes = {one.index: one.outside(self._decoder.vocabulary) for one in batch.sequences}
        good = [one for one in batch.sequences if causes[one.index] is None]
        for one in batch.sequences:
            if (cause := causes[one.index] or (error if len(causes) == 1 else None)) is not None:
                self._fail(one.index, cause)
        if len(causes) > 1:
            for row in [good] if 0 < len(good) < len(causes) else [[one] for one in good]:
                self._ready.append(SequenceBatch(next(self._batches), row, self._decoder))

    def _fail(self, index: int, error: GraphcutError) -> None:
        if self._on_error == "raise":
            raise error
        self.errors[index], self.ends[index] = error, "failed"

    def _requests(self) -> Iterator[Request | None]:
        """The next step of each batch after its last answer; new ones as the window allows; None if all wait."""
        while len(self.ends) < self._prompts or self._take_later():
            if not self._ready and self._waiting:
                row = [self._waiting.pop() for _ in range(min(self._batch, len(self._waiting)))]
                self._ready.append(SequenceBatch(next(self._batches), row, self._decoder))
            if not self._ready:
                yield None
                continue
            batch = self._ready.popleft()
            self._in_flight.append(batch)
            yield batch.request()

    def _take_later(self) -> bool:
        """Ask for the next prompt that can be decoded. Returns whether there is one."""
        for prompt in self._later or ():
            self._add(prompt)
            if self._waiting:
                return True
        return False

    def _add(self, prompt: Sequence[int]) -> None:
        index, self._prompts = self._prompts, self._prompts + 1
        sequence = TokenSequence(index, tuple(int(token) for token in prompt))
        problem = _problem(sequence, self._decoder.capacity)
        if problem is None:
            self._waiting.append(sequence)
        else:
            self._fail(index, problem)


def generate(  # noqa: PLR0913 - independent settings, all with defaults
    cascade: CascadeLike,
    prompts: Sequence[Sequence[int]] | Iterator[Sequence[int]],
    *,
    max_tokens: int,
    stop: Collection[int] | Callable[[int, int], bool] = (),
    sampling: Sampling = GREEDY,
    inputs: Mapping[str, object] = MappingProxyType({}),
    states: Mapping[str, str] = MappingProxyType({}),
    dims: Mapping[str, int] = MappingProxyType({}),
    max_context: int | None = None,
    via: Via = "threads",
    workers: int | None = None,
    window: int | None = None,
    batch: int = BATCH,
    on_error: OnError = "raise",
    memory_bytes: int | None = None,
    exact: bool = False,
    forced: bool = False,
    config: SessionConfig | None = None,
    log: RunLog | None = None,
) -> Generation:
    """The tokens after each of `prompts`, as they are generated: the most likely ones, or as `sampling` draws them.

    Each prompt is a sequence of its own. Several are decoded together, as a batch, if the model declares an axis for
    it. Kernels add in another order for a batch, so a token may then differ where two are equally likely up to
    rounding. A state that only one part reads and writes stays with that part. A stateless model is fed the whole
    sequence at each step. Each step feeds what the whole model would be fed.

    Args:
        cascade: a cascade or its path.
        prompts: the token ids of each prompt. An iterator is asked for the next one when the sequence of the one before
            has ended, so that a prompt may continue an answer.
        max_tokens: the maximum number of generated tokens for each prompt.
        stop: token ids that end a sequence, or a function of the index of the prompt and a new token, which tells
            whether the sequence ends there. The last token is returned, too.
        sampling: how the next token is chosen.
        inputs: what is fed in each step, such as the output of an encoder; for a state, its first value.
        states: states that the manifest does not know: the output that becomes each of these inputs in the next step.
        dims: sizes of states that are not known otherwise, by symbol.
        max_context: the maximum number of tokens of a sequence that are fed, prompt included (the last generated one
            is not). Buffers of a fixed size limit it as well.
        via: where workers run, see `stream`.
        workers: the number of workers, not more than parts; by default one for each device of the plan, or else one for
            each core, but not more than parts or batches: a batch is on one worker at a time.
        window: the maximum number of batches in flight; by default twice the number of workers.
        batch: the maximum number of sequences in a batch. Each worker gets one if there are enough prompts. Given
            `inputs` or `dims` are those of one sequence, so there are no batches then.
        on_error: what to do if a sequence fails: `raise` the error, or go on with the others (`skip`).
        memory_bytes: memory limit of this process, for one worker in it. Parts that don't stay loaded are loaded in
            each step. The need is predicted for prompts and `max_tokens` tokens; see `Runner`.
        exact: see `Runner`.
        forced: see `Runner`.
        config: how sessions are built.
        log: the log to write to.

    Raises:
        UsageError: a prompt is empty or too long, or a name or number does not fit the model.
        RunError: it is not known what to feed to an input, or which output holds the logits; later: a part fails.
    """
    later, prompts = (prompts, ()) if isinstance(prompts, Iterator) else (None, prompts)
    cascade = open_cascade(cascade)
    decoder = decoder_of(cascade, inputs=inputs, pairs=states, dims=dims, max_context=max_context, sampling=sampling)
    _check(max_tokens, batch, workers, len(cascade.parts))
    batch = batch if decoder.batch_axes is not None else 1
    pool = _pool(cascade, workers if memory_bytes is None else 1, ceil(len(prompts) / batch))
    batch = max(1, min(batch, ceil(len(prompts) / len(pool))))
    window = window or 2 * len(pool)
    config = share_threads(config or SessionConfig(), max(1, min(len(pool), window, len(prompts))), via)
    limited = None
    if memory_bytes is not None:
        if via != "threads" or (workers or 1) > 1:
            raise UsageError("a memory limit is for one process, without other workers", hint="leave out one of them")
        memory = available_memory(memory_bytes, is_forced=forced)
        longest = _longest(decoder, None if later is not None else prompts, max_tokens)
        forecast = predict_decoding(decoder, memory, longest, batch, prepacked=config.prepacked, exact=exact)
        limited = LimitedWorker(cascade, decoder.kept, config, forecast)
    return Generation(
        decoder,
        _scheduler(decoder, config, via, pool, window, log=log, limited=limited),
        prompts,
        later,
        batch=batch,
        max_tokens=max_tokens,
        stop=stop if callable(stop) else frozenset(stop),
        on_error=on_error,
        limited=limited,
    )


def _pool(cascade: Cascade, workers: int | None, batches: int) -> list[WorkerState]:
    pool = assign_parts(cascade, workers)
    if workers is None and not cascade.manifest.devices:
        return assign_parts(cascade, max(1, min(len(pool), batches)))
    return pool


def _longest(decoder: Decoder, prompts: Sequence[Sequence[int]] | None, max_tokens: int) -> tuple[int, int]:
    """The tokens of the longest prompt that fits, and of the longest sequence; None for prompts that come later."""
    capacity = decoder.capacity
    if prompts is None and capacity is None:
        message = "a memory limit needs to know how long a conversation becomes, and the model sets no limit"
        raise UsageError(message, hint="set one with --max-context N")
    most = inf if capacity is None else capacity
    prompt = most if prompts is None else max([1, *(len(one) for one in prompts if len(one) <= most)])
    return int(prompt), int(min(prompt + max_tokens - 1, most))


def _scheduler(
    decoder: Decoder,
    config: SessionConfig,
    via: Via,
    pool: Sequence[WorkerState],
    window: int,
    *,
    log: RunLog | None,
    limited: LimitedWorker | None,
) -> Scheduler | OneWorker:
    cascade = decoder.cascade
    routing = Routing(decoder.scheduled_parts(), decoder.outputs)
    if limited is not None or (via == "threads" and len(pool) == 1):
        load = lambda part: Stage(cascade, cascade.parts[part], config=config)  # noqa: E731
        return OneWorker(routing, limited or Worker(cascade, decoder.kept, load), log)
    executor = make_executor(cascade, via, config, decoder.kept, pool)
    return Scheduler(routing, executor, pool, window=window, on_error="skip", log=log)


def _check(max_tokens: int, batch: int, workers: int | None, parts: int) -> None:
    if max_tokens < 1:
        raise UsageError(f"can't generate {max_tokens} tokens", hint="ask for 1 or more")
    if batch < 1:
        raise UsageError(f"can't decode a batch of {batch} sequences", hint="take 1 or more")
    if workers is not None and workers > parts:
        raise UsageError(
            f"{count_of(workers, 'worker')} can't share {count_of(parts, 'part')}: "
            "the states of a sequence stay with a part",
            hint=f"take {parts} or fewer, or split the model into more parts",
        )


def _problem(sequence: TokenSequence, capacity: int | None) -> UsageError | None:
    """Why a prompt can't be decoded."""
    name, prompt = f"prompt {sequence.index}", sequence.unfed
    if not prompt:
        return UsageError(f"{name} is empty", hint="give at least one token id")
    if strange := [token for token in prompt if not 0 <= token <= _LAST_TOKEN]:
        hint = "token ids range from 0 to the size of the vocabulary"
        return UsageError(f"{name} has {strange[0]}, which is not a token id", hint=hint)
    if capacity is not None and len(prompt) > capacity:
        message = f"{name} has {count_of(len(prompt), 'token')}, and the model takes {capacity}"
        return UsageError(message, hint="shorten it")
    return None
