"""What a model's files say of the tokens that it generates: `generation_config.json`, or without it `config.json`.

Both are those of Hugging Face. What a field means is what transformers does with it.
"""

from itertools import count, takewhile
from typing import Final, Literal

import msgspec

from ..core.file_checks import text_of
from ..core.manifest import Cascade, TextFile
from ..running.sampling import TokenRules

_FILES: Final[tuple[TextFile, ...]] = ("generation_config.json", "config.json")


class _Content(msgspec.Struct, frozen=True):
    """The fields of either file that count here. Null is as good as nothing."""

    decoder_start_token_id: int | None = None
    forced_decoder_ids: list[tuple[int, int | None]] | None = None
    forced_bos_token_id: int | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    bad_words_ids: list[list[int]] | None = None
    eos_token_id: int | list[int] | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None


class GenerationConfig:
    """These files of a cascade.

    Attributes:
        begin: the tokens that the decoder of an encoder begins with; empty if unknown, or if one is left open, such as
            that of the language.
        rules: tokens that must come or must not.
        stop: the tokens that end a sequence; empty if unknown.
        length_penalty: what beam search raises lengths to.
        early_stopping: whether it ends with as many texts as it is wide; `never`: only if no better one is possible.
    """

    def __init__(self, cascade: Cascade) -> None:
        """Read the files, and compare them with their digests first. Raises RecordError, RunError."""
        there = (name for name in _FILES if name in cascade.manifest.text_files)
        found: list[_Content] = [text_of(cascade, name, _Content) for name in there] or [_Content()]
        said = found[0]
        starts = (one.decoder_start_token_id for one in found)
        forced = dict(said.forced_decoder_ids or ())  # those of the places from 1 on count, up to one that is not named
        later = (forced[place] for place in takewhile(forced.__contains__, count(1)))
        tokens = (next((start for start in starts if start is not None), None), *later)
        self.begin = tuple(token for token in tokens if token is not None) if None not in tokens else ()
        self.length_penalty = 1.0 if said.length_penalty is None else said.length_penalty
        self.early_stopping = said.early_stopping or False
        stop = said.eos_token_id
        self.stop = frozenset(stop if isinstance(stop, list) else () if stop is None else (stop,))
        words = (word[0] for word in said.bad_words_ids or () if len(word) == 1)
        never = (*(said.suppress_tokens or ()), *(word for word in words if word not in self.stop))
        self.rules = TokenRules(never, tuple(said.begin_suppress_tokens or ()), said.forced_bos_token_id)
