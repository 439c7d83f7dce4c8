"""The graph in the page, in a real browser: which nodes it shows around a thing, how they are drawn, what opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphcut import Analysis, At, Into, Limits, analyze, load, plan
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan

from browser import Browser, Page, Show
from conftest import model_of, simple_plan
from control_flow import write_model
from scenes_by_hand import decoder

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
Demo = Callable[..., Analysis]


@pytest.fixture
def show(show: Show) -> Show:
    """Open the page of a scene as everywhere, and wait for its graph."""

    def open_scene(shown: Scene, **options: Any) -> Page:  # noqa: ANN401 - what Browser.open takes
        page = show(shown, **options)
        page.wait_for("document.querySelector('#graph .box')")
        return page

    return open_scene


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The analysis of a demo."""
    made: dict[str, Analysis] = {}

    def analysed(name: str, **options: int) -> Analysis:
        key = f"{name} {options}"
        if key not in made:
            path = tmp_path_factory.mktemp("demo") / "model.onnx"
            write_model(name, path, external=None, **options)
            made[key] = analyze(load(path))
        return made[key]

    return analysed


def drawn(page: Page) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def follow(page: Page, link: str) -> None:
    page.evaluate(f"new Promise((done) => {{ onhashchange = done; location.hash = {link!r}; }})")
    drawn(page)


def press(page: Page, *keys: str) -> None:
    page.press(*keys)
    drawn(page)


def click(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector({selector!r}).click()")
    drawn(page)


def names(page: Page) -> set[str]:
    """The names of the nodes that have a box of their own."""
    boxes = ".box:not(.end, .more, .fold) .name"
    return set(page.evaluate(f"[...document.querySelectorAll('{boxes}')].map((line) => line.title)"))


def heads(page: Page) -> list[str]:
    """The first lines of all boxes."""
    words = "[...head.children].map((one) => one.textContent).join(' ')"
    found: list[str] = page.evaluate(f"[...document.querySelectorAll('.box .head')].map((head) => {words})")
    return found


def lead(page: Page) -> str:
    text: str = page.evaluate("document.querySelector('#graph .lead').textContent")
    return text


def focused(page: Page) -> str:
    label: str = page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id")
    return label


CHOSEN = "document.querySelector('.box.chosen')"
IN_SIGHT = f"""(() => {{
  const [box, place] = [{CHOSEN}, document.querySelector("#graph .boxes")].map((one) => one.getBoundingClientRect());
  return box.top >= place.top && box.bottom <= place.bottom && box.left >= place.left && box.right <= place.right;
}})()"""


# What is shown


def test_what_is_chosen_opens_in_the_picture_and_is_in_sight(show: Show, demo: Demo) -> None:
    analysis = demo("llm", layers=8)
    graph = analysis.model.graph
    page = show(scene_of_analysis(analysis))
    folds = heads(page)
    for node in graph.flow[40::60]:
        name = graph.nodes[node].name
        follow(page, f"#node={name}")
        assert name in names(page)
        assert page.evaluate(f"{CHOSEN}.querySelector('.name').title") == name
        assert page.evaluate(IN_SIGHT)
    click(page, "#graph-collapse")
    assert heads(page) == folds


def test_many_open_boxes_close_when_another_one_opens(show: Show, demo: Demo) -> None:
    analysis = demo("llm", layers=8)
    graph = analysis.model.graph
    page = show(scene_of_analysis(analysis))
    for node in graph.flow[::25]:
        follow(page, f"#node={graph.nodes[node].name}")
        assert len(heads(page)) < 250


def test_a_tensor_opens_at_its_writer_and_a_part_leaves_its_folds_closed(show: Show, demo: Demo) -> None:
    analysis = demo("llm", layers=8)
    graph = analysis.model.graph
    scene = scene_of_plan(plan(analysis, Into(3)), analysis)
    page = show(scene)
    folds = heads(page)
    click(page, "#map [data-kind=card][data-index='1']")
    assert heads(page) == folds
    tensor = scene.tensors[0].tensor
    click(page, "#map [data-kind=tensor]")
    assert page.evaluate(f"{CHOSEN}.querySelector('.name').title") == graph.nodes[graph.producer[tensor]].name
    assert page.evaluate(IN_SIGHT)


def test_a_box_says_what_people_know_of_a_node(show: Show) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "net.w"], ["c"], "/net/conv", pads=[1, 1, 1, 1], strides=[1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "/net/relu"),
    ]
    weight = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "net.w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])
    page = show(scene_of_analysis(analyze(load(model_of(nodes, [x], [y], [weight])))))
    assert page.evaluate(
        "[...document.querySelectorAll('.box')].map((box) => box.innerText.split('\\n').filter(Boolean))"
    ) == [
        ["input", "x", "float32[1,3,8,8] · 768 B"],
        ["Conv", "/net/conv", "pads = 1, 1, 1, 1", "w float32[4,3,3,3] · 432 B", "→ float32[1,4,8,8] · 1 KiB"],
        ["Relu", "/net/relu", "→ float32[1,4,8,8] · 1 KiB"],
        ["output", "y", "float32[1,4,8,8] · 1 KiB"],
    ]


