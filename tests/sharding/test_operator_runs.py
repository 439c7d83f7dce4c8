"""`operator_runs.py`, which finds the rules of operators again, finds no rule that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from operator_runs import OperatorRuns

from graphcut.sharding.axes.factors import Factor, Place

from conftest import floats, model_of


def factors_of(op: str, *inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]], **attributes: int) -> list[Factor]:
    reads = [f"x{slot}" for slot in range(len(inputs))]
    nodes = [helper.make_node(op, reads, ["y"], op, "", "", None, **attributes)]
    proto = model_of(
        nodes, [floats(name, *value.shape) for name, value in zip(reads, inputs, strict=True)], [floats("y")]
    )
    feeds = dict(zip(reads, inputs, strict=True))
    return list(OperatorRuns(proto).factors([feeds, {name: value * 2 for name, value in feeds.items()}]))


def test_an_operator_without_a_rule_shows_how_it_is_halved() -> None:
    values = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)
    assert factors_of("LpNormalization", values, axis=0) == [Factor(8, (Place(0, 1),), (Place(0, 1),))]


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("IsNaN", np.ones((4, 6))),  # false everywhere
        ("Floor", np.full((4, 6), 0.2)),  # zero everywhere
        ("Log", np.full((4, 6), -1)),  # not a number anywhere
        ("ReduceMean", np.ones((4096,))),  # halves that are alike have the mean of all
        ("Softmax", np.zeros((4096, 1))),
    ],
)
def test_values_that_hide_what_an_operator_does_show_no_rule(
    op: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    """Or no wrong one: the values are made to grow along each axis."""
    axis = {"axis": 0} if op == "Softmax" else {}
    assert factors_of(op, value.astype(np.float32), **axis) == []
