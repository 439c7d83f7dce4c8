"""The structural proof: the parts, joined by tensor names, are the model.

It compares messages and bytes. It runs nothing and loads no weights, so it works for models of any size. It holds if

- the cascade has the model's inputs and outputs, and each part those that the manifest lists;
- each flowing node of the model is in a part, and in others only as a replica that the manifest lists; a random or
  stateful node is in no other; a constant node may be in any number of parts, also in none;
- a replica equals its node, or is rewritten by a rule (`loading.derived_tensors`) where the manifest says so;
- no part has other nodes;
- an input with a default is such an input in each part that has it;
- each weight, function, opset, declaration and annotation of a part is the model's, weights byte by byte;
- a tensor that a part reads is written by an earlier part;
- the manifest says of the model and of the parts what can be derived from them (see `facts`).

Since tensors keep their names and each is written once, the parts then compute the same values as the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace
from onnx import NodeProto, ValueInfoProto

from ..core.errors import GraphcutError, UsageError
from ..core.graph import Graph
from ..core.manifest import Cascade, Manifest, Part
from ..core.product import Product
from ..core.records import table
from ..core.units import count
from ..costs.caches import find_caches
from ..costs.facts import boundary_type, boundary_value, contradicts, half_source, nodes_of, part_facts
from ..costs.held_weights import HeldWeights, held_by
from ..loading.derived_tensors import cast, copies
from ..loading.fingerprint import canonical, graph_digest, head_of, normal, same_values, without_values
from ..loading.model import Model, load_unchecked
from ..loading.opening import load
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import function_key, functions_called, is_external, tensors_in
from ..loading.tensor_values import values_bytes
from .manifest_check import other_text, shown, wrong_bytes, wrong_ends, wrong_in_manifest, wrong_in_part

_NAMED: Final = table("verifying/named.json", dict[str, tuple[str, str]])
"""What a graph has by names: what each is called, its field, and the one of its fields that is its name."""


@dataclass(frozen=True, repr=False)
class Proof(Product):
    """The result of the structural comparison."""

    objections: tuple[str, ...]  #: how the cascade differs from the model, one sentence each; empty if the proof holds.
    nodes: int  #: number of the model's nodes that were found in parts.
    replicas: int  #: number of further copies of nodes, constant or recomputed, in the parts.
    weight_bytes: int  #: size of the weights that were compared in files.
    approximate: int = 0  #: number of rewritten replicas that need not give the model's bits.
    halves: int = 0  #: number of float32 tensors that are sent as float16.
    given_states: int = 0  #: number of states that only the manifest gives; of these the types were compared.
    texts: tuple[str, ...] = ()  #: files of the tokenizer that were not compared: none is beside the model.
    unread: tuple[str, ...] = ()  #: the parts in ONNX Runtime's own format, whose nodes and weights were not compared.
    stored_in: str = ""  #: the files of the model's weights, if they are in others than when it was cut.
    stored_otherwise: tuple[str, ...] = ()  #: weights and nodes of parts with values in another field than the model's.

    @property
    def holds(self) -> bool:
        """Whether there are no objections, and all parts were compared."""
        return not (self.objections or self.unread)


def prove(model: Model, cascade: Cascade) -> Proof:
    """Compare the parts of `cascade`, joined by tensor names, with `model`."""
    manifest = cascade.manifest
    given = {state.past: state.present for state in manifest.states if state.is_given}
    known = {cache.past: cache.present for cache in find_caches(load(model, states={}))} | dict(model.states)
    objections = [*_wrong_states(known, manifest, {*given, *model.states})]
    for field, options in (("dims", {"dims": manifest.dims}), ("states", {"states": given})):
        try:
            model = load(model, **options) if getattr(model, field) != options[field] else model
        except UsageError as error:
            objections.append(f"{field}: {error}")
    other, texts = other_text(model, cascade)
    objections += (*wrong_in_manifest(model, cascade), *other)
    holders: dict[int, list[str]] = {}
    otherwise: dict[str, None] = {}
    read = weight_bytes = approximate = halves = 0
    inner = {value.name: value for value in model.proto.graph.value_info}
    held = held_by(model)
    for part in cascade.parts:
        if part.is_converted:
            objections += (f"{part.file}: {text}" for text in (*wrong_bytes(cascade, part), *wrong_ends(cascade, part)))
            continue
        try:
            loaded = load_unchecked(cascade.file(part))
        except GraphcutError as error:
            objections.append(f"{part.file}: {error}")
            continue
        read += 1
        nodes = nodes_of(model, loaded.proto)
        comparison = _PartComparison(model, part, loaded)
        found = [*comparison.objections(inner)]
        if not found:
            facts = _facts(held(cascade.settings(part)), cascade, part, loaded, holders.keys())
            found = [*wrong_in_part(cascade, part, loaded, facts), *wrong_bytes(cascade, part)]
        objections += [f"{part.file}: {sentence}" for sentence in found]
        weight_bytes += comparison.weight_bytes
        otherwise |= dict.fromkeys(comparison.stored_otherwise)
        rewrites = (model.graph.nodes[node].rewrite for node in nodes if node in holders)
        approximate += sum(not rewrite.is_exact for rewrite in rewrites if rewrite is not None)
        halves += sum(half_source(model, name) is not None for name in part.writes)
        for node in nodes:
            holders.setdefault(node, []).append(part.file)
    if read == len(cascade.parts):
        objections += _assignment(model.graph, holders)
    repeated = sum(len(files) for files in holders.values()) - len(holders)
    stored = _weight_files(model.data, model.path.name), _weight_files(manifest.source.data, cascade.source.name)
    stored_in = ", ".join(sorted(stored[0])) if stored[0] != stored[1] else ""
    counts = len(holders), repeated, weight_bytes, approximate, halves, len(given.keys() - known)
    return Proof(tuple(objections), *counts, texts, cascade.converted, stored_in, tuple(otherwise))


def _wrong_states(known: Mapping[str, str], manifest: Manifest, named: AbstractSet[str]) -> Iterator[str]:
    """The states that the manifest says a user named, or that one has `named`, and that are others in the model.

    `known` are those that the model shows, or that the user named for it.
    """
    listed = {state.past: state.present for state in manifest.states}
    given = {state.present for state in manifest.states if state.is_given}
    for past, present in known.items():
        if listed.get(past) != present and (past in named or present in given):
            yield f"the manifest gives the state {past!r} as {listed.get(past)!r}, but in the model it is {present!r}"


def _weight_files(names: Iterable[str], own: str) -> set[str]:
    """The files with weights of a model whose file is called `own`, which it may be itself, or moved."""
    return {"the model's file" if name == own else name for name in names} or {"the model's file"}


def _assignment(graph: Graph, holders: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Each flowing node must be in a part, and a stateful one in no other. `holders` are the files by its index."""
    for i in graph.flow:
        node = graph.nodes[i]
        found = holders.get(i, ())
        if not found:
            yield f"node {node.name!r} is in no part"
        elif node.is_stateful and len(found) > 1:
            yield f"node {node.name!r} must run once, but is in {count(len(found), 'part')}: {', '.join(found)}"


