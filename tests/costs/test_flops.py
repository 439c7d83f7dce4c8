"""FLOPs of operators, control flow and functions, each derived by hand from the sizes of a small model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from graphcut import Model
from graphcut.core.records import table
from graphcut.costs.flops import attention, elements, products
from graphcut.costs.flops.counting import RULES
from graphcut.costs.weighing import Costs, weigh
from graphcut.loading.operations import RuleTable
from graphcut.loading.subgraphs import CONTROL_FLOW

from cases import each
from conftest import floats

Sizes = Sequence[int | str]
Open = Callable[..., Model]
MS = "com.microsoft"
B, S, P, T = 2, 5, 3, 8
BYTES: Mapping[int, int] = {TensorProto.UINT8: 1, TensorProto.INT8: 1, TensorProto.INT64: 8}


def one_node(
    node: NodeProto,
    inputs: Mapping[str, Sizes],
    outputs: Mapping[str, Sizes],
    weights: Mapping[str, Sizes] | None = None,
    *,
    dtypes: Mapping[str, int] | None = None,
    opset: int = 23,
) -> ModelProto:
    """A model of one node; tensors are float32 unless `dtypes` has another type, and weights are zeros."""
    of = dtypes or {}

    def declared(tensors: Mapping[str, Sizes]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, of.get(n, TensorProto.FLOAT), s) for n, s in tensors.items()]

    zeros = []
    for name, sizes in (weights or {}).items():
        numbers = [int(size) for size in sizes]
        tensor = TensorProto(name=name, data_type=of.get(name, TensorProto.FLOAT), dims=numbers)
        count = 1
        for number in numbers:
            count *= number
        tensor.raw_data = bytes(count * BYTES.get(tensor.data_type, 4))
        zeros.append(tensor)
    graph = helper.make_graph([node], "one", declared(inputs), declared(outputs), zeros)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(node.domain or MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def flops_of(
    opened: Open, node: NodeProto, inputs: Mapping[str, Sizes], outputs: Mapping[str, Sizes], **more: object
) -> str:
    costs = weigh(opened(one_node(node, inputs, outputs, **more)))  # type: ignore[arg-type]
    assert costs.uncounted == {}
    assert len(costs.formulas) == 1
    return str(costs.formulas[0])


def node(op: str, reads: str, writes: str = "y", domain: str = "", **attributes: object) -> NodeProto:
    """`reads` and `writes` are names with blanks between; `-` is an input that is left out."""
    names = ["" if name == "-" else name for name in reads.split()]
    return helper.make_node(op, names, writes.split(), domain=domain, **attributes)  # type: ignore[arg-type]


# A row: the node, what it reads, what it writes, its weights, and what it must cost.
ELEMENTWISE = [
    (node("Add", "a b"), {"a": (2, 3), "b": (3,)}, {"y": (2, 3)}, {}, 2 * 3),
    (node("Relu", "a"), {"a": ("n", 3)}, {"y": ("n", 3)}, {}, "3*n"),
    (node("Sum", "a b c"), {"a": (4,), "b": (4,), "c": (4,)}, {"y": (4,)}, {}, 2 * 4),
    (node("Mean", "a b c"), {"a": (4,), "b": (4,), "c": (4,)}, {"y": (4,)}, {}, 3 * 4),
    (node("Exp", "a"), {"a": (2, 3)}, {"y": (2, 3)}, {}, 4 * 6),
    (node("Tanh", "a"), {"a": (2, 3)}, {"y": (2, 3)}, {}, 8 * 6),
    (node("Erf", "a"), {"a": (2, 3)}, {"y": (2, 3)}, {}, 8 * 6),
    (node("Gelu", "a"), {"a": (2, 3)}, {"y": (2, 3)}, {}, 8 * 6),
    (node("Sigmoid", "a"), {"a": (2, 3)}, {"y": (2, 3)}, {}, 6 * 6),
    (node("Softmax", "a"), {"a": ("n", "n")}, {"y": ("n", "n")}, {}, "5*n*n"),
    (node("LayerNormalization", "a w"), {"a": (2, 3)}, {"y": (2, 3)}, {"w": (3,)}, 8 * 6),
    (node("RMSNormalization", "a w"), {"a": (2, 3)}, {"y": (2, 3)}, {"w": (3,)}, 8 * 6),
    (node("BatchNormalization", "a w w w w"), {"a": (2, 3, 7)}, {"y": (2, 3, 7)}, {"w": (3,)}, 2 * 42),
    (node("LRN", "a", size=5), {"a": (1, 6, 2, 2)}, {"y": (1, 6, 2, 2)}, {}, 24 * (2 * 5 + 7)),
    (node("ReduceSum", "a", keepdims=0), {"a": (4, 5)}, {"y": ()}, {}, 20),
    (node("ReduceL2", "a", keepdims=0), {"a": (4, 5)}, {"y": ()}, {}, 2 * 20),
    (node("ArgMax", "a", axis=1, keepdims=0), {"a": (4, 5)}, {"y": (4,)}, {}, 20),
    (node("GlobalAveragePool", "a"), {"a": (1, 3, 4, 4)}, {"y": (1, 3, 1, 1)}, {}, 48),
    (node("RotaryEmbedding", "a c c"), {"a": (1, 2, 5, 4), "c": (1, 5, 2)}, {"y": (1, 2, 5, 4)}, {}, 3 * 40),
    (node("Transpose", "a"), {"a": (4, 5)}, {"y": (5, 4)}, {}, 0),
    (node("Concat", "a a", axis=0), {"a": (4, 5)}, {"y": (8, 5)}, {}, 0),
]
MS_ELEMENTWISE = [
    (node("SkipLayerNormalization", "a b w", "y", MS), {"a": (2, 3), "b": (2, 3)}, {"w": (3,)}, 9 * 6),
    (node("SkipLayerNormalization", "a b w w w", "y", MS), {"a": (2, 3), "b": (2, 3)}, {"w": (3,)}, 10 * 6),
    (node("SkipSimplifiedLayerNormalization", "a b w w", "y", MS), {"a": (2, 3), "b": (2, 3)}, {"w": (3,)}, 10 * 6),
    (node("FastGelu", "a", "y", MS), {"a": (2, 3)}, {}, 8 * 6),
    (node("FastGelu", "a w", "y", MS), {"a": (2, 3)}, {"w": (3,)}, 9 * 6),
    (node("BiasGelu", "a w", "y", MS), {"a": (2, 3)}, {"w": (3,)}, 9 * 6),
    (node("QuickGelu", "a", "y", MS), {"a": (2, 3)}, {}, 8 * 6),
    (node("QLinearAdd", "a s - b s - s -", "y", MS), {"a": (2, 3), "b": (2, 3)}, {"s": ()}, 7 * 6),
    (node("QLinearSoftmax", "a s - s -", "y", MS, axis=1, opset=13), {"a": (2, 3)}, {"s": ()}, 9 * 6),
]
PRODUCTS = [
    (node("MatMul", "a w"), {"a": ("b", "s", 7)}, {"y": ("b", "s", 11)}, {"w": (7, 11)}, "154*b*s"),
    (node("MatMul", "a b"), {"a": (2, 3, 5, 7), "b": (2, 3, 7, 4)}, {"y": (2, 3, 5, 4)}, {}, 2 * 2 * 3 * 5 * 7 * 4),
    (node("MatMul", "a w"), {"a": (3, 7)}, {"y": (3,)}, {"w": (7,)}, 2 * 3 * 7),
    (node("Gemm", "a w"), {"a": (3, 7)}, {"y": (3, 4)}, {"w": (7, 4)}, 2 * 3 * 7 * 4),
    (node("Gemm", "a w c", transA=1, transB=1), {"a": (7, 3)}, {"y": (3, 4)}, {"w": (4, 7), "c": (4,)}, 168 + 12),
    (
        node("Conv", "a w b", kernel_shape=[3, 3], group=2),
        {"a": (1, 4, 10, 10)},
        {"y": (1, 6, 8, 8)},
        {"w": (6, 2, 3, 3), "b": (6,)},
        6 * 64 * (2 * 2 * 9 + 1),
    ),
    (node("Conv", "a w"), {"a": ("n", 4, 10)}, {"y": ("n", 6, 8)}, {"w": (6, 4, 3)}, f"{2 * 6 * 8 * 4 * 3}*n"),
    (
        node("ConvTranspose", "a w", strides=[2, 2]),
        {"a": (1, 4, 5, 5)},
        {"y": (1, 6, 10, 10)},
        {"w": (4, 6, 2, 2)},
        2 * (4 * 25) * (6 * 4),
    ),
    (node("MaxPool", "a", kernel_shape=[3, 2]), {"a": (1, 4, 6, 6)}, {"y": (1, 4, 4, 5)}, {}, 4 * 20 * 6),
    (node("Einsum", "a b", equation="bij,bjk->bik"), {"a": (2, 3, 5), "b": (2, 5, 7)}, {"y": (2, 3, 7)}, {}, 2 * 210),
    (node("Einsum", "a b", equation="i,j->ij"), {"a": (3,), "b": (5,)}, {"y": (3, 5)}, {}, 15),
    (node("Einsum", "a b", equation="ij,jk"), {"a": (3, 5), "b": (5, 7)}, {"y": (3, 7)}, {}, 2 * 105),
    (node("Einsum", "a", equation="ij->ji"), {"a": (3, 5)}, {"y": (5, 3)}, {}, 0),
    (node("Einsum", "a", equation="ij->i"), {"a": (3, 5)}, {"y": (3,)}, {}, 15),
    (
        node("Einsum", "a b", equation="...ij,...jk->...ik"),
        {"a": (4, 1, 3, 5), "b": (6, 5, 7)},
        {"y": (4, 6, 3, 7)},
        {},
        2 * 24 * 105,
    ),
]
MS_PRODUCTS = [
    (
        node("MatMulNBits", "a q s", "y", MS, K=64, N=10, bits=4, block_size=32),
        {"a": ("b", "s", 64)},
        {"y": ("b", "s", 10)},
        {"q": (10, 2, 16), "s": (20,)},
        "1280*b*s",
    ),
    (
        node("MatMulNBits", "a q s - - c", "y", MS, K=64, N=10, bits=4, block_size=32),
        {"a": (3, 64)},
        {"y": (3, 10)},
        {"q": (10, 2, 16), "s": (20,), "c": (10,)},
        3 * (2 * 64 * 10 + 10),
    ),
    (
        node("MatMulBnb4", "a q s", "y", MS, K=64, N=10, block_size=32, quant_type=1),
        {"a": (3, 64)},
        {"y": (3, 10)},
        {"q": (320,), "s": (20,)},
        3 * 2 * 64 * 10,
    ),
    (node("FusedMatMul", "a w", "y", MS, transA=1), {"a": (7, 3)}, {"y": (3, 4)}, {"w": (7, 4)}, 2 * 84),
    (
        node("FusedMatMul", "a b", "y", MS, transBatchA=1, transBatchB=1),
        {"a": (3, 2, 7), "b": (7, 2, 4)},
        {"y": (2, 3, 4)},
        {},
        2 * 2 * 84,
    ),
    (
        node("FusedMatMul", "a b", "y", MS, transA=1, transBatchA=1),
        {"a": (7, 2, 3), "b": (2, 7, 4)},
        {"y": (2, 3, 4)},
        {},
        2 * 2 * 84,
    ),
    (
        node("FusedGemm", "a w c", "y", MS, activation="Relu"),
        {"a": (3, 7)},
        {"y": (3, 4)},
        {"w": (7, 4), "c": (4,)},
        2 * 84 + 12 + 12,
    ),
    (
        node("FusedConv", "a w b", "y", MS, activation="Relu"),
        {"a": (1, 4, 10, 10)},
        {"y": (1, 6, 8, 8)},
        {"w": (6, 4, 3, 3), "b": (6,)},
        6 * 64 * (2 * 36 + 1 + 1),
    ),
    (
        node("NhwcConv", "a w", "y", MS),
        {"a": (1, 10, 10, 4)},
        {"y": (1, 8, 8, 6)},
        {"w": (6, 3, 3, 4)},
        6 * 64 * 2 * 36,
    ),
    (
        node("DynamicQuantizeMatMul", "a w s", "y", MS),
        {"a": (3, 7)},
        {"y": (3, 4)},
        {"w": (7, 4), "s": ()},
        4 * 21 + 2 * 84 + 2 * 12,
    ),
]


ML = "ai.onnx.ml"
TAPS = {"a": (1, 4, 6, 6), "o": (1, 18, 4, 4)}
STATE = {"q": (1, 7, 12), "k": (1, 7, 6), "v": (1, 7, 10), "s": (1, 2, 3, 5)}
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
ENDS = {"y": (1, 7, 20), "t": (1, 2, 3, 5)}
COUNTED = [
    # For each of 8 x 16 outputs a window of 2 x 9; each of 4 x 16 x 9 points is 4 products, added up.
    (node("DeformConv", "a w o", group=2), TAPS, {"y": (1, 8, 4, 4)}, {"w": (8, 2, 3, 3)}, 128 * 18 * 2 + 576 * 8),
    # A transform of 16 numbers: 4 levels of 8 butterflies, each a complex product and two complex sums.
    (node("DFT", "a"), {"a": (2, 16, 1)}, {"y": (2, 16, 2)}, {}, 2 * 4 * 8 * (6 + 4)),
    (node("STFT", "a f w"), {"a": (1, 64, 1)}, {"y": (1, 7, 9, 2)}, {"f": (), "w": (16,)}, 7 * 4 * 8 * (6 + 4)),
    # Without a window a frame is as long as half of it, and one more, are frequencies; or all of it are.
    (node("STFT", "a f"), {"a": (1, 64, 1)}, {"y": (1, 7, 9, 2)}, {"f": ()}, 7 * 4 * 8 * (6 + 4)),
    (node("STFT", "a f", onesided=0), {"a": (1, 64, 1)}, {"y": (1, 7, 16, 2)}, {"f": ()}, 7 * 4 * 8 * (6 + 4)),
    # 7 tokens: 2 for each number of 2 states of 3 x 5; 4 queries read one each; 1 more to forget.
    (
        node("LinearAttention", "q k v s", "y t", MS, update_rule="linear", **HEADS),
        STATE,
        ENDS,
        {},
        7 * (30 * 2 + 60 * 2),
    ),
    (
        node("LinearAttention", "q k v s", "y t", MS, update_rule="gated", **HEADS),
        STATE,
        ENDS,
        {},
        7 * (30 * 3 + 60 * 2),
    ),
    # Of each of 3 rows: a norm of 64 numbers that are added to others, two products, biases, gelu and a product.
    (
        node("MatMulNBitsMlp", "a k n g s b u s b", "y", MS, K=64, N=10, bits=4),
        {"a": (3, 64), "k": (3, 64)},
        {"y": (3, 10)},
        {"n": (64,), "g": (10, 2, 16), "u": (10, 2, 16), "s": (20,), "b": (10,)},
        3 * (64 * (8 + 1) + 2 * (64 * 10 * 2) + 2 * 10 + 10 * (8 + 1)),
    ),
    (
        node("MatMulNBitsQkv", "a - - q s b k s c v s c", "y z t", MS, K=64, Nq=8, Nkv=4, bits=4),
        {"a": (3, 64)},
        {"y": (3, 8), "z": (3, 4), "t": (3, 4)},
        {"q": (8, 2, 16), "k": (4, 2, 16), "v": (4, 2, 16), "s": (20,), "b": (8,), "c": (4,)},
        3 * (64 * (8 + 4 + 4) * 2 + 8 + 4 + 4),
    ),
    (
        node("CausalConvWithState", "a w b", "y", MS),
        {"a": (2, 6, 10)},
        {"y": (2, 6, 10)},
        {"w": (6, 1, 4), "b": (6,)},
        120 * 9,
    ),
    (
        node("LinearRegressor", "a", "y", ML, coefficients=[1.0] * 8, targets=2),
        {"a": (3, 4)},
        {"y": (3, 2)},
        {},
        3 * 8 * 2,
    ),
]


@each(("proto", "reads", "writes", "weights", "expected"), [*ELEMENTWISE, *PRODUCTS, *MS_PRODUCTS, *COUNTED])
def test_the_cost_of_an_operator_follows_from_its_sizes(
    opened: Open,
    proto: NodeProto,
    reads: Mapping[str, Sizes],
    writes: Mapping[str, Sizes],
    weights: Mapping[str, Sizes],
    expected: int | str,
) -> None:
    assert flops_of(opened, proto, reads, writes, weights=weights) == str(expected)


@each(("proto", "reads", "weights", "expected"), MS_ELEMENTWISE)
def test_the_cost_of_an_elementwise_contrib_operator_follows_from_its_output(
    opened: Open, proto: NodeProto, reads: Mapping[str, Sizes], weights: Mapping[str, Sizes], expected: int
) -> None:
    assert flops_of(opened, proto, reads, {"y": (2, 3)}, weights=weights) == str(expected)


@pytest.mark.parametrize(("mode", "each"), [("nearest", 0), ("linear", 8), ("cubic", 32)])
def test_resizing_costs_what_its_interpolation_does(opened: Open, mode: str, each: int) -> None:
    proto = node("Resize", "a - s", mode=mode)
    found = flops_of(opened, proto, {"a": (1, 1, 2, 2)}, {"y": (1, 1, 4, 4)}, weights={"s": (4,)})
    assert found == str(each * 16)


def test_a_scatter_that_adds_costs_its_updates(opened: Open) -> None:
    sizes = {"a": (9, 4), "u": (3, 4)}
    more = {"weights": {"i": (3, 1)}, "dtypes": {"i": TensorProto.INT64}}
    assert flops_of(opened, node("ScatterND", "a i u"), sizes, {"y": (9, 4)}, **more) == "0"
    assert flops_of(opened, node("ScatterND", "a i u", reduction="add"), sizes, {"y": (9, 4)}, **more) == "12"


def test_quantized_products_count_their_requantization(opened: Open) -> None:
    eight = dict.fromkeys(("a", "w", "y", "z"), TensorProto.UINT8)
    matmul = node("QLinearMatMul", "a s z w s z s z")
    found = flops_of(
        opened, matmul, {"a": (3, 7)}, {"y": (3, 4)}, weights={"w": (7, 4), "s": (), "z": ()}, dtypes=eight
    )
    assert found == str(2 * 84 + 2 * 12)
    conv = node("QLinearConv", "a s z w s z s z c")
    weights = {"w": (6, 4, 3, 3), "s": (), "z": (), "c": (6,)}
    sizes = {**eight, "c": TensorProto.INT32}
    found = flops_of(opened, conv, {"a": (1, 4, 10, 10)}, {"y": (1, 6, 8, 8)}, weights=weights, dtypes=sizes)
    assert found == str(6 * 64 * (2 * 36 + 2 + 1))


@each(("op", "gates", "cell"), [("LSTM", 4, 3 * 6 + 2 * 8 + 4), ("GRU", 3, 2 * 6 + 8 + 5), ("RNN", 1, 8)])
@each("directions", [1, 2])
def test_a_recurrent_layer_costs_its_gates_for_each_step(
    opened: Open, op: str, gates: int, cell: int, directions: int
) -> None:
    steps, batch, width, hidden = 6, 2, 5, 3
    direction = {1: "forward", 2: "bidirectional"}[directions]
    proto = node(op, "x w r b", "y", hidden_size=hidden, direction=direction)
    weights = {
        "w": (directions, gates * hidden, width),
        "r": (directions, gates * hidden, hidden),
        "b": (directions, 2 * gates * hidden),
    }
    products = 2 * gates * hidden * (width + hidden)
    expected = steps * batch * directions * (products + 2 * gates * hidden + cell * hidden)
    out = {"y": (steps, directions, batch, hidden)}
    assert flops_of(opened, proto, {"x": (steps, batch, width)}, out, weights=weights, opset=17) == str(expected)


def test_standard_attention_counts_all_scores(opened: Open) -> None:
    heads, kv_heads, width = 4, 2, 6
    split = {
        "q": (B, heads, S, width),
        "k": (B, kv_heads, S, width),
        "v": (B, kv_heads, S, width),
        "pk": (B, kv_heads, P, width),
        "pv": (B, kv_heads, P, width),
    }
    expected = B * heads * S * T * (4 * width + 5)
    writes = {"y": (B, heads, S, width), "k2": (B, kv_heads, T, width), "v2": (B, kv_heads, T, width)}
    assert flops_of(opened, node("Attention", "q k v - pk pv", "y k2 v2"), split, writes) == str(expected)
    flat = {"q": (B, S, heads * width), "k": (B, S, kv_heads * width), "v": (B, S, kv_heads * width)}
    proto = node("Attention", "q k v", q_num_heads=heads, kv_num_heads=kv_heads)
    expected = B * heads * S * S * (4 * width + 5)
    assert flops_of(opened, proto, flat, {"y": (B, S, heads * width)}) == str(expected)


GQA = {"qk": ("b", "s", 24), "kv": ("b", "s", 12), "pk": ("b", 2, "p", 6), "pv": ("b", 2, "p", 6)}
GQA_WRITES = {"y": ("b", "s", 24), "k2": ("b", 2, "t", 6), "v2": ("b", 2, "t", 6)}
COUNTERS = {"weights": {"l": (1,), "t": (1,)}, "dtypes": {"l": TensorProto.INT32, "t": TensorProto.INT32}}


def test_grouped_attention_counts_all_keys_of_the_present_cache(opened: Open) -> None:
    proto = node("GroupQueryAttention", "qk kv kv pk pv l t", "y k2 v2", MS, num_heads=4, kv_num_heads=2)
    assert flops_of(opened, proto, GQA, GQA_WRITES, **COUNTERS) == f"{4 * (4 * 6 + 5)}*b*s*t"


def test_grouped_attention_without_a_present_adds_past_and_new(opened: Open) -> None:
    proto = node("GroupQueryAttention", "qk kv kv pk pv l t", "y", MS, num_heads=4, kv_num_heads=2)
    each = 4 * (4 * 6 + 5)
    found = flops_of(opened, proto, GQA, {"y": ("b", "s", 24)}, **COUNTERS)
    assert found == f"{each}*b*p*s + {each}*b*s*s"


def test_grouped_attention_takes_queries_keys_and_values_side_by_side(opened: Open) -> None:
    proto = node(
        "GroupQueryAttention", "qkv - - pk pv l t c c", "y k2 v2", MS, num_heads=4, kv_num_heads=2, do_rotary=1
    )
    packed = {"qkv": ("b", "s", 4 * 6 + 2 * 2 * 6), "pk": GQA["pk"], "pv": GQA["pv"], "c": (32, 3)}
    # 3 for each element of queries and keys to turn them.
    expected = f"{4 * (4 * 6 + 5)}*b*s*t + {3 * (4 + 2) * 6}*b*s"
    assert flops_of(opened, proto, packed, GQA_WRITES, **COUNTERS) == expected


def test_multi_head_attention_in_its_three_layouts(opened: Open) -> None:
    heads, width, source = 4, 6, 9
    writes = {"y": (B, S, heads * width)}

    def cost(keys: int) -> str:
        return str(B * heads * S * keys * (4 * width + 5))

    flat = {"q": (B, S, heads * width), "k": (B, source, heads * width), "v": (B, source, heads * width)}
    assert flops_of(opened, node("MultiHeadAttention", "q k v", "y", MS, num_heads=heads), flat, writes) == cost(source)
    packed = {"q": (B, S, heads, 3, width)}
    assert flops_of(opened, node("MultiHeadAttention", "q", "y", MS, num_heads=heads), packed, writes) == cost(S)
    crossed = {"q": flat["q"], "k": (B, heads, source, width), "v": (B, heads, source, width)}
    assert flops_of(opened, node("MultiHeadAttention", "q k v", "y", MS, num_heads=heads), crossed, writes) == cost(
        source
    )
    cached = {**flat, "k": flat["q"], "v": flat["q"], "p": (B, heads, P, width), "w": (B, heads, P, width)}
    proto = node("MultiHeadAttention", "q k v - - - p w", "y k2 v2", MS, num_heads=heads)
    grown = {**writes, "k2": (B, heads, P + S, width), "v2": (B, heads, P + S, width)}
    assert flops_of(opened, proto, cached, grown) == cost(P + S)


def test_contrib_attention_projects_first(opened: Open) -> None:
    proto = node("Attention", "x w c", "y", MS, num_heads=4)
    found = flops_of(opened, proto, {"x": (B, S, 10)}, {"y": (B, S, 24)}, weights={"w": (10, 72), "c": (72,)})
    assert found == str(B * S * (2 * 10 * 72 + 72) + B * 4 * S * S * (4 * 6 + 5))


def test_experts_cost_the_few_that_each_token_passes(opened: Open) -> None:
    experts, hidden, inner, k = 8, 16, 24, 2
    proto = node("MoE", "x r f - g", "y", MS, k=k)
    weights = {"f": (experts, inner, hidden), "g": (experts, hidden, inner)}
    sizes = {"x": ("s", hidden), "r": ("s", experts)}
    found = flops_of(opened, proto, sizes, {"y": ("s", hidden)}, weights=weights)
    assert found == f"{k * 2 * 2 * hidden * inner + 5 * experts}*s"


def test_packed_experts_cost_what_unpacked_ones_do(opened: Open) -> None:
    experts, hidden, inner, k = 8, 16, 24, 2
    proto = node("QMoE", "x r f s - g s", "y", MS, k=k, expert_weight_bits=4)
    weights = {"f": (experts, inner, hidden // 2), "g": (experts, hidden, inner // 2), "s": (experts, inner)}
    dtypes = {"f": TensorProto.UINT8, "g": TensorProto.UINT8}
    sizes = {"x": ("s", hidden), "r": ("s", experts)}
    found = flops_of(opened, proto, sizes, {"y": ("s", hidden)}, weights=weights, dtypes=dtypes)
    assert found == f"{k * 2 * 2 * hidden * inner + 5 * experts}*s"


def test_an_unknown_operator_counts_as_0_and_is_listed(opened: Open) -> None:
    proto = one_node(node("Mystery", "a", "y", "com.acme"), {"a": (4,)}, {"y": (4,)})
    proto.graph.node.append(node("Mystery", "y", "z", "com.acme"))
    proto.graph.output.append(floats("z", 4))
    costs = weigh(opened(proto))
    assert (costs.flops, costs.uncounted) == ((0, 0), {"com.acme.Mystery": 2})


def test_every_standard_operator_has_a_rule() -> None:
    # SVM and tree ensembles have their structure in attributes; training operators are not in exported models.
    without = {"SVMClassifier", "SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
    schemas = [schema for schema in onnx.defs.get_all_schemas() if "preview" not in schema.domain]
    names = {f"{s.domain}.{s.name}" if s.domain else s.name for s in schemas if s.name not in without}
    assert names - {*RULES, *CONTROL_FLOW} == set()


def test_no_operator_is_in_two_tables() -> None:
    tables = [table(f"costs/flops/{module}.toml", RuleTable) for module in ("attention", "elements", "products")]
    listed = [operator for rows in tables for own in rows.values() for row in own for operator in row.operators.split()]
    assert len({*listed}) == len(listed)
    assert sum(len(module.RULES) for module in (attention, elements, products)) == len(RULES)
    assert set(CONTROL_FLOW) & set(RULES) == set()


# Control flow and functions.


def body(
    name: str, nodes: Sequence[NodeProto], reads: Sequence[onnx.ValueInfoProto], writes: Sequence[str]
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(reads), [helper.make_empty_tensor_value_info(n) for n in writes])


def control(
    nodes: Sequence[NodeProto], inputs: Sequence[onnx.ValueInfoProto], weights: Sequence[TensorProto] = ()
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes), "control", list(inputs), [helper.make_empty_tensor_value_info(nodes[-1].output[0])], list(weights)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def flag(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


def count(name: str, *values: int) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)] if len(values) != 1 else [], values)


def branching() -> ModelProto:
    """One branch is a product that costs 200·n, the other one that costs 20·n·n."""
    light = [helper.make_node("MatMul", ["x", "w"], ["t"])]
    heavy = [helper.make_node("MatMul", ["x", "x2"], ["e0"])]
    then, otherwise = body("then", light, [], ["t"]), body("else", heavy, [], ["e0"])
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [10, 10], [0.0] * 100)]
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    return control([choice], [flag("c"), floats("x", "n", 10), floats("x2", 10, "n")], weights)


def costs_of(model: Model, **dims: int) -> tuple[str, int]:
    costs = weigh(model, dims)
    assert len(costs.formulas) == 1
    return str(costs.formulas[0]), costs.flops[0]


def test_if_costs_the_more_expensive_branch_for_the_bound_dims(opened: Open) -> None:
    model = opened(branching())
    assert costs_of(model, n=3) == ("200*n", 600)
    assert costs_of(model, n=30) == ("20*n*n", 20 * 900)


def loop(trips: str, condition: str, *, kept: NodeProto | None = None) -> ModelProto:
    """A loop that multiplies what it carries, [4,4], by an outer weight: 2·64 a trip, and a Relu: 16."""
    steps = [helper.make_node("MatMul", ["v", "w"], ["m"]), helper.make_node("Relu", ["m"], ["v2"])]
    steps.append(kept or helper.make_node("Identity", ["go"], ["on"]))
    reads = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        flag("go"),
        helper.make_empty_tensor_value_info("v"),
    ]
    inner = body("body", steps, reads, ["on", "v2"])
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16),
        count("seven", 7),
        helper.make_tensor("true", TensorProto.BOOL, [], [True]),
    ]
    inputs = [floats("x", 4, 4), helper.make_tensor_value_info("many", TensorProto.INT64, []), flag("maybe")]
    return control([helper.make_node("Loop", [trips, condition, "x"], ["y"], body=inner)], inputs, weights)


def test_a_loop_costs_its_body_for_each_trip(opened: Open) -> None:
    assert costs_of(opened(loop("seven", "true"))) == (str(7 * (2 * 64 + 16)), 7 * 144)
    assert costs_of(opened(loop("seven", ""))) == (str(7 * 144), 7 * 144)


def test_a_loop_of_unknown_trips_costs_one_at_least(opened: Open) -> None:
    assert costs_of(opened(loop("many", "true"))) == ("≥ 144", 144)


def test_a_loop_that_may_end_early_is_not_exact(opened: Open) -> None:
    assert costs_of(opened(loop("seven", "maybe")))[0] == f"≥ {7 * 144}"
    ends = helper.make_node("ReduceMax", ["m"], ["on"], keepdims=0)
    assert costs_of(opened(loop("seven", "true", kept=ends)))[0].startswith("≥")


def test_a_scan_costs_its_body_for_each_slice(opened: Open) -> None:
    steps = [helper.make_node("Add", ["s", "x"], ["s2"]), helper.make_node("Exp", ["s2"], ["o"])]
    reads = [helper.make_empty_tensor_value_info("s"), helper.make_empty_tensor_value_info("x")]
    inner = body("body", steps, reads, ["s2", "o"])
    scan = helper.make_node("Scan", ["s0", "xs"], ["end", "y"], body=inner, num_scan_inputs=1, scan_input_axes=[1])
    proto = control([scan], [floats("s0", 3), floats("xs", 3, "t")])
    assert costs_of(opened(proto)) == (f"{3 + 4 * 3}*t", 15)
    assert costs_of(opened(proto), t=10) == ("15*t", 150)


def test_a_scan_with_lengths_has_no_rule(opened: Open) -> None:
    """As in opset 8."""
    ends = [helper.make_empty_tensor_value_info(name) for name in ("x", "o")]
    inner = helper.make_graph([helper.make_node("Exp", ["x"], ["o"])], "body", ends[:1], ends[1:])
    scan = helper.make_node("Scan", ["", "xs"], ["y"], body=inner, num_scan_inputs=1)
    proto = control([scan], [floats("xs", 1, 3, "t")])
    proto.opset_import[0].version = 8
    assert weigh(opened(proto)).uncounted == {"Scan": 1}


def test_a_sequence_costs_at_least_the_body_of_one_element(opened: Open) -> None:
    inner = body("body", [helper.make_node("Exp", ["x"], ["o"])], [floats("x", 3)], ["o"])
    rows = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [3]))
    proto = control([helper.make_node("SequenceMap", ["xs"], ["y"], body=inner)], [helper.make_value_info("xs", rows)])
    assert costs_of(opened(proto)) == ("≥ 12", 12)


def function(opset: int = 17) -> onnx.FunctionProto:
    """x·w, pooled by a window that the caller gives."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("MaxPool", ["m"], ["y"], strides=[1])]
    reference = onnx.AttributeProto(name="kernel_shape", type=onnx.AttributeProto.INTS, ref_attr_name="window")
    nodes[1].attribute.append(reference)
    return helper.make_function(
        "com.acme", "Mix", ["x", "w"], ["y"], nodes, [helper.make_opsetid("", opset)], ["window"]
    )


