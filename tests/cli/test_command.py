"""The `graphcut` command: what it prints where, how it exits, and what it says on a bad day."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import cli, demos

from conftest import floats, model_of

COMMANDS = (
    *("demo", "analyze", "plan", "split", "verify", "show"),
    *("run", "generate", "bench", "simulate", "merge", "cost-model"),
)
RAY_FLAGS = {"--head", "--resources", "--address"}
MIDDLE = "/model/layers.1/add_1"
SMALL: Mapping[str, Any] = {"hidden": 16, "layers": 3, "heads": 2, "kv_heads": 1, "vocab": 32}
SCRIPT = Path(sys.executable).with_name("graphcut")


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> tuple[str, str]:
        """The two lines of an error."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 2, self.err
        assert lines[0].startswith("error: "), self.err
        assert lines[1].startswith(" hint: "), self.err
        return lines[0].removeprefix("error: "), lines[1].removeprefix(" hint: ")


Say = Callable[..., Said]


def environment(**changes: str) -> dict[str, str]:
    told = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONIOENCODING"}
    return {name: value for name, value in os.environ.items() if name not in told} | changes


def command(*words: object, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({})) -> Said:
    """The real command, in a process of its own, its output in pipes."""
    done = subprocess.run(
        [SCRIPT, *map(str, words)], capture_output=True, cwd=cwd, env=environment(**env), check=False, timeout=60
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """The same `main` in this process, which is faster."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["graphcut", *map(str, words)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of three layers, for reading only."""
    path = tmp_path_factory.mktemp("llm") / "llm.onnx"
    demos.write("llm", path, **SMALL)
    return path


@pytest.fixture(scope="session")
def parts(llm: Path) -> Path:
    """The decoder cut in two, for reading only."""
    model = graphcut.load(llm)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.At((MIDDLE,)))).root


@pytest.fixture
def own_llm(llm: Path, tmp_path: Path) -> Path:
    """A copy to write beside."""
    return Path(shutil.copy(llm, tmp_path / "llm.onnx"))


@pytest.fixture
def own_parts(own_llm: Path, parts: Path) -> Path:
    return Path(shutil.copytree(parts, own_llm.with_name("llm.parts")))


