"""Plans on disk: what is saved is replayed, what is edited is done or refused, and nothing is taken for a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

import graphcut
from graphcut import (
    Across,
    Analysis,
    At,
    Cluster,
    Device,
    Heads,
    Into,
    Limits,
    NetworkLink,
    PlanError,
    RecordError,
    UsageError,
    Within,
    demos,
    replay,
    save_plan,
)
from graphcut.drawing.cut_costs import cut_costs_of
from graphcut.drawing.scene_builders import scene_of_plan
from graphcut.planning.goals import Goal
from graphcut.planning.plans import check_budgets

from cases import some
from conftest import floats, model_of

Plan = graphcut.Plan
Plans = Callable[[str], Plan]


def weighing() -> onnx.ModelProto:
    """x → Mul → a → Relu → b → Neg → c → Sub → d → Add(a) → y, and a constant that `Sub` reads."""
    weight = numpy_helper.from_array(np.ones((1, 1000), np.float32), "w")
    nodes = [
        helper.make_node(
            "Constant", [], ["one"], name="constant", value=numpy_helper.from_array(np.array(1, np.float32))
        ),
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        helper.make_node("Sub", ["c", "one"], ["d"], name="sub"),
        helper.make_node("Add", ["d", "a"], ["y"], name="add"),
    ]
    return model_of(nodes, [floats("x", 1, 1000)], [floats("y", 1, 1000)], [weight])


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    onnx.save(weighing(), tmp_path / "model.onnx")
    return graphcut.analyze(graphcut.load(tmp_path / "model.onnx"))


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Of three layers, for reading only."""
    path = tmp_path_factory.mktemp("decoder") / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=3, heads=2, kv_heads=1, vocab=32)
    return graphcut.analyze(graphcut.load(path))


