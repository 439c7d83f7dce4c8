"""Sizes of the tensors of dynamic models are those that ONNX Runtime computes, for several sizes of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import decoders
import encoders
import numpy as np
import onnxruntime as ort
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from graphcut import Model, demos, load
from graphcut.costs.caches import bound_dims
from graphcut.inputs.generating import generate_inputs
from graphcut.running.values import symbol_sizes

from cases import each
from conftest import FIXTURES, ORT_VERSION, Draw, floats, model_of, weight
from hazards import HAZARDS

Feeds = Mapping[str, Any]
EXPORTS = ("clip.onnx", "tiny-llama-fp32/model.onnx", "tiny-llama-int4/model.onnx")
DRAWN = [name for name in (*dir(encoders), *dir(decoders)) if name.startswith(("save_", "with_", "without_"))]
RUNNING = {name: hazard for name, build in HAZARDS.items() if (hazard := build()).runs}
DECIDED_BY_VALUES = {
    # Which branch runs, and how many elements are not zero.
    "with_branches": {f"present.0.{role}.{kind}" for role in ("decoder", "encoder") for kind in ("key", "value")}
    | {f"present.1.{role}.{kind}" for role in ("decoder", "encoder") for kind in ("key", "value")},
    "symbolic_dims": {"kept", "places", "rows"},
    "data_dependent_dim": {"kept", "places", "rows"},
}


def shapes_when_run(model: Model, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the model in a run without optimizations."""
    probe = ModelProto.FromString(model.proto.SerializeToString())
    inner = (name for name in model.tensors if name not in {*model.graph.reads, *model.graph.writes})
    probe.graph.output.extend(ValueInfoProto(name=name) for name in inner)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.path.parent))
    session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    found = zip(names, session.run(None, dict(feeds)), strict=True)
    return {name: np.asarray(value).shape for name, value in found if model.tensors[name].is_plain}


def sizes_for(model: Model, feeds: Feeds) -> dict[str, tuple[int | str | None, ...] | None]:
    """The shape of every tensor as far as it is known for the sizes of `feeds`."""
    given = symbol_sizes({name: np.shape(value) for name, value in feeds.items()}, model.tensors)
    bound = model.with_dims(bound_dims(model, given))
    known = {name: bound.sizes.found.get(name, tensor) for name, tensor in bound.tensors.items()}
    return {name: tensor.with_numbers(bound.dims).shape for name, tensor in known.items()}


def unknown_sizes(model: Model) -> set[str]:
    """The tensors without a size, for three sizes of the inputs. The sizes of all others are those of ONNX Runtime."""
    unknown: set[str] = set()
    for variant in range(3):
        feeds = generate_inputs(model, variant=variant)
        found = sizes_for(model, feeds)
        for name, shape in shapes_when_run(model, feeds).items():
            dims = found[name]
            assert dims is not None
            assert [size if dim is None else dim for dim, size in zip(dims, shape, strict=True)] == [*shape], name
            unknown |= {name} if None in dims else set()
    return unknown


@each("name", [*demos.DEMOS, *EXPORTS, *DRAWN, *RUNNING], together=32)
def test_all_sizes_but_those_that_values_decide_are_known(name: str, tmp_path: Path) -> None:
    if name == "with_tensor_scatter" and ORT_VERSION < (1, 25):
        return  # it has no such operator
    path = tmp_path / "model.onnx"
    if name in demos.DEMOS:
        demos.write(name, path)
    elif name in EXPORTS:
        path = FIXTURES / name
    elif name in RUNNING:
        path = RUNNING[name].write(tmp_path)
    elif name.startswith("save_"):
        getattr(encoders, name)(path)
    elif name == "with_encoder":
        path.write_bytes(decoders.with_encoder(decoders.with_concat()).SerializeToString())
    else:
        path.write_bytes(getattr(decoders, name)().SerializeToString())
    model = load(path)
    if model.symbols:
        assert unknown_sizes(model) == DECIDED_BY_VALUES.get(name, set())


# Sizes that are expressions


def detector() -> ModelProto:
    """Two strided convolutions, a pool and a resize, with the sizes that ONNX Runtime's symbolic shape tool wrote."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Conv", ["c1", "w2"], ["c2"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("MaxPool", ["c2"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Resize", ["p", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    weights = [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3), scales]
    model = model_of(nodes, [floats("x", 1, 3, "h", "w")], [floats("y", None, None, None, None)], weights)
    for name, size in (
        ("c1", "floor({}/2 - 1/2) + 1"),
        ("c2", "floor(floor({}/2 - 1/2)/2) + 1"),
        ("p", "ceiling(floor(floor({}/2 - 1/2)/2)/2 - 1/2) + 1"),
        ("r", "floor(2.0*ceiling(floor(floor({}/2 - 1/2)/2)/2 - 1/2)) + 2"),
    ):
        model.graph.value_info.append(floats(name, 1, 4, size.format("h"), size.format("w")))
    return model


@each(("h", "w"), [(320, 321), (322, 323), (1, 2), (3, 7)])
def test_sizes_with_quotients_are_those_of_onnx_runtime(h: int, w: int, opened: Draw) -> None:
    """As integers `h/2 - 1/2` was 160 for h = 320, and the size one too large."""
    model, feeds = opened(detector()), {"x": np.zeros((1, 3, h, w), np.float32)}
    shapes = shapes_when_run(model, feeds)
    assert {name: shape for name, shape in sizes_for(model, feeds).items() if name != "x"} == shapes
