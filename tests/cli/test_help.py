"""Help, versions, and options that stand anywhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import graphcut
from graphcut.benchmarking.ways import WAYS
from graphcut.cli.moved import moved
from graphcut.demos import DEMOS, options_of

from cases import each
from command_line import COMMANDS, RAY_FLAGS, Run, llm, own_llm, run

__all__ = ["llm", "own_llm", "run"]


@each("words", [("--help",), ("-h",), *((name, "--help") for name in COMMANDS)])
def test_every_command_has_help(run: Run, words: Sequence[str]) -> None:
    result = run(*words)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Usage: graphcut")


def test_help_names_every_command(run: Run) -> None:
    sections = re.findall(r"^(\w+):\n((?:  [a-z][a-z-]* +[A-Z].*\n)+)", run("--help").out, re.MULTILINE)
    assert [title for title, _ in sections] == ["Cut", "Run", "Devices", "Models", "Start"]
    assert tuple(line.split()[0] for _, lines in sections for line in lines.splitlines()) == COMMANDS


@each(
    ("words", "message", "command"),
    [
        ("pack x", "there is no command 'pack'", "graphcut fetch DIR --device NAME -o FOLDER"),
        ("devices x", "there is no command 'devices'", "graphcut show DIR --to devices"),
        ("cost-model x", "there is no command 'cost-model'", "graphcut measure MODEL -o costs.csv"),
        ("cluster measure", "there is no command 'cluster'", "graphcut measure cluster -o cluster.toml"),
        ("diff a b", "there is no command 'diff'", "graphcut compare A B"),
        ("verify a --against b", "No such option: --against", "graphcut compare MODEL OTHER"),
        ("verify a --tolerance 1", "No such option: --tolerance", "graphcut compare MODEL OTHER"),
        ("split m --pin a=1", "No such option: --pin", "graphcut plan MODEL -o plan.json"),
        ("auto m --prove", "No such option: --prove", "graphcut plan MODEL -o plan.json"),
        ("plan m --plan p", "No such option: --plan", "graphcut split MODEL --plan FILE"),
        ("plan m --explain", "No such option: --explain", "graphcut show PLAN"),
        ("split m --report r.html", "No such option: --report", "graphcut show DIR -o report.html"),
    ],
)
def test_what_exists_no_more_names_its_successor(run: Run, words: str, message: str, command: str) -> None:
    result = run(*words.split())
    assert (result.code, result.error[0].partition(" (")[0], result.error[1].split("`")[1]) == (2, message, command)


@each(
    ("words", "instead"),
    [
        ("plan m --by flops", "--count"),
        ("plan m --interleave", "--objective interleaved"),
        ("plan m --tokens 9", "--profile decode:"),
        ("plan m --exact", "--sum"),
        ("split m --shares 3:1", "--ranks 3:1"),
        ("split m --devices a,b", "--device"),
        ("analyze m --discover", "leave it out"),
        ("analyze m --device coreml", "--rules"),
        ("auto m --for js", "--to"),
        ("auto m --parts 2", "--num-splits"),
        ("auto m --optimize", "--prepare fuse"),
        ("extract m --to x", "--until"),
        ("link m --weights d", "--checkpoint"),
        ("demo llm --heads 2", "--attention-heads"),
        ("simulate p --closed 3", "--in-flight"),
        ("verify d --optimized", "--optimize all"),
        ("show p --json", "--to json"),
        ("show p --part 1", "part-0.onnx"),
        ("run d --provider-option a=b", "--provider NAME,KEY=VALUE"),
        ("run d --force-memory", "--memory-limit"),
        ("run d --memory 2GB", "--memory-limit"),
        ("generate d --memory 2GB", "--memory-limit"),
        ("measure m --memory 2GB", "--memory-limit"),
        ("generate d --prompts f", "--prompt @FILE"),
        ("generate d --stop-ids 1", "--stop N,N"),
    ],
)
def test_an_option_that_has_another_name_is_named(run: Run, words: str, instead: str) -> None:
    result = run(*words.split())
    assert (result.code, result.error[0].startswith("No such option: ")) == (2, True)
    assert instead in result.error[1]


def test_help_fits_into_80_columns_with_whole_summaries(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in run("--help").out.partition("\n")[2]
    for name in COMMANDS:
        lines = run(name, "--help").out.splitlines()
        assert max(map(len, lines)) <= 80, name
        assert f"  {lines[2].strip().split('. ')[0].removesuffix('.')}." in run("--help").out


def test_usage_lines_name_arguments_in_the_standard_form(run: Run) -> None:
    usages = [run(name, "--help").out.splitlines()[0] for name in COMMANDS]
    arguments = ["MODEL", "MODEL", "MODEL", "DIR", "A B", "THING", *["DIR"] * 3, "WHAT", "PLAN", "SOURCE"]
    arguments += ["[MODEL]", "MODEL", "DIR|MODELS", "MODEL", "DIR", "NAME", ""]
    assert usages == [
        f"Usage: graphcut {name} [OPTIONS] {words}".strip() for name, words in zip(COMMANDS, arguments, strict=True)
    ]


def test_demos_and_ways_are_explained(run: Run) -> None:
    for name, meanings in (("demo", DEMOS), ("bench", {name: way.description for name, way in WAYS.items()})):
        text = " ".join(run(name, "--help").out.split())
        for word, meaning in meanings.items():
            assert f" {word} {' '.join(meaning.split())}" in text


def test_the_defaults_of_a_demo_are_those_of_its_recipe(run: Run) -> None:
    text = " ".join(run("demo", "--help").out.split())
    for name, default in options_of("llm").items():
        if default not in {None, False}:
            assert re.search(
                rf"--(attention-)?{name.replace('_', '-')} (\[[^\]]*\] )?[^\[]*\[default: {default}(; x>=1)?\]",
                text,
            ), name


def test_help_is_printed_without_arguments(run: Run) -> None:
    result = run()
    assert (result.out + result.err).startswith("Usage: graphcut")


def test_versions_are_one_line(run: Run) -> None:
    result = run("--version")
    assert result.code == 0
    assert re.fullmatch(r"graphcut \S+ \(python \S+, onnx \S+, onnxruntime \S+\)\n", result.out)


def test_the_module_runs_like_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "graphcut", "--version"], capture_output=True, check=False)
    assert done.stdout.startswith(b"graphcut ")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_general_options_stand_anywhere(run: Run, own_llm: Path, place: int) -> None:
    for option in ("--quiet", "-q", "--no-color", "--debug"):
        words: list[object] = ["analyze", own_llm]
        words.insert([0, 1, len(words)][place], option)
        result = run(*words)
        assert result.code == 0, result.err
        assert (result.err == "") is (option in {"--quiet", "-q"})


def test_quiet_holds_for_one_command_only(run: Run, own_llm: Path) -> None:
    assert run("analyze", own_llm, "-q").err == ""
    assert run("analyze", own_llm).err.startswith("next: ")


@each(
    ("line", "completions"),
    [
        ("graphcut d", ["demo", "doctor"]),
        ("graphcut demo ", list(DEMOS)),
        ("graphcut show x --to ", ["terminal", "html", "svg", "dot", "mermaid", "json", "devices"]),
        ("graphcut plan x --profile ", ["prefill", "decode"]),
        ("graphcut plan x --cost-model Phi", ["Phi-3.5-mini"]),
        ("graphcut bench x --way whole-", [way for way in WAYS if way.startswith("whole-")]),
        ("graphcut run x --provider CPU", ["CPUExecutionProvider"]),
        ("graphcut run x --via ", ["threads", "processes", "ray"]),
        ("graphcut simulate plan.json --cluster cluster.toml --fail ", ["pi@", "jetson@"]),
        ("graphcut simulate plan.json --cluster cluster.toml --fail j", ["jetson@"]),
        ("graphcut simulate nothing.json --fail ", []),
    ],
)
def test_the_shell_completes_words(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, completions: list[str]
) -> None:
    devices = "".join(f'[[devices]]\nname = "{name}"\nflops_per_s = 1e9\n' for name in ("pi", "jetson"))
    (tmp_path / "cluster.toml").write_text(devices)
    assert completed(run, monkeypatch, line) == completions


def completed(run: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    monkeypatch.setenv("_GRAPHCUT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    result = run()
    assert result.err == ""
    return result.out.split()


def test_the_shell_completes_devices_of_a_plan(run: Run, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis, hosts = graphcut.analyze(chain), tuple(graphcut.Device(name=name) for name in ("pi", "jetson"))
    made = graphcut.plan(analysis, graphcut.Across(graphcut.Cluster(devices=hosts)))
    graphcut.save_plan(made, analysis.model, chain.with_name("plan.json"))
    assert {*completed(run, monkeypatch, "graphcut simulate plan.json --fail ")} == {"pi@", "jetson@"}
    assert completed(run, monkeypatch, "graphcut simulate plan.json --fail p") == ["pi@"]


def flags_of(run: Run, *words: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", run(*words, "--help").out))


def strings_in(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        return iter(path.read_text(encoding="utf-8").splitlines())
    return (
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


FLAGS_OF_OTHERS = {
    **dict.fromkeys(("ray_cluster", "ray_measuring", "show"), RAY_FLAGS),
    "moved": {name.split()[-1] for name in moved()},  # it says what is used instead
    "olive": {"--config", "--package-config"},
}
"""Options of other commands that a file of the package names."""


def test_messages_name_existing_options_and_commands(run: Run) -> None:
    flags = flags_of(run).union(*(flags_of(run, name) for name in COMMANDS))
    house = Path(graphcut.__file__).parent
    for path in (file for ending in ("py", "toml", "json") for file in house.rglob(f"*.{ending}")):
        known = flags | FLAGS_OF_OTHERS.get(path.stem, set())
        for text in (text for text in strings_in(path) if "--" in text or "`graphcut" in text):
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known, (path, text)
            assert set(re.findall(r"`graphcut ([a-z-]+)", text)) <= set(COMMANDS), (path, text)


def test_the_command_computes_products_in_one_thread_unless_the_user_says_how_many() -> None:
    code = "import os, sys; from graphcut.__main__ import start; sys.argv = ['graphcut', '--version']\ntry: start()\n"
    code += "finally: print(os.environ['OPENBLAS_NUM_THREADS'])"
    others = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given, found in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        said = subprocess.check_output([sys.executable, "-c", code], env={**others, **given}, text=True)
        assert said.split()[-1] == found
