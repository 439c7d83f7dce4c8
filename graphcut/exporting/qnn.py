"""Export a cascade for Qualcomm's NPUs: each part of a device with QNN compiled, the others as they are.

    part-0.ctx.onnx      a model of one node, EPContext, that reads the context binary beside it
    part-0.ctx_qnn.bin   what the compiler made of the part, for one chip and one version of its library
    cascade.json         the manifest, with these files
    pipeline.json        inputs, outputs and the parts in their order, with the provider and its options of each

The compiler is that of the package onnxruntime-qnn. Shapes are those that the cascade was planned for.
"""

from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from onnx import load

from ..core.digests import digested, file_digest
from ..core.errors import GraphcutError, UsageError
from ..core.manifest import COMPILED, MANIFEST, Cascade, Part, save_manifest
from ..running.placement import place_part
from ..running.providers import entries
from .cascade_files import Export, cascade_files

QNN: Final = "QNNExecutionProvider"
PIPELINE: Final = "pipeline.json"


def export_of(cascade: Cascade) -> Export:
    """The parts, those for QNN compiled, and how they make one model."""
    compiled = [part for part in cascade.parts if cascade.settings(part).provider == QNN]
    if not compiled:
        hint = f'plan for a device with provider = "{QNN}", and with its provider_options'
        raise UsageError(f"no part in {cascade.root} is for {QNN}", hint=hint)
    files = cascade_files(cascade, for_each="the compiler reads them from the parts' own files")
    for name in (MANIFEST, *(name for part in compiled for name in part.contents)):
        files.pop(name, None)
    for part in compiled:
        files[_compiled(part)] = partial(_compile, cascade, part)
        files[_binary(part)] = _check_written
    return {**files, PIPELINE: _pipeline(cascade), MANIFEST: partial(_write_manifest, cascade)}


def _compiled(part: Part) -> str:
    return part.name + COMPILED


def _binary(part: Part) -> str:
    """The name that the compiler gives it."""
    return _compiled(part).replace(".onnx", "_qnn.bin")


def _compile(cascade: Cascade, part: Part, target: Path) -> None:
    """Write the compiled part, and the context binary beside it."""
    made = {"ep.context_enable": "1", "ep.context_file_path": str(target)}
    if problem := place_part(cascade, part, made).objection(QNN):
        hint = f"ask what {QNN} takes, and plan for a device with these rules"
        raise GraphcutError(f"{QNN} can't compile {part.file}: {problem}", hint=hint)
    reads = {value.name for value in load(target, load_external_data=False).graph.input}
    if lost := [name for name in part.reads if name not in reads]:
        what = f"{QNN} compiles {part.file} without its input {lost[0]!r}, which has a value in the model"
        raise GraphcutError(what, hint="make it a constant, and split again")


def _check_written(path: Path) -> None:
    """The compiler writes it with the part."""
    if not path.exists():
        raise GraphcutError(f"the compiler of {QNN} wrote no {path.name}", hint="use onnxruntime-qnn 2.7 or newer")


def _pipeline(cascade: Cascade) -> dict[str, object]:
    """What a program on the device needs to run the parts, without numbers for what has none."""
    dims, manifest = cascade.manifest.given_dims, cascade.manifest
    tensors = {name: tensor.with_numbers(dims) for name, tensor in cascade.tensors.items()}

    def described(names: tuple[str, ...]) -> list[object]:
        return [{"name": name, "type": tensors[name].dtype, "shape": tensors[name].shape} for name in names]

    parts = []
    for part in cascade.parts:
        settings = cascade.settings(part)
        provider = {"provider": settings.provider, "provider_options": entries(settings.provider_options)}
        file = _compiled(part) if settings.provider == QNN else part.file
        parts.append({"file": file, **provider, "reads": described(part.reads), "writes": described(part.writes)})
    states = {state.past: state.present for state in manifest.states}
    return {"inputs": manifest.reads, "outputs": manifest.writes, "states": states, "parts": parts}


def _write_manifest(cascade: Cascade, target: Path) -> None:
    def compiled(part: Part) -> Part:
        if cascade.settings(part).provider != QNN:
            return part
        binary = target.with_name(_binary(part))
        file, data = _compiled(part), {binary.name: digested(binary)}
        return replace(part, file=file, sha256=file_digest(target.with_name(file)), data=data)

    save_manifest(replace(cascade.manifest, parts=tuple(map(compiled, cascade.parts))), target)
