"""The only door ONNX goes out by: part models from a plan, written beside and renamed when all is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from onnx import ModelProto, ValueInfoProto

from ..core.atomic_files import replace_files, replace_folder, scratch_folder
from ..core.errors import GraphcutError, ModelError, PlanError, UsageError
from ..core.graph import Block
from ..core.manifest import (
    FORMAT,
    MANIFEST,
    Cascade,
    Host,
    Manifest,
    Part,
    Source,
    State,
    digest_of,
    open_cascade,
    read_manifest,
    save_manifest,
)
from ..core.product import Product
from ..core.states import start_of
from ..core.units import count, size
from ..costs.caches import find_caches, head_sizes, token_axis
from ..costs.device import Device
from ..costs.weighing import peak_bytes
from ..loading.external_data import FileLayout, lay_out, refer_to_file, write_data
from ..loading.fingerprint import copy_fields, graph_digest
from ..loading.model import Model, ModelLike, load
from ..loading.shape_inference import tensor_of_type as describe_type
from ..loading.shape_inference import type_proto
from ..loading.subgraphs import all_tensors, functions_called, is_external
from ..planning import plans
from ..planning.goals import Across, Goal, Within
from ..planning.plans import Plan

Storage = Literal["copy", "share"]
Progress = Callable[[str, int, int], None]
"""Called with the file that grows, the bytes that have just been written to it, and the bytes that all files get."""


@dataclass(frozen=True, repr=False)
class PartFile(Product):
    """One part, ready to be written.

    Attributes:
        name: the file name of the model.
        model: its message, as it will stand in the file.
        block: the nodes it holds.
        layout: how its own data file is made; None where it has none.
        data: the files that its weights lie in once all is written, and their sizes in bytes.
    """

    name: str
    model: ModelProto
    block: Block
    layout: FileLayout | None
    data: Mapping[str, int]

    @cached_property
    def raw(self) -> bytes:
        """The message as it will stand in the file: the same bytes for the same content."""
        return self.model.SerializeToString(deterministic=True)

    @property
    def bytes(self) -> int:
        """What its own files take: the model, and its data file where it has one."""
        return self.model.ByteSize() + (self.layout.file_bytes if self.layout else 0)


@dataclass(frozen=True, repr=False)
class PreparedFiles(Product):
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
        return sum(part.bytes for part in self.parts)


def prepare(
    model: ModelLike, plan: Plan | Goal, output: str | Path | None = None, *, weights: Storage = "copy"
) -> PreparedFiles:
    """Everything that `split` would write, without writing it.

    Raises:
        ModelError: a tensor that crosses has a type that nothing knows.
        UsageError: the plan is for another model, or shared weights can't be reached from `output`.
    """
    if not isinstance(plan, Plan):
        plan = plans.plan(model, plan)
    if not isinstance(model, Model):
        model = load(model, dims=plan.model.dims, states=plan.model.states) if plan.model else load(model)
    if plan.graph is not model.graph and plan.graph != model.graph:
        raise UsageError(f"the plan is for another model than {model.path.name}", hint="plan this one, then split it")
    folder, stem = _place(model, output, weights)
    blocks = enumerate(plan.partition.blocks)
    if weights == "share":
        parts = tuple(_sharing_part(model, f"{stem}.part-{i}.onnx", block) for i, block in blocks)
        return PreparedFiles(model, plan, weights, folder, f"{stem}.{MANIFEST}", parts)
    parts = tuple(_copying_part(model, f"part-{i}.onnx", block) for i, block in blocks)
    _check_budget(plan, parts)
    return PreparedFiles(model, plan, weights, folder, MANIFEST, parts)


def _check_budget(plan: Plan, parts: Sequence[PartFile]) -> None:
    """What a plan promised holds for the files as they will be written."""
    if not isinstance(plan.goal, Within):
        return
    for part in parts:
        if part.bytes > plan.goal.memory_bytes:
            raise PlanError(
                f"{part.name} takes {part.bytes:,} bytes, and the plan allows {plan.goal.memory_bytes:,}",
                hint="plan again: an edited plan must keep its own budget",
            )


def _sharing_part(model: Model, name: str, block: Block) -> PartFile:
    proto = part_model(model, block)
    sizes = dict(model.data.values())
    data = {}
    for tensor in all_tensors(proto):
        if is_external(tensor):
            span = model.range_of(tensor)
            location = span.file.relative_to(model.path.parent).as_posix()
            data[location] = sizes[span.file]
            refer_to_file(tensor, location, span.offset, span.length)
    return PartFile(name, proto, block, None, data)


def _copying_part(model: Model, name: str, block: Block) -> PartFile:
    proto = part_model(model, block)
    spans = [(tensor, model.range_of(tensor)) for tensor in all_tensors(proto) if is_external(tensor)]
    if not spans:
        return PartFile(name, proto, block, None, {})
    layout = lay_out(span for _, span in spans)
    data_name = f"{name}.data"
    for tensor, span in spans:
        refer_to_file(tensor, data_name, layout.offset_of(span), span.length)
    return PartFile(name, proto, block, layout, {data_name: layout.file_bytes})


def split(
    model: ModelLike,
    plan: Plan | Goal,
    output: str | Path | None = None,
    *,
    weights: Storage = "copy",
    force: bool = False,
    progress: Progress | None = None,
) -> Cascade:
    """Cut `model` as `plan` says.

    Args:
        model: the model or its path.
        plan: a plan for this model, or a goal, for which the model is planned.
        output: the folder that is made. Without it `STEM.parts` beside the model, or for shared weights the folder of
            the model itself.
        weights: `copy`: each part gets a data file with what it reads and nothing else. `share`: the parts refer to
            the weights where they lie, and no weight is copied.
        force: replace a cascade that already exists; only files that its manifest lists are deleted.
        progress: told of the bytes written.

    The parts are written beside the goal and renamed when all stand: whoever looks sees the old cascade or the new
    one. Same model, plan and options give the same bytes.

    Raises:
        UsageError: something else is in the way, or the plan is for another model.
        ModelError: a tensor that crosses has a type that nothing knows.
        GraphcutError: the disk is too small, or refuses.
    """
    return write(prepare(model, plan, output, weights=weights), force=force, progress=progress)


def write(cut: PreparedFiles, *, force: bool = False, progress: Progress | None = None) -> Cascade:
    """Write the files of `cut`; see `split`."""
    goal = cut.folder.resolve()
    old = _listed_files(cut, goal / cut.manifest_name, force=force)
    _check_way(cut, goal, old)
    _check_space(cut, goal)
    is_new = cut.weights == "copy" and not goal.exists()
    try:
        with scratch_folder(goal.parent if cut.weights == "copy" else goal, goal.name) as scratch:
            new = scratch / "new"
            new.mkdir()
            _write_files(cut, new, progress)
            # Whoever stands in a folder keeps it: then, and for parts beside their model, only the files move.
            if is_new or (old and cut.weights == "copy" and goal != Path.cwd()):
                replace_folder(new, goal, scratch / "old")
            else:
                replace_files(new, goal, last=cut.manifest_name, old=old, backup=scratch / "old")
    except OSError as error:
        raise GraphcutError(
            f"writing {cut.folder} failed: {error.strerror or error}",
            hint=f"it needs {size(cut.bytes_to_write)} on a disk that can be written; nothing was changed",
        ) from error
    return open_cascade(cut.folder / cut.manifest_name)


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
    tensor = model.boundary_types[name]
    if tensor.dtype == "undefined":
        raise ModelError(
            f"the type of {name!r} is not known: neither the model says it, nor ONNX shape inference, nor ONNX Runtime",
            hint="cut somewhere else, or add a value_info for it to the model",
        )
    made = ValueInfoProto(name=name)
    if name in inner:
        made.CopyFrom(inner[name])
    if not made.HasField("type") or (tensor.is_plain and describe_type(name, made.type) != tensor):
        made.type.CopyFrom(type_proto(tensor))
    return made


def _place(model: Model, output: str | Path | None, weights: Storage) -> tuple[Path, str]:
    """The folder the files go to, and what shared parts are called after."""
    beside = model.path.parent
    stem = model.path.name.removesuffix(".onnx")
    if model.temporary_folder is not None and (output is None or weights == "share"):
        raise UsageError(
            "the model was given in memory, so there is no folder beside it for its parts",
            hint="name a folder for parts with copied weights, or save the model and load it by its path",
        )
    if weights == "copy":
        return (beside / f"{stem}.parts" if output is None else Path(output)), stem
    folder = beside if output is None else Path(output)
    copying = f"--weights copy{'' if output is None else f' -o {output}'}"
    if folder.resolve() != beside.resolve():
        raise UsageError(
            f"parts that share weights must lie beside {model.path.name}, so they can't go to {folder}",
            hint=f"leave -o out (the parts then go to {beside}), or copy the weights with {copying}",
        )
    for file, _ in model.data.values():
        if not file.resolve().is_relative_to(beside.resolve()):
            raise UsageError(
                f"the weights in {file} lie behind a symbolic link, and parts may not refer to them there",
                hint=f"copy the weights with {copying}",
            )
    return folder, stem


def _listed_files(cut: PreparedFiles, manifest: Path, *, force: bool) -> list[Path]:
    """The files of the cascade that stands in the way, once we may replace it."""
    if not manifest.exists():
        return []
    if not force:
        other = "choose another folder with -o, or " if cut.weights == "copy" else ""
        raise UsageError(
            f"{cut.folder if cut.weights == 'copy' else manifest} already exists",
            hint=f"{other}add --force to replace it",
        )
    found = read_manifest(manifest)
    names = [part.file for part in found.parts]
    if found.weights == "copy":
        names += [name for part in found.parts for name in part.data]
    files = [manifest.parent / name for name in names]
    return [manifest, *(file for file in files if file.resolve().is_relative_to(manifest.parent))]


def _check_way(cut: PreparedFiles, goal: Path, old: Sequence[Path]) -> None:
    """Nothing that is not ours stands where files will go; and for a folder of its own, nothing at all."""
    if goal.exists() and not goal.is_dir():
        raise UsageError(f"{cut.folder} is a file", hint="choose another folder with -o")
    if not goal.parent.is_dir():
        raise UsageError(f"there is no folder {goal.parent}", hint="make it first, or choose another with -o")
    standing = set(goal.iterdir()) if goal.exists() else set()
    if cut.weights == "share":
        standing &= {goal / name for name in (cut.manifest_name, *(part.name for part in cut.parts))}
    if foreign := standing - set(old):
        raise UsageError(
            f"{cut.folder} holds {min(foreign).name!r}, which no cascade there lists",
            hint="move it away; graphcut deletes only what it made"
            if cut.weights == "share"
            else "choose another folder with -o; graphcut deletes only what it made",
        )


def _check_space(cut: PreparedFiles, goal: Path) -> None:
    place = goal if goal.exists() else goal.parent
    free = shutil.disk_usage(place).free
    if cut.bytes_to_write > free:
        raise GraphcutError(
            f"the parts need {size(cut.bytes_to_write)}, and {place} has {size(free)} free",
            hint="choose another disk with -o, or keep the weights where they are with --weights share",
        )


def _write_files(cut: PreparedFiles, folder: Path, progress: Progress | None) -> None:
    total = cut.bytes_to_write
    for part in cut.parts:
        if part.layout is not None:
            (data_name,) = part.data

            def report(moved: int, name: str = data_name) -> None:
                if progress is not None:
                    progress(name, moved, total)

            write_data(part.layout, folder / data_name, progress=report)
        (folder / part.name).write_bytes(part.raw)
        if progress is not None:
            progress(part.name, len(part.raw), total)
    save_manifest(_manifest(cut), folder / cut.manifest_name)


def _manifest(cut: PreparedFiles) -> Manifest:
    model, wiring = cut.source, cut.plan.partition.wiring
    border = dict.fromkeys((*model.graph.reads, *(link.tensor for link in wiring.edges), *model.graph.writes))
    return Manifest(
        format=FORMAT,
        source=Source(
            file=model.path_from(cut.folder),
            graph=graph_digest(model.proto),
            data={location: file_bytes for location, (_, file_bytes) in model.data.items()},
        ),
        weights=cut.weights,
        dims=dict(model.dims),
        reads=model.graph.reads,
        optional=tuple(name for name in model.graph.reads if name in model.graph.weights),
        writes=model.graph.writes,
        tensors=tuple(model.boundary_types[name] for name in border),
        states=tuple(_states(model)),
        devices=tuple(
            Host(name=device.name, memory_bytes=device.memory_bytes, provider=device.provider)
            for device in dict.fromkeys(_devices(cut.plan))
        ),
        parts=tuple(_part(cut, i) for i in range(len(cut.parts))),
    )


def _devices(plan: Plan) -> Sequence[Device]:
    """The device of each part; none where the plan only imagined one to count times on."""
    return plan.devices if isinstance(plan.goal, Across) else ()


def _states(model: Model) -> Iterator[State]:
    for cache in find_caches(model):
        axis = token_axis(model, cache)
        start = start_of(model.boundary_types[cache.past], model.boundary_types[cache.present], axis, head_sizes(model))
        yield State(past=cache.past, present=cache.present, axis=axis, start=start)


def _part(cut: PreparedFiles, place: int) -> Part:
    model, part = cut.source, cut.parts[place]
    devices = _devices(cut.plan)
    weights = [model.graph.weights[name].bytes for name in part.block.weights]
    flow = set(model.graph.flow)
    nodes = sorted({*part.block.nodes, *(i for i in part.block.replicas if i in flow)})
    return Part(
        file=part.name,
        reads=part.block.reads,
        writes=part.block.writes,
        nodes=len(part.model.graph.node),
        replicas=tuple(model.graph.nodes[i].name for i in part.block.replicas),
        weight_bytes=sum(weights),
        largest_weight_bytes=max(weights, default=0),
        activation_bytes=peak_bytes(model.graph, nodes, model.tensor_bytes, writes=part.block.writes),
        device=devices[place].name if devices else None,
        graph=graph_digest(part.model),
        sha256=digest_of(part.raw),
        data=dict(part.data),
    )


def describe(cut: PreparedFiles) -> list[str]:
    """What `write` would write, one line a file, for `--dry-run`."""
    lines = []
    for part in cut.parts:
        nodes = count(len(part.model.graph.node), "node")
        lines.append(f"{cut.folder / part.name}  {size(part.model.ByteSize())}, {nodes}")
        if part.layout is not None:
            lines += [f"{cut.folder / name}  {size(number)}" for name, number in part.data.items()]
    lines.append(f"{cut.folder / cut.manifest_name}")
    return lines
