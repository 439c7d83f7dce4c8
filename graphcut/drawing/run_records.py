"""The document that `generate --json` prints."""

from collections.abc import Sequence

import msgspec


class SequenceRecord(msgspec.Struct, frozen=True):
    """A prompt, the tokens generated for it, and why the sequence ended."""

    prompt: Sequence[int]  #: its token ids.
    tokens: Sequence[int]  #: the generated token ids.
    text: str | None  #: their text; null if prompts are token ids.
    end: str  #: why it ended: `stop`, `max_tokens`, `full` or `failed`.
    error: str | None  #: the message, if it failed.


class PartRunRecord(msgspec.Struct, frozen=True):
    """A part: the number of its steps, the seconds they took, and the seconds that requests waited for its worker."""

    file: str  #: its file name.
    steps: int  #: number of its steps.
    run_s: float  #: seconds that they took.
    waited_s: float  #: seconds that requests waited for its worker.


class DeathRecord(msgspec.Struct, frozen=True):
    """A worker that ended."""

    worker: str  #: its name.
    why: str  #: why it ended.


class GenerationRecord(msgspec.Struct, frozen=True, tag_field="format", tag="graphcut.generation/1"):
    """Generated sequences; `tokens_per_s` is the rate after the first token, null if there is only one."""

    sequences: tuple[SequenceRecord, ...]  #: one for each prompt.
    first_token_s: float | None  #: seconds until the first token; null if there is none.
    #: rate of the prompt, once parts are loaded; null if there are several, or beams.
    prompt_tokens_per_s: float | None
    tokens_per_s: float | None  #: rate after the first token; null if there is only one, or beams.
    reused_tokens: int  #: tokens of prompts whose states were kept, and not computed again.
    parts: tuple[PartRunRecord, ...]  #: one for each part.
    deaths: tuple[DeathRecord, ...]  #: workers that ended.
