"""`joined`: one message from those of several models, with outputs of some connected to inputs of others."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto

from ..core.errors import ModelError, UsageError, check_names
from ..core.tensors import shapes_contradict
from .fingerprint import head_of, same_values
from .graph_reader import read_graph
from .model import Model
from .subgraphs import (
    FIRST_IR_WITH_DEFAULTS,
    FunctionKey,
    callee_key,
    domain,
    fresh,
    function_key,
    graphs_within,
    messages_in,
    names_in,
    nodes_within,
    own_names,
    remove_named,
)

End = tuple[int, str]  #: the index of a model, and one of its inputs or outputs.


def joined(
    models: Sequence[Model],
    protos: Sequence[ModelProto],
    connect: Mapping[End, End],
    labels: Sequence[str],
    kept: Collection[End] = (),
) -> tuple[ModelProto, Sequence[Mapping[str, str]]]:
    """The message of all models together, made of copies of theirs, which it changes; and new names of each one's.

    Outputs that are read are no outputs any more, except those that are `kept`.
    Of names that several models have, those of later models get their label: `x` of `b` becomes `b/x`. Weights of one
    name that have the same values become one.

    Raises:
        UsageError: there is no such input or output, or their types contradict each other.
        ModelError: the connections form a cycle, or the models import different versions of an operator set.
    """
    _check_versions(models)
    _check(models, connect)
    joining = _Joining(models, protos, connect, labels, kept)
    return joining.joined(), joining.names


def _check_versions(models: Sequence[Model]) -> None:
    versions: dict[str, int] = {}
    for opset in (opset for model in models for opset in model.proto.opset_import):
        known = versions.setdefault(domain(opset.domain), opset.version)
        if known != opset.version:
            what = f"models import versions {known} and {opset.version} of the operator set {opset.domain or 'ai.onnx'}"
            raise ModelError(what, hint="convert one of them with onnx.version_converter first")


def _check(models: Sequence[Model], connect: Mapping[End, End]) -> None:
    for (i, name), (j, source) in connect.items():
        for model, end, known in (
            (models[i], name, models[i].graph.reads),
            (models[j], source, (*models[j].graph.writes, *models[j].graph.reads)),
        ):
            if end not in known and end in model.graph.writes:
                what = f"{end!r} is an output of {model.path.name}, and only inputs read others"
                hint = f"exchange the ends, if {source!r} is an input of {models[j].path.name}"
                raise UsageError(what, hint=hint)
            check_names([end], known, f"{model.path.name} has nothing called", "it has", " to be connected")
        if (j, source) in connect:
            raise UsageError(f"{name!r} would read {source!r}, an input that is connected itself", hint="use an output")
        read, written = models[i].tensors[name], models[j].tensors[source]
        if read.dtype != written.dtype or shapes_contradict(*(one.with_numbers({}).shape for one in (read, written))):
            what = f"{name!r} of {models[i].path.name} is {read}, and {source!r} of {models[j].path.name} is {written}"
            raise UsageError(what, hint="connect tensors of one type")


@dataclasses.dataclass
class _Joining:
    """The messages of models, changed so that they have no name in common but those that are connected."""

    models: Sequence[Model]
    protos: Sequence[ModelProto]
    sources: Mapping[End, End]
    labels: Sequence[str]
    kept: Collection[End]
    identities: list[NodeProto] = dataclasses.field(default_factory=list)
    names: list[dict[str, str]] = dataclasses.field(default_factory=list)  #: of each model, new names by the old ones.

    def joined(self) -> ModelProto:
        self._rename_functions()
        self._number_symbols()
        self._rename_tensors()
        self._rename_nodes()
        self._rename_symbols()
        return self._together()

    def _fresh(self, i: int, name: str, taken: AbstractSet[str], sign: str = "/") -> str:
        """A name that is not taken: the same with the label of its model."""
        return fresh(f"{self.labels[i]}{sign}{name.removeprefix(sign)}", taken)

    def _renamed(self, own: Sequence[AbstractSet[str]]) -> list[dict[str, str]]:
        """For each model new names for those of `own` that an earlier one has."""
        used, found = set[str](), list[dict[str, str]]()
        everything = {name for names in own for name in names}
        for i, names in enumerate(own):
            found.append({name: self._fresh(i, name, everything | used) for name in sorted(names & used)})
            used |= (names - found[-1].keys()) | set(found[-1].values())
        return found

    def _rename_functions(self) -> None:
        """Equal ones, too: the functions that they call may differ."""
        keys = [{function_key(function) for function in proto.functions} for proto in self.protos]
        names, known = {key[1] for own in keys for key in own}, set[FunctionKey]()
        for i, proto in enumerate(self.protos):
            new = {key: self._fresh(i, key[1], names, "_") for key in sorted(keys[i] & known)}
            known |= keys[i]
            names.update(new.values())
            for node in nodes_within((*proto.graph.node, *(node for one in proto.functions for node in one.node))):
                node.op_type = new.get(callee_key(node), node.op_type)
            for function in proto.functions:
                function.name = new.get(function_key(function), function.name)

    def _number_symbols(self) -> None:
        """Where inputs are one, its dimensions have the numbers that any of them asks for."""
        for (i, name), (j, source) in self.sources.items():
            ends = (i, name), (j, source)
            found = [value for k, end in ends for value in self.protos[k].graph.input if value.name == end]
            if len(found) < len(ends):
                continue
            asked, known = (value.type.tensor_type for value in found)
            if not known.HasField("shape"):
                known.shape.dim.extend(TensorShapeProto.Dimension() for _ in asked.shape.dim)
            for a, b in zip(asked.shape.dim, known.shape.dim, strict=False):
                same = [dim for dim in _dims_in(self.protos[j].graph) if b.dim_param and dim.dim_param == b.dim_param]
                for dim in (b, *same) if a.HasField("dim_value") else ():
                    dim.dim_value = a.dim_value

    def _rename_tensors(self) -> None:
        connected = [{name for j, name in self.sources if j == i} for i in range(len(self.protos))]
        shared = self._shared_weights()
        renamed = self._renamed([names_in(p.graph) - connected[i] - shared[i] for i, p in enumerate(self.protos)])
        for i, proto in enumerate(self.protos):
            taken = {new for names in renamed for new in names.values()}
            taken.update(name for p in self.protos for name in names_in(p.graph))
            readers: dict[str, str] = {}
            for name in sorted(connected[i]):
                j, source = self.sources[i, name]
                written = renamed[j].get(source, source)
                if written in readers.values():  # one name for both could be hidden by that of a subgraph
                    readers[name] = self._fresh(i, name, taken)
                    self.identities.append(NodeProto(op_type="Identity", input=[written], output=[readers[name]]))
                else:
                    readers[name] = written
            for values in (proto.graph.input, proto.graph.initializer):
                remove_named(values, connected[i])
            remove_named(proto.graph.initializer, shared[i])
            self.names.append({**renamed[i], **readers})
            rename_in(proto.graph, self.names[i])

    def _shared_weights(self) -> list[set[str]]:
        """For each model its weights that an earlier one has under the same name, with the same type and values."""
        known: dict[str, tuple[TensorProto, Model]] = {}
        found = list[set[str]]()
        for model in self.models:
            graph = model.proto.graph
            given, inner = {value.name for value in graph.input}, names_in(graph) - own_names(graph)
            own = {one.name: one for one in graph.initializer if one.name not in given | inner}
            shared = set[str]()
            for name, one in own.items():
                other, of = known.setdefault(name, (one, model))
                is_alike = one.dims == other.dims and TensorProto.STRING != one.data_type == other.data_type
                if of is not model and is_alike and same_values(one, model.range_of, other, of.range_of):
                    shared.add(name)
            found.append(shared)
        return found

    def _rename_nodes(self) -> None:
        own = [{node.name for node in proto.graph.node} - {""} for proto in self.protos]
        for proto, names in zip(self.protos, self._renamed(own), strict=True):
            for node in proto.graph.node:
                node.name = names.get(node.name, node.name)

    def _rename_symbols(self) -> None:
        """One name for the dimensions of a connection, and different ones for all others."""
        own = [{dim.dim_param for dim in _dims_in(proto.graph)} - {""} for proto in self.protos]
        used = set[str]()
        found: list[dict[str, str]] = []
        for i, proto in enumerate(self.protos):
            names: dict[str, str] = {}
            for (reader, name), (j, source) in self.sources.items():
                ends = (self.models[i].tensors[name], self.models[j].tensors[source]) if j < reader == i else ()
                for a, b in zip(*(end.shape or () for end in ends), strict=False):
                    if isinstance(a, str) and isinstance(b, str):
                        names.setdefault(a, found[j].get(b, b))
            taken = used.union(*own)
            names |= {name: self._fresh(i, name, taken) for name in sorted((own[i] & used) - names.keys())}
            used |= {names.get(name, name) for name in own[i]}
            found.append(names)
            for dim in _dims_in(proto.graph):
                if dim.dim_param in names:
                    dim.dim_param = names[dim.dim_param]

    def _together(self) -> ModelProto:
        made = head_of(self.protos[0])
        made.ir_version = max(proto.ir_version for proto in self.protos)
        opsets = {domain(one.domain): one for proto in self.protos for one in proto.opset_import}
        metadata = {one.key: one for proto in reversed(self.protos) for one in proto.metadata_props}
        functions = {function_key(function): function for proto in self.protos for function in proto.functions}
        for field, messages in (("opset_import", opsets), ("metadata_props", metadata), ("functions", functions)):
            made.ClearField(field)
            getattr(made, field).extend(messages.values())
        graph, outputs, inner = made.graph, dict[str, ValueInfoProto](), dict[str, ValueInfoProto]()
        read = set(self.sources.values()).difference(self.kept)
        for i, (model, proto) in enumerate(zip(self.models, self.protos, strict=True)):
            own = proto.graph
            for field in ("node", "initializer", "sparse_initializer", "quantization_annotation"):
                getattr(graph, field).extend(getattr(own, field))
            # In IR 3 every initializer is an input as well.
            is_old = proto.ir_version < FIRST_IR_WITH_DEFAULTS <= made.ir_version
            fixed = {tensor.name for tensor in own.initializer} if is_old else set()
            graph.input.extend(value for value in own.input if value.name not in fixed)
            inner.update((value.name, value) for value in own.value_info)
            for name, value in zip(model.graph.writes, own.output, strict=True):
                (inner if (i, name) in read else outputs)[value.name] = value
        graph.node.extend(self.identities)
        graph.output.extend(outputs.values())
        given = {value.name for value in graph.input}
        graph.value_info.extend(value for name, value in inner.items() if name not in {*outputs, *given})
        read_graph(made, functions)  # sorts the nodes
        return made


def rename_in(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors at any depth. As all of one name change alike, each name still means the same tensor."""
    for one in graphs_within(graph):
        for field in (one.input, one.output, one.initializer, one.value_info):
            for value in field:
                value.name = names.get(value.name, value.name)
        for sparse in one.sparse_initializer:
            sparse.values.name = names.get(sparse.values.name, sparse.values.name)
        for node in one.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        for note in one.quantization_annotation:
            note.tensor_name = names.get(note.tensor_name, note.tensor_name)
            for entry in note.quant_parameter_tensor_names:
                entry.value = names.get(entry.value, entry.value)


def _dims_in(message: Message) -> Iterator[TensorShapeProto.Dimension]:
    """The dimensions in all types in a message, at any depth."""
    return messages_in(message, TensorShapeProto.Dimension, lambda kind: kind != "TensorProto")
