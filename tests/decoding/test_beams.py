"""Beam search: the result of the published algorithm, whatever runs the parts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from child_processes import children
from decoders import WIDTH, Array, Drawing, Feeds, with_buffer, with_concat, with_encoder, with_group_query_attention

import graphcut
from graphcut import At, Into, RunError, Sampling, UsageError, Via, generate
from graphcut.core.digests import file_digest
from graphcut.core.manifest import State
from graphcut.decoding.beams import BeamSearch
from graphcut.running.sampling import TokenScores
from graphcut.running.values import Value
from graphcut.workers.executors.protocol import Step
from graphcut.workers.executors.worker import Worker

from cases import FUZZ, each
from families import FAMILIES, two_rows
from families.by_hand import run, settings
from tampering import edit_manifest

END, NUMBER = 1, 9


class ByHand:
    """Logarithms of probabilities by the exported files, and no caches: each text is fed as a whole."""

    def __init__(self, folder: Path, inputs: Feeds) -> None:
        self._folder, self._inputs = folder, inputs
        self.says = settings(folder, "generation_config")
        self._heard = run(folder / "encoder_model.onnx", inputs)["last_hidden_state"]
        self._begin = [
            self.says["decoder_start_token_id"],
            *(token for _, token in self.says.get("forced_decoder_ids", [])),
        ]

    def logs(self, texts: Sequence[Sequence[int]]) -> Array:
        """[texts, vocabulary], minus infinity for what must not come."""
        rows, length = len(texts), len(texts[0])
        feeds = {"encoder_hidden_states": np.repeat(self._heard, rows, 0)}
        if "attention_mask" in self._inputs:
            feeds["encoder_attention_mask"] = np.repeat(self._inputs["attention_mask"], rows, 0)
        feeds["input_ids"] = np.array([[*self._begin, *text] for text in texts], np.int64)
        scores = run(self._folder / "decoder_model.onnx", feeds)["logits"][:, -1].astype(np.float64)
        logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        never = [*self.says.get("suppress_tokens", []), *(word for (word,) in self.says.get("bad_words_ids", []))]
        logs[:, [*never, *(self.says.get("begin_suppress_tokens", []) if not length else [])]] = -np.inf
        return np.asarray(logs)


def searched(model: ByHand, width: int, ends: set[int], penalty: float, early: object) -> list[int]:
    """The algorithm of transformers: all continuations of all beams are ranked at each step.

    Of the first `width` those that end are finished, and of all others the first `width` go on.
    """
    most = width * (1 + len(ends))
    texts: list[list[int]] = [[]]
    sums = np.zeros(1)
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, NUMBER + 1):
        totals = sums[:, None] + model.logs(texts)
        ranked = [divmod(int(i), totals.shape[1]) for i in np.argsort(-totals, axis=None, kind="stable")[:most]]
        tried = [([*texts[row], token], float(totals[row, token])) for row, token in ranked]
        is_end = [text[-1] in ends or length == NUMBER for text, _ in tried]
        finished += [(s / length**penalty, t) for (t, s), end in zip(tried[:width], is_end, strict=False) if end]
        finished = sorted(finished, key=lambda one: -one[0])[:width]
        going = [one for one, end in zip(tried, is_end, strict=True) if not end][:width]
        if not going:
            break
        texts, sums = [text for text, _ in going], np.array([score for _, score in going])
        reach = NUMBER if early == "never" and penalty > 0 else length
        is_full, possible = len(finished) == width, sums[0] / reach**penalty
        if is_full and (early is True or possible <= finished[-1][0]):
            break
    return finished[0][1]


def say(cascade: graphcut.Cascade, folder: Path, **says: object) -> None:
    """Let the files of a model and of its cascade say this, too."""
    content = json.dumps(settings(folder, "generation_config") | says)
    for home in (folder, cascade.root):
        (home / "generation_config.json").write_text(content, encoding="utf-8")
    digest = file_digest(folder / "generation_config.json")
    edit_manifest(cascade.path, lambda record: record["text_files"].update({"generation_config.json": digest}))


WAYS: tuple[tuple[float, object], ...] = ((1.0, False), (0.6, True), (2.0, "never"), (-0.5, False), (1.0, True))


@each("name", ["whisper", "t5", "marian"])
def test_the_result_is_that_of_the_published_search(name: str, tmp_path: Path) -> None:
    family, found = FAMILIES[name], list[list[int]]()
    folder = family.write(tmp_path / "m")
    cascade = graphcut.split(graphcut.load(folder), Into(3), tmp_path / "parts")
    for seed in range(FUZZ or 3):
        penalty, early = WAYS[(seed + len(name)) % len(WAYS)]
        say(cascade, folder, length_penalty=penalty, early_stopping=early)
        inputs = family.inputs(seed)
        model = ByHand(folder, inputs)
        (greedy,) = family.reference(folder, inputs, NUMBER)
        ends = {END, greedy[:5][-1]}
        told: dict[str, Any] = {"inputs": inputs, "max_tokens": NUMBER, "stop": ends}
        for width in (2, 4, 8):
            expected = searched(model, width, ends, penalty, early)
            assert generate(cascade.root, [[]], beams=width, **told).all() == [expected], (seed, width)
            found.append(expected)
    assert len({*map(len, found)}) > 1, "some end early"
    assert len({*map(tuple, found)}) > (FUZZ or 3), "the width matters"


@each("name", ["whisper", "t5", "marian, merged"])
def test_the_result_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """`beams.json` is what it said of the same files: scripts/transformers_beams.py."""
    folder = FAMILIES[name].write(tmp_path / "m")
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    requests = json.loads((Path(__file__).parents[1] / "families" / "beams.json").read_text(encoding="utf-8"))
    asked = [one for one in requests if one["family"] == name.partition(",")[0] and (one["width"] == 4 or FUZZ)]
    for request in asked:
        say(cascade, folder, length_penalty=request["length_penalty"])
        for row, (tokens, _) in enumerate(request["rows"]):
            inputs = {key: array[row : row + 1] for key, array in two_rows(name, request["seed"]).items()}
            found = generate(cascade.root, [[]], inputs=inputs, max_tokens=12, stop=[END], beams=request["width"])
            assert found.all() == [tokens], request
    assert len(asked) > 1


def test_an_encoder_runs_once_and_states_are_copied_where_a_beam_is_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["whisper"]
    folder, inputs, copied = family.write(tmp_path / "m"), family.inputs(0), list[tuple[int, ...]]()
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    joined = Worker._joined

    def noted(worker: Worker, state: State, step: Step) -> Value:
        copied.append(tuple(one.row for one in step.rows))
        return joined(worker, state, step)

    monkeypatch.setattr(Worker, "_joined", noted)
    generation = generate(cascade, [[]], inputs=inputs, max_tokens=NUMBER, beams=4)
    (expected,) = generation.all()
    assert expected == searched(ByHand(folder, inputs), 4, set(), 1.0, early=False)
    assert generation.log.total_of(0).runs == 1
    assert 0 < len(copied) < 4 * (NUMBER - 1), "four states, and all steps but the first"
    assert all(len({*rows}) < len(rows) for rows in copied)
    assert all(row == place for rows in copied for place, row in enumerate(rows) if place in rows)
    again = generate(cascade, [[], []], inputs=inputs, max_tokens=NUMBER, beams=4, cache_bytes=1 << 20, batch=2)
    assert again.all() == [expected] * 2


def test_beams_are_the_same_in_any_process_and_after_a_worker_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["t5, merged"]
    cascade = graphcut.split(graphcut.load(family.write(tmp_path / "m")), Into(3), tmp_path / "parts")
    prompts = [family.inputs(seed)["input_ids"][0].tolist() for seed in range(2)]
    told: dict[str, Any] = {"max_tokens": NUMBER, "stop": [END], "beams": 3}
    expected = generate(cascade, prompts, **told).all()
    ways: tuple[Via, ...] = ("threads", "processes")
    for via in ways:
        assert generate(cascade, prompts, **told, via=via, workers=2).all() == expected
    step, steps = BeamSearch.step, list[int]()

    def killing(search: BeamSearch, scores: Sequence[TokenScores]) -> list[tuple[int, int]]:
        steps.append(len(scores))
        if len(steps) == 7:
            os.kill(children()[-1], signal.SIGKILL)
        return step(search, scores)

    monkeypatch.setattr(BeamSearch, "step", killing)
    generation = generate(cascade, prompts, **told, via="processes", workers=2)
    assert generation.all() == expected
    assert len(generation.log.deaths) == 1


@each("make", [with_concat, with_group_query_attention])
def test_a_decoder_alone_has_beams_too(make: Any, tmp_path: Path) -> None:  # noqa: ANN401 - a function
    """Of many beams, none is left out: the best of all texts."""
    onnx.save(make(), tmp_path / "model.onnx")
    cascade, prompts = graphcut.split(tmp_path / "model.onnx", Into(2)), [[3, 1, 4], [1, 5]]
    one = generate(cascade, prompts, max_tokens=2, beams=64).all()
    with graphcut.DecodingService(cascade) as service:
        for prompt, best in zip(prompts, one, strict=True):
            first = service.stream(prompt, max_tokens=1, top=64)
            list(first)
            pairs = dict[tuple[int, int], float]()
            for token, logprob in first.sequence.scores[0].top:
                second = service.stream([*prompt, token], max_tokens=1, top=1)
                list(second)
                pairs[token, second.sequence.scores[0].top[0][0]] = logprob + second.sequence.scores[0].top[0][1]
            assert tuple(best) == max(pairs, key=lambda pair: pairs[pair])


def test_an_encoder_that_tells_the_number_of_rows_is_fed_all_of_them(tmp_path: Path) -> None:
    """What is kept of the first step would say that there is one."""
    sound = np.random.default_rng(0).normal(size=(1, 7, WIDTH)).astype(np.float32)
    told: dict[str, Any] = {"inputs": {"sound": sound}, "max_tokens": 10, "beams": 4}
    found = list[list[list[int]]]()
    for name in ("plain", "sizes"):
        model = with_encoder(with_concat())
        if name == "sizes":
            at = Drawing("s/")
            rows = at.node("Shape", "sound", start=0, end=1, writes="rows")
            shape = at.node("Concat", rows, at.number([-1, WIDTH]), axis=0)
            scored = at.node("Reshape", model.graph.node[-1].input[0], shape)
            model.graph.node[-1].input[0] = scored
            *first, reshape = at.nodes
            nodes = [*first, *model.graph.node[:-1], reshape, model.graph.node[-1]]
            del model.graph.node[:]
            model.graph.node.extend(nodes)
            model.graph.initializer.extend(at.weights)
        onnx.save(model, tmp_path / f"{name}.onnx")
        at_tensors = ("heard_1", "rows") if name == "sizes" else ("heard_1",)
        cascade = graphcut.split(tmp_path / f"{name}.onnx", At(at_tensors))
        assert ("rows" in cascade.parts[-1].reads) == (name == "sizes")
        generation = generate(cascade, [[5, 9], [7], [40, 2]], **told)
        found.append(generation.all())
        assert generation.log.total_of(0).runs == 3
    assert found[0] == found[1] != generate(cascade, [[5, 9], [7], [40, 2]], **told | {"beams": 1}).all()


def test_what_beams_can_not_be_is_said(tmp_path: Path) -> None:
    onnx.save(with_concat(), tmp_path / "model.onnx")
    cascade = graphcut.split(tmp_path / "model.onnx", Into(2))
    for more in ({"sampling": Sampling(temperature=1)}, {"stop": lambda *_: False}, {"beams": 0}, {"draft": "lookup"}):
        told: dict[str, Any] = {"beams": 2, **more}
        with pytest.raises(UsageError, match="beam"):
            generate(cascade, [[1]], max_tokens=2, **told)
    onnx.save(with_buffer(), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="beams need a model that takes several sequences in a step"):
        generate(graphcut.split(tmp_path / "model.onnx", Into(2), force=True), [[1]], max_tokens=2, beams=2)


def test_beams_of_scores_that_are_no_numbers_end_with_an_error(tmp_path: Path) -> None:
    at = Drawing()
    row = at.node("Gather", at.weight("table", 5, 5), at.reads("input_ids", onnx.TensorProto.INT64, "batch", "seq"))
    root = at.node("Sqrt", at.node("Neg", at.node("Abs", row)))
    at.returns(at.node("Identity", root, writes="logits"), "batch", "seq", 5)
    onnx.save(at.model(), tmp_path / "model.onnx")
    cascade = graphcut.split(tmp_path / "model.onnx", Into(1))
    with pytest.raises(RunError, match="no beam can go on: the logits are not finite"):
        generate(cascade, [[1]], max_tokens=2, beams=2).all()
