"""What tells the files of parts that graphcut wrote from those of others: a field that ONNX does not have.

Readers of ONNX skip it, as protobuf says of unknown fields, and it is in no message that graphcut compares.
"""

import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import UsageError
from .wire_format import field_header

_FIELD: Final = (1 << 29) - 1  #: the largest number of a field, which a new version of ONNX would take last.
_DIGEST_BYTES: Final = 8


def mark_of(text_files: Mapping[Any, str]) -> bytes:
    """What follows the message in the file of a part: a field with the begin of a digest of those of its text files."""
    content = b"graphcut" + hashlib.sha256(msgspec.json.encode(sorted(text_files.items()))).digest()[:_DIGEST_BYTES]
    return field_header(_FIELD, len(content)) + content


MARK_BYTES: Final = len(mark_of({}))  #: the size of each mark.


def is_marked(file: Path, text_files: Mapping[Any, str] | None = None) -> bool:
    """Whether a file has a mark at its end; with `text_files` that for these."""
    mark = mark_of(text_files or {})
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - MARK_BYTES))
        found = stream.read()
    return found == mark if text_files is not None else found[:-_DIGEST_BYTES] == mark[:-_DIGEST_BYTES]


def may_read(model: Path, data: str) -> bool:
    """Whether the file of a model has the name of a data file in it, as that of a file in its folder."""
    name = data.encode()
    with model.open("rb") as stream:
        if not model.stat().st_size:
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return any(raw.find(before + name) >= 0 for before in (bytes([len(name) & 127]), b"/"))


def check_replaceable(data: Path, output: Path) -> None:
    """Raise a UsageError if a data file that is to be replaced is not the model's, or another one there may read it."""
    models = sorted({*data.parent.glob("*.onnx"), output.absolute()}) if data.exists() else []
    readers = [one for one in models if one.is_file() and may_read(one, data.name)]
    if other := next((one for one in readers if one.name != output.name), None):
        raise UsageError(f"{other} reads {data}, which would be replaced", hint="choose another name with `output`")
    if models and not readers:
        raise UsageError(f"{data} may be another's: no model there reads it", hint="move it away")
