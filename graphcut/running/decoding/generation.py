"""Greedy decoding: a prompt is fed, then each token that comes next, while every part keeps its own cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

from ...core.errors import RunError, UsageError
from ...core.manifest import Cascade
from ...core.units import count
from ..executors.inline import InlineExecutor
from ..run_log import RunLog
from ..scheduling.assignment import Via, assign_parts, make_executor, scheduled_parts, share_threads
from ..scheduling.requests import Request, Routing
from ..scheduling.scheduler import Answer, Scheduler
from ..stage import SessionConfig
from ..values import Value
from .decoder import Decoder, decoder_of
from .token_inputs import Stretch

FinishReason = Literal["stop", "max_tokens", "full"]
"""Why a sequence ended: by a stop token; it is as long as was asked for; no more tokens fit the model."""

_LAST_TOKEN: Final = 2**31 - 1
"""The largest number that every type of token input can hold."""

_NOT_BEGUN: Final = Stretch(0, ())
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Token(NamedTuple):
    """A token that came next.

    Attributes:
        sequence: the place of its prompt.
        token: its number.
    """

    sequence: int
    token: int


@dataclass(slots=True)
class _Sequence:
    """A sequence that is being decoded.

    Attributes:
        number: the place of its prompt.
        left: tokens that are to be fed.
        states: the states that are sent, as the last step left them.
        done: tokens that were fed.
        made: how many tokens came next.
        at: what was fed last.
    """

    number: int
    left: tuple[int, ...]
    states: Mapping[str, Value]
    done: tuple[int, ...] = ()
    made: int = 0
    at: Stretch = _NOT_BEGUN

    def request(self, decoder: Decoder) -> Request:
        """The next step; what it feeds counts as fed."""
        now = self.left[: decoder.most]
        self.at = Stretch(0, self.done + now) if decoder.is_stateless else Stretch(len(self.done), now)
        zero_states = {} if self.done else decoder.zero_states
        self.done, self.left = self.done + now, self.left[len(now) :]
        return Request(decoder.feeds(self.at, self.states), self.number, zero_states, f"sequence {self.number}")


class Generation:
    """Tokens as they come: go through it once, or ask for all of them.

    Attributes:
        log: what the parts took.
        workers: what the workers are called that the log numbers.
        ends: why the sequences that are over have ended, by the places of their prompts.
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
        """Nothing runs before the first token is asked for; see `generate`."""
        self.log = scheduler.log
        self.workers = tuple(worker.name for worker in scheduler.pool.workers)
        self.ends: dict[int, FinishReason] = {}
        self._decoder = decoder
        self._scheduler = scheduler
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._stop = stop
        self._ready: deque[_Sequence] = deque()
        self._asked: deque[_Sequence] = deque()
        self._begun = 0
        self._tokens = self._decode()

    def __iter__(self) -> Iterator[Token]:
        """The tokens of all sequences as they come; those of one sequence in their order."""
        return self._tokens

    def close(self) -> None:
        """End it early."""
        self._tokens.close()

    def all(self) -> list[list[int]]:
        """The tokens of each sequence, in the order of the prompts; those that were taken before are left out."""
        made: list[list[int]] = [[] for _ in self._prompts]
        for sequence, token in self._tokens:
            made[sequence].append(token)
        return made

    def _decode(self) -> Generator[Token, None, None]:
        with closing(cast("Generator[Answer]", self._scheduler.run(self._requests()))) as answers:
            for answer in answers:
                if isinstance(answer, RunError):
                    raise answer
                one = self._asked.popleft()
                one.states = self._decoder.states_after(answer, one.states)
                if one.left:  # of its prompt
                    self._ready.append(one)
                    continue
                token = self._decoder.token(answer, one.at)
                self._go_on(one, token)
                yield Token(one.number, token)

    def _go_on(self, one: _Sequence, token: int) -> None:
        one.made += 1
        end = self._end(one, token)
        if end is None:
            one.left = (token,)
            self._ready.append(one)
        else:
            self.ends[one.number] = end
            self._scheduler.forget(one.number)

    def _end(self, one: _Sequence, token: int) -> FinishReason | None:
        if token in self._stop:
            return "stop"
        if one.made >= self._max_tokens:
            return "max_tokens"
        return "full" if len(one.done) == self._decoder.capacity else None

    def _requests(self) -> Iterator[Request | None]:
        """A step of each sequence after its last answer; new sequences as there is room. None where all wait."""
        while len(self.ends) < len(self._prompts):
            if not self._ready and self._begun < len(self._prompts):
                self._ready.append(_Sequence(self._begun, self._prompts[self._begun], self._decoder.begins))
                self._begun += 1
            if not self._ready:
                yield None
                continue
            one = self._ready.popleft()
            self._asked.append(one)
            yield one.request(self._decoder)