def test_a_function_costs_what_its_nodes_cost_for_this_call(opened: Open) -> None:
    calls = [
        helper.make_node("Mix", ["x", "w"], ["a"], domain="com.acme", window=[3]),
        helper.make_node("Mix", ["a", "w2"], ["y"], domain="com.acme", window=[2]),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [6, 8], [0.0] * 48),
        helper.make_tensor("w2", TensorProto.FLOAT, [6, 5], [0.0] * 30),
    ]
    proto = control(calls, [floats("x", "n", 2, 6)], weights)
    proto.functions.append(function())
    costs = weigh(opened(proto))
    # MatMul to [n,2,8], windows of 3 to [n,2,6]; MatMul to [n,2,5], windows of 2 to [n,2,4].
    assert [str(formula) for formula in costs.formulas] == [
        f"{2 * 2 * 6 * 8 + 2 * 6 * 3}*n",
        f"{2 * 2 * 6 * 5 + 2 * 4 * 2}*n",
    ]


def test_attributes_of_a_call_reach_branches_and_others_are_those_of_the_operator(opened: Open) -> None:
    """Windows of 3 to [1,1,6]: without strides, which this call does not give."""
    pools = [helper.make_node("MaxPool", ["x"], [name]) for name in "te"]
    for pool in pools:
        for name, given in (("kernel_shape", "window"), ("strides", "steps")):
            pool.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS, ref_attr_name=given))
    then, other = (body(name, [pool], [], pool.output) for name, pool in zip("te", pools, strict=True))
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    opsets = [helper.make_opsetid("", 17)]
    proto = control(
        [helper.make_node("Pool", ["c", "x"], ["y"], domain="com.acme", window=[3])], [flag("c"), floats("x", 1, 1, 8)]
    )
    proto.functions.append(
        helper.make_function("com.acme", "Pool", ["c", "x"], ["y"], nodes, opsets, ["window", "steps"])
    )
    assert costs_of(opened(proto)) == (str(3 * 6), 18)


def test_operators_without_a_rule_in_subgraphs_are_listed(opened: Open) -> None:
    strange = [helper.make_node("Mystery", ["x"], ["t"], domain="com.acme")]
    plain = [helper.make_node("Relu", ["x"], ["e"])]
    choice = helper.make_node(
        "If", ["c"], ["y"], then_branch=body("then", strange, [], ["t"]), else_branch=body("else", plain, [], ["e"])
    )
    costs = weigh(opened(control([choice], [flag("c"), floats("x", 5)])))
    assert (costs.flops, dict(costs.uncounted)) == ((5,), {"com.acme.Mystery": 1})


def test_unknown_sizes_make_a_lower_bound(opened: Open) -> None:
    nodes = [node("Mystery", "x", "m", "com.acme"), node("Relu", "m", "y")]
    proto = control(nodes, [floats("x", 5)])
    costs: Costs = weigh(opened(proto))
    assert [str(formula) for formula in costs.formulas] == ["0", "≥ 1"]
