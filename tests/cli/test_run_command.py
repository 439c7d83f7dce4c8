"""`graphcut run`: one input or many, within a cap or as a pipeline, and what is said where that can't be."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from test_command import Say, command, holdings, say

import graphcut
from graphcut import UsageError
from graphcut.cli.common_options import ProviderOptions
from graphcut.core.units import parse_bytes

from conftest import floats, model_of

__all__ = ["say"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """x → Relu → a → Neg → y, cut behind Relu."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats("y", 2)]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.At(("relu",)))).root


def feed(folder: Path, name: str, *values: float) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", x=np.array(values, np.float32))
    return folder / f"{name}.npz"


def test_data(folder: Path, name: str, *values: float) -> Path:
    (folder / name).mkdir(parents=True)
    message = numpy_helper.from_array(np.array(values, np.float32), "x")
    (folder / name / "input_0.pb").write_bytes(message.SerializeToString())
    return folder / name


test_data.__test__ = False  # type: ignore[attr-defined]  # ONNX calls it so


def answers(folder: Path) -> dict[str, list[float]]:
    return {file.name: np.load(file)["y"].tolist() for file in sorted(folder.iterdir())}


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    """Two files and a set of ONNX test data, and a file that is no input."""
    folder = tmp_path / "batches"
    feed(folder, "b", 3, -4)
    feed(folder, "a", -1, 2)
    test_data(folder, "c", 5, 6)
    (folder / "README").write_text("mine")
    return folder


EXPECTED = {"a.npz": [0, -2], "b.npz": [-3, 0], "c.npz": [-5, -6]}