def test_edges_over_a_boundary_are_told_apart_in_colour(show: Show) -> None:
    analysis = analyze(load(FIXTURES / "unet.onnx"))
    cuts = At(("node_max_pool2d", "node_max_pool2d_1", "node_max_pool2d_2"))
    made = plan(analysis, cuts, limits=Limits(recompute="never"))
    scene = scene_of_plan(made, analysis)
    graph = analysis.model.graph
    part = {node: i for i, block in enumerate(made.partition.blocks) for node in block.nodes}
    flows = {flow.tensor: flow for flow in scene.tensors}
    expected = sorted(
        (name, "far" if flow.is_residual else "near")
        for name, flow in flows.items()
        for reader in graph.readers[name]
        if part[reader] != flow.source
    )
    page = show(scene)
    words = "[one.querySelector('title').textContent.split(' ')[0], one.querySelector('path').getAttribute('class')]"
    found = page.evaluate(f"[...document.querySelectorAll('#graph svg g')].map((one) => {words})")
    assert sorted((tensor, css) for tensor, css in found if css) == expected
    assert {css for _, css in expected} == {"near", "far"}


def test_what_replicas_read_is_shown_too(show: Show, demo: Demo) -> None:
    analysis = demo("llm")
    scene = scene_of_plan(plan(analysis, Into(4)), analysis)
    page = show(scene)
    flow = next(flow for flow in scene.tensors if flow.is_residual)
    follow(page, f"#tensor={flow.tensor}")
    assert "replicas 3 parts" in heads(page)
    assert page.evaluate("document.querySelector('#graph svg path.far') !== null")


def test_the_graph_follows_cuts_that_are_made_in_the_page(show: Show, demo: Demo) -> None:
    analysis = demo("multitask")
    page = show(scene_of_analysis(analysis))
    blue = "document.querySelectorAll('#graph svg path.near').length > 0"
    assert not page.evaluate(blue)
    node = analysis.model.graph.nodes[analysis.model.graph.flow[6]].name
    follow(page, f"#node={node}")
    press(page, "c")
    assert page.evaluate(blue)
    assert page.evaluate(f"{CHOSEN}.querySelector('.name').title") == node
    press(page, "c")
    assert not page.evaluate(blue)


# Folds and subgraphs


def test_a_large_model_is_folded_by_layers_which_open(show: Show, demo: Demo) -> None:
    page = show(scene_of_analysis(demo("llm", layers=8)))
    folded, collapse = heads(page), "document.querySelector('#graph-collapse')"
    assert len(folded) < 60
    assert page.evaluate(f"{collapse}.hidden")
    assert "layers 0-7 \N{MULTIPLICATION SIGN} 8" in heads(page)
    page.evaluate(
        "[...document.querySelectorAll('.fold .head')].find((head) => head.textContent.startsWith('layers')).focus()"
    )
    press(page, "Enter")
    assert [head for head in heads(page) if head.startswith("layers")] == [f"layers.{i}" for i in range(8)]
    assert focused(page).startswith("layers.0")
    press(page, "Enter")
    assert "layers.0" not in heads(page)
    assert "/model/layers.0/self_attn/Softmax" in names(page) or "layers.0/self_attn" in heads(page)
    click(page, "#graph-collapse")  # back to layers
    assert heads(page) == folded
    assert page.evaluate(f"{collapse}.hidden")


