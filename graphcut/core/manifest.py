"""The manifest of a cascade (`cascade.json`), and `Cascade`: the manifest with the files it describes.

Splitting writes manifests; running, verifying and drawing read them. Format: docs/reference/manifest.md.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, Literal, get_args

import msgspec

from .arguments import Storage
from .digests import DataFile
from .errors import CascadeError, GraphcutError, RecordError, wrong_type
from .product import Product
from .records import as_json, read_record
from .tensors import Dim, Tensor
from .text import nothing_at
from .wiring import Wiring, run_phases, wire

Version = Literal["graphcut.cascade/1.1", "graphcut.cascade/1"]  #: the versions of the format, the last one first.
FORMAT: Final = "graphcut.cascade/1.1"
MANIFEST: Final = "cascade.json"
"""File name of a manifest in a folder of its own; beside the model (shared weights) it is `STEM.cascade.json`."""

PIPELINE: Final = "pipeline.toml"
"""The pipeline file of a folder of models that feed each other; it need not exist where an exporter left them."""

EXPORTED: Final = ("genai_config.json", "modules.json", "encoder_model.onnx")
"""A file of such a folder: of ONNX Runtime GenAI, of sentence-transformers, or of Optimum."""

COMPILED: Final = ".ctx.onnx"  #: how the names of parts end that the compiler of a provider made.

FETCHED: Final = "fetched.json"
"""The file beside the manifest that lists the parts of a folder that `fetch` made, unless it has all."""

SHARDED_FILE: Final = "sharded.onnx"
"""The sharded model in the folder of a cascade of ranks, whose data files it reads; `STEM.sharded.onnx` if shared."""


class RunMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a part takes in memory on its device, in bytes, for the `dims` of the manifest."""

    load: int  #: what ONNX Runtime holds once it is open: weights, as often as it has them, and its session.
    opening: int  #: what it takes besides while it is opened, or casts weights while it runs.
    unpacked: int  #: the same for a session that packs no weights.
    inputs: int  #: its inputs, states left out.
    states: int  #: its states, as inputs and as outputs.
    #: the most alive at once of what its nodes compute, states left out, with what kernels take besides.
    activations: int
    is_exact: bool = True  #: whether all its tensors have a size; else all but `load` and `opening` are lower bounds.

    @property
    def needs(self) -> int:
        """The memory to run it."""
        return self.load + self.inputs + self.states + max(self.opening, self.activations)


