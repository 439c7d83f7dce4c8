"""`Model`: an ONNX model without its weights, and how one file is read."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from ..core.errors import ModelError, UsageError
from ..core.graph import Graph
from ..core.manifest import PIPELINE, Loop
from ..core.product import Product
from ..core.tensors import MAX_BYTES, UNDEFINED, Dims, Tensor, TensorBytes, Tensors, by_kind
from ..core.text import nothing_at
from ..core.units import count
from ..core.wiring import Unit, run_phases
from .bound_sizes import BATCH, infer_bound, name_unknown_dims, number_unknown_dims, with_total
from .external_data import ByteRange, check_inside, read_values, resolve_location
from .fingerprint import graph_digest
from .foreign_formats import refuse_foreign
from .graph_reader import check_inner_text, check_text, read_graph
from .in_memory import TemporaryFolder
from .node_rules import check_nodes
from .repeated_definitions import drop_equal_definitions
from .shape_inference import infer_tensors
from .subgraphs import Functions, function_key, is_external, nodes_within, tensors_in
from .tensor_values import check_inline_values, values_bytes
from .wire_format import large_bytes, nested_too_deeply, read_without_weights

DataFiles = Mapping[str, tuple[Path, int]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the tensors of a model for some numbers of its symbols."""

    bytes: TensorBytes  #: the size of each tensor.
    found: Tensors  #: types that are known only for these numbers.
    #: those without a size: a dimension is unknown, or is a symbol that no input has and nobody gave a number.
    unknown: tuple[str, ...]
    open_dims: tuple[str, ...]  #: the dimensions (`Tensor.dim_names`) with which the first of these have a size.

    @cached_property
    def are_exact(self) -> bool:
        """Whether no dimension counts as 1."""
        return all(is_exact for _, is_exact in self.bytes.values())


_Made = TypeVar("_Made")
_WITHOUT_DIMS: Final = ("tensors", "functions", "symbols", "weight_bytes")
"""What a model has computed for good, whatever its dims."""


