"""`split`: write the parts of a model to a folder, all or none."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from filecmp import cmp
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec import convert
from msgspec.structs import replace as replace_fields
from onnx import ModelProto

from ..core.arguments import Progress, Storage
from ..core.atomic_files import check_space, finish, mend, rename, replace_files, scratch_folder, write_errors
from ..core.digests import DataFile, Digest, Range, digest_of, read_digest
from ..core.errors import GraphcutError, UsageError, check_word
from ..core.file_checks import check_parts
from ..core.graph import Block, grouped
from ..core.manifest import (
    FORMAT,
    MANIFEST,
    SHARDED_FILE,
    Cascade,
    Manifest,
    Part,
    PlannedDevice,
    SessionSettings,
    Source,
    TextFile,
    open_cascade,
    read_manifest,
    save_manifest,
)
from ..core.product import Product
from ..core.units import count, size
from ..core.wiring import wire
from ..costs.facts import half_source, model_facts, part_facts, text_facts
from ..costs.held_weights import held_by
from ..loading.derived_tensors import sent_name
from ..loading.external_data import ByteRange, FileLayout, divide, lay_out, merge_ranges, refer_to_file, write_data
from ..loading.fingerprint import graph_digest
from ..loading.model import Model, range_in
from ..loading.part_marks import MARK_BYTES, mark_of
from ..loading.subgraphs import is_external, locations_in, tensors_in
from ..planning.goals import Across, At
from ..planning.plans import Plan, check_budgets
from .model_files import check_sharing, place_of, place_values
from .own_files import index_of, own_files
from .part_models import part_model


@dataclass(frozen=True, repr=False)
class PartFile(Product):
    """One part, ready to be written."""

    name: str  #: the file name of the model.
    model: ModelProto  #: its message, as it will be in the file.
    block: Block  #: its nodes.
    #: new data files with its weights, by name; the parts of a rank have one together.
    layouts: Mapping[str, FileLayout]
    data: Mapping[str, int]  #: the files with its weights and their sizes in bytes, once all files are written.
    rank: int | None = None  #: the rank that runs it; None if the model is not divided among ranks.

    @cached_property
    def raw(self) -> bytes:
        """The bytes of the model file before its mark; equal for equal content."""
        return self.model.SerializeToString(deterministic=True)

    @cached_property
    def ranges(self) -> dict[str, list[Range]]:
        """The ranges that it reads of each file in `data`."""
        files = {name: (Path(name), number) for name, number in self.data.items()}
        spans = merge_ranges(range_in(files, one) for one in tensors_in(self.model) if is_external(one))
        return grouped((span.file.as_posix(), (span.offset, span.length)) for span in spans)

    @cached_property
    def index(self) -> bytes:
        """Which weight is in which data file, as Hugging Face's tools write it; empty if there is only one file."""
        if len(self.layouts) < 2:
            return b""
        files = {one.name: place.value for one in tensors_in(self.model) if one.name for place in locations_in(one)}
        record = {"metadata": {"total_size": sum(self.data.values())}, "weight_map": files}
        return msgspec.json.format(msgspec.json.encode(record), indent=2)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of its own files: the model, its data files, and their index if they are several."""
        own = {self.name: self.model.ByteSize() + MARK_BYTES}
        own |= {key: it.file_bytes for key, it in self.layouts.items()}
        return own | ({index_of(self.name): len(self.index)} if self.index else {})

    @property
    def bytes(self) -> int:
        """Size of these files together."""
        return sum(self.sizes.values())


@dataclass(frozen=True, repr=False)
class PreparedFiles(Product):
    """All files that a split will write, not written yet; `print` shows one in each line."""

    source: Model  #: the model.
    plan: Plan  #: the plan.
    weights: Storage  #: whether weights are copied or shared.
    assumed: tuple[str, ...]  #: `Manifest.assumed`.
    folder: Path  #: the output folder.
    manifest_name: str  #: the file name of the manifest.
    parts: tuple[PartFile, ...]  #: the parts.
    whole: ModelProto | None = None  #: the sharded model, which is to be in the folder, too.

    @cached_property
    def text_files(self) -> dict[TextFile, str]:
        """The digests of the tokenizer's files and of what belongs to it, as the folder of the model has them."""
        return text_facts(self.source)

    @property
    def copied(self) -> dict[str, Path]:
        """Those of them that are copied, by name: if parts share weights, they are in the model's folder already."""
        return {name: self.source.path.with_name(name) for name in self.text_files} if self.weights == "copy" else {}

    @property
    def files(self) -> dict[str, int]:
        """The names of all files but the manifest, with their sizes."""
        found = {name: number for part in self.parts for name, number in part.sizes.items()}
        found |= {name: path.stat().st_size for name, path in self.copied.items()}
        return found if self.whole is None else found | {self.whole_name: self.whole.ByteSize() + MARK_BYTES}

    @property
    def whole_name(self) -> str:
        """The file name of `whole`."""
        return self.manifest_name.removesuffix(MANIFEST) + SHARDED_FILE

    @property
    def bytes_to_write(self) -> int:
        """Size of all files together, without the manifest."""
        return sum(self.files.values())

    @property
    def cascade(self) -> Cascade:
        """The cascade as it will be, without digests of weights."""
        return Cascade(self.folder / self.manifest_name, _manifest(self, [{} for _ in self.parts]))

    def __str__(self) -> str:
        nodes = {part.name: f", {count(len(part.model.graph.node), 'node')}" for part in self.parts}
        lines = [f"{self.folder / name}  {size(number)}{nodes.get(name, '')}" for name, number in self.files.items()]
        return "\n".join((*lines, f"{self.folder / self.manifest_name}"))


