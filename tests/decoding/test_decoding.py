"""Decoding: a cascade generates the tokens of the whole model, for the styles of several exporters."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from child_processes import children
from decoders import (
    LAYERS,
    ROOM,
    WIDTH,
    Array,
    Feeds,
    whole_tokens,
    with_a_state_of_its_own,
    with_attention,
    with_branches,
    with_buffer,
    with_combined,
    with_concat,
    with_group_query_attention,
    with_lstm,
    with_rolling,
    with_static,
    with_tensor_scatter,
    without_caches,
)
from msgspec.structs import replace
from onnx import ModelProto, TensorProto, helper, numpy_helper

from graphcut import At, Cascade, Into, Limits, RunError, Sampling, UsageError, analyze, generate, load, plan, split
from graphcut.core.manifest import State
from graphcut.core.states import kept_states, sent_states
from graphcut.core.tensors import Tensor
from graphcut.costs.caches import find_caches
from graphcut.decoding.decoder import Decoder, fills_from_the_end
from graphcut.decoding.decoding_memory import kept_bytes
from graphcut.decoding.token_inputs import TokenChunk, input_array, role_of
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_plan
from graphcut.running.sampling import TOKENS
from graphcut.running.stage import SessionConfig, Stage
from graphcut.workers.executors.worker import Worker

from cases import each
from conftest import ORT_VERSION, floats, model_of, simple_plan

LEAST = float(np.finfo(np.float32).min)
PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6, 5, 3])
NUMBER = 12


def cut(path: Path, parts: int, *, states: Mapping[str, str] | None = None) -> Cascade:
    model = load(path, states=states)
    return split(model, simple_plan(model, parts), path.with_name(f"parts-{len(list(path.parent.iterdir()))}"))


def written(folder: Path, proto: ModelProto) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def rows(past: int, now: Sequence[int], dtype: type[np.generic] = np.int64) -> Feeds:
    """Ids, mask and positions."""
    return {
        "input_ids": np.array([now], dtype),
        "attention_mask": np.ones((1, past + len(now)), dtype),
        "position_ids": np.arange(past, past + len(now), dtype=dtype)[None],
    }


def ids_and(*names: str) -> Callable[[int, Sequence[int]], Feeds]:
    return lambda past, now: {name: rows(past, now)[name] for name in ("input_ids", *names)}


def caches(
    past: str, present: str, width: int = WIDTH, layers: int = LAYERS
) -> tuple[dict[str, Array], dict[str, str]]:
    """The first values of caches, and the outputs that become them."""
    places = [(i, kind) for i in range(layers) for kind in ("key", "value")]
    begins = {past.format(i=i, kind=kind): np.zeros((1, 1, 0, width), np.float32) for i, kind in places}
    return begins, {past.format(i=i, kind=kind): present.format(i=i, kind=kind) for i, kind in places}


OPTIMUM = caches("past_key_values.{i}.{kind}", "present.{i}.{kind}")


def kept_by(cascade: Cascade) -> set[str]:
    kept = kept_states(cascade.parts, cascade.manifest.states)
    return {state.past for row in kept.values() for state in row}


# The tokens of the whole model


@dataclass(frozen=True)
class Style:
    """A decoder in the style of an exporter, and how it is fed by hand."""

    draw: Callable[[], ModelProto]
    step: Callable[[int, Sequence[int]], Feeds]
    begins: Mapping[str, Array]
    becomes: Mapping[str, str]
    inputs: Mapping[str, Array] = field(default_factory=dict)
    at_once: bool = True
    kept: int | None = None
    parts: int = 3


def combined_rows(past: int, now: Sequence[int]) -> Feeds:
    found = rows(past, now, np.int32)
    return {**found, "attention_mask": found["attention_mask"].astype(np.float32)}


def buffer_rows(past: int, now: Sequence[int]) -> Feeds:
    filled = (np.arange(ROOM) < past + len(now)).astype(np.int64)
    return {**rows(past, now), "attention_mask": filled[None]}


def static_rows(past: int, now: Sequence[int]) -> Feeds:
    return {**ids_and()(past, now), "cache_position": np.arange(past, past + len(now))}


def rolling_rows(past: int, now: Sequence[int]) -> Feeds:
    filled = (np.arange(ROOM) >= ROOM - past - len(now)).astype(np.int64)
    return {**rows(past, now), "attention_mask": filled[None]}


def scatter_rows(past: int, now: Sequence[int]) -> Feeds:
    return {**ids_and("position_ids")(past, now), "write_indices": np.array([past])}


ENCODED = np.random.default_rng(3).normal(size=(1, 4, WIDTH)).astype(np.float32)


def branch_rows(past: int, now: Sequence[int]) -> Feeds:
    return {**ids_and()(past, now), "encoder_hidden_states": ENCODED, "use_cache_branch": np.array([past > 0])}


def buffers(past: str, present: str, kinds: Sequence[str]) -> tuple[dict[str, Array], dict[str, str]]:
    names = [(past.format(i=i, kind=kind), present.format(i=i, kind=kind)) for i in range(LAYERS) for kind in kinds]
    return {name: np.zeros((1, 1, ROOM, WIDTH), np.float32) for name, _ in names}, dict(names)


COMBINED = {f"past_{i}": np.zeros((2, 1, 1, 0, WIDTH), np.float32) for i in range(LAYERS)}
CROSSED = [
    caches(f"past_key_values.{{i}}.{side}.{{kind}}", f"present.{{i}}.{side}.{{kind}}")
    for side in ("decoder", "encoder")
]
FLAT = {f"{kind}{i}_a": np.zeros((1, 1, 0, WIDTH), np.float32) for i in range(LAYERS) for kind in "kv"}
RECURRENT = {name: np.zeros((LAYERS, 1, WIDTH), np.float32) for name in ("h0", "c0")}
STYLES = {
    "optimum": Style(with_concat, rows, *OPTIMUM),
    "unusual names": Style(partial(with_concat, "a{i}{kind}", "b{i}{kind}"), rows, *caches("a{i}{kind}", "b{i}{kind}")),
    # torch.onnx with dynamo: inputs are called by their place in the cache, outputs by their operators
    "dynamo": Style(
        partial(with_concat, "past_key_values_{kind}_cache_{i}", "cat_{i}_{kind}"),
        rows,
        *caches("past_key_values_{kind}_cache_{i}", "cat_{i}_{kind}"),
    ),
    "last logits": Style(partial(with_concat, last=True), rows, *OPTIMUM),
    "keys and values in one": Style(
        with_combined, combined_rows, COMBINED, {f"past_{i}": f"present_{i}" for i in range(LAYERS)}
    ),
    "a buffer, token by token": Style(
        with_buffer,
        buffer_rows,
        *buffers("past_{kind}_{i}", "present_{kind}_{i}", ("key", "value")),
        at_once=False,
    ),
    "static": Style(with_static, static_rows, *buffers("{kind}_cache_{i}", "index_put_{i}_{kind}", ("key", "value"))),
    "a rolling buffer": Style(
        with_rolling, rolling_rows, *buffers("past_{kind}_{i}", "present_{kind}_{i}", ("key", "value")), at_once=False
    ),
    "a buffer that rolls first": Style(
        partial(with_rolling, cropped_first=True),
        rolling_rows,
        *buffers("past_{kind}_{i}", "present_{kind}_{i}", ("key", "value")),
        at_once=False,
    ),
    "TensorScatter": Style(with_tensor_scatter, scatter_rows, *buffers("{kind}{i}_a", "{kind}{i}_b", "kv")),
    "GroupQueryAttention": Style(with_group_query_attention, ids_and("attention_mask"), *OPTIMUM),
    "Attention": Style(with_attention, ids_and("position_ids"), FLAT, {name: f"{name[:-1]}b" for name in FLAT}),
    "optimum, merged": Style(
        with_branches,
        branch_rows,
        {**CROSSED[0][0], **CROSSED[1][0]},
        {**CROSSED[0][1], **CROSSED[1][1]},
        inputs={"encoder_hidden_states": ENCODED},
    ),
    "recurrent": Style(with_lstm, ids_and(), RECURRENT, {"h0": "hn", "c0": "cn"}),
}


@pytest.mark.parametrize("name", STYLES)
def test_the_tokens_are_those_of_the_whole_model(tmp_path: Path, name: str) -> None:
    if name == "TensorScatter" and ORT_VERSION < (1, 25):
        pytest.skip("ONNX Runtime has TensorScatter since 1.25")
    style = STYLES[name]
    path = written(tmp_path, style.draw())
    cascade = cut(path, style.parts)
    assert len(cascade.parts) == style.parts
    assert {(state.past, state.present) for state in cascade.manifest.states} == set(style.becomes.items())
    expected = [
        whole_tokens(path, prompt, NUMBER, style.step, style.begins, style.becomes, at_once=style.at_once)
        for prompt in PROMPTS
    ]
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, inputs=style.inputs).all() == expected
    assert all(len(set(row)) > 2 for row in expected)


@pytest.mark.parametrize("length", ["seq", ROOM])
def test_a_model_without_caches_is_fed_the_whole_sequence_at_each_step(tmp_path: Path, length: int | str) -> None:
    # The same weights as those of the decoder with caches, and so the same tokens.
    expected = [whole_tokens(written(tmp_path, with_concat()), p, NUMBER, rows, *OPTIMUM) for p in PROMPTS]
    cascade = cut(written(tmp_path, without_caches(length)), 2)
    assert cascade.manifest.states == ()
    assert generate(cascade, PROMPTS, max_tokens=NUMBER).all() == expected


def test_a_batch_of_a_fixed_size_is_filled_with_equal_rows(tmp_path: Path) -> None:
    expected = [whole_tokens(written(tmp_path, with_concat()), p, NUMBER, rows, *OPTIMUM) for p in PROMPTS]
    proto = with_concat()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    assert generate(cut(written(tmp_path, proto), 2), PROMPTS, max_tokens=NUMBER).all() == expected


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_logits_of_half_precision_are_compared_exactly(tmp_path: Path, dtype: int) -> None:
    # What follows a token is its row of the table; the numbers are exact in both types, and negative ones are less.
    table = np.random.default_rng(1).permuted(np.tile(np.arange(-30.0, 31), (61, 1)), axis=1).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["row"]),
        helper.make_node("Relu", ["row"], ["above"]),
        helper.make_node("Cast", ["above"], ["logits"], to=dtype),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])
    out = helper.make_tensor_value_info("logits", dtype, ["batch", "seq", 61])
    proto = model_of(nodes, [ids], [out], [numpy_helper.from_array(table, "table")])
    expected = [int(np.argmax(table[7]))]
    for _ in range(5):
        expected.append(int(np.argmax(table[expected[-1]])))
    assert generate(cut(written(tmp_path, proto), 2), [[3, 7]], max_tokens=6).all() == [expected]


def test_the_first_of_equally_likely_tokens_is_chosen(tmp_path: Path) -> None:
    table = np.array([[0, 5, 5], [2, 2, 2], [1, 0, 1]], np.float32)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])
    nodes = [helper.make_node("Gather", ["t", "input_ids"], ["row"]), helper.make_node("Neg", ["row"], ["logits"])]
    proto = model_of(nodes, [ids], [floats("logits", "batch", "seq", 3)], [numpy_helper.from_array(-table, "t")])
    assert generate(cut(written(tmp_path, proto), 2), [[0]], max_tokens=3).all() == [[1, 0, 1]]


# States


def test_an_unknown_state_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, with_a_state_of_its_own())
    blind = cut(path, 1)
    assert blind.manifest.states == ()
    with pytest.raises(RunError, match=r"reads float32\[batch,16\] 'h', and it is not known what to feed") as caught:
        generate(blind, PROMPTS, max_tokens=NUMBER)
    assert "`states`" in caught.value.hint

    def step(_past: int, now: Sequence[int]) -> Feeds:
        return {"input_ids": np.array(now)}

    begins, becomes = {"h": np.zeros((1, WIDTH), np.float32)}, {"h": "g"}
    session = partial(whole_tokens, path, number=NUMBER, step=step, begins=begins, becomes=becomes, at_once=False)
    expected = [session(prompt) for prompt in PROMPTS]
    assert generate(blind, PROMPTS, max_tokens=NUMBER, states={"h": "g"}).all() == expected
    told = cut(path, 2, states={"h": "g"})
    assert [(state.past, state.present) for state in told.manifest.states] == [("h", "g")]
    assert kept_by(told) == {"h"}
    assert generate(told, PROMPTS, max_tokens=NUMBER).all() == expected


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"x": "g"}, "the state x=g names 'x', which is not an input of the model"),
        ({"h": "y"}, "the state h=y names 'y', which is not an output of the model"),
        ({"h": "g", "input_ids": "g"}, "'g' can't become two inputs"),
    ],
)
def test_named_states_are_checked(tmp_path: Path, states: dict[str, str], said: str) -> None:
    path = written(tmp_path, with_a_state_of_its_own())
    with pytest.raises(UsageError, match=said):
        load(path, states=states)
    with pytest.raises(UsageError, match=said):
        generate(cut(path, 1), PROMPTS, max_tokens=NUMBER, states=states)


def test_a_state_between_two_parts_is_sent_and_reported(tmp_path: Path) -> None:
    style = STYLES["recurrent"]
    path = written(tmp_path, style.draw())
    model = load(path)
    made = plan(analyze(model), At(("y0",)))  # between two layers, whose states are one tensor
    note = "2 states are sent between parts at every step, because a cut separates h0 from hn, c0 from cn"
    assert note in scene_of_plan(made, analyze(model)).notes
    cascade = split(model, made, tmp_path / "parts")
    assert note in scene_of_cascade(cascade).notes
    assert kept_by(cascade) == set()
    expected = [whole_tokens(path, p, NUMBER, style.step, style.begins, style.becomes) for p in PROMPTS]
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, workers=2).all() == expected


def test_a_state_whose_output_others_read_stays_with_its_part(tmp_path: Path) -> None:
    path = written(tmp_path, with_concat())
    model = load(path)
    made = plan(analyze(model), At(("present.0.value", "present.1.key")))  # attention reads them in the next part
    assert not any("sent from part" in note for note in scene_of_plan(made, analyze(model)).notes)
    cascade = split(model, made, tmp_path / "parts")
    assert any("present.0.value" in part.reads for part in cascade.parts[1:])
    assert kept_by(cascade) == set(OPTIMUM[0])
    expected = [whole_tokens(path, p, NUMBER, rows, *OPTIMUM) for p in PROMPTS]
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, workers=3).all() == expected


def test_a_plan_keeps_both_ends_of_every_state_in_one_part(tmp_path: Path) -> None:
    model = load(written(tmp_path, with_concat()))
    for parts in range(1, 5):
        made = plan(analyze(model), Into(parts), limits=Limits(inside_layers=True))
        assert sent_states(made.partition.blocks, find_caches(model)) == []


def test_the_first_value_of_a_state_may_be_given(tmp_path: Path) -> None:
    style = STYLES["recurrent"]
    path = written(tmp_path, style.draw())
    begins = {
        name: np.random.default_rng(5).normal(size=(LAYERS, 1, WIDTH)).astype(np.float32) for name in ("h0", "c0")
    }
    expected = [whole_tokens(path, p, NUMBER, style.step, begins, style.becomes) for p in PROMPTS]
    assert generate(cut(path, 2), PROMPTS, max_tokens=NUMBER, inputs=begins).all() == expected
    assert expected != [whole_tokens(path, p, NUMBER, style.step, style.begins, style.becomes) for p in PROMPTS]


def test_the_first_value_of_a_state_without_a_shape_must_be_given(tmp_path: Path) -> None:
    path, proto, (begins, states) = written(tmp_path, with_concat()), with_concat(), OPTIMUM
    expected = whole_tokens(path, PROMPTS[0], NUMBER, rows, begins, states)
    for value in proto.graph.input:
        if value.name in states:
            value.type.tensor_type.ClearField("shape")
    cascade = split(load(written(tmp_path, proto)), Into(1))
    found = [(state.past, state.present, state.axis, state.start) for state in cascade.manifest.states]
    assert found == [(*pair, None, None) for pair in states.items()]
    for given in ({}, states):
        with pytest.raises(RunError, match=r"the shape of the state 'past.* is not known") as caught:
            generate(cascade, PROMPTS[:1], max_tokens=1, states=given)
        assert caught.value.hint == "feed its first value with `inputs`"
    assert generate(cascade, PROMPTS[:1], max_tokens=NUMBER, inputs=begins).all() == [expected]
    assert sum(kept_bytes(Decoder(cascade, {"inputs": begins}), 1, 1000).values()) == 2 * LAYERS * 1000 * WIDTH * 4


def test_caches_that_fill_up_from_different_ends_are_refused() -> None:
    filled = State(past="a", present="b", axis=1, start=(1, 24), is_given=False, is_shareable=False)
    rolling = replace(filled, past="c", is_rolling=True)
    with pytest.raises(RunError, match="'c' has its tokens at the end and 'a' at the beginning"):
        fills_from_the_end([filled, rolling])
    with pytest.raises(RunError, match="'c' keeps a fixed number of tokens, and it is not known how many"):
        fills_from_the_end([replace(rolling, start=(1, 0))])
    assert [fills_from_the_end([one]) for one in (filled, rolling)] == [False, True]


# Sequences


def test_a_sequence_ends_at_a_stop_token_at_its_length_or_when_the_buffer_is_full(tmp_path: Path) -> None:
    style = STYLES["a buffer, token by token"]
    path = written(tmp_path, style.draw())
    cascade = cut(path, 2)
    step = partial(whole_tokens, path, step=style.step, begins=style.begins, becomes=style.becomes, at_once=False)
    # The last token is not fed, and so needs no space in the buffer.
    expected = step([3, 1, 4], number=ROOM - 3 + 1)
    stop = expected[5]
    first = expected.index(stop)
    stopped = generate(cascade, [[3, 1, 4]], max_tokens=99, stop=[stop])
    assert (stopped.all(), stopped.ends) == ([expected[: first + 1]], {0: "stop"})
    short = generate(cascade, [[3, 1, 4]], max_tokens=2)
    assert (short.all(), short.ends) == ([expected[:2]], {0: "max_tokens"})
    full = generate(cascade, [[3, 1, 4]], max_tokens=99)
    assert (full.all(), full.ends) == ([expected], {0: "full"})
    limited = generate(cascade, [[3, 1, 4]], max_tokens=99, max_context=5)
    assert (limited.all(), limited.ends) == ([expected[:3]], {0: "full"})


@each("window", [1, 2, 5])
@each("workers", [1, 3])
def test_sequences_in_flight_do_not_disturb_each_other(tmp_path: Path, window: int, workers: int) -> None:
    path = written(tmp_path, with_concat())
    prompts = [[i, 2 * i + 1, 7][: 1 + i % 3] for i in range(7)]
    expected = [whole_tokens(path, p, 6, rows, *OPTIMUM) for p in prompts]
    stop = expected[2][1]
    cut_off = [row[: row.index(stop) + 1] if stop in row else row for row in expected]
    found = generate(cut(path, 3), prompts, max_tokens=6, stop=[stop], window=window, workers=workers)
    assert found.all() == cut_off
    assert found.ends == {i: "stop" if stop in row else "max_tokens" for i, row in enumerate(expected)}


def test_sequences_take_turns(tmp_path: Path) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    found = list(generate(cascade, PROMPTS[:2], max_tokens=3, window=2, batch=1))
    assert [token.sequence for token in found] == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1, repetition_penalty=1.5)])
def test_tokens_are_chosen_where_the_logits_are_and_travel_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    run, sent = Worker.run, list[dict[str, Any]]()

    def noted(worker: Worker, *arguments: Any) -> tuple[dict[str, Any], tuple[float, ...]]:  # noqa: ANN401 - any
        outputs, seconds = run(worker, *arguments)
        sent.append(outputs)
        return outputs, seconds

    monkeypatch.setattr(Worker, "run", noted)
    (tokens,) = generate(cascade, [[3, 1, 4]], max_tokens=3, workers=1, sampling=sampling).all()
    assert [{name: value.numpy().tolist() for name, value in one.items()} for one in sent] == [
        {TOKENS.name: [token]} for token in tokens
    ]


def test_workers_forget_a_sequence_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    forgotten: list[tuple[Worker, int]] = []
    forget = Worker.forget

    def noted(worker: Worker, sequence: int) -> None:
        forget(worker, sequence)
        forgotten.append((worker, sequence))

    monkeypatch.setattr(Worker, "forget", noted)
    generate(cascade, PROMPTS, max_tokens=NUMBER, workers=2, batch=1).all()
    assert sorted(sequence for _, sequence in forgotten) == [0, 0, 1, 1, 2, 2]
    assert all(worker.sequences == {} for worker, _ in forgotten)


def test_stopping_early_ends_all_threads(tmp_path: Path) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    before = {*threading.enumerate()}
    tokens = generate(cascade, PROMPTS, max_tokens=99, max_context=60)
    assert next(iter(tokens)).sequence == 1
    tokens.close()
    assert before.issuperset(threading.enumerate())


def test_caches_of_group_query_attention_are_written_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless sequences may become so long that much would be reserved."""
    style, run, places = STYLES["GroupQueryAttention"], Worker.run, dict[tuple[int, str], set[int]]()

    def noted(worker: Worker, *given: Any) -> Any:  # noqa: ANN401 - any
        made = run(worker, *given)
        for sequence, kept in worker.sequences.items():
            for name, value in kept.items():
                places.setdefault((sequence, name), set()).add(value.data_ptr())
        return made

    monkeypatch.setattr(Worker, "run", noted)
    path = written(tmp_path, style.draw())
    cascade = cut(path, style.parts)
    expected = [whole_tokens(path, prompt, NUMBER, style.step, style.begins, style.becomes) for prompt in PROMPTS]
    for most, in_place in ((NUMBER, True), (9000, False)):
        places.clear()
        found: list[list[int]] = [[] for _ in PROMPTS]
        ended = lambda index, _, found=found: len(found[index]) == NUMBER - 1  # noqa: E731
        for sequence, token in generate(cascade, PROMPTS, max_tokens=most, stop=ended, batch=1, workers=1):
            found[sequence].append(token)
        assert (found, {len(own) == 1 for own in places.values()}) == (expected, {in_place})


