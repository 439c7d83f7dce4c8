"""The file `auto.json`: what `auto` did, with what, and what came of it, so that it can be done again."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ..core.digests import file_digest
from ..core.errors import RecordError
from ..core.manifest import MANIFEST
from ..core.product import Product
from ..core.records import read_record
from .accuracy import Figures

RECORD: Final = "auto.json"


class ConversionRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One conversion that was made."""

    name: str  #: its name, such as `int4`.
    package: str  #: the package that made it.
    version: str  #: the version of that package.
    options: dict[str, Any]  #: the options that the package was given, and what it reports.
    bytes: int  #: size of the weights of the model that it made.
    digest: str  #: digest of that model: of the digests of its files.
    figures: Figures | None  #: outputs against those of the model before this step; null if it accepted no inputs.


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One precision that was tried."""

    precision: str  #: its name.
    parts: int | None  #: the number of parts; null if there is no plan.
    largest_bytes: int | None  #: what the largest part takes on the disk.
    figures: Figures | None  #: the outputs of the model that is cut against those of the given one.
    verdict: str  #: `chosen`, or why it was not.


class AutoRecord(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `auto.json`."""

    format: Literal["graphcut.auto/1"] = "graphcut.auto/1"  #: `graphcut.auto/1`.
    options: tuple[str, ...]  #: the options with which `auto` does the same again; files relative to this one's folder.
    versions: dict[str, str]  #: the versions of graphcut, onnx and ONNX Runtime.
    sources: dict[str, str]  #: digests of all files that were read, by their paths relative to this one's folder.
    inputs: str  #: where the inputs come from on which outputs were compared; empty if the model accepted none.
    steps: tuple[ConversionRecord, ...]  #: the conversions, in order.
    tried: tuple[Attempt, ...]  #: the precisions that were tried; the last one was chosen.
    verified: str  #: what verifying the parts against the model that was cut found; empty if nothing was chosen.
    files: dict[str, str]  #: digests of all files that were written, by their paths in this one's folder.


def read_auto(path: Path) -> AutoRecord:
    """The record in a file; a RecordError if it can't be read, or is none."""
    return read_record(path, AutoRecord, "graphcut.auto/1", "run auto again", "name the auto.json of a folder")


def digests(files: Iterable[Path], folder: Path) -> dict[str, str]:
    """The digests of files by their paths relative to a folder."""
    return {os.path.relpath(file.resolve(), folder.resolve()): file_digest(file) for file in sorted(files)}


def check_replay(old: AutoRecord, new: AutoRecord) -> None:
    """Check that a replay read and made the bytes of a record; else the RecordError has the first difference."""
    changed = [f"{name} was changed" for name, digest in new.sources.items() if digest not in {*old.sources.values()}]
    pairs = [(a, b) for a, b in zip(old.steps, new.steps, strict=False) if a.digest != b.digest]
    changed += [f"{a.name}: {b.package} {b.version} wrote other bytes than {a.version}" for a, b in pairs]
    # A manifest names the model by its path, and other folders may be elsewhere; it has the digests of all parts.
    kept = [name for name in old.files if name in new.files and name != MANIFEST]
    changed += [f"{name} has other bytes" for name in kept if new.files[name] != old.files[name]]
    if changed:
        raise RecordError(f"the replay differs: {changed[0]}", hint="use the versions and files that the record names")
