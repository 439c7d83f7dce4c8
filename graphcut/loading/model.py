"""The only door ONNX comes in by: a model opened without its weights, and seen as a graph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from google.protobuf.message import DecodeError
from onnx import FunctionProto, ModelProto, TensorProto

from ..core.errors import ModelError, UsageError
from ..core.graph import Graph
from ..core.product import Product
from ..core.states import check_state_pairs
from ..core.units import count
from ..core.wiring import Tensor
from .bound_sizes import infer_bound, name_open_sizes
from .external_data import ByteRange, check_inside, resolve_location
from .graph_reader import check_text, read_graph, values_bytes
from .shape_inference import infer_tensors
from .subgraphs import FunctionKey, function_key, is_external, nodes_within, tensors_in, tensors_in_function
from .wire_format import read_without_weights

TensorBytes = Mapping[str, tuple[int, bool]]
"""Sizes of tensors by name: bytes, and whether that is exact; else it is a lower bound."""


@dataclass(frozen=True, repr=False)
class Model(Product):
    """An ONNX model, opened without its weights.

    Attributes:
        path: the .onnx file.
        proto: its message, for reading only. Large weights are references into files; nodes stand in topological
            order, and nodes whose results nobody wants are gone.
        graph: the same as a graph: `graph.nodes[i]` is `proto.graph.node[i]`.
        dims: numbers for symbolic dimensions, for sizes and costs only.
        data: the files that hold weights, by the location the model gives, and their sizes in bytes.
        dropped: the names of nodes whose results nobody wants.
        unused: the names of weights and functions that none of the others uses; left out too.
        notes: what a person should know about how the model was read, one sentence each.
        states: outputs that become inputs at the next step, by these inputs, as the user named them.
    """

    path: Path
    proto: ModelProto
    graph: Graph
    dims: Mapping[str, int]
    data: Mapping[str, tuple[Path, int]]
    dropped: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    states: Mapping[str, str]

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Type and shape of every input, every output and everything that flows between; computed when first asked for.

        What no source knows (see shapes.py) has the dtype `undefined`.
        """
        graph = self.graph
        flowing = [tensor for i in graph.flow for tensor in graph.nodes[i].writes]
        known = infer_tensors(self.proto, set(flowing), folder=self.path.parent)
        names = dict.fromkeys((*graph.reads, *flowing, *graph.writes))
        return {name: known.get(name) or Tensor(name=name, dtype="undefined", shape=None) for name in names}

    @cached_property
    def boundary_types(self) -> Mapping[str, Tensor]:
        """`tensors` as they are declared at a border, with symbols for sizes that inference left open; dearer."""
        return name_open_sizes(self.proto, self.tensors)

    @cached_property
    def tensor_bytes(self) -> TensorBytes:
        """What each activation takes for the bound dims, and whether that is all: else it is "at least"."""
        sizes = {name: tensor.bytes_for(self.dims) for name, tensor in self.tensors.items()}
        if self.dims and not all(is_exact for _, is_exact in sizes.values()):
            bound = infer_bound(self.proto, self.dims, self.tensors.keys())
            better = {name: tensor.bytes_for(self.dims) for name, tensor in bound.items()}
            sizes = {n: max(found, better.get(n, found), key=lambda s: (s[1], s[0])) for n, found in sizes.items()}
        return sizes

    @cached_property
    def functions(self) -> Mapping[FunctionKey, FunctionProto]:
        """The model-local functions by domain, name and overload."""
        return {function_key(function): function for function in self.proto.functions}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic dimensions of the inputs, in the order they appear."""
        shapes = [self.tensors[name].shape or () for name in self.graph.reads]
        return tuple(dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str)))

    def path_from(self, folder: Path) -> str:
        """The path of the model's file relative to `folder`, with links to folders resolved, and `/` as separator."""
        return Path(os.path.relpath(self.path.parent.resolve() / self.path.name, folder.resolve())).as_posix()

    def range_of(self, tensor: TensorProto) -> ByteRange:
        """Where the values of an external tensor lie; checked when the model was opened."""
        return range_in(self.data, tensor)

    @cached_property
    def weight_bytes(self) -> int:
        """What all weights together take, each counted once."""
        return sum(weight.bytes for weight in self.graph.weights.values())


def load(path: str | Path, *, dims: Mapping[str, int] | None = None, states: Mapping[str, str] | None = None) -> Model:
    """Open the model at `path`. Costs what its graph costs: the values of large weights are not read.

    Args:
        path: an .onnx file; its external data lie beside it, or below.
        dims: numbers for symbolic dimensions, such as `{"batch": 1, "seq": 16}`. They serve sizes and costs; the model
            and its parts stay as dynamic as they are.
        states: outputs that become inputs at the next step, by these inputs, where neither names nor operators tell.

    Raises:
        ModelError: the file can't be read or is no valid model, or its weights are missing or refused.
        UsageError: `dims` names a symbol that the model does not have, or a negative number; `states` names an input or
            output that it does not have.
    """
    path = Path(path)
    proto = _parse(path)
    _check_text(proto)
    functions = {function_key(function): function for function in proto.functions}
    data = _find_all_data(path, proto)
    graph, (dropped, unused), notes = read_graph(proto, functions)
    if dropped:
        notes = (*notes, f"dropped {count(len(dropped), 'node')} whose results nobody wants, such as {dropped[0]!r}")
    if proto.training_info:
        notes = (*notes, "training_info binds weights of the whole model; parts are made without it")
    _check_dims(path, dims or {}, _symbols_in(proto))
    check_state_pairs(states or {}, graph.reads, graph.writes)
    numbers, pairs = MappingProxyType(dict(dims or {})), MappingProxyType(dict(states or {}))
    return Model(path, proto, graph, numbers, data, dropped, unused, notes, pairs)


