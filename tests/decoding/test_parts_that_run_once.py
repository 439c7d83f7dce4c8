"""What is the same at each step of a sequence is made and sent once, such as what an encoder makes for a decoder."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from child_processes import children
from decoders import LAYERS, WIDTH, whole_tokens, with_concat, with_encoder, without_caches
from onnx import ModelProto, TensorProto, helper
from test_decoding import STYLES, written

from graphcut import At, Cascade, DecodingService, Limits, generate, load, plan, split
from graphcut.decoding.decoder import Decoder
from graphcut.decoding.generation import Generation
from graphcut.workers.executors.worker import Worker

PROMPT, NUMBER, FRAMES = [3, 1, 4], 12, 80  # what is sent has more than 4 KiB
SOUND = np.random.default_rng(5).normal(size=(1, FRAMES, WIDTH)).astype(np.float32)
CUTS = {
    "encoder, decoder": ["heard_1"],
    "decoder in two": ["heard_1", "asked"],
    "each in two": ["heard_0", "heard_1", "asked"],
}
GIVEN: dict[str, Any] = {"inputs": {"sound": SOUND}, "max_tokens": NUMBER}


def cut(folder: Path, decoder: ModelProto, tensors: Sequence[str]) -> Cascade:
    model = load(written(folder, with_encoder(decoder)))
    return split(model, plan(model, At(tuple(tensors)), limits=Limits(recompute="never")), folder / "parts")


def expected(folder: Path, name: str = "optimum", prompt: Sequence[int] = PROMPT, number: int = NUMBER) -> list[int]:
    """What the whole model says, whose encoder runs for each token."""
    style = STYLES[name]
    feeds = lambda past, now: {**style.step(past, now), "sound": SOUND}  # noqa: E731
    return whole_tokens(folder / "model.onnx", prompt, number, feeds, style.begins, style.becomes)


def runs(tokens: Generation) -> list[int]:
    """How often each part ran."""
    return [tokens.log.total_of(part).runs for part in range(tokens.log.parts)]


IN_TWO: dict[str, Any] = {"workers": 2, "via": "processes"}
WAYS: Mapping[str, dict[str, Any]] = {"this process": {"workers": 1}, "threads": {"workers": 2}, "processes": IN_TWO}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "cuts"), [("optimum", "each in two"), ("GroupQueryAttention", "encoder, decoder")])
def test_an_encoder_runs_once_for_a_sequence_and_the_tokens_are_those_of_the_whole_model(
    tmp_path: Path, name: str, cuts: str, way: str
) -> None:
    cascade, prompts = cut(tmp_path, STYLES[name].draw(), CUTS[cuts]), [PROMPT, PROMPT[:2]]
    tokens = generate(cascade, prompts, **GIVEN, **WAYS[way])
    assert tokens.all() == [expected(tmp_path, name, prompt) for prompt in prompts]
    half = len(cascade.parts) // 2
    assert runs(tokens) == [2] * half + [2 * NUMBER] * half


def test_what_is_kept_is_not_overwritten_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later pieces of a prompt are as long as what the encoder made, and the same worker writes them."""
    monkeypatch.setattr("graphcut.decoding.prefix_cache.PIECE", 25)
    cascade = cut(tmp_path, with_concat(), CUTS["decoder in two"])
    with DecodingService(cascade, inputs=GIVEN["inputs"], **IN_TWO, cache_bytes=1 << 20) as service:
        for prompt in ([1] * 25, [2] * 50):
            assert list(service.stream(prompt, max_tokens=NUMBER)) == expected(tmp_path, prompt=prompt)
        assert [service.generation.log.workers_of(part) for part in range(3)] == [[0], [0], [1]]


def test_a_decoder_without_caches_keeps_what_its_encoder_made(tmp_path: Path) -> None:
    written(tmp_path, with_encoder(with_concat()))
    says = expected(tmp_path)
    tokens = generate(cut(tmp_path, without_caches(), CUTS["each in two"]), [PROMPT], **GIVEN, workers=2)
    assert (tokens.all(), runs(tokens)) == ([says], [1, 1, NUMBER, NUMBER])


