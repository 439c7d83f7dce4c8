"""Operators with a fixed number of FLOPs for each element, and operators that only move data.

The numbers count the arithmetic of a usual implementation. Fused operators are the sum of their steps.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from ...loading.operations import Operation
from ..formula import ZERO, Formula, Rule, elements

COMPOUND: Final = 8
SOFTMAX: Final = 5
NORM: Final = 8
INTERPOLATION: Final = {"nearest": 0, "linear": 8, "bilinear": 8, "cubic": 32, "bicubic": 32}
"""For each element written: a multiply-add for each of 4 or 16 neighbours in two dimensions."""

_MOVING: Final = {
    "": """
        Identity Reshape Flatten Squeeze Unsqueeze Transpose Shape Size Slice Split Concat Gather GatherElements
        GatherND Scatter Expand Tile Pad Constant ConstantOfShape EyeLike DepthToSpace SpaceToDepth Compress OneHot
        Trilu ReverseSequence CenterCropPad MaxUnpool TensorScatter BitCast Dropout ImageDecoder SequenceConstruct
        SequenceEmpty SequenceAt SequenceErase SequenceInsert SequenceLength SplitToSequence ConcatFromSequence Optional
        OptionalGetElement OptionalHasElement StringConcat StringNormalizer StringSplit RegexFullMatch""",
    "com.microsoft.": """
        ExpandDims GatherND Pad Trilu UnfoldTensor TorchEmbedding RemovePadding RestorePadding RelativePositionBias
        BitmaskDropout NGramRepeatBlock Tokenizer""",
    "com.microsoft.nchwc.": "ReorderInput ReorderOutput",
    "ai.onnx.ml.": """
        ArrayFeatureExtractor CastMap CategoryMapper DictVectorizer FeatureVectorizer LabelEncoder OneHotEncoder
        ZipMap""",
}
MOVING: Final = frozenset(domain + name for domain, names in _MOVING.items() for name in names.split())
"""Operators that compute nothing: they move data, look at shapes, or process text."""

_PER_ELEMENT_WRITTEN: Final = {  #: operators by domain and by FLOPs for each element of the first output.
    "": {
        1: """
            Add Sub Mul Div Mod And Or Xor Not BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater
            GreaterOrEqual Less LessOrEqual Where Abs Neg Sign Ceil Floor Round Reciprocal Relu ThresholdedRelu IsInf
            IsNaN Cast CastLike Range Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike""",
        2: "Clip LeakyRelu PRelu Shrink BatchNormalization QuantizeLinear DequantizeLinear Hardmax",
        3: "HardSigmoid Softsign RotaryEmbedding",
        4: "Exp Log Sqrt Sin Cos Pow HardSwish DynamicQuantizeLinear",
        5: "Softmax LogSoftmax",
        6: "Sigmoid Elu Celu Selu",
        8: """
            Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Gelu Mish Softplus Swish BlackmanWindow
            HammingWindow HannWindow MelWeightMatrix LayerNormalization RMSNormalization SimplifiedLayerNormalization
            InstanceNormalization GroupNormalization LpNormalization MeanVarianceNormalization""",
        9: "SwiGLU",
    },
    "com.microsoft.": {
        1: "Range MulInteger",
        2: "BiasAdd BiasDropout BitmaskBiasDropout GatedAdd QuantizeLinear DequantizeLinear GatherBlockQuantized",
        3: "ComplexMul ComplexMulConj RotaryEmbedding MRotaryEmbedding",
        4: "QLinearConcat QLinearWhere",
        6: "BiasSoftmax QLinearLeakyRelu",
        7: "QLinearAdd QLinearMul",
        8: "Gelu QuickGelu ScaledSiLU BranchwiseRMSNorm GroupNorm CropAndResize",
        9: "BiasGelu BiasSplitGelu SkipGroupNorm QLinearSoftmax",
        10: "QLinearSigmoid",
        17: "GatedRMSNorm",
    },
    "ai.onnx.ml.": {1: "Binarizer Imputer", 2: "Scaler", 4: "Normalizer"},
}

#: operators by domain and by FLOPs for each element of the first input; one pass where the values decide (TopK).
_PER_ELEMENT_READ: Final = {
    "": {
        1: """
            ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ArgMax ArgMin CumSum CumProd TopK NonZero
            Unique GlobalAveragePool GlobalMaxPool Col2Im NegativeLogLikelihoodLoss Multinomial TfIdfVectorizer""",
        2: "ReduceL2 ReduceSumSquare ReduceLogSum GlobalLpPool",
        5: "ReduceLogSumExp",
        6: "SoftmaxCrossEntropyLoss",
    },
    "com.microsoft.": {1: "ReduceSumInteger Unique IsAllFinite", 3: "QLinearGlobalAveragePool QLinearReduceMean"},
    "com.microsoft.nchwc.": {1: "GlobalAveragePool GlobalMaxPool"},
}


def _written(flops: int, optional: int | None, operation: Operation) -> Formula:
    """`flops` for each element written, and 1 more if the node has the input `optional`."""
    return elements(operation.written()) * (flops + (optional is not None and operation.has(optional)))


def _read(flops: int, operation: Operation) -> Formula:
    return elements(operation.read(0)) * flops


def _variadic(flops: int, operation: Operation) -> Formula:
    """For each element written: 1 for each input after the first, and `flops`."""
    return elements(operation.written()) * (len(operation.inputs) - 1 + flops)


def _interpolated(mode: str, operation: Operation) -> Formula:
    return elements(operation.written()) * INTERPOLATION.get(operation.given("mode", mode), 8)


def _by_operator(table: Mapping[str, Mapping[int, str]]) -> Mapping[str, int]:
    return {d + name: flops for d, row in table.items() for flops, names in row.items() for name in names.split()}


RULES: Final[Mapping[str, Rule]] = {
    **{op: partial(_written, flops, None) for op, flops in _by_operator(_PER_ELEMENT_WRITTEN).items()},
    **{op: partial(_read, flops) for op, flops in _by_operator(_PER_ELEMENT_READ).items()},
    **dict.fromkeys(("Sum", "Max", "Min"), partial(_variadic, 0)),
    "Mean": partial(_variadic, 1),
    "com.microsoft.SkipLayerNormalization": partial(_written, NORM + 1, 4),
    "com.microsoft.SkipSimplifiedLayerNormalization": partial(_written, NORM + 1, 3),
    "com.microsoft.EmbedLayerNormalization": partial(_written, NORM + 1, 1),
    "com.microsoft.QEmbedLayerNormalization": partial(_written, NORM + 1, 1),
    "com.microsoft.FastGelu": partial(_written, COMPOUND, 1),
    # 1 for each update if it is a reduction; else it moves data.
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        lambda o: ZERO if o.given("reduction", "none") == "none" else elements(o.read(2)),
    ),
    **dict.fromkeys(("Resize", "Upsample", "com.microsoft.nchwc.Upsample"), partial(_interpolated, "nearest")),
    **dict.fromkeys(("GridSample", "com.microsoft.GridSample"), partial(_interpolated, "linear")),
    # 1 for each score. How many boxes are compared depends on the values.
    "NonMaxSuppression": lambda operation: elements(operation.read(1)),
}
