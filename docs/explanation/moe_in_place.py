"""A MoE that computes from zeros: ONNX Runtime 1.24 to 1.31 on the CPU. 1.32 is right.

Without `normalize_routing_weights` the kernel fills its output with zeros before it reads its input, and the memory
planner may give both the same memory: if no later node reads the input, and neither is an output of the model. The
result is then that of an input of zeros. So it depends on the outputs that are asked for.
"""

import sys

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
shapes = {"router": (4, 4), "up": (4, 8, 4), "up_bias": (4, 8), "down": (4, 4, 8), "down_bias": (4, 4)}
weights = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), n) for n, shape in shapes.items()]
x = random.standard_normal((2, 4)).astype(np.float32)


def computed(source: str, outputs: list[str], *, normalize: int = 0) -> NDArray[np.float32]:
    """What the MoE gives for `source` (Tanh(x), or zeros), if the model has these outputs."""
    nodes = [
        helper.make_node("Tanh" if source == "tanh" else "Sub", ["x"] if source == "tanh" else ["x", "x"], ["read"]),
        helper.make_node("MatMul", ["x", "router"], ["routes"]),
        helper.make_node(
            "MoE",
            ["read", "routes", "up", "up_bias", "down", "down_bias"],
            ["made"],
            domain="com.microsoft",
            k=2,
            normalize_routing_weights=normalize,
        ),
        helper.make_node("Neg", ["made"], ["y"]),
    ]
    read, written = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in o] for o in (["x"], outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "moe", read, written, weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


if __name__ == "__main__":
    alone, kept = computed("tanh", ["y"]), computed("tanh", ["y", "read"])
    of_zeros = computed("zeros", ["y", "read"])
    sys.stdout.write(f"ONNX Runtime {ort.__version__}\n")
    sys.stdout.write(f"the same whatever the outputs are: {np.array_equal(alone, kept)}\n")
    sys.stdout.write(f"that of an input of zeros: {np.array_equal(alone, of_zeros)}\n")