@dataclass(frozen=True, repr=False)
class Model(Product):
    """An ONNX model, opened without its weights."""

    path: Path  #: the .onnx file; a temporary one for a model given in memory.
    #: its ModelProto; must not be changed. Large weights are references into files. Nodes are in topological order, and
    #: nodes that no output depends on are removed.
    proto: ModelProto
    graph: Graph  #: the same as a graph: `graph.nodes[i]` is `proto.graph.node[i]`.
    dims: Dims  #: numbers for symbolic dimensions, for sizes and costs only.
    #: the files with weights and their sizes in bytes, by the location that the model gives.
    data: DataFiles
    dropped: tuple[str, ...]  #: names of the removed nodes.
    unused: tuple[str, ...]  #: names of removed weights and functions, which no other node uses.
    notes: tuple[str, ...]  #: what a user should know about how the model was read, one sentence each.
    states: Mapping[str, str]  #: outputs by the inputs that they become at the next step, as the user named them.
    #: the folder of a temporary file, deleted with the last model that refers to it; else None.
    temporary_folder: TemporaryFolder | None = None
    joined_from: tuple[Path, ...] = ()  #: the files of a pipeline of models; `path` is then that of its pipeline file.
    stepwise: tuple[str, ...] = ()  #: `Manifest.stepwise`.
    #: for each tensor that a node of a pipeline of models writes, the name of its model there.
    labels: Mapping[str, str] = field(default_factory=dict)
    loop: Loop | None = None  #: `Manifest.loop`.

    @property
    def title(self) -> str:
        """The name of its file, or of a pipeline's folder."""
        return self.path.absolute().parent.name if self.path.name == PIPELINE else self.path.name

    @property
    def stem(self) -> str:
        """What the names of files begin with that are made of it."""
        return re.sub(r"\.(onnx|toml)$", "", self.title)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from: with its graph, then with its weights."""
        own = (self.path,) if self.path.exists() or not self.joined_from else ()
        return tuple(dict.fromkeys((*own, *self.joined_from, *(file for file, _ in self.data.values()))))

    @cached_property
    def phases(self) -> Mapping[int, int]:
        """For each flowing node of a pipeline of models when it runs, see `run_phases`; empty for a single model."""
        nodes = [self.graph.nodes[i] for i in self.graph.flow]
        return dict(zip(self.graph.flow, self.phases_of(nodes), strict=True)) if self.stepwise else {}

    def phases_of(self, units: Sequence[Unit]) -> tuple[int, ...]:
        """When each of some units runs, see `run_phases`."""
        return run_phases(units, self.stepwise, self.states.values(), has_end=self.loop is not None)

    @cached_property
    def digest(self) -> str:
        """The digest of its graph, without the values of large weights (see `fingerprint.graph_digest`)."""
        return graph_digest(self.proto)

    @cached_property
    def tensors(self) -> Tensors:
        """Type and shape of each input, each output, and each tensor that a flowing node writes.

        The dtype is `undefined` if no source knows it (see `shape_inference`).
        """
        graph = self.graph
        written = [tensor for i in graph.flow for tensor in graph.nodes[i].writes]
        known = infer_tensors(self.proto, {*written, *graph.writes}, folder=self.path.parent)
        names = dict.fromkeys((*graph.reads, *written, *graph.writes))
        return {name: known.get(name) or Tensor(name=name, dtype=UNDEFINED, shape=None) for name in names}

    @property
    def boundary_types(self) -> Tensors:
        """`tensors` as parts declare them: with symbols for more of the unknown dimensions, or numbers. Expensive."""
        return self.once(_boundary_types)

    @property
    def sizes(self) -> Sizes:
        """Sizes of `tensors` for `dims`; symbols of inputs without a number count as 1.

        Raises:
            ModelError: together they are above `MAX_BYTES`; a UsageError if that is for `dims`.
        """
        numbers = frozenset(self.dims.items())
        if numbers not in self._sizes:
            self._sizes[numbers] = self._computed_sizes()
        return self._sizes[numbers]

    @cached_property
    def _sizes(self) -> dict[frozenset[tuple[str, int]], Sizes]:
        """`sizes` by `dims`, of this model and of those that have other dims alone."""
        return {}

    def _computed_sizes(self) -> Sizes:
        counted = {**dict.fromkeys(self.symbols, 1), **self.dims}
        given_bytes, counted_bytes = (by_kind(methodcaller("bytes_for", dims), dims) for dims in (self.dims, counted))
        tensors = self.tensors
        unknown = {name for name, tensor in tensors.items() if not counted_bytes(tensor)[1]}
        if len(unknown) > BATCH and counted == with_total(counted):  # `boundary_types` takes that for given
            tensors = self.boundary_types
            unknown = {name for name in unknown if not counted_bytes(tensors[name])[1]}
        sizes = {name: given_bytes(tensor) for name, tensor in tensors.items()}
        found: dict[str, Tensor] = {}
        is_bound = self.dims.keys() >= {*self.symbols}
        for numbers in (self.dims,) if is_bound else (self.dims, counted):  # what counts no symbol as 1 is exact
            wanted = {name for name in unknown if self.tensors[name].is_plain}
            if wanted and (numbers or is_bound):
                types = infer_bound(self.proto, numbers, wanted, self.tensors)
                bytes_for = counted_bytes if numbers is counted else given_bytes
                more = {name: number for name, tensor in types.items() if (number := bytes_for(tensor))[1]}
                sizes |= {name: (number, numbers is not counted) for name, (number, _) in more.items()}
                found |= types
                unknown -= more.keys()
        self._check_sizes(sizes)
        ordered = tuple(name for name in self.tensors if name in unknown)
        open_dims = self._open_dims(unknown, found, counted)
        return Sizes(MappingProxyType(sizes), MappingProxyType(found), ordered, open_dims)

    def _open_dims(self, unknown: AbstractSet[str], found: Tensors, numbers: Dims) -> tuple[str, ...]:
        """The dimensions without a number of those tensors in `unknown` that depend on no other of them."""
        later: set[str] = set()  # what depends on `unknown`
        dims: dict[int | str, None] = {}
        for node in map(self.graph.nodes.__getitem__, self.graph.flow):
            open_tensors = [found.get(name, self.tensors[name]) for name in node.writes if name in unknown]
            if later.isdisjoint(node.reads):
                dims.update(dict.fromkeys(dim for tensor in open_tensors for dim in tensor.dim_names))
            if open_tensors or not later.isdisjoint(node.reads):
                later.update(node.writes)
        return tuple(dim for dim in dims if isinstance(dim, str) and dim not in numbers)

    def _check_sizes(self, sizes: TensorBytes) -> None:
        """Refuse tensors that together are above `MAX_BYTES`: with a UsageError if numbers for symbols made them so."""
        if sum(number for number, _ in sizes.values()) > MAX_BYTES:
            name = max(sizes, key=lambda name: sizes[name][0])
            message = f"the tensors of {self.path.name} take more than 64 PiB, {name!r} alone {sizes[name][0]:,} bytes"
            hint = "give smaller sizes" if self.dims else "check the shapes of the model's inputs"
            raise (UsageError if self.dims else ModelError)(message, hint=hint)

    @property
    def tensor_bytes(self) -> TensorBytes:
        """`sizes.bytes`."""
        return self.sizes.bytes

    def with_dims(self, dims: Dims) -> "Model":
        """The same model with other `dims`; what does not depend on them is not computed again."""
        if dims == self.dims:
            return self
        made = replace(self, dims=MappingProxyType(dict(dims)))
        made.__dict__.update((n, self.__dict__[n]) for n in _WITHOUT_DIMS if n in self.__dict__)
        made.__dict__.update(_sizes=self._sizes, _made_once=self._made_once)
        return made

    def once(self, make: Callable[["Model"], _Made]) -> _Made:
        """What a function makes of this model whatever its dims, made once."""
        made: dict[object, _Made] = self._made_once
        return made[make] if make in made else made.setdefault(make, make(self))

    @cached_property
    def _made_once(self) -> dict[object, Any]:
        return {}

    @cached_property
    def functions(self) -> Functions:
        """The model-local functions by domain, name and overload."""
        return {function_key(function): function for function in self.proto.functions}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The dimensions of the inputs without a number, in the order in which they appear (`Tensor.dim_names`)."""
        names = [self.tensors[name].dim_names for name in self.graph.reads]
        return tuple(dict.fromkeys(dim for dims in names for dim in dims if isinstance(dim, str)))

    def path_from(self, folder: Path) -> str:
        """The path of the model's file relative to `folder`, with links to folders resolved, and `/` as separator.

        For a temporary file a path beside `folder`: nothing is there, but a user may save the model there.
        """
        if self.temporary_folder is not None:
            return f"../{self.path.name}"
        return Path(os.path.relpath(self.path.parent.resolve() / self.path.name, folder.resolve())).as_posix()

    def range_of(self, tensor: TensorProto) -> ByteRange:
        """The range of bytes with the values of an external tensor."""
        return range_in(self.data, tensor)

    @cached_property
    def weight_bytes(self) -> int:
        """Size of all weights together, each counted once."""
        return sum(weight.bytes for weight in self.graph.weights.values())


