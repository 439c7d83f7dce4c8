"""One tiny model that carries one hazard, and what is known of the right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime as ort
from onnx import ModelProto

from .claims import Claim, Pieces

ORT_VERSION = tuple(map(int, ort.__version__.split(".")[:2]))


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """A model that is easily cut wrongly.

    Attributes:
        model: the model; its external weights are in `files`.
        feeds: one value for each input. Beside arrays there are dicts, for inputs of a map type.
        cut: tensors to cut at, first to be made first; `("a", "b")` asks for three parts. Empty where `assign` says
            more, and where there is nothing to cut.
        correct: what a correct splitter does.
        boundary_hint: all that crosses the boundary, where that is more than `cut`.
        assign: the part of each node, the node named by its first output. Used instead of `cut`.
        refused: a word of the error, where to refuse is the right answer.
        asserts: what is true of the parts of a correct splitter.
        files: what lies beside the model, by its path relative to it.
        ort_refuses: a word of the error with which ONNX Runtime refuses the uncut model.
        since: the first version of ONNX Runtime that runs the uncut model as the standard says.
        checker_refuses: a word of the error with which `onnx.checker` refuses the uncut model.
    """

    model: ModelProto
    feeds: Mapping[str, object]
    cut: tuple[str, ...]
    correct: str
    boundary_hint: tuple[str, ...] = ()
    assign: Mapping[str, int] | None = None
    refused: str = ""
    asserts: tuple[Claim, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    ort_refuses: str = ""
    since: tuple[int, int] = (0, 0)
    checker_refuses: str = ""

    def write(self, folder: Path) -> Path:
        """Write the model, and the files that belong to it, into `folder`. Gives the path of the model."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        path = folder / "model.onnx"
        path.write_bytes(self.model.SerializeToString(deterministic=True))
        return path

    @property
    def runs(self) -> bool:
        """Whether the installed ONNX Runtime runs the uncut model."""
        return not self.ort_refuses and self.since <= ORT_VERSION

    def ways_to_feed(self) -> tuple[Mapping[str, object], ...]:
        """The feeds; and where the model has a default for one of them, also the feeds without these."""
        defaults = {weight.name for weight in self.model.graph.initializer}
        required = {name: fed for name, fed in self.feeds.items() if name not in defaults}
        return (self.feeds,) if len(required) == len(self.feeds) else (self.feeds, required)

    def objections(self, parts: Sequence[ModelProto]) -> list[str]:
        """What `asserts` have against `parts`; empty when all of them hold.

        The parts stand in the order they run, with their external weights loaded.
        """
        pieces = Pieces(self.model, tuple(parts))
        return [said for claim in self.asserts if (said := claim.objection(pieces))]
