"""Options of `generate`: prompts that are texts, what ends a sequence, and how tokens are drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..core.records import reading
from .common_options import Texts

if TYPE_CHECKING:
    from .. import Sampling, Tokenizer
    from ..core.manifest import Cascade


@dataclass(frozen=True)
class TextOptions:
    """Prompts that are texts, and texts that end a sequence."""

    prompt: Texts = None
    prompt_ids: Texts = None
    chat: bool = False
    stop: Texts = None

    def prompts_of(
        self, cascade: Cascade, prompts: list[list[int]], *, has_inputs: bool
    ) -> tuple[list[list[int]], Tokenizer | None]:
        """The given prompts and those that are texts; and the tokenizer, if there are texts.

        A model that `has_inputs` needs no prompt: it may say what sequences begin with.

        Raises:
            UsageError: there are no prompts, or the cascade has no tokenizer.
        """
        texts = texts_of(self.prompt)
        is_empty = has_inputs and not (texts or prompts or self.chat)
        prompts = [[]] if is_empty else prompts
        if self.chat == bool(texts or prompts):
            message = "--chat reads messages from the standard input" if self.chat else "there is no prompt"
            hint = "give --prompt TEXT, --prompt-ids N,N,..., --chat, or what the model hears or sees with --inputs"
            raise UsageError(message, hint=hint)
        if not (texts or self.chat or (is_empty and "tokenizer.json" in cascade.manifest.text_files)):
            return prompts, None
        from .. import Tokenizer

        tokenizer = Tokenizer(cascade)
        return [*prompts, *map(tokenizer.encode, texts)], tokenizer

    def stop_of(self, tokenizer: Tokenizer | None) -> tuple[list[int], list[str]]:
        """The token ids and the texts that end a sequence: a text that is one token, maybe a special one, has an id."""
        if tokenizer is None:
            return [number for word in self.stop or () for number in token_ids("--stop", word)], []
        encoded = (tokenizer.encode(text, is_whole=False) for text in self.stop or ())
        return [ids[0] for ids in encoded if len(ids) == 1], list(self.stop or ())


def texts_of(given: Texts) -> list[str]:
    """The texts that a command line names: of a file each line."""
    texts: list[str] = []
    for one in given or ():
        texts += [one] if file_of(one) is None else filter(str.strip, text_of(one).splitlines())
    return texts


def text_of(given: str) -> str:
    """A text, or that of the file that it names."""
    path, hint = file_of(given), "name a text file in UTF-8 after @"
    if path is None:
        return given
    with reading(path, "UTF-8", unread=hint, hint=hint):
        return path.read_text("utf-8")


def file_of(given: str | None) -> Path | None:
    """The file that is named in place of a text, as @FILE."""
    return Path(given[1:]) if given is not None and given.startswith("@") else None


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn. The seed is that of the command."""

    temperature: float = 0
    top_k: int = 0
    top_p: float = 1
    repetition_penalty: float = 1

    def sampling(self, seed: int) -> Sampling:
        from .. import Sampling

        return Sampling(**asdict(self), seed=seed)


def token_ids(option: str, text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        message = f"{option} {text!r} is not a comma-separated list of token ids"
        raise UsageError(message, hint=f"for example {option} 1,15,27")
    return [int(word) for word in words]
