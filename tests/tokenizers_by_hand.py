"""Small tokenizers of the kinds that Llama, Phi and Qwen have, made of the words of a few lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES

pytest.importorskip("tokenizers", reason="needs tokenizers")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LINES = (
    "The quick brown fox jumps over the lazy dog. What is the answer? It is the question.",
    "Быстрая лиса прыгает. Здравствуй, мир!",
    "こんにちは世界。",
    "नमस्ते दुनिया",
    "rockets 🚀 and families 👩‍👩‍👧 and flags 🇩🇪",
)
UNKNOWN = "<unk>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PHI = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def learned(words: Iterable[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces and the merges that make them: each beginning of a word of up to six letters."""
    letters = sorted({letter for word in words for letter in word})
    merges = dict.fromkeys((word[:i], word[i]) for word in words for i in range(1, min(len(word), 6)))
    return list(dict.fromkeys([*letters, *(a + b for a, b in merges)])), list(merges)


@cache
def qwen() -> Tokenizer:
    """Bytes as letters (GPT-2), split by a regular expression, without a first token."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces, merges = learned([word for line in LINES[:2] for word, _ in split.pre_tokenize_str(line)])
    names = dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(split.alphabet()), *pieces])
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = split
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


@cache
def llama(*added: str) -> Tokenizer:
    """As SentencePiece has it: `▁` for spaces, single bytes for what is unknown, `<s>` at the beginning."""
    pieces, merges = learned([f"▁{word}" for line in LINES[:2] for word in line.split()])
    names = [UNKNOWN, "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.add_special_tokens([UNKNOWN, "<s>", "</s>", *added])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def phi() -> Tokenizer:
    """As Phi-3: that of Llama with the tokens of a chat."""
    return llama("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")


KINDS: Mapping[str, Callable[[], Any]] = {"llama": llama, "phi": phi, "qwen": qwen}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "llama": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"},
    "phi": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "<|end|>", "chat_template": PHI},
    "qwen": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "chat_template": CHATML},
}


def write_tokenizer(kind: str, folder: Path) -> Tokenizer:
    """Write `tokenizer.json` and `tokenizer_config.json` of a kind."""
    made: Tokenizer = KINDS[kind]()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[kind]), encoding="utf-8")
    return made


def folder_with(kind: str, folder: Path, **files: object) -> Path:
    """The model of a decoder with a tokenizer and other JSON files beside it."""
    for file in (FIXTURES / "tiny-llama-fp32").iterdir():
        shutil.copy(file, folder)
    write_tokenizer(kind, folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "model.onnx"
