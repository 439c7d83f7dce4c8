"""Goals check the types of their values, and what is not a goal is a TypeError with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import graphcut
from graphcut import Across, At, Cluster, Device, Heads, Into, Limits, Plan, UsageError, Within
from graphcut.planning.goals import Goal, check_goal
from graphcut.planning.results import MetricUnit, Optimality

from cases import each

CLUSTER = Cluster(devices=(Device(name="a"),))


def test_one_name_and_several_names_make_the_same_goal() -> None:
    assert At("a") == At(("a",)) == At(["a"])
    assert At("a").nodes == ("a",)


@each("goal", [At("a"), Into(2), Within(10), Across(CLUSTER), Heads((("a",), ("b",))), Limits()])
def test_a_goal_is_a_value_that_does_not_change(goal: msgspec.Struct) -> None:
    assert {goal: 1}[msgspec.structs.replace(goal)] == 1
    name = goal.__struct_fields__[0]
    with pytest.raises(AttributeError, match="immutable"):
        setattr(goal, name, getattr(goal, name))


def test_a_budget_may_be_a_size_in_text() -> None:
    assert Within("2GB") == Within(2 * 10**9)
    with pytest.raises(UsageError, match="'2 GBs' is not a size"):
        Within("2 GBs")


@each(
    ("kind", "values", "message"),
    [
        (At, (3,), "At(nodes=3): Expected `array`, got `int`"),
        (Into, ("3",), "Into(parts='3'): Expected `int`, got `str`"),
        (Into, (True,), "Into(parts=True): Expected `int`, got `bool`"),
        (Into, (2, "size"), "Into(by='size'): Invalid enum value 'size'"),
        (Within, (2.5,), "Within(memory_bytes=2.5): Expected `int`, got `float`"),
        (Across, ("cluster.toml",), "Across(cluster='cluster.toml'): Expected `object`, got `str`"),
        (Across, (CLUSTER, "speed"), "Across(objective='speed'): Invalid enum value 'speed'"),
        (Heads, (("a", "b"),), "Heads(groups=('a', 'b')): Expected `array`, got `str` - at `$[0]`"),
        (Limits, ((), "a"), "Limits(avoid='a'): Expected `array`, got `str`"),
    ],
)
def test_a_value_of_another_type_is_a_type_error_with_a_hint(
    kind: type[msgspec.Struct], values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        kind(*values)
    assert str(caught.value) == message
    (hint,) = caught.value.__notes__
    assert hint.startswith(f"hint: did you mean {kind.__name__}(")


@each(
    ("goal", "hint"),
    [
        (2, "did you mean Into(2)?"),
        ("relu", "did you mean At('relu')?"),
        (CLUSTER, "did you mean Across(cluster)?"),
        (None, "use one of these"),
        (True, "use one of these"),
        (["relu"], "use one of these"),
    ],
)
def test_what_is_not_a_goal_is_a_type_error_with_the_goal_that_was_meant(goal: Any, hint: str, chain: Path) -> None:  # noqa: ANN401
    with pytest.raises(TypeError) as caught:
        graphcut.plan(chain, goal)
    expected = f"expected a goal (At, Into, Within, Across or Heads), got {type(goal).__name__}"
    assert (str(caught.value), caught.value.__notes__) == (expected, [f"hint: {hint}"])


@pytest.mark.parametrize(("value", "bound", "unit"), [(3, 2, "s"), (2, 3, "tokens/s")])
def test_the_gap_is_the_share_by_which_a_plan_may_be_worse_than_the_best(
    value: float, bound: float, unit: MetricUnit
) -> None:
    found = Optimality("measure", value, bound, unit, is_optimal=False)
    assert (found.gap, str(found).rpartition(", ")[2]) == (0.5, "gap 50.0 %")


@each(
    ("value", "bound", "unit", "said"),
    [
        (2, 1, "parts", "2 parts, lower bound 1 part"),
        (1, 2, "tokens/s", "1 tokens/s, upper bound 2 tokens/s, gap 100.0 %"),
        (1, 0.5, "s", "1 s, lower bound 500 ms, gap 100.0 %"),
        (1, 0, "s", "1 s, nothing is proven"),
        (1, 0, "bytes", "1 B, lower bound 0 B"),
    ],
)
def test_one_of_something_is_in_the_singular_and_a_gap_is_said_where_there_is_one(
    value: float, bound: float, unit: MetricUnit, said: str
) -> None:
    assert str(Optimality("measure", value, bound, unit, is_optimal=False)) == f"measure: {said}"


def test_the_repr_of_a_plan_is_its_goal_its_optimality_and_its_parts(chain: Path) -> None:
    named = graphcut.plan(chain, At("exp"))
    files = " | ".join(f"2 nodes, {part.written_bytes} B" for part in named.metrics)
    assert repr(named).splitlines() == ["Plan(At(nodes=('exp')): 2 parts", f"     {files})"]
    never = Limits(recompute="never")
    title, outcome, parts = repr(graphcut.plan(chain, Into(2), limits=never)).splitlines()
    assert title == "Plan(Into(parts=2, by='time'): 2 parts"
    assert outcome.startswith("     time of the slowest part: ")
    assert outcome.endswith("s, optimal (proven)")
    assert parts.count(" node") == 2


def test_of_a_plan_that_was_made_by_hand_no_figure_is_known(chain: Path) -> None:
    named = graphcut.plan(chain, At("exp"))
    bare = Plan(named.goal, named.graph, named.parts)
    assert (bare.memory, bare.needs, bare.budget_shares, bare.times, bare.boundary_bytes) == ((), (), (), None, ())
    assert len(named.memory) == 2
    assert named.times is not None


@each(
    ("goal", "said"),
    [
        (Into(0), "a model can't be cut into 0 parts"),
        (Into(-1), "a model can't be cut into -1 parts"),
        (Within(0), "a part can't have 0 bytes"),
        (Within(1 << 57), f"a part can't have {1 << 57} bytes"),
        (Within(1, most_parts=0), "a model can't have 0 parts"),
    ],
)
def test_numbers_that_no_plan_can_have_are_refused(goal: Goal, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_goal(goal)
