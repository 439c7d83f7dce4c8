"""Our FLOPs against the multiply-adds that onnx-tool counts, node by node, on fifteen networks.

onnx-tool is independent of us: it infers shapes by itself. Where it counts the same thing in another unit the numbers
must agree to the last one:

* a multiply-add is 1 for it and 2 for us; a bias is 1 for each element written for both;
* additions, products, comparisons and windows of a pool are 1 for both;
* an exponential is 32 for it (a whole SIMD routine), a division 4, a root 24: those we don't compare.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_tool import Model as TheirModel
from onnx_tool.node import EXP_MACS, TANH_MACS

from graphcut import Model, load
from graphcut.costs.weighing import Costs, weigh
from graphcut.demos import write

from conftest import FIXTURES
from light import light_networks

LIGHT = {network.name: network.path for network in light_networks()}
DEMOS = {
    "llm": {"batch": 2, "seq": 8, "past": 3, "total": 11},
    "resnet": {},
    "unet": {},
    "multitask": {},
}
PRODUCTS = {"MatMul", "Gemm", "Conv"}
SAME = {"Add", "Mul", "Relu", "MaxPool", "AveragePool"}
CASES = [*DEMOS, "fixture-unet", *LIGHT]


def opened(case: str, folder: Path) -> Model:
    """A model whose sizes are all numbers: a symbol without a role in a decoder is a batch of two."""
    if case in LIGHT:
        return load(LIGHT[case])
    if case.startswith("fixture"):
        return load(FIXTURES / f"{case.removeprefix('fixture-')}.onnx")
    path = folder / f"{case}.onnx"
    write(case, path)
    symbols = load(path).symbols
    return load(path, dims={symbol: DEMOS[case].get(symbol, 2) for symbol in symbols})


def multiply_adds(model: Model) -> dict[str, float]:
    """What onnx-tool counts, by the first output of each node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every operator that it counts as nothing
        theirs = TheirModel(onnx.load(model.path), {"constant_folding": True, "verbose": False}).graph
        feeds: dict[str, Any] = {}
        for name in model.graph.reads:
            tensor = model.tensors[name]
            shape = [model.dims[dim] if isinstance(dim, str) else dim for dim in tensor.shape or ()]
            if name in theirs.input:
                feeds[name] = np.ones([1 if dim is None else dim for dim in shape], tensor.dtype)
        theirs.shape_infer(feeds)
        theirs.profile()
    return {node.output[0]: node.macs[0] for node in theirs.nodemap.values()}


def as_flops(model: Model, index: int, theirs: float, elements: Callable[[str], int]) -> float:
    """The FLOPs of a node by onnx-tool: twice the multiply-adds, once the bias."""
    proto = model.proto.graph.node[index]
    if proto.op_type not in PRODUCTS:
        return theirs
    bias = elements(proto.output[0]) if len(proto.input) > 2 and proto.input[2] else 0
    return 2 * (theirs - bias) + bias


@pytest.fixture(scope="module", params=CASES)
def weighed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Costs, Mapping[str, float]]:
    model = opened(request.param, tmp_path_factory.mktemp("cross"))
    return weigh(model), multiply_adds(model)


def test_each_product_and_each_sum_agrees_with_onnx_tool(weighed: tuple[Costs, Mapping[str, float]]) -> None:
    costs, theirs = weighed
    model = costs.model
    assert costs.uncounted == {}

    def elements(name: str) -> int:
        return costs.tensor_bytes[name][0] // 4  # all are float32

    ours, expected = {}, {}
    for i, flops in zip(model.graph.flow, costs.flops, strict=True):
        node = model.graph.nodes[i]
        if node.op in PRODUCTS | SAME:
            ours[node.writes[0]] = flops
            expected[node.writes[0]] = as_flops(model, i, theirs[node.writes[0]], elements)
    assert ours == expected
    # What agrees is nearly all there is: the rest are norms, softmax and the like, which the two count differently.
    assert sum(ours.values()) > 0.93 * sum(costs.flops)


def test_recurrent_layers_agree_with_onnx_tool_in_their_products() -> None:
    model = load(FIXTURES / "lstm.onnx")
    costs, theirs = weigh(model), multiply_adds(model)
    compared = 0
    for i, flops in zip(model.graph.flow, costs.flops, strict=True):
        proto = model.proto.graph.node[i]
        if proto.op_type != "LSTM":
            continue
        length, directions, batch, hidden = (int(dim or 0) for dim in model.tensors[proto.output[0]].shape or ())
        steps, biases = length * batch, directions * 8 * hidden
        # They count the cells of one direction: four sums, three sigmoids, two tanh, and four to join.
        cell = hidden * (4 + 3 * EXP_MACS + 2 * TANH_MACS + 4)
        products = theirs[proto.output[0]] - steps * (biases + cell)
        assert flops == 2 * products + steps * (biases + directions * hidden * 38)
        compared += 1
    assert compared == 2