def generate(  # noqa: PLR0913 - each is a decision of its own, and has a default that serves
    cascade: Cascade,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop: Collection[int] = (),
    inputs: Mapping[str, object] = _NOTHING,
    states: Mapping[str, str] = _NOTHING,
    dims: Mapping[str, int] = _NOTHING,
    max_context: int | None = None,
    via: Via = "threads",
    workers: int | None = None,
    window: int | None = None,
    config: SessionConfig | None = None,
    log: RunLog | None = None,
) -> Generation:
    """The tokens that a decoder finds most likely, after each of `prompts`, as they come.

    Prompts are decoded as sequences of their own, several at a time; each part keeps the states of every sequence that
    it alone reads and writes. The tokens are those of the whole model: what is fed and how is the same. A stateless
    model is fed the whole sequence at each step.

    Args:
        cascade: from `split` or `open_cascade`.
        prompts: the numbers of the tokens of each prompt.
        max_tokens: how many tokens follow a prompt at most.
        stop: tokens after which a sequence ends; they are given out.
        inputs: what is fed as it is at every step, such as what an encoder found; for a state, what it begins with.
        states: outputs that become inputs at the next step, by these inputs, where the manifest does not know them.
        dims: numbers for symbols in the sizes of states, where nothing tells them.
        max_context: how many tokens of a sequence may be fed, prompt included (the last one found never is); buffers of
            a fixed size limit it by themselves.
        via: where the parts run, see `stream`.
        workers: how many; no more than parts. By themselves as many as the plan has devices, or else one for each core,
            though no more than parts or prompts: a sequence is with one worker at a time.
        window: how many sequences are decoded at the same time; twice the number of workers by itself.
        config: how sessions are built.
        log: what happens is noted there.

    Raises:
        UsageError: a prompt is empty or too long, or a name or number does not fit the model.
        RunError: nothing tells what an input is fed, or which output says what comes next; later: a part fails.
    """
    asked = [tuple(int(token) for token in prompt) for prompt in prompts]
    decoder = decoder_of(cascade, inputs=inputs, pairs=states, dims=dims, max_context=max_context)
    _check(asked, max_tokens, decoder.capacity, workers, len(cascade.parts))
    pool = assign_parts(cascade, workers)
    if workers is None and not cascade.manifest.devices:
        pool = assign_parts(cascade, max(1, min(len(pool), len(asked))))
    window = window or 2 * len(pool)
    config = share_threads(config or SessionConfig(), max(1, min(len(pool), window, len(asked))), via)
    is_alone = via == "threads" and len(pool) == 1
    executor = (
        InlineExecutor(cascade, config, decoder.kept)
        if is_alone
        else make_executor(cascade, via, config, decoder.kept, pool)
    )
    routing = Routing(scheduled_parts(cascade, decoder.kept), decoder.outputs)
    scheduler = Scheduler(routing, executor, pool, window=window, log=log)
    return Generation(decoder, scheduler, asked, max_tokens=max_tokens, stop=frozenset(stop))


def _check(
    prompts: Sequence[tuple[int, ...]], max_tokens: int, capacity: int | None, workers: int | None, parts: int
) -> None:
    if max_tokens < 1:
        raise UsageError(f"{max_tokens} tokens can't be generated", hint="ask for 1 or more")
    if workers is not None and workers > parts:
        raise UsageError(
            f"{count(workers, 'worker')} can't share {count(parts, 'part')}: what a sequence keeps stays with its part",
            hint=f"take {parts} or fewer, or split the model into more parts",
        )
    for place, prompt in enumerate(prompts):
        if not prompt:
            raise UsageError(
                f"prompt {place} is empty", hint="give at least one token, such as the one that begins a text"
            )
        if (strange := next((token for token in prompt if not 0 <= token <= _LAST_TOKEN), None)) is not None:
            raise UsageError(
                f"prompt {place} has {strange}, which is no number of a token",
                hint="tokens are numbered from 0 up to the size of the vocabulary",
            )
        if capacity is not None and len(prompt) > capacity:
            raise UsageError(
                f"prompt {place} has {count(len(prompt), 'token')}, and the model has room for {capacity}",
                hint="shorten it",
            )
