"""The demo `multitask`: one trunk, and three heads with one output each.

Two heads read the end of the trunk. `depth` reads its middle, so that it can run in parallel with the rest of the
trunk; if they are different parts, its input is a residual dependency.
"""

from itertools import pairwise

import numpy as np

from .drafting import Draft, Recipe

_SIDE = 64
_TRUNK_WIDTHS = (8, 16, 32, 64)
_MIDDLE = 2  # stages of the trunk that `depth` needs
_CLASSES = 10
_ANCHORS = 3


class Multitask(Recipe, frozen=True):
    """The demo has no options."""

    def draw(self) -> Draft:
        """Build the network: input `image`; outputs `logits`, `boxes` and `depth`."""
        draft = Draft("multitask")
        features = [draft.reads("image", "float32", ["batch", 3, _SIDE, _SIDE])]
        for stage, widths in enumerate(pairwise((3, *_TRUNK_WIDTHS))):
            features.append(_stage(draft.inside("trunk", f"stage.{stage}"), features[-1], widths))
        heads = draft.inside("heads")
        _logits(draft, heads.inside("logits"), features[-1])
        _boxes(draft, heads.inside("boxes"), features[-1])
        _depth(draft, heads.inside("depth"), features[_MIDDLE])
        return draft


def _stage(at: Draft, x: str, channels: tuple[int, int]) -> str:
    """Two convolutions: the first halves the image, the second has a skip connection."""
    x = at.node("Relu", at.inside("conv.0").conv(x, channels, stride=2))
    return at.node("Add", x, at.node("Relu", at.inside("conv.1").conv(x, (channels[1], channels[1]))))


def _logits(draft: Draft, at: Draft, x: str) -> None:
    """The head for the class of the image."""
    pooled = at.node("ReduceMean", x, axes=[2, 3], keepdims=0)
    product = at.inside("linear").linear(pooled, _TRUNK_WIDTHS[-1], _CLASSES)
    at.node("Add", product, at.weight("bias", (_CLASSES,), scale=0.1), writes="logits")
    draft.returns("logits", "float32", ["batch", _CLASSES])


def _boxes(draft: Draft, at: Draft, x: str) -> None:
    """The head for boxes: `_ANCHORS` boxes of four numbers for each pixel of the coarsest features."""
    width, side = _TRUNK_WIDTHS[-1], _SIDE >> len(_TRUNK_WIDTHS)
    seen = at.node("Relu", at.inside("conv.0").conv(x, (width, width)))
    grid = at.inside("conv.1").conv(seen, (width, 4 * _ANCHORS), kernel=1)
    last = at.node("Transpose", grid, perm=[0, 2, 3, 1])
    rows = at.node("Reshape", last, at.constant(np.array([0, _ANCHORS * side**2, 4])))
    at.node("Sigmoid", rows, writes="boxes")
    draft.returns("boxes", "float32", ["batch", _ANCHORS * side**2, 4])


def _depth(draft: Draft, at: Draft, x: str) -> None:
    """The head for depth, at half the image size."""
    width, side = _TRUNK_WIDTHS[_MIDDLE - 1], _SIDE // 2
    seen = at.node("Relu", at.inside("conv.0").conv(x, (width, width)))
    weight = at.inside("deconv").weight("weight", (width, width, 2, 2), scale=width**-0.5)
    larger = at.node("Relu", at.node("ConvTranspose", seen, weight, kernel_shape=[2, 2], strides=[2, 2]))
    at.node("Softplus", at.inside("conv.1").conv(larger, (width, 1), kernel=1), writes="depth")
    draft.returns("depth", "float32", ["batch", 1, side, side])
