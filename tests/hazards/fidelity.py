"""The claim that nothing was lost of what the model says about itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from onnx import GraphProto, ModelProto, StringStringEntryProto, ValueInfoProto

from .claims import Pieces, content

MODEL_FIELDS = ("producer_name", "producer_version", "domain", "model_version", "doc_string", "configuration")


class Described(Protocol):
    """A proto that carries metadata."""

    @property
    def metadata_props(self) -> Iterable[StringStringEntryProto]: ...


@dataclass(frozen=True)
class Fidelity:
    """Every annotation of what the part keeps is there, as it was.

    The part may say more: metadata of its own, types of tensors that had none.
    """

    part: int

    def objection(self, pieces: Pieces) -> str:
        lost = list(_lost(pieces.original, pieces.parts[self.part]))
        return f"part {self.part} loses or changes {', '.join(lost)}" if lost else ""


def _lost(original: ModelProto, part: ModelProto) -> Iterator[str]:
    for name in MODEL_FIELDS:
        if getattr(original, name) != getattr(part, name):
            yield f"{name} of the model"
    yield from _lost_metadata("the model", original, part)
    yield from _lost_metadata("the graph", original.graph, part.graph)
    if original.graph.doc_string != part.graph.doc_string:
        yield "doc_string of the graph"
    yield from _changed_nodes(original.graph, part.graph)
    yield from _changed_weights(original.graph, part.graph)
    yield from _changed_values(original.graph, part.graph)
    yield from _lost_quantization(original.graph, part.graph)


def _lost_metadata(where: str, original: Described, part: Described) -> Iterator[str]:
    kept = {entry.key: entry.value for entry in part.metadata_props}
    for entry in original.metadata_props:
        if kept.get(entry.key) != entry.value:
            yield f"metadata {entry.key!r} of {where}"


def _changed_nodes(original: GraphProto, part: GraphProto) -> Iterator[str]:
    known = {node.SerializeToString(deterministic=True) for node in original.node}
    for node in part.node:
        if node.SerializeToString(deterministic=True) not in known:
            yield f"node {node.name!r}"


def _changed_weights(original: GraphProto, part: GraphProto) -> Iterator[str]:
    known = {weight.name: content(weight) for weight in original.initializer}
    for weight in part.initializer:
        if content(weight) != known.get(weight.name):
            yield f"initializer {weight.name!r}"


def _changed_values(original: GraphProto, part: GraphProto) -> Iterator[str]:
    known = _described(original)
    kept = _described(part)
    for name in _tensors(part):
        if name in known and known[name] != kept.get(name):
            yield f"what is said of {name!r}"


def _lost_quantization(original: GraphProto, part: GraphProto) -> Iterator[str]:
    """Annotations count where everything they speak of is in the part."""
    present = set(_tensors(part)) | {weight.name for weight in part.initializer}
    for annotation in original.quantization_annotation:
        named = {annotation.tensor_name, *(entry.value for entry in annotation.quant_parameter_tensor_names)}
        if named <= present and annotation not in part.quantization_annotation:
            yield f"quantization of {annotation.tensor_name!r}"


def _described(graph: GraphProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}


def _tensors(graph: GraphProto) -> Iterable[str]:
    return dict.fromkeys(name for node in graph.node for name in (*node.input, *node.output) if name)
