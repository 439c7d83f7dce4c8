"""The structural proof: the parts, stitched together by tensor name, are the model.

Needs no inference and no weights in memory, so it works for models of any size. It holds when

- the cascade has the model's inputs and outputs, and each part those that the manifest says;
- each flowing node of the model has its home in exactly one part, and stands in others only as a replica that the
  manifest lists, which a random or stateful node never is; each constant node stands in any number; no part has others;
- each weight, function, opset and annotation of a part is the model's, weights byte by byte;
- what one part reads, an earlier part writes, under the same type.

Since tensors keep their names and are written once, the parts then compute the same values as the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from ..core.errors import GraphcutError
from ..core.graph import Graph
from ..core.manifest import Cascade, Part
from ..core.product import Product
from ..core.units import count
from ..core.wiring import Tensor
from ..loading.external_data import ByteRange, same_bytes
from ..loading.fingerprint import (
    canonical_function,
    canonical_node,
    canonical_sparse,
    canonical_tensor,
    copy_fields,
    graph_digest,
)
from ..loading.model import Model, load
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import function_key, functions_called, is_external, tensors_in_function, tensors_within


@dataclass(frozen=True, repr=False)
class Proof(Product):
    """What the structural comparison found.

    Attributes:
        objections: what speaks against the cascade, one sentence each; empty when the proof holds.
        nodes: how many nodes of the model were found again.
        replicas: how many copies of nodes, constant or recomputed, the parts hold beyond one each.
        weight_bytes: how many bytes of weights were compared.
    """

    objections: tuple[str, ...]
    nodes: int
    replicas: int
    weight_bytes: int

    @property
    def holds(self) -> bool:
        """Does nothing speak against it?"""
        return not self.objections


def prove(model: Model, cascade: Cascade) -> Proof:
    """Compare the parts of `cascade`, stitched together, with `model`."""
    objections = list(_interface(model, cascade))
    holders: dict[str, list[str]] = {}
    replicas = {part.file: set(part.replicas) for part in cascade.parts}
    weight_bytes = 0
    for part in cascade.parts:
        try:
            piece = load(cascade.file(part))
        except GraphcutError as error:
            objections.append(f"{part.file}: {error}")
            continue
        for node in piece.graph.nodes:
            holders.setdefault(node.writes[0], []).append(part.file)
        checker = _PartCheck(model, part, piece)
        objections += [f"{part.file}: {sentence}" for sentence in checker.objections(cascade)]
        weight_bytes += checker.weight_bytes
    objections += _placing(model.graph, holders, replicas)
    copies = sum(len(files) for files in holders.values()) - len(holders)
    return Proof(tuple(objections), len(holders), copies, weight_bytes)


def _interface(model: Model, cascade: Cascade) -> Iterator[str]:
    manifest, graph = cascade.manifest, model.graph
    if manifest.reads != graph.reads:
        yield f"the cascade reads {_names(manifest.reads)}, and the model {_names(graph.reads)}"
    if manifest.writes != graph.writes:
        yield f"the cascade gives out {_names(manifest.writes)}, and the model {_names(graph.writes)}"
    defaults = tuple(name for name in graph.reads if name in graph.weights)
    if manifest.optional != defaults:
        yield f"the cascade can do without {_names(manifest.optional)}, and the model without {_names(defaults)}"


def _placing(
    graph: Graph, holders: Mapping[str, Sequence[str]], replicas: Mapping[str, AbstractSet[str]]
) -> Iterator[str]:
    """Every flowing node at home in one part; a constant node in any, or in none where nothing needs it.

    Args:
        graph: that of the model.
        holders: the parts that hold a node, by the first tensor that it writes.
        replicas: the names of the nodes that a part says it computes for itself.
    """
    for node in graph.nodes:
        if node.is_constant:
            continue
        found = holders.get(node.writes[0], ())
        homes = [file for file in found if node.name not in replicas[file]]
        if not found:
            yield f"node {node.name!r} stands in no part"
        elif not homes:
            yield f"node {node.name!r} has no home: it is a replica in {', '.join(found)}"
        elif len(homes) > 1:
            yield f"node {node.name!r} stands in {count(len(homes), 'part')}: {', '.join(homes)}"
        elif node.is_stateful and len(found) > 1:
            yield f"node {node.name!r} must run once, and stands in {count(len(found), 'part')}: {', '.join(found)}"


class _PartCheck:
    """One part against the model."""

    def __init__(self, model: Model, part: Part, piece: Model) -> None:
        self.model = model
        self.part = part
        self.piece = piece
        self.weight_bytes = 0

    def objections(self, cascade: Cascade) -> Iterator[str]:
        if graph_digest(self.piece.proto) != self.part.graph and not self.piece.dropped:
            yield "its graph is not the one that was written: the digest differs"
        if dropped := self.piece.dropped:
            yield f"it holds {count(len(dropped), 'node')} that nothing needs, such as {dropped[0]!r}"
        if unused := self.piece.unused:
            yield f"it holds weights or functions that nothing needs, such as {unused[0]!r}"
        yield from self._borders(cascade)
        yield from self._head()
        yield from self._nodes()
        yield from self._replicas()
        yield from self._initializers()
        yield from self._functions()
        yield from self._annotations()

    def _borders(self, cascade: Cascade) -> Iterator[str]:
        graph = self.piece.graph
        if graph.reads != self.part.reads:
            yield f"it reads {_names(graph.reads)}, and the manifest says {_names(self.part.reads)}"
        if graph.writes != self.part.writes:
            yield f"it gives out {_names(graph.writes)}, and the manifest says {_names(self.part.writes)}"
        for value in (*self.piece.proto.graph.input, *self.piece.proto.graph.output):
            said = cascade.tensors.get(value.name)
            found = tensor_of_type(value.name, value.type)
            if said is not None and not _agree(found, said):
                yield f"{value.name!r} is {found} in it, and {said} in the manifest"
            elif found.shape is not None and (frozen := _frozen(found, self.model.boundary_types.get(value.name))):
                yield f"{value.name!r} has the size {frozen} in it, which is open in the model"

    def _head(self) -> Iterator[str]:
        mine, theirs = ModelProto(), ModelProto()
        copy_fields(self.piece.proto, mine, but={"graph", "functions", "training_info"})
        copy_fields(self.model.proto, theirs, but={"graph", "functions", "training_info"})
        if mine != theirs:
            yield "its IR version, opsets, metadata or configuration differ from the model's"
        ours, original = self.piece.proto.graph, self.model.proto.graph
        if (ours.name, ours.doc_string, list(ours.metadata_props)) != (
            original.name,
            original.doc_string,
            list(original.metadata_props),
        ):
            yield "the name, the text or the metadata of its graph differ from the model's"

    def _nodes(self) -> Iterator[str]:
        places = self.model.graph.producer
        for node, proto in zip(self.piece.graph.nodes, self.piece.proto.graph.node, strict=True):
            place = places.get(node.writes[0])
            if place is None:
                yield f"node {node.name!r} is not in the model"
                continue
            original = self.model.proto.graph.node[place]
            if canonical_node(proto) != canonical_node(original):
                yield f"node {node.name!r} differs from the model's"
            else:
                yield from self._payloads(tensors_within([proto]), tensors_within([original]))

    def _replicas(self) -> Iterator[str]:
        """What the manifest says that it computes for itself, it holds, and it keeps for itself what flows there."""
        nodes, places = self.model.graph.nodes, self.model.graph.producer
        held = {nodes[places[t]].name for node in self.piece.graph.nodes if (t := node.writes[0]) in places}
        replicas = dict.fromkeys(self.part.replicas)
        for name in replicas:
            if name not in held:
                yield f"it lacks node {name!r}, which the manifest lists among its replicas"
        for tensor in self.piece.graph.writes:
            node = nodes[places[tensor]] if tensor in places else None
            if node is not None and node.name in replicas and not node.is_constant:
                yield f"it gives out {tensor!r}, which its replica {node.name!r} makes"

    def _initializers(self) -> Iterator[str]:
        originals = {tensor.name: tensor for tensor in self.model.proto.graph.initializer}
        for tensor in self.piece.proto.graph.initializer:
            original = originals.get(tensor.name)
            if original is None or canonical_tensor(tensor) != canonical_tensor(original):
                yield f"weight {tensor.name!r} {'is not in the model' if original is None else 'differs'}"
            else:
                yield from self._payloads([tensor], [original])
        sparse = {s.values.name: s for s in self.model.proto.graph.sparse_initializer}
        for mine in self.piece.proto.graph.sparse_initializer:
            theirs = sparse.get(mine.values.name)
            if theirs is None or canonical_sparse(mine) != canonical_sparse(theirs):
                yield f"sparse weight {mine.values.name!r} is not the model's"
            else:
                yield from self._payloads((mine.values, mine.indices), (theirs.values, theirs.indices))

    def _functions(self) -> Iterator[str]:
        mine = {function_key(function): function for function in self.piece.proto.functions}
        needed = functions_called(self.piece.proto.graph.node, self.model.functions)
        for key in needed:
            if key not in mine:
                yield f"function {'.'.join(key[:2])!r} is called and not there"
        for key, function in mine.items():
            original = self.model.functions.get(key)
            if original is None:
                yield f"function {'.'.join(key[:2])!r} is not in the model"
                continue
            if canonical_function(function) != canonical_function(original):
                yield f"function {'.'.join(key[:2])!r} differs from the model's"
            else:
                yield from self._payloads(tensors_in_function(function), tensors_in_function(original))

    def _annotations(self) -> Iterator[str]:
        known = {v.name: v for v in self.model.proto.graph.value_info}
        for value in self.piece.proto.graph.value_info:
            if value.name not in known or known[value.name] != value:
                yield f"the value_info of {value.name!r} is not the model's"
        notes = {n.SerializeToString(deterministic=True) for n in self.model.proto.graph.quantization_annotation}
        for note in self.piece.proto.graph.quantization_annotation:
            if note.SerializeToString(deterministic=True) not in notes:
                yield f"the quantization annotation of {note.tensor_name!r} is not the model's"

    def _payloads(self, mine: Iterable[TensorProto], theirs: Iterable[TensorProto]) -> Iterator[str]:
        """The values that lie in files, compared where they lie."""
        for ours, original in zip(mine, theirs, strict=True):
            if not (is_external(ours) and is_external(original)):
                continue  # small values stand in the message, which is compared already
            here, there = self.piece.range_of(ours), self.model.range_of(original)
            self.weight_bytes += here.length
            if not _same(here, there):
                yield f"the values of {ours.name or 'a constant'!r} differ from the model's"


def _agree(found: Tensor, said: Tensor) -> bool:
    """Is it the same type, and of sizes that do not contradict each other? An output may be declared without sizes."""
    if found.dtype != said.dtype:
        return False
    if found.shape is None or said.shape is None:
        return True
    return len(found.shape) == len(said.shape) and all(
        a is None or a == b for a, b in zip(found.shape, said.shape, strict=True)
    )


def _frozen(found: Tensor, original: Tensor | None) -> int | None:
    """A number in `found` where the original has a symbol."""
    if original is None or original.shape is None or found.shape is None:
        return None
    pairs = zip(found.shape, original.shape, strict=False)
    return next((a for a, b in pairs if isinstance(a, int) and isinstance(b, str)), None)


def _same(here: ByteRange, there: ByteRange) -> bool:
    return same_bytes(
        ByteRange(here.file.resolve(), here.offset, here.length),
        ByteRange(there.file.resolve(), there.offset, there.length),
    )


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    return f"{shown or 'nothing'}{', …' if len(names) > 4 else ''} ({len(names)})"