def holdings(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*")}


# The way of a user, in real processes


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Said]:
    """Every command in turn, in one folder."""
    home = tmp_path_factory.mktemp("walk")
    sizes = [word for name, number in SMALL.items() for word in (f"--{name.replace('_', '-')}", number)]
    inputs: dict[str, Any] = {
        "input_ids": np.array([[1, 2, 3]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.array([[0, 1, 2]]),
        **{
            f"past_key_values.{layer}.{kind}": np.zeros((1, 1, 0, 8), np.float32)
            for layer in range(3)
            for kind in ("key", "value")
        },
    }
    np.savez(home / "inputs.npz", **inputs)
    steps: Mapping[str, Sequence[object]] = {
        "demo": ("demo", "llm", "-o", "llm.onnx", *sizes),
        "analyze": ("analyze", "llm.onnx"),
        "split": ("split", "llm.onnx", "--at-nodes", MIDDLE),
        "show": ("show", "llm.parts"),
        "verify": ("verify", "llm.parts", "--inputs", "inputs.npz"),
        "merge": ("merge", "llm.parts", "-o", "whole.onnx"),
        "run": ("run", "llm.parts", "--inputs", "inputs.npz", "-o", "outputs.npz"),
    }
    return {name: command(*words, cwd=home) for name, words in steps.items()}


def test_every_step_of_the_way_succeeds(walk: Mapping[str, Said]) -> None:
    assert {name: said.code for name, said in walk.items() if said.code} == {}


def test_stdout_holds_results_and_stderr_the_rest(walk: Mapping[str, Said]) -> None:
    assert [name for name, said in walk.items() if said.out] == ["analyze", "split", "show", "verify"]
    assert [name for name, said in walk.items() if said.err] == ["demo", "analyze", "split", "show", "merge", "run"]
    assert walk["demo"].err == "wrote llm.onnx\nnext: graphcut analyze llm.onnx\n"
    files = ["part-0.onnx.data", "part-0.onnx", "part-1.onnx.data", "part-1.onnx"]
    assert walk["split"].err.splitlines() == [
        *(f"writing {file}" for file in files),
        "next: graphcut verify llm.parts",
    ]
    assert walk["split"].out == walk["show"].out
    assert walk["merge"].err == "wrote whole.onnx: its graph equals that of the original model\n"
    assert walk["run"].err.splitlines()[0] == "logits  float32[1, 3, 32]"
    assert walk["run"].err.splitlines()[-1] == "wrote outputs.npz"


def test_a_result_names_what_to_do_next_on_stderr(walk: Mapping[str, Said]) -> None:
    """So that whoever pipes a result gets the result alone."""
    assert [name for name, said in walk.items() if "next: " in said.out] == []


def test_verifying_says_so_in_its_first_line(walk: Mapping[str, Said]) -> None:
    assert walk["verify"].out.splitlines()[0] == "✓ the cascade matches the model: outputs are bit-identical"
    assert "✓ structure: " in walk["verify"].out
    assert "✓ numbers: 1 run, " in walk["verify"].out


def test_analyzing_fits_on_one_screen(walk: Mapping[str, Said]) -> None:
    assert len(walk["analyze"].out.splitlines()) <= 40
    assert "3 \u00d7 layer, embedding before, norm and head after" in walk["analyze"].out


def test_pipes_get_no_colour_and_whole_numbers(walk: Mapping[str, Said]) -> None:
    for said in walk.values():
        assert "\x1b" not in said.out + said.err
        assert not re.search(r"\d…", said.out)


def test_running_gives_what_the_library_gives(own_parts: Path, say: Say, tmp_path: Path) -> None:
    inputs = own_parts.parent / "in.npz"
    feeds: dict[str, Any] = {
        "input_ids": np.array([[4, 2]]),
        "attention_mask": np.ones((1, 2), np.int64),
        "position_ids": np.array([[0, 1]]),
    }
    caches = [f"past_key_values.{layer}.{kind}" for layer in range(3) for kind in ("key", "value")]
    feeds |= dict.fromkeys(caches, np.zeros((1, 1, 0, 8), np.float32))
    np.savez(inputs, **feeds)
    assert say("run", own_parts, "--inputs", inputs, "-o", tmp_path / "out.npz").code == 0
    expected = graphcut.run(graphcut.open_cascade(own_parts), feeds)
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


# Help and versions


@pytest.mark.parametrize("words", [("--help",), ("-h",), *((name, "--help") for name in COMMANDS)], ids=" ".join)
def test_help_is_to_be_had_everywhere(say: Say, words: Sequence[str]) -> None:
    said = say(*words)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Usage: graphcut")


def test_help_names_every_command(say: Say) -> None:
    listed = re.findall(r"^  ([a-z-]+) +[A-Z]", say("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert tuple(listed) == COMMANDS


def test_without_words_there_is_help(say: Say) -> None:
    said = say()
    assert (said.out + said.err).startswith("Usage: graphcut")


def test_the_versions_stand_in_one_line(say: Say) -> None:
    said = say("--version")
    assert said.code == 0
    assert re.fullmatch(r"graphcut \S+ \(python \S+, onnx \S+, onnxruntime \S+\)\n", said.out)


def test_the_module_runs_like_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "graphcut", "--version"], capture_output=True, check=False)
    assert done.stdout.startswith(b"graphcut ")


def flags_of(say: Say, *words: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", say(*words, "--help").out))


def strings_in(path: Path) -> Iterator[str]:
    return (
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_messages_name_flags_and_commands_that_exist(say: Say) -> None:
    flags = flags_of(say).union(*(flags_of(say, name) for name in COMMANDS))
    house = Path(graphcut.__file__).parent
    for path in house.rglob("*.py"):
        for text in strings_in(path):
            known = flags | RAY_FLAGS if path.stem == "ray_cluster" else flags
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known, (path, text)
            assert set(re.findall(r"`graphcut ([a-z-]+)", text)) <= set(COMMANDS), (path, text)


# Files that are no models


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
        ("text", r".*text\.onnx is not an ONNX model.*"),
        ("JSON", r".*model\.json is not an ONNX model.*"),
        ("truncated", r".*truncated\.onnx is not an ONNX model, or is truncated: .*"),
        (
            "weightless",
            r"the weights of '.*' are in 'bare\.onnx\.data', but there is no such file in .*",
        ),
    ],
)
def test_what_is_no_model_is_told_in_two_lines(
    say: Say, tmp_path: Path, llm: Path, name: str, kind: str, message: str
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
    said = say(name, path, *(("--at-nodes", "x") if name == "split" else ()))
    assert said.code == 3
    assert re.fullmatch(message, said.complaint[0]), said.complaint[0]
    assert holdings(tmp_path) == before


@pytest.mark.parametrize("length", [1, 50, 500, 5000, 20000])
def test_wherever_a_model_is_cut_short_there_is_no_traceback(say: Say, own_llm: Path, length: int) -> None:
    own_llm.write_bytes(own_llm.read_bytes()[:-length])
    said = say("analyze", own_llm)
    assert said.code == 3
    assert "defect" not in said.complaint[1]


def test_noise_is_no_model_and_no_defect(say: Say, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for i in range(40):
        (tmp_path / "noise.onnx").write_bytes(random.bytes(1 + 37 * i))
        said = say("analyze", tmp_path / "noise.onnx")
        assert said.code == 3
        assert "defect" not in said.complaint[1], said.err


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def humble(say: Say, llm: Path, parts: Path) -> Iterator[None]:
    """Permissions count, for root too."""
    if os.geteuid():
        yield
        return
    for words in (("analyze", llm), ("split", llm, "--at-nodes", MIDDLE, "-n"), ("show", parts), ("verify", parts)):
        say(*words)  # so that all is imported that another user may not be allowed to read
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_an_unreadable_model_is_told_in_two_lines(
    say: Say, llm: Path, open_folder: Path, request: pytest.FixtureRequest
) -> None:
    path = Path(shutil.copy(llm, open_folder / "secret.onnx"))
    path.chmod(0)
    request.getfixturevalue("humble")
    said = say("analyze", path)
    assert said.code == 3
    assert said.complaint == (f"{path} can't be read: Permission denied", "check the path and its permissions")


def test_an_unreadable_folder_is_told_in_two_lines(
    say: Say, llm: Path, open_folder: Path, request: pytest.FixtureRequest
) -> None:
    (open_folder / "locked").mkdir()
    path = Path(shutil.copy(llm, open_folder / "locked" / "llm.onnx"))
    (open_folder / "locked").chmod(0)
    request.getfixturevalue("humble")
    for words in (("analyze", path), ("show", path.parent / "llm.parts"), ("verify", path.parent / "llm.parts")):
        said = say(*words)
        assert said.code == 3
        assert "Permission denied" in said.complaint[0]
        assert "defect" not in said.complaint[1]


def test_a_folder_that_can_not_be_written_is_told_in_two_lines(
    say: Say, llm: Path, open_folder: Path, request: pytest.FixtureRequest
) -> None:
    path = Path(shutil.copy(llm, open_folder / "llm.onnx"))
    path.chmod(0o644)
    request.getfixturevalue("humble")
    said = say("split", path, "--at-nodes", MIDDLE)
    assert said.code == 3
    assert said.complaint[0] == f"writing {open_folder / 'llm.parts'} failed: Permission denied"


# Cascades that are none


@pytest.mark.parametrize("name", ["verify", "merge", "run"])
def test_a_model_where_a_cascade_is_wanted_is_told_apart(say: Say, llm: Path, tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones(1))
    more = {"merge": ("-o", tmp_path / "o.onnx"), "run": ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "o.npz")}
    said = say(name, llm, *more.get(name, ()))
    assert said.code == 2
    assert said.complaint == (
        f"{llm} is a model, not a cascade",
        f"`graphcut analyze {llm}` shows where it can be cut",
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
def test_a_damaged_cascade_is_told_in_two_lines(say: Say, own_parts: Path, name: str, kind: str, message: str) -> None:
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
    said = say(name, place)
    assert said.code == 3
    assert re.fullmatch(message, said.complaint[0]), said.complaint[0]


def test_every_verb_takes_a_folder_or_a_manifest(say: Say, own_parts: Path, tmp_path: Path) -> None:
    manifest = own_parts / "cascade.json"
    assert say("show", own_parts).out == say("show", manifest).out
    assert say("verify", manifest, "--structural").code == 0
    assert say("merge", manifest, "-o", tmp_path / "whole.onnx").code == 0


# Misuse


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
        (("demo", "lm"), "no demo is called 'lm'", "did you mean 'llm'?"),
        (
            ("demo", "unet", "-o", "FOLDER/u.onnx", "--layers", "3"),
            "demo 'unet' has no option 'layers'",
            "omit it: this demo has the option `external` alone",
        ),
        (
            ("demo", "llm", "-o", "FOLDER/q.onnx", "--layers", "0"),
            "option 'layers' of demo 'llm': expected `int` >= 1",
            "see `graphcut demo --help`",
        ),
        (
            ("demo", "llm", "-o", "MODEL"),
            "MODEL already exists",
            "choose another name with -o, or add --force",
        ),
        (
            ("split", "MODEL", "--at-nodes", MIDDLE, "--weights", "share", "-o", "FOLDER/x"),
            "parts that share weights must be in the folder of llm.onnx, not in FOLDER/x",
            "leave -o out (the parts then go to FOLDER), or copy the weights with --weights copy -o FOLDER/x",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_misuse_is_told_in_two_lines(say: Say, own_llm: Path, words: Sequence[str], message: str, hint: str) -> None:
    def filled(text: str) -> str:
        # What `graphcut analyze MODEL --cuts` means stays as it is.
        return re.sub(r"(?<!analyze )MODEL", str(own_llm), text).replace("FOLDER", str(own_llm.parent))

    before = holdings(own_llm.parent)
    said = say(*(filled(word) for word in words))
    assert said.code == 2
    assert said.complaint == (filled(message), filled(hint))
    assert holdings(own_llm.parent) == before


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_no_name_to_cut_at_is_misuse(say: Say, own_llm: Path, names: str) -> None:
    said = say("split", own_llm, "--at-nodes", names)
    assert said.code == 2
    assert "defect" not in said.complaint[1]


def test_a_dimension_that_the_model_lacks_is_misuse(say: Say, llm: Path) -> None:
    said = say("analyze", llm, "--dim", "sequence=4")
    assert said.complaint == (
        "llm.onnx has no symbolic dimension 'sequence'",
        "its symbolic dimensions: batch, past, seq, total",
    )
    assert said.code == 2


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
def test_misuse_of_the_grammar_speaks_like_every_other_error(say: Say, words: Sequence[str], named: str) -> None:
    said = say(*words)
    assert said.code == 2
    assert named in said.complaint[0]


def test_nothing_to_cut_is_exit_4(say: Say, tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["w"], ["y"], name="neg")]
    weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
    onnx.save(model_of(nodes, [floats("x", 1)], [floats("y", 1)], [weight]), tmp_path / "m.onnx")
    said = say("split", tmp_path / "m.onnx", "--at-nodes", "neg")
    assert (said.code, said.complaint[0]) == (4, "m.onnx has nothing to cut: no node depends on an input")
    assert say("analyze", tmp_path / "m.onnx").code == 0


def test_a_defect_of_ours_is_owned_up_to(say: Say, llm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.loading.model._parse", lambda _: 1 / 0)
    said = say("analyze", llm)
    assert said.code == 3
    assert said.complaint == (
        "internal error: ZeroDivisionError: division by zero",
        "this is a defect of graphcut; the same command with --debug prints where",
    )
    with pytest.raises(ZeroDivisionError):
        say("analyze", llm, "--debug")


# analyze


def test_cuts_are_lines_for_other_programs(say: Say, llm: Path) -> None:
    said = say("analyze", llm, "--cuts", "--dim", "batch=1", "--dim", "seq=4", "--dim", "past=0", "--dim", "total=4")
    assert (said.code, said.err) == (0, "")
    head, *rows = (line.split("\t") for line in said.out.splitlines())
    assert head == ["node", "bytes", "exact", "tensors", "weights_before", "weights_after", "key", "module"]
    model = graphcut.load(llm, dims={"batch": 1, "seq": 4, "past": 0, "total": 4})
    points = graphcut.analyze(model).cut_points
    assert [row[0] for row in rows] == [point.node for point in points]
    assert [row[1] for row in rows] == [str(point.bytes) for point in points]
    assert [row[3].split(",") for row in rows] == [list(point.boundary_tensors) for point in points]
    assert {row[6] for row in rows} == {"yes", "no"}


def test_n_cuts_are_the_n_cheapest_in_order(say: Say, llm: Path) -> None:
    points = graphcut.analyze(graphcut.load(llm)).cut_points
    (_, *rows) = say("analyze", llm, "--cuts", "3").out.splitlines()
    found = [row.split("\t")[0] for row in rows]
    assert len(found) == 3
    assert [point.node for point in points if point.node in found] == found
    dearest = max(point.bytes for point in points if point.node in found)
    assert dearest <= min(point.bytes for point in points if point.node not in found)


def test_cuts_may_stand_anywhere(say: Say, llm: Path) -> None:
    everything = say("analyze", llm, "--cuts").out
    assert say("analyze", "--cuts", llm).out == everything
    assert say("analyze", "--cuts", "9999", llm).out == everything
    assert say("analyze", llm, "--cuts=2").out == say("analyze", "--cuts", "2", llm).out


def test_fewer_cuts_than_none_are_misuse(say: Say, llm: Path) -> None:
    assert say("analyze", llm, "--cuts=-1").code == 2


SCHEMAS = {
    "analyze": "graphcut.analysis/1",
    "split": "graphcut.view/1",
    "show": "graphcut.view/1",
    "verify": "graphcut.report/1",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_is_json_with_a_schema(say: Say, own_llm: Path, own_parts: Path, name: str) -> None:
    words: Mapping[str, Sequence[object]] = {
        "analyze": (own_llm,),
        "split": (own_llm, "--at-nodes", MIDDLE, "--force"),
        "show": (own_parts,),
        "verify": (own_parts,),
    }
    said = say(name, *words[name], "--json")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out)["schema"] == SCHEMAS[name]


def test_the_json_of_an_analysis_holds_everything(say: Say, llm: Path) -> None:
    found = json.loads(say("analyze", llm, "--json").out)
    analysis = graphcut.analyze(graphcut.load(llm))
    graph = analysis.model.graph
    assert found["key_nodes"] == [graph.nodes[i].name for i in analysis.key_nodes]
    assert found["profile_bytes"] == list(analysis.profile)
    assert len(found["cut_points"]) == len(analysis.cut_points)
    assert sum(len(segment["nodes"]) for segment in found["segments"]) == found["flowing_nodes"] == len(graph.flow)
    assert len(found["repeat"]["blocks"]) == 3
    residual = analysis.segments.wiring.residual
    assert found["residual"] == {
        str(source): {str(target): list(names) for target, names in row.items()} for source, row in residual.items()
    }


def test_a_dry_run_as_json_is_json(say: Say, own_llm: Path) -> None:
    said = say("split", own_llm, "--at-nodes", MIDDLE, "--dry-run", "--json")
    assert json.loads(said.out)["schema"]
    assert holdings(own_llm.parent) == {"llm.onnx"}


# split


def test_a_dry_run_lists_files_and_writes_nothing(say: Say, own_llm: Path) -> None:
    said = say("split", own_llm, "-n", "--at-nodes", MIDDLE)
    assert said.code == 0
    *files, need = said.out.splitlines()
    names = [Path(line.split("  ")[0]).name for line in files]
    assert names == ["part-0.onnx", "part-0.onnx.data", "part-1.onnx", "part-1.onnx.data", "cascade.json"]
    assert re.fullmatch(r"[\d.]+ KiB would be written; this was a dry run", need)
    assert holdings(own_llm.parent) == {"llm.onnx"}


def test_quietly_only_the_manifest_is_named(say: Say, own_llm: Path) -> None:
    said = say("split", own_llm, "-q", "--at-nodes", MIDDLE)
    assert (said.code, said.out, said.err) == (0, f"{own_llm.parent / 'llm.parts' / 'cascade.json'}\n", "")


@pytest.mark.parametrize(
    "names",
    [
        ("--at-nodes", "/model/layers.0/add_1,/model/layers.1/add_1"),
        ("--at-nodes", " /model/layers.1/add_1 , /model/layers.0/add_1,"),
        ("--at-nodes", "/model/layers.1/add_1", "--at-nodes", "/model/layers.0/add_1"),
        ("--at-nodes", "/model/layers.[01]/add_1"),
    ],
)
def test_names_come_with_commas_or_one_by_one_or_as_globs(say: Say, own_llm: Path, names: Sequence[str]) -> None:
    found = json.loads(say("split", own_llm, *names, "--json").out)["manifest"]
    assert [part["writes"][0] for part in found["parts"]][:2] != []
    assert len(found["parts"]) == 3


def test_shared_parts_are_named_by_their_manifest(say: Say, own_llm: Path) -> None:
    said = say("split", own_llm, "--at-nodes", MIDDLE, "--weights", "share")
    assert said.err.splitlines()[-1] == f"next: graphcut verify {own_llm.with_name('llm.cascade.json')}"
    assert say("verify", own_llm.with_name("llm.cascade.json"), "--structural").code == 0
    lost = say("show", own_llm.parent)
    assert (lost.code, lost.complaint[0].partition("; ")[2]) == (
        3,
        f"did you mean {own_llm.with_name('llm.cascade.json')}?",
    )


def test_a_cascade_in_the_way_is_replaced_by_force_alone(say: Say, own_llm: Path, own_parts: Path) -> None:
    said = say("split", own_llm, "--at-nodes", MIDDLE)
    assert (said.code, said.complaint[0]) == (2, f"{own_parts} already exists")
    assert say("split", own_llm, "--at-nodes", "/model/layers.0/add_1", "-f", "-q").code == 0


def test_a_name_with_a_comma_can_be_cut_at(say: Say, tmp_path: Path) -> None:
    """In quotes, as the command's own `next:` line would have to write it."""
    onnx.save(
        model_of(
            [helper.make_node("Relu", ["x"], ["a"], name="a,b"), helper.make_node("Neg", ["a"], ["y"], name="c")],
            [floats("x", 2)],
            [floats("y", 2)],
        ),
        tmp_path / "m.onnx",
    )
    assert say("split", tmp_path / "m.onnx", "--at-nodes", '"a,b"').code == 0


def next_command(said: Said) -> list[str]:
    (line,) = (line for line in (said.out + said.err).splitlines() if line.startswith("next: "))
    return shlex.split(line.removeprefix("next: "))


def test_the_next_command_can_be_copied(say: Say, own_llm: Path) -> None:
    """From demo to analyze to split to verify, in a folder with a space and a long name, whatever the width."""
    home = own_llm.parent / "my models" / ("very-long-name-" * 10)
    home.mkdir(parents=True)
    model = Path(shutil.move(own_llm, home / "my llm.onnx"))
    words = ["analyze", str(model)]
    for name in ("split", "verify"):
        said = say(*words)
        assert said.code == 0, said.err
        program, *words = next_command(said)
        assert (program, words[0]) == ("graphcut", name)
    assert say(*words).code == 0


# verify


def test_a_wrong_cascade_is_exit_1(say: Say, own_parts: Path) -> None:
    file = own_parts / "part-1.onnx.data"
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    said = say("verify", own_parts)
    assert (said.code, said.err) == (1, "")
    assert said.out.startswith("✗ the cascade does not match the model\n")
    assert re.search(r"part-1\.onnx: the values of '.*' differ from the model's", said.out)
    as_json = say("verify", own_parts, "--json")
    assert as_json.code == 1
    found = json.loads(as_json.out)
    assert (found["same"], found["proof"]["holds"], len(found["proof"]["objections"])) == (False, False, 1)


def test_a_model_that_moved_is_found_by_its_flag(say: Say, own_llm: Path, own_parts: Path) -> None:
    moved = own_llm.rename(own_llm.with_name("moved.onnx"))
    said = say("verify", own_parts)
    assert said.code == 3
    assert said.complaint[1] == "name it with --model FILE"
    assert say("verify", own_parts, "--model", moved, "--structural").code == 0


def test_another_model_is_refused(say: Say, own_llm: Path, own_parts: Path) -> None:
    demos.write("llm", own_llm, **{**SMALL, "layers": 2})
    said = say("verify", own_parts)
    assert said.code == 3
    assert "the graphs differ" in said.complaint[0]


def test_verifying_takes_a_seed_and_optimisations(say: Say, parts: Path) -> None:
    said = say("verify", parts, "--seed", "7", "--optimized", "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["reason"].startswith("with optimisations on")
    assert len(found["runs"]) == 2


def test_structure_alone_runs_nothing(say: Say, parts: Path) -> None:
    said = say("verify", parts, "--structural")
    assert said.code == 0
    assert said.out.splitlines()[0] == "✓ the cascade matches the model: same structure, nothing was run"
    assert "numbers" not in said.out


def test_inputs_come_from_files_and_folders(say: Say, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    onnx.save(model_of(nodes, [floats("x", "n")], [floats("y", "n")]), tmp_path / "m.onnx")
    assert say("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    np.savez(tmp_path / "three.npz", x=np.ones(3, np.float32))
    (tmp_path / "data").mkdir()
    message = numpy_helper.from_array(np.ones(5, np.float32))
    (tmp_path / "data" / "input_0.pb").write_bytes(message.SerializeToString())
    place = tmp_path / "m.parts"
    said = say("verify", place, "--inputs", tmp_path / "three.npz", "--inputs", tmp_path / "data", "--json")
    assert said.code == 0
    assert len(json.loads(said.out)["runs"]) == 2
    for wrong in (tmp_path / "nothing.npz", tmp_path / "m.onnx"):
        assert say("verify", place, "--inputs", wrong).complaint
    np.savez(tmp_path / "other.npz", z=np.ones(3, np.float32))
    said = say("verify", place, "--inputs", tmp_path / "other.npz")
    assert (said.code, "'z'" in said.complaint[0]) == (2, True)
    np.savez(tmp_path / "ints.npz", x=np.ones(3, np.int64))
    said = say("verify", place, "--inputs", tmp_path / "ints.npz")
    assert (said.code, said.complaint[0]) == (3, "input 'x' is fed int64, and the model reads float32")


def test_made_up_inputs_that_the_model_refuses_are_no_difference(say: Say, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Reshape", ["a", "seven"], ["y"], name="reshape"),
    ]
    weight = numpy_helper.from_array(np.array([7]), "seven")
    onnx.save(model_of(nodes, [floats("x", "n", 2)], [floats("y", 7)], [weight]), tmp_path / "m.onnx")
    assert say("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    said = say("verify", tmp_path / "m.parts")
    assert said.code == 0
    assert "not run: the original model rejects the generated inputs" in said.out


# merge, run and demo


def test_merging_asks_before_it_replaces(say: Say, own_parts: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.onnx").write_text("mine")
    said = say("merge", own_parts, "-o", tmp_path / "whole.onnx")
    assert (said.code, said.complaint[0]) == (2, f"{tmp_path / 'whole.onnx'} already exists")
    assert (tmp_path / "whole.onnx").read_text() == "mine"
    assert say("merge", own_parts, "-o", tmp_path / "whole.onnx", "--force").code == 0


def small_cascade(say: Say, folder: Path, *outputs: str) -> Path:
    """x → Relu → Neg, each given out under that name."""
    nodes = [
        helper.make_node("Relu", ["x"], [outputs[0]], name="relu"),
        helper.make_node("Neg", [outputs[0]], [outputs[1]], name="neg"),
    ]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats(name, 2) for name in outputs]), folder / "m.onnx")
    np.savez(folder / "in.npz", x=np.array([1, -2], np.float32))
    assert say("split", folder / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    return folder / "m.parts"


@pytest.mark.parametrize("outputs", [("a", "y"), ("file", "kwds"), ("/a/b", "a:0"), ("[red]", "é")])
def test_outputs_are_saved_whatever_they_are_called(say: Say, tmp_path: Path, outputs: tuple[str, str]) -> None:
    place = small_cascade(say, tmp_path, *outputs)
    said = say("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert said.code == 0, said.err
    with np.load(tmp_path / "out.npz") as found:
        assert [found[name].tolist() for name in outputs] == [[1, 0], [-1, 0]]
    assert said.err.splitlines()[0] == f"{outputs[0]}  float32[2]"


def test_running_asks_before_it_replaces(say: Say, tmp_path: Path) -> None:
    place = small_cascade(say, tmp_path, "a", "y")
    (tmp_path / "out.npz").write_text("mine")
    words = ("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert say(*words).code == 2
    assert (tmp_path / "out.npz").read_text() == "mine"
    assert say(*words, "-f").code == 0


def test_running_into_a_folder_that_is_not_there_is_told(say: Say, tmp_path: Path) -> None:
    place = small_cascade(say, tmp_path, "a", "y")
    before = holdings(tmp_path)
    said = say("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "nowhere" / "out.npz")
    assert said.code == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in said.complaint[0]
    assert holdings(tmp_path) == before


def test_running_on_wrong_inputs_is_told(say: Say, tmp_path: Path) -> None:
    place = small_cascade(say, tmp_path, "a", "y")
    np.savez(tmp_path / "wrong.npz", x=np.ones(3, np.float32))
    said = say("run", place, "--inputs", tmp_path / "wrong.npz", "-o", tmp_path / "out.npz")
    assert (said.code, said.complaint[0]) == (3, "input 'x' is fed shape [3], and the model reads float32[2]")
    assert not (tmp_path / "out.npz").exists()


def test_a_sequence_that_is_an_output_is_saved_or_refused_in_words(say: Say, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Concat", ["a", "a"], ["b"], name="twice", axis=0),
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"], name="construct"),
    ]
    output = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    onnx.save(model_of(nodes, [floats("x", 2)], [output]), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.array([1, -2], np.float32))
    assert say("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    said = say("run", tmp_path / "m.parts", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert "defect" not in said.err


def test_words_that_are_an_output_can_be_read_again(say: Say, tmp_path: Path) -> None:
    """Without pickles, which graphcut itself refuses to read."""
    nodes = [
        helper.make_node("Identity", ["s"], ["a"], name="same"),
        helper.make_node("Concat", ["a", "a"], ["t"], name="twice", axis=0),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"]) for name in ("s", "t")]
    onnx.save(model_of(nodes, ends[:1], ends[1:]), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", s=np.array(["a", "bc"]))
    assert say("split", tmp_path / "m.onnx", "--at-nodes", "same", "-q").code == 0
    said = say("run", tmp_path / "m.parts", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert said.code == 0, said.err
    with np.load(tmp_path / "out.npz") as found:
        assert found["t"].tolist() == ["a", "bc", "a", "bc"]


def test_a_run_that_is_interrupted_while_it_writes_leaves_nothing(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_cascade(say, tmp_path, "a", "y")
    before = holdings(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    said = say("run", place, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert said.code == 130
    assert holdings(tmp_path) == before


def test_every_option_of_a_demo_reaches_it(say: Say, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours" / "small.onnx", tmp_path / "theirs" / "small.onnx"
    words = (
        "--hidden 16 --layers 1 --heads 2 --kv-heads 1 --intermediate 24 --vocab 8 --dtype float16 --tied --external"
    )
    for path in (ours, theirs):
        path.parent.mkdir()
    assert say("demo", "llm", "-o", ours, *words.split()).code == 0
    options: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 24, "vocab": 8}
    demos.write("llm", theirs, external=True, dtype="float16", tied=True, **options)
    assert ours.read_bytes() == theirs.read_bytes()
    assert Path(f"{ours}.data").read_bytes() == Path(f"{theirs}.data").read_bytes()


@pytest.mark.parametrize("name", demos.DEMOS)
def test_a_demo_goes_where_one_stands(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--hidden", "16", "--vocab", "8") if name == "llm" else ()
    said = say("demo", name, *more)
    assert (said.code, said.out) == (0, "")
    assert said.err == f"wrote {name}.onnx\nnext: graphcut analyze {name}.onnx\n"
    assert say("analyze", f"{name}.onnx").code == 0


# Names that mean something to a terminal


def named(folder: Path, *names: str) -> Path:
    """A chain whose nodes and tensors bear these names."""
    tensors = ["x", *(f"{name}:0" for name in names), "y"]
    nodes = [
        helper.make_node("Relu", [tensors[i]], [tensors[i + 1]], name=name) for i, name in enumerate([*names, "last"])
    ]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", ["[red]", "[/]", "[bold]x[/bold]", ":smile:", "%s{0}", "back\\slash", "a b"])
def test_a_name_is_shown_as_it_is(say: Say, tmp_path: Path, name: str) -> None:
    path = named(tmp_path, name)
    assert name in say("analyze", path).out
    assert say("analyze", path, "--cuts").out.splitlines()[1].split("\t")[0] == name
    assert json.loads(say("analyze", path, "--json").out)["cut_points"][0]["node"] == name
    said = say("split", path, "--at-nodes", name)
    assert said.code == 0
    assert f"{name}:0" in said.out
    assert say("verify", path.with_name("m.parts")).code == 0
    assert say("split", path, "--at-nodes", "[redx", "-f").complaint[0].endswith("'[redx'")


def test_a_name_of_many_letters_is_whole_in_a_pipe(say: Say, tmp_path: Path) -> None:
    """What reads the pipe can't ask for more columns."""
    name = "/".join(["model", *(f"layers.{i}" for i in range(30))])
    path = named(tmp_path, name)
    assert name in say("analyze", path).out
    assert f"{name}:0" in say("split", path, "--at-nodes", name).out


# Widths, colours and encodings


def sizes_in(text: str) -> list[str]:
    return re.findall(r"\d[\d.]* (?:[KMGT]i)?B\b", " ".join(text.split()))


@pytest.mark.parametrize("columns", [80, 100])
def test_a_narrow_terminal_gets_every_number_of_an_analysis(
    say: Say, llm: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and modules may be shortened, and numbers may not."""
    _, _, wide = say("analyze", llm).out.partition("cut after")
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = say("analyze", llm).out
    assert max(len(line) for line in narrow.splitlines() if not line.startswith("next: ")) <= columns
    assert sizes_in(narrow.partition("cut after")[2]) == sizes_in(wide)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("at", ["/model/layers.1/add_1", "/model/layers.*/add*"], ids=["2 parts", "7 parts"])
def test_a_narrow_terminal_gets_every_number_and_every_reader_of_a_cascade(
    say: Say, own_llm: Path, at: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = say("split", own_llm, "--at-nodes", at).out
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = say("show", own_llm.with_name("llm.parts")).out
    assert max(map(len, narrow.splitlines())) <= columns
    narrow, wide = (text.partition("cut profile")[0] for text in (narrow, wide))  # whose scale is that of its columns
    assert sizes_in(narrow) == sizes_in(wide)
    assert narrow.count("●") == wide.count("●")


def on_a_terminal(*words: object, **changes: str) -> str:
    """What the command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="100", **changes)
    with subprocess.Popen([SCRIPT, *map(str, words)], stdout=theirs, stderr=theirs, env=env):
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)
        except OSError:  # Linux says so when the other side is closed
            pass
    os.close(ours)
    return b"".join(pieces).decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;5)[0-9;]*m")


def test_a_terminal_gets_colours_unless_it_wants_none(parts: Path) -> None:
    assert COLOUR.search(on_a_terminal("show", parts))
    assert not COLOUR.search(on_a_terminal("show", parts, NO_COLOR="1"))
    assert not COLOUR.search(on_a_terminal("--no-color", "show", parts))


LATIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize("words", [("analyze", "MODEL"), ("split", "MODEL", "--at-nodes", MIDDLE)], ids=" ".join)
def test_a_terminal_without_utf_8_gets_plain_letters(own_llm: Path, words: Sequence[str]) -> None:
    """Sizes without a number are "at least"; layers are counted; types have unknown sizes."""
    said = command(*(word.replace("MODEL", str(own_llm)) for word in words), env=LATIN)
    assert said.code == 0, said.err
    assert said.out.isascii()


@pytest.mark.parametrize("words", [("verify", "PARTS"), ("show", "PARTS"), ("show", "PARTS", "--json")], ids=" ".join)
def test_a_cascade_is_shown_without_utf_8(parts: Path, words: Sequence[str]) -> None:
    said = command(*(word.replace("PARTS", str(parts)) for word in words), env=LATIN)
    assert said.code == 0, said.err
    assert said.out.isascii()


@pytest.mark.parametrize("words", [("analyze",), ("analyze", "--cuts"), ("analyze", "--json")], ids=" ".join)
def test_a_name_in_another_script_does_not_need_utf_8(tmp_path: Path, words: Sequence[str]) -> None:
    said = command(*words, named(tmp_path, "größe", "層"), env=LATIN)
    assert said.code == 0, said.err


# Interrupted, and read by somebody in a hurry

SLOW = """
import sys, time
import graphcut.surgery.splitting as splitting
real = splitting.write_data

def slow(layout, target, *, progress=None):
    real(layout, target, progress=progress)
    time.sleep(60)

splitting.write_data = slow
sys.argv[0] = "graphcut"
from graphcut.cli import main
main()
"""


@pytest.mark.parametrize("old", [False, True], ids=["nothing there", "an old cascade there"])
def test_an_interrupted_split_says_so_and_leaves_nothing(own_llm: Path, parts: Path, *, old: bool) -> None:
    home = own_llm.parent
    if old:
        shutil.copytree(parts, home / "llm.parts")
    before = {name: (home / name).read_bytes() for name in holdings(home) if (home / name).is_file()}
    words = ["split", own_llm, "--at-nodes", "/model/layers.0/add_1", "--force"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        deadline = time.monotonic() + 30
        while not list(home.glob("*.tmp-*/*/*.data")) and time.monotonic() < deadline:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert {name: (home / name).read_bytes() for name in holdings(home) if (home / name).is_file()} == before
    assert not list(home.glob("*tmp*"))
    assert err.splitlines()[-1] == "error: interrupted; no incomplete output is left"


@pytest.mark.parametrize("words", [("analyze", "MODEL", "--cuts"), ("show", "PARTS"), ("--help",)], ids=" ".join)
def test_a_reader_who_has_seen_enough_is_no_error(llm: Path, parts: Path, words: Sequence[str]) -> None:
    filled = [word.replace("MODEL", str(llm)).replace("PARTS", str(parts)) for word in words]
    with subprocess.Popen(
        [SCRIPT, *filled], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
    assert (running.returncode, said) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_no_defect(llm: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [SCRIPT, "analyze", llm, "--cuts"], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert done.returncode == 3
    said = Said(3, "", done.stderr.decode())
    assert "No space left on device" in said.complaint[0]
    assert "defect" not in said.complaint[1]
