"""The page and the SVG of a comparison of two models: the chart, the histogram of a point, what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from onnx import ModelProto, helper
from test_accessibility import AXE, violations

import graphcut
from graphcut import ModelComparison, TensorError
from graphcut.drawing.comparison_page import comparison_html
from graphcut.drawing.svg.error_chart import columns_of, comparison_svg, module_runs

from browser import Browser, Page
from cases import each
from conftest import floats, model_of
from scenes_by_hand import HOSTILE

NODES = 12
FAULTY = 5


def chain(ops: Sequence[str], last: str, name: str = "") -> ModelProto:
    """Nodes one after another in modules of four, then the one that is `last`, and Neg; `name` is in the names."""
    names = ["x", *(f"model/layers.{i // 4}/{name}{i}" for i in range(len(ops))), f"head/{last}", "y"]
    ends = zip([*ops, last, "Neg"], pairwise(names), strict=True)
    nodes = [helper.make_node(op, [a], [b], b if b != "y" else "head/last") for op, (a, b) in ends]
    return model_of(nodes, [floats("x", 64)], [floats("y", 64)])


def compared(name: str = "") -> ModelComparison:
    """One operator is another one, and the node before the last has another name, too."""
    ops = ["Sin", "Tanh"] * (NODES // 2)
    other = chain([*ops[:FAULTY], "Cos", *ops[FAULTY + 1 :]], "Abs", name)
    feeds = [{"x": np.linspace(-2, 2, 64, dtype=np.float32)}]
    return graphcut.compare_models(chain(ops, "Exp", name), other, inputs=feeds, histograms=True)


@pytest.fixture(scope="module")
def found() -> ModelComparison:
    return compared()


@pytest.fixture
def page(browser: Browser, tmp_path: Path, found: ModelComparison) -> Iterator[Page]:
    (tmp_path / "errors.html").write_text(comparison_html(found, "a.onnx and b.onnx"), encoding="utf-8")
    page = browser.open(tmp_path / "errors.html", width=1280)
    yield page
    assert page.complaints() == []
    page.close()


SHOWN = "[...document.querySelectorAll('.tensor')].filter((one) => one.checkVisibility()).map((one) => one.innerText)"


def test_of_first_sight_are_the_culprit_and_the_histogram_of_its_tensor(found: ModelComparison, page: Page) -> None:
    assert [one.node for one in found.culprits] == [f"model/layers.1/{FAULTY}", "head/last"]
    (text,) = page.evaluate(SHOWN)
    assert text.startswith(f"model/layers.1/{FAULTY}\n")
    lines = page.evaluate("[...document.querySelectorAll('.plain li')].map((one) => one.textContent)")
    assert lines == [line.strip() for line in found.lines]
    links = page.evaluate("[...document.querySelectorAll('.plain a')].map((one) => one.getAttribute('href'))")
    assert links == [f"#t{FAULTY}", f"#t{NODES}"]
    assert page.evaluate("document.querySelectorAll('.tensor.first .near .block').length") == 1
    assert page.evaluate("document.querySelectorAll('.tensor.first .far .wire').length") == 1


def test_a_click_on_a_point_shows_the_histogram_of_its_tensor_and_the_page_stays_where_it_is(page: Page) -> None:
    point = "document.querySelectorAll('.chart .wide a')[8].getBoundingClientRect()"
    x, y = page.evaluate(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({point})")
    page.click(x, y)
    page.wait_for("location.hash === '#t8'")
    (text,) = page.evaluate(SHOWN)
    assert text.startswith("model/layers.2/8\n")
    assert page.evaluate("scrollY") == 0
    page.evaluate("document.querySelector('.tensor:target > a').click()")
    page.wait_for("location.hash === '#sections'")
    assert page.evaluate(SHOWN)[0].startswith(f"model/layers.1/{FAULTY}\n")


def test_what_differs_is_in_two_colours(found: ModelComparison, page: Page) -> None:
    kinds = {change.node: change.kind for change in found.changes}
    assert kinds == {f"model/layers.1/{FAULTY}": "operator", "head/Exp": "removed", "head/Abs": "added"}
    rows = "[...document.querySelectorAll('td .%s .mono')].map((one) => [one.textContent, getComputedStyle(one).color])"
    (((gone, blue),), ((new, orange),)) = (page.evaluate(rows % css) for css in "ab")
    assert (gone, new) == ("head/Exp", "head/Abs")
    assert blue != orange


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `source scripts/setup peers`")
@each("width", [390, 1280])
@each("dark", [False, True])
def test_axe_finds_no_violation(page: Page, width: int, *, dark: bool) -> None:
    page.resize(width, 900)
    page.prefer(dark=dark)
    page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate("location.hash = '#t3'")
    page.wait_for("document.querySelector('#t3').checkVisibility()")
    assert violations(page, dark=dark) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_names_are_text_in_the_page_and_in_the_svg() -> None:
    hostile = compared(HOSTILE.replace("/", "").encode(errors="ignore").decode())
    page, svg = comparison_html(hostile, HOSTILE), comparison_svg(hostile, HOSTILE)
    for text in (page, svg):
        assert "<script" not in text
        assert "onerror=" not in re.sub(r"&lt;.*?&gt;", "", text)
    ET.fromstring(svg)  # noqa: S314 - our own
    assert comparison_html(hostile, "{{tensors}}").count("<h1>{{tensors}}</h1>") == 1


def test_a_column_shows_its_culprit_or_its_largest_error_and_modules_follow_one_another(found: ModelComparison) -> None:
    columns, shown = columns_of(found, 52 + 3 * 4)
    assert [first for first, _ in columns.spans] == [len(found.errors) * i // 4 for i in range(4)]
    culprits = {one.error.tensor for one in found.culprits}
    for span, worst in zip(columns.spans, shown, strict=True):
        inside = [found.errors[i] for i in range(*span)]
        named = [error for error in inside if error.tensor in culprits]
        assert found.errors[worst].db == min(error.db for error in named or inside)
    runs = module_runs(found)
    assert [name for name, _ in runs] == ["model/layers.0", "model/layers.1", "model/layers.2", "head"]
    assert [i for _, run in runs for i in run] == [*range(len(found.errors))]


def test_modules_are_numbered_below_the_axis_if_their_names_do_not_fit() -> None:
    """Of 69 layers those below ten, and then every second one, as far as two digits have room."""
    kinds = (TensorError(f"t{i}", f"t{i}", f"n{i}", f"layers.{i // 60}/mlp", 20, 20, 120, 0) for i in range(69 * 60))
    whole = ModelComparison((), tuple(kinds), (), (), (), 20, "y", has_tolerance=True)
    numbers = re.findall(r'text-anchor="middle">(\d+)<', comparison_svg(whole, "deep"))
    assert [int(number) for number in numbers] == [*range(10), *range(11, 69, 2)]


def test_equal_models_have_a_page_without_a_chart() -> None:
    model = chain(["Sin"], "Abs")
    same = graphcut.compare_models(model, model, histograms=True)
    assert "all bits of all outputs are equal" in comparison_html(same, "same")
    assert "all bits of all outputs are equal" in comparison_svg(same, "same")
