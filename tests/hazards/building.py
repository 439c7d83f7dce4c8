"""ONNX protos in few words, for models of a handful of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)
from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info

OPSET = 17


def floats(rng: np.random.Generator, *shape: int, scale: float = 0.5) -> NDArray[np.float32]:
    """Normal numbers: no two weights alike, so that a tensor in the wrong place shows in the answer."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def value(name: str, shape: Sequence[int | str | None] | None = None, elem: int = TensorProto.FLOAT) -> ValueInfoProto:
    """A typed name. No `shape` says that even the rank is unknown; `[]` says that it is a scalar."""
    return make_tensor_value_info(name, elem, shape)


def weight(name: str, values: ArrayLike) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def body(nodes: Sequence[NodeProto], reads: Sequence[ValueInfoProto], writes: Sequence[ValueInfoProto]) -> GraphProto:
    """The graph inside an If, a Loop or a Scan. The branches of an If read nothing but what they capture."""
    return make_graph(nodes, "body", reads, writes)


def model(
    nodes: Sequence[NodeProto],
    *,
    reads: Sequence[ValueInfoProto],
    writes: Sequence[ValueInfoProto],
    weights: Sequence[TensorProto] = (),
    sparse_weights: Sequence[SparseTensorProto] = (),
    inner: Sequence[ValueInfoProto] = (),
    functions: Iterable[FunctionProto] = (),
    opset: int = OPSET,
    domains: Mapping[str, int] | None = None,
    ir_version: int = 8,
) -> ModelProto:
    """A model whose inner tensors have no types beside those of `inner`, as exporters often leave it.

    `ir_version` is always set: the default of onnx is newer than what ONNX Runtime loads.
    """
    graph = make_graph(nodes, "g", reads, writes, weights, value_info=inner, sparse_initializer=sparse_weights)
    opsets = {"": opset, **(domains or {})}
    return make_model(
        graph,
        opset_imports=[make_opsetid(domain, version) for domain, version in opsets.items()],
        functions=list(functions),
        ir_version=ir_version,
        producer_name="hazards",
    )
