"""Derived tensors: what a part computes from another tensor than the model does. There are two rules.

Rewritten replicas: copies of a node that read one of its own outputs instead of its inputs. SkipLayerNormalization and
SkipSimplifiedLayerNormalization (com.microsoft) write the sum of two tensors and of a bias, and the sum normalized.
Between two parts the sum alone is sent: the reader runs the same node on the sum and on negative zeros, without the
bias. `x + -0.0` has the bits of `x` for every `x`, also for -0.0, which `x + 0.0` does not (IEEE 754, 6.3), so the node
normalizes the same sum once more. In half precision ONNX Runtime's CPU kernel normalizes the sum as it was before it
was rounded: there the copy is approximate.

Casts, on request only: a float32 tensor crosses as float16 and under another name.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Final

from onnx import AttributeProto, NodeProto, TensorProto

from ..core.graph import Node, Rewrite

BIAS: Final = {"com.microsoft.SkipLayerNormalization": 4, "com.microsoft.SkipSimplifiedLayerNormalization": 3}
"""Operators that can be rewritten, and which of their inputs is the bias. Input 2 is the scale, output 3 the sum."""

_NEGATIVE_ZEROS: Final = {  #: a negative zero of each type that ONNX Runtime has kernels for.
    "float32": TensorProto(data_type=TensorProto.FLOAT, dims=[1], raw_data=b"\0\0\0\x80"),
    "float16": TensorProto(data_type=TensorProto.FLOAT16, dims=[1], raw_data=b"\0\x80"),
}

_DTYPES: Final[Mapping[int, str]] = {zero.data_type: dtype for dtype, zero in _NEGATIVE_ZEROS.items()}

AS_HALF: Final = "@float16"  #: the end of the name under which a float32 tensor crosses as float16.
FIRST_OPSET: Final = 9  #: the opset that introduced ConstantOfShape.


def with_rewrite(node: Node, proto: NodeProto, types: Mapping[str, int], taken: Collection[str]) -> Node:
    """A node of a rewritable operator with its rewrite, if its inputs and outputs allow one.

    `proto` is its message; `types` are the element types of initializers, one of which the scale must be; `taken` are
    the names of all tensors of the model.
    """
    outputs, dtype = tuple(proto.output), _DTYPES.get(types.get("".join(proto.input[2:3]), 0))
    if dtype is None or len(outputs) != 4 or outputs[1:3] != ("", ""):
        return node
    normalized, _, _, total = outputs
    shape, zeros = helper_names(total)
    if not total or not {shape, zeros}.isdisjoint(taken):
        return node
    kept, named = set(proto.input[2 : BIAS[node.op]]), (node.reads, node.weights, node.constants)
    reads, weights, constants = (tuple(filter(kept.__contains__, names)) for names in named)
    copy = replace(node, reads=(total, *reads), writes=(normalized, zeros), weights=weights, constants=constants)
    return replace(node, rewrite=Rewrite(copy, dtype))


def copies(node: Node, proto: NodeProto) -> tuple[NodeProto, ...]:
    """The messages of a replica of a node, whose message is `proto`.

    For a rewritten one: the shape of the sum, negative zeros of that shape, and the node that reads the sum and these.
    """
    if node.rewrite is None:
        return (proto,)
    normalized, _, _, total = proto.output
    shape, zeros = helper_names(total)
    filled = NodeProto(op_type="ConstantOfShape", name=zeros, input=[shape], output=[zeros])
    filled.attribute.add(name="value", type=AttributeProto.TENSOR, t=_NEGATIVE_ZEROS[node.rewrite.dtype])
    copy = deepcopy(proto)
    copy.input[:] = [total, zeros, *proto.input[2 : BIAS[node.op]]]
    copy.output[:] = [normalized]
    return NodeProto(op_type="Shape", name=shape, input=[total], output=[shape]), filled, copy


def sent_name(tensor: str) -> str:
    """The name under which a float32 tensor crosses as float16; who writes it casts it, and who reads it casts back."""
    return f"{tensor}{AS_HALF}"


def cast(tensor: str, source: str) -> NodeProto:
    """The message that derives a tensor from another, of which one is the other as it is sent."""
    node = NodeProto(op_type="Cast", name=f"{tensor}@cast", input=[source], output=[tensor])
    kind = TensorProto.FLOAT if source == sent_name(tensor) else TensorProto.FLOAT16
    node.attribute.add(name="to", type=AttributeProto.INT, i=kind)
    return node


def helper_names(total: str) -> tuple[str, str]:
    """The names of the tensors that a rewritten replica adds to its part: the shape of the sum, and zeros."""
    return f"{total}@shape", f"{total}@zeros"
