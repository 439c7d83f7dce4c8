"""What a model says beside its arithmetic, and the rarer fields in which it says it."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import (
    make_graph,
    make_node,
    make_sparse_tensor,
    make_tensor_type_proto,
    make_training_info,
    set_metadata_props,
)

from .building import floats, model, value, weight
from .claims import NoTrainingInfo, RequiredInputs
from .fidelity import Fidelity
from .hazard import Hazard


def annotated_everywhere() -> Hazard:
    rng = np.random.default_rng(28)
    annotated = model(
        [
            make_node("Relu", ["x"], ["boundary"], name="n0", doc_string="node doc"),
            make_node("MatMul", ["boundary", "w"], ["y"], name="n1"),
        ],
        reads=[value("x", [2, 3])],
        writes=[value("y", [2, 3])],
        weights=[weight("w", floats(rng, 3, 3))],
        inner=[value("boundary", [2, 3])],
        opset=21,
        ir_version=11,
    )
    _describe(annotated)
    _add_metadata(annotated)
    _quantize(annotated)
    _assign_devices(annotated)
    return Hazard(
        model=annotated,
        feeds={"x": floats(rng, 2, 3)},
        cut=("boundary",),
        correct="every annotation of what a part keeps survives: docs, metadata of model, graph, node, value and "
        "tensor, denotations, quantization, and the devices (a node names its configuration by id).",
        asserts=(Fidelity(part=0), Fidelity(part=1), RequiredInputs(part=1, names=("boundary",))),
    )


def _describe(annotated: ModelProto) -> None:
    annotated.producer_version = "1.2"
    annotated.domain = "com.example"
    annotated.model_version = 7
    annotated.doc_string = "model doc"
    graph = annotated.graph
    graph.doc_string = "graph doc"
    graph.input[0].doc_string = "input doc"
    graph.initializer[0].doc_string = "weight doc"
    graph.input[0].type.denotation = "TENSOR"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"


def _add_metadata(annotated: ModelProto) -> None:
    graph = annotated.graph
    set_metadata_props(annotated, {"of": "model"})
    set_metadata_props(graph, {"of": "graph"})
    set_metadata_props(graph.node[0], {"pkg.torch.onnx.name_scopes": "['model', 'act']"})
    set_metadata_props(graph.node[1], {"namespace": ": M/layer.0: L/mm: Linear"})
    set_metadata_props(graph.value_info[0], {"of": "boundary"})
    set_metadata_props(graph.initializer[0], {"of": "weight"})
    set_metadata_props(graph.input[0], {"of": "input"})


def _quantize(annotated: ModelProto) -> None:
    annotation = annotated.graph.quantization_annotation.add(tensor_name="boundary")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")


def _assign_devices(annotated: ModelProto) -> None:
    annotated.configuration.add(name="pair", num_devices=2, device=["CPU", "CUDA:0"])
    for stage, node in enumerate(annotated.graph.node):
        devices = node.device_configurations.add(configuration_id="pair", pipeline_stage=stage)
        sharding = devices.sharding_spec.add(tensor_name=node.output[0], device=[0, 1])
        sharding.sharded_dim.add(axis=0).simple_sharding.add(dim_value=2, num_shards=2)


def training_info() -> Hazard:
    rng = np.random.default_rng(48)
    trained = model(
        [make_node("Add", ["x", "w"], ["boundary"]), make_node("Mul", ["boundary", "w"], ["y"])],
        reads=[value("x", [2])],
        writes=[value("y", [2])],
        weights=[weight("w", floats(rng, 2))],
    )
    step = make_graph(
        [make_node("Sub", ["w", "rate"], ["w_new"])],
        "step",
        [],
        [value("w_new", [2])],
        [weight("rate", floats(rng, 2))],
    )
    trained.training_info.append(make_training_info(step, [("w", "w_new")], None, None))
    return Hazard(
        model=trained,
        feeds={"x": floats(rng, 2)},
        cut=("boundary",),
        correct="training_info speaks of the weights of the whole model: drop it and say so, or refuse.",
        asserts=(NoTrainingInfo(),),
    )


def rare_attributes() -> Hazard:
    rng = np.random.default_rng(38)
    entries = make_sparse_tensor(weight("", floats(rng, 2)), weight("", np.array([1, 6])), [2, 4])
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["boundary"]),
                make_node("Constant", [], ["sparse"], sparse_value=entries),
                make_node("Optional", [], ["none"], type=make_tensor_type_proto(TensorProto.FLOAT, [2])),
                make_node("OptionalHasElement", ["none"], ["has"]),
                make_node("Cast", ["has"], ["zero"], to=TensorProto.FLOAT),
                make_node("Add", ["boundary", "sparse"], ["sum"]),
                make_node("Add", ["sum", "zero"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
            opset=18,
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        correct="attributes that hold a sparse tensor or a type are copied like all others.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )


def binary_string_attributes() -> Hazard:
    rng = np.random.default_rng(39)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["boundary"]),
                make_node("Constant", [], ["blob"], value_string=b"\xff\xfe\x00bin"),
                make_node("Constant", [], ["blobs"], value_strings=[b"\xff", b"ok"]),
                *_float_shape("blob"),
                *_float_shape("blobs"),
                make_node("ReduceSum", ["blob_float"], ["zero"], keepdims=0),
                make_node("Add", ["boundary", "blobs_float"], ["sum"]),
                make_node("Add", ["sum", "zero"], ["y"]),
            ],
            reads=[value("x", [4])],
            writes=[value("y", [4])],
        ),
        feeds={"x": floats(rng, 4)},
        cut=("boundary",),
        correct="a string attribute is bytes, and not always text: nothing decodes it.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )


def _float_shape(tensor: str) -> list[NodeProto]:
    return [
        make_node("Shape", [tensor], [f"{tensor}_shape"]),
        make_node("Cast", [f"{tensor}_shape"], [f"{tensor}_float"], to=TensorProto.FLOAT),
    ]