def _boundary_types(model: Model) -> Tensors:
    return (name_unknown_dims if model.symbols else number_unknown_dims)(model.proto, model.tensors)


def load_unchecked(path: Path) -> Model:
    """The model in a file, also if it is a part that was changed."""
    return read_model(path, _parse(path))


def read_model(path: Path, proto: ModelProto, data: DataFiles | None = None) -> Model:
    """The model of a message that is in the file `path`, or could be; the message is changed.

    `data` are the files of its weights (`Model.data`), if others have found and checked them.
    """
    _check_text(proto)
    data = _find_all_data(path, proto) if data is None else data
    repeated = drop_equal_definitions(proto, partial(range_in, data))
    functions = {function_key(function): function for function in proto.functions}
    for function in proto.functions:
        check_nodes(function.node, function.opset_import, functions)
    graph, dropped, unused, read_notes = read_graph(proto, functions)
    notes = (*repeated, *read_notes)
    for value in proto.graph.input:
        if value.name in graph.reads and value.type.WhichOneof("value") is None:
            hint = "ONNX Runtime refuses the model, and onnx's shape inference crashes: declare the type of each input"
            raise ModelError(f"the input {value.name!r} of the model has no type", hint=hint)
    if dropped:
        notes = (*notes, f"removed {count(len(dropped), 'node')} that no output depends on, such as {dropped[0]!r}")
    if proto.training_info:
        notes = (*notes, "training_info refers to weights of the whole model; parts don't contain it")
    return Model(path, proto, graph, MappingProxyType({}), data, dropped, unused, notes, MappingProxyType({}))


