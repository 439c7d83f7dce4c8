"""Operators that multiply and add: matrix products, convolutions, pooling, recurrent layers, transforms, experts.

A multiply-add is two operations. A bias, and the requantisation of a quantised result (2), count for each element
written. A padded or dilated window counts in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import prod
from typing import Final

from ...core.wiring import Dim
from ..formula import UNKNOWN, ZERO, Formula, product
from .elements import COMPOUND, INTERPOLATION, NORM, SOFTMAX
from .operation import Operation, Rule, Shape, axis, elements, rows, size

_REQUANTISED: Final = 2


def _product_of(written: Formula, depth: Dim) -> Formula:
    """Each element written is a sum of `depth` products."""
    return written * Formula.of(depth) * 2


def _matmul(a: int, b: int, extra: int, operation: Operation) -> Formula:
    """`a` and `b` are the places of the factors; `extra` steps for each element written."""
    first, second = operation.read(a), operation.read(b)
    depth = axis(first, -1)
    if depth is None:
        depth = axis(second, -2 if second is None or len(second) > 1 else -1)
    written = elements(operation.written())
    return _product_of(written, depth) + written * extra


def _fused_matmul(extra: int, operation: Operation) -> Formula:
    """FusedMatMul: with transBatchA the first axis stands for the rows, and transA then turns that inward."""
    shape, turned = operation.read(0), operation.number("transA", 0)
    depth = axis(shape, -1)
    if turned and shape is not None and len(shape) > 1:
        depth = shape[0] if operation.number("transBatchA", 0) else shape[-2]
    written = elements(operation.written())
    return _product_of(written, depth) + written * extra


def _gemm(bias: int, activated: int, operation: Operation) -> Formula:
    """Gemm and its relatives; the second factor stands right before the bias, or three places before it (QGemm)."""
    depth = axis(operation.read(0), 0 if operation.number("transA", 0) else -1)
    written = elements(operation.written())
    return _product_of(written, depth) + written * (operation.has(bias) + activated)


def _dynamic_quantize_matmul(operation: Operation) -> Formula:
    """The first factor is quantised on the way, at 4 an element; the result is scaled back."""
    return elements(operation.read(0)) * 4 + _matmul(0, 1, _REQUANTISED + operation.has(4), operation)


def _packed_matmul(bias: int, operation: Operation) -> Formula:
    """MatMulNBits, MatMulBnb4: the weight is packed, its sizes are attributes. Unpacking is not counted."""
    shape = operation.read(0)
    n = operation.number("N", 0)
    return rows(shape) * (2 * operation.number("K", 0) * n + (n if operation.has(bias) else 0))


def _packed_mlp(operation: Operation) -> Formula:
    """MatMulNBitsMlp: an optional norm, gate and up, an activation and a product."""
    k, n = operation.number("K", 0), operation.number("N", 0)
    biases = operation.has(5) + operation.has(8)
    each = 4 * k * n + n * (biases + COMPOUND + 1) + _norm_before(k, operation)
    return rows(operation.read(0)) * each


def _packed_qkv(operation: Operation) -> Formula:
    """MatMulNBitsQkv: an optional norm, queries, keys and values."""
    k, queries, keys = (operation.number(name, 0) for name in ("K", "Nq", "Nkv"))
    biases = queries * operation.has(5) + keys * (operation.has(8) + operation.has(11))
    return rows(operation.read(0)) * (2 * k * (queries + 2 * keys) + biases + _norm_before(k, operation))


def _norm_before(width: int, operation: Operation) -> int:
    return width * (NORM * operation.has(2) + operation.has(1))


def _conv(weight: int, extra: int, operation: Operation, bias: int = 2) -> Formula:
    """Each element written sums a window: channels of its group times the kernel, which are the weight's later axes."""
    written, kernel = elements(operation.written()), operation.read(weight)
    window = UNKNOWN if kernel is None else product(kernel[1:])
    return written * window * 2 + written * (extra + operation.has(bias))


def _fused_conv(operation: Operation) -> Formula:
    """A convolution, an optional sum, and an activation where one is named (a ReLU's 1)."""
    extra = operation.has(3) + bool(operation.text("activation", ""))
    return _conv(1, extra, operation)


def _conv_transpose(operation: Operation) -> Formula:
    """Each element read is spread over a window: channels written of its group times the kernel."""
    kernel = operation.read(1)
    window = UNKNOWN if kernel is None else product(kernel[1:])
    spread = elements(operation.read(0)) * window * 2
    return spread + elements(operation.written()) if operation.has(2) else spread


def _deform_conv(operation: Operation) -> Formula:
    """A convolution whose window is sampled between the points: an interpolation for each channel, offset and place."""
    shape, kernel, written = operation.read(0), operation.read(1), operation.written()
    places = UNKNOWN if kernel is None or written is None else product((*kernel[2:], written[0], *written[2:]))
    sampled = places * size(shape, 1) * INTERPOLATION["linear"]
    return _conv(1, 0, operation, bias=3) + sampled


