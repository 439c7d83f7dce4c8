"""Decoders as ORT GenAI exports them: the residual sum and its norm are two outputs of one node."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

WIDTH, VOCABULARY = 64, 50
SIMPLIFIED, WITH_MEAN = "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"


def fused_decoder(
    layers: int = 4, op: str = SIMPLIFIED, dtype: type[np.floating] = np.float32, *, has_bias: bool = False
) -> ModelProto:
    """Layers of an MLP each: `norm{i}` and `sum{i}` cross a boundary after layer i."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    random, weights, nodes = np.random.default_rng(0), [], []

    def weight(name: str, *shape: int, mean: float = 0.0) -> str:
        values = random.normal(mean, 0.3, shape).astype(dtype)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def node(op: str, reads: list[str], writes: list[str], at: str, domain: str = "", **attributes: float) -> None:
        nodes.append(helper.make_node(op, reads, writes, f"/model/{at}/{op}", "", domain, None, **attributes))

    node("Gather", [weight("embedding", VOCABULARY, WIDTH), "input_ids"], ["sum"], "embed")
    first = weight("first", WIDTH, mean=1)
    node("SimplifiedLayerNormalization", ["sum", first], ["norm"], "first", axis=-1, epsilon=1e-5)
    total, norm = "sum", "norm"
    for i in range(layers):
        at = f"layers.{i}"
        node("MatMul", [norm, weight(f"up{i}", WIDTH, 4 * WIDTH)], [f"wide{i}"], f"{at}/up")
        node("Relu", [f"wide{i}"], [f"open{i}"], at)
        node("MatMul", [f"open{i}", weight(f"down{i}", 4 * WIDTH, WIDTH)], [f"narrow{i}"], f"{at}/down")
        reads = [total, f"narrow{i}", weight(f"scale{i}", WIDTH, mean=1)]
        reads += [weight(f"shift{i}", WIDTH)] if op == WITH_MEAN else []
        reads += [weight(f"bias{i}", WIDTH)] if has_bias else []
        total, norm = f"sum{i}", f"norm{i}"
        is_last = i == layers - 1
        writes = [norm] if is_last else [norm, "", "", total]
        node(op, reads, writes, at, "com.microsoft", epsilon=1e-5)
    node("MatMul", [norm, weight("head", WIDTH, VOCABULARY)], ["logits"], "head")
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("logits", kind, ["batch", "seq", VOCABULARY])],
        weights,
        value_info=[
            helper.make_tensor_value_info(f"{name}{i}", kind, ["batch", "seq", WIDTH])
            for i in range(layers - 1)
            for name in ("sum", "norm")
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
