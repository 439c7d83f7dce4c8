"""The parts that are in the folder of a cascade, where `fetch` or an export wrote some of them alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .errors import CascadeError
from .manifest import FETCHED, Cascade, CascadeLike, Manifest, Part, is_inside, open_cascade, wrong_sizes
from .records import read_record


class _Fetched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `FETCHED`."""

    format: Literal["graphcut.fetched/1"]  #: `graphcut.fetched/1`.
    parts: tuple[str, ...]  #: the files of the parts.


def save_fetched(names: Sequence[str], path: Path) -> None:
    """Write that a folder has the parts with these files alone."""
    path.write_bytes(msgspec.json.encode(_Fetched(format="graphcut.fetched/1", parts=tuple(names))) + b"\n")


def parts_here(cascade: Cascade) -> list[Part]:
    """The parts that must be in the folder of a cascade: all; or of a fetched one those that were fetched or added."""
    path = cascade.root / FETCHED
    if not path.is_file():
        return list(cascade.parts)
    names = read_record(path, _Fetched, "graphcut.fetched/1", "fetch the parts again", "check its permissions").parts
    there = (part for part in cascade.parts if is_inside(cascade.root, part.file) and cascade.file(part).is_file())
    kept = {*names, *(part.file for part in there)}
    return [part for part in cascade.parts if part.file in kept]


def open_present(source: CascadeLike, *, check_files: bool = True) -> Cascade:
    """The cascade of those parts of `source` that are in its folder, if `fetch` made it; else of all, which must be.

    Its inputs are what these parts read from the inputs of the model and from other parts; its outputs are what they
    write for others. Raises as `open_cascade`, also if a part is lost.
    """
    if isinstance(source, Cascade):
        return source
    whole = open_cascade(source, check_files=False)
    here = parts_here(whole)
    if len(here) == len(whole.parts) and not whole.absent:
        return open_cascade(source, check_files=check_files)
    absent = [part for part in whole.parts if part not in here]
    for part in here if check_files else ():
        for problem in wrong_sizes(whole, part):
            raise CascadeError(problem, hint="fetch it again")
    return Cascade(whole.path, _of_parts(whole.manifest, here, absent))


def _of_parts(manifest: Manifest, here: Sequence[Part], absent: Sequence[Part]) -> Manifest:
    """The manifest of some parts alone."""
    reads, made = dict[str, None](), dict[str, None]()
    for part in here:
        reads.update(dict.fromkeys(name for name in part.reads if name not in made))
        made.update(dict.fromkeys(part.writes))
    asked = {*manifest.writes, *(name for part in absent for name in part.reads)}
    writes = tuple(name for name in made if name in asked)
    return msgspec.structs.replace(
        manifest,
        parts=tuple(here),
        reads=tuple(reads),
        optional=tuple(name for name in manifest.optional if name in reads),
        writes=writes,
        tensors=tuple(tensor for tensor in manifest.tensors if tensor.name in reads or tensor.name in made),
        states=tuple(state for state in manifest.states if state.past in reads and state.present in writes),
        elsewhere={**manifest.elsewhere, **{name: part.place for part in absent for name in part.writes}},
    )
