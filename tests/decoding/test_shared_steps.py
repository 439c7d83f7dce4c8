"""Sequences that come, end and are cancelled at any time share steps: the tokens of each are those it has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from decoders import with_attention, with_combined, with_concat, with_group_query_attention, with_lstm
from onnx import ModelProto

from graphcut import Cascade, RunError, Sampling, generate, split
from graphcut.decoding.decoder import Decoder, DecodingSettings
from graphcut.decoding.generation import Generation
from graphcut.decoding.token_sequences import TokenSequence
from graphcut.running.values import Value
from graphcut.workers.executors.protocol import Step
from graphcut.workers.executors.worker import Worker

from conftest import simple_plan

STYLES: dict[str, Callable[[], ModelProto]] = {
    "masked": partial(with_concat, masked=True),
    "last logits": partial(with_concat, masked=True, last=True),
    "lengths": with_group_query_attention,
    "recurrent": with_lstm,
}
LATER = {0: [3, 1, 4, 1, 5], 3: [9, 2], 5: [6, 5, 3], 6: [8, 9, 7, 9, 3, 2, 3], 20: [2]}  # after so many tokens in all
PLAIN = Sampling()
TRIAL = 5  # steps


@pytest.fixture(scope="module")
def cascades(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cascade]:
    return {name: cut(tmp_path_factory.mktemp("model"), style()) for name, style in STYLES.items()}


def cut(folder: Path, proto: ModelProto) -> Cascade:
    onnx.save(proto, folder / "m.onnx")
    return split(folder / "m.onnx", simple_plan(folder / "m.onnx", 2), folder / "m.parts")


class Told:
    """What is generated where prompts come after so many tokens of all sequences; one worker, so steps are in turn."""

    def __init__(
        self,
        cascade: Cascade,
        later: Mapping[int, Sequence[int]] = LATER,
        *,
        how: Sequence[Sampling] = (PLAIN,) * 9,
        cancelled: Mapping[int, int] | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        self.order, self.come, self.said = list[int](), dict[int, int](), list[str]()
        self.tokens: list[list[int]] = [[] for _ in later]

        def arriving() -> Iterator[TokenSequence | None]:
            for index, (number, prompt) in enumerate(later.items()):
                while len(self.order) < number:
                    yield None
                self.come[index] = len(self.order)
                yield TokenSequence(index, tuple(prompt), 12 + index, how[index], draws=0)

        def is_last(index: int, _: int) -> bool:
            return len(self.tokens[index]) + 1 == (cancelled or {}).get(index)

        self.made = Generation(
            cascade,
            (),
            arriving(),
            8,
            batch=8,
            stop=is_last,
            on_error="skip",
            settings=cast(DecodingSettings, settings),
        )
        self.made.log.notify = lambda text, _: self.said.append(text)
        for index, token in self.made:
            self.tokens[index].append(token)
            self.order.append(index)


def alone(
    cascade: Cascade, prompts: Sequence[Sequence[int]], how: Sequence[Sampling] = (PLAIN,) * 9
) -> list[list[int]]:
    return [
        generate(cascade, [prompt], max_tokens=12 + i, sampling=how[i]).all()[0] for i, prompt in enumerate(prompts)
    ]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each step has."""
    found, run = list[int](), Worker.run

    def noted(worker: Worker, step: Step, inputs: Mapping[str, Value], *more: Any) -> object:  # noqa: ANN401
        found.append(inputs["input_ids"].shape()[0])
        return run(worker, step, inputs, *more)

    monkeypatch.setattr(Worker, "run", noted)
    return found


@pytest.mark.parametrize("name", STYLES)
def test_sequences_that_come_and_end_at_any_time_share_steps(
    cascades: dict[str, Cascade], name: str, sizes: list[int]
) -> None:
    expected = alone(cascades[name], list(LATER.values()))
    sizes.clear()
    told = Told(cascades[name])
    assert (told.tokens, told.said, told.made.sharing.verdict) == (expected, [], True)
    # One step for each prompt, and all others as wide as sequences go on.
    assert sum(sizes) == sum(map(len, expected)) + TRIAL + 1
    assert (max(sizes), len(sizes) < 40) == (5, True)


