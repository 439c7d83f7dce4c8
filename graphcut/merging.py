"""The way back: one ONNX model from the parts of a cascade."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from .cascade import Cascade
from .errors import GraphcutError, UsageError
from .model import Model, all_tensors, load
from .scopes import is_external
from .shapes import type_of
from .skeleton import LARGE_BYTES
from .splitting import refer, scratch_folder
from .structure import copy_fields
from .weights import Range, lay_out, read_bytes, total_bytes, write_data

INLINE_BYTES: Final = 64 << 20
"""Weights that together take no more than this are written into the model itself."""


def merge(cascade: Cascade, output: str | Path, *, force: bool = False) -> Model:
    """Write one model that does what `cascade` does, and open it.

    Right after a split its graph equals that of the model that was cut. Weights of 64 MiB and more go to `OUTPUT.data`.

    Raises:
        UsageError: a file stands in the way.
        ModelError: a part is damaged.
    """
    output = Path(output)
    data = output.with_name(f"{output.name}.data")
    pieces = [load(cascade.file(part)) for part in cascade.parts]
    spans = {id(piece): [piece.range_of(t) for t in all_tensors(piece.proto) if is_external(t)] for piece in pieces}
    everything = [span for piece in pieces for span in spans[id(piece)]]
    # A small weight that the model keeps in a file stays in one: its graph is then the model's to the letter.
    is_inline = total_bytes(everything) <= INLINE_BYTES and all(span.length >= LARGE_BYTES for span in everything)
    for file in (output,) if is_inline else (output, data):
        if file.exists() and not force:
            raise UsageError(f"{file} stands there already", hint="choose another name with -o, or add --force")
    layout = lay_out(everything)
    for piece in pieces:
        for tensor in all_tensors(piece.proto):
            if is_external(tensor):
                _settle(tensor, piece.range_of(tensor), None if is_inline else (data.name, layout.offset_of))
    whole = _stitched(cascade, [piece.proto for piece in pieces])
    try:
        with scratch_folder(output.absolute().parent, f"{output.name}.tmp-") as scratch:
            if not is_inline:
                write_data(layout, scratch / data.name)
            (scratch / output.name).write_bytes(whole.SerializeToString(deterministic=True))
            for file in sorted(scratch.iterdir(), reverse=True):
                os.replace(file, output.parent / file.name)
    except OSError as error:
        raise GraphcutError(
            f"writing {output} failed: {error.strerror or error}", hint="nothing was changed"
        ) from error
    return load(output)


def _settle(tensor: TensorProto, span: Range, place: tuple[str, Any] | None) -> None:
    """Put the values of a large tensor into the message, or refer to where they will lie."""
    if place is None:
        tensor.raw_data = read_bytes(span)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    else:
        name, offset_of = place
        refer(tensor, name, offset_of(span), span.length)


def _stitched(cascade: Cascade, parts: Sequence[ModelProto]) -> ModelProto:
    whole = ModelProto()
    first = parts[0]
    copy_fields(first, whole, but={"graph", "functions"})
    graph = whole.graph
    graph.name, graph.doc_string = first.graph.name, first.graph.doc_string
    graph.metadata_props.extend(first.graph.metadata_props)
    graphs = [part.graph for part in parts]
    # A replica stands in several parts: its first output tells that it is the same node.
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
        return known.get(name) or ValueInfoProto(name=name, type=type_of(cascade.tensors[name]))

    graph.input.extend(declared(name, inputs) for name in manifest.reads)
    graph.input.extend(_listed_weights(graph, inputs, set(manifest.reads)))
    graph.output.extend(declared(name, {**inputs, **outputs}) for name in manifest.writes)
    graph.value_info.extend({v.name: v for part in parts for v in part.value_info}.values())
    graph.value_info.extend(outputs[name] for name in cascade.wiring.crossing if name not in manifest.writes)


def _listed_weights(graph: GraphProto, inputs: dict[str, ValueInfoProto], reads: set[str]) -> Iterator[ValueInfoProto]:
    """In IR 3 every initializer is listed among the inputs as well."""
    return (inputs[t.name] for t in graph.initializer if t.name in inputs and t.name not in reads)
