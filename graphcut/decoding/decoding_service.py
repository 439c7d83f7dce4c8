"""Decoding for many callers: sequences begin and end at any time, and share the workers of one cascade."""

import atexit
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Unpack

from ..core.errors import RunError
from ..core.manifest import CascadeLike
from ..running.sampling import GREEDY, Sampling
from ..workers.pipelined import EXIT_S
from .decoder import DecodingSettings
from .generation import FinishReason, Generation
from .token_sequences import TokenSequence, token_ids


class TokenStream:
    """The tokens of a sequence as they are generated: iterate over them once. An error of the sequence is raised."""

    def __init__(self, sequence: TokenSequence, stop: Collection[int]) -> None:
        self.sequence = sequence
        self.end: FinishReason | None = None  #: why it ended; None while there are more tokens.
        self.is_closed = False  #: nobody wants more tokens.
        self.stop = frozenset(stop)  #: the tokens that end it.
        self.found: SimpleQueue[tuple[int, FinishReason | None] | BaseException] = SimpleQueue()

    def __iter__(self) -> Iterator[int]:
        """The next tokens, each when it is there."""
        while self.end is None:
            found = self.found.get()
            if isinstance(found, BaseException):
                self.end = "failed"
                raise found
            token, self.end = found
            yield token

    def close(self) -> None:
        """End the sequence at its next token, which frees what it holds."""
        self.is_closed = True


class DecodingService(AbstractContextManager["DecodingService"]):
    """A decoder that many callers use at the same time, from any thread. A context manager; or call `close`.

    Attributes:
        generation: how the decoding goes: its log, its workers, its memory.
        streams: by index, the sequences that have not ended.
        error: why nothing is decoded any more; None as long as it goes on.
    """

    def __init__(self, cascade: CascadeLike, *, most: int = 8, **settings: Unpack[DecodingSettings]) -> None:
        """Load the parts. Up to `most` sequences share a step; any number may wait.

        Those that can't share steps, see `generate`, take turns.
        """
        self.streams: dict[int, TokenStream] = {}
        self.error: BaseException | None = None
        self._lock = Lock()
        self._numbers = count()
        self._inbox: SimpleQueue[TokenStream | None] = SimpleQueue()
        settings.setdefault("window", most)
        self.generation = Generation(
            cascade, (), self._later(), most, batch=most, stop=self._is_last, on_error="skip", settings=settings
        )
        self._thread = Thread(target=self._work, name="graphcut decoding", daemon=True)
        atexit.register(self.close, EXIT_S)  # as of a pipeline
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stop: Collection[int] = (),
        sampling: Sampling = GREEDY,
        top: int | None = None,
        inputs: Mapping[str, object] | None = None,
        name: str = "the prompt",
    ) -> TokenStream:
        """The tokens after `prompt`: at most `max_tokens`, up to one of those in `stop`.

        The same seed of `sampling` draws the same tokens again. With `top` the log probabilities of each token and of
        so many of the likeliest are in `sequence.scores`. `inputs` take the place of those that the service has: each
        must be among these. Errors call the prompt by its `name`.

        Raises:
            UsageError: the prompt is empty or too long, or one of `inputs` is none of the service's.
            RunError: nothing is decoded any more.
        """
        tokens = token_ids(prompt)
        sequence = TokenSequence(next(self._numbers), tokens, max_tokens, sampling, draws=0, top=top, name=name)
        stream = TokenStream(sequence, stop)
        self.generation.begin(stream.sequence, inputs or {})
        with self._lock:
            if self.error is not None:
                raise self.error
            self.streams[stream.sequence.index] = stream
            self._inbox.put(stream)
        return stream

    def close(self, wait_s: float | None = None) -> None:
        """End all sequences, and the workers. Waits until they have ended, or so long."""
        with self._lock:
            for stream in self.streams.values():
                stream.close()
            self._inbox.put(None)
        self._thread.join(wait_s)

    def _later(self) -> Iterator[TokenSequence | None]:
        """The sequences that are asked for. None while there is none and others go on; without others, it waits."""
        begun = set[int]()
        while True:
            for index in self.generation.errors.keys() & self.streams.keys():
                self._ended(index).found.put(self.generation.errors.pop(index))
            begun &= self.streams.keys()
            try:
                stream = self._inbox.get(block=not begun)
            except Empty:
                yield None
                continue
            if stream is None:
                return
            begun.add(stream.sequence.index)
            yield stream.sequence

    def _is_last(self, index: int, token: int) -> bool:
        return self.streams[index].is_closed or token in self.streams[index].stop

    def _work(self) -> None:
        error: BaseException = RunError("the service was closed")
        try:
            for index, token in self.generation:
                end = self.generation.ends.get(index)
                (self.streams[index] if end is None else self._ended(index)).found.put((token, end))
        except BaseException as caught:  # noqa: BLE001 - it is raised where tokens are asked for
            error = caught
        with self._lock:
            self.error = error
        for stream in self.streams.values():
            stream.found.put(error)
        atexit.unregister(self.close)

    def _ended(self, index: int) -> TokenStream:
        with self._lock:
            self.generation.ends.pop(index)
            return self.streams.pop(index)
