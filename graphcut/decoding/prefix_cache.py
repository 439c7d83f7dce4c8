"""States of sequences that have ended, for those that begin with the same tokens."""

from typing import Any

import numpy as np

from ..workers.executors.protocol import Origin
from .decoder import Decoder
from .decoding_memory import state_bytes
from .token_sequences import SequenceBatch, TokenSequence


class PrefixCache:
    """The sequences that have ended and whose states workers keep; those that were not used for longest leave first.

    The states of a sequence are continued after the tokens that it shares with a prompt. Where some have no axis for
    tokens, as in a recurrent network, it must be a prefix of the prompt as a whole. Nothing is kept where states are
    sent between parts.
    """

    def __init__(self, decoder: Decoder, max_bytes: int) -> None:
        self.max_bytes = max_bytes if decoder.kept and not decoder.sent else 0  #: of all states together.
        self._decoder = decoder
        self._is_cuttable = all(state.axis is not None for row in decoder.kept.values() for state in row)
        # by number, the tokens of a sequence and the bytes of its states; the one that was used last is the last one.
        self._entries: dict[int, tuple[np.ndarray[Any, Any], int]] = {}
        self.dropped: set[int] = set()  #: sequences whose states are not needed any more.

    def origin(self, one: TokenSequence) -> Origin | None:
        """The sequence with the longest usable beginning of a prompt, whose last token is always computed."""
        prompt = np.array(one.unfed[:-1])
        shared = {number: _shared(tokens, prompt) for number, (tokens, _) in self._entries.items()}
        usable = [number for number in shared if self._is_cuttable or shared[number] == len(self._entries[number][0])]
        best = max(usable, key=lambda number: shared[number], default=None)
        if best is None or not shared[best]:
            return None
        self._entries[best] = self._entries.pop(best)
        return Origin(best, len(self._entries[best][0]), shared[best])

    def keep(self, batch: SequenceBatch) -> bool:
        """Keep the states of the only sequence of a batch, if they fit. What they begin with is not kept twice."""
        tokens = np.array(batch.sequences[0].fed)
        size = sum(state_bytes(self._decoder, 1, len(tokens)).values()) if self.max_bytes else 1
        if size > self.max_bytes:
            return False
        for number, (other, _) in list(self._entries.items()):
            if self._is_cuttable and _shared(other, tokens) == len(other):
                self.drop(number)
        self._entries[batch.number] = tokens, size
        while sum(number for _, number in self._entries.values()) > self.max_bytes:
            self.drop(next(iter(self._entries)))
        return True

    def drop(self, number: int) -> None:
        if self._entries.pop(number, None):
            self.dropped.add(number)


def _shared(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """The number of tokens that both begin with."""
    length = min(len(a), len(b))
    return int(np.append(a[:length] != b[:length], [True]).argmax())
