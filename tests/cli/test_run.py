"""`graphcut run`: one input or many, within a cap or as a pipeline, and what is result where that can't be."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import UsageError
from graphcut.cli.common_options import SessionOptions
from graphcut.cli.input_files import read_or_generate
from graphcut.cli.memory_options import say_after, say_before
from graphcut.cli.output import settings
from graphcut.core.units import parse_bytes
from graphcut.workers.scheduling.scheduler import DEADLINE_S

from command_line import Result, Run, command, holdings, llm, own_llm, own_parts, parts, run
from conftest import floats, model_of
from families.chains import write_sentence_encoder

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """x → Relu → a → Neg → y, cut after Relu."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats("y", 2)]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.At(("relu",)))).root


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """y = -x by matrices of 16 MiB, one in each part: it matters whether one or both are loaded."""
    sizes = [2, 1024, 4096, 1024, 2]
    weights = [
        numpy_helper.from_array(np.eye(*shape, dtype=np.float32) * (-1 if i == 0 else 1), f"w{i}")
        for i, shape in enumerate(pairwise(sizes))
    ]
    tensors = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MatMul", [read, f"w{i}"], [written], name=written)
        for i, (read, written) in enumerate(pairwise(tensors))
    ]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats("y", 2)], weights), tmp_path / "heavy.onnx")
    model = graphcut.load(tmp_path / "heavy.onnx")
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.At(("b",)))).root


NEGATED = {"a.npz": [1, -2], "b.npz": [-3, 4], "c.npz": [-5, -6]}


def feed(folder: Path, name: str, *values: float) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", x=np.array(values, np.float32))
    return folder / f"{name}.npz"


def onnx_test_data(folder: Path, name: str, *values: float) -> Path:
    (folder / name).mkdir(parents=True)
    message = numpy_helper.from_array(np.array(values, np.float32), "x")
    (folder / name / "input_0.pb").write_bytes(message.SerializeToString())
    return folder / name


def answers(folder: Path) -> dict[str, list[float]]:
    return {file.name: np.load(file)["y"].tolist() for file in sorted(folder.iterdir())}


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    """Two files and a set of ONNX test data, and a file that is no input."""
    folder = tmp_path / "batches"
    feed(folder, "b", 3, -4)
    feed(folder, "a", -1, 2)
    onnx_test_data(folder, "c", 5, 6)
    (folder / "README").write_text("mine")
    return folder


EXPECTED = {"a.npz": [0, -2], "b.npz": [-3, 0], "c.npz": [-5, -6]}


