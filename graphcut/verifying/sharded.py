"""The structural proof of a sharded model: put together again, it is the model.

It runs nothing. It gives each tensor of the sharded model a meaning in terms of the model (see `meanings`), node by
node in the order of the sharded graph, and holds if every output of the model comes out whole:

- an input is one of the model, or a slice of one; slices of an input together are all of it;
- an initializer is one of the model, or the slice of one that its note says, compared byte by byte;
- a node is a node of the model, with the same attributes, that reads the same tensors whole; or it reads pieces of them
  as one of the node's factors divides it (`sharding.axes.rules`), each for the same units, and has the attributes and
  constant inputs that follow from the number of units;
- any other node joins pieces in their order, cuts a tensor into pieces, adds partial sums of which together every unit
  and every bias is one, or puts sizes into a shape.

How the sharding chose what to divide plays no part, nor does the code that wrote it. Names only tell where to look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from google.protobuf.message import Message
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..costs.caches import find_caches
from ..loading.external_data import ByteRange, Columns, read_bytes, read_columns, same_bytes
from ..loading.fingerprint import canonical, head_of, inline_bytes, same_message
from ..loading.model import Model
from ..loading.operations import Operation, Shape, constants_in, integers_of, operations_of
from ..loading.shape_inference import tensor_of_type
from ..loading.slices import SHARDED, SliceNote, bytes_of_slice, inline_slice, note_of
from ..loading.subgraphs import FIRST_IR_WITH_DEFAULTS, captures, domain, is_external
from ..loading.tensor_values import values_bytes
from ..sharding.axes.factors import Factor, axes_of_shape
from ..sharding.axes.rules import PRODUCTS
from ..sharding.meanings import Meaning, Numbers, PartialSum, Patched, Piece, patched, piece_of, sequence, sum_of
from ..sharding.rank_copies import RankCopy, nameless
from .structural import Proof

_PIECE: Final = re.compile(r"(.*)\.(rank-\d+|of-a-piece)\b", re.DOTALL)
"""The name of a rank's piece of a tensor, after that of the tensor."""


class ShardingProof(NamedTuple):
    """The result of the structural comparison, and what it found."""

    proof: Proof
    pieces: Mapping[str, Piece]  #: the inputs and outputs of the sharded model that are pieces of the model's.
    has_sums: bool  #: partial sums are added, so that results differ by rounding.
    #: operators that are divided by columns and multiply two activations: a kernel may then round otherwise.
    rounding: frozenset[str]


def prove_sharded(model: Model, sharded: Model) -> ShardingProof:
    """Compare a sharded model with `model`."""
    return _Comparison(model, sharded).result()


