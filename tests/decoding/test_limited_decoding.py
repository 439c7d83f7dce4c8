"""Decoding in a memory limit: parts are loaded in turn for each step, and their caches stay."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoders import WIDTH, with_concat, with_encoder, without_caches
from msgspec.structs import replace
from test_batched_decoding import alone
from test_decoding import NUMBER, PROMPTS, STYLES, cut, written

import graphcut
from graphcut import At, Cascade, DecodingService, Into, MemoryCapError, UsageError, demos, generate, load, split
from graphcut.decoding.decoder import Decoder
from graphcut.decoding.decoding_memory import kept_bytes
from graphcut.decoding.generation import Generation
from graphcut.running.in_process import loaded_parts, memory_plan
from graphcut.running.in_process.memory_plan import ResidencyPlan
from graphcut.running.stage import SessionConfig, Stage

from cases import each, some
from heavy import in_a_process

LIMITED_STYLES = [name for name in STYLES if name not in {"optimum, merged", "TensorScatter"}]


@pytest.fixture(autouse=True)
def resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process holds does not change from one prediction to the next."""
    monkeypatch.setattr(memory_plan, "resident_bytes", lambda: 50 * 2**20)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were loaded, in order."""
    found: list[str] = []

    class Counted(Stage):
        def __init__(self, cascade: Cascade, part: graphcut.Part, *, config: SessionConfig) -> None:
            super().__init__(cascade, part, config=config)
            found.append(part.file)

    monkeypatch.setattr(loaded_parts, "Stage", Counted)
    return found


def tight(cascade: Cascade, prompts: tuple[list[int], ...], number: int, **inputs: object) -> Generation:
    """Decoding in the smallest limit."""
    options: dict[str, Any] = {"max_tokens": number, "exact": True, "inputs": inputs}
    with pytest.raises(MemoryCapError) as caught:
        generate(cascade, prompts, memory_bytes=1, **options)
    return generate(cascade, prompts, memory_bytes=caught.value.smallest_bytes, **options)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", some(LIMITED_STYLES[::2], *LIMITED_STYLES[1::2]))
def test_parts_are_loaded_in_turn_and_the_tokens_are_the_same(tmp_path: Path, name: str, loads: list[str]) -> None:
    style = STYLES[name]
    path = written(tmp_path, style.draw())
    cascade = cut(path, style.parts)
    tokens = tight(cascade, PROMPTS, NUMBER)
    assert loads == []
    assert tokens.all() == alone(path, style, PROMPTS)
    assert tokens.limited is not None
    kept = tokens.limited.forecast.plan.pinned
    assert len(kept) < style.parts
    loads_of = [loads.count(part.file) for part in cascade.parts]
    assert loads_of == [1 if i in kept else tokens.log.answered for i in range(style.parts)]


def test_a_model_without_caches_is_decoded_in_a_limit(tmp_path: Path) -> None:
    expected = alone(written(tmp_path, with_concat()), STYLES["optimum"], PROMPTS)
    assert tight(cut(written(tmp_path, without_caches()), 2), PROMPTS, NUMBER).all() == expected


def test_an_encoder_is_loaded_once_for_a_sequence_and_what_it_made_is_counted(tmp_path: Path, loads: list[str]) -> None:
    path = written(tmp_path, with_encoder(with_concat()))
    cascade = split(load(path), At(("heard_0", "heard_1", "asked")))
    sounds = [np.full((1, frames, WIDTH), 0.5, np.float32) for frames in (50, 4050)]
    expected = generate(cascade, [[3, 1, 4]], max_tokens=NUMBER, inputs={"sound": sounds[0]}).all()
    loads.clear()
    tokens = tight(cascade, ([3, 1, 4],), NUMBER, sound=sounds[0])
    assert tokens.all() == expected
    assert tokens.limited is not None
    assert tokens.limited.forecast.plan.pinned == {2, 3}  # what each step loads would stay, if it fits
    assert loads == [part.file for part in cascade.parts]

    def needed(most: int, sound: np.ndarray[Any, Any]) -> int:
        with pytest.raises(MemoryCapError) as caught:
            DecodingService(cascade, most=most, inputs={"sound": sound}, max_context=8, memory_bytes=1)
        return caught.value.smallest_bytes

    kept = 2 * 4000 * WIDTH * 4  # of each sequence, what both layers of the encoder made
    more = [needed(most, sounds[1]) - needed(most, sounds[0]) for most in (1, 3)]
    assert more[1] - more[0] == 2 * kept
    assert more[0] >= kept


def test_an_encoder_between_parts_of_the_decoder_is_not_loaded_ahead_for_later_steps(
    tmp_path: Path, loads: list[str]
) -> None:
    proto = with_encoder(with_concat())
    nodes = list(proto.graph.node)
    between = next(i for i, node in enumerate(nodes) if "heard_1" in node.input)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[4:between], *nodes[:4], *nodes[between:]])
    cascade = split(load(written(tmp_path, proto)), At((nodes[between - 1].output[0], "heard_1")))
    given: dict[str, Any] = {"max_tokens": NUMBER, "inputs": {"sound": np.ones((1, 5, WIDTH), np.float32)}}
    expected = generate(cascade, [[3, 1, 4]], **given).all()
    tokens = generate(cascade, [[3, 1, 4]], **given, memory_bytes=1 << 40)
    assert tokens.limited is not None
    ahead = ResidencyPlan(frozenset(), is_ahead=True, peak_bytes=0)
    tokens.limited.forecast = replace(tokens.limited.forecast, plan=ahead)
    assert tokens.all() == expected
    assert [loads.count(part.file) for part in cascade.parts] == [NUMBER, 1, NUMBER]


def test_longer_sequences_and_larger_batches_need_more(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=256, layers=2, heads=4, kv_heads=4, vocab=64)
    cascade = cut(tmp_path / "llm.onnx", 2)

    def needed(sequences: int, number: int, **options: Any) -> int:  # noqa: ANN401
        with pytest.raises(MemoryCapError) as caught:
            generate(cascade, [[1, 2]] * sequences, max_tokens=number, memory_bytes=1, **options)
        return caught.value.smallest_bytes

    cache_bytes = 2 * 2 * 256 * 4  # keys and values of two layers, for a token
    assert needed(1, 4001) - needed(1, 1) >= 4000 * cache_bytes
    assert needed(8, 4001) - needed(1, 4001) >= 7 * 4000 * cache_bytes
    assert needed(8, 4001, batch=1) - needed(1, 4001) < 4000 * cache_bytes
    assert needed(1, 4001, max_context=2) - needed(1, 1) < 4000 * cache_bytes


def named_anew(name: str, axis: int) -> str:
    """As torch.onnx names the sizes of an output."""
    return f"Concat{name}_dim_{axis}"


@each("name_of", [named_anew, lambda _, axis: ("batch", "", "past")[axis]], ids=["anew", "as before the step"])
def test_caches_count_however_their_sizes_are_named(tmp_path: Path, name_of: Callable[[str, int], str]) -> None:
    proto = with_concat()
    for value in proto.graph.output[:-1]:
        for axis in (0, 2):
            value.type.tensor_type.shape.dim[axis].dim_param = name_of(value.name, axis)
    decoder = Decoder(split(load(written(tmp_path, proto)), Into(1)), {})
    # Keys and values of two layers, of two sequences that have 1000 tokens each.
    assert sum(kept_bytes(decoder, 2, 1000).values()) == 2 * 2 * 2 * 1000 * WIDTH * 4


LIMITED = """
import graphcut
from graphcut.running.process_memory import resident_bytes, unloaded_library_bytes
cascade, prompts = graphcut.open_cascade(given[0]), [[1, 15, 27], [4, 5, 6, 7, 8]]
weights = sum(part.weight_bytes for part in cascade.parts)
graphcut.generate(cascade, prompts, max_tokens=1, memory_bytes=1 << 40)  # modules are loaded now
limit = resident_bytes() + unloaded_library_bytes() + weights // 2
tokens = graphcut.generate(cascade, prompts, max_tokens=12, memory_bytes=limit, exact=True)
said.update(tokens=tokens.all(), limit=limit, peak=tokens.limited.peak.bytes)
said.update(predicted=tokens.limited.forecast.peak_bytes, pinned=len(tokens.limited.forecast.plan.pinned))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak memory")
def test_half_of_the_weights_suffice(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=512, layers=8, vocab=4096, external=True)
    cascade = cut(tmp_path / "llm.onnx", 6)
    said = in_a_process(LIMITED, cascade.path)
    assert said["tokens"] == generate(cascade, [[1, 15, 27], [4, 5, 6, 7, 8]], max_tokens=12).all()
    assert said["pinned"] < len(cascade.parts)
    assert said["peak"] <= said["predicted"] <= said["limit"]


def test_a_limit_is_for_one_worker_in_this_process(tmp_path: Path) -> None:
    cascade = cut(written(tmp_path, with_concat()), 2)
    several: tuple[dict[str, Any], ...] = ({"via": "processes"}, {"workers": 2})
    for options in several:
        with pytest.raises(UsageError, match="a memory limit is for one process, without other workers"):
            generate(cascade, PROMPTS, max_tokens=2, memory_bytes=1 << 40, **options)
    with pytest.raises(UsageError, match="a memory limit needs to know how long a conversation becomes"):
        DecodingService(cascade, memory_bytes=1 << 40)
