"""A quantity of one name has one value wherever it is said: on the terminal, on the page, in pictures, in JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import Across, Analysis, At, Heads, Into, Plan, Within, demos
from graphcut.core.units import duration, flop, size
from graphcut.costs.cluster import Cluster, SimulatedCluster
from graphcut.costs.device import Device
from graphcut.drawing.dot import dot_of
from graphcut.drawing.html import html_of
from graphcut.drawing.json_records import analysis_record
from graphcut.drawing.mermaid import mermaid_of
from graphcut.drawing.opening import scene_at
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan, scene_of_split
from graphcut.drawing.svg.document import svg_of
from graphcut.planning.goals import Goal
from graphcut.planning.plan_files import plan_file, save_plan
from graphcut.simulating.scenario import scenario_of_cascade, scenario_of_plan

from conftest import floats, model_of
from golden_terminal import screen
from scenes_by_hand import data_of

Said = tuple[str, str, str]
"""Of what (a part, a tensor), the name of a quantity, and its value."""

_NUMBERED = re.compile(r"part-(\d+)(\.onnx)?|p(\d+)")


def part_of(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return f"p{found[1] or found[3]}" if found else name


def on_terminal(scene: Scene) -> Iterator[Said]:
    """The cells of the table of parts and of the table of boundary tensors."""
    titles: list[str] = []
    for line in screen(scene, 250).splitlines():
        cells = re.split(r"  +", re.sub("━+ *│", "bar", line).strip())
        if line.startswith(("part ", "boundary tensor ")):
            titles = cells
        elif titles and len(cells) == len(titles):
            is_part = titles[0] == "part"
            of = part_of(cells[0]) if is_part else cells[0]
            said = dict(zip(titles[1:], cells[1:], strict=True))
            names = [
                n for n in said if n in {"nodes", "activations", "compute", "time", "bytes", "needs"} or "weights" in n
            ]
            yield from ((of, name, said[name]) for name in names)
        else:
            titles = []


def on_the_page(scene: Scene) -> Iterator[Said]:
    """The data of the page, as its script writes them."""
    data = data_of(html_of(scene))
    for card in data["cards"]:
        part, least = part_of(card["name"]), "" if card["is_exact"] else "≥ "
        yield part, "weights", size(card["weight_bytes"])
        yield part, "nodes", f"{card['nodes']:,}"
        yield part, card["measure"], ("" if card["need_exact"] else "≥ ") + size(card["need_bytes"])
        for name, key, text in (
            ("activations", "activation_bytes", size),
            ("compute", "flops", flop),
            ("time", "busy_s", duration),
        ):
            if card[key] is not None:
                yield part, name, least + text(card[key])
    for tensor in data["tensors"]:
        yield tensor["tensor"], "bytes", ("" if tensor["is_exact"] else "≥ ") + size(tensor["bytes"])


def in_pictures(scene: Scene) -> Iterator[Said]:
    """What the SVG says aloud of each part, and the labels of DOT and Mermaid."""
    quantity = r"([\w, ]+?) ((?:≥ )?[\d.]+ (?:B|[KM]iB|[kM]B))"
    for name, measure, value in re.findall(
        rf"<title>(p\d+|part-\d+\.onnx)[^<:]*: [\d,]+ nodes?, {quantity}", svg_of(scene)
    ):
        yield part_of(name), measure, value
    for name, measure, value in re.findall(
        rf'label="(p\d+|part-\d+\.onnx)(?:\\n[^"\\]*)??\\n{quantity}', dot_of(scene)
    ):
        yield part_of(name), measure, value
    for name, measure, value in re.findall(
        rf'\["(p\d+|part-\d+\.onnx)(?:<br/>[^"<]*)??<br/>{quantity}', mermaid_of(scene)
    ):
        yield part_of(name), measure, value


def in_the_document(made: Plan) -> Iterator[Said]:
    assert made.model is not None
    for i, part in enumerate(plan_file(made, made.model, Path()).parts):
        if (one := part.predicted) is not None:
            least = "" if one.is_exact else "≥ "
            yield f"p{i}", "weights", size(one.weight_bytes)
            yield f"p{i}", "nodes", f"{one.nodes:,}"
            yield f"p{i}", "weights and graph", size(one.written_bytes)
            yield f"p{i}", "activations", least + size(one.activation_bytes)
            yield f"p{i}", "compute", least + flop(one.flops)
            yield f"p{i}", "time", least + duration(one.busy_s)


def values(*sources: Iterator[Said]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for source in sources:
        said = list(source)
        assert said
        for of, name, value in said:
            found.setdefault((of, name), set()).add(value)
    return found


def everywhere(*scenes: Scene) -> dict[tuple[str, str], set[str]]:
    return values(*(say(scene) for scene in scenes for say in (on_terminal, on_the_page, in_pictures)))


def unsized(path: Path) -> Path:
    """A head for numbers that only a run knows the number of, beside one of any batch."""
    steps = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("NonZero", ["r"], ["i"], name="found"),
        helper.make_node("Neg", ["i"], ["n"], name="neg"),
        helper.make_node("Abs", ["n"], ["y"], name="abs"),
        helper.make_node("Neg", ["r"], ["z"], name="other"),
    ]
    model = model_of(steps, [floats("x", None, 64)], [floats("z", None, 64)])
    model.graph.output.extend([helper.make_tensor_value_info("y", 7, [2, None])])
    path.write_bytes(model.SerializeToString())
    return path


def written(name: str, folder: Path) -> Path:
    if name == "unsized":
        return unsized(folder / "unsized.onnx")
    demos.write(name, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


CASES: Mapping[str, tuple[str, dict[str, int], Goal]] = {
    "a decoder, one dimension given, the others assumed": ("llm", {"batch": 2}, Into(3)),
    "named cuts": ("llm", {"batch": 2}, At("/model/layers.1/add_1")),
    "a budget for everything": ("llm", {"seq": 16}, Within("2MiB", ("activations", "inputs", "cache"))),
    "a budget for some": ("unet", {}, Within("800KiB", ("inputs",))),
    "heads": ("multitask", {}, Heads()),
    "sizes that nobody knows": ("unsized", {}, Into(2, "bytes")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_quantity_of_one_name_has_one_value(case: str, tmp_path: Path) -> None:
    """In the plan, its file and what is split; and in the split, its folder, and its folder without the model."""
    name, dims, goal = CASES[case]
    model = graphcut.load(written(name, tmp_path), dims=dims)
    analysis = graphcut.analyze(model)
    made = graphcut.plan(analysis, goal)
    save_plan(made, model, tmp_path / "plan.json")
    planned = scene_of_plan(made, analysis)
    cascade = graphcut.split(model, made, tmp_path / "parts")
    split = scene_of_split(cascade, made, analysis)
    shown, alone = scene_at(tmp_path / "parts"), scene_of_cascade(cascade)
    plans = everywhere(planned, scene_at(tmp_path / "plan.json"))
    for of, name, value in in_the_document(made):
        plans.setdefault((of, name), set()).add(value)
    folders = everywhere(split, shown, alone)
    of_files = {"weights and graph"}  # predicted in a plan, and then written
    both = {key: plans.get(key, set()) | many for key, many in folders.items() if key[1] not in of_files}
    assert {key: many for found in (plans, folders, both) for key, many in found.items() if len(many) > 1} == {}
    assert {word for _, word in folders} >= {"nodes", "weights", "bytes"}
    assert planned.tensors == shown.tensors == alone.tensors == split.tensors
    assert len({dict(scene.facts).get("dims") for scene in (planned, shown, alone, split)}) == 1


def test_an_analysis_assumes_the_sizes_of_a_plan(tmp_path: Path) -> None:
    path = written("llm", tmp_path)
    model = graphcut.load(path, dims={"batch": 2})
    analysis, made = graphcut.analyze(model), graphcut.plan(model, Into(2))
    note = "sizes assume seq=512, past=0, total=512; set others with `dims`"
    assert analysis_record(analysis).dims == made.dims == {"batch": 2, "seq": 512, "past": 0, "total": 512}
    scenes = scene_of_analysis(analysis), scene_of_plan(made, analysis)
    assert [note in scene.notes for scene in scenes] == [True, True]
    assert made.reasons[0].chosen.boundary_bytes in {point.bytes for point in analysis.cut_points}


def test_a_header_shows_three_assumptions_and_how_many_more_there_are(tmp_path: Path) -> None:
    model = graphcut.load(written("llm", tmp_path))
    analysis, made = graphcut.analyze(model), graphcut.plan(model, Into(2))
    assert [*made.dims] == ["batch", "seq", "past", "total"]
    for scene in (scene_of_analysis(analysis), scene_of_plan(made, analysis)):
        assert dict(scene.facts)["dims"] == "batch=1, seq=512, past=0, 1 more"
        assert "sizes assume batch=1, seq=512, past=0, 1 more; set others with `dims`" in scene.notes


def test_the_most_balanced_cut_is_so_in_time_and_its_figures_are_those_of_its_parts(tmp_path: Path) -> None:
    """An embedding has nearly all weights, and looks one row up: a part of it alone would be a part of nothing."""
    rng = np.random.default_rng(0)
    weights = {"table": (50_000, 64), "w0": (64, 256), "w1": (256, 64), "w2": (64, 256), "w3": (256, 64)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h0"], name="embed")]
    nodes += [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"], name=f"m{i}") for i in range(4)]
    tables = [numpy_helper.from_array(rng.random(size, dtype=np.float32), name) for name, size in weights.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [512])
    onnx.save(model_of(nodes, [ids], [floats("h4", 512, 64)], tables), tmp_path / "embedding.onnx")
    analysis = graphcut.analyze(tmp_path / "embedding.onnx")
    scene, made = scene_of_analysis(analysis), graphcut.plan(analysis, At("m1"))
    before, after = (f"{duration(one.busy_s)} and {size(one.weight_bytes)} of weights" for one in made.metrics)
    assert f"after m1: 1 tensor (128 KiB) crosses there, with {before} before it and {after} after it" in scene.sentence
    slowest = {node: max(m.busy_s for m in graphcut.plan(analysis, At(node)).metrics) for node in ("embed", "m0", "m1")}
    assert min(slowest, key=lambda node: slowest[node]) == "m1"


def test_what_hangs_on_unknown_sizes_is_at_least(tmp_path: Path) -> None:
    analysis = Analysis(graphcut.load(unsized(tmp_path / "unsized.onnx"), dims={"x.0": 3}))
    scene = scene_of_plan(graphcut.plan(analysis, Within(10**6, ("activations", "inputs", "cache"))), analysis)
    card = scene.cards[-1]
    found = everywhere(scene)
    for name in ("needs", "activations", "compute", "time"):
        (value,) = found[part_of(card.name), name]
        assert value.startswith("≥ ")
    assert "needs at least " in scene.sentence
    assert dict(scene.facts)["per run"].startswith("≥ ")
    (note,) = (note for note in scene.notes if "no size" in note)
    assert note.startswith("3 of 6 tensors have no size, such as i: times, FLOPs and sizes that count them are lower ")
    assert note.endswith("; set i.1 with `dims`")


def test_a_folder_is_simulated_with_the_times_of_its_plan(tmp_path: Path) -> None:
    """A mask that a part recomputes is as long as a number that the part receives; alone the part doesn't tell."""
    model = graphcut.load(written("llm", tmp_path), dims={"batch": 1, "seq": 128, "past": 0, "total": 128})
    devices = tuple(Device(name=name, link_bytes_per_s=1e7, latency_s=0.001) for name in "ab")
    made = graphcut.plan(model, Across(Cluster(devices=devices)))
    cascade = graphcut.split(model, made, tmp_path / "parts")
    planned = scenario_of_plan(made, model, None)
    cluster = SimulatedCluster(devices=devices)
    known, alone = (scenario_of_cascade(cascade, cluster, source) for source in (model, None))
    assert (planned.is_exact, known.is_exact, alone.is_exact) == (True, True, False)
    assert known.seconds == pytest.approx(np.array(planned.seconds))
    assert known.tensor_bytes == planned.tensor_bytes
    assert [a <= b for a, b in zip(alone.seconds[0], known.seconds[0], strict=True)] == [True] * len(made.parts)
