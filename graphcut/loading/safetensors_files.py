"""Where the tensors of a safetensors checkpoint are: the headers of its files are read, and no values.

A file is 8 bytes with the length of the header, the header (JSON: the type, shape and byte range of each tensor), and
the values. https://github.com/huggingface/safetensors#format
"""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ..core.errors import ModelError
from .external_data import ByteRange

_MAX_HEADER_BYTES: Final = 100_000_000  #: the limit of the safetensors library.


class _Entry(msgspec.Struct):
    """What a header says of a tensor."""

    dtype: str
    data_offsets: tuple[int, int]


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint."""

    name: str
    dtype: str  #: in the words of the format: `F32`, `BF16`, …
    span: ByteRange  #: where its values are.


def read_checkpoint(path: Path) -> list[SavedTensor]:
    """The tensors of a .safetensors file, or of all in a folder. An index is not needed: each file lists its tensors.

    A ModelError if there is no such file, or if one is truncated or not safetensors.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        missing = path / "*.safetensors" if path.is_dir() else path
        raise ModelError(f"there is no file {missing}", hint="name the folder of a Hugging Face model, or its file")
    try:
        return [tensor for file in files for tensor in _tensors(file)]
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}", hint="check its permissions") from None


def _tensors(file: Path) -> list[SavedTensor]:
    hint = "it is truncated, or another kind of file; download it again"
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        begin = 8 + header_bytes
        if begin > file_bytes or header_bytes > _MAX_HEADER_BYTES:
            raise ModelError(f"{file} has {file_bytes:,} bytes, and its header would have {header_bytes:,}", hint=hint)
        raw = stream.read(header_bytes)
    try:
        header = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{file} is not a safetensors file: {error}", hint=hint) from None
    found = []
    for name, entry in entries.items():
        first, end = entry.data_offsets
        if not 0 <= first <= end <= file_bytes - begin:
            where = f"bytes {first:,} to {end:,} of {file_bytes - begin:,}"
            raise ModelError(f"{file} says that {name!r} is {where}", hint=hint)
        found.append(SavedTensor(name, entry.dtype, ByteRange(file, begin + first, end - first)))
    return found