def prepare_parts(
    model: Model, plan: Plan, output: str | Path | None, *, weights: Storage, max_shard_bytes: int | None
) -> PreparedFiles:
    """The files of a plan for `model` whose parts are each on one device; see `cutting.prepare`."""
    folder, prefix = place_of_parts(model, output, weights)
    blocks = enumerate(_as_sent(model, plan))
    parts = tuple(_part_file(model, f"{prefix}part-{i}.onnx", block, weights, max_shard_bytes) for i, block in blocks)
    if idle := next((part.name for part in parts if not part.block.writes), None):
        raise UsageError(f"{idle} would have nothing to do: others repeat it", hint="take this part out of the plan")
    shared = ([n for name in part.ranges.keys() - part.layouts for _, n in part.ranges[name]] for part in parts)
    check_budgets(plan, [part.bytes + sum(lengths) for part, lengths in zip(parts, shared, strict=True)])
    assumed = tuple(name for name in plan.dims if name not in model.dims)
    source, manifest = model.with_dims(plan.dims), f"{prefix}{MANIFEST}"
    return PreparedFiles(source, plan, weights, assumed, folder, manifest, parts)


def place_of_parts(model: Model, output: str | Path | None, weights: Storage) -> tuple[Path, str]:
    """The folder of a cascade, and what the names of its files begin with: parts that share weights are among others.

    A UsageError if parts there can't share the weights of the model.
    """
    check_word(weights, Storage, "weights")
    if weights == "copy":
        return place_of(model, output, ".parts", weights), ""
    folder = model.path.parent if output is None else Path(output)
    check_sharing(model, folder)
    return folder, f"{model.stem}."


def _as_sent(model: Model, plan: Plan) -> Iterator[Block]:
    """The blocks of a plan, with the names under which tensors are sent."""
    boundary = plan.partition.wiring.boundary_tensors if plan.limits.boundary_dtype else ()
    names = {name: sent_name(name) for name in boundary if half_source(model, sent_name(name))}
    inputs, outputs = plan.graph.input_index, set(plan.graph.writes)
    for block in plan.partition.blocks:
        reads = tuple(name if name in inputs else names.get(name, name) for name in block.reads)
        kept = (name for name in block.writes if name not in names or name in outputs)
        yield replace(block, reads=reads, writes=(*kept, *(names[name] for name in block.writes if name in names)))


