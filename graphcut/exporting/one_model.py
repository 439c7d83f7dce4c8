"""Export a cascade as one model, whose nodes say which part they are in: in two notations.

`ort-annotations`: the metadata `layer_ann` of a node names its part, and the session option
`session.layer_assignment_settings` maps parts to kinds of devices (ONNX Runtime 1.26). `onnx-ir11`: the model has a
device configuration, and each node a pipeline stage in it (ONNX IR version 11, 2025).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import onnx
from onnx import ModelProto, NodeProto

from ..core.atomic_files import Content, write_folder
from ..core.manifest import Cascade, CascadeLike, Part, open_cascade
from ..surgery.merging import merge

MODEL: Final = "model.onnx"
OPTIONS: Final = "session_options.json"
ANNOTATION: Final = "layer_ann"
_Mark = Callable[[ModelProto, list[int]], None]  #: changes a model, given the part of each of its nodes.
CONFIGURATION: Final = "cascade"  #: the name of the device configuration.

_DEVICES: Final = {  #: kinds of devices as ONNX Runtime calls them; any other provider is an `accelerator`.
    "CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda", "DmlExecutionProvider": "dml", "MIGraphXExecutionProvider": "gpu",
    "WebGpuExecutionProvider": "gpu", "QNNExecutionProvider": "npu", "VitisAIExecutionProvider": "npu",
}  # fmt: skip


def export_ort_annotations(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write one model with `layer_ann` metadata, and the session option that goes with it."""
    cascade = open_cascade(cascade)

    def annotate(model: ModelProto, homes: list[int]) -> None:
        for node, home in zip(model.graph.node, homes, strict=True):
            for entry in [entry for entry in node.metadata_props if entry.key == ANNOTATION]:
                node.metadata_props.remove(entry)
            node.metadata_props.add(key=ANNOTATION, value=_name(cascade.parts[home]))

    rules: dict[str, list[str]] = {}
    for part in cascade.parts:
        device = _DEVICES.get(cascade.settings(part).provider, "accelerator")
        rules.setdefault(device, []).append(f"={_name(part)}")  # = is an exact match; part-1 alone is part-10, too
    setting = "; ".join(f"{device}({', '.join(names)})" for device, names in rules.items())
    options = {"session.layer_assignment_settings": setting}
    return _write(cascade, folder, annotate, {OPTIONS: options}, force=force)


def export_onnx_ir11(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write one model of IR 11, with a device configuration and a pipeline stage for each node.

    Without devices in its plan, each part is for a device of its own.
    """
    cascade = open_cascade(cascade)
    devices = [host.name for host in cascade.manifest.devices] or [_name(part) for part in cascade.parts]

    def stage(model: ModelProto, homes: list[int]) -> None:
        model.ir_version = max(11, model.ir_version)
        model.configuration.add(name=CONFIGURATION, num_devices=len(devices), device=devices)
        for node, home in zip(model.graph.node, homes, strict=True):
            node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=home)

    return _write(cascade, folder, stage, {}, force=force)


def _write(
    cascade: Cascade, folder: str | Path, mark: _Mark, more: Mapping[str, Content], *, force: bool
) -> list[Path]:
    """Write the merged model, changed by `mark`, which gets it and the part of each node."""

    def write(path: Path) -> None:
        merge(cascade, path)
        model = onnx.load(path, load_external_data=False)
        # The home of a node is the first part that has it.
        homes = {_first_output(node): i for i in reversed(range(len(cascade.parts))) for node in _nodes(cascade, i)}
        mark(model, [homes[_first_output(node)] for node in model.graph.node])
        path.write_bytes(model.SerializeToString(deterministic=True))

    files: dict[str, Content] = {MODEL: write, **more}
    return write_folder(folder, files, own=(f"{MODEL}.data",), what="a file of such an export", force=force)


def _nodes(cascade: Cascade, part: int) -> Iterable[NodeProto]:
    return onnx.load(cascade.file(cascade.parts[part]), load_external_data=False).graph.node


def _first_output(node: NodeProto) -> str:
    return next(filter(None, node.output))


def _name(part: Part) -> str:
    return part.file.removesuffix(".onnx")
