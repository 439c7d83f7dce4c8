"""Which files graphcut can tell are its own: it deletes no others that only the name of a folder stands for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..core.digests import file_digest
from ..core.manifest import MANIFEST, SHARDED_FILE, Manifest
from ..loading.part_marks import is_marked, may_read

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
        index = index_of(part.file)
        is_divided = found.weights == "copy" and len(part.data) > 1 and is_here(index)
        if is_divided and all(name.encode() in (root / index).read_bytes() for name in part.data):
            yield root / index
    whole = f"{prefix}{SHARDED_FILE}"
    if any(part.rank is not None for part in parts) and is_here(whole) and is_marked(root / whole):
        yield root / whole
    if found.weights == "copy" and any(is_marked(root / part.file, found.text_files) for part in parts):
        texts = ((root / name, digest) for name, digest in found.text_files.items() if is_here(name))
        yield from (path for path, digest in texts if file_digest(path) == digest)
