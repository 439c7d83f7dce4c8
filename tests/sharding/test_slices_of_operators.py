"""Slices of an operator have the bits that the whole has, however its units are given to ranks. On one thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from axis_cases import Array, Case, ints, microsoft, small
from test_axis_rules import divided, operation_of, run, units_of, values_of

from graphcut.sharding.axes.rules import factors_of

from cases import each, seeded

ELEMENTWISE = """
Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Log Mish Reciprocal Relu
Selu Sigmoid Sin Sinh Softplus Softsign Sqrt Tan Tanh
"""
REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"


def image(random: Random, *, axes: int = 3, channels: int | None = None) -> tuple[int, ...]:
    """A batch, channels, and up to so many axes of an image."""
    sizes = random.choices(range(1, 10), k=random.randint(1, axes))
    return random.randint(1, 3), channels or random.randint(2, 60), *sizes


def element(random: Random) -> Case:
    return Case(random.choice(ELEMENTWISE.split()), (image(random),))


def reduction(random: Random) -> Case:
    shape = image(random)
    gone = sorted(random.sample(range(len(shape)), random.randint(1, len(shape) - 1)))
    name, keeps = random.choice(REDUCTIONS.split()), {"keepdims": random.randint(0, 1)}
    return Case(name, (shape, ints(*gone)), keeps, constants=(1,))


def normalization(random: Random) -> Case:
    groups = random.randint(2, 12)
    shape = image(random, channels=groups * random.randint(1, 5))
    each_channel, last = (shape[1],), (shape[-1],)
    match random.randint(0, 3):
        case 0:
            return Case("InstanceNormalization", (shape, each_channel, each_channel))
        case 1:
            return Case("GroupNormalization", (shape, each_channel, each_channel), {"num_groups": groups})
        case 2:
            return Case("LayerNormalization", (shape, last, last))
        case _:
            return Case("Softmax", (shape,), {"axis": random.randrange(len(shape))})


def pool(random: Random) -> Case:
    return Case(random.choice(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"]), (image(random),))


def convolution(random: Random) -> Case:
    shape, channels = image(random, axes=2), random.randint(2, 60)
    kernel = [random.randint(1, min(3, size)) for size in shape[2:]]
    strides = {"strides": [random.randint(1, 2) for _ in kernel]}
    if random.random() < 0.5:
        weight = (shape[1], channels, *kernel)
        return Case("ConvTranspose", (shape, weight, (channels,)), strides, constants=(1, 2))
    return Case("Conv", (shape, (channels, shape[1], *kernel), (channels,)), strides, constants=(1, 2))


def product(random: Random) -> Case:
    rows, inner, width = random.randint(1, 9), random.randint(1, 80), random.randint(2, 90)
    match random.randint(0, 2):
        case 0:
            return Case("MatMul", ((2, rows, inner), (inner, width)), constants=(1,))
        case 1:
            return Case("Gemm", ((rows, inner), (width, inner), (width,)), {"transB": 1}, constants=(1, 2))
        case _:
            n, blocks, level = 4 * random.randint(2, 20), random.randint(1, 4), random.choice([0, 1, 4])
            sizes: dict[str, Any] = {"K": 32 * blocks, "N": n, "bits": 4, "block_size": 32, "accuracy_level": level}
            weight = small(n, blocks, 16), (n, blocks)
            return microsoft("MatMulNBits", ((rows, 32 * blocks), *weight), sizes, constants=(1, 2))


KINDS: tuple[Callable[[Random], Case], ...] = (element, reduction, normalization, pool, convolution, product)


def slices(random: Random, units: int) -> list[slice]:
    """All units, given to two to six ranks with random shares."""
    ranks = random.randint(2, 6)
    return [
        slice(a, b) for a, b in pairwise([0, *sorted(random.choices(range(units + 1), k=ranks - 1)), units]) if a < b
    ]


@each("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
@seeded(12, together=12)
def test_slices_have_the_bits_of_the_whole(seed: int, kind: Callable[[Random], Case]) -> None:
    random = Random(f"{kind.__name__} {seed}")  # noqa: S311
    case = kind(random)
    whole, operation = run(case, values_of(case), case.attributes), operation_of(case)
    for factor in factors_of(operation):
        for units in slices(random, factor.units) if factor.writes else ():
            part = divided(case, operation, factor, units)
            for place in factor.writes:
                want: Array = units_of(whole[place.slot], place, factor.units, units)
                np.testing.assert_array_equal(part[place.slot], want, f"{case} {factor} {units}")
