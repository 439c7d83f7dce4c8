"""What can be claimed of the parts of a cut model.

A claim is a record with one method, `objection`, which gives a sentence on what is wrong, or `""` when the claim holds.
Parts are counted from 0. A claim about a tensor that crosses a boundary names no part, and is about every part that
reads the tensor: where a node stands on neither side of a cut, a splitter is free to put it into any part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


@dataclass(frozen=True)
class Pieces:
    """A model, and the parts it was cut into, first to run first."""

    original: ModelProto
    parts: tuple[ModelProto, ...]

    def inputs_called(self, name: str) -> Iterator[tuple[int, ValueInfoProto]]:
        """How each part that reads `name` declares it."""
        for index, part in enumerate(self.parts):
            yield from ((index, declared) for declared in part.graph.input if declared.name == name)


class Claim(Protocol):
    """Something that is true of the parts of a correct splitter."""

    def objection(self, pieces: Pieces) -> str:
        """A sentence on what is wrong, or `""`."""


@dataclass(frozen=True)
class HasInitializer:
    """The part carries these weights."""

    part: int
    names: tuple[str, ...]

    def objection(self, pieces: Pieces) -> str:
        found = [weight.name for weight in pieces.parts[self.part].graph.initializer]
        return _lacking(self.names, found, f"part {self.part} lacks the initializers")


@dataclass(frozen=True)
class HasSparse:
    """The part carries these sparse weights and no others; the name of one is the name of its values."""

    part: int
    names: tuple[str, ...]

    def objection(self, pieces: Pieces) -> str:
        found = [weight.values.name for weight in pieces.parts[self.part].graph.sparse_initializer]
        wanted = list(self.names)
        return "" if found == wanted else f"part {self.part} has the sparse initializers {found}, not {wanted}"


@dataclass(frozen=True)
class HasInput:
    """The part declares these inputs, and perhaps others."""

    part: int
    names: tuple[str, ...]

    def objection(self, pieces: Pieces) -> str:
        found = [declared.name for declared in pieces.parts[self.part].graph.input]
        return _lacking(self.names, found, f"part {self.part} lacks the inputs")


@dataclass(frozen=True)
class RequiredInputs:
    """The part must be fed exactly these; inputs with a default do not count. In any order."""

    part: int
    names: tuple[str, ...]

    def objection(self, pieces: Pieces) -> str:
        graph = pieces.parts[self.part].graph
        defaults = {weight.name for weight in graph.initializer}
        found = sorted(declared.name for declared in graph.input if declared.name not in defaults)
        wanted = sorted(self.names)
        return "" if found == wanted else f"part {self.part} must be fed {found}, and should be fed {wanted}"


@dataclass(frozen=True)
class HasFunction:
    """The part carries these local functions; a function is told by domain, name and overload."""

    part: int
    functions: tuple[tuple[str, str, str], ...]

    def objection(self, pieces: Pieces) -> str:
        found = [(function.domain, function.name, function.overload) for function in pieces.parts[self.part].functions]
        return _lacking(self.functions, found, f"part {self.part} lacks the functions")


@dataclass(frozen=True)
class InputElem:
    """The tensor crosses with this element type, named as in `TensorProto.DataType`."""

    name: str
    elem: str

    def objection(self, pieces: Pieces) -> str:
        found = [
            (part, TensorProto.DataType.Name(declared.type.tensor_type.elem_type))
            for part, declared in pieces.inputs_called(self.name)
        ]
        return _differing(self.name, "element type", found, self.elem)


@dataclass(frozen=True)
class InputRank:
    """The tensor crosses with this rank: 0 is a scalar, None is a rank that nobody knows."""

    name: str
    rank: int | None

    def objection(self, pieces: Pieces) -> str:
        found = [
            (part, None if (dims := _dims(declared)) is None else len(dims))
            for part, declared in pieces.inputs_called(self.name)
        ]
        return _differing(self.name, "rank", found, self.rank)


@dataclass(frozen=True)
class InputDims:
    """The tensor crosses with exactly these dims: a number, a symbol, or None for an unknown size."""

    name: str
    dims: tuple[int | str | None, ...]

    def objection(self, pieces: Pieces) -> str:
        found = [(part, _dims(declared)) for part, declared in pieces.inputs_called(self.name)]
        return _differing(self.name, "dims", found, self.dims)


@dataclass(frozen=True)
class NotFrozen:
    """A size of the tensor that depends on the feeds is not a number in any part that reads it."""

    name: str
    axis: int

    def objection(self, pieces: Pieces) -> str:
        for part, declared in pieces.inputs_called(self.name):
            dims = _dims(declared)
            if dims is not None and isinstance(size := dims[self.axis], int):
                return f"part {part} fixes axis {self.axis} of {self.name!r} at {size}"
        return _unread(self.name, pieces)


@dataclass(frozen=True)
class OwnSymbol:
    """A size that depends on values is unknown, or has a symbol that stands for no size of the original."""

    name: str
    axis: int

    def objection(self, pieces: Pieces) -> str:
        graph = pieces.original.graph
        taken = {size for declared in (*graph.input, *graph.output) for size in _dims(declared) or ()} - {None}
        for part, declared in pieces.inputs_called(self.name):
            dims = _dims(declared)
            if dims is not None and (isinstance(size := dims[self.axis], int) or size in taken):
                return f"part {part} takes axis {self.axis} of {self.name!r} for {size!r}"
        return _unread(self.name, pieces)


@dataclass(frozen=True)
class InputKind:
    """The tensor crosses as this kind of value: a field of `TypeProto`, such as `"sequence_type"`."""

    name: str
    kind: str

    def objection(self, pieces: Pieces) -> str:
        found = [(part, declared.type.WhichOneof("value")) for part, declared in pieces.inputs_called(self.name)]
        return _differing(self.name, "kind", found, self.kind)


@dataclass(frozen=True)
class OpTotal:
    """All parts together hold this many nodes of an operator, those inside If, Loop and Scan included."""

    op: str
    count: int

    def objection(self, pieces: Pieces) -> str:
        found = sum(node.op_type == self.op for part in pieces.parts for node in _nodes_at_any_depth(part.graph))
        return "" if found == self.count else f"there are {found} nodes {self.op}, not {self.count}"


@dataclass(frozen=True)
class AnyPartOutput:
    """Some part gives this tensor out."""

    name: str

    def objection(self, pieces: Pieces) -> str:
        return "" if _parts_giving(self.name, pieces) else f"no part gives {self.name!r}"


@dataclass(frozen=True)
class OutputOnce:
    """Exactly one part gives this tensor out: nobody relays it, nobody works it out again."""

    name: str

    def objection(self, pieces: Pieces) -> str:
        found = _parts_giving(self.name, pieces)
        return "" if len(found) == 1 else f"{self.name!r} is given by the parts {found}, not by one"


@dataclass(frozen=True)
class TensorIdentical:
    """The part carries these weights with every bit and every field as in the original.

    Where the bytes lie (in the model or beside it) does not count: load the parts with their external weights.
    """

    part: int
    names: tuple[str, ...]

    def objection(self, pieces: Pieces) -> str:
        found = {weight.name: content(weight) for weight in pieces.parts[self.part].graph.initializer}
        wanted = {weight.name: content(weight) for weight in pieces.original.graph.initializer}
        changed = [name for name in self.names if found.get(name) != wanted[name]]
        return f"part {self.part} lacks or changes the tensors {changed}" if changed else ""


@dataclass(frozen=True)
class NoTrainingInfo:
    """No part carries training_info, which speaks of the weights of the whole model."""

    def objection(self, pieces: Pieces) -> str:
        found = [index for index, part in enumerate(pieces.parts) if part.training_info]
        return f"the parts {found} carry training_info" if found else ""


def content(weight: TensorProto) -> bytes:
    """A tensor as bytes, without the note of where its values lie."""
    copy = TensorProto()
    copy.CopyFrom(weight)
    copy.ClearField("data_location")
    copy.ClearField("external_data")
    serialized: bytes = copy.SerializeToString(deterministic=True)
    return serialized


def _lacking(wanted: Collection[object], found: Collection[object], lacks: str) -> str:
    missing = [each for each in wanted if each not in found]
    return f"{lacks} {missing}; it has {list(found)}" if missing else ""


def _differing(name: str, what: str, found: Sequence[tuple[int, object]], wanted: object) -> str:
    if not found:
        return f"no part reads {name!r}"
    wrong = [f"{seen!r} in part {part}" for part, seen in found if seen != wanted]
    return f"the {what} of {name!r} is {', '.join(wrong)}, not {wanted!r}" if wrong else ""


def _unread(name: str, pieces: Pieces) -> str:
    return "" if any(pieces.inputs_called(name)) else f"no part reads {name!r}"


def _parts_giving(name: str, pieces: Pieces) -> list[int]:
    return [index for index, part in enumerate(pieces.parts) if any(out.name == name for out in part.graph.output)]


def _dims(declared: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """The sizes; None when there is no shape, which is not the same as a shape without sizes."""
    if not declared.type.tensor_type.HasField("shape"):
        return None
    dims = declared.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims)


def _nodes_at_any_depth(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes_at_any_depth(attribute.g)
