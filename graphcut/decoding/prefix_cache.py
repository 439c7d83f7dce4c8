"""States of sequences that have ended, for those that begin with the same tokens."""

from typing import Final

import numpy as np

from ..running.values import Array
from ..workers.executors.protocol import Origin
from .decoder import Decoder
from .decoding_memory import kept_bytes
from .token_sequences import SequenceBatch, TokenSequence

PIECE: Final = 64
"""With a cache, so many tokens of a prompt are fed at once, counted from its beginning, whatever is in the cache."""


class PrefixCache:
    """The sequences that have ended and whose states workers keep; those that were not used for longest leave first.

    The states of a sequence are continued after the tokens that it shares with a prompt: those that were fed in the
    same pieces, so that the answer is the same to the last bit. These are whole pieces of its own prompt, and all
    tokens of a model that reads one at a time. Where some states have no axis for tokens, as in a recurrent network, a
    sequence must be a prefix of the prompt as a whole. Nothing is kept where states are sent between parts, or an
    encoder reads the prompt, or of a sequence that has inputs of its own.
    """

    def __init__(self, decoder: Decoder, max_bytes: int) -> None:
        is_alike = not (decoder.sent or decoder.encoded)  # states depend on the tokens alone
        self.max_bytes = max_bytes if decoder.kept and is_alike else 0  #: of all states together.
        self.piece = decoder.most or PIECE if self.max_bytes else None  #: see `PIECE`; None without a cache.
        self._decoder = decoder
        states = [state for row in decoder.kept.values() for state in row]
        self._is_cuttable = all(s.axis is not None and s.start and s.start[s.axis] == 0 for s in states)
        # by number, the tokens of a sequence whose states can be continued, the number of all its tokens, and the bytes
        # of its states; the one that was used last is the last one.
        self._entries: dict[int, tuple[Array, int, int]] = {}
        self.dropped: set[int] = set()  #: sequences whose states are not needed any more.

    def origin(self, one: TokenSequence) -> Origin | None:
        """The sequence with the longest usable beginning of a prompt, whose last token is always computed."""
        prompt, piece = np.array(one.unfed[:-1]), self.piece or 1
        shared = {n: _shared(tokens, prompt) // piece * piece for n, (tokens, _, _) in self._entries.items()}
        usable = [number for number in shared if self._is_cuttable or shared[number] == self._entries[number][1]]
        best = max(usable, key=lambda number: shared[number], default=None)
        if best is None or not shared[best] or one.inputs:
            return None
        self._entries[best] = self._entries.pop(best)
        return Origin(best, self._entries[best][1], shared[best])

    def keep(self, batch: SequenceBatch) -> bool:
        """Keep the states of the only sequence of a batch, if they fit. What they begin with is not kept twice."""
        if self.piece is None or len(batch.sequences) > 1 or batch.sequences[0].inputs:
            return False
        (one,) = batch.sequences
        length = batch.held
        usable = length if self.piece == 1 else min(one.prompt_length, length) // self.piece * self.piece
        size = sum(kept_bytes(self._decoder, 1, length).values())
        if size > self.max_bytes or not usable or not (self._is_cuttable or usable == length):
            return False
        tokens = np.array(one.fed[:usable])
        for number, (other, _, _) in list(self._entries.items()):
            if self._is_cuttable and _shared(other, tokens) == len(other):
                self.drop(number)
        self._entries[batch.number] = tokens, length, size
        while sum(number for _, _, number in self._entries.values()) > self.max_bytes:
            self.drop(next(iter(self._entries)))
        return True

    def drop(self, number: int) -> None:
        self._entries.pop(number, None)
        self.dropped.add(number)


def _shared(a: Array, b: Array) -> int:
    """The number of tokens that both begin with."""
    length = min(len(a), len(b))
    return int(np.append(a[:length] != b[:length], [True]).argmax())