class Part(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ONNX file of a cascade."""

    file: str  #: its path, relative to the manifest.
    reads: tuple[str, ...]  #: the tensors that must be fed to it, in the order of its inputs.
    writes: tuple[str, ...]  #: its outputs, in their order.
    nodes: int  #: number of its nodes, replicas included.
    #: names of its nodes that other parts may have too: constant nodes, and flowing nodes that it recomputes though
    #: they belong to another part.
    replicas: tuple[str, ...]
    #: tensors that it computes from another tensor than their node in the model does, and that other tensor: the output
    #: of a rewritten replica, and the output of its original that it reads.
    derived: dict[str, str] = {}
    weight_bytes: int  #: size of the weights that it reads.
    #: size of those from which nodes look up rows and which nothing else reads, such as embeddings.
    looked_up_bytes: int
    largest_weight_bytes: int  #: size of the largest of the others.
    #: peak size of its inputs, intermediate tensors and outputs that are alive at the same time, for the `dims` of the
    #: manifest; a lower bound if a symbol has no number there or a size depends on values.
    activation_bytes: int
    memory: RunMemory | None = None  #: what it takes in memory; None if unknown: the manifest is of version 1.
    #: number of flowing nodes of the model that it runs, replicas included; None in a manifest of version 1.
    flowing: int | None = None
    device: str | None  #: the device it was planned for; None if no cluster was given.
    rank: int | None = None  #: the rank that runs it; None if the model is not divided among ranks.
    graph: str  #: digest of its graph, without the values of large weights.
    sha256: str  #: digest of the file's bytes, which can be checked without ONNX.
    data: dict[str, DataFile]  #: the files with its weights, by their paths relative to the manifest.

    @property
    def needed(self) -> RunMemory:
        """What it takes in memory; of a manifest of version 1, which lacks it, what its files suggest."""
        if self.memory is not None:
            return self.memory
        load, opening, activations = self.weight_bytes, self.largest_weight_bytes, self.activation_bytes
        return RunMemory(load=load, opening=opening, unpacked=0, inputs=0, states=0, activations=activations)

    @property
    def contents(self) -> dict[str, str | DataFile]:
        """What must be in each of its files, by their paths: a digest, or the record of a data file."""
        return {self.file: self.sha256, **self.data}

    @property
    def is_converted(self) -> bool:
        """Whether its file is in ONNX Runtime's own format, or compiled, so that it holds no nodes of ONNX."""
        return self.file.endswith((".ort", COMPILED))

    @property
    def name(self) -> str:
        """Its file without the ending."""
        return self.file.removesuffix(".onnx")

    @property
    def place(self) -> str:
        """Its file, and the device that it was planned for."""
        return f"{self.file} ({self.device})" if self.device else self.file


_CPU: Final = "CPUExecutionProvider"
HalfType = Literal["float16", "bfloat16"]  #: element types of 16 bits.


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How ONNX Runtime runs parts on a device."""

    provider: str = _CPU  #: the execution provider that runs its parts.
    provider_options: tuple[str, ...] = ()  #: options of this provider, as `KEY=VALUE`.
    threads: int = 0  #: threads of one operator; 0 divides the cores of the machine among its workers.
    session_config: tuple[str, ...] = ()  #: session configuration entries, as `KEY=VALUE`.
    #: element types of 16 bits that its CPU provider computes with as they are; others are held as float32.
    native: tuple[HalfType, ...] = ()

    def __post_init__(self) -> None:
        for name in ("provider_options", "session_config"):
            for text in getattr(self, name):
                if "=" not in text[1:]:
                    raise ValueError(f"{name} holds {text!r}: expected KEY=VALUE")
        if self.threads < 0:
            raise ValueError(f"threads can't be {self.threads}: expected 0 or more")

    @property
    def widened(self) -> tuple[str, ...] | None:
        """The element types that it holds as float32; None if that is unknown: for any provider but the CPU's."""
        is_known = self.provider == _CPU
        return tuple(one for one in get_args(HalfType) if one not in self.native) if is_known else None


class PlannedDevice(SessionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device that parts were planned for."""

    name: str  #: as `Part.device` gives it.
    memory_bytes: int | None  #: memory for the weights and activations of its parts; None for no limit.


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output of the model that is an input of its next step, such as a KV cache."""

    past: str  #: the input.
    present: str  #: the output that becomes it.
    axis: int | None  #: the axis of the tokens; None if it has none, as in a recurrent network.
    #: its shape at the first step of a sequence, where its values are zeros: 0 along `axis`, except for a buffer of
    #: fixed size; a symbol for what the inputs decide, such as the batch. None if unknown.
    start: tuple[Dim, ...] | None
    is_given: bool  #: the user named this pair; else it was found in the model.
    #: `past` and `present` may be one buffer with room for more tokens, in which the new ones are added.
    is_shareable: bool
    #: its size is fixed, the newest token is the last one, and the oldest leaves at each step.
    is_rolling: bool = False


class Loop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of a pipeline of models that generates no tokens."""

    steps: int  #: how often the parts of each step run.
    inputs: dict[str, tuple[float, ...]]  #: inputs that get another value at each step, and these values.

    def __post_init__(self) -> None:
        if self.steps < 1 or any(len(row) != self.steps for row in self.inputs.values()):
            raise ValueError("expected 1 step or more, and as many values of each input")


TextFile = Literal[  #: a file beside a language model that says how text becomes tokens, which begin or end one.
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "genai_config.json", "config.json", "sentence_bert_config.json",
]  # fmt: skip


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that was split."""

    file: str  #: its path, relative to the manifest.
    graph: str  #: digest of its graph, without the values of large weights.
    data: dict[str, int]  #: the files with its weights, relative to the model, and their sizes in bytes.


class Manifest(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a manifest file. Each fact is stored once; tensor edges are derived from it."""

    format: Version  #: `graphcut.cascade/1.1`.
    source: Source  #: the model that was split.
    #: `copy`: each part, or rank, has a data file of its own; `share`: the parts refer to the model's files.
    weights: Storage
    dims: dict[str, int]  #: the numbers of symbolic dimensions that the plan was made for; used for sizes only.
    #: those in `dims` that nobody gave: the plan assumed them, such as a prompt of 512 tokens.
    assumed: tuple[str, ...] = ()
    reads: tuple[str, ...]  #: the model's inputs, in its order.
    optional: tuple[str, ...]  #: the inputs that have a default and may be left out.
    writes: tuple[str, ...]  #: the model's outputs, in its order.
    #: the digests of the files of the tokenizer and of what belongs to it, by name; they are beside the manifest.
    text_files: dict[TextFile, str] = {}
    tensors: tuple[Tensor, ...]  #: type and shape of all of these, and of every boundary tensor.
    states: tuple[State, ...]  #: outputs that are inputs of the next step, in the order of the inputs.
    #: the inputs that are fed at each step, of a pipeline of models: what depends on the others alone runs once.
    stepwise: tuple[str, ...] = ()
    loop: Loop | None = None  #: its steps; None if they generate tokens.
    devices: tuple[PlannedDevice, ...]  #: the devices that the parts were planned for, in the order of the parts.
    #: if it is of some parts alone: by tensor, the parts that write it elsewhere, with their devices.
    elsewhere: dict[str, str] = {}
    parts: tuple[Part, ...]  #: in an order in which they can run.

    @property
    def given_dims(self) -> dict[str, int]:
        """The numbers in `dims` that the user gave."""
        return {name: number for name, number in self.dims.items() if name not in self.assumed}


@dataclass(frozen=True, repr=False)
class Cascade(Product):
    """A model that was split into parts, on disk."""

    path: Path  #: the manifest file.
    manifest: Manifest  #: its content.

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in an order in which they can run."""
        return self.manifest.parts

    @property
    def root(self) -> Path:
        """The folder of the manifest; its paths are relative to it."""
        return self.path.parent

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Type and shape of the model's inputs and outputs and of the boundary tensors, by name."""
        return MappingProxyType({tensor.name: tensor for tensor in self.manifest.tensors})

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The inputs that must be fed: they are read, or outputs, and have no default, nor values of a loop."""
        manifest, used = self.manifest, {name for part in self.parts for name in part.reads}
        given = {*manifest.optional, *(() if manifest.loop is None else manifest.loop.inputs)}
        return tuple(name for name in manifest.reads if name in used.union(manifest.writes) and name not in given)

    @cached_property
    def alive_after(self) -> tuple[frozenset[str], ...]:
        """For each part, the tensors that a later part reads, and the outputs."""
        alive, found = frozenset(self.manifest.writes), list[frozenset[str]]()
        for part in reversed(self.parts):
            found.append(alive)
            alive = alive.union(part.reads)
        return tuple(reversed(found))

    @cached_property
    def wiring(self) -> Wiring:
        """The tensor edges between the parts."""
        return wire(self.parts, reads=self.manifest.reads, writes=self.manifest.writes, kind="part")

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """When each part runs, see `run_phases`; empty unless it is of a pipeline of models."""
        manifest = self.manifest
        presents, has_end = [state.present for state in manifest.states], manifest.loop is not None
        found = run_phases(self.parts, manifest.stepwise, presents, has_end=has_end)
        return found if manifest.stepwise or has_end else ()

    def settings(self, part: Part) -> SessionSettings:
        """How its device runs `part`."""
        return next((host for host in self.manifest.devices if host.name == part.device), SessionSettings())

    def file(self, part: Part) -> Path:
        """The path of a part's ONNX file."""
        return self.root / part.file

    @property
    def absent(self) -> tuple[str, ...]:
        """The parts that are elsewhere, with their devices."""
        return tuple(dict.fromkeys(self.manifest.elsewhere.values()))

    @property
    def converted(self) -> tuple[str, ...]:
        """The parts in ONNX Runtime's own format: what nodes and weights these have is not known."""
        return tuple(part.file for part in self.parts if part.is_converted)

    @property
    def undigested(self) -> tuple[str, ...]:
        """The parts with weights that have no digest: of their data files only the sizes are known."""
        return tuple(part.file for part in self.parts if any(data.digest is None for data in part.data.values()))

    @property
    def source(self) -> Path:
        """The path of the model that was split, without detours such as `llm.parts/../llm.onnx`.

        The folder of a pipeline of models that has no pipeline file.
        """
        path = self.root / self.manifest.source.file
        path = path.parent if path.name == PIPELINE and not path.exists() else path
        plain = Path(os.path.normpath(path))
        # normpath is wrong where `..` follows a symbolic link.
        return plain if not path.exists() or (plain.exists() and plain.samefile(path)) else path


_ALONE: Final = "this folder has other parts alone: `run(...)` runs them, and `verify_files(...)` checks them"
COPY_HINT: Final = "copy the whole cascade, or split the model again"

CascadeLike = str | Path | Cascade  #: a cascade, its folder, or its manifest file.


def save_manifest(manifest: Manifest, path: Path) -> None:
    """Write `manifest` to `path`; the same manifest gives the same bytes. `dims` stay in their order."""
    path.write_bytes(as_json(manifest))


def open_cascade(source: CascadeLike, *, check_files: bool = True, may_lack_parts: bool = False) -> Cascade:
    """The cascade in a folder, or that of a manifest file; a `Cascade` is returned as it is.

    Checks that the manifest is consistent and, with `check_files`, that each file it names exists and has the size it
    had; parts whose file is missing are none if it `may_lack_parts`. The content of the files is checked when parts are
    loaded, and by `verify`.

    Raises:
        CascadeError: there is no cascade, or its files are missing or changed.
        RecordError: the manifest can't be read, or doesn't have the expected format.
    """
    if isinstance(source, Cascade):
        return _whole(source) if check_files else source
    if not isinstance(source, str | Path):
        raise wrong_type(source, "a cascade or its path", hint="pass the folder that `split(...)` made")
    path = Path(source)
    try:
        is_there = path.exists()
    except OSError as error:
        raise CascadeError(f"there is no cascade at {path}: {error.strerror}", hint="check the path") from None
    manifest_path = path / MANIFEST if is_there and path.is_dir() else path
    if not manifest_path.exists():
        raise CascadeError(_no_manifest(path), hint="name the folder or the manifest that `split(...)` made")
    cascade = Cascade(manifest_path, read_manifest(manifest_path))
    if check_files:
        for part in cascade.parts:
            is_absent = may_lack_parts and is_inside(cascade.root, part.file) and not cascade.file(part).exists()
            for problem in () if is_absent else wrong_sizes(cascade, part):
                raise CascadeError(problem, hint=_ALONE if (cascade.root / FETCHED).exists() else COPY_HINT)
    try:
        wire(cascade.parts, reads=cascade.manifest.reads, writes=cascade.manifest.writes, kind="part")
        problem = next(_contradictions(cascade.manifest), "")
    except GraphcutError as error:
        problem = str(error)
    if problem:
        raise CascadeError(f"{manifest_path}: {problem}", hint="split the model again")
    return _whole(cascade) if check_files else cascade


def _whole(cascade: Cascade) -> Cascade:
    """A cascade that has all its parts; else a CascadeError."""
    if cascade.absent:
        raise CascadeError(f"{cascade.root} is without {', '.join(cascade.absent)}", hint=_ALONE)
    return cascade


def _contradictions(manifest: Manifest) -> Iterator[str]:
    yield from _wrong_tensors(manifest)
    for field in ("optional", "stepwise"):
        if unknown := set(getattr(manifest, field)) - set(manifest.reads):
            yield f"'{field}' names {min(unknown)!r}, which is not an input"
    changed = {*manifest.loop.inputs, *(state.past for state in manifest.states)} if manifest.loop else set[str]()
    if unknown := changed.difference(manifest.stepwise):
        yield f"'loop' changes {min(unknown)!r}, which 'stepwise' does not name"
    yield from _wrong_states(manifest)
    devices = {host.name for host in manifest.devices}
    for part in manifest.parts:
        if part.device is not None and part.device not in devices:
            yield f"{part.file} is for {part.device!r}, which 'devices' does not list"
        for name, data in part.data.items():
            if data.digest is not None and not data.digest.fits(data.bytes):
                yield f"the digest of {name!r} in {part.file} has ranges that overlap or don't fit its blocks"


def _wrong_tensors(manifest: Manifest) -> Iterator[str]:
    listed = Counter(tensor.name for tensor in manifest.tensors)
    of_parts = {name for part in manifest.parts for name in (*part.reads, *part.writes)}
    if twice := [name for name, times in listed.items() if times > 1]:
        yield f"'tensors' lists {min(twice)!r} more than once"
    if missing := {*manifest.reads, *manifest.writes, *of_parts} - listed.keys():
        yield f"'tensors' lacks {min(missing)!r}"
    if unknown := next((tensor for tensor in manifest.tensors if not tensor.has_known_type), None):
        yield f"'tensors' gives {unknown.name!r} the type {unknown.dtype!r}, which is none of ONNX"


def _wrong_states(manifest: Manifest) -> Iterator[str]:
    for state in manifest.states:
        if state.past not in manifest.reads or state.present not in manifest.writes:
            yield f"'states' pairs {state.past!r} with {state.present!r}, which are not an input and an output"
    pasts = [manifest.reads.index(state.past) for state in manifest.states if state.past in manifest.reads]
    if pasts != sorted(set(pasts)):
        yield "'states' does not list each state once, in the order of the inputs"


def _no_manifest(path: Path) -> str:
    if not path.is_dir():
        return nothing_at(path, f"there is no cascade at {path}")
    others = sorted(path.glob("*.cascade.json"))
    more = f"; did you mean {others[0]}?" if others else ""
    return f"{path} has no {MANIFEST}{more}"


def read_manifest(path: Path) -> Manifest:
    """The content of a manifest file, without checks of the files that it names; a RecordError if there is none."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe may never end
        raise RecordError(f"{path} is no regular file", hint="split the model again")
    return read_record(path, Manifest, FORMAT, "split the model again", "check its permissions")


def wrong_sizes(cascade: Cascade, part: Part) -> Iterator[str]:
    """The files of a part that are outside the folder, missing, or not of the size in the manifest, a sentence each."""
    for name, expected in {part.file: None, **{name: data.bytes for name, data in part.data.items()}}.items():
        file = cascade.root / name
        if not is_inside(cascade.root, name):
            is_link = os.path.islink(file)  # noqa: PTH114 - `file.is_symlink()` raises for a name that is too long
            names = f"{file} is a link to" if is_link else f"{cascade.path} names"
            yield f"{names} {os.fspath(file.readlink()) if is_link else name!r}, which is outside its folder"
        elif not file.is_file():
            wrong = "is no regular file" if file.exists() else "is missing"
            yield f"{cascade.root / part.place if name == part.file else file} {wrong}"
        elif expected is not None and file.stat().st_size != expected:
            yield f"{file} has {file.stat().st_size:,} bytes, but had {expected:,} when the model was split"


def is_inside(root: Path, name: str) -> bool:
    """Whether a manifest in `root` may name this file: it is in this folder or below, links included."""
    try:
        (root / name).exists()
        return not PurePosixPath(name).is_absolute() and (root / name).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # the name is too long, links form a cycle, a NUL character
        return False