def _parse(path: Path) -> ModelProto:
    """The ModelProto in a file, with large weights as references."""
    try:
        if path.is_dir():
            inside = sorted(path.glob("*.onnx"))
            hint = f"did you mean {inside[0]}?" if inside else f"name the .onnx file, or write {PIPELINE} there"
            raise ModelError(f"{path} is a folder, not a model", hint=hint)
        if not path.exists():
            raise ModelError(nothing_at(path, f"there is no file {path}"), hint="check the path")
        if not path.is_file():
            raise ModelError(f"{path} is not a regular file", hint="name the .onnx file")
        try:
            return _read(path)
        except ModelError:
            refuse_foreign(path)
            raise
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}", hint="check the path and its permissions") from None


def _read(path: Path) -> ModelProto:
    raw = read_without_weights(path)
    hint = "export the model to ONNX first"
    proto = ModelProto()
    try:
        proto.ParseFromString(raw)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise nested_too_deeply(path) from None
        raise ModelError(f"{path} is not an ONNX model", hint=hint) from None
    if not proto.HasField("graph"):
        raise ModelError(f"{path} is not an ONNX model: it has no graph", hint=hint)
    if not proto.graph.output or not proto.opset_import:
        raise ModelError(f"{path} is not an ONNX model: it has no outputs or opset", hint=hint)
    return proto


def _check_text(proto: ModelProto) -> None:
    """Check all names except those of nodes in the main graph, which `graph_reader` checks."""
    graph = proto.graph
    check_text(value.name for value in (*graph.input, *graph.output, *graph.value_info))
    check_text(symbols_in(proto))
    check_text(t.name for t in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)))
    check_text(text for function in proto.functions for text in (function.name, function.domain, function.overload))
    check_inner_text(node for function in proto.functions for node in nodes_within(function.node))
    for place, message in ((" of the model", proto), (" of the graph", graph)):
        for known, value in message.ListFields():
            check_text([value], what=f"the {known.name}{place}")


def symbols_in(proto: ModelProto) -> set[str]:
    """The symbolic dimensions that a model names."""
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param}


def _find_all_data(path: Path, proto: ModelProto) -> Mapping[str, tuple[Path, int]]:
    """`Model.data`, with all ranges checked. Values of small tensors are put into the message, as a file has them."""
    data: dict[str, tuple[Path, int]] = {}
    hint = "save the model again with the tool that wrote it"
    for tensor in tensors_in(proto):
        if not is_external(tensor):
            check_inline_values(proto, tensor)
            tensor.ClearField("data_location")  # onnx writes that it is the message, after it was a file
            continue
        check_text(entry.value for entry in tensor.external_data)
        locations = {entry.value for entry in tensor.external_data if entry.key == "location"}
        if len(locations) > 1:
            raise ModelError(f"the weights of {tensor.name!r} have {len(locations)} locations", hint=hint)
        location = next(iter(locations), "")
        if location not in data:
            file = resolve_location(path, location, tensor=tensor.name)
            data[location] = (file, file.stat().st_size)
        span = range_in(data, tensor)
        check_inside(span, file_bytes=data[location][1], tensor=tensor.name)
        expected = values_bytes(tensor)
        if span.length != expected:
            problem = f"have {expected:,} bytes by their type and shape, but the model says {span.length:,}"
            raise ModelError(f"the weights of {tensor.name!r} {problem}", hint=hint)
        if span.length < large_bytes(tensor.data_type):
            read_values(tensor, span)
    return data


def range_in(data: Mapping[str, tuple[Path, int]], tensor: TensorProto) -> ByteRange:
    """The range of bytes with the values of an external tensor, in the files of `data`.

    Numbers are those that ONNX Runtime accepts: digits only.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    for key in ("offset", "length"):
        if not re.fullmatch("-?[0-9]{1,30}", entries.get(key, "0")):
            message = f"the weights of {tensor.name!r} have the {key} {entries[key]!r}, which is not a number"
            raise ModelError(message, hint="save the model again with the tool that wrote it")
    length = int(entries["length"]) if "length" in entries else values_bytes(tensor)
    return ByteRange(data[entries["location"]][0], int(entries.get("offset", "0")), length)
