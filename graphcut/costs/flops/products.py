"""Operators made of multiply-adds: matrix products, convolutions, pooling, recurrent layers, transforms, experts.

A multiply-add is 2 FLOPs. For each element written, a bias adds 1 and quantizing the result 2. A window counts in full,
whether padded, dilated or not.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Final

from ...core.records import table
from ...core.tensors import Dim
from ...loading.operations import Operation, RuleTable, Shape, by_operator
from ..formula import UNKNOWN, ZERO, Formula, Rule, axis, elements, product, rows, size
from .elements import COMPOUND, INTERPOLATION, NORM, SOFTMAX


def _dot_products(depth: Dim, extra: int, operation: Operation) -> Formula:
    """Each element written is a sum of `depth` products, with `extra` FLOPs on top."""
    return elements(operation.written()) * (Formula.of(depth) * 2 + extra)


def _matmul(operation: Operation, a: int, b: int, extra: int) -> Formula:
    """The factors are the inputs `a` and `b`."""
    first, second = operation.read(a), operation.read(b)
    depth = axis(first, -1)
    if depth is None:
        depth = axis(second, -2 if second is None or len(second) > 1 else -1)
    return _dot_products(depth, extra, operation)


def _fused_matmul(operation: Operation, extra: int) -> Formula:
    """FusedMatMul: transBatchA moves the first axis to the rows, where transA makes it the axis that is summed."""
    shape, transposed = operation.read(0), operation.given("transA", 0)
    depth = axis(shape, -1)
    if transposed and shape is not None and len(shape) > 1:
        depth = shape[0] if operation.given("transBatchA", 0) else shape[-2]
    return _dot_products(depth, extra, operation)


def _gemm(operation: Operation, bias: int, extra: int) -> Formula:
    depth = axis(operation.read(0), 0 if operation.given("transA", 0) else -1)
    return _dot_products(depth, operation.has(bias) + extra, operation)


def _packed_matmul(operation: Operation, bias: int) -> Formula:
    """MatMulNBits, MatMulBnb4: the attributes have the sizes of the packed weight. Unpacking is not counted."""
    n = operation.given("N", 0)
    return rows(operation.read(0)) * (2 * operation.given("K", 0) * n + n * operation.has(bias))


def _packed_mlp(operation: Operation) -> Formula:
    """MatMulNBitsMlp: an optional norm, gate and up projection, an activation and a product."""
    k, n = operation.given("K", 0), operation.given("N", 0)
    biases = operation.has(5) + operation.has(8)
    return rows(operation.read(0)) * (4 * k * n + n * (biases + COMPOUND + 1) + _norm_before(k, operation))


def _packed_qkv(operation: Operation) -> Formula:
    """MatMulNBitsQkv: an optional norm; queries, keys and values."""
    k, queries, keys = (operation.given(name, 0) for name in ("K", "Nq", "Nkv"))
    biases = queries * operation.has(5) + keys * (operation.has(8) + operation.has(11))
    return rows(operation.read(0)) * (2 * k * (queries + 2 * keys) + biases + _norm_before(k, operation))


def _norm_before(width: int, operation: Operation) -> int:
    return width * (NORM * operation.has(2) + operation.has(1))


def _window(kernel: Shape | None) -> Formula:
    """The elements of a convolution's window: the channels of a group times the kernel sizes."""
    return UNKNOWN if kernel is None else product(kernel[1:])


def _conv(operation: Operation, weight: int, bias: int, extra: int) -> Formula:
    """Each element written is a sum over a window."""
    return elements(operation.written()) * (_window(operation.read(weight)) * 2 + extra + operation.has(bias))


def _fused_conv(operation: Operation) -> Formula:
    """With an optional sum, and an optional activation, counted as a Relu."""
    return _conv(operation, 1, 2, operation.has(3) + bool(operation.given("activation", "")))


def _conv_transpose(operation: Operation) -> Formula:
    """Each element read is added to a window."""
    products = elements(operation.read(0)) * _window(operation.read(1)) * 2
    return products + elements(operation.written()) if operation.has(2) else products


def _deform_conv(operation: Operation) -> Formula:
    """A convolution whose window is interpolated, for each channel and offset."""
    shape, kernel, written = operation.read(0), operation.read(1), operation.written()
    points = UNKNOWN if kernel is None or written is None else product((*kernel[2:], written[0], *written[2:]))
    return _conv(operation, 1, 3, 0) + points * size(shape, 1) * INTERPOLATION["linear"]


def _causal_conv(operation: Operation) -> Formula:
    """A depthwise convolution along time; the kernel size is the last axis of the weight."""
    extra = operation.has(2) + (COMPOUND if operation.given("activation", "none") != "none" else 0)
    return _dot_products(axis(operation.read(1), -1), extra, operation)


def _pool(operation: Operation, flops: int, extra: int) -> Formula:
    """`flops` for each element of a window."""
    return elements(operation.written()) * (prod(operation.given("kernel_shape", ())) * flops + extra)


def _roi_align(operation: Operation) -> Formula:
    """Each element written averages interpolated points; for the sampling ratio 0 the values decide how many."""
    ratio = operation.given("sampling_ratio", 0)
    return elements(operation.written()) * INTERPOLATION["linear"] * (ratio * ratio if ratio else UNKNOWN)


