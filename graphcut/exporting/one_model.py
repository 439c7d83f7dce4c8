"""Export a cascade as one model, whose nodes say which part they are in: in two notations.

`ort-annotations`: the metadata `layer_ann` of a node names its part, and the session option
`session.layer_assignment_settings` maps parts to kinds of devices (ONNX Runtime 1.26). `onnx-ir11`: the model has a
device configuration, and each node a pipeline stage in it (ONNX IR version 11, 2025).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import onnx
from onnx import ModelProto, NodeProto

from ..core.manifest import Cascade, CascadeLike, Part, open_cascade
from ..surgery.merging import merge
from .folders import Content, write_folder

MODEL: Final = "model.onnx"
OPTIONS: Final = "session_options.json"
ANNOTATION: Final = "layer_ann"
CONFIGURATION: Final = "cascade"
"""The name of the device configuration."""

_DEVICES: Final = {
    "CPUExecutionProvider": "cpu",
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "MIGraphXExecutionProvider": "gpu",
    "WebGpuExecutionProvider": "gpu",
    "QNNExecutionProvider": "npu",
    "VitisAIExecutionProvider": "npu",
}
"""Kinds of devices as ONNX Runtime calls them; any other provider is an `accelerator`."""


def export_ort_annotations(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write one model with `layer_ann` metadata, and the session option that goes with it."""
    cascade = open_cascade(cascade)

    def annotate(node: NodeProto, part: int) -> None:
        kept = [entry for entry in node.metadata_props if entry.key != ANNOTATION]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.metadata_props.add(key=ANNOTATION, value=_name(cascade.parts[part]))

    rules: dict[str, list[str]] = {}
    for part in cascade.parts:
        device = _DEVICES.get(cascade.settings(part).provider, "accelerator")
        rules.setdefault(device, []).append(f"={_name(part)}")  # = is an exact match; part-1 alone is part-10, too
    setting = "; ".join(f"{device}({', '.join(names)})" for device, names in rules.items())
    options = {"session.layer_assignment_settings": setting}
    content = msgspec.json.format(msgspec.json.encode(options), indent=1) + b"\n"
    return _write(cascade, folder, lambda _: None, annotate, {OPTIONS: content}, force=force)


def export_onnx_ir11(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write one model of IR 11, with a device configuration and a pipeline stage for each node.

    Without devices in its plan, each part is for a device of its own.
    """
    cascade = open_cascade(cascade)
    devices = [host.name for host in cascade.manifest.devices] or [_name(part) for part in cascade.parts]

    def declare(model: ModelProto) -> None:
        model.ir_version = max(11, model.ir_version)
        model.configuration.add(name=CONFIGURATION, num_devices=len(devices), device=devices)

    def stage(node: NodeProto, part: int) -> None:
        node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=part)

    return _write(cascade, folder, declare, stage, {}, force=force)


def _write(
    cascade: Cascade,
    folder: str | Path,
    declare: Callable[[ModelProto], None],
    mark: Callable[[NodeProto, int], None],
    more: Mapping[str, bytes],
    *,
    force: bool,
) -> list[Path]:
    """Write the merged model, changed as a whole by `declare` and node by node by `mark`, which gets a part's index."""

    def write(path: Path) -> None:
        merge(cascade, path)
        model, home = onnx.load(path, load_external_data=False), _parts_of_nodes(cascade)
        declare(model)
        for node in model.graph.node:
            mark(node, home[_first_output(node)])
        path.write_bytes(model.SerializeToString(deterministic=True))

    files: dict[str, Content] = {MODEL: write, **more}
    return write_folder(folder, files, own=(f"{MODEL}.data",), what="a file of such an export", force=force)


def _parts_of_nodes(cascade: Cascade) -> dict[str, int]:
    """The part of each node, by the first output of the node: the first that has it, its home."""
    found: dict[str, int] = {}
    for i, part in enumerate(cascade.parts):
        for node in onnx.load(cascade.file(part), load_external_data=False).graph.node:
            found.setdefault(_first_output(node), i)
    return found


def _first_output(node: NodeProto) -> str:
    return next(filter(None, node.output))


def _name(part: Part) -> str:
    return part.file.removesuffix(".onnx")
