"""`sharded_graph`: the model in which each divided node stands once for each rank that has units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..loading.fingerprint import head_of
from ..loading.operations import Operation, constants_in
from ..loading.slices import SliceNote, write_note
from ..loading.subgraphs import FIRST_IR_WITH_DEFAULTS, add_notes, captures, domain, names_in
from ..loading.tensor_values import values_bytes
from .axes.division import DividedClass, Division
from .axes.factors import Bounds, Factor, ShapeInput, SplitSizes, axes_of_shape
from .axes.layouts import Layout
from .pieces import Drawing, piece_of
from .rank_copies import set_attributes


class WeightSlice(NamedTuple):
    """A part of a constant: a new initializer."""

    tensor: TensorProto  #: the new initializer, without its values.
    source: TensorProto  #: the constant of the model.
    note: SliceNote  #: which part it is.
    rank: int  #: the first rank that reads it.

    @property
    def bytes(self) -> int:
        """The size of its values."""
        return values_bytes(self.tensor)


class ShardedGraph(NamedTuple):
    """The sharded model without the values of its slices."""

    proto: ModelProto
    slices: tuple[WeightSlice, ...]
    whole: frozenset[str]  #: the initializers of the model that are still in it.
    rank_of: Mapping[str, int]  #: the rank of each copy of a node, by its first output.
    origin_of: Mapping[str, int]  #: the node of the model that each node was made for, by its first output.


def rank_name(name: str, rank: int) -> str:
    """The name of a rank's piece of a tensor, or of its copy of a node."""
    return f"{name}.rank-{rank}"


def sharded_graph(division: Division) -> ShardedGraph:
    """The model, divided. Tensors that are whole keep their names; a rank's piece is called `NAME.rank-R`."""
    return _Rewriting(division).result()


