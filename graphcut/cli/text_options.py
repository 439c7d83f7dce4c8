"""Options of prompts that are texts and of how tokens are drawn, and the texts that are made of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..core.errors import UsageError
from .generated import Chat, Output

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..running.decoding.sampling import Sampling


@dataclass(frozen=True)
class TextOptions:
    """Prompts that are texts, and texts that end a sequence."""

    prompt: Annotated[list[str] | None, Option(metavar="TEXT", help="Text of a prompt. Repeatable.")] = None
    prompts: Annotated[Path | None, Option(metavar="FILE", help="A text file with a prompt in each line.")] = None
    chat: Annotated[bool, Option("--chat", help="Answer each line of the standard input, as a conversation.")] = False
    stop: Annotated[list[str] | None, Option(metavar="TEXT", help="Text that ends a sequence. Repeatable.")] = None

    def output(self, cascade: Cascade, prompts: list[list[int]], stop_ids: Sequence[int]) -> Output | Chat:
        """How the given prompts and those that are texts are continued.

        Raises:
            UsageError: there are no prompts, or the cascade has no tokenizer.
        """
        texts = self._texts()
        if self.chat == bool(texts or prompts):
            raise UsageError(
                "--chat reads messages from the standard input" if self.chat else "there is no prompt",
                hint="give either --prompt TEXT, --prompts FILE, --prompt-ids N,N,... or --chat",
            )
        if not (texts or self.stop or self.chat):
            return Output(prompts, stop_ids, None, ())
        from ..running.text.tokenizer import Tokenizer

        tokenizer, stop = Tokenizer(cascade), self.stop or ()
        if self.chat:
            return Chat(tokenizer, stop_ids, stop)
        return Output([*prompts, *map(tokenizer.encode, texts)], stop_ids, tokenizer, stop)

    def _texts(self) -> list[str]:
        if self.prompts is None:
            return list(self.prompt or ())
        try:
            lines = self.prompts.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"{self.prompts} can't be read: {why}", hint="name a text file in UTF-8") from None
        return [*(self.prompt or ()), *(line for line in lines if line.strip())]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn. The seed is that of the command."""

    temperature: Annotated[
        float, Option(metavar="T", min=0, help="Draw tokens at random, with scores divided by T; 0: the most likely.")
    ] = 0
    top_k: Annotated[int, Option(metavar="K", min=0, help="Draw from the K most likely tokens; 0: all.")] = 0
    top_p: Annotated[float, Option(metavar="P", min=0, max=1, help="Draw from the likeliest tokens that sum to P.")] = 1
    repetition_penalty: Annotated[
        float, Option(metavar="X", min=0, help="Divide the scores of tokens that were there by X.")
    ] = 1

    def sampling(self, seed: int) -> Sampling:
        """How tokens are drawn."""
        from ..running.decoding.sampling import Sampling

        return Sampling(**asdict(self), seed=seed)
