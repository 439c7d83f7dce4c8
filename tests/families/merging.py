"""A decoder and a decoder with caches as one model with an If, as Optimum merges them.

As in its `merge_decoders`: the first branch of `use_cache_branch` is the decoder with caches; weights lie in the outer
graph, once for both branches, named `NAME_merged`; scalars and lists of integers stay in the branches; what the decoder
with caches does not give out (the encoder's caches) it gives out without rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

MERGED = "decoder_model_merged.onnx"


def merge(folder: Path, *, keep: bool = False) -> Path:
    """Write the merged decoder of a folder that has the two; without `keep` these are taken away."""
    paths = [folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx"]
    onnx.save(merged(*map(onnx.load, paths)), folder / MERGED)
    for path in () if keep else paths:
        path.unlink()
    return folder


def merged(first: ModelProto, later: ModelProto) -> ModelProto:
    """The model with both branches. The two are changed."""
    give_without_rows(later.graph, first.graph.output)
    shared: dict[tuple[object, ...], TensorProto] = {}
    branches = [_branch(model.graph, name, shared) for model, name in ((first, "no_past"), (later, "with_past"))]
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    node = helper.make_node(
        "If", [flag.name], [output.name for output in first.graph.output], "optimum::if",
        then_branch=branches[1], else_branch=branches[0],
    )  # fmt: skip
    inputs = {value.name: value for model in (later, first) for value in model.graph.input}
    graph = helper.make_graph([node], "merged", [*inputs.values(), flag], first.graph.output, [*shared.values()])
    return helper.make_model(
        graph, producer_name="optimum-onnx", opset_imports=first.opset_import, ir_version=first.ir_version
    )


def give_without_rows(graph: GraphProto, outputs: Sequence[ValueInfoProto]) -> None:
    """Let the graph write each of the outputs, those that it does not write as a tensor without rows."""
    own = {value.name for value in graph.output}
    for value in outputs:
        if value.name not in own:
            kind = value.type.tensor_type
            sizes = [0, *(dim.dim_value or 1 for dim in kind.shape.dim[1:])]
            tensor = helper.make_tensor("empty", kind.elem_type, sizes, [])
            graph.node.append(helper.make_node("Constant", [], [value.name], f"empty/{value.name}", value=tensor))
    del graph.output[:]
    graph.output.extend(outputs)


def _branch(graph: GraphProto, name: str, shared: dict[tuple[object, ...], TensorProto]) -> GraphProto:
    """The graph without inputs and weights; these are added to `shared`, once for each content."""
    new_names, own = dict[str, str](), list[TensorProto]()
    for tensor in graph.initializer:
        if not tensor.dims or (len(tensor.dims) == 1 and tensor.data_type in {TensorProto.INT32, TensorProto.INT64}):
            own.append(tensor)
            continue
        content = (tensor.data_type, *tensor.dims, sha256(tensor.raw_data).digest())
        if content not in shared:
            shared[content] = TensorProto()
            shared[content].CopyFrom(tensor)
            shared[content].name = f"{tensor.name}_merged"
        new_names[tensor.name] = shared[content].name
    _rename(graph.node, new_names)
    return helper.make_graph(graph.node, name, [], graph.output, own)


def _rename(nodes: Iterable[onnx.NodeProto], new_names: dict[str, str]) -> None:
    for node in nodes:
        node.input[:] = [new_names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            _rename(attribute.g.node, new_names)
