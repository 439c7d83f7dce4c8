"""The table of figures in docs/reference/claims.md names functions that exist."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module

from hazards import HAZARDS
from pages import ROOT

COUNTING = ("docs/explanation/limitations.md", "docs/explanation/measurements.md")


def test_each_figure_has_a_unit_and_functions_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "claims.md").read_text(encoding="utf-8")
    table = page.partition("## Figures")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for figure, definition, unit, functions in rows:
        assert figure.strip()
        assert definition.strip()
        assert unit.strip()
        found = re.findall(r"`([\w.]+)` in `([\w/]+)\.py`", functions)
        assert found, functions
        for name, module in found:
            place = import_module(f"graphcut.{module.replace('/', '.')}")
            reduce(getattr, name.split("."), place)  # an AttributeError names what is missing


def test_pages_count_the_hazards_alike() -> None:
    number = len(HAZARDS)
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", *COUNTING)}
    assert f"Of {number} hazards, 62 can be cut" in pages["README.md"]
    assert f"holds {number} small models, each with one hazard" in pages[COUNTING[0]]
    assert f"(62 of {number})" in pages[COUNTING[1]]
