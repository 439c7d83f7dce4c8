"""The demo `resnet`: a residual image classifier, a chain of blocks with one tensor between each two.

He et al. 2016, with the batch norms folded into the convolutions as exporters do. Inside a block two tensors are
alive, between blocks one: the cut points are the additions.
"""

from __future__ import annotations

from .drafting import Draft, Recipe

_SIDE = 64
_WIDTHS = (8, 16, 32, 64)
_BLOCKS_PER_STAGE = (2, 3, 3, 2)
_CLASSES = 10


class Resnet(Recipe, frozen=True):
    """Nothing can be asked for."""

    def draw(self) -> Draft:
        """Draw the network: `image` in, `logits` out."""
        draft = Draft("resnet")
        x = draft.reads("image", "float32", ["batch", 3, _SIDE, _SIDE])
        draft.returns("logits", "float32", ["batch", _CLASSES])
        width = _WIDTHS[0]
        stem = draft.inside("stem")
        x = stem.node("Relu", stem.inside("conv").conv(x, (3, width), kernel=7, stride=2))
        x = stem.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        for stage, (wider, blocks) in enumerate(zip(_WIDTHS, _BLOCKS_PER_STAGE, strict=True)):
            for block in range(blocks):
                x = _block(draft.inside(f"layer{stage + 1}", str(block)), x, (width, wider))
                width = wider
        _classify(draft.inside("head"), x, width)
        return draft


def _block(at: Draft, x: str, channels: tuple[int, int]) -> str:
    """Two convolutions around which the input passes; where the width grows, both ways halve the image."""
    before, after = channels
    stride = 1 if before == after else 2
    kept = x if before == after else at.inside("downsample").conv(x, channels, kernel=1, stride=stride)
    changed = at.node("Relu", at.inside("conv1").conv(x, channels, stride=stride))
    changed = at.inside("conv2").conv(changed, (after, after))
    return at.node("Relu", at.node("Add", changed, kept))


def _classify(at: Draft, x: str, width: int) -> str:
    flat = at.node("Flatten", at.node("GlobalAveragePool", x))
    weight = at.weight("weight", (_CLASSES, width), scale=width**-0.5)
    return at.node("Gemm", flat, weight, at.weight("bias", (_CLASSES,), scale=0.1), transB=1, writes="logits")
