"""`link`: a model whose weights stay in the safetensors files that it was exported from."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..core.arguments import Progress
from ..core.errors import UsageError
from ..core.product import Product
from ..loading.equal_values import ValueFinder
from ..loading.external_data import ByteRange, refer_to_file
from ..loading.opening import ModelLike, load
from ..loading.safetensors_files import read_checkpoint
from ..loading.subgraphs import captures, domain, is_external, tensors_in
from .model_files import check_targets, write_model

_MICROSOFT: Final = "com.microsoft"
_FUSED_TYPES: Final = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
"""What ONNX Runtime's FusedMatMul multiplies on the CPU."""


@dataclass(frozen=True, repr=False)
class LinkedWeight(Product):
    """A large weight of a linked model."""

    name: str  #: its name; empty if it is an attribute of a node.
    bytes: int  #: its size.
    saved: str | None  #: the tensor of the checkpoint whose bytes it has; None if it has a copy in the data file.
    is_transposed: bool  #: it is stored transposed there; a copy that is so could be referred to, too.


@dataclass(frozen=True, repr=False)
class Linking(Product):
    """The result of `link`."""

    path: Path  #: the linked model.
    weights: tuple[LinkedWeight, ...]  #: its large weights.
    saved_dtypes: tuple[str, ...]  #: the types of the checkpoint's tensors, in the words of safetensors.

    @property
    def copied(self) -> tuple[LinkedWeight, ...]:
        """The weights that were not found."""
        return tuple(weight for weight in self.weights if weight.saved is None)


def link(
    model: ModelLike,
    weights: str | Path,
    output: str | Path,
    *,
    transposed: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Linking:
    """Write a model whose large weights refer into the safetensors files of a checkpoint, where these have equal bytes.

    Names and types do not count. Weights that are not found are copied to `OUTPUT.data`. Both sides are read once,
    through small buffers. Checkpoints in another precision than the model have no equal bytes.

    Args:
        model: the model or its path.
        weights: the folder of a Hugging Face model, or a .safetensors file.
        output: the .onnx file to write, in a folder that holds the files of the checkpoint, or is above it: readers
            of ONNX refuse files elsewhere.
        transposed: also find matrices that are stored transposed. A MatMul that multiplies by one becomes a FusedMatMul
            (domain `com.microsoft`) with `transB`, so the graph changes.
        force: overwrite an existing file.
        progress: called for the bytes of weights that were looked up.

    Raises:
        UsageError: `output` exists, or is not above the checkpoint; or there is no checkpoint.
        ModelError: a file of the checkpoint is damaged.
        GraphcutError: writing failed.
    """
    model, output = load(model), Path(output)
    saved = {tensor.span: tensor for tensor in read_checkpoint(Path(weights))}
    files = dict.fromkeys(span.file for span in saved)
    locations = {file: _location(file, output.absolute().parent) for file in files}
    check_targets(output, [*model.files, *files], force=force)
    proto = deepcopy(model.proto)
    held = [(tensor, model.range_of(tensor)) for tensor in tensors_in(proto) if is_external(tensor)]
    multiplied = _multiplied(proto.graph)
    finder, found, copied = ValueFinder(saved), list[LinkedWeight](), list[tuple[TensorProto, ByteRange]]()
    total = sum(span.length for _, span in held)
    for tensor, span in held:
        match, is_transposed = finder.equal(span), False
        if match is None and tensor.name in multiplied and len(tensor.dims) == 2 and tensor.data_type in _FUSED_TYPES:
            there = finder.transposed(span, *tensor.dims)
            match, is_transposed = there if transposed else None, there is not None
        if match is None:
            copied.append((tensor, span))
        else:
            refer_to_file(tensor, locations[match.file], match.offset, match.length)
        if match is not None and is_transposed:
            _multiply_transposed(proto, tensor, multiplied[tensor.name])
        found.append(LinkedWeight(tensor.name, span.length, match and saved[match].name, is_transposed))
        if progress is not None:
            progress(model.path.name, span.length, total)
    write_model(output, proto, copied, is_inline=False, force=force)
    return Linking(output, tuple(found), tuple(sorted({tensor.dtype for tensor in saved.values()})))


def _location(file: Path, folder: Path) -> str:
    """How a model in `folder` refers to `file`."""
    path, home = file.parent.resolve() / file.name, folder.resolve()
    if not (path.is_relative_to(home) and path.resolve().is_relative_to(home)):
        above = os.path.commonpath([path.parent, path.resolve().parent])
        what = f"a model in {folder} can't refer to {file}: readers of ONNX refuse files outside of its folder"
        raise UsageError(what, hint=f"write it into {above} with `output`, or a folder above")
    return path.relative_to(home).as_posix()


def _multiplied(graph: GraphProto) -> Mapping[str, Sequence[NodeProto]]:
    """The MatMul nodes that multiply by a weight from the right, for weights that nothing else reads."""
    nodes = defaultdict[str, list[NodeProto]](list)
    times = Counter(tensor.name for tensor in tensors_in(graph))  # a subgraph may have a weight of the same name
    others = {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        is_product = node.op_type == "MatMul" and domain(node.domain) == ""
        others.update(captures(node), node.input[:1] if is_product else node.input)
        if is_product:
            nodes[node.input[1]].append(node)
    weights = {tensor.name for tensor in graph.initializer if times[tensor.name] == 1} - others
    return {name: nodes[name] for name in weights if name in nodes}


def _multiply_transposed(proto: ModelProto, weight: TensorProto, nodes: Sequence[NodeProto]) -> None:
    weight.dims[:] = reversed(weight.dims)
    for node in nodes:
        node.op_type, node.domain = "FusedMatMul", _MICROSOFT
        node.attribute.add(name="transB", type="INT", i=1)
    if not any(opset.domain == _MICROSOFT for opset in proto.opset_import):
        proto.opset_import.add(domain=_MICROSOFT, version=1)
