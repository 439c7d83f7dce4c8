"""Export a cascade as a model repository of Triton Inference Server (checked with the schema of tritonclient 2.73).

    NAME/config.pbtxt            an ensemble: the parts, and which tensor goes where
    NAME/1/cascade.json          the manifest, and the files of the tokenizer; Triton asks for a folder of the version,
                                 and reads nothing in it
    NAME-part-0/config.pbtxt     the inputs and outputs of a part
    NAME-part-0/1/model.onnx     the part, with its data file beside it

NAME is that of the model that was cut. Inputs with a default are left out, and keep it. Files are copies: onnx refuses
data files with more than one hard link.
"""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from google.protobuf.text_encoding import CEscape

from ..core.atomic_files import Content
from ..core.digests import DataFile
from ..core.errors import UsageError
from ..core.manifest import MANIFEST, Cascade, Part
from ..core.records import table
from ..core.tensors import Tensor
from ..core.wiring import Unit
from ..surgery.model_files import copy_ranges
from .cascade_files import Export, cascade_files, fed

_TYPES: Final = table("exporting/triton_types.toml", dict[str, str])  #: what Triton calls element types.


def export_of(cascade: Cascade) -> Export:
    """A model repository with a model for each part, and an ensemble of them."""
    there = cascade_files(cascade, for_each="Triton has a folder for each part")
    name = cascade.source.stem.strip(".") or "model"
    files: dict[str, Content] = {f"{name}/config.pbtxt": _ensemble(cascade, name).encode()}
    files |= {f"{name}/1/{file}": there[file] for file in (MANIFEST, *cascade.manifest.text_files)}
    for part in cascade.parts:
        home = f"{name}-{part.name}"
        files[f"{home}/config.pbtxt"] = _part(cascade, part, home).encode()
        files[f"{home}/1/model.onnx"] = there[part.file]
        files |= {f"{home}/1/{PurePosixPath(n).name}": _data(cascade.root / n, data) for n, data in part.data.items()}
    return files


def _data(file: Path, data: DataFile) -> Content:
    """What a part reads of a data file: the file, or one of the same size with holes, if it is that of a rank."""
    if data.digest is None or data.digest.ranges == ((0, data.bytes),):
        return file
    return partial(copy_ranges, file, data.digest.ranges, data.bytes)


def _part(cascade: Cascade, part: Part, name: str) -> str:
    settings = cascade.settings(part)
    lines = _head(cascade, name, 'backend: "onnxruntime"', part)
    if part.device is not None:
        lines.append(f"instance_group {{ kind: KIND_{'CPU' if settings.provider.startswith('CPU') else 'GPU'} }}")
    if settings.threads:
        lines.append(f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{settings.threads}" }} }}')
    return "\n".join((*lines, ""))


def _ensemble(cascade: Cascade, name: str) -> str:
    manifest = cascade.manifest
    written = {tensor for part in cascade.parts for tensor in part.writes}
    if passed := [output for output in manifest.writes if output not in written]:
        message = f"the output {passed[0]!r} of the model is one of its inputs, and no part writes it"
        raise UsageError(message, hint="an ensemble of Triton can't pass it on: remove that output from the model")
    lines = [*_head(cascade, name, 'platform: "ensemble"', manifest), "ensemble_scheduling {"]
    for part in cascade.parts:
        lines.append(f"  step {{ model_name: {_quoted(f'{name}-{part.name}')} model_version: -1")
        lines += [f"    {end}_map {{ key: {_quoted(n)} value: {_quoted(n)} }}" for end, n in _ends(cascade, part)]
        lines.append("  }")
    return "\n".join((*lines, "}", ""))


def _head(cascade: Cascade, name: str, kind: str, unit: Unit) -> list[str]:
    """What the configurations of a part and of the ensemble begin with."""
    ends = [f"{end} {{ name: {_quoted(n)} {_type(cascade.tensors[n])} }}" for end, n in _ends(cascade, unit)]
    return [f"name: {_quoted(name)}", kind, "max_batch_size: 0", *ends]


def _ends(cascade: Cascade, unit: Unit) -> list[tuple[str, str]]:
    """The inputs and outputs that Triton knows of, each after what it is."""
    return [*(("input", name) for name in fed(cascade, unit.reads)), *(("output", name) for name in unit.writes)]


def _type(tensor: Tensor) -> str:
    """Type and shape. A scalar is one element to Triton, which is reshaped."""
    if tensor.dtype not in _TYPES or tensor.shape is None:
        what = f"the type {tensor.dtype}" if tensor.dtype not in _TYPES else "no known rank"
        raise UsageError(f"{tensor.name!r} has {what}, which Triton can't be told", hint="cut the model elsewhere")
    dims = [dim if isinstance(dim, int) else -1 for dim in tensor.shape]
    shape = f"dims: {dims}" if dims else "dims: [1] reshape { shape: [] }"
    return f"data_type: TYPE_{_TYPES[tensor.dtype]} {shape}"


def _quoted(text: str) -> str:
    return f'"{CEscape(text.encode(), as_utf8=True)}"'