def _check_dims(path: Path, dims: Mapping[str, int], symbols: AbstractSet[str]) -> None:
    for name, number in dims.items():
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none"
            raise UsageError(
                f"{path.name} has no symbolic dimension {name!r}", hint=f"its symbolic dimensions: {known}"
            )
        if number < 0:
            raise UsageError(f"dimension {name!r} can't be {number}", hint="a size is 0 or more")


def _parse(path: Path) -> ModelProto:
    try:
        path.exists()
    except OSError as error:
        raise ModelError(f"{path} can't be a file: {error.strerror}", hint="check the path") from None
    if path.is_dir():
        inside = sorted(path.glob("*.onnx"))
        hint = f"did you mean {inside[0]}?" if inside else "name the .onnx file"
        raise ModelError(f"{path} is a folder, not a model", hint=hint)
    if not path.exists():
        raise ModelError(f"there is no file {path}", hint="check the path; `ls` shows what is there")
    if not path.is_file():
        raise ModelError(f"{path} is not a file", hint="name the .onnx file")
    try:
        skeleton = read_without_weights(path)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}", hint="check its permissions") from None
    proto = ModelProto()
    try:
        proto.ParseFromString(skeleton)
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX model", hint="export the model to ONNX first") from None
    if not proto.HasField("graph") or not proto.graph.output or not proto.opset_import:
        raise ModelError(
            f"{path} is not an ONNX model: it has no {'graph' if not proto.HasField('graph') else 'outputs or opset'}",
            hint="export the model to ONNX first",
        )
    return proto


def _check_text(proto: ModelProto) -> None:
    """All names outside the nodes of the main graph; `reading` looks at those."""
    graph = proto.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    check_text(value.name for value in values)
    check_text(_symbols_in(proto))
    check_text(tensor.name for tensor in graph.initializer)
    check_text(sparse.values.name for sparse in graph.sparse_initializer)
    check_text(word for function in proto.functions for word in (function.name, function.domain, function.overload))
    inner = [node for function in proto.functions for node in nodes_within(function.node)]
    check_text(word for node in inner for word in (node.op_type, node.domain, *node.input, *node.output))


def _symbols_in(proto: ModelProto) -> set[str]:
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param}


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor anywhere in the model: initializers and attributes, bodies and functions."""
    yield from tensors_in(proto.graph)
    for function in proto.functions:
        yield from tensors_in_function(function)


def _find_all_data(path: Path, proto: ModelProto) -> Mapping[str, tuple[Path, int]]:
    data: dict[str, tuple[Path, int]] = {}
    for tensor in all_tensors(proto):
        if not is_external(tensor):
            continue
        check_text(entry.value for entry in tensor.external_data)
        locations = {entry.value for entry in tensor.external_data if entry.key == "location"}
        if len(locations) > 1:
            raise ModelError(
                f"the weights of {tensor.name!r} are said to lie in {len(locations)} files",
                hint="save the model again with the tool that wrote it",
            )
        location = next(iter(locations), "")
        if location not in data:
            file = resolve_location(path, location, tensor=tensor.name)
            data[location] = (file, file.stat().st_size)
        span = range_in(data, tensor)
        check_inside(span, file_bytes=data[location][1], tensor=tensor.name)
        expected = values_bytes(tensor)
        if span.length != expected:
            raise ModelError(
                f"the weights of {tensor.name!r} take {expected:,} bytes by their type and shape, and the model says "
                f"{span.length:,}",
                hint="save the model again with the tool that wrote it",
            )
    return data


def range_in(data: Mapping[str, tuple[Path, int]], tensor: TensorProto) -> ByteRange:
    """Where in the files of `data`, by location, the values of an external tensor lie."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = _number(entries.get("offset", "0"))
        length = _number(entries["length"]) if "length" in entries else values_bytes(tensor)
    except ValueError:
        raise ModelError(
            f"the weights of {tensor.name!r} have an offset or a length that is no number",
            hint="save the model again with the tool that wrote it",
        ) from None
    return ByteRange(data[entries["location"]][0], offset, length)


def _number(text: str) -> int:
    """A whole number as ONNX Runtime takes it: digits, and nothing else."""
    if not re.fullmatch("-?[0-9]{1,30}", text):
        raise ValueError(text)
    return int(text)
