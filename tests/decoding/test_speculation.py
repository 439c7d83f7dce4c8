"""Several tokens are proposed and checked in one step: the same tokens in fewer steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from child_processes import children
from decoders import with_attention, with_concat, with_group_query_attention, with_lstm, without_caches
from onnx import ModelProto, helper, numpy_helper

from graphcut import Cascade, DecodingService, RunError, Sampling, UsageError, generate, split
from graphcut.decoding.speculation import DraftProposer, Lookup, Speculation
from graphcut.decoding.token_sequences import TokenSequence

from conftest import simple_plan

PROMPT = [3, 1, 4, 1, 5, 9, 3, 1, 4, 1, 5]
OTHERS = ([7], [2, 6, 2, 6, 2, 6], [9, 2])
NUMBER = 40
PLAIN = Sampling()
STYLES = {style.__name__: style for style in (with_concat, with_attention, with_group_query_attention)}


@pytest.fixture(scope="module")
def cascades(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cascade]:
    return {name: cut(tmp_path_factory.mktemp(name), style()) for name, style in STYLES.items()}


def cut(folder: Path, proto: ModelProto) -> Cascade:
    onnx.save(proto, folder / "m.onnx")
    return split(folder / "m.onnx", simple_plan(folder / "m.onnx", 2), folder / "m.parts")


def told(cascade: Cascade, prompts: list[list[int]], **settings: Any) -> tuple[list[list[int]], int]:  # noqa: ANN401
    """The tokens, and in how many steps."""
    made = generate(cascade, prompts, max_tokens=NUMBER, batch=1, **settings)
    return made.all(), made.log.answered


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("workers", [1, 2])
def test_proposed_tokens_change_no_token_and_save_steps(cascades: dict[str, Cascade], name: str, workers: int) -> None:
    cascade, prompts = cascades[name], [PROMPT, *OTHERS]
    expected, steps = told(cascade, prompts, workers=workers)
    assert steps == len(prompts) * NUMBER
    for draft in ("lookup", *cascades.values()):
        found, fewer = told(cascade, prompts, workers=workers, draft=draft)
        assert found == expected
        assert fewer < steps or draft not in ("lookup", cascade)
    # Of its own proposals, all are right: 2, then 4, then 8 at once.
    assert told(cascade, [PROMPT], draft=cascade)[1] == 1 + 1 + 1 + 4


def test_a_draft_that_fails_proposes_no_more(cascades: dict[str, Cascade], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose tables of positions end before the text."""
    cascade, proposed = cascades["with_concat"], list[int]()
    extend = DraftProposer._extend

    def failing(self: DraftProposer, own: TokenSequence, found: list[int], most: int) -> None:
        extend(self, own, found, most)
        proposed.append(len(found))
        if len(proposed) == 3:
            raise RunError("part-0.onnx failed")

    monkeypatch.setattr(DraftProposer, "_extend", failing)
    expected, steps = told(cascade, [PROMPT])
    assert told(cascade, [PROMPT], draft=cascade) == (expected, steps - sum(proposed))
    assert proposed == [2, 4, 8]


def test_drawn_tokens_are_those_without_proposals(cascades: dict[str, Cascade]) -> None:
    """For every seed, and so their distribution is the same."""
    target, other = cascades["with_concat"], cascades["with_attention"]
    for seed in range(6):
        how = Sampling(temperature=0.5 + seed / 5, top_p=0.9, repetition_penalty=1 + seed / 20, seed=seed)
        expected, steps = told(target, [PROMPT, OTHERS[1]], sampling=how)
        for draft in ("lookup", other, target):
            found, fewer = told(target, [PROMPT, OTHERS[1]], sampling=how, draft=draft)
            assert found == expected
        assert fewer < steps / 2  # the model draws with the same numbers for itself


def test_the_service_proposes_too_whatever_is_cached_or_lost(cascades: dict[str, Cascade]) -> None:
    cascade = cascades["with_group_query_attention"]
    (expected,), _ = told(cascade, [PROMPT])
    settings: dict[str, Any] = {"cache_bytes": 1 << 20, "draft": "lookup", "via": "processes", "workers": 2}
    with DecodingService(cascade, most=2, **settings) as service:
        for _ in range(2):
            stream = service.stream(PROMPT, max_tokens=NUMBER, top=1)
            assert list(stream) == expected
            assert len(stream.sequence.scores) == NUMBER
        stream = service.stream(PROMPT, max_tokens=NUMBER)
        begun = [next(iter(stream)) for _ in range(5)]
        os.kill(children()[-1], signal.SIGKILL)
        assert [*begun, *stream] == expected
        stop = service.stream(PROMPT, max_tokens=NUMBER, stop=[expected[9]])
        assert list(stop) == expected[: expected.index(expected[9]) + 1]


