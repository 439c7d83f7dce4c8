"""The cases of tests/drawing/golden: the name of each file, and the function that makes its text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphcut.drawing.dot import dot_of
from graphcut.drawing.mermaid import mermaid_of
from graphcut.drawing.svg.document import svg_of

import scenes_by_hand as by_hand
from golden_terminal import TERMINAL

Case = tuple[str, Callable[[], str]]

_SCENES = {
    "one-part": partial(by_hand.decoder, 1, nodes=40),
    "chain": partial(by_hand.decoder, 4, nodes=200),
    "long-chain": partial(by_hand.decoder, 16, nodes=200),
    "heads": by_hand.heads,
    "fork": by_hand.fork,
    "towers": by_hand.towers,
    "tangle": partial(by_hand.tangle, 5),
    "pipeline": partial(by_hand.pipeline, 1),
    "pipeline-in-rows": partial(by_hand.pipeline, 3),
    "hostile": by_hand.hostile,
    "uncut": partial(by_hand.uncut, 200),
}

CASES: list[Case] = [
    (f"{name}.{ending}", lambda make=make, draw=draw: draw(make()))  # type: ignore[misc]
    for name, make in _SCENES.items()
    for ending, draw in (("svg", svg_of), ("dot", dot_of), ("mmd", mermaid_of))
]

# terminal
CASES += TERMINAL