def _facts(held: HeldWeights, cascade: Cascade, part: Part, loaded: Model, earlier: AbstractSet[int]) -> dict[str, Any]:
    """What the manifest must say of a part, all of whose nodes and weights are the model's; see `part_facts`."""
    model, facts = held.model, part_facts(held, loaded.proto, earlier)
    # Both count 1 for a dimension that they don't know, so only these are sure.
    least = max((cascade.tensors[name].bytes_for(model.dims)[0] for name in part.writes), default=0)
    names = {name for node in loaded.graph.nodes for name in (*node.reads, *node.writes)}
    is_exact = all(model.tensor_bytes[name][1] for name in names & model.tensor_bytes.keys())
    if least <= part.activation_bytes and (part.activation_bytes <= facts["activation_bytes"] or not is_exact):
        facts["activation_bytes"] = part.activation_bytes
    if part.memory is None:  # the manifest is of version 1
        del facts["memory"], facts["flowing"]
    elif not is_exact:
        sized = {name: getattr(part.memory, name) for name in ("inputs", "states", "activations", "is_exact")}
        facts["memory"] = replace(facts["memory"], **sized)
    return facts


class _PartComparison:
    """Compares a part with the model."""

    def __init__(self, model: Model, part: Part, loaded: Model) -> None:
        self.weight_bytes = 0  # of the weights that were compared in files so far
        self.stored_otherwise = list[str]()  # the weights and nodes with values in another field than in the model
        self._model, self._part, self._loaded = model, part, loaded
        self._ours, self._original = loaded.proto.graph, model.proto.graph

    def objections(self, inner: Mapping[str, ValueInfoProto]) -> Iterator[str]:
        """How the part differs from the model, one sentence each; `inner` is the value_info of the model by name."""
        if graph_digest(self._loaded.proto) != self._part.graph and not self._loaded.dropped:
            yield "its graph is not the one that was written: the digest differs"
        if dropped := self._loaded.dropped:
            yield f"it has {count(len(dropped), 'node')} that no output depends on, such as {dropped[0]!r}"
        if unused := self._loaded.unused:
            yield f"it has weights or functions that no node uses, such as {unused[0]!r}"
        if head_of(self._loaded.proto) != head_of(self._model.proto):
            yield "its IR version, opsets, metadata, configuration or the name of its graph differ from the model's"
        yield from chain(self._boundary(inner), self._defaults(), self._nodes(), self._named(), self._functions())

    def _boundary(self, inner: Mapping[str, ValueInfoProto]) -> Iterator[str]:
        """Check that inputs and outputs are those of the manifest, and are declared as in the model."""
        graph, part = self._loaded.graph, self._part
        for verb, own, listed in (("reads", graph.reads, part.reads), ("writes", graph.writes, part.writes)):
            if own != listed:
                yield f"it {verb} {shown(own)}, but the manifest lists {shown(listed)}"
        for values, declared in ((self._ours.input, self._original.input), (self._ours.output, self._original.output)):
            originals = {value.name: value for value in declared}
            for value in values:
                name = value.name
                if name not in originals and boundary_type(self._model, name) is None:
                    continue  # no tensor of the model, which is said elsewhere
                expected = originals.get(name) or boundary_value(self._model, name, inner)
                found, known = tensor_of_type(name, value.type), tensor_of_type(name, expected.type)
                notes, known_notes = ((one.doc_string, one.metadata_props) for one in (value, expected))
                if contradicts(found, known) or (found != known and name in originals):
                    yield f"{name!r} is {found} in it, but {known} in the model"
                elif notes != known_notes or (found == known and value.type != expected.type):
                    yield f"the declaration of {name!r} differs from the model's"

    def _defaults(self) -> Iterator[str]:
        """Check that weights are inputs, and inputs have defaults, as in the model."""
        inputs, known_inputs = ({value.name for value in graph.input} for graph in (self._ours, self._original))
        weights, known = ({one.name for one in graph.initializer} for graph in (self._ours, self._original))
        for name in sorted(weights & known):
            if (name in inputs) != (name in known_inputs):
                yield f"{name!r} is {'no' if name in known_inputs else 'an'} input of it, unlike in the model"
        for name in sorted(inputs & known - weights):
            yield f"{name!r} has no default in it, unlike in the model"

    def _nodes(self) -> Iterator[str]:
        producer, originals = self._model.graph.producer, self._original.node
        derived: dict[str, NodeProto] = {}
        for tensor, source in self._part.derived.items():
            found = self._derivation(tensor, source)
            derived |= {proto.output[0]: proto for proto in found}
            if not found:
                yield f"the manifest derives {tensor!r} from {source!r}, for which there is no rule"
        for node, proto in zip(self._loaded.graph.nodes, self._ours.node, strict=True):
            index = producer.get(node.writes[0])
            original = derived.get(node.writes[0]) or (None if index is None else originals[index])
            yield from self._compare("node", [(node.name, proto, original)])

    def _derivation(self, tensor: str, source: str) -> tuple[NodeProto, ...]:
        """The nodes that derive a tensor from another; none if there is no rule for it."""
        if half_source(self._model, tensor) == source or half_source(self._model, source) == tensor:
            return (cast(tensor, source),)
        index = self._model.graph.producer.get(tensor)
        node = None if index is None else self._model.graph.nodes[index]
        if index is None or node is None or node.rewrite is None or node.rewrite.pair != (tensor, source):
            return ()
        return copies(node, self._original.node[index])

    def _named(self) -> Iterator[str]:
        """Check weights, and what is noted of tensors."""
        for kind, (field, name) in _NAMED.items():
            name_of = attrgetter(name)
            known = {name_of(one): one for one in getattr(self._original, field)}
            found = ((name_of(one), one, known.get(name_of(one))) for one in getattr(self._ours, field))
            yield from self._compare(kind, found)

    def _functions(self) -> Iterator[str]:
        ours, originals = self._loaded.proto.functions, self._model.functions
        for key in functions_called(self._ours.node, originals):
            if key not in self._loaded.functions:
                yield f"function {'.'.join(key[:2])!r} is called, but missing"
        keys = map(function_key, ours)  # a key may be there twice, and which function then counts is open
        triples = ((".".join(key[:2]), f, originals.get(key)) for key, f in zip(keys, ours, strict=True))
        yield from self._compare("function", triples)

    def _compare(self, kind: str, triples: Iterable[tuple[str, Message, Message | None]]) -> Iterator[str]:
        """Compare messages of the part with those of the model: all but the values of tensors, then these."""
        for name, ours, original in triples:
            if original is None:
                yield f"{kind} {name!r} is not in the model"
                continue
            pairs = list(zip(tensors_in(normal(ours)), tensors_in(normal(original)), strict=False))
            bytes_of = without_values if any(map(is_external, chain.from_iterable(pairs))) else canonical
            if bytes_of(ours) != bytes_of(original):
                yield f"{kind} {name!r} differs from the model's"
                continue
            are_bytes = ([is_external(one) or one.HasField("raw_data") for one in pair] for pair in pairs)
            self.stored_otherwise += [name] if any(own != other for own, other in are_bytes) else []
            for a, b in pairs if bytes_of is without_values else ():
                self.weight_bytes += values_bytes(a) if is_external(a) and is_external(b) else 0
                if not same_values(a, self._loaded.range_of, b, self._model.range_of):
                    yield f"the values of {a.name or 'a constant'!r} differ from the model's"