def _part_file(model: Model, name: str, block: Block, weights: Storage, max_shard_bytes: int | None) -> PartFile:
    proto = part_model(model, block)
    spans = [(tensor, model.range_of(tensor)) for tensor in tensors_in(proto) if is_external(tensor)]
    if weights == "share":
        home, sizes = model.path.parent, dict(model.data.values())
        place_values(spans, "", home=home)
        data = {span.file.relative_to(home).as_posix(): sizes[span.file] for _, span in spans}
        return PartFile(name, proto, block, {}, data)
    shards = divide((span for _, span in spans), max_shard_bytes)
    layouts, file_of = dict[str, FileLayout](), dict[ByteRange, str]()
    for i, shard in enumerate(shards, 1):
        data_name = f"{name}.data" if len(shards) == 1 else f"{name}.data-{i:05}-of-{len(shards):05}"
        layouts[data_name] = lay_out(shard)
        file_of.update(dict.fromkeys(shard, data_name))
    for tensor, span in spans:
        refer_to_file(tensor, file_of[span], layouts[file_of[span]].offset_of(span), span.length)
    return PartFile(name, proto, block, layouts, {key: layout.file_bytes for key, layout in layouts.items()})


def write(
    files: PreparedFiles,
    *,
    digest: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    kept: Path | None = None,
) -> Cascade:
    """Write the files of a split, unless they are there.

    Args:
        files: what `prepare` or `prepare_by_rank` returned.
        digest: as for `split`.
        force: as for `split`.
        progress: called for the bytes written.
        kept: a file that may be in the output folder, and stays.

    Raises:
        UsageError: another file, or another cascade, is in the way.
        GraphcutError: there is too little disk space, or writing failed.
    """
    check_parts([files.source.path])
    target = files.folder.resolve()
    # Shared parts are among files of others, and several models may be in one folder.
    place = (target.parent, target.name) if files.weights == "copy" else (target, files.manifest_name)
    needed = f"it needs {size(files.bytes_to_write)} on a writable disk; nothing was changed"
    with write_errors(files.folder, needed):
        mend(*place)
        if force or not _is_alike(files, target / files.manifest_name):  # else nothing is replaced
            _files_to_replace(files, target, kept, force=force)
        hint = "choose another disk with `output`, or don't copy the weights: `weights='share'`"
        folder, needed_bytes = target if target.exists() else target.parent, files.bytes_to_write
        check_space(folder, needed_bytes, f"the parts need {size(needed_bytes)}", hint)
        with scratch_folder(*place) as scratch:
            new = scratch / "new"
            new.mkdir()
            _write_files(files, new, progress, has_digests=digest)
            pairs = [(file, target / file.name) for file in new.iterdir()]
            if force or not all(there.is_file() and cmp(file, there, shallow=False) for file, there in pairs):
                old = _files_to_replace(files, target, kept, force=force)  # others may have written there meanwhile
                if target.exists():
                    replace_files(scratch, target, last=files.manifest_name, old=old)
                else:
                    finish(new, target, rename)
    return open_cascade(files.folder / files.manifest_name)


def _files_to_replace(files: PreparedFiles, target: Path, kept: Path | None, *, force: bool) -> list[Path]:
    """The files of an existing cascade in the output folder, which has no others that are in the way."""
    manifest, old, listed = target / files.manifest_name, list[Path](), set[str]()
    if manifest.exists():
        if not force:
            other = "choose another folder with `output`, or " if files.weights == "copy" else ""
            hint = f"{other}add `force=True` to replace it"
            raise UsageError(f"{files.folder if files.weights == 'copy' else manifest} already exists", hint=hint)
        found = read_manifest(manifest)
        old, listed = list(own_files(found, manifest)), {part.file for part in found.parts if files.weights == "share"}
    if target.exists() and not target.is_dir():
        raise UsageError(f"{files.folder} is a file", hint="choose another folder with `output`")
    existing = set(target.iterdir()) if target.exists() else set()
    if files.weights == "share":
        existing &= {target / name for name in (files.manifest_name, *files.files, *listed)}
    if foreign := existing.difference(old, [] if kept is None else [kept.parent.resolve() / kept.name]):
        action = "move it away" if files.weights == "share" else "choose another folder with `output`"
        hint = f"{action}; graphcut deletes only what it made"
        name = min(foreign).name
        what = "may be another's" if name in listed else "belongs to no cascade there"
        what = "is a symbolic link" if min(foreign).is_symlink() else what
        raise UsageError(f"{files.folder} contains {name!r}, which {what}", hint=hint)
    return old


