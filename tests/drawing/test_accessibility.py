"""The page by axe-core (WCAG 2 A and AA, and good practice), and by keyboard alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed

from graphcut import Across, Analysis, Cluster, Device, Plan, analyze, demos, load, plan
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan

from browser import Page, Show
from cases import some
from conftest import ROOT
from scenes_by_hand import decoder, hostile

AXE = ROOT / "scripts" / "node" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """axe.run(%s, { resultTypes: ["violations"], ...%s }).then(({ violations }) =>
  violations.map(({ id, nodes }) => [id, ...nodes.slice(0, 3).map(({ html }) => html.slice(0, 200))]))"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Analysis]:
    path = tmp_path_factory.mktemp("page") / "llm.onnx"
    demos.write("llm", path, layers=3)
    analysis = analyze(load(path))
    device = Device(name="a", flops_per_s=1e11, link_bytes_per_s=3e8, memory_bytes=2 * 10**7)
    devices = (device, changed(device, name="b", flops_per_s=6e10), changed(device, name="c", flops_per_s=3e10))
    return plan(analysis, Across(Cluster(devices=devices))), analysis


def violations(page: Page, *, dark: bool, where: str = "document") -> list[list[str]]:
    """What axe finds; the themes differ in their colours alone. It takes long for many elements."""
    found: list[list[str]] = page.evaluate(RUN % (where, '{ runOnly: ["color-contrast"] }' if dark else "{}"))
    return found


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `source scripts/setup peers`")
@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("width", "dark"),
    some(
        [(390, False), (1440, False), (1440, True)], (800, False), (1920, False), (390, True), (800, True), (1920, True)
    ),
)
def test_axe_finds_no_violation(show: Show, planned: tuple[Plan, Analysis], width: int, *, dark: bool) -> None:
    """In the page of a plan with all tables, with other cuts and a node pinned, with the keys; and in other pages."""
    page = show(scene_of_plan(*planned), width=width, dark=dark)
    page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = one.checkVisibility(); })")
    page.wait_for("document.querySelectorAll('#map tbody tr').length")
    assert violations(page, dark=dark) == []
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    page.evaluate("location.hash = '#cut=/model/layers.0/add_1&cut=/model/layers.1/add_1&node=/model/layers.1/add'")
    page.wait_for("document.querySelector('#cut')")
    assert violations(page, dark=dark) == []
    page.press("?")
    assert violations(page, dark=dark, where="'#keys'") == []
    for scene in () if dark else (scene_of_analysis(planned[1]), hostile(), decoder(16)):
        page = show(scene, width=width, dark=dark)
        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        assert violations(page, dark=dark) == []


def focus_with_tab(page: Page, selector: str) -> None:
    for _ in range(200):
        if page.evaluate(f"document.activeElement?.matches({selector!r})"):
            return
        page.press("Tab")
    pytest.fail(f"Tab does not reach {selector}")


def test_cuts_are_chosen_by_keyboard_alone(show: Show, planned: tuple[Plan, Analysis]) -> None:
    page = show(scene_of_plan(*planned), width=1440)
    focus_with_tab(page, "#profile .plot")
    page.press("]", "]", "c")
    command = "document.querySelector('#parts code').textContent"
    assert page.evaluate("document.querySelectorAll('#parts > .scroll tbody tr').length") == len(planned[0].parts) + 1
    focus_with_tab(page, "#copy-cuts")
    page.press("Enter")
    page.wait_for("document.querySelector('#copy-cuts').textContent !== 'Copy command'")
    before = page.evaluate(command)
    focus_with_tab(page, "#parts select")
    page.press("ArrowDown")
    page.wait_for("location.hash.includes('&on=')")
    focus_with_tab(page, "#other-plans button")
    page.press("Enter")
    assert page.evaluate(command) != before
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    focus_with_tab(page, "#back")
    page.press("Enter")
    assert page.evaluate("document.querySelector('#back').hidden")