class _Comparison:
    def __init__(self, model: Model, sharded: Model) -> None:
        self.model, self.sharded = model, sharded
        self.operations = operations_of(model)
        self.constants = constants_in(model.proto)
        self.weights = {tensor.name: tensor for tensor in model.proto.graph.initializer}
        known = self.operations[0].tensors.items() if self.operations else ()
        self.shapes = {name: tensor.shape for name, tensor in known if tensor.shape is not None}
        self.meanings: dict[str, Meaning] = {}
        self.objections: list[str] = []
        self.found = Counter[int]()
        self.weight_bytes = 0
        self.rounding: set[str] = set()

    def result(self) -> ShardingProof:
        graph = self.sharded.proto.graph
        if _head(self.model.proto) != _head(self.sharded.proto):
            self.objections.append("its IR version, opsets, functions or metadata differ from the model's")
        for initializer in graph.initializer:
            self._initializer(initializer)
        known = {sparse.values.name: canonical(sparse) for sparse in self.model.proto.graph.sparse_initializer}
        sparse = ((one.values.name, canonical(one)) for one in graph.sparse_initializer)
        self.meanings.update((name, Piece(name)) for name, message in sparse if known.get(name) == message)
        for value in graph.input:
            self._input(value)
        for node in graph.node:
            self._node(node)
        self.objections += [] if self.objections else self._ends()
        outside = {value.name: self.meanings.get(value.name) for value in (*graph.input, *graph.output)}
        flow = [node for node in self.found if not self.model.graph.nodes[node].is_constant]
        copies = sum(self.found[node] for node in flow) - len(flow)
        proof = Proof(tuple(self.objections), len(flow), copies, self.weight_bytes)
        pieces = {name: piece for name, piece in outside.items() if isinstance(piece, Piece) and piece.runs}
        has_sums = any(isinstance(meaning, PartialSum) for meaning in self.meanings.values())
        return ShardingProof(proof, pieces, has_sums, frozenset(self.rounding))

    # What is not computed

    def _initializer(self, tensor: TensorProto) -> None:
        source, note = self.weights.get(tensor.name), note_of(tensor)
        if source is not None:
            self.weight_bytes += values_bytes(tensor) if is_external(tensor) else 0
            if self._is_same(tensor, source):
                self.meanings[tensor.name] = Piece(tensor.name)
            else:
                self.objections.append(f"the weight {tensor.name!r} is not the model's")
        elif note is not None:
            self._slice(tensor, note)
        elif (numbers := integers_of(tensor)) is not None:
            self.meanings[tensor.name] = numbers

    def _slice(self, tensor: TensorProto, note: SliceNote) -> None:
        """A slice of a constant: it has the type, the shape, and the bytes that its note says."""
        source = self.constants.get(note.slice_of)
        if source is None or not _fits(note, list(source.dims)):
            self.objections.append(f"{tensor.name!r} is noted as a slice of {note.slice_of!r} that the model has not")
            return
        piece = Piece(note.slice_of, note.axis, note.runs)
        dims = [*source.dims[: note.axis], piece.size, *source.dims[note.axis + 1 :]]
        if (dims, source.data_type) == ([*tensor.dims], tensor.data_type) and self._has_slice(tensor, source, note):
            self.meanings[tensor.name] = piece
        else:
            self.objections.append(f"the values of {tensor.name!r} are not those of its slice of {note.slice_of!r}")

    def _has_slice(self, tensor: TensorProto, source: TensorProto, note: SliceNote) -> bool:
        where = bytes_of_slice(source, self.model.range_of(source), note) if is_external(source) else None
        span = self.sharded.range_of(tensor) if is_external(tensor) else None
        self.weight_bytes += span.length if span else 0
        if span and where:
            return same_bytes(where, span) if isinstance(where, ByteRange) else _same_columns(where, span)
        ours = read_bytes(span) if span else inline_bytes(tensor)
        return ours == (read_bytes(where) if where else inline_slice(source, note))

    def _input(self, value: ValueInfoProto) -> None:
        name, note = value.name, note_of(value)
        if (note.slice_of if note else name) in self.weights and name not in self.meanings:
            self.objections.append(f"{name!r} has no default in it, unlike in the model")
        known = {own.name: own for own in self.model.proto.graph.input}
        if name in known:
            if tensor_of_type(name, known[name].type) != tensor_of_type(name, value.type):
                self.objections.append(f"the input {name!r} is declared otherwise than in the model")
            self.meanings.setdefault(name, Piece(name))
        elif note and note.slice_of in self.model.graph.reads and _fits(note, self.shapes.get(note.slice_of, ())):
            self.meanings[name] = Piece(note.slice_of, note.axis, note.runs)

    # Nodes

    def _node(self, node: NodeProto) -> None:
        """Give the outputs of a node their meanings; an objection if it has none. What reads them is not looked at."""
        reads = [self.meanings.get(name) for name in node.input]
        if unknown := [name for name in node.input if name and name not in self.meanings]:
            if not self.objections:
                self.objections.append(f"node {node.name!r} reads {unknown[0]!r}, which is nothing of the model")
            return
        index = self._original(node)
        written = self._copied(node, index, reads) if index is not None else None
        written = written or (_moved(node, reads, self.shapes) if not domain(node.domain) else None)
        if not written:
            shown = next((r for r in reads if isinstance(r, Piece) and r.runs), None)
            more = f": it reads ranges {list(shown.runs)} of {shown.tensor!r}" if shown else ""
            self.objections.append(f"node {node.name!r} is no node of the model, nor a rank's share of one{more}")
        else:
            self.meanings.update(zip(filter(None, node.output), written, strict=True))

    def _original(self, node: NodeProto) -> int | None:
        """The node of the model of which this is a copy, by the name of what it writes; None if there is none."""
        name = next(filter(None, node.output))
        piece = _PIECE.match(name)
        producer = self.model.graph.producer
        index = producer.get(name, producer.get(piece[1]) if piece else None)
        if index is None:
            return None
        original = self.model.proto.graph.node[index]
        is_alike = (node.op_type, domain(node.domain)) == (original.op_type, domain(original.domain))
        return index if is_alike and len(node.output) == len(original.output) else None

    def _copied(self, node: NodeProto, index: int, reads: Sequence[Meaning | None]) -> list[Meaning] | None:
        """What the outputs of a copy of a node are; None if it is no copy."""
        operation = self.operations[index]
        reads = [*reads, *[None] * (len(operation.inputs) - len(reads))]
        if len(reads) > len(operation.inputs):
            return None
        pieces: dict[int, Piece] = {}
        changed: dict[int, Patched | Numbers] = {}
        dropped: set[int] = set()
        for slot, (name, meaning) in enumerate(zip(operation.inputs, reads, strict=True)):
            match meaning:
                case None if name:
                    dropped.add(slot)
                case Piece(tensor) | Patched(tensor) if name != tensor:
                    return None
                case Piece(runs=runs) if runs:
                    pieces[slot] = meaning
                case Patched() | tuple():
                    changed[slot] = meaning
                case PartialSum():
                    return None
        if operation.op == "Shape" and pieces:
            written = self._shape_of_piece(node, operation, pieces[0])
        elif not (pieces or changed or dropped):
            inner = all(self.meanings.get(name) == Piece(name) for name in captures(node))
            is_same = inner and self._is_same(nameless(node), nameless(operation.node))
            written = [Piece(name) for name in operation.outputs if name] if is_same else None
        else:
            factor, written = RankCopy(operation, node, pieces, changed, frozenset(dropped)).written()
            self._note_rounding(operation, factor)
        is_again = self.model.graph.nodes[index].is_stateful and (self.found[index] or bool(pieces))
        self.found[index] += bool(written)
        return None if is_again else written

    def _is_same(self, ours: Message, own: Message) -> bool:
        """Whether a message is that of the model; values of their tensors may be in files."""
        return same_message(ours, self.sharded.range_of, own, self.model.range_of)

    def _note_rounding(self, operation: Operation, factor: Factor | None) -> None:
        """Note an operator that multiplies activations, if columns of its second one are divided."""
        for place in factor.reads if factor is not None and operation.op in PRODUCTS else ():
            is_column = place.slot == 1 and place.axis >= len(operation.read(1) or ()) - 2
            if is_column and operation.inputs[1] not in self.constants:
                self.rounding.add(operation.op)

    def _shape_of_piece(self, node: NodeProto, operation: Operation, piece: Piece) -> list[Meaning] | None:
        axes, output = axes_of_shape(operation), operation.outputs[0]
        size = (operation.read(0) or ())[piece.axis]
        if not self._is_same(nameless(node), nameless(operation.node)):
            return None
        if piece.axis not in axes:
            return [Piece(output)]
        element = axes.index(piece.axis)
        return [Patched(output, {element: piece.size}, {element: size} if isinstance(size, int) else {})]

    # The end

    def _ends(self) -> Iterator[str]:
        """Check that inputs and outputs are complete, and states in equal pieces."""
        graph, sharded = self.model.graph, self.sharded.proto.graph
        inputs, outputs = self._pieces(sharded.input), self._pieces(sharded.output)
        for kind, names, found in (("input", graph.reads, inputs), ("output", graph.writes, outputs)):
            yield from (f"the {kind} {name!r} is not whole in it" for name in names if not self._is_whole(name, found))
            yield from (f"its {kind} {name!r} is none of the model" for name in found if name not in names)
        for cache in find_caches(self.model):
            past, present = inputs.get(cache.past, ()), outputs.get(cache.present, ())
            if {(p.axis, p.runs) for p in past} != {(p.axis, p.runs) for p in present}:
                yield f"the state {cache.past!r} is divided otherwise than {cache.present!r}, which becomes it"

    def _pieces(self, values: Iterable[ValueInfoProto]) -> dict[str, list[Piece]]:
        """The pieces that inputs or outputs are, by their tensor; what is whole must have its name."""
        found: dict[str, list[Piece]] = {}
        for name in (value.name for value in values):
            piece = self.meanings.get(name)
            if not isinstance(piece, Piece) or bool(piece.runs) == (piece.tensor == name):
                piece = Piece(name, -1)  # nothing that is whole together with others
            found.setdefault(piece.tensor, []).append(piece)
        return found

    def _is_whole(self, name: str, found: Mapping[str, Sequence[Piece]]) -> bool:
        pieces = found.get(name, ())
        if len({piece.axis for piece in pieces if piece.runs}) != 1:
            return [*pieces] == [Piece(name)]
        runs = sorted(run for piece in pieces for run in piece.runs)
        return piece_of(name, pieces[0].axis, runs, self.model.tensors[name].shape or ()) == Piece(name)