@pytest.mark.parametrize("name", STYLES)
def test_the_first_token_of_a_newcomer_comes_within_two_steps_of_the_others(
    cascades: dict[str, Cascade], name: str
) -> None:
    told = Told(cascades[name])
    for index, begin in list(told.come.items())[2:]:  # the second one waits for the trial
        before = told.order[begin : told.order.index(index)]
        assert all(before.count(other) <= 2 for other in range(5))


def test_each_sequence_is_drawn_in_its_own_way_and_may_be_cancelled(cascades: dict[str, Cascade]) -> None:
    how = [Sampling(temperature=i, seed=i, repetition_penalty=1 + i / 8, top_k=i) for i in (0, 2, 0, 1, 3)]
    expected = alone(cascades["masked"], list(LATER.values()), how)
    told = Told(cascades["masked"], how=how, cancelled={0: 9, 3: 2})
    assert told.tokens == [expected[0][:9], *expected[1:3], expected[3][:2], expected[4]]
    assert told.made.ends == {0: "stop", 1: "max_tokens", 2: "max_tokens", 3: "stop", 4: "max_tokens"}


@pytest.mark.parametrize("style", [with_concat, with_combined])
def test_a_model_that_computes_something_else_together_is_decoded_one_by_one(
    tmp_path: Path,
    sizes: list[int],
    style: Any,  # noqa: ANN401
) -> None:
    """Its mask has an axis for sequences, and of it only the length is read."""
    cascade = cut(tmp_path, style())
    told = Told(cascade)
    assert (told.tokens, max(sizes)) == (alone(cascade, list(LATER.values())), 2)
    assert told.said == ["sequences of other lengths share no steps: a trial of it had other scores or failed"]


@pytest.mark.parametrize(("name", "wrong"), [("masked", "after"), ("lengths", "before")])
def test_the_trial_finds_padding_on_the_wrong_side(
    cascades: dict[str, Cascade], name: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Decoder(cascades[name], {}).padding not in (None, wrong)
    monkeypatch.setattr(Decoder, "_padding", lambda *_: wrong)
    told = Told(cascades[name])
    assert (told.made.sharing.verdict, len(told.said)) == (False, 1)
    assert told.tokens == alone(cascades[name], list(LATER.values()))


def test_without_the_length_of_each_row_nothing_is_tried(tmp_path: Path, sizes: list[int]) -> None:
    cascade = cut(tmp_path, with_attention())
    told = Told(cascade, workers=1)
    assert (told.tokens, told.said, max(sizes)) == (alone(cascade, list(LATER.values())), [], 1)


def test_one_that_fails_in_a_shared_step_does_so_alone(
    cascades: dict[str, Cascade], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, choose = alone(cascades["lengths"], list(LATER.values())), Sampling.choose

    def failing(how: Sampling, scores: Any, before: Any, sequence: int) -> int:  # noqa: ANN401
        if how.seed and len(before) > 6:
            raise RunError("nothing can be drawn")
        return choose(how, scores, before, sequence)

    monkeypatch.setattr(Sampling, "choose", failing)
    told = Told(cascades["lengths"], how=[PLAIN, PLAIN, Sampling(seed=1), PLAIN, PLAIN])
    assert told.tokens == [*expected[:2], expected[2][:4], *expected[3:]]
    assert {index: str(error) for index, error in told.made.errors.items()} == {2: "nothing can be drawn"}


def test_prompts_are_reused_after_their_sequences_have_joined_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says another text where a prompt comes in other pieces."""
    monkeypatch.setattr("graphcut.decoding.prefix_cache.PIECE", 2)
    cascade = cut(tmp_path, with_concat(says_pieces=True, masked=True))
    later = {0: [3, 1, 4, 1, 5], 3: [9, 2], 8: [3, 1, 4, 1, 6, 6], 30: [9, 2, 7]}
    told = [Told(cascade, {0: prompt}, cache_bytes=1 << 20).tokens[0] for prompt in later.values()]
    found = Told(cascade, later, cache_bytes=1 << 20)
    assert [row[:12] for row in found.tokens] == told
    assert found.made.reused == 4 + 2


def test_several_prompts_share_the_steps_after_them(cascades: dict[str, Cascade], sizes: list[int]) -> None:
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5], [8, 9, 7]]
    expected = [generate(cascades["masked"], [prompt], max_tokens=6).all()[0] for prompt in prompts]
    sizes.clear()
    assert generate(cascades["masked"], prompts, max_tokens=6, batch=3, workers=1).all() == expected
    assert sizes == [1, 1, 2, 1, 1, 2, 1, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1]
