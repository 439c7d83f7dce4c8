"""Decoding: each step feeds the tokens that are new, and every part keeps its own cache."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from math import ceil
from typing import Final, Literal, NamedTuple, Unpack, cast

from msgspec.structs import replace

from ..core.arguments import OnError
from ..core.errors import GraphcutError, RunError, UsageError, check_keywords, check_positive, check_word
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..core.units import count as count_of
from ..running.in_process.memory_plan import AvailableMemory
from ..running.sampling import GREEDY, Sampling
from ..running.stage import SessionConfig, Stage
from ..running.values import Value
from ..workers.executors.limited_worker import LimitedWorker
from ..workers.executors.making import make_executor
from ..workers.executors.protocol import Origin
from ..workers.executors.via import is_elsewhere
from ..workers.executors.worker import Worker
from ..workers.scheduling.assignment import assign_parts, share_threads
from ..workers.scheduling.in_flight import Answer
from ..workers.scheduling.one_worker import OneWorker
from ..workers.scheduling.requests import Request
from ..workers.scheduling.scheduler import Scheduler
from ..workers.scheduling.state_recovery import LostStatesError
from ..workers.scheduling.worker_pool import WorkerState
from .beams import BeamBatch, check_beams
from .decoder import Decoder, DecodingSettings
from .decoding_memory import longest_of, predict_decoding
from .prefix_cache import PrefixCache
from .shared_steps import SharedSteps
from .speculation import DraftDecoder, DraftProposer, Lookup, Speculation
from .token_sequences import SequenceBatch, TokenSequence, token_ids

FinishReason = Literal["stop", "max_tokens", "full", "failed"]
"""Why a sequence ended: what `stop` says; `max_tokens` were generated; the model takes no more tokens; an error."""

BATCH: Final = 8  #: the maximum number of sequences in a batch, unless another one is asked for.


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
        sharing: its `verdict` is whether sequences of other lengths share steps; None before there was occasion to try.
        reused: how many tokens of prompts were not computed, because states of sequences before were kept.
        limited: with a memory limit, the worker, which knows the predicted and the measured memory; else None.
    """

    def __init__(  # noqa: PLR0913 - independent settings
        self,
        cascade: CascadeLike,
        sequences: Sequence[TokenSequence],
        later: Iterator[TokenSequence | None],
        most: int,
        *,
        batch: int,
        beams: int = 1,
        stop: Callable[[int, int], bool],
        on_error: OnError,
        settings: DecodingSettings,
    ) -> None:
        """Of `sequences`, and of those that come `later` (None: none yet); at most so many at a time. See `generate`.

        Nothing runs before the first token is asked for.
        """
        check_keywords(settings, DecodingSettings.__annotations__)
        check_word(on_error, OnError, "on_error")
        via = settings.get("via", "threads")
        cascade = open_cascade(cascade, may_lack_parts=is_elsewhere(via))
        self._decoder = decoder = Decoder(cascade, settings)
        self._beams = beams
        check_beams(beams, decoder, settings)
        self._cache = PrefixCache(decoder, settings.get("cache_bytes", 0) if beams == 1 else 0)
        if beams > 1 or decoder.batch_axes is None or (self._cache.max_bytes if sequences else decoder.padding is None):
            batch = 1  # later prompts reuse the states of those before; or those that come later can't join
        # A service in other processes has a worker for each core or machine: one may not have memory for all parts.
        pool = _pool(cascade, settings, ceil(most / batch) if sequences or via == "threads" else most)
        self._batch = max(1, min(batch, ceil(most / len(pool)))) if sequences else batch
        window = settings.get("window") or 2 * len(pool)
        config = share_threads(settings.get("config") or SessionConfig(), max(1, min(len(pool), window, most)), via)
        self.limited = None
        if settings.get("memory_bytes") is not None:
            self.limited = self._limited(sequences, self._batch if sequences else most, config, settings)
        self._scheduler = self._scheduled(cascade, pool, window, config, settings)
        self._is_proposing = settings.get("draft") is not None
        self._draft = self._drafted(settings, config)
        self.log = self._scheduler.log
        self.workers = self._scheduler.worker_names
        self.errors: dict[int, GraphcutError] = {}
        self.ends: dict[int, FinishReason] = {}
        self.reused = 0
        self._later = later
        self._stop = stop
        self._on_error = on_error
        self._open: set[int] = set()  # the indices of the sequences that have not ended
        self._waiting = [one for one in sequences if self._is_possible(one)]
        self._waiting.sort(key=lambda one: (-len(one.unfed), -one.index))  # similar lengths are decoded together
        self._ready: deque[SequenceBatch] = deque()
        # by the number of a batch, those whose states it takes at its next step, and whether the cache keeps them
        self._left: dict[int, list[tuple[int, bool]]] = {}
        self._in_flight: deque[SequenceBatch] = deque()
        self._numbers = count()
        self.sharing = SharedSteps(decoder, self._numbers, may=self.limited is None and self._batch > 1)
        self._rows = self._batch * len(pool)  # sequences that are decoded at once, if they share steps
        self._tokens = self._decode()

    def _scheduled(
        self, cascade: Cascade, pool: list[WorkerState], window: int, config: SessionConfig, settings: DecodingSettings
    ) -> Scheduler | OneWorker:
        """What runs steps: one worker in this process, or a scheduler of the workers of `pool`."""
        decoder, via = self._decoder, settings.get("via", "threads")
        if self.limited is not None or (via == "threads" and len(pool) == 1):
            load = lambda part: Stage(cascade, cascade.parts[part], config=config)  # noqa: E731
            worker = self.limited or Worker(cascade, decoder.kept, load)
            return OneWorker(decoder.routing(), worker, settings.get("log"))
        executor = make_executor(cascade, via, config, decoder.kept, [one.name for one in pool])
        return Scheduler(decoder.routing(), executor, pool, window=window, log=settings.get("log"))

    def _drafted(self, settings: DecodingSettings, config: SessionConfig) -> DraftDecoder | None:
        """The decoder that proposes tokens, if there is one."""
        draft = settings.get("draft")
        if draft is not None and not self._decoder.is_cuttable:
            why = "its states can't be cut, or it scores the last token alone"
            raise UsageError(f"no tokens can be proposed to this model: {why}", hint="leave out `draft`")
        if draft is None or draft == "lookup":
            return None
        if self.limited is not None:
            raise UsageError("a memory limit does not count a second decoder", hint="leave out one of them")
        return DraftDecoder(draft, self._decoder, config)

    def _forget(self, number: int, *, is_kept: bool = False) -> None:
        """Forget a batch, and its states unless the cache keeps them."""
        self._scheduler.forget(number, states=not is_kept)
        if self._draft is not None:
            self._draft.worker.forget(number)

    def _new_batch(self, row: Sequence[TokenSequence], origin: Origin | None = None) -> SequenceBatch:
        if self._beams > 1:
            (one,) = row
            return BeamBatch(next(self._numbers), one, self._decoder, self._beams, partial(self._stop, one.index))
        batch = SequenceBatch(next(self._numbers), row, self._decoder, self._cache.piece, origin)
        self._propose(batch)
        return batch

    def _propose(self, batch: SequenceBatch) -> None:
        """Let tokens be proposed to a sequence that is alone, if they are asked for."""
        if self._is_proposing and batch.proposals is None and len(batch.sequences) == 1:
            proposer = Lookup() if self._draft is None else DraftProposer(self._draft, batch.sequences[0], batch.number)
            batch.proposals = Speculation(proposer)

    def _limited(
        self, sequences: Sequence[TokenSequence], at_once: int, config: SessionConfig, settings: DecodingSettings
    ) -> LimitedWorker:
        """A worker in a memory limit, for so many sequences at once."""
        if settings.get("via", "threads") != "threads" or (settings.get("workers") or 1) > 1:
            raise UsageError("a memory limit is for one process, without other workers", hint="leave out one of them")
        if self._decoder.encoded:
            hint = "feed what the encoder reads with `inputs`"
            raise UsageError("a memory limit does not count what an encoder makes of each prompt", hint=hint)
        memory = AvailableMemory(settings.get("memory_bytes"), settings.get("exact", False))
        memory = replace(memory, base_bytes=memory.base_bytes + self._cache.max_bytes)
        longest = longest_of(self._decoder, sequences)
        forecast = predict_decoding(self._decoder, memory, longest, at_once, prepacked=config.prepacked)
        return LimitedWorker(self._decoder.cascade, self._decoder.kept, config, forecast)

    def __iter__(self) -> Iterator[Token]:
        """The tokens of all sequences as they are generated; those of one sequence in order."""
        return self._tokens

    def close(self) -> None:
        """End early."""
        self._tokens.close()

    def all(self) -> list[list[int]]:
        """The tokens of each sequence, by prompt. Tokens that were already iterated over are not included."""
        found: list[list[int]] = [[] for _ in range(len(self._open) + len(self.ends))]
        for sequence, token in self._tokens:
            found[sequence].append(token)
        return found

    def _decode(self) -> Generator[Token, None, None]:
        with closing(cast("Generator[Answer]", self._scheduler.run(self._requests()))) as answers:
            for answer in answers:
                batch = self._in_flight.popleft()
                if batch.sequences[0].index < 0:
                    self._tried(batch, answer)
                elif isinstance(answer, RunError):
                    self._failed(batch, answer)
                else:
                    yield from self._continued(batch, answer)
                del answer  # its memory is free in the next step

    def _tried(self, batch: SequenceBatch, answer: Answer) -> None:
        """A step of the trial is done."""
        sharing = self.sharing
        if isinstance(answer, RunError):
            sharing.failed(is_lost=isinstance(answer, LostStatesError))
        else:
            sharing.step_done(batch, answer)
        if sharing.verdict is not None or isinstance(answer, RunError):
            for number in sharing.used:
                self._scheduler.forget(number)
        if sharing.verdict is False:
            self.log.notify("sequences of other lengths share no steps: a trial of it had other scores or failed", None)

    def _continued(self, batch: SequenceBatch, answer: Mapping[str, Value]) -> Iterator[Token]:
        if batch.origin is not None and not batch.is_begun:
            self.reused += batch.origin.kept
        for number, is_kept in self._left.pop(batch.number, ()):
            self._forget(number, is_kept=is_kept)
        for one, token in batch.step_done(answer):
            one.generated += 1
            if (end := self._end(one, token)) is None:
                one.unfed = (token,)
            else:
                self._close(one.index, end)
            yield Token(one.index, token)
        if batch.drop_ended():
            self._ready.append(batch)
        else:
            self._forget(batch.number, is_kept=self._cache.keep(batch))
        waiting = (batch for batch in (*self._ready, *self._in_flight) if not batch.is_begun)
        used = {batch.origin.sequence for batch in waiting if batch.origin is not None}
        for number in self._cache.dropped - used:
            self._scheduler.forget(number)
        self._cache.dropped &= used

    def _end(self, one: TokenSequence, token: int) -> FinishReason | None:
        if self._stop(one.index, token):
            return "stop"
        if one.generated >= one.max_tokens:
            return "max_tokens"
        return "full" if len(one.fed) == self._decoder.capacity else None

    def _failed(self, batch: SequenceBatch, error: RunError) -> None:
        """A step of a batch failed: find the sequences that are to blame."""
        for number, is_kept in ((batch.number, False), *self._left.pop(batch.number, ())):
            self._forget(number, is_kept=is_kept)
        is_lost, is_shared = isinstance(error, LostStatesError), len(batch.asked) > 1
        if is_shared or is_lost or batch.origin is not None:  # each begins again, alone and without kept states
            if batch.origin is not None:
                self._cache.drop(batch.origin.sequence)
            for one in batch.asked:
                one.is_alone = is_shared and not is_lost
                self._ready.append(self._new_batch([one]))
            return
        (one,) = batch.asked
        self._fail(one.index, one.outside(self._decoder.vocabulary) or error)

    def _fail(self, index: int, error: GraphcutError) -> None:
        if self._on_error == "raise":
            raise error
        self.errors[index] = error
        self._close(index, "failed")

    def _close(self, index: int, end: FinishReason) -> None:
        self.ends[index] = end
        self._open.discard(index)

    def _requests(self) -> Iterator[Request | None]:
        """The next step of each batch after its last answer; new ones as the window allows; None if all wait."""
        while self._begin_later() or self._open:
            while self._begin_waiting():
                pass
            if (batch := self.sharing.next_batch() or self._next_batch()) is None:
                yield None
                continue
            self._in_flight.append(batch)
            yield batch.request()

    def _begin_waiting(self) -> bool:
        """Begin the next sequences: those of one length that share later steps, or as many as fit in a batch.

        Returns whether any began.
        """
        if not self._waiting or (self._ready and self.sharing.verdict is not True):
            return False
        row = self._waiting[-self._batch :]
        lengths = {len(one.unfed) for one in row}
        if len(lengths) > 1:
            self.sharing.begin()
            if self.sharing.verdict is None:
                return False
        if self.sharing.verdict:
            free = self._rows - sum(len(batch.sequences) for batch in (*self._ready, *self._in_flight))
            same = [one for one in row if len(one.unfed) == len(self._waiting[-1].unfed)]
            row = same[max(0, len(same) - free) :] if free > 0 else []
        if row:
            del self._waiting[-len(row) :]
            self._begin(row[::-1])
        return bool(row)

    def _next_batch(self) -> SequenceBatch | None:
        """The batch whose step comes next: those that generate share it, unless there would be too many in flight."""
        if len(self._ready) == 1 and not (self._in_flight or self._waiting):  # nothing to join, as for one sequence
            self._propose(self._ready[0])
            return self._ready.pop()
        going = [len(batch.sequences) for batch in (*self._ready, *self._in_flight) if self._may_share(batch)]
        if sum(sorted(going)[:2]) <= self._batch and (len(going) > 1 or (going and self._waiting)):
            self.sharing.begin()
        running = sum(map(self._may_share, self._in_flight))
        for batch in list(self._ready):
            if not (self.sharing.verdict and self._may_share(batch)):
                self._ready.remove(batch)
                return batch
            if running < ceil(sum(going) / self._batch):
                return self._joined(batch)
        return None

    def _may_share(self, batch: SequenceBatch) -> bool:
        """Whether the next step of a batch may be that of others, too. If there are none, tokens are proposed."""
        is_alone = any(one.is_alone for one in batch.sequences) or (self._is_proposing and len(self._open) == 1)
        return batch.is_generating and not is_alone

    def _joined(self, batch: SequenceBatch) -> SequenceBatch:
        """A batch, and those that are ready to share its steps, as far as there is room."""
        mates, rows = list[SequenceBatch](), 0
        for one in (batch, *(other for other in self._ready if other is not batch and self._may_share(other))):
            if rows + len(one.sequences) <= self._batch:
                mates.append(one)
                rows += len(one.sequences)
        for one in mates:
            self._ready.remove(one)
        if len(mates) == 1:
            return batch
        joined = self.sharing.join(mates, self._cache.piece)
        self._left[joined.number] = [(one.number, self._cache.keep(one)) for one in mates]
        return joined

    def _begin_later(self) -> bool:
        """Begin the sequences that were asked for meanwhile. Returns whether there may be more."""
        for one in self._later:
            if one is None:
                return True
            self._open.add(one.index)
            self._begin([one])
        return False

    def _begin(self, row: Sequence[TokenSequence]) -> None:
        origin = self._cache.origin(row[0]) if len(row) == 1 else None
        self._ready.append(self._new_batch(row, origin))

    def _is_possible(self, one: TokenSequence) -> bool:
        try:
            self.begin(one, {})
        except UsageError as error:
            self._fail(one.index, error)
        else:
            self._open.add(one.index)
        return one.index in self._open

    def begin(self, sequence: TokenSequence, inputs: Mapping[str, object]) -> None:
        """Let a sequence begin, see `Decoder.begin_with`; `inputs` take the place of those that all have."""
        tokens, read = self._decoder.begin_with(sequence.unfed, sequence.name)
        sequence.inputs = {**read, **self._decoder.own_inputs(inputs)}
        sequence.unfed, sequence.prompt_length, sequence.first = tokens, len(tokens), len(tokens)


