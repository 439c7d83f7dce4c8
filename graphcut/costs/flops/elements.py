"""Operators that cost so much for each element, and those that only move data.

`RULES` at the end is what they all come to. The numbers count the arithmetic of the usual implementation: an addition,
multiplication, comparison or conversion is 1, a division too; an exponential, logarithm, root or sine is 4; what is
made of several of these (tanh, erf, Gelu) is 8; a softmax is 5 and a normalisation 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..formula import ZERO, Formula
from .operation import Operation, Rule, elements

EXPONENTIAL: Final = 4
COMPOUND: Final = 8
SOFTMAX: Final = 5
NORM: Final = 8
INTERPOLATION: Final = {"nearest": 0, "linear": 8, "bilinear": 8, "cubic": 32, "bicubic": 32}
"""For each element made: two axes, so 4 or 16 neighbours, a multiply-add each."""


def _named(names: str, domain: str = "") -> tuple[str, ...]:
    return tuple(f"{domain}.{name}" if domain else name for name in names.split())


MOVING: Final = frozenset((
    *_named(
        "Identity Reshape Flatten Squeeze Unsqueeze Transpose Shape Size Slice Split Concat Gather GatherElements "
            "GatherND "
        "Scatter Expand Tile Pad Constant ConstantOfShape EyeLike DepthToSpace SpaceToDepth Compress OneHot Trilu "
        "ReverseSequence CenterCropPad MaxUnpool TensorScatter BitCast Dropout ImageDecoder "
        "SequenceConstruct SequenceEmpty SequenceAt SequenceErase SequenceInsert SequenceLength SplitToSequence "
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement "
        "StringConcat StringNormalizer StringSplit RegexFullMatch"
    ),
    *_named(
        "ExpandDims GatherND Pad Trilu UnfoldTensor TorchEmbedding RemovePadding RestorePadding RelativePositionBias "
        "BitmaskDropout NGramRepeatBlock Tokenizer",
        "com.microsoft",
    ),
    *_named("ReorderInput ReorderOutput", "com.microsoft.nchwc"),
    *_named(
        "ArrayFeatureExtractor CastMap CategoryMapper DictVectorizer FeatureVectorizer LabelEncoder OneHotEncoder "
            "ZipMap",
        "ai.onnx.ml",
    ),
))  # fmt: skip
"""Operators that compute nothing: they move data, look at shapes, or handle text."""

PER_WRITTEN: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        _named(
            "Add Sub Mul Div Mod And Or Xor Not BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater "
            "GreaterOrEqual Less LessOrEqual Where Abs Neg Sign Ceil Floor Round Reciprocal Relu ThresholdedRelu "
            "IsInf IsNaN "
            "Cast CastLike Range Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
        ),
        1,
    ),
    **dict.fromkeys(_named("Clip LeakyRelu PRelu Shrink BatchNormalization QuantizeLinear DequantizeLinear"), 2),
    **dict.fromkeys(_named("HardSigmoid Softsign"), 3),
    **dict.fromkeys(_named("Exp Log Sqrt Sin Cos Pow HardSwish"), EXPONENTIAL),
    "RotaryEmbedding": 3,
    "DynamicQuantizeLinear": 4,
    "Sigmoid": 6,
    **dict.fromkeys(_named("Elu Celu Selu"), 6),
    **dict.fromkeys(
        _named(
            "Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Gelu Mish Softplus Swish "
            "BlackmanWindow HammingWindow HannWindow MelWeightMatrix"
        ),
        COMPOUND,
    ),
    "SwiGLU": COMPOUND + 1,
    **dict.fromkeys(_named("Softmax LogSoftmax"), SOFTMAX),
    "Hardmax": 2,
    **dict.fromkeys(
        _named(
            "LayerNormalization RMSNormalization SimplifiedLayerNormalization InstanceNormalization GroupNormalization "
            "LpNormalization MeanVarianceNormalization"
        ),
        NORM,
    ),
    **dict.fromkeys(_named("BiasAdd BiasDropout BitmaskBiasDropout GatedAdd", "com.microsoft"), 2),
    **dict.fromkeys(_named("Range MulInteger", "com.microsoft"), 1),
    **dict.fromkeys(_named("QuantizeLinear DequantizeLinear", "com.microsoft"), 2),
    **dict.fromkeys(_named("ComplexMul ComplexMulConj RotaryEmbedding MRotaryEmbedding", "com.microsoft"), 3),
    "com.microsoft.GatherBlockQuantized": 2,
    **dict.fromkeys(_named("Gelu QuickGelu ScaledSiLU", "com.microsoft"), COMPOUND),
    **dict.fromkeys(_named("BiasGelu BiasSplitGelu", "com.microsoft"), COMPOUND + 1),
    "com.microsoft.BiasSoftmax": SOFTMAX + 1,
    **dict.fromkeys(_named("BranchwiseRMSNorm GroupNorm", "com.microsoft"), NORM),
    "com.microsoft.SkipGroupNorm": NORM + 1,
    "com.microsoft.GatedRMSNorm": NORM + COMPOUND + 1,
    "com.microsoft.CropAndResize": INTERPOLATION["linear"],
    # Quantised ones: each input dequantised, the output quantised, at 2 each.
    **dict.fromkeys(_named("QLinearAdd QLinearMul", "com.microsoft"), 7),
    **dict.fromkeys(_named("QLinearConcat QLinearWhere", "com.microsoft"), 4),
    "com.microsoft.QLinearLeakyRelu": 6,
    "com.microsoft.QLinearSigmoid": 10,
    "com.microsoft.QLinearSoftmax": SOFTMAX + 4,
    "ai.onnx.ml.Binarizer": 1,
    "ai.onnx.ml.Imputer": 1,
    "ai.onnx.ml.Scaler": 2,
    "ai.onnx.ml.Normalizer": 4,
}
"""FLOPs for each element of the first output."""

PER_READ: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        _named(
            "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ArgMax ArgMin CumSum CumProd TopK NonZero "
            "Unique "
            "GlobalAveragePool GlobalMaxPool Col2Im NegativeLogLikelihoodLoss Multinomial TfIdfVectorizer"
        ),
        1,
    ),
    **dict.fromkeys(_named("ReduceL2 ReduceSumSquare ReduceLogSum GlobalLpPool"), 2),
    "ReduceLogSumExp": EXPONENTIAL + 1,
    "SoftmaxCrossEntropyLoss": SOFTMAX + 1,
    **dict.fromkeys(_named("GlobalAveragePool GlobalMaxPool", "com.microsoft.nchwc"), 1),
    **dict.fromkeys(_named("ReduceSumInteger Unique IsAllFinite", "com.microsoft"), 1),
    **dict.fromkeys(_named("QLinearGlobalAveragePool QLinearReduceMean", "com.microsoft"), 3),
}
"""FLOPs for each element of the first input. Where data decide (TopK, Unique), what is looked at once."""


def _written(each: int, operation: Operation) -> Formula:
    return elements(operation.written()) * each


def _read(each: int, operation: Operation) -> Formula:
    return elements(operation.read(0)) * each


def _variadic(each: int, operation: Operation) -> Formula:
    """Sum, Max, Min: one step for each input after the first. Mean: a division more."""
    return elements(operation.written()) * (len(operation.proto.input) - 1 + each)


def _skip_norm(bias: int, operation: Operation) -> Formula:
    """A normalisation of a sum of two, or three where a bias is given."""
    return elements(operation.written()) * (NORM + 1 + operation.has(bias))


def _embed_norm(operation: Operation) -> Formula:
    """Word, position and, where given, segment embeddings added up, and normalised."""
    return elements(operation.written()) * (NORM + 1 + operation.has(1))


def _fast_gelu(operation: Operation) -> Formula:
    return elements(operation.written()) * (COMPOUND + operation.has(1))


def _scatter(operation: Operation) -> Formula:
    """Moving, or with a reduction one step for each update."""
    return ZERO if operation.text("reduction", "none") == "none" else elements(operation.read(2))


def _resize(operation: Operation) -> Formula:
    return elements(operation.written()) * INTERPOLATION.get(operation.text("mode", "nearest"), 8)


def _grid_sample(operation: Operation) -> Formula:
    return elements(operation.written()) * INTERPOLATION.get(operation.text("mode", "linear"), 8)


def _boxes(operation: Operation) -> Formula:
    """NonMaxSuppression: each score against the threshold. How many boxes are compared, the data decide."""
    return elements(operation.read(1))


RULES: Final[Mapping[str, Rule]] = {
    **{op: partial(_written, each) for op, each in PER_WRITTEN.items()},
    **{op: partial(_read, each) for op, each in PER_READ.items()},
    **dict.fromkeys(("Sum", "Max", "Min"), partial(_variadic, 0)),
    "Mean": partial(_variadic, 1),
    "com.microsoft.SkipLayerNormalization": partial(_skip_norm, 4),
    "com.microsoft.SkipSimplifiedLayerNormalization": partial(_skip_norm, 3),
    "com.microsoft.EmbedLayerNormalization": _embed_norm,
    "com.microsoft.QEmbedLayerNormalization": _embed_norm,
    "com.microsoft.FastGelu": _fast_gelu,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Resize": _resize,
    "Upsample": _resize,
    "com.microsoft.nchwc.Upsample": _resize,
    "GridSample": _grid_sample,
    "com.microsoft.GridSample": _grid_sample,
    "NonMaxSuppression": _boxes,
}
