"""One node for each rule, with inputs small enough that every way to divide it can be tried.

Axes that can be halved have the even sizes 2, 4, 6, 8; all others are 1, 3, 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conftest import ORT_VERSION

Array = np.ndarray[Any, Any]
Data = Sequence[int] | Array | np.generic | None


@dataclass(frozen=True)
class Case:
    """A node."""

    op: str
    inputs: tuple[Data, ...]  #: shapes of random inputs, or values; None is an omitted input.
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()  #: the inputs that are initializers.
    outputs: int = 1
    domain: str = ""
    opset: int = 21
    unused: tuple[
        int, ...
    ] = ()  #: axes of the first output along which the rule table has no factor, though one could.
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.op}{self.name and '-'}{self.name}"


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def small(*shape: int, dtype: str = "uint8", most: int = 255) -> Array:
    return np.random.default_rng(3).integers(0, most, shape).astype(dtype)


def microsoft(
    op: str,
    inputs: tuple[Data, ...],
    attributes: dict[str, Any] | None = None,
    *,
    constants: tuple[int, ...] = (),
    outputs: int = 1,
    name: str = "",
) -> Case:
    return Case(op, inputs, attributes or {}, constants, outputs, domain="com.microsoft", name=name)


_UNARY = """
Abs Asinh Atanh Cosh Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Neg Reciprocal Relu Round Sigmoid Sinh
Softsign Sqrt Tan Tanh
"""
_PACKED = "Acos Asin Atan Celu Cos Elu Log Mish Selu Sin Softplus"  #: four elements at once.
_BINARY = "Add Div Max Mean Min Mul Pow Sub Sum PRelu Greater GreaterOrEqual Less LessOrEqual"
_BITWISE = "BitwiseAnd BitwiseOr BitwiseXor"
_REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
_WIDE = np.array([[3, -4, 0], [-7, 9, 5], [0, np.nan, -np.inf], [6, np.inf, np.nan]], np.float32)
_BOOL = np.array([[True, False, True], [False, True, True]])

ELEMENTS = [
    *(Case(op, ((4, 3),)) for op in _UNARY.split()),
    *(Case(op, ((8, 3),)) for op in _PACKED.split()),
    *(Case(op, (_WIDE,)) for op in ["Acosh", "Ceil", "Floor", "IsInf", "IsNaN", "Sign", "ThresholdedRelu"]),
    Case("Equal", (small(4, 3, most=3), small(3, 1, most=3)[None, :, 0])),
    *(Case(op, ((4, 3, 2), (3, 1))) for op in _BINARY.split()),
    *(Case(op, (small(4, 3), small(4, 1))) for op in _BITWISE.split()),
    *(Case(op, (_BOOL, _BOOL[:1])) for op in ("And", "Or", "Xor")),
    Case("Not", (_BOOL,)),
    Case("BitwiseNot", (small(4, 3),)),
    Case("BitShift", (small(4, 3), small(4, 1, most=3)), {"direction": "LEFT"}),
    Case("Mod", (small(4, 3), small(4, 1) // 2 + 1)),
    Case("Cast", (_WIDE,), {"to": 9}),
    Case("CastLike", ((4, 3), np.array([1.0, 2.0]))),
    Case("Clip", ((4, 3), np.float32(-1), np.float32(1)), constants=(1, 2)),
    Case("Dropout", ((4, 3),)),
    Case("Where", (_BOOL[:, :1], (2, 3), (3,))),
    Case("Swish", ((4, 3),), opset=24),
    microsoft("BiasGelu", ((3, 4), (4,))),
    microsoft("FastGelu", ((3, 4), (4,))),
    *(microsoft(op, ((4, 3),)) for op in ("Gelu", "QuickGelu")),
    *(Case(op, ((4, 2, 6), ints(1)), constants=(1,), name="kept") for op in _REDUCTIONS.split()),
    *(Case(op, ((4, 2, 6), ints(-2)), {"keepdims": 0}, constants=(1,)) for op in _REDUCTIONS.split()),
    Case("ReduceSum", ((4, 6),), name="all axes"),
    *(Case(op, ((4, 2, 6),), {"axis": 1, "keepdims": 0}) for op in ("ArgMax", "ArgMin")),
    *(Case(op, ((4, 6),), {"axis": 0}) for op in ("Softmax", "LogSoftmax")),
    Case("Softmax", ((4, 2, 6),), {"axis": 1}, opset=11, name="before version 13"),
    Case("TopK", ((4, 6), ints(3)), {"axis": 1}, constants=(1,), outputs=2),
    Case("CumSum", ((4, 6), ints(1)), constants=(1,)),
    Case("LayerNormalization", ((2, 4, 6), (6,), (6,)), {"axis": -1}, outputs=3),
    Case("RMSNormalization", ((2, 4, 6), (6,)), opset=23),
    Case("SimplifiedLayerNormalization", ((2, 4, 6), (6,)), {"axis": -1}),
    microsoft("SkipLayerNormalization", ((2, 4, 6), (2, 4, 6), (6,), (6,), (6,))),
    microsoft("SkipLayerNormalization", ((2, 4, 6), (1, 4, 6), (6,), (6,)), name="of one skip"),
    microsoft("SkipSimplifiedLayerNormalization", ((2, 4, 6), (2, 4, 6), (6,))),
    Case("BatchNormalization", ((2, 4, 3), (4,), (4,), (4,), np.ones(4, np.float32))),
    Case(
        "BatchNormalization",
        ((2, 4, 3), (4,), (4,), (4,), (4,)),
        {"training_mode": 1},
        outputs=3,
        unused=(1,),
        name="of the batch",
    ),
    Case("InstanceNormalization", ((2, 8, 3), (8,), (8,))),
    Case("GroupNormalization", ((2, 8, 3), (8,), (8,)), {"num_groups": 4}),
    Case("QuantizeLinear", ((4, 6), np.full(6, 0.1, np.float32), small(6)), {"axis": 1}),
    Case("DequantizeLinear", (small(4, 6), np.full(6, 0.1, np.float32), small(6)), {"axis": 1}),
    Case("DequantizeLinear", (small(4, 6), np.float32(0.1), np.uint8(3)), name="one scale"),
    Case("DequantizeLinear", (small(6, 8), (6, 4), small(6, 4)), {"axis": 1, "block_size": 2}, name="blocks"),
    Case("DequantizeLinear", (small(6, 10), (6, 3), small(6, 3)), {"axis": 1, "block_size": 4}, name="a short block"),
]

SHAPES = [
    Case("Reshape", ((3, 8, 5), ints(3, 4, 2, 5)), constants=(1,)),
    Case("Reshape", ((3, 4, 6, 5), ints(0, -1, 5)), constants=(1,), name="joined"),
    Case("Reshape", ((3, 24), ints(3, 3, 4, 2)), constants=(1,), name="three in one"),
    Case("Reshape", ((4, 3, 5), ints(2, -1, 3, 5)), constants=(1,), name="first axis"),
    Case("Flatten", ((4, 3, 5),), {"axis": 2}),
    Case("Squeeze", ((4, 1, 6), ints(1)), constants=(1,)),
    Case("Unsqueeze", ((4, 6), ints(1)), constants=(1,)),
    Case("Transpose", ((4, 3, 6),), {"perm": [2, 0, 1]}),
    Case("Concat", ((4, 6), (4, 2)), {"axis": 1}),
    Case("Split", ((4, 6), ints(4, 2)), {"axis": 1}, constants=(1,), outputs=2),
    Case("Split", ((6, 4),), {"axis": 0, "num_outputs": 3}, outputs=3, name="equal"),
    Case("Split", ((10, 4),), {"axis": 0, "num_outputs": 3}, outputs=3, name="a short end"),
    Case("Slice", ((6, 8), ints(2), ints(6), ints(1)), constants=(1, 2, 3)),
    Case("Slice", ((6, 8), ints(-2), ints(2**62), ints(1), ints(1)), constants=(1, 2, 3, 4), name="end"),
    Case("Slice", ((6, 5), ints(0), ints(5), ints(1), ints(2)), constants=(1, 2, 3, 4), name="steps"),
    Case("Expand", ((4, 1, 3), ints(4, 6, 3)), constants=(1,)),
    Case("Expand", ((1, 3), ints(4, 2, 3)), constants=(1,), name="new axis"),
    Case("ConstantOfShape", (ints(4, 3),), constants=(0,)),
    Case("Tile", ((4, 3), ints(2, 1)), constants=(1,)),
    Case("Gather", ((3, 6), small(4, 2, dtype="int64", most=3)), {"axis": 0}),
    Case("Gather", ((6, 5, 4), small(2, dtype="int64", most=5)), {"axis": 1}, name="middle"),
    Case("GatherElements", ((4, 5), small(4, 3, dtype="int64", most=5)), {"axis": 1}),
    Case("ScatterElements", ((4, 5), small(4, 1, dtype="int64", most=5), (4, 1)), {"axis": 1}),
    Case("Pad", ((4, 6), ints(0, 1, 0, 0)), constants=(1,)),
    *(Case(op, ((2, 4, 5, 5),), {"kernel_shape": [3, 3]}) for op in ("AveragePool", "LpPool", "MaxPool")),
    Case("MaxPool", ((2, 4, 5, 5),), {"kernel_shape": [3, 3], "pads": [1] * 4}, name="same size"),
    *(Case(op, ((2, 4, 3, 3),)) for op in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")),
    Case("Resize", ((2, 4, 3, 3), None, np.array([1, 1, 2, 2], np.float32)), constants=(2,)),
    Case("Resize", ((2, 4, 3, 3), None, None, ints(2, 4, 5, 5)), constants=(3,), name="sizes"),
    Case("Upsample", ((2, 4, 3, 3), np.array([1, 1, 2, 2], np.float32)), constants=(1,), opset=9),
    Case("DepthToSpace", ((2, 4, 3, 3),), {"blocksize": 2}),
    Case("SpaceToDepth", ((2, 3, 6, 6),), {"blocksize": 2}),
    Case("Trilu", ((4, 3, 3),)),
]

_N_BITS = {"K": 64, "N": 8, "bits": 4, "block_size": 32}

PRODUCTS = [
    Case("MatMul", ((2, 3, 4), (4, 8))),
    Case("MatMul", ((2, 4, 6), (2, 6, 8)), name="batch"),
    Case("MatMul", ((4, 6), (6,)), name="vector"),
    Case("MatMul", ((6,), (6, 8)), name="row"),
    Case("Gemm", ((4, 6), (6, 8), (8,))),
    Case("Gemm", ((6, 4), (8, 6), (4, 1)), {"transA": 1, "transB": 1, "alpha": 0.5}, name="transposed"),
    microsoft("FusedMatMul", ((3, 4), (8, 4)), {"transB": 1}),
    microsoft("TransposeMatMul", ((3, 4), (4, 8)), {}),
    Case("Einsum", ((3, 4, 2), (6, 2)), {"equation": "bij,kj->bki"}),
    Case("Einsum", ((4, 3), (3,)), {"equation": "ij,j->j"}, name="sums"),
    Case("MatMulInteger", (small(3, 4), small(4, 8), np.uint8(2), small(8))),
    Case(
        "QLinearMatMul",
        (
            small(3, 4),
            np.float32(0.1),
            np.uint8(2),
            small(4, 8),
            np.full(8, 0.1, np.float32),
            small(8),
            np.float32(9),
            np.uint8(3),
        ),
    ),
    microsoft("MatMulIntegerToFloat", (small(3, 4), small(4, 8), np.float32(0.1), (8,), None, small(8), (8,))),
    microsoft("DynamicQuantizeMatMul", ((3, 4), small(4, 8), (8,), small(8), (8,))),
    microsoft("MatMulNBits", ((3, 64), small(8, 2, 16), (8, 2)), _N_BITS),
    microsoft("MatMulNBits", ((3, 64), small(8, 2, 16), (16,), None, None, (8,)), _N_BITS, name="flat scales"),
    microsoft(
        "MatMulNBits", ((3, 128), small(8, 4, 16), (8, 4), small(8, 2), None, (8,)), _N_BITS | {"K": 128}, name="points"
    ),
    Case("Conv", ((2, 4, 5, 5), (8, 4, 3, 3), (8,))),
    Case("Conv", ((1, 8, 5), (8, 2, 3), (8,)), {"group": 4}, name="groups"),
    Case("ConvTranspose", ((2, 4, 3, 3), (4, 8, 3, 3), (8,))),
    Case("ConvTranspose", ((1, 8, 3, 3), (8, 3, 3, 3)), {"group": 4}, name="groups"),
    Case("ConvInteger", (small(1, 3, 5, 5), small(8, 3, 3, 3), np.uint8(1), np.uint8(2))),
]

_EXPERTS = {"k": 2, "activation_type": "relu", "normalize_routing_weights": 1}
PRODUCTS += [
    microsoft("MoE", ((2, 5), (2, 3), (3, 8, 5), (3, 8), (3, 5, 8), (3, 5)), _EXPERTS),
    microsoft("MoE", ((2, 5), (2, 3), (3, 8, 5), None, (3, 5, 8)), _EXPERTS, name="no bias"),
    microsoft("MoE", ((2, 2, 5), (4, 3), (3, 8, 5), None, (3, 5, 8)), _EXPERTS, name="batch"),
]
if ORT_VERSION > (1, 24):  # 1.24 takes one zero point for all channels, and refuses these shapes
    convolution = (small(1, 3, 5, 5), np.float32(0.1), np.uint8(2), small(8, 3, 3, 3), np.full(8, 0.1, np.float32))
    PRODUCTS.append(Case("QLinearConv", (*convolution, small(8), np.float32(30), np.uint8(3), small(8, dtype="int32"))))
    shapes = ((1, 10), (1, 3), small(3, 8, 5), (3, 8), (3, 8), small(3, 10, 4), (3, 10), (3, 10))
    PRODUCTS.append(microsoft("QMoE", shapes, _EXPERTS | {"expert_weight_bits": 4}))

_HEADS = {"num_heads": 4}

ATTENTION = [
    microsoft(
        "GroupQueryAttention",
        ((1, 3, 64), (1, 3, 32), (1, 3, 32), (1, 2, 5, 16), (1, 2, 5, 16), np.array([7], np.int32), np.int32(8)),
        {"num_heads": 4, "kv_num_heads": 2},
        constants=(5, 6),
        outputs=3,
    ),
    microsoft(
        "GroupQueryAttention",
        ((1, 3, 128), None, None, (1, 2, 5, 16), (1, 2, 5, 16), np.array([7], np.int32), np.int32(8), (16, 8), (16, 8)),
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        constants=(5, 6, 7, 8),
        outputs=3,
        name="packed",
    ),
    microsoft("MultiHeadAttention", ((1, 3, 32), (1, 5, 32), (1, 5, 32)), _HEADS),
    microsoft(
        "MultiHeadAttention",
        ((1, 3, 32), (1, 5, 32), (1, 5, 32), (96,), None, (1, 4, 3, 8), (1, 4, 3, 8), (1, 4, 3, 8)),
        _HEADS,
        outputs=3,
        name="bias and past",
    ),
    microsoft("Attention", ((1, 3, 5), (5, 96), (96,)), _HEADS),
    microsoft("Attention", ((1, 3, 5), (5, 96), (96,), None, None, (1, 4, 3, 3)), _HEADS, name="bias"),
    microsoft("Attention", ((1, 3, 5), (5, 80), (80,)), _HEADS | {"qkv_hidden_sizes": [32, 32, 16]}, name="sizes"),
    Case(
        "Attention", ((1, 3, 32), (1, 5, 16), (1, 5, 16)), {"q_num_heads": 4, "kv_num_heads": 2}, opset=23, name="flat"
    ),
    Case("RotaryEmbedding", ((1, 4, 3, 8), (1, 3, 4), (1, 3, 4)), opset=23, constants=(1, 2)),
    Case("RotaryEmbedding", ((1, 3, 32), (1, 3, 4), (1, 3, 4)), _HEADS, opset=23, constants=(1, 2), name="flat"),
    microsoft("RotaryEmbedding", ((1, 3, 32), ints(2), (9, 4), (9, 4)), constants=(1, 2, 3)),
    microsoft("RotaryEmbedding", ((1, 4, 3, 8), ints(2), (9, 4), (9, 4)), constants=(1, 2, 3), name="heads"),
]
if ORT_VERSION > (1, 24):  # 1.24 refuses a mask for each query head
    ATTENTION.append(Case("Attention", ((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8), (1, 4, 3, 5)), opset=23, unused=(3,)))

CASES = [*ELEMENTS, *SHAPES, *PRODUCTS, *ATTENTION]