def generate(  # noqa: PLR0913 - independent settings
    cascade: CascadeLike,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop: Collection[int] | Callable[[int, int], bool] = (),
    sampling: Sampling = GREEDY,
    batch: int = BATCH,
    beams: int = 1,
    on_error: OnError = "raise",
    **settings: Unpack[DecodingSettings],
) -> Generation:
    """The tokens after each of `prompts`, as they are generated: the most likely ones, or as `sampling` draws them.

    Each prompt is a sequence of its own. Several share steps if the model declares an axis for them, those of other
    lengths once a trial has shown that it computes the same for each, see `shared_steps`. Kernels may add in another
    order for several, so a token may then differ where two are equally likely up to rounding. A state that only one
    part reads and writes stays with that part. A stateless model is fed the whole sequence at each step. Each step
    feeds what the whole model would be fed.

    Args:
        cascade: a cascade or its path.
        prompts: the token ids of each prompt. An encoder that reads tokens, and is not given them as `inputs`, reads
            these, and its decoder begins with the tokens that `generation_config.json` names; so does an empty prompt.
        max_tokens: the maximum number of generated tokens for each prompt.
        stop: token ids that end a sequence, or a function of the index of the prompt and a new token, which tells
            whether the sequence ends there. The last token is returned, too.
        sampling: how the next token is chosen.
        batch: the maximum number of sequences that share a step; with several workers fewer, so that each has some.
            Given `inputs` or `dims` are those of one sequence, so no steps are shared then.
        beams: the width of a beam search, whose tokens come when it has ended: those of the best of so many
            continuations that go on together, as in transformers. `length_penalty` and `early_stopping` are those of
            `generation_config.json`. `stop` must be token ids then, and `sampling` the most likely token.
        on_error: what to do if a sequence fails: `raise` the error, or go on with the others (`skip`).
        **settings: see `DecodingSettings`.

    Raises:
        TypeError: there is no such setting, or a prompt is not the ids of its tokens.
        UsageError: a prompt is empty or too long, or a name or number does not fit the model.
        RunError: it is not known what to feed to an input, or which output holds the logits; later: a part fails.
    """
    check_positive(batch, f"can't decode a batch of {batch} sequences")
    if beams > 1 and (callable(stop) or sampling.temperature or sampling.repetition_penalty != 1):
        hint = "leave out `beams`, or the others"
        raise UsageError("a beam search draws no tokens, and ends at token ids", hint=hint)
    top = None if callable(stop) or beams == 1 else beams * (1 + max(1, len(stop)))  # so many may end, and others go on
    given = enumerate(map(token_ids, prompts))
    sequences = [TokenSequence(i, prompt, max_tokens, sampling, draws=i, top=top) for i, prompt in given]
    is_last = stop if callable(stop) else lambda _, token, ends=frozenset(stop): token in ends
    return Generation(
        cascade, sequences, iter(()), len(prompts), batch=batch, beams=beams, stop=is_last, on_error=on_error,
        settings=settings,
    )  # fmt: skip


def _pool(cascade: Cascade, settings: DecodingSettings, batches: int) -> list[WorkerState]:
    if settings.get("memory_bytes") is not None:
        return assign_parts(cascade, 1)
    parts, workers = len(cascade.parts), settings.get("workers")
    if workers is not None and workers > parts:
        shared = f"{count_of(workers, 'worker')} can't share {count_of(parts, 'part')}"
        hint = f"take {parts} or fewer, or split the model into more parts"
        raise UsageError(f"{shared}: the states of a sequence stay with a part", hint=hint)
    return assign_parts(cascade, workers, most=max(1, batches))