def test_caches_that_others_read_are_not_written_in_place(tmp_path: Path) -> None:
    proto = with_group_query_attention()
    proto.graph.node.append(helper.make_node("Shape", ["past_key_values.0.key"], ["size"]))
    proto.graph.node.append(helper.make_node("Shape", ["present.1.value"], ["later size"]))
    for name in ("size", "later size"):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, [4]))
    states = cut(written(tmp_path, proto), 2).manifest.states
    assert [state.is_shareable for state in states] == [False, True, True, False]
    assert not any(state.is_shareable for state in cut(written(tmp_path, with_concat()), 2).manifest.states)


@pytest.mark.parametrize("name", ["optimum", "GroupQueryAttention"])
def test_caches_of_a_killed_worker_are_rebuilt(tmp_path: Path, name: str) -> None:
    style = STYLES[name]
    path = written(tmp_path, style.draw())
    cascade = cut(path, 3)
    expected = [whole_tokens(path, p, 20, style.step, style.begins, style.becomes) for p in PROMPTS]
    tokens = generate(cascade, PROMPTS, max_tokens=20, via="processes", workers=2)
    found: list[list[int]] = [[] for _ in PROMPTS]
    for place, (sequence, token) in enumerate(tokens):
        found[sequence].append(token)
        if place in {11, 31}:
            os.kill(children()[-1], signal.SIGKILL)
    assert found == expected
    assert len(tokens.log.deaths) == 2


