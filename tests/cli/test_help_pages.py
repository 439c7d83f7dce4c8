"""The pages of help: words and panels of options, and examples that work."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from graphcut.cli import help_pages
from graphcut.cli.application import GeneralOptions, command_of, root
from graphcut.cli.declaring import declared
from graphcut.core.records import table

from command_line import COMMANDS, Run, command, run

__all__ = ["run"]

CLUSTER = """
[[devices]]
name = "laptop"
flops_per_s = 1e11

[[devices]]
name = "board"
flops_per_s = 2e10

[[links]]
between = ["laptop", "board"]
bytes_per_s = "100MB"
"""
WITHOUT = {"graphcut measure cluster -o measured.toml"}  #: needs other machines.
MOST_ROWS = 24
MOST_ROWS_IN_ALL = 220


def rows_of(page: str) -> list[str]:
    """The long names of the options that a page has rows for."""
    panels = re.split(r"^\w[\w ]*:$", page, maxsplit=1, flags=re.MULTILINE)[-1]
    found = re.findall(r"^  (?:-\w, )?--([\w-]+)", panels, re.MULTILINE)
    return [name for name in found if name not in {"install-completion", "show-completion"}]


def test_pages_have_few_options_each_once(run: Run) -> None:
    rows = {name: rows_of(run(name, "--help").out) for name in COMMANDS}
    assert {
        name: len(found) for name, found in rows.items() if len(set(found)) < len(found) or len(found) > MOST_ROWS
    } == {}
    assert sum(map(len, rows.values())) + len(rows_of(run("--help").out)) <= MOST_ROWS_IN_ALL


def test_an_option_of_one_name_means_one_thing() -> None:
    """On all pages its help begins with the same two words, and its value, unless words are listed, has one name.

    But `--output` names the files or the folder that its command writes, and `--device` one for each part of a split.
    """
    senses: dict[str, set[str]] = {}
    metavars: dict[str, set[str]] = {}
    for one in (one for name in COMMANDS for one in command_of(name).params if one.param_type_name == "option"):
        senses.setdefault(max(one.opts, key=len), set()).add(" ".join(re.findall(r"[^ ,.:;]+", one.help)[:2]))
        metavars.setdefault(max(one.opts, key=len), set()).update({one.metavar} - {None})
    assert {name for name, found in senses.items() if len(found) > 1} == {"--output"}
    assert {name: found for name, found in metavars.items() if len(found) > 1} == {
        "--output": {"FILE", "DIR"},
        "--device": {"NAME", "NAMES"},
    }


def test_the_global_options_stand_in_the_root_alone(run: Run) -> None:
    assert {"quiet", "no-color", "debug", "help"} <= set(rows_of(run("--help").out))
    for name in COMMANDS:
        page = run(name, "--help").out
        assert not {"quiet", "no-color", "debug", "help"}.intersection(rows_of(page))
        assert page.endswith("\n\nGlobal options: graphcut --help\n")


def test_panels_name_options_that_exist(run: Run) -> None:
    """Those of a command are options of it, and those of all commands of some."""
    rows = {name: set(rows_of(run(name, "--help").out)) for name in COMMANDS}
    rows["every command"] = set().union(*rows.values())
    for name, panels in help_pages.panels().items():
        assert {option for options in panels.values() for option in options.split()} <= rows[name], name


def test_the_table_of_words_is_that_of_the_parameters() -> None:
    owners = [root, GeneralOptions, *(getattr(import_module(f"graphcut.cli.{name}"), name) for name in COMMANDS)]
    owners += [one.annotation for owner in owners for one in declared(owner) if is_dataclass(one.annotation)]
    known = {owner.__name__: {one.name for one in declared(owner)} for owner in owners}
    words = table("cli/options.toml", dict[str, dict[str, Any]])
    for name in words.pop("several commands"):
        assert sum(name in names for names in known.values()) > 1, name
    for title, entries in words.items():
        for owner in title.split(", "):
            assert entries.keys() <= known[owner], owner


def test_a_parameter_without_words_is_refused() -> None:
    def command_without_words(new_option: int = 0) -> None: ...

    with pytest.raises(LookupError, match=r"^options.toml has no help for new_option of command_without_words$"):
        declared(command_without_words)


@pytest.mark.parametrize("name", ["plan", "split", "auto"])
def test_goals_and_the_output_come_first(run: Run, name: str) -> None:
    first = run(name, "--help").out.partition("\nGoal and output:\n")[2].partition("\n\n")[0]
    assert {"num-splits", "memory", "cluster", "output"} <= set(rows_of(first))


def test_what_examples_need_is_not_advanced(run: Run) -> None:
    for name in COMMANDS:
        page = run(name, "--help").out
        advanced = page.partition("\nAdvanced:\n")[2].partition("\n\n")[0]
        used = re.findall(r"--([\w-]+)", page.partition("\nExamples:\n")[2])
        assert set(rows_of(advanced)).isdisjoint(used), name


def test_every_page_ends_with_examples_that_work(run: Run, tmp_path: Path) -> None:
    """In one folder with `cluster.toml` and `checkpoint`, in the order of the help, the demos first."""
    (tmp_path / "cluster.toml").write_text(CLUSTER, "utf-8")
    header = json.dumps({"norm": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    pages = {name: run(name, "--help").out.partition("\nExamples:\n")[2].partition("\n\n")[0] for name in COMMANDS}
    lines = {name: [line.strip() for line in page.splitlines()] for name, page in pages.items()}
    assert {len(examples) for examples in lines.values()} == {2, 3}
    assert {
        name for name, examples in lines.items() for one in examples if one.split()[:2] != ["graphcut", name]
    } == set()
    ordered = [example for name in ("demo", *COMMANDS) for example in lines[name]]
    for example in dict.fromkeys(example for example in ordered if example not in WITHOUT):
        words = shlex.split(example)[1:]  # a limit of memory counts what else this process holds
        result = command(*words, cwd=tmp_path) if words[0] == "run" and "--memory-limit" in words else run(*words)
        assert result.code == 0, (example, result.err)