@pytest.mark.parametrize(
    "words", [(), ("--via", "threads"), ("--via", "threads", "--workers", 2), ("--memory-limit", "4GiB")]
)
def test_a_folder_of_inputs_makes_a_folder_of_outputs(
    run: Run, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", *words)
    assert result.code == 0, result.err
    assert f"wrote {tmp_path / 'out'}" in result.err.splitlines()
    assert answers(tmp_path / "out") == EXPECTED


def test_inputs_can_be_named_one_by_one(run: Run, place: Path, batches: Path, tmp_path: Path) -> None:
    words = [word for name in ("b.npz", "c", "a.npz") for word in ("--inputs", batches / name)]
    assert run("run", place, *words, "-o", tmp_path / "out").code == 0
    assert answers(tmp_path / "out") == EXPECTED


def test_one_set_of_test_data_makes_one_file(run: Run, place: Path, batches: Path, tmp_path: Path) -> None:
    assert run("run", place, "--inputs", batches / "c", "-o", tmp_path / "y.npz").code == 0
    assert np.load(tmp_path / "y.npz")["y"].tolist() == [-5, -6]


def test_two_inputs_with_one_name_are_refused(run: Run, place: Path, tmp_path: Path) -> None:
    one, two = feed(tmp_path / "p", "a", 1, 2), feed(tmp_path / "q", "a", 3, 4)
    result = run("run", place, "--inputs", one, "--inputs", two, "-o", tmp_path / "out")
    assert (result.code, result.error) == (
        2,
        (f"two inputs would have the same output file {tmp_path / 'out' / 'a.npz'}", "rename one of them"),
    )


def test_a_run_without_inputs_or_with_two_kinds_says_what_to_give(run: Run, place: Path) -> None:
    for words, what in (([], "no inputs were given"), (["--inputs", "random", "--text", "a"], "were both given")):
        refused = run("run", place, *words)
        assert refused.code == 2
        assert what in refused.err
        assert "--inputs random" in refused.err


def test_a_folder_without_inputs_is_refused(run: Run, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("run", place, "--inputs", tmp_path / "empty", "-o", tmp_path / "out")
    assert (result.code, result.error[0]) == (2, f"{tmp_path / 'empty'} holds no inputs")
    assert not (tmp_path / "out").exists()


def test_many_inputs_into_a_file_and_one_into_a_folder_are_refused(
    run: Run, place: Path, batches: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "file", "-f")
    assert (result.code, result.error[0]) == (2, f"{tmp_path / 'file'} is a file, and 3 inputs make a folder of files")
    result = run("run", place, "--inputs", batches / "a.npz", "-o", batches)
    assert (result.code, result.error[0]) == (2, f"{batches} is a folder, and one input makes one file")
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "nowhere" / "out")
    assert (result.code, result.error[0]) == (2, f"there is no folder {tmp_path / 'nowhere'}")


def test_force_replaces_existing_outputs_and_keeps_other_files(
    run: Run, place: Path, batches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.npz").write_text("old")
    (out / "notes").write_text("mine")
    words = ("run", place, "--inputs", batches, "-o", out)
    result = run(*words)
    assert (result.code, result.error[0]) == (2, f"{out / 'b.npz'} already exists")
    assert holdings(out) == {"b.npz", "notes"}
    assert run(*words, "-f").code == 0
    assert (out / "notes").read_text() == "mine"
    (out / "notes").unlink()
    assert answers(out) == EXPECTED


@pytest.mark.parametrize("words", [(), ("--via", "threads"), ("--memory-limit", "4GiB")])
def test_an_input_that_fails_is_skipped_when_asked(
    run: Run, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    feed(batches, "b", 1, 2, 3)
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", "--on-error", "skip", *words)
    assert result.code == 3
    failed = f"{batches / 'b.npz'} failed: input 'x' is fed shape [3], and the model reads float32[2]"
    assert failed in result.err.splitlines()
    assert result.err.splitlines()[-1] == "1 of 3 inputs failed"
    assert answers(tmp_path / "out") == {name: EXPECTED[name] for name in ("a.npz", "c.npz")}


def test_an_input_that_fails_ends_the_run_and_what_was_written_stays(
    run: Run, place: Path, batches: Path, tmp_path: Path
) -> None:
    feed(batches, "b", 1, 2, 3)
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out")
    assert (result.code, result.error[0]) == (2, "input 'x' is fed shape [3], and the model reads float32[2]")
    assert answers(tmp_path / "out") == {"a.npz": EXPECTED["a.npz"]}


@pytest.mark.parametrize("words", [(), ("--via", "threads"), ("--memory-limit", "4GiB")])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_unreadable_input_fails_in_its_turn(
    run: Run, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...], *, goes_on: bool
) -> None:
    (batches / "b.npz").write_text("no archive")
    result = run(
        "run", place, "--inputs", batches, "-o", tmp_path / "out", "--on-error", "skip" if goes_on else "raise", *words
    )
    assert result.code == (3 if goes_on else 2)
    assert f"{batches / 'b.npz'} is not a .npz file" in result.err
    assert ("1 of 3 inputs failed" in result.err.splitlines()) is goes_on
    assert answers(tmp_path / "out") == {name: EXPECTED[name] for name in ("a.npz", "c.npz")[: 1 + goes_on]}


def test_the_hint_names_the_input_at_which_a_run_stopped(run: Run, place: Path, batches: Path, tmp_path: Path) -> None:
    feed(batches, "b", 1, 2, 3)
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out")
    assert result.error[1].endswith(f"(the run stopped at {batches / 'b.npz'})")


def test_a_missing_output_folder_is_misuse(run: Run, place: Path, tmp_path: Path) -> None:
    result = run("run", place, "--inputs", feed(tmp_path, "a", 1, 2), "-o", tmp_path / "nowhere" / "y.npz")
    assert (result.code, result.error[0]) == (2, f"there is no folder {tmp_path / 'nowhere'}")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_an_impossible_deadline_is_refused(run: Run, place: Path, batches: Path, tmp_path: Path, seconds: str) -> None:
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", "--via", "threads", "--deadline", seconds)
    assert (result.code, result.error[0]) == (2, f"a deadline of {seconds} s is not possible")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory-limit", "1GiB", "--via", "threads"), "a memory limit is for one process, without other workers"),
        (("--exact",), "--exact applies to --memory-limit"),
        (("--workers", 2), "--workers applies to --via"),
        (("--insecure",), "--insecure applies to --via ray"),
        (("--via", "threads", "--insecure"), "--insecure applies to --via ray"),
        (("--memory-limit", "much"), "'much' is not a size"),
        (("--via", "threads", "--micro-batch", "many"), "a batch can't be divided into pieces of many"),
        (("--provider", "A,B"), "A,B: expected NAME,KEY=VALUE,..."),
    ],
)
def test_wrong_options_are_misuse(
    run: Run, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", *words)
    assert (result.code, result.error[0]) == (2, message)
    assert result.error[1]
    assert not (tmp_path / "out").exists()


def test_an_unknown_provider_is_an_error(run: Run, place: Path, batches: Path, tmp_path: Path) -> None:
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", "--provider", "NoSuchExecutionProvider")
    assert result.code == 3
    assert (
        result.error[0] == "part-0.onnx is to run with NoSuchExecutionProvider: this ONNX Runtime does not have it, "
        "and no installed plugin has a device for it"
    )
    assert "CPUExecutionProvider" in result.error[1]
    assert not (tmp_path / "out").exists()


def test_provider_options_are_passed_on() -> None:
    found = SessionOptions("CUDAExecutionProvider,device_id=1,path=a=b").session_config()
    assert (found.provider, found.options) == ("CUDAExecutionProvider", {"device_id": "1", "path": "a=b"})
    with pytest.raises(UsageError):
        SessionOptions("=1").session_config()


def test_a_memory_limit_is_refused_or_kept(heavy: Path, batches: Path, tmp_path: Path) -> None:
    """In processes of their own: that which the hint of a refusal names is kept, by the measure of the system."""
    words = ("run", heavy, "--inputs", batches, "-o", tmp_path / "out", "--exact", "--memory-limit")
    refused = command(*words, "20MiB")
    assert refused.code == 3
    assert re.fullmatch(
        r"this run is predicted to need [\d.]+ MiB, more than the memory limit of 20 MiB", refused.error[0]
    )
    assert not (tmp_path / "out").exists()
    named = re.search(r"allow --memory-limit (\d+) \(([\d.]+ MiB)\) or more", refused.error[1])
    assert named is not None
    result = command(*words, named[1])
    assert result.code == 0, result.err
    lines = result.err.splitlines()
    assert re.fullmatch(rf"predicted peak [\d.]+ MiB of {named[2]}: one part loaded at a time.*", lines[0])
    measured = re.fullmatch(r"measured peak ([\d.]+ MiB) \(resident pages\)", lines[-1])
    assert measured is not None, result.err
    assert parse_bytes(measured[1]) <= parse_bytes(named[2])
    assert answers(tmp_path / "out") == NEGATED


def test_mapped_weights_are_reported(heavy: Path, batches: Path, tmp_path: Path) -> None:
    refused = command("run", heavy, "--inputs", batches, "-o", tmp_path / "out", "--memory-limit", "1MiB")
    named = re.search(r"allow --memory-limit (\d+) \(([\d.]+ MiB)\) or more", refused.error[1])
    assert named is not None
    result = command("run", heavy, "--inputs", batches, "-o", tmp_path / "out", "--memory-limit", named[1])
    told = "weights are mapped, not prepacked: results may differ from those without a limit; --exact avoids this"
    assert told in result.err.splitlines()
    shutil.rmtree(tmp_path / "out")
    result = command("run", heavy, "--inputs", batches, "-o", tmp_path / "out", "--memory-limit", "4GiB")
    assert told not in result.err.splitlines()
    assert "2 parts, all stay loaded" in result.err.splitlines()[0]


def test_random_inputs_are_generated_from_the_seed(run: Run, own_parts: Path, tmp_path: Path) -> None:
    words = ("run", own_parts, "--inputs", "random", "--dim", "seq=5", "--dim", "batch=1")
    result = run(*words, "-o", tmp_path / "a.npz", "--seed", 3)
    assert result.code == 0, result.err
    (told, *_) = result.err.splitlines()
    assert told.startswith("inputs generated with --seed 3: input_ids int64[1, 5], attention_mask int64[1, ")
    assert run(*words, "-o", tmp_path / "b.npz", "--seed", 3).code == 0
    assert run(*words, "-o", tmp_path / "c.npz", "--seed", 4).code == 0
    first, again, other = (np.load(tmp_path / f"{name}.npz")["logits"] for name in "abc")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert run(*words, "-o", tmp_path / "d.npz", "--via", "threads", "-q") == Result(0, "", "")


def test_a_file_called_random_is_read(run: Run, place: Path, tmp_path: Path) -> None:
    feed(tmp_path, "a", 1, -2).rename(tmp_path / "random")
    assert run("run", place, "--inputs", "random", "-o", "y.npz").code == 0
    assert np.load(tmp_path / "y.npz")["y"].tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", 1), "--seed applies to --inputs random"),
        (("--dim", "n=1"), "--dim applies to --inputs random"),
        (("--model", "m.onnx"), "--model applies to --inputs random"),
        (("--deadline", 3), "--deadline applies to --via"),
        (("--via", "threads", "--micro-batch", "0"), "a batch can't be divided into pieces of 0"),
    ],
)
def test_options_that_do_nothing_are_refused(
    run: Run, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    result = run("run", place, "--inputs", batches, "-o", tmp_path / "out", *words)
    assert (result.code, result.error[0]) == (2, message)


def test_random_inputs_need_the_original_model(run: Run, own_parts: Path, tmp_path: Path) -> None:
    model = own_parts.with_name("llm.onnx")
    model.rename(tmp_path / "moved.onnx")
    words = ("run", own_parts, "--inputs", "random", "-o", tmp_path / "out.npz")
    assert run(*words).error == (f"the model that was cut is not at {model}", "name it with --model")
    assert run(*words, "--model", tmp_path / "moved.onnx").code == 0


def test_the_default_deadline_is_that_of_the_library(run: Run) -> None:
    assert f"[default: {DEADLINE_S:g}]" in run("run", "--help").out


def test_run_gives_what_the_library_gives(own_parts: Path, run: Run, tmp_path: Path) -> None:
    inputs = own_parts.parent / "in.npz"
    feeds: dict[str, Any] = {
        "input_ids": np.array([[4, 2]]),
        "attention_mask": np.ones((1, 2), np.int64),
        "position_ids": np.array([[0, 1]]),
    }
    caches = [f"past_key_values.{layer}.{kind}" for layer in range(3) for kind in ("key", "value")]
    feeds |= dict.fromkeys(caches, np.zeros((1, 1, 0, 8), np.float32))
    np.savez(inputs, **feeds)
    assert run("run", own_parts, "--inputs", inputs, "-o", tmp_path / "out.npz").code == 0
    expected = graphcut.run(graphcut.open_cascade(own_parts), feeds)
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def small_cascade(run: Run, folder: Path, *outputs: str) -> Path:
    """x → Relu → Neg, each given out under that name."""
    nodes = [
        helper.make_node("Relu", ["x"], [outputs[0]], name="relu"),
        helper.make_node("Neg", [outputs[0]], [outputs[1]], name="neg"),
    ]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats(name, 2) for name in outputs]), folder / "m.onnx")
    np.savez(folder / "in.npz", x=np.array([1, -2], np.float32))
    assert run("split", folder / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    return folder / "m.parts"


@pytest.mark.parametrize("outputs", [("a", "y"), ("file", "kwds"), ("/a/b", "a:0"), ("[red]", "é")])
def test_outputs_are_saved_whatever_they_are_called(run: Run, tmp_path: Path, outputs: tuple[str, str]) -> None:
    place = small_cascade(run, tmp_path, *outputs)
    result = run("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.code == 0, result.err
    with np.load(tmp_path / "out.npz") as found:
        assert [found[name].tolist() for name in outputs] == [[1, 0], [-1, 0]]
    assert result.err.splitlines()[0] == f"{outputs[0]}  float32[2]"


@pytest.mark.parametrize("way", [(), ("--memory-limit", "64GiB"), ("--via", "threads"), ("--via", "processes")])
def test_only_the_outputs_that_are_asked_for_are_saved(run: Run, tmp_path: Path, way: tuple[str, ...]) -> None:
    place = small_cascade(run, tmp_path, "a", "y")
    words = ("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", *way)
    result = run(*words, "--outputs", "y")
    assert result.code == 0, result.err
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"y": [-1, 0]}
    for names, error in (
        ("y,z", "the model has no output 'z'"),
        ("x", "the model has no output 'x'"),
        (",", "--outputs ,: expected names of outputs"),
    ):
        assert (refused := run(*words, "-f", "--outputs", names)).code == 2
        assert refused.error[0] == error
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == ["y"]


def test_run_keeps_an_existing_file_without_force(run: Run, tmp_path: Path) -> None:
    place = small_cascade(run, tmp_path, "a", "y")
    (tmp_path / "out.npz").write_text("mine")
    words = ("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert run(*words).code == 2
    assert (tmp_path / "out.npz").read_text() == "mine"
    assert run(*words, "-f").code == 0


def test_run_into_a_missing_folder_is_misuse(run: Run, tmp_path: Path) -> None:
    place = small_cascade(run, tmp_path, "a", "y")
    before = holdings(tmp_path)
    result = run("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "nowhere" / "out.npz")
    assert result.code == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in result.error[0]
    assert holdings(tmp_path) == before


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3, np.float32)}, "input 'x' is fed shape [3], and the model reads float32[2]"),
        ({"x": np.ones(2)}, "input 'x' is fed float64, and the model reads float32"),
        ({}, "the model reads float32[2] 'x', and nothing is fed for it"),
    ],
)
@pytest.mark.parametrize("words", [(), ("--via", "threads")])
def test_run_on_wrong_inputs_is_misuse(
    run: Run, tmp_path: Path, arrays: dict[str, Any], message: str, words: tuple[str, ...]
) -> None:
    place = small_cascade(run, tmp_path, "a", "y")
    np.savez(tmp_path / "wrong.npz", **arrays)
    result = run("run", place, "--inputs", tmp_path / "wrong.npz", "-o", tmp_path / "out.npz", *words)
    assert (result.code, result.error[0]) == (2, message)
    assert not (tmp_path / "out.npz").exists()


