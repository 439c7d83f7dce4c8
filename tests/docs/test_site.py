"""The documentation site: it builds without a warning, documents every public name, and needs no network."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import graphcut
from graphcut.cli.application import COMMANDS
from graphcut.sharding.axes.rules import RULES

from pages import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the docs extra is not installed")

API = ROOT / "docs" / "reference" / "api"
BUILD = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
"""The builder without looking for garbage, nor, by an option, for quotes to round: a third of its time."""

LOADS = {"script", "img", "iframe", "source", "video", "audio", "embed"}


class Loaded(HTMLParser):
    """What a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") not in {"next", "prev", "index", "search", "canonical"}:
            self.urls.append(found.get("href") or "")
        if tag in LOADS and (source := found.get("src")):
            self.urls.append(source)


def test_the_site_is_built_without_a_warning_and_is_complete(tmp_path: Path) -> None:
    """One test, so that the site is built once."""
    words: list[str | Path] = ["-q", "-W", "--keep-going", "-b", "html", "-D", "smartquotes=0", ROOT / "docs", tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages_load_nothing_from_the_network(tmp_path)
    every_schema_is_a_file(tmp_path)
    every_command_is_described(tmp_path)
    every_rule_is_in_the_table(tmp_path)
    the_first_page_shows_a_live_one(tmp_path)


def the_first_page_shows_a_live_one(site: Path) -> None:
    assert 'src="live.html"' in (site / "index.html").read_text(encoding="utf-8")
    assert "<h1>clip.onnx</h1>" in (site / "live.html").read_text(encoding="utf-8")


def pages_load_nothing_from_the_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert loaded.urls or page.name == "live.html"
        assert [url for url in loaded.urls if re.match(r"(https?:)?//", url)] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import\s", style.read_text(encoding="utf-8")), style


def every_rule_is_in_the_table(site: Path) -> None:
    from generated import axis_rules

    page = (site / "explanation" / "sharding.html").read_text(encoding="utf-8")
    table = re.findall(r"<tr[^>]*>(.*?)</tr>", page.partition('id="rules"')[2].partition("</table>")[0], re.DOTALL)
    assert len(table) == 1 + len(axis_rules())
    operators = "".join(row.partition("</td>")[0] for row in table)
    assert sorted(re.findall(r'<span class="pre">(.*?)</span></code>', operators)) == sorted(RULES)
    assert all(axis_rules())


def every_schema_is_a_file(site: Path) -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    from generated import file_name, schema_types  # the site's own extension is in no package

    page = (site / "reference" / "schemas.html").read_text(encoding="utf-8")
    for form in schema_types():
        schema = json.loads((site / "schemas" / file_name(form)).read_text(encoding="utf-8"))
        assert schema["title"] == form
        assert file_name(form) in page
        for name, record in schema["$defs"].items():
            undocumented = [field for field, value in record["properties"].items() if not value.get("description")]
            assert undocumented == [], f"{form}: {name}"


def every_command_is_described(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f'id="graphcut-{command}"' in page


def test_the_reference_documents_every_public_name() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.rst"))
    documented = re.findall(r"^\.\. auto(?:function|class|exception|data):: (\w+)$", text, flags=re.MULTILINE)
    assert sorted(documented) == sorted(graphcut.__all__), "each public name has an entry in docs/reference/api"
