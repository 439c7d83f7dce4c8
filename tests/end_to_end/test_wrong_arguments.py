"""Arguments that the library does not know are refused where they are given, and the hint says what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import with_concat

import graphcut
from graphcut import Cascade, Into, UsageError

from cases import each


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(with_concat(masked=True), path)
    return graphcut.split(path, Into(2), path.parent / "parts")


@each(
    ("call", "name", "hint"),
    [
        (lambda c, **more: graphcut.generate(c, [[1]], max_tokens=1, **more), "memory", "did you mean 'memory_bytes'?"),
        (lambda c, **more: graphcut.generate(c, [[1]], max_tokens=1, **more), "temperature", "it takes inputs, "),
        (graphcut.DecodingService, "max_contex", "did you mean 'max_context'?"),
        (lambda c, **more: [*graphcut.stream(c, [], **more)], "worker", "did you mean 'workers'? it takes via, "),
        (graphcut.Pipeline, "overlaps", "did you mean 'overlap'?"),
    ],
)
def test_a_keyword_argument_that_is_not_known_is_refused(
    decoder: Cascade, call: Callable[..., Any], name: str, hint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(decoder, **{name: 1})
    assert str(caught.value) == f"unexpected keyword argument {name!r}"
    (note,) = caught.value.__notes__
    assert note.startswith(f"hint: {hint}")


FEED = {"x": np.ones((2, 4), np.float32)}


@each(
    ("call", "argument", "hint"),
    [
        (lambda c, w: graphcut.shard(c.source, ranks=2, mode=w), "mode", "exact, sum"),
        (lambda c, w: graphcut.split_by_rank(c.source, ranks=2, mode=w), "mode", "exact, sum"),
        (lambda c, w: graphcut.shard(c.source, ranks=2, weights=w), "weights", "copy, share"),
        (lambda c, w: graphcut.split(c.source, Into(2), weights=w), "weights", "copy, share"),
        (lambda c, w: graphcut.extract(c.source, "m.onnx", weights=w), "weights", "copy, share"),
        (lambda c, w: graphcut.extract(c.source, "m.onnx", dead_inputs=w), "dead_inputs", "keep, drop"),
        (lambda c, w: [*graphcut.stream(c, [FEED], on_error=w)], "on_error", "raise, skip"),
        (lambda c, w: [*graphcut.Runner(c).run_all([FEED], on_error=w)], "on_error", "raise, skip"),
        (lambda c, w: graphcut.generate(c, [[1]], max_tokens=1, on_error=w), "on_error", "raise, skip"),
        (lambda c, w: graphcut.Pipeline(c, via=w), "via", "threads, processes, ray"),
        (lambda _, w: graphcut.SessionConfig(optimize=w), "optimize", "none, basic, all"),
        (lambda c, w: graphcut.bench(c, FEED, optimize=w), "optimize", "none, basic, all"),
        (lambda c, w: graphcut.default_dims(graphcut.analyze(c.source), profile=w), "profile", "prefill, decode"),
        (lambda c, w: graphcut.export(c, "there", to=w), "to", "cpp, genai, js, "),
    ],
)
@each("word", ["some", 1])
def test_a_word_that_an_argument_does_not_have_is_refused(
    decoder: Cascade, call: Callable[..., Any], argument: str, hint: str, word: object
) -> None:
    with pytest.raises(UsageError) as caught:
        call(decoder, word)
    assert str(caught.value) == f"`{argument}` can't be {word!r}"
    assert caught.value.hint.startswith(f"it is one of {hint}")


def test_the_word_that_was_probably_meant_is_named(decoder: Cascade) -> None:
    with pytest.raises(UsageError) as caught:
        graphcut.shard(decoder.source, ranks=2, mode="sums")  # type: ignore[arg-type]
    assert caught.value.hint == "did you mean 'sum'? it is one of exact, sum"


@each("size", ["auto2", 0, 1.5])
def test_micro_batches_have_a_number_of_examples_or_one_that_follows(decoder: Cascade, size: object) -> None:
    with pytest.raises(UsageError, match=f"a batch can't be divided into pieces of {size}") as caught:
        graphcut.Pipeline(decoder, micro_batch=size)  # type: ignore[arg-type]
    assert caught.value.hint == "take 1 or more, or 'auto'"


@each(
    ("options", "message", "hint"),
    [
        ({"ways": ["threds"]}, "there is no way 'threds' to run a cascade", "did you mean 'threads'? choose from "),
        ({"rounds": 0}, "can't measure in 0 rounds", "take 1 or more"),
    ],
)
def test_a_benchmark_refuses_what_it_can_not_measure(
    decoder: Cascade, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        graphcut.bench(decoder, FEED, **options)
    assert str(caught.value) == message
    assert caught.value.hint.startswith(hint)


def test_a_measurement_takes_one_round_or_more(decoder: Cascade) -> None:
    with pytest.raises(UsageError) as caught:
        graphcut.measure(graphcut.load(decoder.source), rounds=0)
    assert (str(caught.value), caught.value.hint) == ("can't measure in 0 rounds", "take 1 or more")


@each(
    ("call", "given", "wanted", "hint"),
    [
        (lambda path: graphcut.run(path, FEED), "model", "cascade", "`split(...)` makes one"),
        (lambda path: graphcut.merge(path, "whole.onnx"), "model", "cascade", "`split(...)` makes one"),
        (lambda path: graphcut.bench(path, FEED), "plan", "cascade", "`split(...)` makes one"),
        (graphcut.open_cascade, "plan", "cascade", "`split(...)` makes one"),
        (graphcut.read_plan, "model", "plan", "`save_plan(...)` makes one"),
        (graphcut.read_plan, "cascade", "plan", "`save_plan(...)` makes one"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    decoder: Cascade, tmp_path: Path, call: Callable[[Path], Any], given: str, wanted: str, hint: str
) -> None:
    model = graphcut.load(decoder.source)
    graphcut.save_plan(graphcut.plan(model, Into(2)), model, tmp_path / "plan.json")
    path = {"model": decoder.source, "cascade": decoder.path, "plan": tmp_path / "plan.json"}[given]
    with pytest.raises(UsageError) as caught:
        call(path)
    assert (str(caught.value), caught.value.hint) == (f"{path} is a {given}, not a {wanted}", hint)


@each("prompts", [["hello"], "hello", [1, 2]])
def test_a_prompt_is_the_ids_of_its_tokens(decoder: Cascade, prompts: Any) -> None:  # noqa: ANN401 - of any type
    with pytest.raises(TypeError, match=r"expected the token ids of a prompt, got (str|int)") as caught:
        graphcut.generate(decoder, prompts, max_tokens=1)
    assert caught.value.__notes__ == ["hint: `encode(...)` of a Tokenizer makes them"]


def test_a_benchmark_takes_the_path_of_a_cascade(chain: Path) -> None:
    cascade = graphcut.split(chain, graphcut.At("exp"))
    found = graphcut.bench(cascade.root, FEED, ways=["parts"], rounds=1)
    assert [one.error for one in found] == ["", ""]
