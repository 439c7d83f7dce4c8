"""The page cuts as `graphcut split --at-nodes` does: to the byte, for any nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from graphcut import Analysis, At, Into, analyze, demos, load, plan
from graphcut.core.errors import UsageError
from graphcut.costs.weighing import weigh
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan

from browser import Browser, Page, find_browser, started

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no Chromium on this machine: the page is not tried (apt-get install chromium)"
)
FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TRIES = 30
ROWS = """[...document.querySelectorAll("#yours tbody tr")].map((row) => [...row.cells].map((cell) => {
  const exact = cell.querySelector("span[title]");
  return exact ? exact.title : cell.textContent;
}))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE is not None
    with started(EXECUTABLE) as running:
        yield running


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    pages: list[Page] = []

    def open_scene(shown: Scene, **options: Any) -> Page:  # noqa: ANN401 - what Browser.open takes
        path = tmp_path / "page.html"
        path.write_text(html_of(shown), encoding="utf-8")
        pages.append(browser.open(path, **options))
        pages[-1].wait_for("document.documentElement.dataset.ready")
        return pages[-1]

    yield open_scene
    for page in pages:
        assert page.complaints() == []
        page.close()


def cut_in(page: Page, nodes: list[str]) -> list[list[str]]:
    """The table of the parts after cutting after these nodes, by the address of the page."""
    link = "#cuts=" + ",".join(quote(node, safe="") for node in nodes)
    page.evaluate(f"new Promise((done) => {{ location.hash = ''; onhashchange = done; location.hash = {link!r}; }})")
    found: list[list[str]] = page.evaluate(ROWS)
    return found


def planned(analysis: Analysis, nodes: list[str], flops: dict[int, int]) -> list[tuple[int, int, int, int, int, int]]:
    """Of each part: nodes, bytes of weights, FLOPs, bytes sent, bytes and tensors that cross after it."""
    made = plan(analysis, At(tuple(nodes))).partition
    sizes, graph = analysis.sized.tensor_bytes, analysis.model.graph
    ends = made.wiring.boundary_tensors
    rows = []
    for i, block in enumerate(made.blocks):
        crossing = [name for name, (source, readers) in ends.items() if source <= i < max(readers)]
        rows.append(
            (
                len(block.nodes),
                sum(graph.weights[name].bytes for name in block.weights),
                sum(flops[node] for node in block.nodes),
                sum(sizes[name][0] for name, (source, _) in ends.items() if source == i),
                sum(sizes[name][0] for name in crossing),
                len(crossing),
            )
        )
    return rows


def number(text: str) -> int:
    return int(text.split(maxsplit=1)[0].replace(",", "")) if text and text != "\N{EN DASH}" else 0


@pytest.mark.parametrize("name", ["clip", "unet", "tiny-llama-int4", "llm", "multitask"])
def test_random_cuts_cost_in_the_page_what_the_planner_says(name: str, show: Any, tmp_path: Path) -> None:  # noqa: ANN401
    if name in {"llm", "multitask"}:
        path = tmp_path / f"{name}.onnx"
        demos.write(name, path)
    else:
        path = next(one for one in (FIXTURES / f"{name}.onnx", FIXTURES / name / "model.onnx") if one.exists())
    analysis = analyze(load(path))
    graph, costs = analysis.model.graph, weigh(analysis.model, analysis.sized.dims)
    flops = dict(zip(graph.flow, costs.flops, strict=True))
    page = show(scene_of_plan(plan(analysis, Into(2), costs=costs), analysis))
    made, compared = random.Random(name), 0  # noqa: S311 - no secret
    for _ in range(TRIES):
        nodes = [graph.nodes[node].name for node in made.sample(graph.flow, made.randint(1, 4))]
        try:
            expected = planned(analysis, nodes, flops)
        except UsageError:  # nothing is left after the last
            continue
        rows = cut_in(page, nodes)
        shown = [(number(row[2]), number(row[3]), number(row[6]), number(row[7]), number(row[8])) for row in rows]
        assert shown == [(row[0], row[1], *row[3:]) for row in expected], nodes
        compared += 1
    assert compared > TRIES / 2


