"""The page cuts as `graphcut split --at-nodes` does: to the byte, for any nodes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

import decoders
import numpy as np
import pytest
from msgspec.structs import replace as changed
from onnx import ModelProto, helper, numpy_helper, save
from page_modules import asked, in_node

from graphcut import Across, Analysis, At, Cluster, Device, Into, Limits, Plan, Within, analyze, demos, load, plan
from graphcut.core.errors import UsageError
from graphcut.core.units import duration, parse_bytes, size
from graphcut.costs.cluster import NetworkLink
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan
from graphcut.planning.finishing import Finisher
from graphcut.planning.goals import Goal
from graphcut.planning.plans import ANY_DEVICE

from browser import Page, Show
from cases import FUZZ
from conftest import floats, model_of
from control_flow import write_model
from scenes_by_hand import data_of

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TRIES = FUZZ or 10  #: for each of these goals, on ten models; with `scripts/fuzz` on thirty.
ROWS = """[...document.querySelectorAll("#parts > .scroll tbody tr")]
  .map((row) => Object.fromEntries([...row.cells].map((cell) => (
    [cell.dataset.title, cell.querySelector("span[title]")?.title ?? cell.textContent]))))"""

CHOSEN = "[...document.querySelectorAll('#parts select')].map((one) => one.selectedOptions[0].text)"


def cut_in(page: Page, cuts: list[list[str]]) -> list[list[dict[str, str]]]:
    """For each list of nodes the table of the parts after cutting after these, by the address of the page.

    Nothing is laid out meanwhile, which takes longer than the predictions.
    """
    links = ["#" + "&".join(f"cut={quote(node, safe='')}" for node in nodes) for nodes in cuts]
    follow = f"history.replaceState(null, '', link); dispatchEvent(new Event('hashchange')); return {ROWS};"
    page.evaluate("document.body.hidden = true")
    found: list[list[dict[str, str]]] = page.evaluate(f"{json.dumps(links)}.map((link) => {{ {follow} }})")
    return found


def number(text: str) -> float:
    return float(text.split(maxsplit=1)[0].replace(",", "")) if text and text != "\N{EN DASH}" else 0


def opened(name: str, folder: Path, **dims: int) -> Analysis:
    made, first = MORE.get(name), name.split(maxsplit=1)[0]
    path = next((one for one in (FIXTURES / f"{first}.onnx", FIXTURES / first / "model.onnx") if one.exists()), None)
    if path is None:
        path = folder / f"{first}.onnx"
        if callable(made):
            save(made(), path)
        else:
            write_model(first, path, external=None, **(made or {}))
    return analyze(load(path, dims=dims))


BOARDS = Cluster(
    devices=(
        Device(name="a", flops_per_s=3e10, memory_bytes=10**9),
        Device(name="b", link_bytes_per_s=3e7, latency_s=3e-4),
        Device(name="c", bytes_per_s=5e9),
        Device(name="d", dispatch_s=2e-5),
        Device(name="e"),
    ),
    links=(NetworkLink(between=("a", "c"), bytes_per_s=1e9), NetworkLink(between=("driver", "b"), bytes_per_s=2e8)),
)
NO_REPLICAS = Limits(recompute="never")  # the page shows what crosses if nothing is recomputed
CASES: dict[str, Goal] = {  # a model, and goals with each rule of time and memory
    "clip": Into(2),
    "unet": Across(changed(BOARDS, overlap="none", links=BOARDS.links[:1], origin="e")),
    "unet stored": Across(changed(BOARDS, store_s=3e-3, step_s=2e-3, links=BOARDS.links[:1], origin="a")),
    "tiny-llama-int4": Across(BOARDS, "decode", in_flight=2),
    "llm": Within(40_000_000, ("activations", "inputs", "cache")),
    "multitask": Across(BOARDS),
    "lstm": Into(2),
    "resnet": Into(3),
    "tiny-qwen2-fp32": Within(3 * 10**6, ("activations", "inputs", "cache")),
    "tiny-llama-fp32": Into(2, by="flops"),
    "control-flow": Into(2),
    "multitask twice": Across(changed(BOARDS, devices=BOARDS.devices[:2], links=())),
}


def random_model(seed: int) -> ModelProto:
    """Forty nodes that read any tensors before them, some with a weight of their own or a shared one."""
    made = random.Random(seed)  # noqa: S311 - no secret
    weights = [np.full((8, 8), i + 1, np.float32) for i in range(4)]
    nodes, tensors = [], ["x"]
    for i in range(40):
        op, reads = made.choice((("Add", 2), ("MatMul", 1), ("Relu", 1), ("Mul", 2), ("Softmax", 1)))
        read = [made.choice(tensors[-made.choice((2, 6, 99)) :]) for _ in range(reads)]
        read += [f"w{made.randrange(4)}"] if op == "MatMul" else []
        nodes.append(helper.make_node(op, read, [f"t{i}"], f"n{i}"))
        tensors.append(f"t{i}")
    read_ones = {name for node in nodes for name in node.input}
    ends = [floats(name, 16, 8) for name in tensors[1:] if name not in read_ones]
    held = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    return model_of(nodes, [floats("x", 16, 8)], ends, held)


DECODERS = (
    decoders.without_caches, decoders.with_combined, decoders.with_buffer,
    decoders.with_static, decoders.with_group_query_attention, decoders.with_lstm,
)  # fmt: skip
MORE: dict[str, Callable[[], ModelProto] | dict[str, object]] = {  # twenty other models
    **{f"llm of {layers}": {"layers": layers} for layers in (1, 4, 9)},
    **{f"llm of {layers} in half": {"layers": layers, "dtype": "float16"} for layers in (2, 5, 8)},
    "llm tied": {"tied": True, "layers": 3},
    "llm wide": {"hidden": 48, "heads": 6, "kv_heads": 1, "layers": 2},
    **{f"decoder {i}": make for i, make in enumerate(DECODERS)},
    **{f"random {seed}": partial(random_model, seed) for seed in range(6)},
}
GOALS = tuple(CASES.values())
CASES |= {name: GOALS[i % len(GOALS)] for i, name in enumerate(MORE if FUZZ else ())}
CASES["cross attention"], MORE["cross attention"] = Into(2), partial(decoders.cross_attention, 64)


class Expected(NamedTuple):
    """A scene, cuts, and the rows that a table of the parts has after each."""

    scene: Scene
    tried: list[list[str]]
    rows: list[list[dict[str, float]]]


@cache
def expected(name: str) -> Expected:
    """What the planner says of random cuts, for those that are possible."""
    with TemporaryDirectory() as folder:
        analysis, goal = opened(name, Path(folder)), CASES[name]
    graph = analysis.model.graph
    shown = plan(analysis, goal)
    assert shown.costs is not None
    sized = analysis  # of the sizes that the page's command has as --dim
    if dict(shown.dims) != dict(analysis.sized.dims):
        sized = analyze(analysis.model.with_dims(shown.dims))
    planner = Finisher(analysis, goal, Limits(), shown.costs, None)
    cluster = goal.cluster.devices if isinstance(goal, Across) else ()
    order = [*shown.devices, *(one for one in cluster if one not in shown.devices)]
    sizes, made = shown.costs.tensor_bytes, random.Random(name)  # noqa: S311 - no secret
    found = Expected(scene_of_plan(shown, analysis), [], [])
    for nodes in [
        [graph.nodes[node].name for node in made.sample(graph.flow, made.randint(1, 4))] for _ in range(TRIES)
    ]:
        try:
            parts = plan(sized, At(tuple(nodes)), limits=NO_REPLICAS).parts
        except UsageError:  # nothing is left after the last
            continue
        devices = tuple(islice(cycle(order), len(parts))) if isinstance(goal, Across) else (ANY_DEVICE,) * len(parts)
        cut = planner.with_metrics(Plan(goal, graph, parts, devices=devices))
        ends = cut.partition.wiring.boundary_tensors
        sent = [
            [sizes[t][0] for t, (source, readers) in ends.items() if source <= i < max(readers)]
            for i in range(len(parts))
        ]
        found.tried.append(nodes)
        found.rows.append([
            {
                "nodes": len(block.nodes),
                "weights": metrics.weight_bytes,
                "activations": metrics.activation_bytes,
                "sends": sum(sizes[t][0] for t, (source, _) in ends.items() if source == i),
                "crosses here": sum(sent[i]),
                "tensors": len(sent[i]),
                "need": cut.needs[i],
                "time": metrics.busy_s,
            }
            for i, (block, metrics) in enumerate(zip(cut.partition.blocks, cut.metrics, strict=True))
        ])  # fmt: skip
    assert len(found.tried) > TRIES / 2
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("name", CASES if FUZZ else ["unet stored", "llm"])
def test_random_cuts_cost_in_the_page_what_the_planner_says(name: str, show: Show) -> None:
    """Nodes, all bytes and tensors are equal; seconds differ by the order of additions.

    Two cases show that a page has the figures of its modules, which the next test compares in all cases.
    """
    shown, tried, wanted = expected(name)
    page = show(shown)
    for nodes, rows, expected_rows in zip(tried, cut_in(page, tried), wanted, strict=True):
        found = [
            {
                **{
                    title: number(row[title])
                    for title in ("nodes", "weights", "activations", "sends", "crosses here", "time")
                },
                "need": number(next(row[title] for title in row if title.startswith(("needs", "weights and graph")))),
                "tensors": float(row["crosses here"].partition(" in ")[2] or 0),
            }
            for row in rows
        ]
        assert found == same_figures(expected_rows), nodes


@in_node
@pytest.mark.parametrize("name", CASES)
def test_random_cuts_cost_in_the_modules_what_the_planner_says(name: str) -> None:
    """The same without a browser."""
    shown, tried, wanted = expected(name)
    answers = asked(
        """tried.map((nodes) => {
            const model = cutting.completedModel(scene.cut_model);
            const found = cutting.costsOf(model, nodes.map((node) => scene.profile.nodes.indexOf(node)));
            const costs = predicted.completedCosts(model, scene.cut_costs);
            const { parts, boundaries } = predicted.predicted(costs, found, null);
            return parts.map((part, i) => ({
                nodes: part.nodes, weights: part.weight_bytes, activations: part.activation_bytes,
                sends: part.sent.bytes, need: part.need_bytes, time: part.busy_s ?? 0,
                "crosses here": boundaries[i]?.bytes ?? 0, tensors: boundaries[i]?.tensors ?? 0,
            }));
        })""",
        "cutting",
        "predicted",
        scene=data_of(html_of(shown)),
        tried=tried,
    )
    for nodes, rows, expected_rows in zip(tried, answers, wanted, strict=True):
        assert rows == same_figures(expected_rows), nodes


def same_figures(rows: list[dict[str, float]]) -> list[dict[str, object]]:
    """Rows that compare equal to those with seconds of other roundings."""
    return [{**row, "time": pytest.approx(row["time"], rel=1e-9)} for row in rows]


def test_plans_of_the_front_are_one_click_away_and_devices_can_be_exchanged(show: Show, tmp_path: Path) -> None:
    """Without recomputation the page gives such a plan the time that the search gave it."""
    analysis = opened("llm", tmp_path)
    speeds = {"a": 1e11, "b": 6e10, "c": 3e10}
    devices = tuple(Device(name=name, flops_per_s=speed, link_bytes_per_s=1e9) for name, speed in speeds.items())
    made = plan(analysis, Across(Cluster(devices=devices)), limits=Limits(recompute="never"))
    assert len(made.front) > 2
    page, best = show(scene_of_plan(made, analysis)), duration(made.front[0].period_s)
    for row, found in enumerate(one for one in made.front if one.after):
        page.evaluate(f"document.querySelectorAll('#other-plans tbody button')[{row}].click()")
        text = page.evaluate("document.querySelector('#parts .lead').textContent")
        assert f"time between two requests ({duration(found.period_s)}, the plan {best})" in text
        assert f"No plan that keeps layers whole is below {best}." in text, text
        assert tuple(page.evaluate(CHOSEN)) == found.devices
    page.evaluate("document.querySelector('#parts select').value = '1'")
    page.evaluate("document.querySelector('#parts select').dispatchEvent(new Event('change'))")
    chosen = page.evaluate(CHOSEN)
    page.wait_for(f"location.hash.endsWith({'&on='.join(['', *chosen])!r})")
    command = page.evaluate("document.querySelector('#parts code').textContent")
    assert command.endswith(f" --at-nodes={','.join(found.after)} --device={','.join(chosen)}")
    assert chosen == [made.devices[1].name, *found.devices[1:]] != [*found.devices]
    page.evaluate("document.querySelector('#back').click()")
    assert page.evaluate("document.querySelector('#back').hidden && document.querySelector('#map').checkVisibility()")


def test_a_cut_is_made_moved_copied_and_taken_away_by_keys(show: Show, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    analysis = analyze(load(tmp_path / "llm.onnx"))
    page = show(scene_of_analysis(analysis))
    names = [analysis.model.graph.nodes[node].name for node in analysis.model.graph.flow]
    page.evaluate(f"location.hash = '#node={names[100]}'")
    page.wait_for("document.querySelector('#cut')")
    page.evaluate("document.querySelector('#profile .plot').focus()")
    page.press("c")
    command = "document.querySelector('#parts code').textContent"
    assert page.evaluate(command).endswith(f"llm.onnx --at-nodes={names[100]}")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", windowsVirtualKeyCode=39, modifiers=9)
    assert page.evaluate(command).endswith(f"--at-nodes={names[101]}")
    link = quote(names[101], safe="")
    page.wait_for(f"location.hash === '#cut={link}&node={link}'")
    assert len(page.evaluate(ROWS)) == 2
    page.press("c")
    assert not page.evaluate("document.querySelector('#parts').checkVisibility()")
    assert page.evaluate("document.querySelector('#matrix').checkVisibility()")


ENTRIES = (
    "Object.fromEntries([...document.querySelectorAll('#panel dt')].map((word) => "
    "[word.textContent, word.nextSibling.textContent]))"
)


def test_the_panel_names_what_crosses(show: Show, tmp_path: Path) -> None:
    demos.write("multitask", tmp_path / "multitask.onnx")
    analysis = analyze(load(tmp_path / "multitask.onnx"))
    graph = analysis.model.graph
    page = show(scene_of_analysis(analysis))
    for node in graph.flow[1:6]:
        page.evaluate(f"location.hash = '#node={quote(graph.nodes[node].name, safe='')}'")
        page.wait_for(f"document.querySelector('#panel h2').textContent === {graph.nodes[node].name!r}")
        made = plan(analysis, At((graph.nodes[node].name,)), limits=NO_REPLICAS)
        said = page.evaluate(ENTRIES)
        names = [text.split(" ")[0] for text in said["names"].split(", ")]
        assert set(names) == {*made.partition.wiring.boundary_tensors}
        assert made.costs is not None
        assert [made.costs.tensor_bytes[name] for name in names] == sorted(
            (made.costs.tensor_bytes[name] for name in names), reverse=True
        )
        assert [said["weights before"], said["weights after"]] == [size(part.weight_bytes) for part in made.metrics]
        texts = said["a cut here sends"], said.get("without residual", "0 B")
        sent, alone = (parse_bytes(text.removeprefix("≥ ")) for text in texts)
        assert alone <= sent
    cells = "[...row.cells].map((cell) => cell.textContent)"
    for row in page.evaluate(f"[...document.querySelectorAll('#cut-points tbody tr')].map((row) => {cells})"):
        made = plan(analysis, At((row[0],)), limits=NO_REPLICAS)
        tensors = made.partition.wiring.boundary_tensors
        assert made.costs is not None
        sent = sum(made.costs.tensor_bytes[name][0] for name in tensors)
        assert [row[-5].removeprefix("≥ "), *row[-4:-1]] == [
            size(sent),
            str(len(tensors)),
            *(size(part.weight_bytes) for part in made.metrics),
        ]


@pytest.mark.parametrize("kind", ["mouse", "touch"])
def test_a_cut_is_dragged(show: Show, tmp_path: Path, kind: str) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    analysis = analyze(load(tmp_path / "llm.onnx"))
    page = show(scene_of_plan(plan(analysis, Into(2)), analysis), width=390 if kind == "touch" else 1320)
    page.evaluate("document.querySelector('#profile .plot').scrollIntoView({block: 'center'})")
    left, top, width = page.evaluate(
        "(({x, y, width}) => [x, y, width])(document.querySelector('#profile .plot').getBoundingClientRect())"
    )
    scene = scene_of_plan(plan(analysis, Into(2)), analysis)
    assert scene.profile is not None
    at = [left + 74 + share * (width - 86) for share in ((scene.profile.cuts[0] + 1) / len(scene.profile.nodes), 0.8)]
    if kind == "mouse":
        page.drag(at[0], at[1], top + 150)
    else:
        page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": at[0], "y": top + 150}])
        for share in (0.3, 0.6, 1.0):
            x = at[0] + share * (at[1] - at[0])
            page.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": top + 150}])
        # The browser passes moves of a finger on when it draws.
        said = "document.querySelector('#profile .plot').getAttribute('aria-valuetext')"
        page.wait_for(f"/: cut here, .* in [0-9]+ tensors?, p0: .*, p1: /.test({said})")
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait_for("!document.querySelector('#back').hidden")
    rows = page.evaluate(ROWS)
    assert len(rows) == 2
    node = page.evaluate("document.querySelector('#parts code').textContent").partition("--at-nodes=")[2].split()[0]
    made = plan(analysis, At((node,)), limits=NO_REPLICAS)
    assert made.costs is not None
    sent = sum(made.costs.tensor_bytes[name][0] for name in made.partition.wiring.boundary_tensors)
    assert [(number(row["nodes"]), number(row["weights"]), number(row["sends"])) for row in rows] == [
        (len(block.nodes), part.weight_bytes, sent if i == 0 else 0)
        for i, (block, part) in enumerate(zip(made.partition.blocks, made.metrics, strict=True))
    ]
    assert number(rows[0]["nodes"]) / len(scene.profile.nodes) == pytest.approx(0.8, abs=0.05)
    assert page.evaluate("document.querySelector('.answer').textContent").startswith("Your cuts: 2 parts. ")
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if kind == "touch" else 1320)
    page.evaluate("document.querySelector('#back').click()")
    assert page.evaluate("document.querySelector('#map').checkVisibility()")
