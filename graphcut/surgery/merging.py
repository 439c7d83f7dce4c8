"""`merge` and `merge_models`: one ONNX model from the parts of a cascade, or from models that feed each other."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from ..core.errors import UsageError
from ..core.file_checks import check_files
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..loading.derived_tensors import helper_names
from ..loading.fingerprint import head_of
from ..loading.joining import End, joined
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from ..loading.shape_inference import type_proto
from ..loading.subgraphs import function_key
from .model_files import write_together


def merge(cascade: CascadeLike, output: str | Path, *, force: bool = False) -> Model:
    """Write the parts of a cascade as one model, and open it.

    Directly after a split its graph is equal to that of the model that was split. Weights of more than 64 MiB are
    written to `OUTPUT.data`.

    Args:
        cascade: the cascade or its path.
        output: the .onnx file to write.
        force: overwrite an existing file.

    Raises:
        UsageError: `output` exists, or is a file of the cascade; or a part was converted or compiled.
        CascadeError: a file of the cascade is missing or was changed.
    """
    cascade = open_cascade(cascade)
    check_files(cascade)
    if cascade.converted:
        raise UsageError(f"{cascade.converted[0]} has no nodes of ONNX", hint="merge the cascade that it was made from")
    parts = [load(cascade.file(part)) for part in cascade.parts]
    return write_together(Path(output), parts, partial(_merged, cascade), force=force, also_read=[cascade.path])


def _merged(cascade: Cascade, parts: Sequence[ModelProto]) -> ModelProto:
    merged = head_of(parts[0])
    graph, graphs = merged.graph, [part.graph for part in parts]
    # The copies of a replicated node have the same first output. The node takes the index of its first copy, so that
    # it comes after the nodes whose tensors it reads.
    found: dict[str, NodeProto] = {}
    for part, g in zip(cascade.parts, graphs, strict=True):
        derived = {*part.derived, *(name for source in part.derived.values() for name in helper_names(source))}
        named = ((next(filter(None, node.output)), node) for node in g.node)
        found.update((name, node) for name, node in named if name not in derived)
    graph.node.extend(found.values())
    graph.initializer.extend({t.name: t for g in graphs for t in g.initializer}.values())
    graph.sparse_initializer.extend({s.values.name: s for g in graphs for s in g.sparse_initializer}.values())
    graph.quantization_annotation.extend({n.tensor_name: n for g in graphs for n in g.quantization_annotation}.values())
    merged.functions.extend({function_key(f): f for part in parts for f in part.functions}.values())
    _add_values(cascade, graph, graphs)
    return merged


def _add_values(cascade: Cascade, graph: GraphProto, parts: Sequence[GraphProto]) -> None:
    """Add inputs, outputs and value_info."""
    manifest = cascade.manifest
    inputs = {value.name: value for part in parts for value in part.input}
    outputs = {value.name: value for part in parts for value in part.output}

    def declared(name: str, known: dict[str, ValueInfoProto]) -> ValueInfoProto:
        # An input that no part reads, or that is also an output, is declared by the manifest only.
        return known.get(name) or ValueInfoProto(name=name, type=type_proto(cascade.tensors[name]))

    graph.input.extend(declared(name, inputs) for name in manifest.reads)
    # In IR 3 every initializer is an input as well.
    graph.input.extend(inputs[t.name] for t in graph.initializer if t.name in inputs and t.name not in manifest.reads)
    graph.output.extend(declared(name, {**inputs, **outputs}) for name in manifest.writes)
    # A tensor that one part recomputes may be sent to another: there it is an output, with the model's value_info.
    inner = {value.name: value for part in parts for value in part.value_info}
    derived = {name for part in cascade.parts for name in part.derived}
    inner.update({name: outputs[name] for name in cascade.wiring.boundary_tensors if name not in {*inner, *derived}})
    graph.value_info.extend(value for name, value in inner.items() if name not in manifest.writes)


def merge_models(
    models: Sequence[ModelLike], output: str | Path, *, connect: Mapping[End, End] | None = None, force: bool = False
) -> Model:
    """Write several models as one, and open it.

    Its inputs are those of the models that are not connected, and its outputs those that are not connected. A tensor, a
    node, a function or a symbol whose name an earlier model has is renamed: `x` of `b.onnx` becomes `b/x`. The symbols
    of dimensions that are connected become one.

    Args:
        models: the models or their paths.
        output: the .onnx file to write. Weights of more than 64 MiB are written to `OUTPUT.data`.
        connect: for inputs of models the output, or input, of another model that they read. By default each input reads
            the output of that name in another model, or else the input of that name in an earlier one, whose dimensions
            must have the same symbols and numbers.
        force: overwrite an existing file.

    Raises:
        UsageError: there is no such input or output, their types contradict each other, nothing is connected, or
            `output` exists.
        ModelError: the connections form a cycle, or the models import different versions of an operator set.
        CascadeError: a model is a part that was changed, by a manifest beside it.
        GraphcutError: writing failed.
    """
    opened = [load(model) for model in models]
    sources = _by_name(opened) if connect is None else connect
    labels = [model.stem for model in opened]
    return write_together(Path(output), opened, lambda protos: joined(opened, protos, sources, labels)[0], force=force)


def _by_name(models: Sequence[Model]) -> dict[End, End]:
    found: dict[End, End] = {}
    for i, model in enumerate(models):
        others = [*range(i - 1, -1, -1), *range(i + 1, len(models))]
        for name in model.graph.reads:
            ends = [j for j in others if name in models[j].graph.writes]
            ends += [j for j in range(i) if name in models[j].graph.reads]
            if ends:
                found[i, name] = ends[0], name
                _check_one_input(model, models[ends[0]], name)
    if not found:
        raise UsageError("no output has the name of another model's input", hint="say what is connected with `connect`")
    return found


def _check_one_input(model: Model, other: Model, name: str) -> None:
    """Raise a UsageError for inputs of one name of which one has a symbol for what is another symbol or a number.

    They need not be one input.
    """
    first, second = other.tensors[name], model.tensors[name]
    pairs = zip(first.shape or (), second.shape or (), strict=False)
    if name in other.graph.reads and any(a != b and None not in (a, b) for a, b in pairs):
        ends = f"{first} in {other.path.name}, and {second} in {model.path.name}"
        raise UsageError(f"{name!r} is {ends}: it may be one input or two", hint="list all connections in `connect`")
