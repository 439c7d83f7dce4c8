"""A model of every kind of control flow: subgraphs with captured tensors, a local function, a sequence.

An If whose branches capture tensors and weights of the main graph; a Loop with an If inside that captures tensors from
outside the Loop; a Scan; a local function, called from the graph and from a branch; a sequence that all of these use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, helper

from graphcut import demos
from graphcut.demos import saving
from graphcut.demos.drafting import Draft, element_type, opset

_WIDTH = 8
_TURNS = 3
_DOMAIN = "graphcut.demo"
_ROWS: Final[list[int | str]] = ["rows", _WIDTH]


CONTROL_FLOW: Final = "control-flow"
MODELS: Final = (*demos.DEMOS, CONTROL_FLOW)


def write_model(name: str, path: Path, *, external: bool | None = None, **options: object) -> None:
    """Write the demo of that name with its options, or the model of control flow."""
    if name == CONTROL_FLOW:
        saving.save(control_flow(), path, external=external)
    else:
        demos.write(name, path, external=external, **options)


class _Draft(Draft):
    """A draft with bodies and a local function."""

    def body(self, *names: str) -> "_Draft":
        """A view with an empty graph for an attribute of If, Loop or Scan, which may capture tensors of this one."""
        view = self.inside(*names)
        view.graph = GraphProto(name="/".join(view.path))
        return view

    def model(self, weights: Sequence[TensorProto] = ()) -> ModelProto:
        """The model with the function."""
        made = super().model(weights)
        made.functions.append(_swish())
        made.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
        return made


def control_flow() -> Draft:
    """Build the model: inputs `x` [rows, 8] and bool `flag`; outputs `y` [rows, 8] and `trace` [3, 8]."""
    draft = _Draft("control-flow")
    x = draft.reads("x", "float32", _ROWS)
    flag = draft.reads("flag", "bool", [])
    enter = draft.inside("enter")
    entered = _call_swish(enter, enter.linear(x, _WIDTH, _WIDTH))
    gain = draft.weight("gain", (_WIDTH,), mean=1.0, scale=0.1)
    chosen = _choose(draft.inside("choose"), flag, entered, gain)
    collect = draft.inside("collect")
    collected = collect.node("SequenceConstruct", entered, chosen)
    repeated = _repeat(draft.inside("repeat"), chosen, entered, gain)
    collected = collect.node("SequenceInsert", collected, repeated)
    collected = collect.node("SequenceInsert", collected, _accumulate(draft.inside("accumulate"), repeated, gain))
    joined = collect.node("ConcatFromSequence", collected, axis=1)
    leave = draft.inside("leave")
    leave.node("Add", leave.linear(joined, 4 * _WIDTH, _WIDTH), x, writes="y")
    draft.returns("y", "float32", _ROWS)
    draft.returns("trace", "float32", [_TURNS, _WIDTH])
    return draft


def _swish() -> FunctionProto:
    """The local function: x * sigmoid(beta x), beta being an attribute (Ramachandran et al. 2017)."""
    beta = helper.make_node("Constant", [], ["beta"])
    beta.attribute.add(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="beta")
    nodes = [
        beta,
        helper.make_node("Mul", ["x", "beta"], ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["opened"]),
        helper.make_node("Mul", ["x", "opened"], ["y"]),
    ]
    return helper.make_function(_DOMAIN, "Swish", ["x"], ["y"], nodes, [opset()], attributes=["beta"])


def _call_swish(at: Draft, x: str, beta: float = 1.0) -> str:
    called = at.node("Swish", x, beta=beta)
    at.graph.node[-1].domain = _DOMAIN
    return called


def _choose(at: _Draft, flag: str, x: str, gain: str) -> str:
    """An If. Its branches have no inputs: they capture what they read."""
    then, otherwise = at.body("then"), at.body("else")
    called = _call_swish(then, then.linear(x, _WIDTH, _WIDTH), beta=2.0)
    then.returns(called, "float32", _ROWS)
    otherwise.returns(otherwise.node("Mul", x, gain), "float32", _ROWS)
    return at.node("If", flag, then_branch=then.graph, else_branch=otherwise.graph)


def _repeat(at: _Draft, x: str, outer: str, gain: str) -> str:
    """A Loop that adds `outer` and multiplies by `gain` alternately; `trace` is the mean of each iteration."""
    body = at.body("body")
    turn = body.reads("turn", "int64", [])
    go_on = body.reads("go_on", "bool", [])
    carried = body.reads("carried", "float32", _ROWS)
    changed = _turn(body, turn, (carried, outer, gain))
    body.returns(body.node("Identity", go_on), "bool", [])
    body.returns(changed, "float32", _ROWS)
    body.returns(body.node("ReduceMean", changed, axes=[0], keepdims=0), "float32", [_WIDTH])
    turns, yes = at.constant(np.array(_TURNS)), at.constant(np.array(1, np.bool_))
    result, trace = at.nodes("Loop", turns, yes, x, outputs=2, body=body.graph)
    at.node("Identity", trace, writes="trace")
    return result


def _turn(at: _Draft, turn: str, reads: tuple[str, str, str]) -> str:
    """An If in the body of the Loop: it captures `carried` from the body, `outer` and `gain` from the main graph."""
    carried, outer, gain = reads
    two = at.literal("two", np.array(2))
    odd = at.node("Cast", at.node("Mod", turn, two), to=element_type("bool"))
    then, otherwise = at.body("then"), at.body("else")
    then.returns(then.node("Add", carried, outer), "float32", _ROWS)
    otherwise.returns(otherwise.node("Mul", carried, gain), "float32", _ROWS)
    return at.node("If", odd, then_branch=then.graph, else_branch=otherwise.graph)


def _accumulate(at: _Draft, x: str, gain: str) -> str:
    """A Scan over the rows: each output row is the row plus half the previous sum times `gain`."""
    body = at.body("body")
    sum_before = body.reads("sum_before", "float32", [_WIDTH])
    row = body.reads("row", "float32", [_WIDTH])
    half = body.constant(np.array(0.5, np.float32))
    faded = body.node("Mul", body.node("Mul", sum_before, half), gain)
    sum_after = body.node("Add", faded, row)
    body.returns(sum_after, "float32", [_WIDTH])
    body.returns(body.node("Identity", sum_after), "float32", [_WIDTH])
    zeros = at.constant(np.zeros(_WIDTH, np.float32))
    return at.nodes("Scan", zeros, x, outputs=2, body=body.graph, num_scan_inputs=1)[1]
