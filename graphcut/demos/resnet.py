"""The demo `resnet`: a residual image classifier (He et al. 2016), batch norms folded into the convolutions.

Two tensors are alive inside a block, one between blocks: the cheapest cut points are after the additions.
"""

from .drafting import Draft, Recipe

_SIDE = 64
_WIDTHS = (8, 16, 32, 64)
_CLASSES = 10


class Resnet(Recipe, frozen=True):
    """The demo has no options."""

    def draw(self) -> Draft:
        """Build the network: input `image`, output `logits`."""
        draft = Draft("resnet")
        x = draft.reads("image", "float32", ["batch", 3, _SIDE, _SIDE])
        draft.returns("logits", "float32", ["batch", _CLASSES])
        width = _WIDTHS[0]
        stem = draft.inside("stem")
        x = stem.node("Relu", stem.inside("conv").conv(x, (3, width), kernel=7, stride=2))
        x = stem.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        for stage, (wider, blocks) in enumerate(zip(_WIDTHS, (2, 3, 3, 2), strict=True)):
            for block in range(blocks):
                x = _block(draft.inside(f"layer{stage + 1}", str(block)), x, (width, wider))
                width = wider
        _classify(draft.inside("head"), x, width)
        return draft


def _block(at: Draft, x: str, channels: tuple[int, int]) -> str:
    """Two convolutions with a skip connection; where the width grows, both branches halve the image."""
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