@pytest.fixture
def saved(analysis: Analysis, tmp_path: Path) -> Path:
    """`mul`, `relu` | `neg`, `sub`, `add`."""
    made = graphcut.plan(analysis, At(("relu",)))
    save_plan(made, analysis.model, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edited(path: Path, change: Callable[[Any], object]) -> Path:
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def names(made: Plan) -> list[list[str]]:
    return [[made.graph.nodes[i].name for i in row] for row in made.parts]


@pytest.fixture(scope="session")
def plans(decoder: Analysis) -> Plans:
    """The plan for each of `GOALS`, made once."""
    return cache(lambda name: graphcut.plan(decoder, GOALS[name]))


# What is saved is replayed

TWO = Cluster(
    devices=(Device(name="a", memory_bytes=10**8), Device(name="größe", flops_per_s=3e11)),
    links=(NetworkLink(between=("a", "größe"), bytes_per_s=5e8),),
)
GOALS: Mapping[str, Goal] = {
    "at": At(("/model/layers.1/add_1",)),
    "into": Into(3),
    "layers": Into(3, "layers"),
    "within": Within(30_000, ()),
    "counted": Within(20_000_000, ("activations", "cache")),
    "across": Across(TWO),
    "decode": Across(TWO, "decode", 4),
    "heads": Heads((("logits",),)),
}


@pytest.mark.parametrize("name", GOALS)
def test_a_replayed_plan_equals_the_saved_plan(decoder: Analysis, plans: Plans, tmp_path: Path, name: str) -> None:
    limits = Limits(inside_layers=True, pins=(("/lm_head/MatMul", 2),))
    made = graphcut.plan(decoder, GOALS[name], limits=limits) if name == "into" else plans(name)
    assert (made.unlimited is not None) == (name == "into")
    save_plan(made, decoder.model, tmp_path / "plan.json")
    again = replay(decoder, tmp_path / "plan.json")
    assert (again.goal, again.limits, again.parts, again.devices) == (made.goal, made.limits, made.parts, made.devices)
    assert list(again.dims.items()) == list(made.dims.items()), "in the order in which they are told"
    assert again.partition == made.partition
    assert (again.outcome, again.unlimited, again.front) == (made.outcome, made.unlimited, made.front)
    assert (again.metrics, again.reasons, again.recomputed) == (made.metrics, made.reasons, made.recomputed)
    assert scene_of_plan(again, decoder) == scene_of_plan(made, decoder)


def test_a_plan_from_a_cost_model_is_replayed_with_its_metrics(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    """It has the cost model, so that other cuts are predicted by it, too."""
    costs = graphcut.weigh(decoder.model, plans("into").dims)
    rows = [replace(row, time_s=7.0) for row in graphcut.table_of(costs).rows]
    made = graphcut.plan(decoder, Into(3), costs=costs, table=graphcut.CostTable(tuple(rows)))
    assert min(part.busy_s for part in made.metrics) >= 7.0
    save_plan(made, decoder.model, tmp_path / "plan.json")
    again = replay(decoder, tmp_path / "plan.json")
    assert (again.metrics, again.coverage, again.table) == (made.metrics, made.coverage, made.table)
    assert made.coverage is not None
    assert cut_costs_of(decoder.model, again) == cut_costs_of(decoder.model, made)

    def later(plan: Any) -> None:  # noqa: ANN401 - JSON
        plan["parts"][1]["nodes"].append(plan["parts"][0]["nodes"].pop())

    assert min(part.busy_s for part in replay(decoder, edited(tmp_path / "plan.json", later)).metrics) >= 7.0


@pytest.mark.fuzz
@pytest.mark.parametrize("name", some(["at", "into", "decode", "heads"], "layers", "within", "counted", "across"))
def test_the_same_plan_is_saved_as_the_same_bytes(decoder: Analysis, plans: Plans, tmp_path: Path, name: str) -> None:
    for file, made in (("first.json", plans(name)), ("second.json", graphcut.plan(decoder, GOALS[name]))):
        save_plan(made, decoder.model, tmp_path / file)
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


@pytest.mark.parametrize("name", GOALS)
def test_a_replayed_plan_is_saved_as_the_same_bytes(decoder: Analysis, plans: Plans, tmp_path: Path, name: str) -> None:
    save_plan(plans(name), decoder.model, tmp_path / "first.json")
    save_plan(replay(decoder, tmp_path / "first.json"), decoder.model, tmp_path / "second.json")
    assert (tmp_path / "second.json").read_bytes() == (tmp_path / "first.json").read_bytes()


def test_a_proof_holds_until_the_plan_is_edited(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    made = plans("into")
    save_plan(made, decoder.model, tmp_path / "plan.json")

    assert made.outcome is not None
    assert replay(decoder, tmp_path / "plan.json").outcome == made.outcome

    def later(plan: Any) -> None:  # noqa: ANN401 - JSON
        plan["parts"][1]["nodes"].append(plan["parts"][0]["nodes"].pop())

    changed = replay(decoder, edited(tmp_path / "plan.json", later))
    assert (changed.outcome, changed.reasons, changed.coverage) == (None, (), None)
    assert [part.nodes for part in changed.metrics] == [len(row) for row in changed.parts]


def test_the_order_of_names_in_a_part_means_nothing(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    made = plans("into")
    save_plan(made, decoder.model, tmp_path / "plan.json")
    edited(tmp_path / "plan.json", lambda plan: plan["parts"][1]["nodes"].reverse())
    assert replay(decoder, tmp_path / "plan.json").reasons == made.reasons


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["dims"].update(seq=8),
        lambda plan: plan["goal"].update(parts=4),
        lambda plan: plan["limits"].update(inside_layers=True),
        lambda plan: plan["parts"][0]["device"].update(flops_per_s=1e9),
        lambda plan: plan["outcome"].update(value=0.0),
        lambda plan: plan["recomputed"].append({**plan["recomputed"][0], "part": 7}),
        lambda plan: plan["parts"][0]["predicted"].update(busy_s=0.0),
        lambda plan: plan.pop("planned"),
    ],
    ids=["dims", "goal", "limits", "device", "outcome", "recomputed", "predicted", "digest"],
)
def test_an_edited_plan_has_no_outcome_and_no_reasons(
    decoder: Analysis, plans: Plans, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    save_plan(plans("into"), decoder.model, tmp_path / "plan.json")
    again = replay(decoder, edited(tmp_path / "plan.json", change))
    assert (again.outcome, again.reasons) == (None, ())
    assert all(part.busy_s > 0 for part in again.metrics)
    assert {one.part for one in again.recomputed} <= {0, 1, 2}


def test_an_edited_plan_reports_what_it_recomputes(decoder: Analysis, tmp_path: Path) -> None:
    """A node of part 0 whose result part 1 reads is repeated there: the result need not be sent."""
    made = graphcut.plan(decoder, Into(2), limits=Limits(recompute="never"))
    assert made.recomputed == ()
    graph, sent = made.graph, made.partition.wiring.boundary_tensors
    name = next(name for name in sent if not made.graph.nodes[graph.producer[name]].weights)
    node = graph.nodes[graph.producer[name]]
    save_plan(made, decoder.model, tmp_path / "plan.json")
    edited(tmp_path / "plan.json", lambda plan: plan["parts"][1]["replicas"].append(node.name))
    (found,) = replay(decoder, tmp_path / "plan.json").recomputed
    assert (found.part, found.nodes, found.tensors) == (1, (node.name,), (name,))


def test_a_plan_file_names_its_model_goal_and_parts(saved: Path, analysis: Analysis) -> None:
    record = json.loads(saved.read_text())
    assert record["format"] == "graphcut.plan/1"
    assert record["model"] == "model.onnx"
    assert record["goal"] == {"type": "At", "nodes": ["relu"]}
    assert [part["nodes"] for part in record["parts"]] == [["mul", "relu"], ["neg", "sub", "add"]]
    assert names(replay(analysis, saved)) == [["mul", "relu"], ["neg", "sub", "add"]]


def test_a_part_lists_repeated_nodes_separately(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    made = plans("layers")
    assert made.recomputed, "the rotary table is cheaper to compute than to send"
    save_plan(made, decoder.model, tmp_path / "plan.json")
    parts = json.loads((tmp_path / "plan.json").read_text())["parts"]
    own = [name for part in parts for name in part["nodes"]]
    assert sorted(own) == sorted(decoder.model.graph.nodes[i].name for i in decoder.model.graph.flow)
    for found in made.recomputed:
        constants = {node.name for node in made.graph.nodes if node.is_constant}
        assert {*found.nodes} == {*parts[found.part]["replicas"]} - constants


def test_a_plan_is_replaced_whole_or_not_at_all(
    saved: Path, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(graphcut.GraphcutError, match="No space left on device"):
        save_plan(graphcut.plan(analysis, At(("mul",))), analysis.model, saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert {file.name for file in saved.parent.iterdir()} == {"plan.json", "model.onnx"}


def test_a_replayed_plan_cuts_to_the_same_bytes(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    made = plans("layers")
    save_plan(made, decoder.model, tmp_path / "plan.json")
    first = graphcut.split(decoder.model, made, tmp_path / "first")
    second = graphcut.split(decoder.model, replay(decoder, tmp_path / "plan.json"), tmp_path / "second")
    for file in first.root.iterdir():
        assert file.read_bytes() == (second.root / file.name).read_bytes(), file.name


@pytest.mark.parametrize("goal", [Into(2), Across(TWO, "decode")], ids=["a time", "tokens a second"])
def test_a_plan_of_which_nothing_is_proven_is_replayed(goal: Goal, tmp_path: Path) -> None:
    """JSON has no infinite numbers: a bound that nobody knows is null."""
    nodes = [helper.make_node("NonZero", ["x"], ["a"], name="found"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, "found"])
    onnx.save(model_of(nodes, [floats("x", 4)], [output]), tmp_path / "model.onnx")
    analysis = graphcut.analyze(tmp_path / "model.onnx")
    made = graphcut.plan(analysis, goal)
    assert made.outcome is not None
    assert (made.outcome.bound, made.outcome.gap) == (None, float("inf"))
    assert str(made.outcome).endswith(", nothing is proven")
    save_plan(made, analysis.model, tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["outcome"]["bound"] is None
    assert replay(analysis, tmp_path / "plan.json").outcome == made.outcome


# What is edited is done


def test_a_moved_node_is_in_its_new_part(saved: Path, analysis: Analysis) -> None:
    edited(saved, lambda plan: plan["parts"][1]["nodes"].append(plan["parts"][0]["nodes"].pop()))
    assert names(replay(analysis, saved)) == [["mul"], ["relu", "neg", "sub", "add"]]


def test_the_names_of_a_part_may_be_in_any_order(saved: Path, analysis: Analysis) -> None:
    edited(saved, lambda plan: plan["parts"][1]["nodes"].reverse())
    assert names(replay(analysis, saved)) == [["mul", "relu"], ["neg", "sub", "add"]]


def test_a_part_may_be_divided(saved: Path, analysis: Analysis) -> None:
    def divide(plan: Any) -> None:  # noqa: ANN401 - JSON
        plan["parts"][1]["nodes"].remove("add")
        plan["parts"].append({"nodes": ["add"]})

    assert names(replay(analysis, edited(saved, divide))) == [["mul", "relu"], ["neg", "sub"], ["add"]]


def test_a_part_may_be_edited_to_repeat_a_node(saved: Path, analysis: Analysis) -> None:
    made = replay(analysis, edited(saved, lambda plan: plan["parts"][1].update(replicas=["mul", "mul"])))
    assert names(made) == [["mul", "relu"], ["mul", "neg", "sub", "add"]]
    assert set(made.partition.wiring.boundary_tensors) == {"b"}


def test_predictions_are_optional_in_a_plan_file(saved: Path, analysis: Analysis) -> None:
    for part in (0, 1):
        edited(saved, lambda plan, part=part: plan["parts"][part].pop("predicted"))  # type: ignore[misc]
    assert names(replay(analysis, saved)) == [["mul", "relu"], ["neg", "sub", "add"]]


# What can't be is refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: parts[1]["nodes"].append("mul"), r"node 'mul' is in parts 0 and 1"),
        (lambda parts: parts[0]["nodes"].append("mul"), r"node 'mul' is twice in part 0"),
        (lambda parts: parts[0]["nodes"].remove("relu"), r"node 'relu' is in no part"),
        (lambda parts: parts.clear(), r"node 'mul' is in no part"),
        (lambda parts: parts[0]["nodes"].append("constant"), r"'constant' is a constant, which every part has"),
        (lambda parts: parts.append({"nodes": []}), r"part 2 has no nodes"),
        (lambda parts: parts[0].update(replicas=["neg"]), r"part 0 repeats 'neg', which no part before it holds"),
        (lambda parts: parts[1].update(replicas=["neg"]), r"part 1 repeats 'neg', which no part before it holds"),
        (
            lambda parts: parts.reverse(),
            r"these parts can't run in this order: part 0 reads 'b' before any part writes it",
        ),
    ],
    ids=["twice", "twice in one", "missing", "no parts", "constant", "empty", "repeats later", "own", "order"],
)
def test_an_impossible_edit_is_refused_by_name(
    saved: Path, analysis: Analysis, change: Callable[[Any], object], said: str
) -> None:
    edited(saved, lambda plan: change(plan["parts"]))
    with pytest.raises(UsageError) as caught:
        replay(analysis, saved)
    assert re.fullmatch(f"{re.escape(str(saved))}: {said}", str(caught.value)), caught.value
    assert caught.value.hint


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ({"type": "Within", "memory_bytes": -1, "counting": [], "most_parts": None}, "a part can't have -1 bytes"),
        ({"type": "Within", "memory_bytes": 10**30, "counting": [], "most_parts": None}, f"can't have {10**30} bytes"),
        ({"type": "Within", "memory_bytes": 10**9, "counting": [], "most_parts": 0}, "a model can't have 0 parts"),
        ({"type": "Into", "parts": -1, "by": "time"}, "a model can't be cut into -1 parts"),
    ],
)
def test_a_goal_that_no_plan_has_is_refused(saved: Path, analysis: Analysis, goal: dict[str, Any], said: str) -> None:
    edited(saved, lambda plan: plan.update(goal=goal))
    with pytest.raises(UsageError, match=said):
        replay(analysis, saved)


@pytest.mark.parametrize("field", ["nodes", "replicas"])
def test_an_unknown_name_is_refused_with_the_most_similar_one(saved: Path, analysis: Analysis, field: str) -> None:
    edited(saved, lambda plan: plan["parts"][1][field].append("rleu"))
    with pytest.raises(UsageError) as caught:
        replay(analysis, saved)
    assert str(caught.value) == f"{saved} names the node 'rleu', which the model does not have"
    assert "'relu'" in caught.value.hint


def test_a_node_in_an_impossible_part_is_refused_with_the_tensor(saved: Path, analysis: Analysis) -> None:
    edited(saved, lambda plan: plan["parts"][0]["nodes"].append(plan["parts"][1]["nodes"].pop()))
    with pytest.raises(UsageError) as caught:
        replay(analysis, saved)
    assert "part 0 reads 'd'" in str(caught.value)


def test_a_part_may_need_all_of_its_budget_and_not_a_byte_more(plans: Plans) -> None:
    made = plans("within")
    allowed, *more = made.budgets
    assert allowed is not None
    check_budgets(made, [allowed, *[0] * len(more)])
    with pytest.raises(PlanError, match="part 0 needs 30,001 bytes, but the plan allows 30,000"):
        check_budgets(made, [allowed + 1, *[0] * len(more)])


def test_an_edit_over_the_budget_is_refused_by_split(decoder: Analysis, plans: Plans, tmp_path: Path) -> None:
    save_plan(plans("within"), decoder.model, tmp_path / "plan.json")

    def together(plan: Any) -> None:  # noqa: ANN401 - JSON
        plan["parts"] = [{"nodes": [name for part in plan["parts"] for name in part["nodes"]]}]

    edited(tmp_path / "plan.json", together)
    with pytest.raises(PlanError) as caught:
        graphcut.split(decoder.model, replay(decoder, tmp_path / "plan.json"), tmp_path / "out")
    assert re.fullmatch(r"part 0 needs [\d,]+ bytes, but the plan allows 30,000", str(caught.value))
    assert not (tmp_path / "out").exists()


def test_an_edit_that_breaks_a_pin_is_refused(decoder: Analysis, tmp_path: Path) -> None:
    last = "/lm_head/MatMul"
    made = graphcut.plan(decoder, Into(2), limits=Limits(pins=((last, 1),)))
    save_plan(made, decoder.model, tmp_path / "plan.json")

    def together(plan: Any) -> None:  # noqa: ANN401 - JSON
        plan["parts"] = [{"nodes": [name for part in plan["parts"] for name in part["nodes"]]}]

    with pytest.raises(PlanError, match="pinned to part 1"):
        replay(decoder, edited(tmp_path / "plan.json", together))


def test_a_device_in_a_plan_without_a_cluster_is_refused(decoder: Analysis, tmp_path: Path) -> None:
    save_plan(graphcut.plan(decoder, Into(2)), decoder.model, tmp_path / "plan.json")
    path = edited(tmp_path / "plan.json", lambda plan: plan["parts"][1].update(device={"name": "pi"}))
    with pytest.raises(UsageError, match="part 1 names the device 'pi', but this plan is for no cluster") as caught:
        replay(decoder, path)
    assert "`Across`" in caught.value.hint


def test_a_part_without_a_device_in_a_plan_for_a_cluster_is_refused(decoder: Analysis, tmp_path: Path) -> None:
    save_plan(graphcut.plan(decoder, Across(TWO, "bytes")), decoder.model, tmp_path / "plan.json")
    with pytest.raises(UsageError, match="part 0 has no device"):
        replay(decoder, edited(tmp_path / "plan.json", lambda plan: plan["parts"][0].update(device=None)))


# What is no plan, or another's


def test_a_plan_for_another_model_is_refused_with_its_name(saved: Path, decoder: Analysis) -> None:
    with pytest.raises(UsageError) as caught:
        replay(decoder, saved)
    assert str(caught.value) == f"{saved} is a plan for model.onnx, not for llm.onnx: the graphs differ"
    assert caught.value.hint


def test_a_plan_is_valid_for_a_model_of_the_same_graph(saved: Path, tmp_path: Path) -> None:
    """Other weights, another name."""
    proto = weighing()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((1, 1000), np.float32), "w"))
    onnx.save(proto, tmp_path / "finetuned.onnx")
    tuned = graphcut.analyze(graphcut.load(tmp_path / "finetuned.onnx"))
    assert names(replay(tuned, saved)) == [["mul", "relu"], ["neg", "sub", "add"]]


def test_a_missing_plan_file_is_a_record_error(analysis: Analysis, tmp_path: Path) -> None:
    for place, why in ((tmp_path / "no.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(RecordError) as caught:
            replay(analysis, place)
        assert str(caught.value) == f"{place} can't be read: {why}"
        assert caught.value.hint == "`save_plan(...)` writes one"


@pytest.mark.parametrize(
    "raw",
    [b"", b"hello", b'{"format": "graphcut.plan/1", ', b"\xff\xfe"],
    ids=lambda raw: repr(raw[:9]),
)
def test_a_file_that_is_not_json_is_refused(analysis: Analysis, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(raw)
    with pytest.raises(RecordError, match=r"plan\.json is not JSON: "):
        replay(analysis, tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan.update(note="mine"), "Object contains unknown field `note`"),
        (lambda plan: plan["parts"][1].update(note=1), r"parts\[1\]: Object contains unknown field `note`"),
        (lambda plan: plan["parts"][0].update(nodes="mul"), r"parts\[0\]\.nodes: Expected `array`, got `str`"),
        (lambda plan: plan["parts"][0]["nodes"].append(7), r"parts\[0\]\.nodes\[2\]: Expected `str`, got `int`"),
        (lambda plan: plan["goal"].update(type="Foo"), r"goal\.type: Invalid value 'Foo'"),
        (lambda plan: plan.pop("parts"), "Object missing required field `parts`"),
    ],
    ids=["field", "field of a part", "type", "type inside", "goal", "no parts"],
)
def test_a_wrong_record_is_refused_with_its_location(
    saved: Path, analysis: Analysis, change: Callable[[Any], object], said: str
) -> None:
    edited(saved, change)
    with pytest.raises(RecordError) as caught:
        replay(analysis, saved)
    assert re.fullmatch(f"{re.escape(str(saved))}: {said}", str(caught.value)), caught.value
    assert caught.value.hint == "plan again, or use the version of graphcut that wrote it"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan.update(format="graphcut.plan/2"), "the format 'graphcut.plan/2'"),
        (lambda plan: plan.pop("format"), "no format"),
    ],
)
def test_a_plan_of_another_format_is_refused(
    saved: Path, analysis: Analysis, change: Callable[[Any], object], said: str
) -> None:
    edited(saved, change)
    with pytest.raises(RecordError) as caught:
        replay(analysis, saved)
    assert str(caught.value) == f"{saved} has {said}, and this version of graphcut reads 'graphcut.plan/1'"
