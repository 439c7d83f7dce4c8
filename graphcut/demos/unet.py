"""The demo `unet`: a U-Net (Ronneberger, Fischer and Brox 2015) with padding.

Every level has a skip connection. A cut in the middle is crossed by one tensor for each level: these are the residual
dependencies of the cascade.
"""

from itertools import pairwise

import numpy as np

from .drafting import Draft, Recipe

_SIDE = 64
_WIDTHS = (8, 16, 32)
_BOTTOM_WIDTH = 64


class Unet(Recipe, frozen=True):
    """The demo has no options."""

    def draw(self) -> Draft:
        """Build the network: input `image`, output `mask` (a probability for each pixel)."""
        draft = Draft("unet")
        x = draft.reads("image", "float32", ["batch", 3, _SIDE, _SIDE])
        draft.returns("mask", "float32", ["batch", 1, _SIDE, _SIDE])
        skips: list[str] = []
        for level, widths in enumerate(pairwise((3, *_WIDTHS))):
            down = draft.inside(f"down.{level}")
            skips.append(_block(down, x, widths))
            x = down.node("MaxPool", skips[-1], kernel_shape=[2, 2], strides=[2, 2])
        x = _block(draft.inside("bottom"), x, (_WIDTHS[-1], _BOTTOM_WIDTH))
        for level, (narrower, width) in reversed(list(enumerate(pairwise((*_WIDTHS, _BOTTOM_WIDTH))))):
            up = draft.inside(f"up.{level}")
            x = up.node("Concat", _enlarge(up, x), skips[level], axis=1)
            x = _block(up, x, (width + narrower, narrower))
        head = draft.inside("head")
        head.node("Sigmoid", head.inside("conv").conv(x, (_WIDTHS[0], 1), kernel=1), writes="mask")
        return draft


def _block(at: Draft, x: str, channels: tuple[int, int]) -> str:
    """Two convolutions, each normalized and rectified."""
    for index, width in enumerate(channels):
        x = at.inside(f"conv.{index}").conv(x, (width, channels[1]))
        x = at.node("Relu", _normalize(at.inside(f"norm.{index}"), x, channels[1]))
    return x


def _normalize(at: Draft, x: str, channels: int) -> str:
    means = (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0))
    scale, bias, mean, variance = (at.weight(name, (channels,), mean=centre, scale=0.1) for name, centre in means)
    return at.node("BatchNormalization", x, scale, bias, mean, variance)


def _enlarge(at: Draft, x: str) -> str:
    """Double height and width. As exporters do, omit the second input and give the third."""
    scales = at.constant(np.array([1, 1, 2, 2], np.float32))
    return at.node(
        "Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