def test_lookup_proposes_what_came_after_the_last_tokens() -> None:
    one, lookup = TokenSequence(0, (1, 2, 3, 4, 1, 2, 3), 9, Sampling(), 0), Lookup()
    assert lookup.propose(one, 2) == (4, 1)
    one.fed, one.unfed = [1, 2, 3, 4, 1, 2, 3, 5], (9,)
    assert lookup.propose(one, 2) == ()
    one.fed, one.unfed = [*one.fed, 9, 2], (3,)
    assert lookup.propose(one, 9) == (5, 9, 2, 3, 5, 9, 2, 3, 5)  # the latest occurrence
    one.fed, one.unfed = [*one.fed, 3, 3], (3,)
    assert lookup.propose(one, 4) == (3, 3, 3, 3)  # a token that comes again and again, which only one precedes


def test_what_is_never_right_is_hardly_proposed() -> None:
    class Wrong:
        def propose(self, one: TokenSequence, most: int) -> tuple[int, ...]:  # noqa: ARG002
            return (0,) * most

    one, proposed = TokenSequence(0, (1,), 9, Sampling(), 0), list[int]()
    speculation = Speculation(Wrong())  # type: ignore[arg-type]
    for _ in range(1000):
        proposed.append(len(speculation.propose(one, 9)))
        if proposed[-1]:
            speculation.judge(proposed[-1], 0)
    assert (max(proposed), sum(proposed) <= 2 * 22) == (2, True)


@pytest.mark.parametrize("length", [50, 200, 1000])
@pytest.mark.parametrize("text", ["drawn", "after words that repeat comes another"])
def test_where_text_does_not_repeat_looking_up_feeds_hardly_more_tokens(text: str, length: int) -> None:
    """One more token in a step takes at most a fourth of a step (4 bits, measured), so 0.12 for each take 3 %."""
    draw = np.random.default_rng(length)
    tokens = draw.integers(0, 61, length).tolist()
    if text != "drawn":
        tokens = [token for i in range(length // 3) for token in (7, 8, 100 + i)]
    one, speculation, wrong, steps = TokenSequence(0, tuple(tokens[:1]), length, PLAIN, 0), Speculation(Lookup()), 0, 0
    one.prompt_length = 1
    while len(one.fed) + 1 < len(tokens):
        steps += 1
        place = len(one.fed) + 1
        found = speculation.propose(one, 8)
        right = next((i for i, token in enumerate(found) if tokens[place + i : place + i + 1] != [token]), len(found))
        wrong += len(found) - right
        if found:
            speculation.judge(len(found), right)
        one.fed, one.unfed = tokens[: place + right], (*tokens[place + right : place + right + 1],)
    assert wrong <= 0.12 * (len(tokens) - 1)
    assert steps <= len(tokens)


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_a_step_of_several_tokens_is_one_for_each_part_wherever_it_runs(cascades: dict[str, Cascade], via: str) -> None:
    cascade = cascades["with_group_query_attention"]
    expected = told(cascade, [PROMPT])[0]
    made = generate(cascade, [PROMPT], max_tokens=NUMBER, draft=cascade, via=via, workers=2)  # type: ignore[arg-type]
    made.log.is_tracing = True
    assert made.all() == expected
    # One for the prompt, and of its own proposals all are right: 2, then 4, then 8 at once.
    assert [sum(span.part == part for span in made.log.spans) for part in range(2)] == [1 + 1 + 1 + 4] * 2


@pytest.mark.parametrize("style", [with_lstm, without_caches])
def test_states_that_can_not_be_cut_are_refused(tmp_path: Path, style: Callable[[], ModelProto]) -> None:
    with pytest.raises(UsageError, match="no tokens can be proposed to this model"):
        told(cut(tmp_path, style()), [PROMPT], draft="lookup")


def test_a_model_that_scores_the_last_token_alone_without_saying_so_takes_no_proposals(tmp_path: Path) -> None:
    proto = with_concat()
    proto.graph.node[-1].output[0] = "all"
    proto.graph.node.append(helper.make_node("Gather", ["all", "last"], ["logits"], axis=1))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    cascade = cut(tmp_path, proto)
    with pytest.raises(RunError, match="the model scores the last token alone, and so no proposed tokens") as caught:
        told(cascade, [PROMPT], draft="lookup")
    assert caught.value.hint == "leave out `draft`"


def test_a_draft_of_another_vocabulary_is_refused(cascades: dict[str, Cascade], tmp_path: Path) -> None:
    proto = with_concat()
    proto.graph.output[-1].type.tensor_type.shape.dim[2].dim_value = 62
    other = cut(tmp_path, proto)
    with pytest.raises(UsageError, match="has 62 tokens, and the model has 61"):
        told(cascades["with_concat"], [PROMPT], draft=other)


def test_a_draft_whose_states_can_not_be_cut_is_refused(cascades: dict[str, Cascade], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't propose tokens: its states can't be cut where a token was wrong"):
        told(cascades["with_concat"], [PROMPT], draft=cut(tmp_path, with_lstm()))
    with pytest.raises(UsageError, match="a memory limit does not count a second decoder"):
        told(cascades["with_concat"], [PROMPT], draft=cascades["with_attention"], memory_bytes=1 << 40)