# Models and arguments that are refused


@pytest.fixture(scope="module")
def buffered(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    return cut(written(tmp_path_factory.mktemp("buffer"), with_buffer()), 2)


@each(
    ("options", "said"),
    [
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"prompts": [[1] * 25]}, "prompt 0 has 25 tokens, and the model takes 24"),
        ({"max_tokens": 0}, "can't generate 0 tokens"),
        ({"workers": 3}, "3 workers can't share 2 parts: the states of a sequence stay with a part"),
        ({"inputs": {"mask": np.ones(1)}}, "the model has no input 'mask'"),
        ({"dims": {"past": 3}}, "no state has a size called 'past'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    buffered: Cascade, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        generate(buffered, **{"prompts": [[1]], "max_tokens": 4, **options})


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    with pytest.raises(UsageError) as caught:
        generate(cascade, [[1], [99999, 2]], max_tokens=4).all()
    assert str(caught.value).startswith("token id 99999 of prompt 1 is outside the vocabulary (")


def renamed(proto: ModelProto, old: str, new: str) -> ModelProto:
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = new if value.name == old else value.name
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    return proto


def test_the_only_integer_input_is_taken_for_the_ids(tmp_path: Path) -> None:
    path = written(tmp_path, with_lstm())
    style = STYLES["recurrent"]
    expected = [whole_tokens(path, p, NUMBER, style.step, style.begins, style.becomes) for p in PROMPTS]
    cascade = cut(written(tmp_path, renamed(renamed(with_lstm(), "input_ids", "words"), "logits", "scores")), 2)
    assert generate(cascade, PROMPTS, max_tokens=NUMBER).all() == expected


@pytest.mark.parametrize("draw", [with_concat, with_a_state_of_its_own])
def test_genai_config_names_inputs_outputs_and_the_length(tmp_path: Path, draw: Callable[[], ModelProto]) -> None:
    has_caches = draw is with_concat
    known = cut(written(tmp_path, draw()), 2, states={} if has_caches else {"h": "g"})
    expected = generate(known, PROMPTS, max_tokens=NUMBER).all()
    given = {"input_ids": "t", "attention_mask": "m", "position_ids": "p"} if has_caches else {"input_ids": "t"}
    proto = renamed(draw(), "logits", "linear_48")
    for old, new in given.items():
        proto = renamed(proto, old, new)
    inputs, outputs = {**given, "past_names": "h", "past_key_names": "past_key_values.%d.key"}, {"logits": "linear_48"}
    decoder = {"inputs": inputs, "outputs": outputs | {"present_names": "g"}, "num_hidden_layers": 1}
    config = {"model": {"context_length": 9, "decoder": decoder}}
    proto.graph.output.append(floats("more", "batch", "seq", 61))
    proto.graph.node.append(helper.make_node("Neg", ["linear_48"], ["more"]))
    with pytest.raises(RunError) as caught:
        generate(cut(written(tmp_path, proto), 2), PROMPTS, max_tokens=NUMBER)
    assert not has_caches or "in a genai_config.json beside the model" in caught.value.hint
    (tmp_path / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    cascade = cut(written(tmp_path, proto), 2)
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, max_context=99).all() == expected
    # Nine tokens are fed at most; the last one that is generated is not fed.
    limited = generate(cascade, PROMPTS, max_tokens=NUMBER)
    assert limited.all() == [row[: 10 - len(p)] for row, p in zip(expected, PROMPTS, strict=True)]
    assert set(limited.ends.values()) == {"full"}
    with pytest.raises(UsageError, match="prompt 0 has 10 tokens, and the model takes 9"):
        generate(cascade, [[1] * 10], max_tokens=1)


def test_a_type_without_a_kernel_is_no_damaged_cascade(tmp_path: Path) -> None:
    shapes = {"x": (1, 1, 2), "w": (1, 8, 2), "r": (1, 8, 2)}
    reads = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape) for name, shape in shapes.items()]
    writes = [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [1, 1, 1, 2])]
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)
    cascade = cut(written(tmp_path, model_of([lstm], reads, writes, [], opset=22)), 1)
    with pytest.raises(RunError, match="NOT_IMPLEMENTED") as caught:
        Stage(cascade, cascade.parts[0], config=SessionConfig())
    assert caught.value.hint.startswith("this ONNX Runtime has no kernel for that operator and type")


