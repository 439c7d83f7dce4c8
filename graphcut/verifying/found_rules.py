"""Rules of operators that have none in the table: found by running each of them, and kept in a folder of the user.

What was found for a node holds for all nodes with the same operator, attributes, types and shapes, for the same version
of ONNX Runtime. So it is a file named by the digest of these, in `cache_folder()`, which has at most 1,000 files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Final

import msgspec
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..core.atomic_files import cache_folder
from ..core.errors import GraphcutError
from ..core.tensors import BITS, Tensor
from ..core.units import size
from ..inputs.searching import find_accepted_inputs
from ..loading.model import Model, read_model
from ..loading.operations import Operation, constants_in, operations_of
from ..loading.shape_inference import tensor_of_initializer, tensor_of_type, type_proto
from ..loading.subgraphs import callee_key, has_subgraphs
from ..sharding.axes.factors import Factor, FoundRule
from ..sharding.axes.rules import RULES
from .operator_runs import OperatorRuns

MOST_FILES: Final = 1000
MOST_BYTES: Final = 64 << 20  #: nodes with larger inputs are not tried.
_FORMAT: Final = b"graphcut axis rules 1 "
_Record = tuple[tuple[Factor, ...], str]  #: a file of the cache: factors, and why the operator could not be run.


def find_rules(model: Model) -> tuple[FoundRule, ...]:
    """Run each operator of a model that has no rule, unless it was run before."""
    found: dict[str, tuple[str, ModelProto, list[int]]] = {}
    constants = constants_in(model.proto)
    types = {name: tensor_of_initializer(tensor) for name, tensor in constants.items()} | {**model.tensors}
    operations = operations_of(model)
    for index in model.graph.flow:
        node, operation = model.graph.nodes[index], operations[index]
        proto = model.proto.graph.node[index]
        if operation.op in {*RULES, "Shape"} or has_subgraphs(proto) or node.is_stateful:
            continue
        if alone := _alone(model, proto, operation, constants, types):
            key = _FORMAT + ort.__version__.encode() + alone.SerializeToString(deterministic=True)
            found.setdefault(hashlib.sha256(key).hexdigest(), (node.op, alone, []))[2].append(index)
    return tuple(_rule(digest, *one) for digest, one in found.items())


def _rule(digest: str, op: str, alone: ModelProto, nodes: Sequence[int]) -> FoundRule:
    file = cache_folder() / "axis-rules" / f"{digest}.json"
    try:
        record = msgspec.json.decode(file.read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        record = _run(alone)
        _keep(file, record)
    return FoundRule(op, tuple(nodes), *record)


def _alone(
    model: Model,
    node: NodeProto,
    operation: Operation,
    constants: Mapping[str, TensorProto],
    types: Mapping[str, Tensor],
) -> ModelProto | None:
    """A node as a model of its own, whose inputs are all but small constants; None if a type is unknown."""
    made = ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    made.functions.extend(model.proto.functions if callee_key(node) in model.functions else ())
    own = made.graph.node.add(op_type=node.op_type, domain=node.domain, overload=node.overload)
    own.attribute.extend(node.attribute)
    own.input.extend(name and f"x{slot}" for slot, name in enumerate(node.input))
    own.output.extend(name and f"y{slot}" for slot, name in enumerate(node.output))
    made.graph.output.extend(ValueInfoProto(name=name) for name in own.output if name)
    symbols: dict[str, str] = {}  # names of other nodes, so that nodes that are alike give the same model
    for slot, (name, shape) in enumerate(zip(operation.inputs, operation.reads, strict=True)):
        if slot in operation.values:
            made.graph.initializer.add().CopyFrom(constants[name])
            made.graph.initializer[-1].name = f"x{slot}"
        elif name:
            if shape is None or name not in types or types[name].dtype not in BITS:
                return None
            dims = tuple(symbols.setdefault(d, f"d{len(symbols)}") if isinstance(d, str) else d for d in shape)
            kind = type_proto(Tensor(name=name, dtype=types[name].dtype, shape=dims))
            made.graph.input.add(name=f"x{slot}", type=kind)
    return made


def _run(alone: ModelProto) -> _Record:
    taken = sum(tensor_of_type(value.name, value.type).bytes_for({})[0] for value in alone.graph.input)
    if taken > MOST_BYTES:
        return (), f"not tried, since its inputs take {size(taken)}"
    runs = OperatorRuns(alone)
    try:
        accepted = find_accepted_inputs(read_model(Path("operator.onnx"), deepcopy(alone)), runs.run)
        if accepted.refusal:
            return (), f"ONNX Runtime refuses generated inputs: {accepted.refusal}"
        return runs.factors(accepted.feeds), ""
    except GraphcutError as error:
        return (), str(error)


def _keep(file: Path, record: _Record) -> None:
    """Write a file of the cache, and delete the oldest of too many. A folder that can't be written is no error."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(msgspec.json.encode(record))
        new.replace(file)
        files = sorted(file.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        for old in files[:-MOST_FILES]:
            old.unlink()
