"""Plans that somebody has edited: each is split into parts that compute the model, or refused with a sentence."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper, numpy_helper

import graphcut
from graphcut import Analysis, At, GraphcutError, PlanError, UsageError, Within
from graphcut.planning.plan_files import replay, save_plan
from graphcut.verifying.structural import prove

from conftest import floats, model_of

Parts = list[dict[str, list[str]]]


@cache
def planned(folder: Path) -> tuple[Analysis, dict[str, Any]]:
    """A model with a skip, a random node, a shared weight and a constant output, and a plan of four parts."""

    def node(op: str, reads: str, write: str, name: str) -> NodeProto:
        return helper.make_node(op, reads.split(), [write], name=name)

    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(4, np.float32))),
        *(node("Relu", "x", "a", "relu"), node("Neg", "a", "b", "neg"), node("MatMul", "b w", "d", "mm0")),
        *(node("Add", "d a", "e", "add"), node("RandomUniformLike", "e", "r", "random")),
        *(node("MatMul", "e w", "f", "mm1"), node("Mul", "f c", "g", "mul"), node("Sub", "g b", "y", "sub")),
        node("Abs", "r", "z", "abs"),
    ]
    outputs = [floats("y", "n", 4), floats("z", "n", 4), floats("c", 4)]
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    onnx.save(model_of(nodes, [floats("x", "n", 4)], outputs, [weight]), folder / "m.onnx")
    analysis = graphcut.analyze(graphcut.load(folder / "m.onnx"))
    save_plan(graphcut.plan(analysis, At(("neg", "add", "mm1"))), analysis.model, folder / "plan.json")
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return analysis, plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited")


def split(folder: Path, parts: Parts) -> None:
    """Split by a plan with these parts, and check the structure of the cascade."""
    analysis, plan = planned(folder)
    (folder / "edited.json").write_text(json.dumps({**plan, "parts": parts}), encoding="utf-8")
    made = replay(analysis, folder / "edited.json")
    cascade = graphcut.split(analysis.model, made, folder / "parts", force=True)
    assert prove(analysis.model, cascade).objections == ()


def edit(parts: Parts, random: Random) -> None:
    i = random.randrange(len(parts))
    part, earlier = parts[i], [name for one in parts[:i] for name in one["nodes"]]
    match random.choice(["back", "on", "repeat", "repeat", "repeat", "cut", "join", "any"]):
        case "back" if i and part["nodes"]:
            parts[i - 1]["nodes"].append(part["nodes"].pop(0))
        case "on" if i + 1 < len(parts) and part["nodes"]:
            parts[i + 1]["nodes"].insert(0, part["nodes"].pop())
        case "repeat" if earlier:
            part["replicas"] += random.sample(earlier, random.randint(1, len(earlier)))
        case "cut":
            at = random.randint(0, len(part["nodes"]))
            parts.insert(i, {"nodes": part["nodes"][:at], "replicas": []})
            part["nodes"] = part["nodes"][at:]
        case "join" if i:
            parts[i - 1]["nodes"] += parts.pop(i)["nodes"]
        case _:
            part[random.choice(["nodes", "replicas"])].append(random.choice([*earlier, *part["nodes"], "none"]))


@settings(deadline=None, max_examples=150)
@given(random=st.randoms(use_true_random=False), edits=st.integers(1, 4))
def test_an_edited_plan_is_split_and_verified_or_refused(folder: Path, random: Random, edits: int) -> None:
    _, plan = planned(folder)
    parts = [{"nodes": list(part["nodes"]), "replicas": list(part["replicas"])} for part in plan["parts"]]
    for _ in range(edits):
        edit(parts, random)
    with suppress(GraphcutError):
        split(folder, parts)


def test_a_part_whose_nodes_are_all_repeated_by_others_is_refused_by_its_name(folder: Path) -> None:
    later = ["neg", "mm0", "add", "random", "mm1", "mul", "sub", "abs"]
    with pytest.raises(UsageError, match=r"part-0\.onnx would have nothing to do") as caught:
        split(folder, [{"nodes": ["relu"], "replicas": []}, {"nodes": later, "replicas": ["relu"]}])
    assert caught.value.hint == "take this part out of the plan"


def test_a_plan_that_was_made_by_hand_keeps_its_budget_too(chain: Path, tmp_path: Path) -> None:
    """Without predicted metrics, also from a file."""
    analysis = graphcut.analyze(chain)
    parts = graphcut.plan(analysis, At("exp")).parts
    for memory_bytes in (1 << 30, 1000):
        made = graphcut.Plan(Within(memory_bytes), analysis.model.graph, parts)
        save_plan(made, analysis.model, tmp_path / "plan.json")
        again = replay(analysis, tmp_path / "plan.json")
        assert ([*made.metrics], [metrics.nodes for metrics in again.metrics]) == ([], [2, 2])
        for one in (made, again):
            if memory_bytes > 1000:
                cascade = graphcut.split(analysis.model, one, tmp_path / "parts", force=True)
                assert [part.flowing for part in cascade.parts] == [2, 2]
            else:
                with pytest.raises(PlanError, match=r"part 0 needs [\d,]+ bytes, but the plan allows 1,000"):
                    graphcut.split(analysis.model, one, tmp_path / "no")
    assert not (tmp_path / "no").exists()
