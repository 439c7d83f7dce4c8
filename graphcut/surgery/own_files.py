"""Which files graphcut can tell are its own: it deletes no others that only the name of a folder stands for."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..core.digests import file_digest
from ..core.errors import GraphcutError
from ..core.manifest import MANIFEST, SHARDED_FILE, Manifest, read_manifest
from ..loading.part_marks import is_marked, mark_of, may_read

_DATA_OF_RANK: Final = re.compile(r"part-(stage-\d+\.)?rank-\d+\.onnx\.data")
_PART_NAME: Final = re.compile(
    r"(.+\.)?part-(\d+(\.rank-\d+)?|(stage-\d+\.)?rank-\d+)\.onnx(\.data(-\d+-of-\d+|\.index\.json)?)?"
)


def index_of(part: str) -> str:
    """The file that says which weight of a part is in which of its data files."""
    return f"{part}.data.index.json"


def own_files(found: Manifest, manifest: Path) -> Iterator[Path]:
    """The manifest, and those of its files that graphcut wrote, since a manifest may name files of others.

    That is known of parts by their marks, of data files since such a part reads them, and of text files by their
    digests, of which a mark has a digest.
    """
    yield manifest
    root, prefix = manifest.parent, manifest.name.removesuffix(MANIFEST)

    def is_here(name: str) -> bool:
        return (root / name).resolve().parent == root and (root / name).is_file()

    named = (part for part in found.parts if _PART_NAME.fullmatch(part.file) and is_here(part.file))
    parts = [part for part in named if is_marked(root / part.file)]
    for part in parts:
        yield root / part.file
        for name in filter(is_here, part.data):
            is_of_rank = _DATA_OF_RANK.fullmatch(name.removeprefix(prefix))
            is_data = found.weights == "copy" and _PART_NAME.fullmatch(name)
            if (is_of_rank or is_data) and may_read(root / part.file, name):
                yield root / name
        if found.weights == "copy" and len(part.data) > 1:
            yield root / index_of(part.file)
    whole = f"{prefix}{SHARDED_FILE}"
    if any(part.rank is not None for part in parts) and is_here(whole) and is_marked(root / whole):
        yield root / whole
    if found.weights == "copy" and any(is_marked(root / part.file, found.text_files) for part in parts):
        texts = ((root / name, digest) for name, digest in found.text_files.items() if is_here(name))
        yield from (path for path, digest in texts if file_digest(path) == digest)


def mark(model: Path) -> None:
    """Mark the file of a model that graphcut wrote as its own."""
    with model.open("ab") as stream:
        stream.write(mark_of({}))


def is_own(file: Path) -> bool:
    """Whether graphcut wrote a file that belongs to an exported cascade.

    A model has its mark, and a marked model beside it reads a data file. A text file, or a part in ONNX Runtime's own
    format, has the digest that a manifest beside it gives.
    """
    if not file.is_file() or file.suffix == ".onnx":
        return file.is_file() and is_marked(file)
    if any(is_own(model) and may_read(model, file.name) for model in file.parent.glob("*.onnx")):
        return True
    with suppress(GraphcutError):
        found = read_manifest(file.with_name(MANIFEST))
        return (file.name, file_digest(file)) in {*found.text_files.items(), *((p.file, p.sha256) for p in found.parts)}
    return False
