"""`extract`: the sub-model between tensors, as a model of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from onnx import ModelProto

from ..core.arguments import Storage
from ..core.errors import UsageError, check_word
from ..core.graph import block_between
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from ..loading.specialising import specialised
from ..loading.subgraphs import fresh, is_external, tensors_in
from ..planning.node_names import find_tensors
from .model_files import checked_home, write_model
from .part_models import part_model

DeadInputs = Literal["keep", "drop"]


def extract(  # noqa: PLR0913 - independent settings
    model: ModelLike,
    output: str | Path,
    *,
    inputs: str | Sequence[str] = (),
    outputs: str | Sequence[str] = (),
    expose: str | Sequence[str] = (),
    dead_inputs: DeadInputs | None = None,
    assume: Mapping[str, bool | float] = MappingProxyType({}),
    weights: Storage = "copy",
    force: bool = False,
) -> Model:
    """Write the sub-model between tensors as a model of its own, and open it.

    Its outputs have the values that the model computes for these tensors if its inputs have those that the model
    computes for them. A tensor keeps its name and its type. Tensors are given by name, by the node that writes them
    (those of its outputs that are read), or by a glob of either.

    Args:
        model: the model or its path.
        output: the .onnx file to write. Weights of more than 64 MiB are written to `OUTPUT.data`.
        inputs: the tensors that become its inputs; by default the inputs of the model. Inputs of the model that have a
            default are inputs of the sub-model, too, where it reads them.
        outputs: the tensors that become its outputs; by default the outputs of the model.
        expose: more tensors that become outputs, after the others.
        dead_inputs: `drop`: leave out inputs that no output depends on. `keep`: declare them all the same. By default
            they are dropped if `outputs` is given.
        assume: inputs of the model with a fixed value, such as `{"use_cache_branch": True}`. Each If whose condition
            follows from them becomes the branch that it takes.
        weights: `copy`: the sub-model has its weights. `share`: it refers to those of the model's files, and must then
            be in the model's folder.
        force: overwrite an existing file.

    Raises:
        UsageError: a name is not found, an output also needs another input, an input can't have the value that is
            assumed, or `output` exists.
        ModelError: an input or output has an unknown type.
        CascadeError: the model is a part that was changed, by a manifest beside it.
        GraphcutError: writing failed.
    """
    check_word(dead_inputs or "keep", DeadInputs, "dead_inputs")
    model, output = specialised(load(model), assume), Path(output)
    home = checked_home(model, output, weights, force=force)
    keeps = dead_inputs == "keep" or (dead_inputs is None and not outputs)
    names = ((names,) if isinstance(names, str) else names for names in (inputs, outputs, expose))
    proto = _sub_model(model, *names, keeps_dead_inputs=keeps)
    pieces = [(tensor, model.range_of(tensor)) for tensor in tensors_in(proto) if is_external(tensor)]
    write_model(output, proto, pieces, home=home, force=force)
    return load(output)


def _sub_model(
    model: Model, inputs: Sequence[str], outputs: Sequence[str], expose: Sequence[str], *, keeps_dead_inputs: bool
) -> ModelProto:
    graph = model.graph
    reads = find_tensors(graph, inputs) if inputs else graph.reads
    writes = find_tensors(graph, outputs) if outputs else graph.writes
    writes = tuple(dict.fromkeys((*writes, *find_tensors(graph, expose))))
    if constant := next((name for name in reads if name not in model.tensors), None):
        raise UsageError(f"{constant!r} is a constant or a weight", hint="leave it out: a sub-model has those it needs")
    block = block_between(graph, reads, writes)
    if keeps_dead_inputs:
        reads = tuple(dict.fromkeys((*reads, *block.reads)))
        defaults = (name for name in reads if name in graph.weights)
        block = replace(block, reads=reads, weights=tuple(dict.fromkeys((*block.weights, *defaults))))
    if not model.tensors.keys() >= {*writes}:  # constants: their types are known if they are outputs
        model = replace(model, graph=replace(graph, writes=(*graph.writes, *writes)))
    proto = part_model(model, block)
    _rename_shadowed(proto, {*block.reads})
    return proto


def _rename_shadowed(proto: ModelProto, inputs: set[str]) -> None:
    """Give other names to outputs of nodes that are inputs of the sub-model: it needs another output of the node."""
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output)} | inputs
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name in inputs:
                node.output[i] = fresh(f"{name}@computed", taken)