def _causal_conv(operation: Operation) -> Formula:
    """A depthwise convolution along time: the kernel is the weight's last axis."""
    written = elements(operation.written())
    extra = operation.has(2) + (COMPOUND if operation.text("activation", "none") != "none" else 0)
    return _product_of(written, axis(operation.read(1), -1)) + written * extra


def _pool(each: int, extra: int, operation: Operation) -> Formula:
    """`each` steps for each place of the window."""
    return elements(operation.written()) * (prod(operation.numbers("kernel_shape")) * each + extra)


def _roi_pool(operation: Operation) -> Formula:
    """MaxRoiPool: how large a region is, the data decide; each element written once, at least."""
    return elements(operation.written()) * UNKNOWN


def _roi_align(operation: Operation) -> Formula:
    """Each element written averages sampled points; with the sampling ratio 0 the data decide how many."""
    ratio = operation.number("sampling_ratio", 0)
    return elements(operation.written()) * INTERPOLATION["linear"] * (ratio * ratio if ratio else UNKNOWN)


def _lrn(operation: Operation) -> Formula:
    """Sum of squares over the window, scaled, a power, a division."""
    return elements(operation.written()) * (2 * operation.number("size", 1) + 7)


def _einsum(operation: Operation) -> Formula:
    """As one nest of loops over all letters: a step for each factor after the first, one more where a letter is summed.

    Several factors could be multiplied in a cheaper order; implementations differ, and this is what the equation says.
    """
    left, arrow, right = operation.text("equation", "").replace(" ", "").partition("->")
    sizes: dict[str, Dim] = {}
    for place, letters in enumerate(left.split(",")):
        for letter, dim in _letters(letters, operation.read(place)).items():
            if sizes.get(letter, 1) == 1:  # an axis of an ellipsis may be 1 here and more there
                sizes[letter] = dim
    kept = set(right) if arrow else {letter for letter in sizes if left.count(letter) == 1}
    is_summed = any(letter not in kept for letter in sizes if not letter.startswith("."))
    return product(sizes.values()) * (len(operation.proto.input) - 1 + is_summed)


def _letters(letters: str, shape: Shape | None) -> dict[str, Dim]:
    """The size of each letter; the axes an ellipsis stands for are called by their distance from its end."""
    before, dots, after = letters.partition("...")
    if not dots:
        return {letter: axis(shape, place) for place, letter in enumerate(letters)}
    sizes = {letter: axis(shape, place) for place, letter in enumerate(before)}
    hidden = len(shape) - len(before) - len(after) if shape is not None else 1
    sizes.update({f".{hidden - i}": axis(shape, len(before) + i) for i in range(hidden)})
    sizes.update({letter: axis(shape, place - len(after)) for place, letter in enumerate(after)})
    return sizes


def _recurrent(gates: int, cell: int, operation: Operation) -> Formula:
    """For each time step, direction and sample: products with input and state, two biases, and `cell` steps a unit.

    Cell: sigmoids at 6, hyperbolic tangents at 8, and the sums and products that join them.
    """
    steps, hidden = rows(operation.read(0)), operation.number("hidden_size", 0) or axis(operation.read(2), -1)
    directions = 2 if operation.text("direction", "forward") == "bidirectional" else 1
    units, width = Formula.of(hidden), size(operation.read(0), -1) + Formula.of(hidden)
    each = units * width * (2 * gates) + units * (2 * gates * operation.has(3) + cell)
    return steps * each * directions


