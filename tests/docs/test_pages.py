"""Every code block of README.md and docs/ does what the page shows; `scripts/doc-blocks` renews the outputs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import onnxruntime as ort
import pytest
from typer.testing import CliRunner

from graphcut.cli.application import app

from cases import each
from pages import PAGES, ROOT, Run, blocks_of, commands_in, options_in

WITH_BLOCKS = [page for page in PAGES if blocks_of(page.read_text(encoding="utf-8"))]
LANGUAGES = {"console", "python", "sh", "json", "toml", "yaml", "text", "cpp", "js", "kotlin", "swift"}
MARKDOWN = sorted({*PAGES, *ROOT.glob("*.md")})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_blocks_of_a_page_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    run = Run(tmp_path)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if "ModelPackageContext" in block.text and not hasattr(ort, "ModelPackageContext"):
            continue  # the lowest ONNX Runtime has no such class
        done = run.run(block)
        where = f"{name_of(page)}:{block.line}"
        assert done.exit_code == block.exit_code, f"{where}\n{done.text}"
        if not block.is_measured:
            assert done.commands == block.commands, f"{where}: scripts/doc-blocks renews it"


@each("page", WITH_BLOCKS)
def test_blocks_that_are_not_run_are_well_formed(page: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}"
        assert block.language != "toml" or block.file, f"line {block.line}: which file is it?"
        if block.language == "json":
            json.loads(block.text)
        if block.language == "sh":
            others = [one for one in commands_in(block.text) if not re.match(r"graphcut |python ", one)]
            assert block.not_run or not others, f"line {block.line}: say why {others[0]} is not run"
            for command, option in options_in(block.text):
                assert option in help_of(command), f"line {block.line}: {command} {option}"


@cache
def help_of(command: str) -> str:
    return str(CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).output)


@each("page", MARKDOWN)
def test_links_to_other_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert re.match(r"https?:", target) or (page.parent / target).exists(), target


def test_the_readme_has_at_most_1500_words() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1500


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "graphcut"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    table = page.partition("## Packages")[2].partition("## What must")[0]
    assert set(re.findall(r"^\|[ \d]*\| `(\w+)`", table, flags=re.MULTILINE)) == modules


@each("page", MARKDOWN)
def test_files_and_folders_that_pages_name_exist(page: Path) -> None:
    package = ROOT / "graphcut"
    folders = [ROOT, package, package / "planning", package / "running"]
    for name in re.findall(r"`([a-z_]\w*/[\w/]*(?:/|\.py)|[a-z_]\w*/)`", page.read_text(encoding="utf-8")):
        assert any((folder / name).exists() for folder in folders), name