def _head(proto: ModelProto) -> list[bytes]:
    """What a model and its sharded form have in common besides the graph."""
    head = head_of(proto)
    head.ir_version = max(head.ir_version, FIRST_IR_WITH_DEFAULTS)
    for note in [entry for entry in head.metadata_props if entry.key == SHARDED]:
        head.metadata_props.remove(note)
    return [canonical(head), *sorted(map(canonical, proto.functions))]


def _fits(note: SliceNote, dims: Sequence[object]) -> bool:
    """Whether a note names ascending ranges of an axis."""
    numbers = [0, *(number for run in note.runs for number in run)]
    is_ascending = all(a <= b for a, b in pairwise(numbers)) and all(a < b for a, b in note.runs)
    size = dims[note.axis] if 0 <= note.axis < len(dims) else 0
    return bool(note.runs) and is_ascending and isinstance(size, int) and numbers[-1] <= size


def _same_columns(where: Columns, span: ByteRange) -> bool:
    with span.file.open("rb") as stream:
        stream.seek(span.offset)
        pieces = (piece.tobytes() for _, piece in read_columns([where]))
        return where.length == span.length and all(stream.read(len(piece)) == piece for piece in pieces)


def _moved(node: NodeProto, reads: Sequence[Meaning | None], shapes: Mapping[str, Shape]) -> list[Meaning] | None:
    """What a node writes that joins, cuts or adds pieces, or puts sizes into a shape; None if it does none of these."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    axis = attributes["axis"].i if "axis" in attributes else -1
    pieces = [piece for piece in reads if isinstance(piece, Piece)]
    first = pieces[0] if pieces else None
    match node.op_type, reads:
        case "Concat", _ if first and len(pieces) == len(reads):
            if {(piece.tensor, piece.axis, bool(piece.runs)) for piece in pieces} == {(first.tensor, axis, True)}:
                runs = [run for piece in pieces for run in piece.runs]
                uniform = all(piece.is_uniform for piece in pieces)
                return [piece_of(first.tensor, axis, runs, shapes.get(first.tensor, ()), uniform=uniform)]
        case "Split", [Piece() as piece, *sizes] if not piece.runs or piece.axis == axis:
            parts = sizes[0] if sizes else tuple(attributes["split"].ints) if "split" in attributes else None
            shape = shapes.get(piece.tensor, ())
            size = shape[axis] if 0 <= axis < len(shape) else None
            if isinstance(parts, tuple) and isinstance(size, int) and len(parts) == len(node.output):
                cut = sequence(piece.runs or ((0, size),), parts)
                return [piece_of(piece.tensor, axis, runs, shape) for runs in cut] if cut else None
        case "Sum" | "Add", [PartialSum(), *_]:
            parts_added = [part for part in reads if isinstance(part, PartialSum)]
            total = sum_of(parts_added) if len(parts_added) == len(reads) else None
            return [total] if total else None
        case "Where", [tuple() as mask, tuple() as sizes_given, (Piece() | Patched()) as shape_read]:
            length = (len(mask),)  # of one number, it would be for all axes
            is_whole = not (isinstance(shape_read, Piece) and shape_read.runs)
            if is_whole and length == (len(sizes_given),) == shapes.get(shape_read.tensor, length):
                return [patched(shape_read, mask, sizes_given)]
    return None
