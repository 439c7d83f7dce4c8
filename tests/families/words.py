"""A tokenizer of 61 words, as a `tokenizer.json` of the tokenizers library, written without it."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<pad>", "</s>", "<unk>", "<s>", "<|startoftranscript|>", "<|notimestamps|>")
WORDS = (*SPECIAL, *(a + b for a in "bdfghklmnp" for b in ("a", "e", "i", "o", "u")), *"aeiou")
VOCABULARY = len(WORDS)


def write_tokenizer(folder: Path, *, last: str | None, first: str | None = None) -> None:
    """Words apart by spaces; `first` and `last` are added around a text."""
    before, after = ([{"SpecialToken": {"id": token, "type_id": 0}}] if token else [] for token in (first, last))
    texts = [[{"Sequence": {"id": name, "type_id": i}}] for i, name in enumerate("AB")]
    template = {
        "single": [*before, *texts[0], *after],
        "pair": [*before, *texts[0], *after, *texts[1], *after],
    }
    named = {token: {"id": token, "ids": [WORDS.index(token)], "tokens": [token]} for token in (first, last) if token}
    added = [
        {"id": i, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, token in enumerate(SPECIAL)
    ]
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing", **template, "special_tokens": named},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