class _Rewriting:
    def __init__(self, division: Division) -> None:
        self.division = division
        self.proto = division.model.proto
        taken = names_in(self.proto.graph).union(node.name for node in self.proto.graph.node)
        opset = next((one.version for one in self.proto.opset_import if not domain(one.domain)), 1)
        self.drawing = Drawing(taken, opset)
        self.constants = constants_in(self.proto)
        self.pieces: dict[tuple[str, DividedClass], dict[int, str]] = {}
        self.slices: dict[SliceNote, WeightSlice] = {}
        self.values: dict[str, ValueInfoProto] = {}
        self.rank_of: dict[str, int] = {}
        graph = self.proto.graph
        self.declared = {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
        for past, present in division.states:
            divided, layout = division.pieces[present]
            for rank, name in self._name_pieces(past, divided, layout).items():
                write_note(self.values[name], SliceNote(past, layout.axis, divided.runs(layout, rank)))
        written = division.pieces.items()
        self.only_in_pieces = {name: piece for name, piece in written if name not in division.read_whole}
        self.only_in_pieces |= {past: division.pieces[present] for past, present in division.states}

    def _name_pieces(self, tensor: str, divided: DividedClass, layout: Layout) -> dict[int, str]:
        names = {rank: self.drawing.fresh(rank_name(tensor, rank)) for rank in divided.ranks}
        self.pieces[tensor, divided] = names
        for rank, name in names.items() if tensor in self.declared else ():
            self.values[name] = piece_of(self.declared[tensor], name, layout.axis, sum(divided.sizes(layout, rank)))
        return names

    def result(self) -> ShardedGraph:
        origin_of: dict[str, int] = {}
        for index, node in enumerate(self.proto.graph.node):
            done = len(self.drawing.nodes)
            if index in self.division.class_of:
                self._divide(index)
            elif node.op_type == "Shape" and node.input[0] in self.only_in_pieces:
                self._shape_of_piece(self.division.operations[index], *self.only_in_pieces[node.input[0]])
            else:
                self.drawing.nodes.append(node)
            origin_of.update((next(filter(None, made.output)), index) for made in self.drawing.nodes[done:])
        made = self._model()
        whole = [tensor.name for tensor in made.graph.initializer]
        made.graph.initializer.extend(one.tensor for one in self.slices.values())
        pairs = zip(self.slices.values(), made.graph.initializer[len(whole) :], strict=True)
        slices = tuple(one._replace(tensor=tensor) for one, tensor in pairs)
        made.graph.initializer.extend(self.drawing.constants)
        return ShardedGraph(made, slices, frozenset(whole), self.rank_of, origin_of)

    def _divide(self, index: int) -> None:
        division, operation, divided = self.division, self.division.operations[index], self.division.class_of[index]
        reads = {slot: self._pieces_read(index, slot, layout) for slot, layout in division.divided_reads(index).items()}
        writes = {tensor: self._pieces_written(tensor, divided) for tensor in operation.outputs if tensor}
        for rank in divided.ranks:
            copy = deepcopy(operation.node)
            copy.name = self.drawing.fresh(rank_name(self.division.model.graph.nodes[index].name, rank))
            for slot, names in reads.items():
                copy.input[slot] = names[rank]
            copy.output[:] = [writes[tensor][rank] if tensor else "" for tensor in operation.outputs]
            self.rank_of[next(filter(None, copy.output))] = rank
            self._change(copy, index, rank)
            if rank != divided.ranks[0]:
                _drop(copy, divided.factors[index].once)
            self.drawing.nodes.append(copy)
        for tensor, names in writes.items():
            if divided.factors[index].is_contracted:
                self.drawing.add(tensor, [*names.values()], self.division.model.tensors[tensor].dtype)
            elif tensor in division.read_whole:
                self.drawing.gather(tensor, [*names.values()], *division.pieces[tensor])

    def _pieces_read(self, index: int, slot: int, layout: Layout) -> dict[int, str]:
        divided, tensor = self.division.class_of[index], self.division.operations[index].inputs[slot]
        if tensor in self.constants:
            return {rank: self._slice(tensor, layout, divided, rank) for rank in divided.ranks}
        if (tensor, divided) not in self.pieces:
            names = self._name_pieces(tensor, divided, layout)
            self.drawing.scatter(tensor, list(names.values()), divided, layout)
        return self.pieces[tensor, divided]

    def _slice(self, tensor: str, layout: Layout, divided: DividedClass, rank: int) -> str:
        note, source = SliceNote(tensor, layout.axis, divided.runs(layout, rank)), self.constants[tensor]
        if note not in self.slices:
            dims = list(source.dims)
            dims[layout.axis] = sum(divided.sizes(layout, rank))
            made = TensorProto(name=self.drawing.fresh(rank_name(tensor, rank)), data_type=source.data_type, dims=dims)
            write_note(made, note)
            self.slices[note] = WeightSlice(made, source, note, rank)
        return self.slices[note].tensor.name

    def _pieces_written(self, tensor: str, divided: DividedClass) -> dict[int, str]:
        if tensor in self.division.pieces:
            return self._name_pieces(tensor, *self.division.pieces[tensor])
        return {rank: self.drawing.fresh(rank_name(tensor, rank)) for rank in divided.ranks}

    def _change(self, copy: NodeProto, index: int, rank: int) -> None:
        """Change what depends on the number of units: attributes, and constant inputs."""
        operation, divided = self.division.operations[index], self.division.class_of[index]
        factor, parts = divided.factors[index], list[int]()
        match factor.change:
            case ShapeInput(slot):
                sizes = _sizes(operation, factor, self._size_written(index, 0, rank))
                name, values = f"{copy.name}/shape", operation.values.get(slot)
                if values is None:
                    axes = range(len(operation.written() or ()))
                    copy.input[slot] = self._patched(copy.input[slot], sizes, axes, self.drawing.fresh(name))
                else:
                    shape = [sizes.get(i, value) for i, value in enumerate(values)]
                    copy.input[slot] = self.drawing.constant(name, shape)
            case SplitSizes():
                parts = [self._size_written(index, i, rank) for i in range(len(operation.outputs))]
                if operation.has(1):
                    copy.input[1] = self.drawing.constant(f"{copy.name}/sizes", parts)
            case Bounds(element):
                self._set_bounds(copy, index, element, rank)
        set_attributes(copy, factor, (divided.units[rank], divided.axes.units), parts)

    def _size_written(self, index: int, slot: int, rank: int) -> int:
        divided, tensor = self.division.class_of[index], self.division.operations[index].outputs[slot]
        return sum(divided.sizes(divided.axes.layouts[self.division.analysis.written(index, tensor)], rank))

    def _patched(self, shape: str, sizes: Mapping[int, int], axes: Sequence[int], name: str) -> str:
        """Write the tensor `name`: a computed shape of these axes, with `sizes` for some of them."""
        mask = self.drawing.constant(f"{name}/mask", [axis in sizes for axis in axes], bool)
        new = self.drawing.constant(f"{name}/sizes", [sizes.get(axis, 0) for axis in axes])
        self.drawing.node("Where", [mask, new, shape], [name])
        return name

    def _set_bounds(self, copy: NodeProto, index: int, element: int, rank: int) -> None:
        """Put the bounds of a rank's piece into the inputs of a Slice."""
        operation, divided = self.division.operations[index], self.division.class_of[index]
        layout = self.division.divided_reads(index)[0]
        ends = [operation.values[slot][element] for slot in (1, 2)]
        for slot, position in zip((1, 2), slice(*ends).indices(layout.size), strict=False):
            new = list(operation.values[slot])
            new[element] = layout.before(position, divided.units[rank], divided.axes.units)
            copy.input[slot] = self.drawing.constant(f"{copy.name}/bounds-{slot}", new)

    def _shape_of_piece(self, operation: Operation, divided: DividedClass, layout: Layout) -> None:
        """The shape of a tensor that is only there in pieces: that of a piece, with the size of the whole axis."""
        copy, (output,), axes = deepcopy(operation.node), operation.outputs, axes_of_shape(operation)
        copy.input[0] = next(iter(self.pieces[operation.inputs[0], divided].values()))
        self.drawing.nodes.append(copy)
        if layout.axis in axes:
            copy.output[0] = self.drawing.fresh(f"{output}.of-a-piece")
            self._patched(copy.output[0], {layout.axis: layout.size}, axes, output)

    def _model(self) -> ModelProto:
        """The model with the new nodes, and the initializers that they read whole."""
        source, made = self.proto, head_of(self.proto)
        made.functions.extend(source.functions)
        made.ir_version = max(source.ir_version, FIRST_IR_WITH_DEFAULTS)
        graph, states = made.graph, dict[str, list[ValueInfoProto]]()
        for pair in self.division.states:
            divided = self.division.pieces[pair[1]][0]
            states |= {name: [self.values[piece] for piece in self.pieces[name, divided].values()] for name in pair}
        outputs = {value.name for value in source.graph.output}
        read = {name for node in self.drawing.nodes for name in (*node.input, *captures(node))} | outputs
        graph.node.extend(n for n in self.drawing.nodes if n.op_type != "Constant" or n.output[0] in read)
        fixed = {t.name for t in source.graph.initializer} - set(self.division.model.graph.reads)
        values = (value for value in source.graph.input if value.name not in fixed)
        graph.input.extend(piece for value in values for piece in states.get(value.name, [value]))
        graph.output.extend(piece for value in source.graph.output for piece in states.get(value.name, [value]))
        graph.initializer.extend(t for t in source.graph.initializer if t.name in read or t.name not in fixed)
        graph.sparse_initializer.extend(s for s in source.graph.sparse_initializer if s.values.name in read)
        inner = {value.name: value for value in source.graph.value_info} | self.values
        add_notes(graph, inner.values(), source.graph.quantization_annotation)
        return made


def _sizes(operation: Operation, factor: Factor, size: int) -> dict[int, int]:
    """The sizes in a shape that a rank needs.

    A 0 in the shape of a Reshape copies the size of the input along the same axis, which may be a piece's.
    """
    out, (written,) = dict(enumerate(operation.written() or ())), (place.axis for place in factor.writes)
    known = ((place.axis, out.get(place.axis)) for place in factor.reads)
    return {axis: dim for axis, dim in known if isinstance(dim, int)} | {written: size}


def _drop(node: NodeProto, slots: Iterable[int]) -> None:
    """Omit inputs."""
    for slot in slots:
        if slot < len(node.input):
            node.input[slot] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