def test_what_is_the_same_is_sent_at_the_first_step_and_kept_where_steps_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sent, kept = Worker.run, list[set[str]](), dict[frozenset[int], set[str]]()

    def noted(worker: Worker, step: Any, inputs: Any, **more: Any) -> Any:  # noqa: ANN401 - any
        made = run(worker, step, inputs, **more)
        sent.append({*inputs} - {"input_ids", "position_ids", "attention_mask"})
        kept[frozenset(worker.stages)] = {name for name in worker.sequences[0] if not name.startswith("past")}
        return made

    monkeypatch.setattr(Worker, "run", noted)
    cascade = cut(tmp_path, with_concat(), CUTS["each in two"])
    generate(cascade, [PROMPT], **GIVEN, workers=2).all()
    assert [names for names in sent if names] == [{"sound"}, {"heard_0", "heard_1"}]
    assert kept == {frozenset({0, 1}): set(), frozenset({2, 3}): {"heard_0", "heard_1"}}


@pytest.mark.parametrize(
    ("cuts", "killed", "made"), [("each in two", -1, 1), ("decoder in two", -1, 1), ("decoder in two", -2, 2)]
)
def test_what_a_killed_worker_kept_is_sent_again_or_made_again_if_it_made_it(
    tmp_path: Path, cuts: str, killed: int, made: int
) -> None:
    tokens, found = generate(cut(tmp_path, with_concat(), CUTS[cuts]), [PROMPT], **GIVEN, **IN_TWO), list[int]()
    for _, token in tokens:
        found.append(token)
        if len(found) == 3:
            os.kill(children()[killed], signal.SIGKILL)
    assert (found, runs(tokens)[0], len(tokens.log.deaths)) == (expected(tmp_path), made, 1)


def test_prompts_that_begin_alike_share_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it counts as what the cache holds."""
    monkeypatch.setattr("graphcut.decoding.prefix_cache.PIECE", 4)
    cascade, prompt = cut(tmp_path, with_concat(), CUTS["each in two"]), [3, 1, 4, 1, 5]
    says = expected(tmp_path, prompt=prompt, number=2)
    held = 4 * WIDTH * (2 * LAYERS * (len(prompt) + 1) + 2 * FRAMES)
    for room, times in ((held, 1), (held - 1, 2)):
        with DecodingService(cascade, cache_bytes=room, workers=2, inputs=GIVEN["inputs"]) as service:
            assert [list(service.stream(prompt, max_tokens=2)) for _ in range(2)] == [says, says]
            assert runs(service.generation)[:2] == [times, times]


def test_an_input_that_is_not_fed_is_the_same_at_each_step(tmp_path: Path) -> None:
    proto = with_concat()
    cascade = cut(tmp_path, proto, CUTS["encoder, decoder"])
    assert "ear/ear0" not in cascade.parts[0].reads
    proto.graph.input.append(helper.make_tensor_value_info("ear/ear0", TensorProto.FLOAT, [WIDTH, WIDTH]))
    onnx.save(proto, tmp_path / "model.onnx")
    cascade = split(load(tmp_path / "model.onnx"), At(("heard_1",)), tmp_path / "optional")
    decoder = Decoder(cascade, {"inputs": GIVEN["inputs"]})
    assert "ear/ear0" in cascade.parts[0].reads
    assert (decoder.once, decoder.keeps) == ({0}, {1: ("heard_1", "heard_0")})


def test_a_part_whose_output_becomes_a_state_runs_at_each_step(tmp_path: Path) -> None:
    """The decoder attends to what the encoder made at the step before."""
    proto = with_encoder(with_concat())
    proto.graph.input.append(helper.make_tensor_value_info("memory", TensorProto.FLOAT, [1, FRAMES, WIDTH]))
    proto.graph.output.append(helper.make_tensor_value_info("heard_1", TensorProto.FLOAT, [1, FRAMES, WIDTH]))
    next(node for node in proto.graph.node if node.op_type == "Transpose" and "heard_1" in node.input).input[0] = (
        "memory"
    )
    style, memory = STYLES["optimum"], {"memory": "heard_1"}
    begins = {**style.begins, "memory": np.zeros((1, FRAMES, WIDTH), np.float32)}
    path = written(tmp_path, proto)
    feeds = lambda past, now: {**style.step(past, now), "sound": SOUND}  # noqa: E731
    says = whole_tokens(path, PROMPT, NUMBER, feeds, begins, {**style.becomes, **memory})
    cascade = split(load(path), At(("heard_0", "heard_1", "asked")))
    tokens = generate(cascade, [PROMPT], **GIVEN, states=memory)
    assert (tokens.all(), runs(tokens)) == ([says], [1, NUMBER, NUMBER, NUMBER])