@pytest.mark.parametrize(
    "words", [(), ("--via", "threads"), ("--via", "threads", "--workers", 2), ("--memory", "4GiB")]
)
def test_a_folder_of_inputs_makes_a_folder_of_outputs(
    say: Say, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out", *words)
    assert said.code == 0, said.err
    assert f"wrote {tmp_path / 'out'}" in said.err.splitlines()
    assert answers(tmp_path / "out") == EXPECTED


def test_inputs_can_be_named_one_by_one(say: Say, place: Path, batches: Path, tmp_path: Path) -> None:
    words = [word for name in ("b.npz", "c", "a.npz") for word in ("--inputs", batches / name)]
    assert say("run", place, *words, "-o", tmp_path / "out").code == 0
    assert answers(tmp_path / "out") == EXPECTED


def test_one_set_of_test_data_makes_one_file(say: Say, place: Path, batches: Path, tmp_path: Path) -> None:
    assert say("run", place, "--inputs", batches / "c", "-o", tmp_path / "y.npz").code == 0
    assert np.load(tmp_path / "y.npz")["y"].tolist() == [-5, -6]


def test_two_inputs_of_one_name_are_told(say: Say, place: Path, tmp_path: Path) -> None:
    one, two = feed(tmp_path / "p", "a", 1, 2), feed(tmp_path / "q", "a", 3, 4)
    said = say("run", place, "--inputs", one, "--inputs", two, "-o", tmp_path / "out")
    assert (said.code, said.complaint) == (
        2,
        (f"two inputs would have the same output file {tmp_path / 'out' / 'a.npz'}", "rename one of them"),
    )


def test_a_folder_without_inputs_is_told(say: Say, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = say("run", place, "--inputs", tmp_path / "empty", "-o", tmp_path / "out")
    assert (said.code, said.complaint[0]) == (2, f"{tmp_path / 'empty'} holds no inputs")
    assert not (tmp_path / "out").exists()


def test_many_inputs_into_a_file_and_one_into_a_folder_are_told(
    say: Say, place: Path, batches: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "file", "-f")
    assert (said.code, said.complaint[0]) == (2, f"{tmp_path / 'file'} is a file, and 3 inputs make a folder of files")
    said = say("run", place, "--inputs", batches / "a.npz", "-o", batches)
    assert (said.code, said.complaint[0]) == (2, f"{batches} is a folder, and one input makes one file")
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "nowhere" / "out")
    assert (said.code, said.complaint[0]) == (2, f"there is no folder {tmp_path / 'nowhere'}")


def test_outputs_that_stand_there_are_replaced_when_asked_and_others_stay(
    say: Say, place: Path, batches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.npz").write_text("old")
    (out / "notes").write_text("mine")
    words = ("run", place, "--inputs", batches, "-o", out)
    said = say(*words)
    assert (said.code, said.complaint[0]) == (2, f"{out / 'b.npz'} already exists")
    assert holdings(out) == {"b.npz", "notes"}
    assert say(*words, "-f").code == 0
    assert (out / "notes").read_text() == "mine"
    (out / "notes").unlink()
    assert answers(out) == EXPECTED


@pytest.mark.parametrize("words", [(), ("--via", "threads"), ("--memory", "4GiB")])
def test_an_input_that_fails_is_skipped_when_asked(
    say: Say, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    feed(batches, "b", 1, 2, 3)
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out", "--on-error", "skip", *words)
    assert said.code == 3
    failed = f"{batches / 'b.npz'} failed: input 'x' is fed shape [3], and the model reads float32[2]"
    assert failed in said.err.splitlines()
    assert said.err.splitlines()[-1] == "1 of 3 inputs failed"
    assert answers(tmp_path / "out") == {name: EXPECTED[name] for name in ("a.npz", "c.npz")}


def test_an_input_that_fails_ends_the_run_and_what_was_written_stays(
    say: Say, place: Path, batches: Path, tmp_path: Path
) -> None:
    feed(batches, "b", 1, 2, 3)
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out")
    assert (said.code, said.complaint[0]) == (3, "input 'x' is fed shape [3], and the model reads float32[2]")
    assert answers(tmp_path / "out") == {"a.npz": EXPECTED["a.npz"]}


@pytest.mark.parametrize("words", [(), ("--via", "threads"), ("--memory", "4GiB")])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_input_that_can_not_be_read_fails_in_its_turn(
    say: Say, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...], *, goes_on: bool
) -> None:
    (batches / "b.npz").write_text("no archive")
    said = say(
        "run", place, "--inputs", batches, "-o", tmp_path / "out", "--on-error", "skip" if goes_on else "raise", *words
    )
    assert said.code == (3 if goes_on else 2)
    assert f"{batches / 'b.npz'} is not a .npz file" in said.err
    assert ("1 of 3 inputs failed" in said.err.splitlines()) is goes_on
    assert answers(tmp_path / "out") == {name: EXPECTED[name] for name in ("a.npz", "c.npz")[: 1 + goes_on]}


def test_the_input_at_which_a_run_stopped_is_told(say: Say, place: Path, batches: Path, tmp_path: Path) -> None:
    feed(batches, "b", 1, 2, 3)
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out")
    assert said.complaint[1].endswith(f"(the run stopped at {batches / 'b.npz'})")


def test_where_the_output_of_one_input_goes_is_looked_at_first(say: Say, place: Path, tmp_path: Path) -> None:
    said = say("run", place, "--inputs", feed(tmp_path, "a", 1, 2), "-o", tmp_path / "nowhere" / "y.npz")
    assert (said.code, said.complaint[0]) == (2, f"there is no folder {tmp_path / 'nowhere'}")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_deadline_that_nobody_can_keep_is_refused(
    say: Say, place: Path, batches: Path, tmp_path: Path, seconds: str
) -> None:
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out", "--via", "threads", "--deadline", seconds)
    assert (said.code, said.complaint[0]) == (2, f"a deadline of {seconds} s is not possible")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "1GiB", "--via", "threads"), "--memory limits one process, and --via starts workers"),
        (("--exact",), "--exact applies to --memory"),
        (("--workers", 2), "--workers applies to --via"),
        (("--memory", "much"), "'much' is not a size"),
        (("--provider-option", "device_id"), "--provider-option device_id: expected KEY=VALUE"),
    ],
)
def test_words_that_make_no_sense_are_told(
    say: Say, place: Path, batches: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out", *words)
    assert (said.code, said.complaint[0]) == (2, message)
    assert said.complaint[1]
    assert not (tmp_path / "out").exists()


def test_a_provider_that_is_not_there_is_told(say: Say, place: Path, batches: Path, tmp_path: Path) -> None:
    said = say("run", place, "--inputs", batches, "-o", tmp_path / "out", "--provider", "NoSuchExecutionProvider")
    assert said.code == 3
    assert (
        said.complaint[0] == "part-0.onnx is to run with NoSuchExecutionProvider, which this ONNX Runtime does not have"
    )
    assert "CPUExecutionProvider" in said.complaint[1]
    assert not (tmp_path / "out").exists()


def test_a_provider_is_told_its_options() -> None:
    found = ProviderOptions("CUDAExecutionProvider", ["device_id=1", "path=a=b"]).session_config()
    assert (found.provider, found.options) == ("CUDAExecutionProvider", {"device_id": "1", "path": "a=b"})
    with pytest.raises(UsageError):
        ProviderOptions(None, ["=1"]).session_config()


def test_a_cap_is_refused_kept_and_told(place: Path, batches: Path, tmp_path: Path) -> None:
    """In processes of their own: that which the hint of a refusal names is kept, by the measure of the system."""
    words = ("run", place, "--inputs", batches, "-o", tmp_path / "out", "--memory")
    refused = command(*words, "20MiB")
    assert refused.code == 3
    assert re.fullmatch(
        r"this run is predicted to need [\d,]+ bytes, and the memory limit is 20,971,520", refused.complaint[0]
    )
    assert not (tmp_path / "out").exists()
    named = re.search(r"allow (\d+MiB) or more", refused.complaint[1])
    assert named is not None
    said = command(*words, named[1], "--exact")
    assert said.code == 0, said.err
    lines = said.err.splitlines()
    assert re.fullmatch(rf"predicted peak [\d.]+ MiB of {named[1][:-3]} MiB: one part loaded at a time.*", lines[0])
    measured = re.fullmatch(r"measured peak ([\d.]+ MiB) \(resident pages\)", lines[-1])
    assert measured is not None, said.err
    assert parse_bytes(measured[1]) <= parse_bytes(named[1])
    assert answers(tmp_path / "out") == EXPECTED


def test_mapped_weights_are_told(place: Path, batches: Path, tmp_path: Path) -> None:
    refused = command("run", place, "--inputs", batches, "-o", tmp_path / "out", "--memory", "1MiB")
    named = re.search(r"allow (\d+MiB) or more", refused.complaint[1])
    assert named is not None
    said = command("run", place, "--inputs", batches, "-o", tmp_path / "out", "--memory", named[1])
    told = "weights are mapped from disk: the last bits may differ from the whole model's; --exact avoids this"
    assert told in said.err.splitlines()
    shutil.rmtree(tmp_path / "out")
    said = command("run", place, "--inputs", batches, "-o", tmp_path / "out", "--memory", "4GiB")
    assert told not in said.err.splitlines()
    assert "2 parts, all stay loaded" in said.err.splitlines()[0]
