"""The gate: the manifest, and the cascade it describes. What cuts writes one, what runs reads one.

The format is specified in docs/reference/manifest.md.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from .errors import CascadeError, GraphcutError, RecordError, validation_message
from .product import Product
from .wiring import Dim, Tensor, Wiring, wire

FORMAT: Final = "graphcut.cascade/1"
MANIFEST: Final = "cascade.json"
"""The manifest's name in a folder of its own; beside shared weights it is called `STEM.cascade.json`."""


class Part(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ONNX file of a cascade.

    Attributes:
        file: its path, relative to the manifest.
        reads: the tensors it must be fed, in the order of its inputs.
        writes: the tensors it gives out, in the order of its outputs.
        nodes: how many nodes it has, replicas included.
        replicas: names of the nodes that it computes for itself though other parts may too: constant nodes, and
            flowing nodes that have their home in another part.
        weight_bytes: what the weights that it reads take.
        largest_weight_bytes: what the largest of them takes.
        activation_bytes: the most that lives at once of what it is fed, computes and gives out, for the manifest's
            `dims`; at least, where symbols have no number there or sizes depend on values.
        device: the device it was planned for; None where no cluster was given.
        graph: digest of its graph, weights left out.
        sha256: digest of the file's bytes, which needs no reader of ONNX.
        data: the files that hold its weights, relative to the manifest, and their sizes in bytes.
    """

    file: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nodes: int
    replicas: tuple[str, ...]
    weight_bytes: int
    largest_weight_bytes: int
    activation_bytes: int
    device: str | None
    graph: str
    sha256: str
    data: dict[str, int]


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device that parts were planned for.

    Attributes:
        name: what parts call it.
        memory_bytes: what its parts may use, weights and activations together; None for no limit.
        provider: the execution provider that ONNX Runtime runs its parts with.
    """

    name: str
    memory_bytes: int | None
    provider: str


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output that is the model's input at its next step, such as a decoder's cache of keys.

    Attributes:
        past: the input.
        present: the output that becomes it.
        axis: the axis along which its tokens stand; None where it has none, as in a recurrent network.
        start: its shape at the first step of a sequence, when it is all zeros: 0 along `axis`, but for a buffer of one
            size that fills up; a symbol for what the inputs decide, such as the batch. None where nothing tells.
    """

    past: str
    present: str
    axis: int | None
    start: tuple[Dim, ...] | None


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that was cut.

    Attributes:
        file: its path, relative to the manifest.
        graph: digest of its graph, weights left out.
        data: the files that hold its weights, relative to the model, and their sizes in bytes.
    """

    file: str
    graph: str
    data: dict[str, int]


class Manifest(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in a manifest file; each fact once, links are derived.

    Attributes:
        format: `graphcut.cascade/1`.
        source: the model that was cut.
        weights: `copy`: each part has a data file of its own; `share`: the parts refer to the model's files.
        dims: numbers that were given for symbolic dimensions, for sizes only.
        reads: the model's inputs, in its order.
        optional: those of them that may be left out, since the model has a default for them.
        writes: the model's outputs, in its order.
        tensors: all of these, and every tensor that one part hands to another.
        states: outputs that come back as inputs, in the order of these inputs.
        devices: what the parts were planned for, in the order of the parts.
        parts: in an order in which they can run.
    """

    format: Literal["graphcut.cascade/1"]
    source: Source
    weights: Literal["copy", "share"]
    dims: dict[str, int]
    reads: tuple[str, ...]
    optional: tuple[str, ...]
    writes: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    states: tuple[State, ...]
    devices: tuple[Host, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, repr=False)
class Cascade(Product):
    """A cascade on disk.

    Attributes:
        path: the manifest file.
        manifest: what stands in it.
    """

    path: Path
    manifest: Manifest

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in an order in which they can run."""
        return self.manifest.parts

    @property
    def root(self) -> Path:
        """The folder that all paths of the manifest start from."""
        return self.path.parent

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Type and shape of every tensor at a border."""
        return MappingProxyType({tensor.name: tensor for tensor in self.manifest.tensors})

    @cached_property
    def wiring(self) -> Wiring:
        """Who hands which tensor to whom."""
        return wire(self.parts, reads=self.manifest.reads, writes=self.manifest.writes)

    def file(self, part: Part) -> Path:
        """Where a part lies."""
        return self.root / part.file

    @property
    def source(self) -> Path:
        """The path of the model that was cut, without detours such as `llm.parts/../llm.onnx`."""
        path = self.root / self.manifest.source.file
        plain = Path(os.path.normpath(path))
        return plain if not path.exists() or (plain.exists() and plain.samefile(path)) else path  # `..` of a link


def digest_of(raw: bytes) -> str:
    """The SHA-256 of a part's file, as the manifest writes it."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def save_manifest(manifest: Manifest, path: Path) -> None:
    """Write `manifest` to `path`, the same bytes for the same content."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n")


def open_cascade(path: str | Path) -> Cascade:
    """The cascade in a folder, or the one that a manifest file describes.

    Checks that the manifest is whole and agrees with itself, and that every file it names is there and has the size
    it had. What stands *in* the files is for `verify` to check.

    Raises:
        CascadeError: there is no cascade here, or files of it are missing or changed.
        RecordError: the manifest does not fit the format.
    """
    path = Path(path)
    try:
        path.exists()
    except OSError as error:
        raise CascadeError(f"there can be no cascade at {path}: {error.strerror}", hint="check the path") from None
    manifest_path = path / MANIFEST if path.is_dir() else path
    if not manifest_path.exists():
        raise CascadeError(_nothing_here(path), hint="`graphcut split` makes a cascade; name its folder or manifest")
    manifest = read_manifest(manifest_path)
    cascade = Cascade(manifest_path, manifest)
    _check_files(cascade)
    try:
        wiring = cascade.wiring
    except GraphcutError as error:
        raise CascadeError(f"{manifest_path}: {error}", hint="split the model again") from None
    for objection in _contradictions(manifest, wiring):
        raise CascadeError(f"{manifest_path}: {objection}", hint="split the model again")
    return cascade


def _contradictions(manifest: Manifest, wiring: Wiring) -> Iterator[str]:
    listed = [tensor.name for tensor in manifest.tensors]
    twice = {name for name in listed if listed.count(name) > 1} if len(set(listed)) < len(listed) else set()
    if twice:
        yield f"`tensors` lists {min(twice)!r} more than once"
    missing = {*manifest.reads, *manifest.writes, *(link.tensor for link in wiring.edges)} - set(listed)
    if missing:
        yield f"`tensors` lacks {min(missing)!r}"
    strange = set(manifest.optional) - set(manifest.reads)
    if strange:
        yield f"`optional` names {min(strange)!r}, which is no input"
    for state in manifest.states:
        if state.past not in manifest.reads or state.present not in manifest.writes:
            yield f"`states` pairs {state.past!r} with {state.present!r}, which are not an input and an output"
    known = {host.name for host in manifest.devices}
    for part in manifest.parts:
        if part.device is not None and part.device not in known:
            yield f"{part.file} is for {part.device!r}, which `devices` does not list"


def _nothing_here(path: Path) -> str:
    if not path.is_dir():
        return f"there is no cascade at {path}"
    others = sorted(path.glob("*.cascade.json"))
    more = f"; did you mean {others[0]}?" if others else ""
    return f"{path} holds no {MANIFEST}{more}"


def read_manifest(path: Path) -> Manifest:
    """What stands in a manifest file, read strictly; whether its files are there is not checked.

    Raises:
        CascadeError: it can't be read.
        RecordError: it does not fit the format.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CascadeError(f"{path} can't be read: {error.strerror}", hint="check its permissions") from None
    hint = "split the model again, or use the graphcut that wrote it"
    try:
        found = msgspec.json.decode(raw)
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            what = f"its format is {version!r}" if version else "it names no format"
            raise RecordError(f"{path} can't be read here: {what}, and this graphcut reads {FORMAT!r}", hint=hint)
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {validation_message(error)}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON: {error}", hint=hint) from None


def _check_files(cascade: Cascade) -> None:
    for part in cascade.parts:
        for name, expected in {part.file: None, **part.data}.items():
            if not _is_inside(cascade.root, name):
                raise CascadeError(f"{cascade.path} names {name!r}, which is outside its folder", hint="split again")
            file = cascade.root / name
            if not file.is_file():
                raise CascadeError(f"{file} is missing", hint="copy the whole cascade, or split the model again")
            if expected is not None and file.stat().st_size != expected:
                raise CascadeError(
                    f"{file} has {file.stat().st_size:,} bytes, and had {expected:,} when the model was cut",
                    hint="copy it again, or split the model again",
                )


def _is_inside(root: Path, name: str) -> bool:
    try:
        (root / name).exists()
        return not PurePosixPath(name).is_absolute() and (root / name).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a name too long; links in a circle; a NUL
        return False