def test_parts_fold_their_own_layers(show: Show, demo: Demo) -> None:
    analysis = demo("llm", layers=8)
    cut = At(("/model/layers.2/add_1",))
    page = show(scene_of_plan(plan(analysis, cut), analysis))
    layers = [head for head in heads(page) if head.startswith("layers")]
    assert layers == ["layers 0-2 \N{MULTIPLICATION SIGN} 3 p0", "layers 3-7 \N{MULTIPLICATION SIGN} 5 p1"]


def test_many_nodes_without_modules_are_folded_by_their_number(show: Show) -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(1000)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("t0", "t1000"))
    analysis = analyze(load(model_of(nodes, [x], [y])))
    page = show(scene_of_analysis(analysis))
    assert len(heads(page)) < 60


def test_subgraphs_open_and_close(show: Show, demo: Demo) -> None:
    page = show(scene_of_analysis(demo("control-flow")))
    whole = heads(page)
    bodies = "[...document.querySelectorAll('.body')].map((body) => body.textContent)"
    assert page.evaluate(bodies) == [
        "▸ function, 3 nodes",
        "▸ then_branch, 2 nodes",
        "▸ else_branch, 1 node",
        "▸ body, 5 nodes",
        "▸ body, 4 nodes",
    ]
    page.evaluate("document.querySelectorAll('.body')[3].focus()")
    press(page, "Enter")
    assert lead(page) == "Subgraph body of Loop /repeat/Loop: 5 nodes."
    assert {"Mod", "Cast", "If", "ReduceMean"} <= set(heads(page))
    click(page, ".body")
    assert lead(page) == "Subgraph then_branch of If /repeat/body/If: 1 node."
    assert sorted(heads(page)) == ["2 inputs", "Add", "output"]
    click(page, "#graph-back")
    click(page, "#graph-back")
    assert heads(page) == whole
    click(page, ".body")
    assert lead(page).startswith("Function of Swish ")
    assert sorted(heads(page)) == ["Mul", "Mul", "Sigmoid", "input", "output"]


# Use


def test_everything_can_be_done_by_keys(show: Show, demo: Demo) -> None:
    analysis = demo("multitask")
    graph = analysis.model.graph
    page = show(scene_of_analysis(analysis))
    press(page, "g")
    assert focused(page).startswith("Conv, /trunk/stage.0/conv.0/Conv, ")
    press(page, "ArrowUp")
    assert focused(page).startswith("input, image, image float32[batch,3,64,64]")
    press(page, "ArrowDown", "ArrowDown")
    assert focused(page).startswith("Relu, /trunk/stage.0/Relu, ")
    press(page, "Enter")  # chooses it
    assert page.evaluate("document.querySelector('#panel h2').textContent") == "/trunk/stage.0/Relu"
    assert page.evaluate("document.querySelector('.box.chosen .name').title") == "/trunk/stage.0/Relu"
    assert len(names(page)) == len(graph.flow)


def test_the_nodes_of_a_model_that_is_not_large_can_all_be_shown(show: Show) -> None:
    analysis = analyze(load(FIXTURES / "tiny-llama-int4" / "model.onnx"))
    page = show(scene_of_analysis(analysis))
    assert len(names(page)) < len(analysis.model.graph.flow) <= 250
    click(page, "#graph-expand")
    assert len(names(page)) == len(analysis.model.graph.flow)
    assert page.evaluate("document.querySelector('#graph-expand').hidden")
    click(page, "#graph-collapse")
    assert len(names(page)) < len(analysis.model.graph.flow)


def test_in_a_large_model_the_figures_of_a_dragged_cut_follow_when_the_pointer_rests(show: Show) -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(20_001)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("t0", "t20001"))
    page = show(scene_of_analysis(analyze(load(model_of(nodes, [x], [y])))))
    follow(page, "#node=n10000")
    press(page, "c")
    page.evaluate("document.querySelector('#profile .plot').scrollIntoView({block: 'center'})")
    box = "(({x, y, width}) => [x, y, width])(document.querySelector('#profile .plot').getBoundingClientRect())"
    left, top, width = page.evaluate(box)
    page.drag(left + 74 + (width - 86) / 2, left + 74 + 0.75 * (width - 86), top + 150)
    drawn(page)
    command = page.evaluate("document.querySelector('#parts code').textContent")
    assert int(command.rsplit("n", 1)[1]) == pytest.approx(15_000, abs=60)


