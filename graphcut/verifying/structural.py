"""The structural proof: the parts, joined by tensor names, are the model.

It compares messages and bytes. It runs nothing and loads no weights, so it works for models of any size. It holds if

- the cascade has the model's inputs and outputs, and each part those that the manifest lists;
- each flowing node of the model belongs to exactly one part, and is in others only as a replica that the manifest
  lists; a random or stateful node is in no other; a constant node may be in any number of parts;
- no part has other nodes;
- each weight, function, opset and annotation of a part is the model's, weights byte by byte;
- a tensor that a part reads is written by an earlier part, with the same type.

Since tensors keep their names and each is written once, the parts then compute the same values as the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from google.protobuf.message import Message
from onnx import ModelProto, TensorProto

from ..core.errors import GraphcutError
from ..core.graph import Graph
from ..core.manifest import Cascade, Part
from ..core.product import Product
from ..core.units import count
from ..core.wiring import Tensor
from ..loading.external_data import same_bytes
from ..loading.fingerprint import canonical, copy_fields, graph_digest
from ..loading.model import Model, load
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import functions_called, is_external, tensors_in


@dataclass(frozen=True, repr=False)
class Proof(Product):
    """The result of the structural comparison."""

    objections: tuple[str, ...]  #: how the cascade differs from the model, one sentence each; empty if the proof holds.
    nodes: int  #: number of the model's nodes that were found in parts.
    replicas: int  #: number of further copies of nodes, constant or recomputed, in the parts.
    weight_bytes: int  #: size of the weights that were compared in files.

    @property
    def holds(self) -> bool:
        """Whether there are no objections."""
        return not self.objections


def prove(model: Model, cascade: Cascade) -> Proof:
    """Compare the parts of `cascade`, joined by tensor names, with `model`."""
    objections = list(_interface(model, cascade))
    holders: dict[str, list[str]] = {}
    replicas = {part.file: set(part.replicas) for part in cascade.parts}
    weight_bytes = 0
    for part in cascade.parts:
        try:
            loaded = load(cascade.file(part))
        except GraphcutError as error:
            objections.append(f"{part.file}: {error}")
            continue
        for node in loaded.graph.nodes:
            holders.setdefault(node.writes[0], []).append(part.file)
        comparison = _PartComparison(model, part, loaded)
        objections += [f"{part.file}: {sentence}" for sentence in comparison.objections(cascade)]
        weight_bytes += comparison.weight_bytes
    objections += _assignment(model.graph, holders, replicas)
    copies = sum(len(files) for files in holders.values()) - len(holders)
    return Proof(tuple(objections), len(holders), copies, weight_bytes)


def _interface(model: Model, cascade: Cascade) -> Iterator[str]:
    manifest, graph = cascade.manifest, model.graph
    if manifest.reads != graph.reads:
        yield f"the cascade reads {_names(manifest.reads)}, but the model {_names(graph.reads)}"
    if manifest.writes != graph.writes:
        yield f"the cascade writes {_names(manifest.writes)}, but the model {_names(graph.writes)}"
    defaults = tuple(name for name in graph.reads if name in graph.weights)
    if manifest.optional != defaults:
        yield f"optional inputs are {_names(manifest.optional)} in the cascade, but {_names(defaults)} in the model"


def _assignment(
    graph: Graph, holders: Mapping[str, Sequence[str]], replicas: Mapping[str, AbstractSet[str]]
) -> Iterator[str]:
    """Check that each flowing node belongs to one part; a constant node may be in any number, also in none.

    Args:
        graph: of the model.
        holders: the files of the parts that have a node, by the first tensor that it writes.
        replicas: names of the replicas that the manifest lists for a part.
    """
    for node in graph.nodes:
        if node.is_constant:
            continue
        found = holders.get(node.writes[0], ())
        homes = [file for file in found if node.name not in replicas[file]]
        if not found:
            yield f"node {node.name!r} is in no part"
        elif not homes:
            yield f"node {node.name!r} belongs to no part: it is a replica in {', '.join(found)}"
        elif len(homes) > 1:
            yield f"node {node.name!r} is in {count(len(homes), 'part')}: {', '.join(homes)}"
        elif node.is_stateful and len(found) > 1:
            yield f"node {node.name!r} must run once, but is in {count(len(found), 'part')}: {', '.join(found)}"


class _PartComparison:
    """Compares a part with the model.

    Attributes:
        weight_bytes: size of the weights that were compared in files so far.
    """

    def __init__(self, model: Model, part: Part, loaded: Model) -> None:
        self.weight_bytes = 0
        self._model, self._proto = model, model.proto
        self._part = part
        self._loaded, self._part_proto = loaded, loaded.proto

    def objections(self, cascade: Cascade) -> Iterator[str]:
        """How the part differs from the model, one sentence each."""
        if graph_digest(self._part_proto) != self._part.graph and not self._loaded.dropped:
            yield "its graph is not the one that was written: the digest differs"
        if dropped := self._loaded.dropped:
            yield f"it has {count(len(dropped), 'node')} that no output depends on, such as {dropped[0]!r}"
        if unused := self._loaded.unused:
            yield f"it has weights or functions that no node uses, such as {unused[0]!r}"
        yield from self._boundary(cascade)
        yield from self._metadata()
        yield from self._nodes()
        yield from self._replicas()
        yield from self._initializers()
        yield from self._functions()
        yield from self._annotations()

    def _boundary(self, cascade: Cascade) -> Iterator[str]:
        graph, part = self._loaded.graph, self._part
        if graph.reads != part.reads:
            yield f"it reads {_names(graph.reads)}, but the manifest lists {_names(part.reads)}"
        if graph.writes != part.writes:
            yield f"it writes {_names(graph.writes)}, but the manifest lists {_names(part.writes)}"
        for value in (*self._part_proto.graph.input, *self._part_proto.graph.output):
            listed = cascade.tensors.get(value.name)
            found = tensor_of_type(value.name, value.type)
            if listed is not None and not _is_compatible(found, listed):
                yield f"{value.name!r} is {found} in it, but {listed} in the manifest"
            elif (size := _frozen_size(found, self._model.boundary_types.get(value.name))) is not None:
                yield f"{value.name!r} has the size {size} in it, but a symbol in the model"

    def _metadata(self) -> Iterator[str]:
        ours, original = ModelProto(), ModelProto()
        copy_fields(self._part_proto, ours, but={"graph", "functions", "training_info"})
        copy_fields(self._proto, original, but={"graph", "functions", "training_info"})
        if ours != original:
            yield "its IR version, opsets, metadata or configuration differ from the model's"
        a, b = self._part_proto.graph, self._proto.graph
        if (a.name, a.doc_string, list(a.metadata_props)) != (b.name, b.doc_string, list(b.metadata_props)):
            yield "the name, doc_string or metadata of its graph differ from the model's"

    def _nodes(self) -> Iterator[str]:
        producer, originals = self._model.graph.producer, self._proto.graph.node
        pairs = zip(self._loaded.graph.nodes, self._part_proto.graph.node, strict=True)
        found = ((node.name, proto, producer.get(node.writes[0])) for node, proto in pairs)
        triples = ((name, proto, None if i is None else originals[i]) for name, proto, i in found)
        yield from self._compare("node", triples)

    def _replicas(self) -> Iterator[str]:
        """Check that it has the replicas of the manifest, and that no other part reads what flowing ones write."""
        nodes, producer = self._model.graph.nodes, self._model.graph.producer
        held = {nodes[producer[t]].name for node in self._loaded.graph.nodes if (t := node.writes[0]) in producer}
        replicas = dict.fromkeys(self._part.replicas)
        for name in replicas:
            if name not in held:
                yield f"it lacks node {name!r}, which the manifest lists among its replicas"
        for tensor in self._loaded.graph.writes:
            node = nodes[producer[tensor]] if tensor in producer else None
            if node is not None and node.name in replicas and not node.is_constant:
                yield f"its output {tensor!r} is written by its replica {node.name!r}"

    def _initializers(self) -> Iterator[str]:
        ours, original = self._part_proto.graph, self._proto.graph
        weights = {tensor.name: tensor for tensor in original.initializer}
        triples = ((tensor.name, tensor, weights.get(tensor.name)) for tensor in ours.initializer)
        yield from self._compare("weight", triples)
        sparse = {s.values.name: s for s in original.sparse_initializer}
        found = ((s.values.name, s, sparse.get(s.values.name)) for s in ours.sparse_initializer)
        yield from self._compare("sparse weight", found)

    def _functions(self) -> Iterator[str]:
        ours, originals = self._loaded.functions, self._model.functions
        for key in functions_called(self._part_proto.graph.node, originals):
            if key not in ours:
                yield f"function {'.'.join(key[:2])!r} is called, but missing"
        triples = ((".".join(key[:2]), function, originals.get(key)) for key, function in ours.items())
        yield from self._compare("function", triples)

    def _annotations(self) -> Iterator[str]:
        ours, original = self._part_proto.graph, self._proto.graph
        values = {value.name: value for value in original.value_info}
        for value in ours.value_info:
            if values.get(value.name) != value:
                yield f"the value_info of {value.name!r} is not the model's"
        known = {a.SerializeToString(deterministic=True) for a in original.quantization_annotation}
        for annotation in ours.quantization_annotation:
            if annotation.SerializeToString(deterministic=True) not in known:
                yield f"the quantization annotation of {annotation.tensor_name!r} is not the model's"

    def _compare(self, kind: str, triples: Iterable[tuple[str, Message, Message | None]]) -> Iterator[str]:
        """Compare messages of the part with those of the model: canonical bytes, then the values in files."""
        for name, ours, original in triples:
            if original is None:
                yield f"{kind} {name!r} is not in the model"
            elif canonical(ours) != canonical(original):
                yield f"{kind} {name!r} differs from the model's"
            else:
                for a, b in zip(tensors_in(ours), tensors_in(original), strict=True):
                    if is_external(a) and is_external(b) and not self._has_same_values(a, b):
                        yield f"the values of {a.name or 'a constant'!r} differ from the model's"

    def _has_same_values(self, ours: TensorProto, original: TensorProto) -> bool:
        a, b = self._loaded.range_of(ours), self._model.range_of(original)
        self.weight_bytes += a.length
        return same_bytes(replace(a, file=a.file.resolve()), replace(b, file=b.file.resolve()))


def _is_compatible(found: Tensor, listed: Tensor) -> bool:
    """Whether the types are equal and the shapes don't contradict each other; an output may have no sizes."""
    if found.dtype != listed.dtype:
        return False
    if found.shape is None or listed.shape is None:
        return True
    return len(found.shape) == len(listed.shape) and all(
        a is None or a == b for a, b in zip(found.shape, listed.shape, strict=True)
    )


def _frozen_size(found: Tensor, original: Tensor | None) -> int | None:
    """A number in `found` where the original has a symbol."""
    shape = original.shape if original is not None else None
    pairs = zip(found.shape or (), shape or (), strict=False)
    return next((a for a, b in pairs if isinstance(a, int) and isinstance(b, str)), None)


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    return f"{shown or 'nothing'}{', …' if len(names) > 4 else ''} ({len(names)})"
