"""The tokenizer of a language model, its chat template, and the tokens that end a text.

They are read from the files that `split` copies into the folder of a cascade, see `TextFile`. The packages `tokenizers`
and `jinja2` are needed here alone, and are imported when they are used.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import RecordError, UsageError, needing
from ..core.file_checks import check_unchanged
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..core.records import json_beside
from ..core.states import LOGITS
from ..running.sampling import Sampling
from .genai_config import encoder_roles
from .generation_config import GenerationConfig
from .text_stream import TextStream


class Tokenizer:
    """The tokenizer of a cascade: text to tokens and back.

    Attributes:
        stop: the ids of the tokens that end a text, as the first of these files says that names any:
            `genai_config.json`, `generation_config.json` (or without it `config.json`), `tokenizer_config.json`.
        sampling: how tokens are drawn, as the first two say. `generate` takes what it is given instead.
        max_context: the number of tokens that the model was made for, as the first or the last says, or `config.json`;
            None if unknown.
    """

    def __init__(self, cascade: CascadeLike) -> None:
        """Read the files.

        Raises:
            UsageError: the cascade has no tokenizer, or a package is missing.
            RunError: a file is missing, or was changed after the model was cut.
            RecordError: a file can't be understood.
        """
        cascade = open_cascade(cascade, check_files=False)  # of its files those of the tokenizer are read
        files: dict[str, Path] = {name: cascade.root / name for name in cascade.manifest.text_files}
        if "tokenizer.json" not in files:
            hint = "put the tokenizer's files beside the model and split it again, or give token ids as `prompts`"
            raise UsageError(f"{cascade.path} names no tokenizer.json, and text needs one", hint=hint)
        check_unchanged(cascade, cascade.manifest.text_files)
        path, tokenizers = files["tokenizer.json"], package("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more specific
            raise RecordError(f"{path} can't be read: {error}", hint="take the file of the model") from error
        self._check(path, cascade)
        self._tokenizer.no_padding()
        self._files = files
        self._has_encoder = bool(encoder_roles(cascade))
        self._settings = self._json("tokenizer_config.json")
        self.sampling = self._sampling()
        #: the number of tokens of a text of which a model of sentences makes a vector; None for no limit.
        self.most: int | None = self._json("sentence_bert_config.json").get("max_seq_length")
        genai = self._json("genai_config.json").get("model", {})
        self.stop = self._stop_tokens(cascade, genai.get("eos_token_id"))
        decoder = (self._json("config.json"), "max_target_positions")  # as Whisper's is called
        lengths = ((genai, "context_length"), (self._settings, "model_max_length"), decoder)
        # A larger number means that a tokenizer knows no limit.
        self.max_context = next((int(of[name]) for of, name in lengths if 0 < of.get(name, 0) <= 10**9), None)

    def _check(self, path: Path, cascade: Cascade) -> None:
        """Refuse the tokenizer of a model with more tokens.

        One with fewer tokens than logits is usual: models are padded. Tokens that were added to a tokenizer later may
        have no logits.
        """
        logits = [name for name in cascade.manifest.writes if LOGITS.search(name.lower())]
        scored = (cascade.tensors[logits[0]].shape or (None,))[-1] if len(logits) == 1 else None
        largest = max(self._tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
        if isinstance(scored, int) and largest >= scored:
            message = f"{path} has token ids up to {largest:,}, and the model scores {scored:,} tokens"
            raise UsageError(message, hint="put the tokenizer of this model there")

    def encode(self, text: str, *, is_whole: bool = True, most: int | None = None) -> list[int]:
        """The tokens of a text, at most so many, with those that the tokenizer puts around one, if it `is_whole`."""
        if most is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(most)
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=is_whole).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stream(self, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> TextStream:
        """The text of the tokens that follow those of `prompt`, as they come; they don't if an encoder reads it."""
        return TextStream(self.decode, () if self._has_encoder else prompt, stop)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the model answers.

        Args:
            messages: each with a `role` (`system`, `user` or `assistant`) and its `content`.

        Raises:
            UsageError: there is no chat template, it refuses the messages, or a package is missing.
        """
        jinja2 = package("jinja2")
        sandbox = import_module("jinja2.sandbox").ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: f"{datetime.now():{form}}"}  # noqa: DTZ005
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        given: dict[str, Any] = {name: _text_of(self._settings.get(name)) for name in names}
        given |= {"messages": messages, "add_generation_prompt": True, "tools": None}
        try:
            text = sandbox.from_string(self._template()).render(given)
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            message = f"the chat template of {self._files['tokenizer.json'].parent} fails: {error}"
            raise UsageError(message, hint="see which roles, and in which order, it expects") from None
        return self.encode(text, is_whole=False)

    def _template(self) -> str:
        for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
            if name in self._files:
                whole = name.endswith(".jinja")
                found = self._files[name].read_text("utf-8") if whole else self._json(name).get("chat_template")
                if isinstance(found, list):  # several, by name
                    found = next((one["template"] for one in found if one.get("name") == "default"), None)
                if isinstance(found, str):
                    return found
        hint = "use `encode(...)`, without a conversation"
        raise UsageError(f"{self._files['tokenizer.json'].parent} has no chat template", hint=hint)

    def _stop_tokens(self, cascade: Cascade, genai: object) -> frozenset[int]:
        ids = genai if isinstance(genai, list) else [genai]
        if found := [number for number in ids if isinstance(number, int)] or GenerationConfig(cascade).stop:
            return frozenset(found)
        number = self._tokenizer.token_to_id(_text_of(self._settings.get("eos_token")))
        return frozenset(() if number is None else (number,))

    def _sampling(self) -> Sampling:
        found = self._json("genai_config.json").get("search") or self._json("generation_config.json")
        names = ("repetition_penalty", *(("temperature", "top_k", "top_p") if found.get("do_sample") else ()))
        numbers = {name: found[name] for name in names if isinstance(found.get(name), int | float)}
        return Sampling(**({"temperature": 1.0} if found.get("do_sample") else {}) | numbers)

    def _json(self, name: str) -> dict[str, Any]:
        path = self._files.get(name)
        return {} if path is None else json_beside(path)


def package(name: str) -> Any:  # noqa: ANN401 - a module
    """The package of that name, which the extra `text` installs."""
    with needing("text", "text", ", or give token ids as `prompts`"):
        return import_module(name)


def _refuse(message: str) -> None:
    raise UsageError(f"the chat template refuses the conversation: {message}", hint="change its messages")


def _text_of(token: object) -> str:
    """A special token, which is written as a text or as a record."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")
