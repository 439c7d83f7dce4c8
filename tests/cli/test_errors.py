"""Errors: two lines and an exit code, for files that are wrong and for wrong command lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import helper, numpy_helper

from graphcut import demos

from command_line import COMMANDS, MIDDLE, SMALL, Run, holdings, llm, own_llm, own_parts, parts, run
from conftest import floats, model_of

NOT_POSITIVE = "Input should be greater than or equal to 1"
if tuple(map(int, typer.__version__.split(".")[:2])) < (0, 29):
    NOT_POSITIVE = "0 is not in the range x>=1."

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]


def truncated(llm: Path, folder: Path) -> Path:
    path = folder / "truncated.onnx"
    path.write_bytes(llm.read_bytes()[:9000])
    return path


def without_weights(folder: Path) -> Path:
    path = folder / "bare.onnx"
    demos.write("llm", path, external=True, **SMALL)
    (folder / "bare.onnx.data").unlink()
    return path


@pytest.mark.parametrize("name", ["analyze", "split"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"there is no file .*nothing\.onnx"),
        ("folder", r".* is a folder, not a model"),
        ("empty", r".*empty\.onnx is empty"),
        ("text", r".*text\.onnx is a text file, not an ONNX model"),
        ("JSON", r".*model\.json is a JSON file, not an ONNX model"),
        ("truncated", r".*truncated\.onnx is not an ONNX model, or is truncated: .*"),
        (
            "weightless",
            r"the weights of '.*' are in 'bare\.onnx\.data', but there is no such file in .*",
        ),
    ],
)
def test_a_file_that_is_not_a_model_is_an_error(
    run: Run, tmp_path: Path, llm: Path, name: str, kind: str, message: str
) -> None:
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("This is no model.\n" * 100)
    (tmp_path / "model.json").write_text('{"model": 1}')
    path = {
        "missing": tmp_path / "nothing.onnx",
        "folder": tmp_path,
        "empty": tmp_path / "empty.onnx",
        "text": tmp_path / "text.onnx",
        "JSON": tmp_path / "model.json",
    }.get(kind) or (truncated(llm, tmp_path) if kind == "truncated" else without_weights(tmp_path))
    before = holdings(tmp_path)
    result = run(name, path, *(("--at-nodes", "x") if name == "split" else ()))
    assert result.code == 3
    assert re.fullmatch(message, result.error[0]), result.error[0]
    assert holdings(tmp_path) == before


@pytest.mark.parametrize("length", [1, 50, 500, 5000, 20000])
def test_a_truncated_model_is_an_error_without_traceback(run: Run, own_llm: Path, length: int) -> None:
    own_llm.write_bytes(own_llm.read_bytes()[:-length])
    result = run("analyze", own_llm)
    assert result.code == 3
    assert "defect" not in result.error[1]


def test_random_bytes_are_not_a_model(run: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for i in range(40):
        (tmp_path / "noise.onnx").write_bytes(random.bytes(1 + 37 * i))
        result = run("analyze", tmp_path / "noise.onnx")
        assert result.code == 3
        assert "defect" not in result.error[1], result.err


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "none"),
        ("show", "none"),
        ("run", "none", "--inputs", "random", "-o", "y.npz"),
        ("run", "PARTS", "--inputs", "none.npz", "-o", "y.npz"),
        ("verify", "PARTS", "--model", "none"),
        ("generate", "PARTS", "--prompt", "@none"),
        ("split", "MODEL", "--plan", "none.json"),
        ("plan", "MODEL", "--cluster", "none.toml"),
        ("plan", "MODEL", "--num-splits", 2, "--cost-model", "none.csv"),
        ("measure", "none.json", "-o", "costs.csv"),
        ("link", "MODEL", "--checkpoint", "none", "-o", "linked.onnx"),
        ("auto", "MODEL", "--num-splits", 2, "--inputs", "none.npz", "-o", "auto"),
        ("auto", "--replay", "none.json", "-o", "auto"),
        ("compare", "MODEL", "none.onnx"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_missing_file_is_exit_3_wherever_it_is_named(
    run: Run, llm: Path, parts: Path, tmp_path: Path, words: Sequence[object]
) -> None:
    result = run(*({"MODEL": llm, "PARTS": parts}.get(str(word), word) for word in words))
    assert (result.code, "none" in result.error[0]) == (3, True)
    assert holdings(tmp_path) == set()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def humble(run: Run, llm: Path, parts: Path) -> Iterator[None]:
    """Permissions count, for root too."""
    if os.geteuid():
        yield
        return
    for words in (("analyze", llm), ("split", llm, "--at-nodes", MIDDLE, "-n"), ("show", parts), ("verify", parts)):
        run(*words)  # so that all is imported that another user may not be allowed to read
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_an_unreadable_model_is_an_error(
    run: Run, llm: Path, open_folder: Path, request: pytest.FixtureRequest
) -> None:
    path = Path(shutil.copy(llm, open_folder / "secret.onnx"))
    path.chmod(0)
    request.getfixturevalue("humble")
    result = run("analyze", path)
    assert result.code == 3
    assert result.error == (f"{path} can't be read: Permission denied", "check the path and its permissions")


def test_an_unreadable_folder_is_an_error(
    run: Run, llm: Path, open_folder: Path, request: pytest.FixtureRequest
) -> None:
    (open_folder / "locked").mkdir()
    path = Path(shutil.copy(llm, open_folder / "locked" / "llm.onnx"))
    (open_folder / "locked").chmod(0)
    request.getfixturevalue("humble")
    for words in (("analyze", path), ("show", path.parent / "llm.parts"), ("verify", path.parent / "llm.parts")):
        result = run(*words)
        assert result.code == 3
        assert "Permission denied" in result.error[0]
        assert "defect" not in result.error[1]


def test_a_read_only_folder_is_an_error(run: Run, llm: Path, open_folder: Path, request: pytest.FixtureRequest) -> None:
    path = Path(shutil.copy(llm, open_folder / "llm.onnx"))
    path.chmod(0o644)
    request.getfixturevalue("humble")
    result = run("split", path, "--at-nodes", MIDDLE, "-o", open_folder / "llm.parts")
    assert result.code == 3
    assert result.error[0] == f"writing {open_folder / 'llm.parts'} failed: Permission denied"


# Files that are not cascades
@pytest.mark.parametrize("name", ["merge", "run"])
def test_a_model_instead_of_a_cascade_is_misuse(run: Run, llm: Path, tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones(1))
    more = {"merge": ("-o", tmp_path / "o.onnx"), "run": ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "o.npz")}
    result = run(name, llm, *more.get(name, ()))
    assert result.code == 2
    assert result.error == (f"{llm} is a model, not a cascade", "`graphcut split` makes one")


def test_verify_of_a_model_that_was_not_sharded_is_misuse(run: Run, llm: Path) -> None:
    result = run("verify", llm)
    assert (result.code, *result.error) == (
        2,
        f"{llm} is a model, not a cascade, and does not say which model it was sharded from",
        "name that model with --model",
    )


@pytest.mark.parametrize("name", ["show", "verify"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"(.*nothing does not exist|there is no cascade at .*nothing)"),
        ("empty folder", r".*llm\.parts has no cascade\.json"),
        ("lost part", r".*part-0\.onnx is missing"),
        ("short data", r".*part-1\.onnx\.data has 100 bytes, but had [\d,]+ when the model was split"),
        ("not JSON", r".*cascade\.json is not JSON: .*"),
        ("newer", r".*cascade\.json has the format 'graphcut\.cascade/2', and .*"),
        ("unknown field", r".*cascade\.json: .*colour.*"),
        ("wrong type", r".*cascade\.json: parts\[1\]\.reads\[0\]: .*"),
    ],
)
def test_a_damaged_cascade_is_an_error(run: Run, own_parts: Path, name: str, kind: str, message: str) -> None:
    manifest = own_parts / "cascade.json"
    record: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    place = own_parts
    match kind:
        case "missing":
            place = own_parts.with_name("nothing")
        case "empty folder":
            manifest.unlink()
        case "lost part":
            (own_parts / "part-0.onnx").unlink()
        case "short data":
            (own_parts / "part-1.onnx.data").write_bytes(bytes(100))
        case "not JSON":
            manifest.write_text("nonsense")
        case "newer":
            manifest.write_text(json.dumps({**record, "format": "graphcut.cascade/2"}))
        case "unknown field":
            manifest.write_text(json.dumps({**record, "colour": "red"}))
        case _:
            record["parts"][1]["reads"][0] = 7
            manifest.write_text(json.dumps(record))
    result = run(name, place)
    assert result.code == 3
    assert re.fullmatch(message, result.error[0]), result.error[0]


def test_every_command_takes_a_folder_or_a_manifest(run: Run, own_parts: Path, tmp_path: Path) -> None:
    manifest = own_parts / "cascade.json"
    assert run("show", own_parts).out == run("show", manifest).out
    assert run("verify", manifest, "--structural").code == 0
    assert run("merge", manifest, "-o", tmp_path / "whole.onnx").code == 0


# Wrong command lines
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ("split", "MODEL", "--at-nodes", "/model/layers.1/ad_1"),
            "no node or tensor is called '/model/layers.1/ad_1'",
            f"did you mean '{MIDDLE}'? `graphcut analyze MODEL --cuts` lists the cut points",
        ),
        (
            ("split", "MODEL", "--at-nodes", "*nothing*"),
            "no node or tensor matches '*nothing*'",
            "`graphcut analyze MODEL --cuts` lists the cut points",
        ),
        *(
            (
                ("analyze", "MODEL", "--dim", text),
                f"--dim {text}: expected NAME=N with N >= 0",
                "for example --dim seq=128",
            )
            for text in ("seq", "=3", "seq=-1", "seq=²")
        ),
        (("demo", "lm"), "no demo is called 'lm'", "did you mean 'llm'? choose from llm, unet, resnet, multitask"),
        (
            ("demo", "unet", "-o", "FOLDER/u.onnx", "--attention-heads", "3"),
            "--attention-heads does not apply to the demo unet",
            "leave --attention-heads out",
        ),
        (
            ("demo", "llm", "-o", "FOLDER/q.onnx", "--attention-heads", "0"),
            f"Invalid value for '--attention-heads': {NOT_POSITIVE}",
            "`graphcut demo --help` lists arguments and options",
        ),
        (
            ("split", "MODEL", "--num-splits", "2", "--state", "a"),
            "--state a: expected INPUT=OUTPUT",
            "for example --state past=present",
        ),
        (
            ("split", "MODEL", "--num-splits", "2", "--state", "a=b", "--state", "a=c"),
            "--state names the input 'a' twice",
            "only one output can become it",
        ),
        (
            ("merge", "MODEL", "--connect", "a=b", "-o", "FOLDER/x.onnx"),
            "--connect joins two models or more",
            "name them: graphcut merge a.onnx b.onnx",
        ),
        (
            ("auto", "--num-splits", "2", "-o", "FOLDER/x"),
            "no model is named",
            "name an .onnx file, or --replay an auto.json",
        ),
        (
            ("demo", "llm", "-o", "MODEL"),
            "MODEL already exists",
            "choose another name, or add --force",
        ),
        (
            ("split", "MODEL", "--at-nodes", MIDDLE, "--weights", "share", "-o", "FOLDER/x"),
            "what shares weights must be in the folder of llm.onnx, not in FOLDER/x",
            "choose a place in FOLDER, or copy the weights with --weights copy",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_misuse_has_a_message_and_a_hint(
    run: Run, own_llm: Path, words: Sequence[str], message: str, hint: str
) -> None:
    def filled(text: str) -> str:
        # What `graphcut analyze MODEL --cuts` means stays as it is.
        return re.sub(r"(?<!analyze )MODEL", str(own_llm), text).replace("FOLDER", str(own_llm.parent))

    before = holdings(own_llm.parent)
    result = run(*(filled(word) for word in words))
    assert result.code == 2
    assert result.error == (filled(message), filled(hint))
    assert holdings(own_llm.parent) == before


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_no_name_to_cut_at_is_misuse(run: Run, own_llm: Path, names: str) -> None:
    result = run("split", own_llm, "--at-nodes", names)
    assert result.code == 2
    assert "defect" not in result.error[1]


def test_a_dimension_that_the_model_lacks_is_misuse(run: Run, llm: Path) -> None:
    result = run("analyze", llm, "--dim", "sequence=4")
    assert result.error == (
        "llm.onnx has no symbolic dimension 'sequence'",
        "its symbolic dimensions: batch, past, seq, total",
    )
    assert result.code == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("nonsense",), "nonsense"),
        (("split",), "MODEL"),
        (("analyze",), "MODEL"),
        (("analyze", "m.onnx", "--colour"), "--colour"),
        (("analyze", "m.onnx", "--cuts=few"), "--cuts"),
        (("split", "m.onnx", "--at-nodes", "x", "--weights", "move"), "--weights"),
        (("merge", "x.parts"), "--output"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_misuse(run: Run, words: Sequence[str], named: str) -> None:
    result = run(*words)
    assert result.code == 2
    assert named in result.error[0]


def test_nothing_to_cut_is_exit_4(run: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["w"], ["y"], name="neg")]
    weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
    onnx.save(model_of(nodes, [floats("x", 1)], [floats("y", 1)], [weight]), tmp_path / "m.onnx")
    result = run("split", tmp_path / "m.onnx", "--at-nodes", "neg")
    assert (result.code, result.error[0]) == (4, "m.onnx has nothing to cut: no node depends on an input")
    assert run("analyze", tmp_path / "m.onnx").code == 0


def test_an_internal_error_is_called_a_defect(run: Run, llm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.loading.model._parse", lambda _: 1 / 0)
    result = run("analyze", llm)
    assert result.code == 3
    assert result.error == (
        "internal error: ZeroDivisionError: division by zero",
        "this is a defect of graphcut; the same command with --debug prints where",
    )
    traced = run("analyze", llm, "--debug")
    assert traced.code == 3
    lines = traced.err.splitlines()
    assert (lines[0], lines[-3]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert lines[-1] == " hint: this is a defect of graphcut; the lines above say where"


def test_an_error_that_is_no_defect_is_the_same_with_debug(run: Run, tmp_path: Path) -> None:
    words = "analyze", tmp_path / "missing.onnx"
    assert run(*words, "--debug") == run(*words)


@pytest.mark.parametrize(
    "name", sorted(set(COMMANDS) - {"analyze", "bench", "doctor", "generate", "simulate", "verify"})
)
def test_an_output_in_a_folder_that_does_not_exist_is_refused_before_any_work(
    name: str, run: Run, tmp_path: Path
) -> None:
    """Not even the other arguments are looked at."""
    message, hint = run(name, "-o", tmp_path / "none" / "out").error
    assert (message, hint) == (f"there is no folder {tmp_path / 'none'}", "make it first, or choose another")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("compare", "k.onnx", "k.onnx", "-o"), ".txt or .json or .html or .htm or .svg"),
        (("measure", "k.onnx", "-o"), ".csv"),
        (("measure", "machine", "-o"), ".toml"),
        (("run", "p", "--inputs", "random", "--via", "threads", "--trace"), ".json or .svg or .txt"),
        (("simulate", "p", "--trace"), ".json or .svg or .txt"),
    ],
)
def test_a_file_of_another_kind_is_not_replaced_even_with_force(
    words: tuple[str, ...], known: str, run: Run, llm: Path, parts: Path, tmp_path: Path
) -> None:
    shutil.copyfile(llm, tmp_path / "k.onnx")
    shutil.copytree(parts, tmp_path / "p")
    (tmp_path / "notes.md").write_text("mine")
    result = run(*words, "notes.md", "--force")
    message = "notes.md: no format is known by this file name"
    assert (result.code, result.error) == (2, (message, f"use {known}"))
    assert (tmp_path / "notes.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("plan", "k.onnx", "--num-splits", "2"), "k.onnx"),
        (("plan", "k.onnx", "--num-splits", "2", "--cost-model", "costs.csv"), "costs.csv"),
        (("compare", "k.onnx", "k.onnx"), "k.onnx"),
        (("run", "p", "--inputs", "random"), "p/part-0.onnx"),
        (("run", "p", "--inputs", "random", "--via", "threads", "--trace", "p/part-0.onnx.data"), "y.npz"),
        (("run", "p", "--inputs", "in/a.npz", "--inputs", "in/b.npz"), "in"),
        (("run", "p", "--inputs", "in/a.npz", "--via", "threads", "--trace", "in/a.npz"), "y.npz"),
        (("simulate", "p", "--trace", "p/cascade.json"), ""),
        (("simulate", "p", "--cluster", "costs.csv", "--trace", "costs.csv"), ""),
        (("show", "p", "--to", "json"), "p/cascade.json"),
    ],
)
def test_what_is_read_is_not_overwritten_even_with_force(
    words: tuple[str, ...], output: str, run: Run, llm: Path, parts: Path, tmp_path: Path
) -> None:
    shutil.copyfile(llm, tmp_path / "k.onnx")
    shutil.copytree(parts, tmp_path / "p")
    (tmp_path / "costs.csv").write_text("mine")
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "in" / f"{name}.npz", x=np.zeros(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = run(*words, *(() if "simulate" in words else ("-o", output)), "--force")
    assert result.code == 2
    assert result.error[0].endswith(" is also to be read")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
