"""What a notebook shows: the page of each product in a frame; nothing if it can't be drawn."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import helper

import graphcut
from graphcut import Analysis, At, Cascade, Into, Limits, Plan
from graphcut.drawing.html import html_of
from graphcut.drawing.notebook import framed, picture_of
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan

from browser import Browser, Page, find_browser, started
from conftest import floats, model_of
from scenes_by_hand import decoder, hostile

EXECUTABLE = find_browser()
SOURCE = re.compile(r'srcdoc="([^"]*)"')


@pytest.fixture
def analysis(chain: Path) -> Analysis:
    return graphcut.analyze(graphcut.load(chain, dims={"n": 2}))


@pytest.fixture
def made(analysis: Analysis) -> Plan:
    return graphcut.plan(analysis, Into(2))


@pytest.fixture
def cascade(analysis: Analysis, made: Plan, tmp_path: Path) -> Cascade:
    return graphcut.split(analysis.model, made, tmp_path / "parts")


def test_sentences_name_arguments(chain: Path) -> None:
    analysis = graphcut.analyze(graphcut.load(chain))
    for product in (analysis, graphcut.plan(analysis, Into(2), limits=Limits(pins=(("relu", 0),), avoid=("b",)))):
        page = page_in(shown(product))
        assert "set them with `dims`" in page
        assert "describe yours with `Across`" in page
        assert not re.search(r" --(dim|cluster|pin|avoid|inside-layers)\b", page.partition("Next: ")[0])


def page_in(html: str | None) -> str:
    """The page that a frame holds."""
    assert html is not None
    assert html.startswith("<iframe ")
    assert html.endswith("</iframe>")
    (source,) = SOURCE.findall(html)
    return unescape(source)


def shown(product: Analysis | Plan | Cascade) -> str | None:
    """What a notebook asks for."""
    return product._repr_html_()


# The same picture as the page


def test_an_analysis_a_plan_and_a_cascade_show_their_page(analysis: Analysis, made: Plan, cascade: Cascade) -> None:
    assert page_in(shown(analysis)) == html_of(scene_of_analysis(analysis))
    assert page_in(shown(made)) == html_of(scene_of_plan(made, analysis))
    assert page_in(shown(cascade)) == html_of(scene_of_cascade(cascade, analysis.model))


def test_a_plan_for_named_nodes_and_a_replayed_plan_know_their_model(
    analysis: Analysis, made: Plan, tmp_path: Path
) -> None:
    at = graphcut.plan(analysis, At(("exp",)))
    assert page_in(shown(at)) == html_of(scene_of_plan(at, analysis))
    graphcut.save_plan(made, analysis.model, tmp_path / "plan.json")
    again = graphcut.replay(analysis, tmp_path / "plan.json")
    assert page_in(shown(again)) == html_of(scene_of_plan(again, analysis))


def test_the_model_of_a_plan_is_no_part_of_what_it_says(analysis: Analysis) -> None:
    by_hand = Plan(At(()), analysis.model.graph, ((0, 1, 2, 3),))
    known = Plan(At(()), analysis.model.graph, ((0, 1, 2, 3),), model=analysis.model)
    assert by_hand == known
    assert repr(by_hand) == repr(known)


# If nothing can be drawn


def test_a_product_that_cannot_be_drawn_shows_nothing(analysis: Analysis, cascade: Cascade) -> None:
    assert shown(Plan(At(()), analysis.model.graph, ((0, 1, 2, 3),))) is None
    assert picture_of(SimpleNamespace()) is None
    cascade.file(cascade.parts[0]).unlink()
    assert shown(cascade) is None


def test_a_cascade_without_its_model_shows_its_files(cascade: Cascade, chain: Path) -> None:
    chain.unlink()
    assert page_in(shown(cascade)) == html_of(scene_of_cascade(cascade))


def run_python(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_machine_that_only_runs_parts_shows_text(cascade: Cascade) -> None:
    """It has none of the packages that draw."""
    code = """if True:
        import sys
        sys.modules.update(dict.fromkeys(["onnx", "networkx", "highspy", "typer", "rich", "google.protobuf"]))
        from graphcut import open_cascade
        print(open_cascade(sys.argv[1])._repr_html_())"""
    assert run_python(code, str(cascade.root)) == "None"


def test_a_product_loads_the_renderers_only_when_it_is_html_of(cascade: Cascade) -> None:
    """Until then none of them is loaded; however its class was come by."""
    code = """if True:
        import sys
        from graphcut.core.manifest import open_cascade
        cascade = open_cascade(sys.argv[1])
        loaded = [name for name in sys.modules if name.startswith("graphcut.drawing")]
        print(len(loaded), cascade._repr_html_()[:7])"""
    assert run_python(code, str(cascade.root)) == "0 <iframe"


# In a browser


def frame_in(browser: Browser, page: Path) -> Page:
    """The frame of a page, which has no origin, and so a process of its own; once it is ready."""
    before = {target["targetId"] for target in _frames(browser)}
    browser.open(page)
    deadline = time.monotonic() + 60
    while not (found := [target for target in _frames(browser) if target["targetId"] not in before]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (target,) = found
    session = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
    frame = Page(browser, session)
    for domain in ("Runtime", "Log", "Network"):
        frame.call(f"{domain}.enable")
    frame.wait_for("document.documentElement.dataset.ready === 'yes'")
    return frame


def _frames(browser: Browser) -> list[dict[str, str]]:
    targets: list[dict[str, str]] = browser.call("Target.getTargets", filter=[{}])["targetInfos"]
    return [target for target in targets if target["type"] == "iframe"]


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine: frames are not tried")
def test_frames_are_drawn_and_make_no_requests(
    analysis: Analysis, made: Plan, cascade: Cascade, tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    products = (shown(analysis), shown(made), shown(cascade), framed(hostile()), framed(decoder(16)))
    with started(EXECUTABLE) as browser:
        titles = []
        for i, html in enumerate(products):
            path = tmp_path / f"notebook{i}.html"
            path.write_text(f"<!doctype html><meta charset='utf-8'>{html}", encoding="utf-8")
            frame = frame_in(browser, path)
            # Whatever width it had when its script began, it is drawn for the one it has.
            frame.wait_for(
                "[...document.querySelectorAll('canvas')].every((c) => [0, c.width].includes(c.clientWidth))"
            )
            assert frame.evaluate("window.origin") == "null"
            assert frame.complaints() == []
            assert frame.requests() == []
            titles.append(frame.evaluate("document.querySelector('h1').textContent"))
    assert titles[:3] == ["chain.onnx"] * 3
    assert titles[3].startswith('</text><script>alert("1")</script>')
    assert titles[4] == "llama-3-8b-fp16.onnx"


def test_names_stay_inside_the_frame(tmp_path: Path) -> None:
    name = '"></iframe><script>alert(1)</script>'
    nodes = [helper.make_node("Relu", ["x"], ["a"], name=name), helper.make_node("Neg", ["a"], ["y"], name="last")]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), tmp_path / "m.onnx")
    html = shown(graphcut.analyze(graphcut.load(tmp_path / "m.onnx")))
    assert html is not None
    assert html.count("<") == 2
    assert "alert(1)" in page_in(html)
