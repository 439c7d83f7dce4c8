"""The page follows the hand: all that it shows is of the cuts that one moves, with figures where one moves them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphcut import Across, Analysis, At, Cluster, Device, Into, Limits, Plan, analyze, demos, load, plan
from graphcut.core.units import duration, size
from graphcut.drawing.html import html_of
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan
from graphcut.planning.finishing import Finisher

from browser import Browser, Page, Show
from scenes_by_hand import data_of

PLOT = "document.querySelector('#profile .plot')"
SAID = f"{PLOT}.getAttribute('aria-valuetext')"
PANEL = "[...document.querySelectorAll('#panel dt')].map((word) => [word.textContent, word.nextSibling.textContent])"
DEVICES = tuple(Device(name=name, flops_per_s=1e10, link_bytes_per_s=3e8, memory_bytes=10**8) for name in "abc")
GOAL = Across(Cluster(devices=DEVICES, overlap="none"))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    path = tmp_path_factory.mktemp("page") / "llm.onnx"
    demos.write("llm", path, layers=3)
    return analyze(load(path))


def cut_at(analysis: Analysis, shown: Plan, nodes: tuple[str, ...]) -> Plan:
    """The plan of `--at-nodes` with what the parts take on the devices of the shown plan."""
    parts = plan(analysis, At(nodes), limits=Limits(recompute="never")).parts
    assert shown.costs is not None
    planner = Finisher(analysis, shown.goal, Limits(), shown.costs, None)
    devices = (*shown.devices, *(one for one in DEVICES if one not in shown.devices))[: len(parts)]
    return planner.with_metrics(Plan(shown.goal, analysis.model.graph, parts, devices=devices))


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.evaluate(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")
    return found


def figures(made: Plan, part: int) -> str:
    need = size(made.needs[part])
    return f"{duration(made.metrics[part].busy_s)}, {need}"


def test_every_picture_is_of_the_cuts_and_the_plan_comes_back(show: Show, analysis: Analysis) -> None:
    shown = plan(analysis, GOAL)
    page = show(scene_of_plan(shown, analysis))
    page.wait_for("document.querySelector('#graph .box')")
    before = {name: texts(page, f"#{name} :is(div, td)") for name in ("map", "parts", "matrix", "reasons", "schedule")}
    answer = texts(page, ".answer")
    nodes = ("/model/layers.0/self_attn/Concat", "/model/layers.1/add_1")
    page.evaluate(f"location.hash = '#{'&'.join(f'cut={node}' for node in nodes)}'")
    made = cut_at(analysis, shown, nodes)
    ends = made.partition.wiring.boundary_tensors
    page.wait_for(f"document.querySelectorAll('#map .lane[data-kind=tensor]').length === {len(ends)}")
    sizes = made.costs.tensor_bytes if made.costs else {}
    words = "[one.title.split(', ')[0], one.querySelector('.bytes').textContent]"
    rows = f"[...document.querySelectorAll('#map .lane[data-kind=tensor]')].map((one) => {words})"
    assert dict(page.evaluate(rows)) == {name: size(sizes[name][0]) for name in ends}
    totals = [sum(sizes[t][0] for t, (source, readers) in ends.items() if source <= i < max(readers)) for i in (0, 1)]
    assert texts(page, "#map .total") == [size(total) for total in totals]
    assert texts(page, "#map .part span:nth-child(3)") == [duration(part.busy_s) for part in made.metrics]
    assert len(texts(page, "#matrix button")) == len({(s, r) for s, readers in ends.values() for r in readers})
    largest = max(range(3), key=lambda part: made.needs[part])
    slowest = max(range(3), key=lambda part: made.metrics[part].busy_s)
    time = f"The slowest, p{slowest}, takes {duration(made.metrics[slowest].busy_s)}."
    need = f"The largest, p{largest}, needs {size(made.needs[largest])} of 95.4 MiB."
    assert texts(page, ".answer")[0].startswith(
        f"Your cuts: 3 parts. {need} {time} At most {size(max(totals))} crosses"
    )
    runs = page.evaluate("[...document.querySelectorAll('#schedule .run')].map((one) => one.title)")
    assert len(runs) == 3 * 3
    page.wait_for("document.querySelectorAll('#reasons li').length === 2")
    for i, reason in enumerate(texts(page, "#reasons li")):
        assert reason.startswith(f"cut {i} after {nodes[i]}{size(totals[i])} cross here; p")
    page.evaluate("document.querySelector('#compare').open = true")
    assert len(texts(page, "#compare tbody tr")) == len(shown.parts)
    page.evaluate("document.querySelector('#back').click()")
    assert texts(page, ".answer") == answer
    assert {name: texts(page, f"#{name} :is(div, td)") for name in before} == before


def place_of(page: Page, node: int, nodes: int) -> tuple[float, float]:
    """Where the end of a node is in the profile, whose margins are 74 and 12 pixels."""
    left, top, width = page.evaluate(f"(({{x, y, width}}) => [x, y, width])({PLOT}.getBoundingClientRect())")
    return left + 74 + (node + 1) / nodes * (width - 86), top + 100


def mouse(page: Page, kind: str, x: float, y: float, **more: object) -> None:
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", **{"clickCount": 1, **more})


def press_right(page: Page, modifiers: int) -> None:
    key = {"key": "ArrowRight", "windowsVirtualKeyCode": 39}
    page.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **key)


def named(page: Page) -> list[str]:
    """The nodes that the command cuts after."""
    text = texts(page, "#parts code")[0]
    return text.partition("--at-nodes=")[2].split(" ")[0].split(",")


def test_figures_are_at_the_cut_while_it_is_dragged_and_moved_by_keys(show: Show, analysis: Analysis) -> None:
    """The page tells them in the same words as it writes them at the cut."""
    shown = plan(analysis, GOAL)
    scene = scene_of_plan(shown, analysis)
    assert scene.profile is not None
    page, nodes = show(scene, width=1280, height=800), scene.profile.nodes
    start, y = place_of(page, scene.profile.cuts[0], len(nodes))

    def check() -> None:
        cuts = tuple(named(page))
        made = cut_at(analysis, shown, cuts)
        moved = int(page.evaluate(f"{PLOT}.getAttribute('aria-valuenow')")) - 1
        part = sorted(nodes.index(name) for name in cuts).index(moved)
        ends = made.partition.wiring.boundary_tensors
        sent = [t for t, (source, readers) in ends.items() if source <= part < max(readers)]
        total = size(sum(made.costs.tensor_bytes[t][0] for t in sent if made.costs))
        number = f"{total} in {len(sent)} tensor{'s' if len(sent) != 1 else ''}"
        parts = [f"p{one}: {figures(made, one)}" for one in (part, part + 1)]
        assert page.evaluate(SAID).partition(": cut here, ")[2] == ", ".join([number, *parts])
        said = dict(page.evaluate(PANEL))
        assert said["crosses here"] == total
        assert [said[f"p{one}"] for one in (part, part + 1)] == [figures(made, one) for one in (part, part + 1)]

    mouse(page, "mousePressed", start, y)
    for by in (40, 90, -60):
        mouse(page, "mouseMoved", start + by, y)
        check()
    mouse(page, "mouseReleased", start - 60, y)
    page.wait_for(f"document.querySelectorAll('#reasons li').length === {len(scene.profile.cuts)}")
    page.evaluate(f"{PLOT}.focus()")
    for modifiers in (8, 9):  # Shift; Alt and Shift
        press_right(page, modifiers)
        check()
    alive = scene.profile.alive
    press_right(page, 8)
    low = int(page.evaluate(f"{PLOT}.getAttribute('aria-valuenow')")) - 1
    assert alive[low] < alive[low - 1]
    assert alive[low] <= alive[low + 1]


def test_cuts_snap_are_made_by_a_double_click_dropped_off_the_profile_and_undone(
    show: Show, analysis: Analysis
) -> None:
    scene = scene_of_analysis(analysis)
    assert scene.profile is not None
    page, alive = show(scene, width=1280, height=800), scene.profile.alive
    all_nodes = len(alive)
    x, y = place_of(page, all_nodes // 2, all_nodes)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            mouse(page, kind, x, y, clickCount=count)
    first = named(page)
    near = [place_of(page, node, all_nodes)[0] for node in range(all_nodes)]
    lowest = min(alive[node] for node in range(all_nodes) if abs(near[node] - x) <= 8)
    assert alive[scene.profile.nodes.index(first[0])] == lowest
    at = place_of(page, scene.profile.nodes.index(first[0]), all_nodes)[0]
    mouse(page, "mousePressed", at, y)
    mouse(page, "mouseMoved", at + 50, y, modifiers=1)  # with Alt: to any place
    mouse(page, "mouseReleased", at + 50, y, modifiers=1)
    freed = scene.profile.nodes.index(named(page)[0])
    assert abs(place_of(page, freed, all_nodes)[0] - (at + 50)) < (near[1] - near[0])
    mouse(page, "mousePressed", near[freed], y)
    mouse(page, "mouseMoved", near[freed] + 3, y + 400)
    assert page.evaluate("document.querySelector('#back').hidden") is False  # it can still be brought back
    mouse(page, "mouseReleased", near[freed] + 3, y + 400)
    assert page.evaluate("document.querySelector('#back').hidden")
    page.evaluate("document.querySelector('#undo').click()")
    assert scene.profile.nodes.index(named(page)[0]) == freed
    page.call("Input.dispatchKeyEvent", type="keyDown", key="z", windowsVirtualKeyCode=90, modifiers=2)
    assert named(page) == first
    page.call("Input.dispatchKeyEvent", type="keyDown", key="y", windowsVirtualKeyCode=89, modifiers=2)
    assert scene.profile.nodes.index(named(page)[0]) == freed


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_decision_is_on_one_screen(show: Show, analysis: Analysis, width: int, height: int) -> None:
    """Headline, profile and parts in sight without scrolling; on a phone the sheet is below the profile."""
    page = show(scene_of_plan(plan(analysis, Into(2)), analysis), width=width, height=height)
    tops = {
        name: page.evaluate(
            f"(({{top, bottom}}) => [top, bottom])(document.querySelector('{name}').getBoundingClientRect())"
        )
        for name in (".answer", "#profile .plot", "#parts > .scroll tbody")
    }
    assert [top >= 0 and bottom <= height for top, bottom in tops.values()] == [True] * 3, tops
    page.evaluate("location.hash = '#cut=/model/layers.0/add_1&node=/model/layers.0/add_1'")
    page.wait_for("document.querySelector('#cut')")
    sheet = page.evaluate("document.querySelector('#panel').getBoundingClientRect().top")
    plot = page.evaluate(f"{PLOT}.getBoundingClientRect().bottom")
    assert width > 1120 or sheet >= plot


def test_the_graph_has_the_colours_of_the_parts_and_one_finds_ones_way_in_it(show: Show, analysis: Analysis) -> None:
    page = show(scene_of_plan(plan(analysis, GOAL), analysis), width=1280, height=800)
    page.wait_for("document.querySelector('#graph .box')")
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    coloured = "[...document.querySelectorAll('#graph .box.own, #map .part')]"
    colours = page.evaluate(f"{coloured}.map((one) => one.style.getPropertyValue('--part'))")
    assert len(set(colours)) == len(texts(page, "#map .part"))
    names, devices = texts(page, "#map .part b"), texts(page, "#map .part span:nth-child(2)")
    frames = texts(page, "#graph .frame")
    assert not frames or set(frames) <= {f"{name} · {device}" for name, device in zip(names, devices, strict=True)}
    assert page.evaluate("document.querySelector('#graph .minimap').hasAttribute('hidden')") is False
    page.evaluate("document.querySelector('#graph-fit').click()")
    page.evaluate(frame)
    overflow = "((one) => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight])"
    assert max(page.evaluate(f"{overflow}(document.querySelector('#graph .boxes'))")) <= 0
    assert page.evaluate("document.querySelector('#graph .minimap').hasAttribute('hidden')")
    page.evaluate("document.querySelector('#graph-search').focus()")
    page.press(*"layers.1/add", "Enter")
    page.wait_for("document.querySelector('#graph .box.chosen')")
    assert texts(page, "#panel h2") == ["/model/layers.1/add"]
    page.evaluate("document.querySelector('#graph-search').focus()")
    page.press("Enter")  # the next one
    page.wait_for("document.querySelector('#panel h2').textContent === '/model/layers.1/add_1'")


def test_the_page_of_a_notebook_is_small_and_its_script_draws_all(
    browser: Browser, analysis: Analysis, tmp_path: Path
) -> None:
    scene = scene_of_plan(plan(analysis, GOAL), analysis)
    text = html_of(scene)
    assert len(html_of(replace(scene, graph=None))) < 100_000
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = browser.open(tmp_path / "page.html")
    page.wait_for("document.documentElement.dataset.ready")
    assert len(texts(page, "#schedule .run")) == sum(len(one.runs) for one in scene.schedules()) > 0
    assert len(texts(page, "#map .part")) == len(scene.cards)
    assert page.complaints() == []
    page.close()


def test_no_folder_of_this_machine_is_in_the_page(analysis: Analysis) -> None:
    assert str(analysis.model.path.parent) not in str(
        data_of(html_of(scene_of_plan(plan(analysis, Into(2)), analysis)))
    )
    page = html_of(scene_of_analysis(analysis))
    assert str(analysis.model.path.parent) not in page
    assert f"graphcut split {analysis.model.path.name} --at-nodes" in page
