"""Names and types of the pieces of tensors, and the nodes that cut tensors into pieces and join them."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

from ..loading.subgraphs import fresh
from .axes.division import DividedClass
from .axes.layouts import Layout

_FIRST_OPSET_WITH_SIZES_AS_INPUT = 13


@dataclass(frozen=True)
class Drawing:
    """The nodes and small constants of a new graph, with names that no other tensor or node has."""

    taken: set[str]  #: names of tensors and nodes.
    opset: int  #: the version of ONNX's own operators.
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def fresh(self, name: str) -> str:
        """`name`, or one like it that nothing has."""
        self.taken.add(name := fresh(name, self.taken))
        return name

    def constant(self, name: str, values: Sequence[int] | Sequence[bool], dtype: type = np.int64) -> str:
        """Add a constant vector."""
        self.constants.append(from_array(np.array(values, dtype), self.fresh(name)))
        return self.constants[-1].name

    def node(self, op: str, reads: Iterable[str], writes: Iterable[str], **attributes: int | Sequence[int]) -> None:
        """Add a node of ONNX's own operators, named after its first output."""
        outputs = list(writes)
        name = self.fresh(f"{outputs[0]}/{op}")
        self.nodes.append(helper.make_node(op, list(reads), outputs, name, "", "", None, **attributes))

    def cut(self, tensor: str, sizes: Sequence[int], writes: Sequence[str], axis: int) -> None:
        """Cut a tensor along an axis into pieces of these sizes."""
        if self.opset < _FIRST_OPSET_WITH_SIZES_AS_INPUT:
            self.node("Split", [tensor], writes, axis=axis, split=sizes)
        else:
            self.node("Split", [tensor, self.constant(f"{writes[0]}/sizes", sizes)], writes, axis=axis)

    def scatter(self, tensor: str, writes: Sequence[str], divided: DividedClass, layout: Layout) -> None:
        """Cut a whole tensor into the pieces of the ranks."""
        sizes = [divided.sizes(layout, rank) for rank in divided.ranks]
        if len(layout.segments) == 1:
            self.cut(tensor, [size for (size,) in sizes], writes, layout.axis)
            return
        parts = [[self.fresh(f"{name}.segment-{i}") for name in writes] for i in range(len(layout.segments))]
        flat = [size for row in zip(*sizes, strict=True) for size in row]
        self.cut(tensor, flat, [name for row in parts for name in row], layout.axis)
        for rank, name in enumerate(writes):
            self.node("Concat", [row[rank] for row in parts], [name], axis=layout.axis)

    def gather(self, tensor: str, pieces: Sequence[str], divided: DividedClass, layout: Layout) -> None:
        """Join the pieces of the ranks to the whole tensor."""
        if len(layout.segments) > 1:
            rows = [[self.fresh(f"{name}.segment-{i}") for i in range(len(layout.segments))] for name in pieces]
            for rank, name, row in zip(divided.ranks, pieces, rows, strict=True):
                self.cut(name, divided.sizes(layout, rank), row, layout.axis)
            pieces = [name for column in zip(*rows, strict=True) for name in column]
        self.node("Concat", pieces, [tensor], axis=layout.axis)

    def add(self, tensor: str, pieces: Sequence[str], dtype: str) -> None:
        """Add the partial sums of the ranks, in the order of the ranks."""
        if "int" not in dtype:
            self.node("Sum", pieces, [tensor])
            return
        total = pieces[0]  # Sum is for floating point only
        for i, piece in enumerate(pieces[1:], 2):
            after = tensor if i == len(pieces) else self.fresh(f"{tensor}.sum-{i}")
            self.node("Add", [total, piece], [after])
            total = after


def piece_of(value: ValueInfoProto, name: str, axis: int, size: int) -> ValueInfoProto:
    """The declaration of a piece of a tensor."""
    made = deepcopy(value)
    made.name = name
    dims = made.type.tensor_type.shape.dim
    if len(dims) > axis:
        dims[axis].dim_value = size
    return made
