"""Whether the files of a cascade are those written at the split: by digests, where the manifest has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from .digests import DataFile, FileVersion, unchanged_version
from .errors import CascadeError, RecordError, RunError, UsageError
from .manifest import COPY_HINT, MANIFEST, Cascade, TextFile, read_manifest, wrong_sizes
from .records import json_beside
from .units import count


def check_files(cascade: Cascade, *, has_weights: bool = True) -> None:
    """Check that the files of all parts, and the text files, are those written at the split.

    Without `has_weights` only the sizes of data files are compared.

    Raises:
        CascadeError: a file is missing, was changed, or can't be read.
    """
    for problem in (problem for part in cascade.parts for problem in wrong_sizes(cascade, part)):
        raise CascadeError(problem, hint=COPY_HINT)
    try:
        for part in cascade.parts:
            check_unchanged(cascade, part.contents if has_weights else {part.file: part.sha256})
        check_unchanged(cascade, cascade.manifest.text_files)
    except RunError as error:
        raise CascadeError(str(error), hint=error.hint) from None


def cascades_with(model: Path) -> Iterator[Cascade]:
    """The cascades of which a model is a part by a manifest beside it, each with this part alone."""
    for path in (model.with_name(MANIFEST), *sorted(model.parent.glob(f"*.{MANIFEST}"))):
        with suppress(RecordError, UsageError):
            manifest = read_manifest(path)
            if own := tuple(part for part in manifest.parts if part.file == model.name):
                yield Cascade(path, replace(manifest, parts=own, text_files={}))


def check_parts(files: Iterable[Path], *, has_weights: bool = True) -> None:
    """The same for those of the files that are parts by a manifest beside them."""
    for cascade in (cascade for file in files for cascade in cascades_with(file)):
        check_files(cascade, has_weights=has_weights)


def text_of(cascade: Cascade, name: TextFile, kind: Any = dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The content of a text file in JSON, of a kind; what `kind()` makes if the cascade has no such file.

    Raises:
        RunError: it was changed, or is missing.
        RecordError: it is not of this kind.
    """
    if name not in cascade.manifest.text_files:
        return kind()
    check_unchanged(cascade, {name: cascade.manifest.text_files[name]})
    return json_beside(cascade.root / name, kind)


def check_unchanged(cascade: Cascade, contents: Mapping[Any, str | DataFile]) -> dict[Path, FileVersion]:
    """Check that files of a cascade have these contents, such as those of a part. Returns their versions.

    A data file without a digest is compared by its size alone: a mapped file that is too short would crash the process.

    Raises:
        RunError: a file was changed, or can't be read.
    """
    versions = {}
    for name, expected in contents.items():
        file = cascade.root / name
        try:
            version = unchanged_version(file, expected)
        except OSError as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else f"can't be read: {error.strerror}"
            raise RunError(f"{file} {what}", hint="copy the whole cascade again") from None
        if version is None:
            message = f"{file} was changed after the model was cut"
            raise RunError(message, hint="copy it again, or split the model again")
        versions[file] = version
    return versions


def digest_gap(undigested: Sequence[str]) -> str:
    """What digests can't tell of parts without a digest of their weights, as a sentence; empty if there are none."""
    parts = count(len(undigested), "part")
    return f"weights of {parts} have no digest: only their sizes were compared" if undigested else ""