def test_a_cut_is_made_moved_copied_and_taken_away_by_keys(show: Any, tmp_path: Path) -> None:  # noqa: ANN401
    demos.write("llm", tmp_path / "llm.onnx")
    analysis = analyze(load(tmp_path / "llm.onnx"))
    page = show(scene_of_analysis(analysis))
    names = [analysis.model.graph.nodes[node].name for node in analysis.model.graph.flow]
    page.evaluate(f"location.hash = '#node={names[100]}'")
    page.wait_for("document.querySelector('#cut')")
    page.evaluate("document.querySelector('#profile canvas').focus()")
    page.press("c")
    command = "document.querySelector('#yours code').textContent"
    assert page.evaluate(command).endswith(f"llm.onnx --at-nodes={names[100]}")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", windowsVirtualKeyCode=39, modifiers=8)
    assert page.evaluate(command).endswith(f"--at-nodes={names[101]}")
    assert page.evaluate("location.hash") == f"#cuts={quote(names[101], safe='')}&node={quote(names[101], safe='')}"
    assert len(page.evaluate(ROWS)) == 2
    page.press("c")
    assert page.evaluate("document.querySelector('#yours').hidden")
    assert not page.evaluate("document.querySelector('#matrix').hidden")


def test_the_panel_names_what_crosses_and_leads_to_the_nodes_around(show: Any, tmp_path: Path) -> None:  # noqa: ANN401
    demos.write("multitask", tmp_path / "multitask.onnx")
    analysis = analyze(load(tmp_path / "multitask.onnx"))
    graph = analysis.model.graph
    page = show(scene_of_analysis(analysis))
    for node in graph.flow[1:6]:
        page.evaluate(f"location.hash = '#node={quote(graph.nodes[node].name, safe='')}'")
        page.wait_for(f"document.querySelector('#panel h2').textContent === {graph.nodes[node].name!r}")
        cells = "(row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent)"
        shown = page.evaluate(f"[...document.querySelectorAll('#panel tbody tr')].map({cells})")
        before = [graph.producer[name] for name in graph.nodes[node].reads if name in graph.producer]
        after = [reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ())]
        around = [("from", graph.nodes[n]) for n in before] + [("to", graph.nodes[n]) for n in after]
        assert sorted(map(tuple, shown)) == sorted((way, f"{one.op} {one.name}") for way, one in around)
    page.evaluate("document.querySelector('#panel tbody tr:last-child button').click()")
    assert page.evaluate("document.querySelector('#panel h2').textContent") == graph.nodes[max(after)].name
    made = plan(analysis, At((graph.nodes[max(after)].name,))).partition.wiring.boundary_tensors
    names = "[...document.querySelectorAll('#panel dt')].find((word) => word.textContent === 'names')"
    assert set(page.evaluate(f"{names}.nextSibling.textContent").split(", ")) == {*made}


@pytest.mark.parametrize("kind", ["mouse", "touch"])
def test_a_cut_is_dragged(show: Any, tmp_path: Path, kind: str) -> None:  # noqa: ANN401
    demos.write("llm", tmp_path / "llm.onnx")
    analysis = analyze(load(tmp_path / "llm.onnx"))
    page = show(scene_of_plan(plan(analysis, Into(2)), analysis), width=390 if kind == "touch" else 1320)
    page.evaluate("document.querySelector('#profile canvas').scrollIntoView({block: 'center'})")
    left, top, width = page.evaluate(
        "(({x, y, width}) => [x, y, width])(document.querySelector('#profile canvas').getBoundingClientRect())"
    )
    scene = scene_of_plan(plan(analysis, Into(2)), analysis)
    assert scene.profile is not None
    at = [left + 74 + share * (width - 86) for share in ((scene.profile.cuts[0] + 1) / len(scene.profile.nodes), 0.8)]
    if kind == "mouse":
        page.drag(*at, top + 150)
    else:
        page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": at[0], "y": top + 150}])
        for share in (0.3, 0.6, 1.0):
            x = at[0] + share * (at[1] - at[0])
            page.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": top + 150}])
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait_for("!document.querySelector('#yours').hidden")
    rows = page.evaluate(ROWS)
    assert len(rows) == 2
    assert number(rows[0][2]) / len(scene.profile.nodes) == pytest.approx(0.8, abs=0.05)
    assert page.evaluate("document.querySelector('#yours .lead').textContent").startswith("2 parts; at most ")
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if kind == "touch" else 1320)
    page.evaluate("document.querySelector('#back').click()")
    assert not page.evaluate("document.querySelector('#map').hidden")