def _einsum(operation: Operation) -> Formula:
    """One nest of loops over all letters: 1 for each factor after the first, and 1 if a letter is summed.

    Implementations may multiply three and more factors in another order, which takes fewer FLOPs.
    """
    left, arrow, right = operation.given("equation", "").replace(" ", "").partition("->")
    sizes: dict[str, Dim] = {}
    for i, letters in enumerate(left.split(",")):
        for letter, dim in _letters(letters, operation.read(i)).items():
            if sizes.get(letter, 1) == 1:  # an axis of an ellipsis may be broadcast
                sizes[letter] = dim
    kept = set(right) if arrow else {letter for letter in sizes if left.count(letter) == 1}
    is_summed = any(letter not in kept for letter in sizes if not letter.startswith("."))
    return product(sizes.values()) * (len(operation.inputs) - 1 + is_summed)


def _letters(letters: str, shape: Shape | None) -> dict[str, Dim]:
    """The size of each letter; an axis of an ellipsis is named by its distance from the end of the ellipsis."""
    before, dots, after = letters.partition("...")
    sizes = {letter: axis(shape, i) for i, letter in enumerate(before)}
    if dots:
        hidden = len(shape) - len(before) - len(after) if shape is not None else 1
        sizes.update({f".{hidden - i}": axis(shape, len(before) + i) for i in range(hidden)})
        sizes.update({letter: axis(shape, i - len(after)) for i, letter in enumerate(after)})
    return sizes


def _recurrent(operation: Operation, gates: int, cell: int) -> Formula:
    """For each time step, direction and sample: products with input and state, two biases, and `cell` FLOPs a unit."""
    steps, hidden = rows(operation.read(0)), operation.given("hidden_size", 0) or axis(operation.read(2), -1)
    directions = 2 if operation.given("direction", "forward") == "bidirectional" else 1
    units, width = Formula.of(hidden), size(operation.read(0), -1) + Formula.of(hidden)
    each = units * width * (2 * gates) + units * (2 * gates * operation.has(3) + cell)
    return steps * each * directions


def _experts(operation: Operation, weights: Iterable[tuple[int, str]]) -> Formula:
    """A mixture of experts: the products of `k` experts for each token, and the softmax of the router.

    `weights` are inputs with the attributes for their bits, if they are packed into bytes. Activations don't count.
    """
    tokens = rows(operation.read(0)) * operation.given("k", 1)
    used = ZERO
    for index, bits in weights:
        if operation.has(index):
            packed = (operation.given(bits, 0) or operation.given("expert_weight_bits", 4)) if bits else 8
            used += _window(operation.read(index)) * (8 // packed)
    return tokens * used * 2 + elements(operation.read(1)) * SOFTMAX


def _fourier(operation: Operation) -> Formula:
    """A fast Fourier transform: 5·n·log₂(n) for each transform (Cooley and Tukey, 1965)."""
    shape = operation.read(0)
    return rows(shape) * _log2(axis(shape, operation.given("axis", -2))) * 5


def _short_fourier(operation: Operation) -> Formula:
    """STFT: a transform for each frame, which is as long as the window, or as the frequencies written imply."""
    written = operation.written()
    frame, bins = axis(operation.read(2), 0), axis(written, -2)
    if frame is None and isinstance(bins, int):
        frame = 2 * (bins - 1) if operation.given("onesided", 1) else bins
    frames = UNKNOWN if written is None else product(written[:2])
    return frames * Formula.of(frame) * _log2(frame) * 5


def _log2(dim: Dim) -> Formula:
    return Formula.of((dim - 1).bit_length() if isinstance(dim, int) and dim else None)


def _linear_model(operation: Operation) -> Formula:
    """Linear classifiers and regressors: each coefficient, of an attribute, is used once for each row."""
    numbers: list[float] | None = operation.given("coefficients", None)
    return UNKNOWN if numbers is None else rows(operation.read(0)) * (2 * len(numbers))


_MS: Final = "com.microsoft."
RULES: Final[Mapping[str, Rule]] = {
    **by_operator(table("costs/flops/products.toml", RuleTable), globals()),
    # The first factor is quantized, at 4 an element, and the result, at 2.
    _MS + "DynamicQuantizeMatMul": lambda o: elements(o.read(0)) * 4 + _matmul(o, 0, 1, 2 + o.has(4)),
    # At least 1 for each element written; the values decide how large a region is.
    "MaxRoiPool": lambda operation: elements(operation.written()) * UNKNOWN,
    # A sum of squares over the window, a scale, a power and a division.
    "LRN": lambda operation: elements(operation.written()) * (2 * operation.given("size", 1) + 7),
    # At most n³ multiply-adds for each matrix.
    **dict.fromkeys(("Det", _MS + "Inverse"), lambda o: elements(o.read(0)) * size(o.read(0), -1) * 2),
    # A difference, a square and a sum for each pair of rows and each column.
    _MS + "CDist": lambda operation: elements(operation.written()) * size(operation.read(0), -1) * 3,
    # Each coordinate written is a sum of as many products as the matrix has columns.
    "AffineGrid": lambda operation: _dot_products(axis(operation.read(0), -1), 0, operation),
}
