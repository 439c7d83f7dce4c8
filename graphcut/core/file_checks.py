"""Whether the files of a cascade are those written at the split: by digests, where the manifest has them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .digests import DataFile, FileVersion, unchanged_version
from .errors import CascadeError, RecordError, RunError
from .manifest import COPY_HINT, MANIFEST, Cascade, Part, read_manifest, wrong_sizes
from .units import count


def check_files(cascade: Cascade) -> None:
    """Check that the files of all parts, and the text files, are those written at the split.

    Raises:
        CascadeError: a file is missing, was changed, or can't be read.
    """
    for part in cascade.parts:
        _check_part(cascade, part)
    try:
        check_unchanged(cascade, cascade.manifest.text_files)
    except RunError as error:
        raise CascadeError(str(error), hint=error.hint) from None


def check_if_part(model: Path) -> None:
    """Check the files of a model that is a part of a cascade by a manifest beside it, as `check_files` does."""
    for path in (model.with_name(MANIFEST), *sorted(model.parent.glob(f"*.{MANIFEST}"))):
        with suppress(RecordError):
            cascade = Cascade(path, read_manifest(path))
            for part in cascade.parts:
                if part.file == model.name:
                    _check_part(cascade, part)


def _check_part(cascade: Cascade, part: Part) -> None:
    for problem in wrong_sizes(cascade, part):
        raise CascadeError(problem, hint=COPY_HINT)
    try:
        check_unchanged(cascade, part.contents)
    except RunError as error:
        raise CascadeError(str(error), hint=error.hint) from None


def check_unchanged(
    cascade: Cascade, contents: Mapping[Any, str] | Mapping[str, str | DataFile]
) -> dict[Path, FileVersion]:
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
