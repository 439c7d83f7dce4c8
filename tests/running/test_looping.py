"""Pipelines of models with a number of steps: what runs once, at each step, and after the last one."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from decoders import Array, Feeds

import graphcut
from graphcut import Cascade, Into, Runner, Via
from graphcut.running.in_process.looping import loop_phases, run_loop
from graphcut.running.stage import SessionConfig, Stage
from graphcut.running.values import Outputs, Value, Values, to_value
from graphcut.workers.looping import LoopRouting, run_steps
from graphcut.workers.scheduling.requests import Request

from cases import each
from families import FAMILIES, by_hand

DIFFUSION = FAMILIES["diffusion"]
PIPELINE = Path(__file__).parent.parent / "families" / "diffusion.toml"


def written(folder: Path, change: Callable[[str], str] = str) -> Path:
    DIFFUSION.write(folder)
    text = PIPELINE.read_text(encoding="utf-8")
    (folder / "pipeline.toml").write_text(change(text), encoding="utf-8")
    return folder


def image_of_steps(folder: Path, inputs: Feeds, values: list[int]) -> Array:
    said = by_hand.run(folder / "text_encoder" / "model.onnx", {"input_ids": inputs["input_ids"]})["last_hidden_state"]
    latents = inputs["sample"]
    for value in values:
        feeds = {"sample": latents, "timestep": np.array([value]), "encoder_hidden_states": said}
        latents = by_hand.run(folder / "unet" / "model.onnx", feeds)["out_sample"]
    return by_hand.run(folder / "vae_decoder" / "model.onnx", {"latent_sample": latents})["sample"]


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    folder = written(tmp_path_factory.mktemp("diffusion"))
    return graphcut.split(folder, Into(4), folder / "parts")


def test_an_image_is_that_of_the_loop_by_hand(cascade: Cascade) -> None:
    inputs = DIFFUSION.inputs(1)
    wanted = DIFFUSION.reference(cascade.source.parent, inputs, 4)
    assert np.array_equal(graphcut.run(cascade, inputs)["vae/sample"], wanted)
    with Runner(cascade) as runner:
        first, second = runner.run_all([inputs, DIFFUSION.inputs(2)])
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert np.array_equal(first["vae/sample"], wanted)
    assert not np.array_equal(second["vae/sample"], wanted)


def test_a_memory_limit_in_which_not_all_parts_fit_changes_nothing(cascade: Cascade) -> None:
    inputs = DIFFUSION.inputs(1)
    wanted = graphcut.run(cascade, inputs)
    with Runner(cascade, memory_bytes=1 << 40, exact=True) as runner:
        assert np.array_equal(runner.run(inputs)["vae/sample"], wanted["vae/sample"])
        with pytest.raises(graphcut.MemoryCapError):
            Runner(cascade, memory_bytes=1 << 20).run(inputs)


def test_each_part_runs_as_often_as_its_models_should(cascade: Cascade) -> None:
    runs = Counter[int]()

    def run(index: int, values: Values) -> dict[str, Value]:
        runs[index] += 1
        return Stage(cascade, cascade.parts[index], config=SessionConfig()).step(values)

    run_loop(cascade, {name: to_value(v, cascade.tensors[name]) for name, v in DIFFUSION.inputs(1).items()}, run)
    phases = loop_phases(cascade)
    assert runs == {**dict.fromkeys(phases.once, 1), **dict.fromkeys(phases.step, 4), **dict.fromkeys(phases.end, 1)}
    assert all(phases)


def test_an_input_can_have_any_value_at_each_step(tmp_path: Path) -> None:
    """Those of the counter, in another order: another image, that of feeding these numbers by hand."""
    values = [3, 1, 0]
    loop = f'inputs = {{ "unet.timestep" = {values} }}'
    folder = written(tmp_path, lambda text: text.partition("steps = 4")[0] + loop + "\n")
    inputs = DIFFUSION.inputs(1)
    found = graphcut.run(graphcut.split(folder, Into(3), tmp_path / "parts"), inputs)
    assert np.array_equal(found["vae/sample"], image_of_steps(folder, inputs, values))


def test_what_the_loop_gives_need_not_be_fed_and_the_rest_must(cascade: Cascade) -> None:
    assert cascade.needed == ("input_ids", "sample")
    with pytest.raises(graphcut.RunError, match="'sample'"):
        graphcut.run(cascade, {"input_ids": DIFFUSION.inputs(1)["input_ids"]})


def test_a_pipeline_whose_steps_are_counted_generates_no_tokens(cascade: Cascade) -> None:
    with pytest.raises(graphcut.UsageError, match="generates no tokens") as caught:
        graphcut.generate(cascade, [[1]], max_tokens=2)
    assert caught.value.hint == "run it with `run(...)`"


def test_a_plan_keeps_apart_what_runs_once_at_each_step_and_at_the_end(cascade: Cascade) -> None:
    model = graphcut.load(cascade.source.parent)
    assert {*model.phases.values()} == {0, 1, 2}
    for goal in (Into(3), Into(5), graphcut.Within(60_000_000)):
        plan = graphcut.plan(model, goal)
        assert [len({model.phases[node] for node in part}) for part in plan.parts] == [1] * len(plan.parts)


def test_a_loop_is_verified_step_by_step(cascade: Cascade, tmp_path: Path) -> None:
    shutil.copytree(cascade.source.parent, tmp_path / "copy")
    assert graphcut.verify(tmp_path / "copy" / "parts")


def test_inputs_of_a_run_are_inputs_of_a_verification(cascade: Cascade) -> None:
    """What the loop gives at the first step is given there, too."""
    found = graphcut.verify(cascade.source.parent, cascade, inputs=[DIFFUSION.inputs(1)])
    assert found
    assert found.runs
    with pytest.raises(graphcut.RunError, match="ghost"):
        graphcut.verify(cascade.source.parent, cascade, inputs=[{**DIFFUSION.inputs(1), "ghost": np.zeros(1)}])


@each("via, workers", [("threads", 1), ("threads", 3), ("processes", 2)])
def test_workers_run_the_steps_and_give_the_same_image(via: Via, workers: int, cascade: Cascade) -> None:
    inputs = [DIFFUSION.inputs(seed) for seed in range(3)]
    wanted = [graphcut.run(cascade, one)["vae/sample"] for one in inputs]
    with graphcut.Pipeline(cascade, via=via, workers=workers) as pipeline:
        found = [*pipeline.map(inputs)]
        runs = [pipeline.log.total_of(part).runs for part in range(len(cascade.parts))]
    phases = loop_phases(cascade)
    assert runs == [3 * (4 if part in phases.step else 1) for part in range(len(cascade.parts))]
    pairs = zip(found, wanted, strict=True)
    assert [np.array_equal(one["vae/sample"], other) for one, other in pairs if isinstance(one, dict)] == [True] * 3


def test_what_fails_between_two_steps_is_the_answer_and_what_workers_keep_is_forgotten(cascade: Cascade) -> None:
    def send(_: Request, heard: Callable[[Future[Outputs]], None]) -> None:
        answered = Future[Outputs]()
        answered.add_done_callback(heard)
        answered.set_result({})  # without the states of the next step

    forgotten: list[int] = []
    values = {name: to_value(one, cascade.tensors[name]) for name, one in DIFFUSION.inputs(1).items()}
    answer = run_steps(LoopRouting(cascade, ["vae/sample"]), values, "run", 7, send, forgotten.append)
    assert isinstance(answer.exception(timeout=1), KeyError)
    assert forgotten == [7]