def test_a_model_that_reads_embeddings_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["inputs_embeds"], ["a"]), helper.make_node("Neg", ["a"], ["logits"])]
    proto = model_of(nodes, [floats("inputs_embeds", "batch", "seq", 4)], [floats("logits", "batch", "seq", 4)])
    said = r"the model reads embeddings \(inputs_embeds\), and tokens can't be fed to it"
    with pytest.raises(RunError, match=said) as caught:
        generate(cut(written(tmp_path, proto), 1), [[1]], max_tokens=1)
    assert "`merge_models(...)`" in caught.value.hint


def test_a_step_of_several_tokens_is_refused(tmp_path: Path) -> None:
    proto = with_concat()
    for value in proto.graph.input:
        if value.name == "input_ids":
            value.type.tensor_type.shape.dim[1].dim_value = 4
    with pytest.raises(RunError, match="the model reads exactly 4 tokens at each step, and tokens come one by one"):
        generate(cut(written(tmp_path, proto), 1), [[1]], max_tokens=1)


@each(
    ("name", "shape"),
    [("position_ids", (1, 1)), ("position_ids", (0, "seq")), ("attention_mask", ()), ("input_ids", (0, "seq"))],
)
def test_an_input_without_room_for_a_step_is_named(tmp_path: Path, name: str, shape: tuple[int | str, ...]) -> None:
    proto = with_concat()
    for i, value in enumerate(proto.graph.input):
        if value.name == name:
            proto.graph.input[i].CopyFrom(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
    with pytest.raises(RunError, match=rf"'{name}', which has no room for \[") as caught:
        generate(cut(written(tmp_path, proto), 1), PROMPTS, max_tokens=1).all()
    assert caught.value.hint == "export it with sizes that are symbols"


@each(
    ("dtype", "hint"),
    [
        (TensorProto.INT64, "or name it in a genai_config.json beside the model, as model.decoder.inputs"),
        (TensorProto.FLOAT, "or, if an output becomes it, say so with `states`"),
    ],
)
def test_an_input_that_is_not_known_is_named(tmp_path: Path, dtype: int, hint: str) -> None:
    proto = renamed(with_concat(), "logits", "plain")
    proto.graph.input.append(helper.make_tensor_value_info("style", dtype, [1]))
    proto.graph.node.append(helper.make_node("Cast", ["style"], ["offset"], to=TensorProto.FLOAT))
    proto.graph.node.append(helper.make_node("Add", ["plain", "offset"], ["logits"]))
    proto.graph.output[-1].name = "logits"
    cascade = cut(written(tmp_path, proto), 1)
    with pytest.raises(RunError, match=r"\[1\] 'style', and it is not known what to feed there") as caught:
        generate(cascade, [[1]], max_tokens=1)
    assert hint in caught.value.hint
    generate(cascade, [[1]], max_tokens=1, inputs={"style": np.ones(1, "f" if dtype == TensorProto.FLOAT else "q")})


def test_the_output_with_the_logits_must_be_clear(tmp_path: Path) -> None:
    cascade = cut(written(tmp_path, renamed(with_a_state_of_its_own(), "logits", "scores")), 1)
    with pytest.raises(RunError, match="it is not clear which output holds the logits; there is g, scores"):
        generate(cascade, [[1]], max_tokens=1, inputs={"h": np.zeros((1, WIDTH), np.float32)})


def test_the_hint_for_an_unknown_size_is_an_option(tmp_path: Path) -> None:
    proto = with_a_state_of_its_own()
    for value in (proto.graph.input[1], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_param = "width"
    cascade = cut(written(tmp_path, proto), 1, states={"h": "g"})
    with pytest.raises(RunError, match="the size 'width' of the state 'h' is not known") as caught:
        generate(cascade, PROMPTS, max_tokens=NUMBER)
    assert caught.value.hint == "give it with `dims`"
    known = cut(written(tmp_path, with_a_state_of_its_own()), 1, states={"h": "g"})
    expected = generate(known, PROMPTS, max_tokens=NUMBER).all()
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, dims={"width": WIDTH}).all() == expected


# Inputs


@each(
    ("name", "dtype", "shape", "expected"),
    [
        ("input_ids", "int32", ("b", "s"), [[8, 9]]),
        ("decoder_input_ids", "int64", ("s",), [8, 9]),
        ("input_ids", "int64", (2, 4), [[8, 9, 0, 0], [0, 0, 0, 0]]),
        ("attention_mask", "int64", ("b", "t"), [[1, 1, 1, 1, 1]]),
        ("attention_mask", "float32", (1, 7), [[1, 1, 1, 1, 1, 0, 0]]),
        ("attention_mask", "bool", ("b", 1, "s", "t"), [[[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]]),
        ("attention_mask", "float32", (1, 1, "s", 6), [[[[0, 0, 0, 0, LEAST, LEAST], [0, 0, 0, 0, 0, LEAST]]]]),
        ("position_ids", "int64", ("b", "s"), [[3, 4]]),
        ("position_ids", "int64", (3, "b", "s"), [[[3, 4]], [[3, 4]], [[3, 4]]]),
        ("cache_position", "int64", ("s",), [3, 4]),
        ("past_sequence_length", "int64", (), 3),
        ("total_sequence_length", "int32", (1,), [5]),
        ("seqlens_k", "int32", ("b",), [4]),
        ("use_cache_branch", "bool", (1,), [True]),
        ("token_type_ids", "int64", ("b", "s"), [[0, 0]]),
        ("num_logits_to_keep", "int64", (), 0),
    ],
)
def test_inputs_are_computed_according_to_their_names(
    name: str, dtype: str, shape: tuple[int | str, ...], expected: object
) -> None:
    tensor = Tensor(name=name, dtype=dtype, shape=shape)
    role = role_of(tensor)
    assert role is not None
    found = input_array(role, tensor, TokenChunk(3, ((8, 9),)))
    assert (str(found.dtype), found.tolist()) == (dtype, expected)


@each(
    ("is_padded_before", "expected"),
    [
        (True, [[[1, 1, 1, 0], [1, 1, 1, 1]], [[0, 1, 1, 0], [0, 1, 1, 1]]]),
        (False, [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 1, 0]]]),
    ],
)
def test_a_token_sees_those_of_its_own_sequence_up_to_itself(*, is_padded_before: bool, expected: object) -> None:
    """Two tokens of two sequences, which have two before them and one: at the end of their places, or after them."""
    tensor = Tensor(name="attention_mask", dtype="int64", shape=("b", 1, "s", "t"))
    chunk = TokenChunk(2, ((8, 9), (8, 9)), (0, 1), is_padded_before)
    assert input_array("mask", tensor, chunk)[:, 0].tolist() == expected


@pytest.mark.parametrize("name", ["encoder_attention_mask", "hidden_states", "pixel_values"])
def test_other_inputs_have_no_role(name: str) -> None:
    assert role_of(Tensor(name=name, dtype="int64", shape=("b", "s"))) is None
