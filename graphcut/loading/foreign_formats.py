"""Files of other formats that are given instead of an ONNX model: what they are, and what to do."""

import zipfile
from pathlib import Path

import msgspec

from ..core.errors import ModelError
from ..core.records import table


class _Formats(msgspec.Struct):
    """What `foreign_formats.toml` says."""

    signatures: tuple[tuple[int, str, str], ...]
    formats: dict[str, tuple[str, str]]
    suffixes: dict[str, str]


def refuse_foreign(path: Path) -> None:
    """Raise a ModelError that names the format of a file that is no ONNX model, by its first bytes or its suffix."""
    with path.open("rb") as file:
        head = file.read(512)
    known = table("loading/foreign_formats.toml", _Formats)
    signed = (kind for start, mark, kind in known.signatures if head[start:].startswith(mark.encode("latin-1")))
    found, by_name = next(signed, ""), known.suffixes.get(path.suffix.lower(), "")
    if found == "zip":
        found = _in_archive(path) or by_name or found
    elif not found and head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        found = "text"
    if found := found or by_name:
        what, hint = known.formats[found]
        raise ModelError(f"{path} is {what}, not an ONNX model", hint=hint)


def _in_archive(path: Path) -> str:
    """The format of what is in an archive; empty if it is none of these."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # it is damaged
        names = []
    if any(name.endswith("data.pkl") for name in names):
        return "pytorch"
    if "model.weights.h5" in names or "config.json" in names:
        return "keras"
    return ""