def test_a_sequence_output_is_no_defect(run: Run, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Concat", ["a", "a"], ["b"], name="twice", axis=0),
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"], name="construct"),
    ]
    output = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    onnx.save(model_of(nodes, [floats("x", 2)], [output]), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.array([1, -2], np.float32))
    assert run("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    result = run("run", tmp_path / "m.parts", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert "defect" not in result.err
    printed = run("run", tmp_path / "m.parts", "--inputs", tmp_path / "in.npz")
    assert printed.out == "s  list\n"


def test_string_outputs_can_be_read_again(run: Run, tmp_path: Path) -> None:
    """Without pickles, which graphcut itself refuses to read."""
    nodes = [
        helper.make_node("Identity", ["s"], ["a"], name="same"),
        helper.make_node("Concat", ["a", "a"], ["t"], name="twice", axis=0),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"]) for name in ("s", "t")]
    onnx.save(model_of(nodes, ends[:1], ends[1:]), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", s=np.array(["a", "bc"]))
    assert run("split", tmp_path / "m.onnx", "--at-nodes", "same", "-q").code == 0
    result = run("run", tmp_path / "m.parts", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.code == 0, result.err
    with np.load(tmp_path / "out.npz") as found:
        assert found["t"].tolist() == ["a", "bc", "a", "bc"]


def test_a_run_that_is_interrupted_while_it_writes_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_cascade(run, tmp_path, "a", "y")
    before = holdings(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    result = run("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.code == 130
    assert holdings(tmp_path) == before


def test_texts_become_the_vectors_that_python_gets(run: Run, tmp_path: Path) -> None:
    folder, texts = write_sentence_encoder(tmp_path), ["a cat sleeps", "the dog runs"]
    cascade = graphcut.split(folder, graphcut.Into(2), folder / "parts")
    words = [word for text in texts for word in ("--text", text)]
    assert run("run", cascade.root, *words, "-o", tmp_path / "y.npz").code == 0
    expected = graphcut.run(cascade, graphcut.text_inputs(cascade, texts))
    with np.load(tmp_path / "y.npz") as found:
        assert {*found} == {*expected}
        assert all(np.array_equal(found[name], values) for name, values in expected.items())


def test_what_a_memory_limit_could_not_keep_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "is_quiet", False)
    forecast = SimpleNamespace(
        is_estimated=True, is_mapped=False, peak_bytes=2 << 20, memory_bytes=3 << 20, residency="all", spills=True
    )
    peak = SimpleNamespace(bytes=4 << 20, is_since_start=True)
    ran = SimpleNamespace(
        forecast=forecast, peak=peak, placements={0: {"CUDAExecutionProvider": 1, "CPUExecutionProvider": 2}}
    )
    say_before(ran, exact=False)
    say_after(ran, graphcut.open_cascade(place).parts)
    assert capsys.readouterr().err.splitlines() == [
        "predicted peak about 2 MiB of 3 MiB: all",
        "tensors between parts that do not fit into memory go to a temporary folder",
        "part-0.onnx runs 2 nodes with CPUExecutionProvider, 1 node with CUDAExecutionProvider",
        "measured peak 4 MiB (resident pages, since the process started)",
        "that is more than 3 MiB: sizes are estimates; split with --dim for exact ones",
    ]


def test_inputs_of_a_file_are_read_and_random_ones_generated(own_llm: Path, tmp_path: Path) -> None:
    model = graphcut.load(own_llm)
    np.savez(tmp_path / "x.npz", **graphcut.generate_inputs(model, seed=4))
    for source, seed in ((tmp_path / "x.npz", 4), (Path("random"), 3)):
        found, feeds = read_or_generate(source, model, 3), graphcut.generate_inputs(model, seed=seed)
        assert {*found} == {*feeds}
        assert all(np.array_equal(found[name], feeds[name]) for name in feeds)
