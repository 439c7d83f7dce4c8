"""The only door ONNX goes out by: part models from a plan, written beside and renamed when all is done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from onnx import ModelProto, TensorProto, ValueInfoProto

from .cascade import FORMAT, MANIFEST, Cascade, Manifest, Part, Source, open_cascade, save_manifest
from .errors import GraphcutError, ModelError, UsageError
from .graph import Block
from .model import Model, all_tensors
from .planning.plans import Plan
from .scopes import functions_called, is_external
from .shapes import describe as describe_type
from .shapes import type_of
from .structure import copy_fields, graph_digest
from .units import count, size
from .weights import Layout, Range, lay_out, write_data

if TYPE_CHECKING:
    from collections.abc import Iterator

Storage = Literal["copy", "share"]
Progress = Callable[[str, int, int], None]
"""Called with the file that grows, the bytes that have just been written to it, and the bytes that all files get."""


@dataclass(frozen=True)
class PartFile:
    """One part, ready to be written.

    Attributes:
        name: the file name of the model.
        model: its message; large weights still refer to the files of the source model.
        block: the nodes it holds.
        layout: how its data file is made; None where it has none.
    """

    name: str
    model: ModelProto
    block: Block
    layout: Layout | None

    @property
    def data_name(self) -> str:
        """The file name of its weights."""
        return f"{self.name}.data"


@dataclass(frozen=True)
class Cut:
    """All files that a split will write.

    Attributes:
        source: the model that is cut.
        plan: how it is cut.
        weights: what happens to the weights.
        folder: where the files go.
        manifest_name: the file name of the manifest.
        parts: the parts.
    """

    source: Model
    plan: Plan
    weights: Storage
    folder: Path
    manifest_name: str
    parts: tuple[PartFile, ...]

    @property
    def bytes_to_write(self) -> int:
        """What all files together take on disk, the manifest left out."""
        return sum(part.model.ByteSize() + (part.layout.file_bytes if part.layout else 0) for part in self.parts)


def prepare(model: Model, plan: Plan, output: str | Path | None = None, *, weights: Storage = "copy") -> Cut:
    """Everything that `split` would write, without writing it.

    Raises:
        ModelError: a tensor that crosses has a type that nothing knows.
        UsageError: shared weights can't be reached from `output`.
    """
    folder, stem = _place(model, output, weights)
    parts = []
    for i, block in enumerate(plan.partition.blocks):
        name = f"{stem}.part-{i}.onnx" if weights == "share" else f"part-{i}.onnx"
        proto = part_model(model, block)
        spans = [model.range_of(tensor) for tensor in all_tensors(proto) if is_external(tensor)]
        parts.append(PartFile(name, proto, block, lay_out(spans) if spans and weights == "copy" else None))
    manifest = f"{stem}.{MANIFEST}" if weights == "share" else MANIFEST
    return Cut(model, plan, weights, folder, manifest, tuple(parts))


def split(
    model: Model,
    plan: Plan,
    output: str | Path | None = None,
    *,
    weights: Storage = "copy",
    force: bool = False,
    progress: Progress | None = None,
) -> Cascade:
    """Cut `model` as `plan` says.

    Args:
        model: the model.
        plan: from `graphcut.plan`, for this model.
        output: the folder that is made. Without it `STEM.parts` beside the model, or for shared weights the folder of
            the model itself.
        weights: `copy`: each part gets a data file with what it reads and nothing else. `share`: the parts refer to
            the weights where they lie, and no weight is copied.
        force: replace a cascade that stands there already; only files that its manifest lists are deleted.
        progress: told of the bytes written.

    The parts are written beside the goal and renamed when all stand: whoever looks sees the old cascade or the new
    one. Same model, plan and options give the same bytes.

    Raises:
        UsageError: something else is in the way, or the disk is too small.
        ModelError: a tensor that crosses has a type that nothing knows, or the weights can't be read.
    """
    cut = prepare(model, plan, output, weights=weights)
    return write(cut, force=force, progress=progress)


def write(cut: Cut, *, force: bool = False, progress: Progress | None = None) -> Cascade:
    """Write the files of `cut`; see `split`."""
    goal = cut.folder / cut.manifest_name
    old = _listed_files(goal, force=force) if goal.exists() else []
    if cut.weights == "copy":
        _check_folder(cut.folder, old)
    _check_space(cut)
    parent = cut.folder if cut.weights == "share" else cut.folder.absolute().parent
    try:
        with scratch_folder(parent, f"{cut.folder.name}.tmp-") as scratch:
            new = scratch / "new"
            new.mkdir()
            _write_files(cut, new, progress)
            if cut.weights == "copy":
                _swap_folders(new, cut.folder, scratch / "old")
            else:
                _move_files(new, cut.folder, cut.manifest_name, old)
    except OSError as error:
        raise GraphcutError(
            f"writing {cut.folder} failed: {error.strerror or error}",
            hint=f"it needs {size(cut.bytes_to_write)} on a disk that can be written; nothing was changed",
        ) from error
    return open_cascade(goal)


def part_model(model: Model, block: Block) -> ModelProto:
    """The part that holds `block`: its messages copied as they are, its borders made inputs and outputs."""
    source = model.proto
    places = sorted((*block.replicas, *block.nodes))
    made = ModelProto()
    # training_info binds initializers of the whole graph: it has no meaning in a part.
    copy_fields(source, made, but={"graph", "functions", "training_info"})
    graph = made.graph
    graph.name = source.graph.name
    graph.doc_string = source.graph.doc_string
    graph.metadata_props.extend(source.graph.metadata_props)
    graph.node.extend(source.graph.node[i] for i in places)
    needed = functions_called(graph.node, model.functions)
    made.functions.extend(function for key, function in model.functions.items() if key in needed)

    weights = set(block.weights)
    graph.initializer.extend(t for t in source.graph.initializer if t.name in weights)
    graph.sparse_initializer.extend(t for t in source.graph.sparse_initializer if t.values.name in weights)
    inputs = {value.name: value for value in source.graph.input}
    outputs = {value.name: value for value in source.graph.output}
    inner = {value.name: value for value in source.graph.value_info}
    graph.input.extend(inputs.get(name) or _border(model, name, inner) for name in block.reads)
    # In IR 3 every initializer is listed among the inputs as well.
    graph.input.extend(value for name, value in inputs.items() if name in weights and name not in block.reads)
    graph.output.extend(outputs.get(name) or _border(model, name, inner) for name in block.writes)

    inside = {name for i in places for name in model.graph.nodes[i].writes} - set(block.writes)
    graph.value_info.extend(value for value in source.graph.value_info if value.name in inside)
    known = inside | weights | {*block.reads, *block.writes}
    graph.quantization_annotation.extend(n for n in source.graph.quantization_annotation if n.tensor_name in known)
    return made


def _border(model: Model, name: str, inner: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    """How a tensor that was inside the model is declared at the border of a part."""
    tensor = model.border[name]
    if tensor.dtype == "undefined":
        raise ModelError(
            f"the type of {name!r} is not known: neither the model says it, nor ONNX shape inference, nor ONNX Runtime",
            hint="cut somewhere else, or add a value_info for it to the model",
        )
    made = ValueInfoProto(name=name)
    if name in inner:
        made.CopyFrom(inner[name])
    if not made.HasField("type") or (tensor.is_plain and describe_type(name, made.type) != tensor):
        made.type.CopyFrom(type_of(tensor))
    return made


def _place(model: Model, output: str | Path | None, weights: Storage) -> tuple[Path, str]:
    """The folder the files go to, and what shared parts are called after."""
    beside = model.path.parent
    stem = model.path.name.removesuffix(".onnx")
    if weights == "copy":
        return (beside / f"{stem}.parts" if output is None else Path(output)), stem
    folder = beside if output is None else Path(output)
    if folder.resolve() != beside.resolve():
        raise UsageError(
            f"parts that share weights must lie beside {model.path.name}, so they can't go to {folder}",
            hint=f"leave -o out (the parts then go to {beside}), or copy the weights with --weights copy -o {folder}",
        )
    return folder, stem


def _listed_files(manifest: Path, *, force: bool) -> list[Path]:
    """The files of the cascade that stands in the way, once we may replace it."""
    if not force:
        raise UsageError(
            f"{manifest.parent if manifest.name == MANIFEST else manifest} stands there already",
            hint="choose another folder with -o, or add --force to replace it",
        )
    found = msgspec.json.decode(manifest.read_bytes(), type=Manifest)
    own = [manifest.parent / part.file for part in found.parts]
    if found.weights == "copy":
        own += [manifest.parent / name for part in found.parts for name in part.data]
    return [manifest, *(file for file in own if file.resolve().is_relative_to(manifest.parent.resolve()))]


def _check_folder(folder: Path, old: Sequence[Path]) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="choose another folder with -o")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {folder.absolute().parent}", hint="make it first, or choose another -o")
    others = set(folder.iterdir()) - set(old) if folder.exists() else set()
    if others:
        raise UsageError(
            f"{folder} holds {min(others).name!r}, which no cascade there lists",
            hint="choose another folder with -o; graphcut deletes only what it made",
        )


def _check_space(cut: Cut) -> None:
    place = next(p for p in (cut.folder.absolute(), *cut.folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if cut.bytes_to_write > free:
        raise UsageError(
            f"the parts need {size(cut.bytes_to_write)}, and {place} has {size(free)} free",
            hint="choose another disk with -o, or keep the weights where they are with --weights share",
        )


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder beside the goal, on the same disk; gone at the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(cut: Cut, folder: Path, progress: Progress | None) -> None:
    total = cut.bytes_to_write
    for part in cut.parts:
        if part.layout is not None:

            def report(moved: int, name: str = part.data_name) -> None:
                if progress is not None:
                    progress(name, moved, total)

            write_data(part.layout, folder / part.data_name, progress=report)
        raw = _with_places(cut, part).SerializeToString(deterministic=True)
        (folder / part.name).write_bytes(raw)
        if progress is not None:
            progress(part.name, len(raw), total)
    save_manifest(_manifest(cut), folder / cut.manifest_name)


def _with_places(cut: Cut, part: PartFile) -> ModelProto:
    """The message of a part, its large weights at the places they have once it is written."""
    made = ModelProto()
    made.CopyFrom(part.model)
    for tensor in all_tensors(made):
        if is_external(tensor):
            span = cut.source.range_of(tensor)
            if part.layout is None:
                refer(tensor, _location(cut, span), span.offset, span.length)
            else:
                refer(tensor, part.data_name, part.layout.offset_of(span), span.length)
    return made


def _location(cut: Cut, span: Range) -> str:
    return span.file.relative_to(cut.source.path.parent).as_posix()


def refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make `tensor` refer to a place in a file. Only the three keys that every reader of ONNX accepts."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = TensorProto.EXTERNAL


def _manifest(cut: Cut) -> Manifest:
    model, wiring = cut.source, cut.plan.partition.wiring
    border = dict.fromkeys((*model.graph.reads, *(link.tensor for link in wiring.links), *model.graph.writes))
    return Manifest(
        format=FORMAT,
        source=Source(
            file=Path(os.path.relpath(model.path.absolute(), cut.folder.absolute())).as_posix(),
            graph=graph_digest(model.proto),
            data={location: file_bytes for location, (_, file_bytes) in model.data.items()},
        ),
        weights=cut.weights,
        dims=dict(model.dims),
        reads=model.graph.reads,
        optional=tuple(name for name in model.graph.reads if name in model.graph.weights),
        writes=model.graph.writes,
        tensors=tuple(model.border[name] for name in border),
        parts=tuple(_part(cut, part) for part in cut.parts),
    )


def _part(cut: Cut, part: PartFile) -> Part:
    graph = cut.source.graph
    if part.layout is not None:
        data = {part.data_name: part.layout.file_bytes}
    else:
        sizes = dict(cut.source.data.values())
        spans = [cut.source.range_of(tensor) for tensor in all_tensors(part.model) if is_external(tensor)]
        data = {_location(cut, span): sizes[span.file] for span in spans}
    return Part(
        file=part.name,
        reads=part.block.reads,
        writes=part.block.writes,
        nodes=len(part.model.graph.node),
        replicas=tuple(graph.nodes[i].name for i in part.block.replicas),
        weight_bytes=sum(graph.weights[name].bytes for name in part.block.weights),
        graph=graph_digest(part.model),
        data=data,
    )


def _swap_folders(new: Path, goal: Path, away: Path) -> None:
    """Two renames: whoever looks finds the old cascade or the new one, each whole."""
    if goal.exists():
        os.replace(goal, away)
    try:
        os.replace(new, goal)
    except OSError:
        if away.exists():
            os.replace(away, goal)
        raise


def _move_files(new: Path, goal: Path, manifest: str, old: Sequence[Path]) -> None:
    """Each file takes the place of an old one; the manifest last, so that it never names what is missing."""
    names = [file.name for file in sorted(new.iterdir()) if file.name != manifest]
    for name in (*names, manifest):
        os.replace(new / name, goal / name)
    for file in old:
        if file.name not in {*names, manifest}:
            file.unlink(missing_ok=True)


def describe(cut: Cut) -> list[str]:
    """What `write` would write, one line a file, for `--dry-run`."""
    lines = []
    for part in cut.parts:
        lines.append(
            f"{cut.folder / part.name}  {size(part.model.ByteSize())}, {count(len(part.model.graph.node), 'node')}"
        )
        if part.layout is not None:
            lines.append(f"{cut.folder / part.data_name}  {size(part.layout.file_bytes)}")
    lines.append(f"{cut.folder / cut.manifest_name}")
    return lines