def _is_alike(files: PreparedFiles, manifest: Path) -> bool:
    """Whether a manifest has all that the one to be written will have, digests of weights left out."""
    try:
        found = [read_manifest(manifest), _manifest(files, [{} for _ in files.parts])]
    except GraphcutError:
        return False
    parts = [[replace_fields(part, data={n: d.bytes for n, d in part.data.items()}) for part in m.parts] for m in found]
    old, new = (replace_fields(one, parts=own) for one, own in zip(found, parts, strict=True))
    return bool(old == new)


def _write_files(files: PreparedFiles, folder: Path, progress: Progress | None, *, has_digests: bool) -> None:
    total, home, mark = files.bytes_to_write, files.source.path.parent, mark_of(files.text_files)
    digests, written = list[dict[str, Digest]](), dict[str, Digest]()
    for part in files.parts:
        for data_name, layout in part.layouts.items():
            if data_name in written:
                continue
            report = (lambda number, name=data_name: progress(name, number, total)) if progress is not None else None
            # Of ranks each part has a digest of what it reads.
            written[data_name] = write_data(layout, folder / data_name, progress=report, has_digest=part.rank is None)
        own = {name: written[name] for name in part.layouts if part.rank is None}
        read = {name: folder / name for name in part.layouts}
        read |= {name: home / name for name in part.ranges.keys() - part.layouts if has_digests}
        digests.append(own or {name: read_digest(file, part.ranges[name]) for name, file in read.items()})
        if part.index:
            (folder / index_of(part.name)).write_bytes(part.index)
        (folder / part.name).write_bytes(part.raw + mark)
        if progress is not None:
            progress(part.name, len(part.raw + mark), total)
    for name, path in files.copied.items():
        shutil.copyfile(path, folder / name)
    if files.whole is not None:
        (folder / files.whole_name).write_bytes(files.whole.SerializeToString(deterministic=True) + mark)
    save_manifest(_manifest(files, digests), folder / files.manifest_name)


def _manifest(files: PreparedFiles, digests: Sequence[Mapping[str, Digest]]) -> Manifest:
    model = files.source
    blocks = [part.block for part in files.parts]
    parts, earlier, held = [], set[int](), held_by(model)
    # Of a goal without a cluster, parts have a device only if they are those of ranks.
    devices = files.plan.devices if isinstance(files.plan.goal, Across | At) or files.whole is not None else ()
    for i, (part, found) in enumerate(zip(files.parts, digests, strict=True)):
        device = devices[i] if devices else None
        parts.append(
            Part(
                file=part.name,
                reads=part.block.reads,
                writes=part.block.writes,
                device=None if device is None else device.name,
                rank=part.rank,
                graph=graph_digest(part.model),
                sha256=digest_of(part.raw + mark_of(files.text_files)),
                data={name: DataFile(bytes=number, digest=found.get(name)) for name, number in part.data.items()},
                **part_facts(held(device or SessionSettings()), part.model, earlier),
            )
        )
        earlier.update(part.block.nodes)
    return Manifest(
        format=FORMAT,
        source=_source(files),
        weights=files.weights,
        dims=dict(model.dims),
        assumed=files.assumed,
        text_files=files.text_files,
        devices=tuple(convert(one, PlannedDevice, from_attributes=True) for one in dict.fromkeys(devices)),
        parts=tuple(parts),
        **model_facts(model, wire(blocks, reads=model.graph.reads, writes=model.graph.writes).boundary_tensors),
    )


def _source(files: PreparedFiles) -> Source:
    """What the parts were cut from: the model, or the sharded model in their folder."""
    model, digest = files.source, files.source.digest
    if files.whole is None:
        data = {location: file_bytes for location, (_, file_bytes) in model.data.items()}
        return Source(file=model.path_from(files.folder), graph=digest, data=data)
    used = {place.value for place in locations_in(files.whole)}
    sizes = {name: number for part in files.parts for name, number in part.data.items()}
    return Source(file=files.whole_name, graph=digest, data={name: sizes[name] for name in sizes if name in used})
