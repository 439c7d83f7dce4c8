"""Sampled tokens are distributed as the logits of the whole model say, and depend on the seed alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import VOCABULARY, with_concat, without_caches

import graphcut
from graphcut import Cascade, Into, RunError, Sampling, UsageError, generate

from cases import each

PROMPT = [3, 1, 4, 1, 5, 3]
DRAWS = 4000
Scores = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    folder = tmp_path_factory.mktemp("sampling")
    onnx.save(with_concat(), folder / "model.onnx")
    return graphcut.split(folder / "model.onnx", Into(2), folder / "model.parts")


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    """What the whole model scores after the prompt."""
    path = tmp_path_factory.mktemp("whole") / "model.onnx"
    onnx.save(without_caches("seq"), path)
    feeds = {"input_ids": np.array([PROMPT]), "position_ids": np.arange(len(PROMPT))[None]}
    session = ort.InferenceSession(path)
    (found,) = session.run(["logits"], {one.name: feeds[one.name] for one in session.get_inputs()})
    return np.asarray(found[0, -1], np.float64)


def probabilities(logits: Scores, how: Sampling) -> list[float]:
    """By definition, one token at a time."""
    scores = [
        x if i not in PROMPT else x * how.repetition_penalty ** (1 if x < 0 else -1) for i, x in enumerate(logits)
    ]
    likely = sorted(range(VOCABULARY), key=lambda i: -scores[i])[: how.top_k or None]
    weights = {i: float(np.exp((scores[i] - scores[likely[0]]) / how.temperature)) for i in likely}
    total, before = sum(weights.values()), 0.0
    kept = {}
    for i in likely:
        if before < how.top_p * total:
            kept[i] = weights[i]
        before += weights[i]
    return [kept.get(i, 0.0) / sum(kept.values()) for i in range(VOCABULARY)]


def chi_square(drawn: Counter[int], expected: list[float]) -> float:
    """Pearson's statistic, in standard deviations above its mean (Wilson and Hilferty); rare tokens are one class."""
    common = [i for i, p in enumerate(expected) if p * DRAWS >= 8]
    rest = DRAWS * (1 - sum(expected[i] for i in common))
    pairs = [(drawn[i], expected[i] * DRAWS) for i in common]
    if rest > 1e-6:
        pairs.append((DRAWS - sum(drawn[i] for i in common), rest))
    freedom = len(pairs) - 1
    statistic = sum((found - right) ** 2 / right for found, right in pairs)
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


WAYS = {
    "temperature": Sampling(temperature=5),
    "top_k": Sampling(temperature=3, top_k=12),
    "top_p": Sampling(temperature=3, top_p=0.8),
    "repetition_penalty": Sampling(temperature=5, repetition_penalty=1.8),
    "all": Sampling(temperature=4, top_k=12, top_p=0.9, repetition_penalty=0.7),
}


@each("name", WAYS)
def test_drawn_tokens_pass_the_chi_square_test_against_the_whole_model(
    cascade: Cascade, logits: Scores, name: str
) -> None:
    how = replace(WAYS[name], seed=1)
    rows = generate(cascade, [PROMPT] * DRAWS, max_tokens=1, batch=200, sampling=how).all()
    drawn = Counter(token for row in rows for token in row)
    expected = probabilities(logits, how)
    assert {token for token in drawn if expected[token] == 0} == set()
    assert chi_square(drawn, expected) < 3
    assert chi_square(drawn, probabilities(logits, replace(how, temperature=1.2 * how.temperature))) > 4


def test_what_is_drawn_depends_on_the_seed_alone(cascade: Cascade) -> None:
    prompts = [[3, 1, 4], [9], [2, 7]]
    how = Sampling(temperature=5, seed=3)
    once = generate(cascade, prompts, max_tokens=12, sampling=how).all()
    assert generate(cascade, prompts, max_tokens=12, sampling=how, batch=1).all() == once
    assert generate(cascade, prompts, max_tokens=12, sampling=how, workers=2, via="processes").all() == once
    assert generate(cascade, prompts, max_tokens=12, sampling=replace(how, seed=4)).all() != once
    same = generate(cascade, [[9], [9]], max_tokens=12, sampling=how).all()
    assert same[0] != same[1], "each sequence draws for itself"


def test_little_temperature_and_one_token_are_greedy(cascade: Cascade) -> None:
    greedy = generate(cascade, [PROMPT], max_tokens=12).all()
    for how in (Sampling(temperature=1e-6), Sampling(temperature=5, top_k=1), Sampling(temperature=5, top_p=1e-9)):
        assert generate(cascade, [PROMPT], max_tokens=12, sampling=how).all() == greedy


def test_a_function_ends_a_sequence(cascade: Cascade) -> None:
    whole = generate(cascade, [[3], [9]], max_tokens=12).all()
    seen: list[tuple[int, int]] = []

    def ends(sequence: int, token: int) -> bool:
        seen.append((sequence, token))
        return sequence == 1 and sum(index == 1 for index, _ in seen) == 4

    stopped = generate(cascade, [[3], [9]], max_tokens=12, stop=ends)
    assert stopped.all() == [whole[0], whole[1][:4]]
    assert stopped.ends == {0: "max_tokens", 1: "stop"}
    assert [[token for index, token in seen if index == row] for row in (0, 1)] == [whole[0], whole[1][:4]]


@each(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", 10**400),  # of JSON, and no float
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e39),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_numbers_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{field} can't be {value}")):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_scores_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(RunError, match="no token can be drawn"):
        Sampling(temperature=1).choose(np.array([1, np.nan, 0], np.float32), [1], 0)
