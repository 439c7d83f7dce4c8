"""The way back: one ONNX model from the parts of a cascade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto, ValueInfoProto

from ..core.atomic_files import replace_files, scratch_folder
from ..core.errors import GraphcutError, UsageError
from ..core.manifest import Cascade, CascadeLike, open_cascade
from ..loading.external_data import lay_out, read_values, refer_to_file, write_data
from ..loading.fingerprint import copy_fields
from ..loading.model import Model, load, range_in
from ..loading.shape_inference import type_proto
from ..loading.subgraphs import all_tensors, is_external
from ..loading.wire_format import large_bytes

INLINE_BYTES: Final = 64 << 20
"""Weights that together take no more than this are written into the model itself."""


def merge(cascade: CascadeLike, output: str | Path, *, force: bool = False) -> Model:
    """Write one model that does what `cascade` does, and open it.

    Right after a split its graph equals that of the model that was cut. Weights of 64 MiB and more go to `OUTPUT.data`.

    Raises:
        UsageError: a file stands in the way.
        ModelError: a part is damaged.
    """
    cascade, output = open_cascade(cascade), Path(output)
    data_file = output.with_name(f"{output.name}.data")
    pieces = [load(cascade.file(part)) for part in cascade.parts]
    whole, data = _stitched(cascade, pieces)
    spans = [(tensor, range_in(data, tensor)) for tensor in all_tensors(whole) if is_external(tensor)]
    layout = lay_out(span for _, span in spans)
    # A small weight that the model keeps in a file stays in one: its graph is then the model's to the letter.
    is_inline = layout.file_bytes <= INLINE_BYTES and all(
        span.length >= large_bytes(tensor.data_type) for tensor, span in spans
    )
    goals = [output] if is_inline else [data_file, output]
    _check_way(goals, [piece.path for piece in pieces] + [file for file, _ in data.values()], force=force)
    for tensor, span in spans:
        if is_inline:
            read_values(tensor, span)
        else:
            refer_to_file(tensor, data_file.name, layout.offset_of(span), span.length)
    try:
        with scratch_folder(output.absolute().parent, output.name) as scratch:
            new = scratch / "new"
            new.mkdir()
            if not is_inline:
                write_data(layout, new / data_file.name)
            (new / output.name).write_bytes(whole.SerializeToString(deterministic=True))
            replace_files(new, output.absolute().parent, last=output.name, old=goals, backup=scratch / "old")
    except OSError as error:
        raise GraphcutError(
            f"writing {output} failed: {error.strerror or error}", hint="nothing was changed"
        ) from error
    return load(output)


def _check_way(goals: Sequence[Path], sources: Sequence[Path], *, force: bool) -> None:
    read = {source.resolve() for source in sources}
    for goal in goals:
        if goal.resolve() in read:
            raise UsageError(f"{goal} is read for the merge itself", hint="choose another name with -o")
        if goal.is_dir():
            raise UsageError(f"{goal} is a folder", hint="name a file with -o")
        if goal.exists() and not force:
            raise UsageError(f"{goal} already exists", hint="choose another name with -o, or add --force")


def _stitched(cascade: Cascade, pieces: Sequence[Model]) -> tuple[ModelProto, dict[str, tuple[Path, int]]]:
    """One message of all parts, and the data files by the locations that its large tensors name."""
    data = {}
    for i, piece in enumerate(pieces):
        data.update({f"{i}/{location}": file for location, file in piece.data.items()})
        for tensor in all_tensors(piece.proto):
            for entry in tensor.external_data if is_external(tensor) else ():
                if entry.key == "location":
                    entry.value = f"{i}/{entry.value}"
    return _joined(cascade, [piece.proto for piece in pieces]), data


def _joined(cascade: Cascade, parts: Sequence[ModelProto]) -> ModelProto:
    whole = ModelProto()
    first = parts[0]
    copy_fields(first, whole, but={"graph", "functions"})
    graph = whole.graph
    graph.name, graph.doc_string = first.graph.name, first.graph.doc_string
    graph.metadata_props.extend(first.graph.metadata_props)
    graphs = [part.graph for part in parts]
    # A replica stands in several parts: its first output tells that it is the same node. It takes the place
    # of the first copy, so that every node stands after those that it reads.
    graph.node.extend({next(o for o in n.output if o): n for g in graphs for n in g.node}.values())
    graph.initializer.extend({t.name: t for g in graphs for t in g.initializer}.values())
    graph.sparse_initializer.extend({s.values.name: s for g in graphs for s in g.sparse_initializer}.values())
    graph.quantization_annotation.extend({n.tensor_name: n for g in graphs for n in g.quantization_annotation}.values())
    whole.functions.extend({(f.domain, f.name, f.overload): f for part in parts for f in part.functions}.values())
    _add_borders(cascade, graph, graphs)
    return whole


def _add_borders(cascade: Cascade, graph: GraphProto, parts: Sequence[GraphProto]) -> None:
    manifest = cascade.manifest
    inputs = {value.name: value for part in parts for value in part.input}
    outputs = {value.name: value for part in parts for value in part.output}

    def declared(name: str, known: dict[str, ValueInfoProto]) -> ValueInfoProto:
        # What no part reads or writes (an unused input, an input handed straight on) only the manifest knows.
        return known.get(name) or ValueInfoProto(name=name, type=type_proto(cascade.tensors[name]))

    graph.input.extend(declared(name, inputs) for name in manifest.reads)
    graph.input.extend(_listed_weights(graph, inputs, set(manifest.reads)))
    graph.output.extend(declared(name, {**inputs, **outputs}) for name in manifest.writes)
    # What one part recomputes, another may have been sent: there it is an output, and the model's note is found here.
    inner = {value.name: value for part in parts for value in part.value_info}
    inner.update({name: outputs[name] for name in cascade.wiring.boundary_tensors if name not in inner})
    graph.value_info.extend(value for name, value in inner.items() if name not in manifest.writes)


def _listed_weights(graph: GraphProto, inputs: dict[str, ValueInfoProto], reads: set[str]) -> Iterator[ValueInfoProto]:
    """In IR 3 every initializer is listed among the inputs as well."""
    return (inputs[t.name] for t in graph.initializer if t.name in inputs and t.name not in reads)