def _experts(packing: Iterable[tuple[int, str]], operation: Operation) -> Formula:
    """Mixture of experts: each token passes `k` of them; the router's softmax on top. Activations are not counted.

    `packing` names the weights' places and the attributes that tell their bits where they are packed into bytes.
    """
    tokens = rows(operation.read(0)) * operation.number("k", 1)
    weights = ZERO
    for place, bits in packing:
        if operation.has(place):
            shape = operation.read(place)
            one = UNKNOWN if shape is None else product(shape[1:])
            weights += one * (8 // _bits(bits, operation))
    return tokens * weights * 2 + elements(operation.read(1)) * SOFTMAX


def _bits(name: str, operation: Operation) -> int:
    if not name:
        return 8
    return operation.number(name, 0) or operation.number("expert_weight_bits", 4)


def _fourier(operation: Operation) -> Formula:
    """A fast Fourier transform: 5·n·log₂(n) for each of its transforms (Cooley & Tukey, 1965)."""
    shape = operation.read(0)
    return rows(shape) * _log2(axis(shape, operation.number("axis", -2))) * 5


def _short_fourier(operation: Operation) -> Formula:
    """STFT: a transform for each frame, which is as long as the window, else as the frequencies written tell."""
    written = operation.written()
    frame = axis(operation.read(2), 0)
    bins = axis(written, -2)
    if frame is None and isinstance(bins, int):
        frame = 2 * (bins - 1) if operation.number("onesided", 1) else bins
    frames = UNKNOWN if written is None else product(written[:2])
    return frames * Formula.of(frame) * _log2(frame) * 5


def _log2(dim: Dim) -> Formula:
    return Formula.of((dim - 1).bit_length() if isinstance(dim, int) and dim else None)


def _cubic(operation: Operation) -> Formula:
    """Det, Inverse: elimination takes at most n³ multiply-adds for each matrix."""
    shape = operation.read(0)
    return _product_of(elements(shape), axis(shape, -1))


def _distances(operation: Operation) -> Formula:
    """CDist: a difference, a square and a sum for each pair of rows and each column."""
    return elements(operation.written()) * size(operation.read(0), -1) * 3


def _linear_model(operation: Operation) -> Formula:
    """Linear classifiers and regressors: the coefficients are an attribute, each used once a row."""
    for attribute in operation.proto.attribute:
        if attribute.name == "coefficients":
            return rows(operation.read(0)) * (2 * len(attribute.floats))
    return UNKNOWN


def _affine_grid(operation: Operation) -> Formula:
    """Each coordinate written is a sum of as many products as the matrix has columns."""
    return _product_of(elements(operation.written()), axis(operation.read(0), -1))


_MS = "com.microsoft."
RULES: Final[Mapping[str, Rule]] = {
    "MatMul": partial(_matmul, 0, 1, 0),
    "MatMulInteger": partial(_matmul, 0, 1, 0),
    "QLinearMatMul": partial(_matmul, 0, 3, _REQUANTISED),
    _MS + "MatMulInteger16": partial(_matmul, 0, 1, 0),
    _MS + "MatMulIntegerToFloat": partial(_matmul, 0, 1, _REQUANTISED),
    _MS + "MatMulBlockQuantizedFp4Weight": partial(_matmul, 0, 1, 0),
    _MS + "MatMulBlockQuantizedFp8Weight": partial(_matmul, 0, 1, 0),
    _MS + "MatMulFpQ4": partial(_matmul, 0, 1, 0),
    _MS + "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    _MS + "FusedMatMul": partial(_fused_matmul, 0),
    _MS + "FusedMatMulActivation": partial(_fused_matmul, 1),
    _MS + "TransposeMatMul": partial(_fused_matmul, 0),
    _MS + "SparseToDenseMatMul": partial(_fused_matmul, 0),
    _MS + "GemmFastGelu": partial(_gemm, 2, COMPOUND),
    "Gemm": partial(_gemm, 2, 0),
    _MS + "FusedGemm": partial(_gemm, 2, 1),
    _MS + "GemmFloat8": partial(_gemm, 2, 0),
    _MS + "QGemm": partial(_gemm, 6, _REQUANTISED),
    _MS + "MatMulNBits": partial(_packed_matmul, 5),
    _MS + "MatMulBnb4": partial(_packed_matmul, 3),
    _MS + "MatMulNBitsMlp": _packed_mlp,
    _MS + "MatMulNBitsQkv": _packed_qkv,
    "Conv": partial(_conv, 1, 0),
    "ConvInteger": partial(_conv, 1, 0, bias=4),
    "QLinearConv": partial(_conv, 3, _REQUANTISED, bias=8),
    _MS + "QLinearConv": partial(_conv, 3, _REQUANTISED, bias=8),
    _MS + "NhwcConv": partial(_conv, 1, 0),
    **dict.fromkeys((_MS + "FusedConv", _MS + "NhwcFusedConv", _MS + "nchwc.Conv"), _fused_conv),
    "ConvTranspose": _conv_transpose,
    _MS + "ConvTransposeWithDynamicPads": _conv_transpose,
    "DeformConv": _deform_conv,
    **dict.fromkeys(("CausalConvWithState", _MS + "CausalConvWithState"), _causal_conv),
    **dict.fromkeys(("MaxPool", "AveragePool", _MS + "MaxpoolWithMask", _MS + "NhwcMaxPool"), partial(_pool, 1, 0)),
    **dict.fromkeys((_MS + "nchwc.MaxPool", _MS + "nchwc.AveragePool"), partial(_pool, 1, 0)),
    _MS + "QLinearAveragePool": partial(_pool, 1, 2 * _REQUANTISED),
    "LpPool": partial(_pool, 2, 0),
    "MaxRoiPool": _roi_pool,
    "RoiAlign": _roi_align,
    "LRN": _lrn,
    "Einsum": _einsum,
    # 1 tanh; 2 sigmoids, 1 tanh, 5 to join; 3 sigmoids, 2 tanh, 4 to join.
    "RNN": partial(_recurrent, 1, 8),
    "GRU": partial(_recurrent, 3, 25),
    "LSTM": partial(_recurrent, 4, 38),
    _MS + "DynamicQuantizeLSTM": partial(_recurrent, 4, 38),
    _MS + "MoE": partial(_experts, ((2, ""), (4, ""), (6, ""))),
    _MS + "QMoE": partial(
        _experts, ((2, "fc1_expert_weight_bits"), (5, "fc2_expert_weight_bits"), (8, "fc3_expert_weight_bits"))
    ),
    "DFT": _fourier,
    "STFT": _short_fourier,
    "Det": _cubic,
    _MS + "Inverse": _cubic,
    _MS + "CDist": _distances,
    "AffineGrid": _affine_grid,
    "ai.onnx.ml.LinearClassifier": _linear_model,
    "ai.onnx.ml.LinearRegressor": _linear_model,
}  # fmt: skip