def test_names_are_never_markup_and_hide_nothing(show: Show) -> None:
    harm = "</script><img src=x onerror=\"document.title='harmed'\">\n'\u202e\" {{data}}"
    nodes = [
        helper.make_node("Conv", ["x", f"w{harm}"], [f"t{harm}"], f"n{harm}"),
        helper.make_node(
            "If", ["flag"], ["y"], f"if{harm}", then_branch=body("then", harm), else_branch=body("else", harm)
        ),
    ]
    weight = numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32), f"w{harm}")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, harm])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    page = show(scene_of_analysis(analyze(load(model_of(nodes, [x, flag], [y], [weight])))))
    click(page, "#graph summary")
    page.evaluate("document.querySelectorAll('.box .head').forEach((head) => { head.focus(); head.click(); })")
    drawn(page)
    click(page, ".body")
    assert page.evaluate("document.title") == "graph.onnx · graphcut"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    shown = page.evaluate("document.querySelector('#graph').innerText")
    assert "\u202e" not in shown
    assert "<img src=x onerror=\"document.title='harmed'\">\ufffd'\u2039U+202E\u203a\" {{data}}" in shown


def body(name: str, harm: str) -> Any:  # noqa: ANN401 - a GraphProto
    output = helper.make_tensor_value_info(f"{name}{harm}", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Relu", [f"t{harm}"], [f"{name}{harm}"], harm)], name, [], [output])


def test_a_page_without_a_model_has_no_graph(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(html_of(decoder(4)), encoding="utf-8")
    page = browser.open(path)
    page.wait_for("document.documentElement.dataset.ready")
    page.evaluate("document.querySelectorAll('#map [data-kind=card]')[1].dispatchEvent(new Event('click'))")
    assert page.evaluate("document.querySelector('#graph').hidden")
    assert page.complaints() == []
    page.close()


# The picture


GEOMETRY = """(() => {
  const boxes = [...document.querySelectorAll(".box")].map((box) => {
    const { offsetLeft: x, offsetTop: y, offsetWidth: width, offsetHeight: height } = box;
    const last = [...box.children].at(-1);
    const clips = last.offsetTop + last.offsetHeight > height;
    return { x, y, right: x + width, bottom: y + height, name: box.innerText, clips };
  });
  const found = boxes.filter((box) => box.clips).map((box) => `cut off: ${box.name}`);
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (a.x < b.right && b.x < a.right && a.y < b.bottom && b.y < a.bottom) found.push(`overlap: ${a.name} ${b.name}`);
  }));
  for (const path of document.querySelectorAll("#graph svg path:not(.hit, .tip)")) {
    const { x: left, y: top, width, height } = path.getBBox();
    const near = boxes.filter((box) =>
      left < box.right - 1 && left + width > box.x + 1 && top < box.bottom - 1 && top + height > box.y + 1);
    const length = near.length ? path.getTotalLength() : 0;
    for (let at = 0; at < length;) {
      const { x, y } = path.getPointAtLength(at);
      const gaps = near.map((box) => Math.max(box.x + 1 - x, x - box.right + 1, box.y + 1 - y, y - box.bottom + 1));
      const gap = Math.min(...gaps);
      if (gap < 0) found.push(`an edge through ${near[gaps.indexOf(gap)].name}`);
      at += Math.max(5, gap);  // it is in no box before
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
  return found;
})()"""


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_no_box_covers_another_and_no_edge_goes_through_one(show: Show, demo: Demo, width: int, *, dark: bool) -> None:
    llm = demo("llm")
    unet = analyze(load(FIXTURES / "unet.onnx"))
    pages = [
        (
            scene_of_plan(simple_plan(llm.model, 4), llm),
            ["#part=1", "#node=/model/layers.2/add", "#tensor=/model/layers.1/add_1_output_0"],
        ),
        (scene_of_plan(simple_plan(unet.model, 8), unet), ["#part=3"]),
        (scene_of_analysis(analyze(load(FIXTURES / "clip.onnx"))), ["#at=100"]),
        (scene_of_analysis(demo("control-flow")), []),
        (scene_of_analysis(demo("multitask")), []),
    ]
    for shown, links in pages:
        page = show(shown, width=width, dark=dark)
        assert page.evaluate(GEOMETRY) == []
        for link in links:
            follow(page, link)
            assert page.evaluate(GEOMETRY) == []
