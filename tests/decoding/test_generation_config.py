"""Tokens that a model's files say must come or must not: in whatever way the others are chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import VOCABULARY, with_concat, without_caches

import graphcut
from graphcut import Cascade, Into, RecordError, Sampling, UsageError, Via, generate
from graphcut.decoding.generation_config import GenerationConfig

from cases import each
from families import FAMILIES

SAYS: dict[str, Any] = {
    "suppress_tokens": [-1, 3, 5, VOCABULARY],
    "begin_suppress_tokens": [7, 9],
    "bad_words_ids": [[2], [11, 12], [1]],
    "eos_token_id": 1,
}
NEVER, FIRST = {2, 3, 5}, {7, 9}


def decoder(folder: Path, **says: object) -> Cascade:
    onnx.save(with_concat(), folder / "model.onnx")
    (folder / "generation_config.json").write_text(json.dumps(says), encoding="utf-8")
    return graphcut.split(folder / "model.onnx", Into(2), folder / "model.parts")


def by_hand(folder: Path, prompt: list[int], number: int, second: int | None = None) -> list[int]:
    """The most likely of the tokens that may come, by the model that is fed the whole text."""
    onnx.save(without_caches("seq"), folder / "whole.onnx")
    session, ids = ort.InferenceSession(folder / "whole.onnx"), [*prompt]
    reads = {one.name for one in session.get_inputs()}
    while len(ids) < len(prompt) + number:
        feeds = {"input_ids": np.array([ids]), "position_ids": np.arange(len(ids))[None]}
        scores = session.run(["logits"], {name: feeds[name] for name in reads})[0][0, -1]
        is_first = len(ids) == len(prompt) + (second is not None)
        may = set(range(VOCABULARY)) - NEVER - (FIRST if is_first else set())
        ids.append(second if second is not None and len(ids) == 1 else max(may, key=lambda token: scores[token]))
    return ids[len(prompt) :]


@each("name", ["whisper", "marian, merged"])
def test_parts_give_the_tokens_of_the_loop_by_hand(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder, inputs = family.write(tmp_path / "m"), family.inputs(3)
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    expected = family.reference(folder, inputs, 8)
    ways: tuple[tuple[Via, int], ...] = (("threads", 1), ("threads", 2), ("processes", 2))
    for via, workers in ways:
        found = generate(cascade, [[]], inputs=inputs, max_tokens=8, stop=[1], via=via, workers=workers)
        assert found.all() == expected


def test_tokens_that_must_not_come_do_not_together_alone_or_proposed(tmp_path: Path) -> None:
    cascade, prompts = decoder(tmp_path, **SAYS), [[15, 27, 4], [6, 6, 8], [6, 30, 20]]
    expected = [by_hand(tmp_path, prompt, 8) for prompt in prompts]
    assert generate(cascade, prompts, max_tokens=8).all() == expected
    assert generate(cascade, prompts, max_tokens=8, draft="lookup").all() == expected
    assert generate(cascade, prompts, max_tokens=8, draft=cascade, batch=1).all() == expected
    tokens = generate(cascade, prompts, max_tokens=40, sampling=Sampling(temperature=9)).all()
    assert not {token for row in tokens for token in row} & NEVER
    assert not {row[0] for row in tokens} & FIRST


def test_a_prompt_of_one_token_is_followed_by_the_one_that_is_forced(tmp_path: Path) -> None:
    cascade = decoder(tmp_path, **SAYS, forced_bos_token_id=33)
    assert generate(cascade, [[4]], max_tokens=6).all() == [by_hand(tmp_path, [4], 6, second=33)]
    assert generate(cascade, [[4, 9]], max_tokens=6).all() == [by_hand(tmp_path, [4, 9], 6)]


@each(
    "files, begin",
    [
        ({"generation_config": {"decoder_start_token_id": 4, "forced_decoder_ids": [[2, 6], [1, 5]]}}, (4, 5, 6)),
        ({"generation_config": {"decoder_start_token_id": 4, "forced_decoder_ids": [[1, None], [2, 6]]}}, ()),
        ({"generation_config": {"eos_token_id": [1]}, "config": {"decoder_start_token_id": 0}}, (0,)),
        ({"config": {"decoder_start_token_id": 7, "forced_decoder_ids": None}}, (7,)),
        ({"generation_config": {}}, ()),
        ({"config": {"time_step_limit": [0, float("inf")], "decoder_start_token_id": 3}}, (3,)),
    ],
)
def test_the_first_tokens_are_those_of_the_first_file_that_names_any(
    files: dict[str, Any], begin: tuple[int, ...], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    onnx.save(with_concat(), tmp_path / "model.onnx")
    assert GenerationConfig(graphcut.split(tmp_path / "model.onnx", Into(2))).begin == begin


def test_a_file_that_says_what_can_not_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"generation_config\.json: .*suppress_tokens"):
        generate(decoder(tmp_path, suppress_tokens=["a"]), [[1]], max_tokens=1)


@each("name", ["t5", "marian, merged"])
def test_an_encoder_reads_each_prompt_and_the_decoder_begins_as_the_file_says(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder, texts = family.write(tmp_path / "m"), [family.inputs(seed) for seed in range(3)]
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    expected = [family.reference(folder, one, 8)[0] for one in texts]
    prompts = [one["input_ids"][0].tolist() for one in texts]
    assert generate(cascade, prompts, max_tokens=8, stop=[1], cache_bytes=1 << 20).all() == expected
    with graphcut.DecodingService(cascade) as service:
        assert [*service.stream(prompts[1], max_tokens=8, stop=[1])] == expected[1]
    given = generate(cascade, [[0], []], inputs=texts[0], max_tokens=8, stop=[1]).all()
    assert given == [expected[0]] * 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = FAMILIES["t5"].write(tmp_path / "m")
    for name in ("generation_config", "config"):
        (folder / f"{name}.json").unlink()
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    with pytest.raises(UsageError, match="the token that the decoder begins with is not known") as info:
        generate(cascade, [[7, 1]], max_tokens=2)
    assert "decoder_start_token_id" in str(info.value.hint)
    with pytest.raises(UsageError, match="a memory limit does not count what an encoder makes"):
        generate(cascade, [[7, 1]], max_tokens=2, memory_bytes=1 << 30)
