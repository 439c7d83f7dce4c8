"""`merge`: one ONNX model from the parts of a cascade."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from ..core.file_checks import check_files
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..loading.derived_tensors import helper_names
from ..loading.fingerprint import head_of
from ..loading.model import Model, load
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
        UsageError: `output` exists, or is a file of the cascade.
        CascadeError: a file of the cascade is missing or was changed.
    """
    cascade = open_cascade(cascade)
    check_files(cascade)
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
