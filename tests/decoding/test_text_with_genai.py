"""Prompts that are texts: at temperature 0 a cascade gives the tokens that ONNX Runtime GenAI gives for the model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import graphcut
from graphcut import Into, Sampling, Tokenizer

from cases import each
from tokenizers_by_hand import KINDS, LINES, folder_with

engine = pytest.importorskip("onnxruntime_genai", reason="needs onnxruntime-genai", exc_type=ImportError)
TOKENS = 10


def prompts() -> list[str]:
    """Fifty mixtures of scripts and emoji."""
    chance = random.Random(3)  # noqa: S311 - a choice of words
    words = [word for line in LINES for word in line.split()]
    return [" ".join(chance.choices(words, k=chance.randrange(1, 7))) for _ in range(50)]


def continued(model: object, prompt: Sequence[int], penalty: float) -> list[int]:
    """What GenAI appends, greedily."""
    parameters = engine.GeneratorParams(model)
    length = len(prompt) + TOKENS
    parameters.set_search_options(max_length=length, do_sample=False, repetition_penalty=penalty)
    generator = engine.Generator(model, parameters)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


@each("penalty", [1.0, 1.3])
@each("kind", KINDS)
def test_tokens_after_a_text_are_those_of_genai(tmp_path: Path, kind: str, penalty: float) -> None:
    path = folder_with(kind, tmp_path)
    config = json.loads((tmp_path / "genai_config.json").read_bytes())
    config["model"]["type"] = {"llama": "llama", "phi": "phi3", "qwen": "qwen2"}[kind]
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    cascade = graphcut.split(path, Into(2))
    tokenizer, model = Tokenizer(cascade), engine.Model(str(tmp_path))
    ids = [tokenizer.encode(text) for text in prompts()]
    made = graphcut.generate(
        cascade, ids, max_tokens=TOKENS, stop=tokenizer.stop, sampling=Sampling(repetition_penalty=penalty)
    )
    # GenAI leaves the token out that ends a text.
    found = [row[:-1] if row[-1] in tokenizer.stop else row for row in made.all()]
    assert found == [continued(model, prompt, penalty) for prompt in ids]


def test_genai_reads_the_same_tokens_from_a_text(tmp_path: Path) -> None:
    path = folder_with("qwen", tmp_path)
    tokenizer = Tokenizer(graphcut.split(path, Into(2)))
    theirs = engine.Tokenizer(engine.Model(str(tmp_path)))
    for text in prompts():
        assert tokenizer.encode(text) == [int(token) for token in theirs.encode(text)]
