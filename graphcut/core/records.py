"""Records in JSON files, each of a format that has a name and a version."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import DictType, NoneType, StructType, Type, UnionType, VarTupleType

from .errors import RecordError, validation_message

_Record = TypeVar("_Record", bound=msgspec.Struct)


def read_record(path: Path, kind: type[_Record], version: str, again: str, unread: str) -> _Record:
    """The record in a JSON file whose field `format` is `version`, else a RecordError.

    Its hint is `unread` for a file that can't be read, and `again` for one that holds something else. Of a later minor
    version, such as `graphcut.cascade/1.2`, it is what this version knows: other fields are left out.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}", hint=unread) from None
    hint = f"{again}, or use the version of graphcut that wrote it"
    try:
        found = msgspec.json.decode(raw)
        given = found.get("format") if isinstance(found, dict) else None
        (major, minor), (own_major, own_minor) = _version(str(given)), _version(version)
        if major == own_major and minor > own_minor:
            return msgspec.convert(_known(found, msgspec.inspect.type_info(kind)) | {"format": version}, kind)
        if major != own_major:
            what = f"the format {given!r}" if given else "no format"
            raise RecordError(f"{path} has {what}, and this version of graphcut reads {version!r}", hint=hint)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {validation_message(error)}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON: {error}", hint=hint) from None


def _version(text: str) -> tuple[str, int]:
    """The name of a format with its major version, and its minor version: 0 if it has none."""
    name, _, minor = text.rpartition(".")
    return (name, int(minor)) if "/" in name and re.fullmatch(r"[1-9]\d{0,8}", minor) else (text, 0)


def _known(value: Any, info: Type) -> Any:  # noqa: ANN401 - JSON
    """A value as decoded from JSON without the fields that its type does not have, at any depth."""
    match value, info:
        case dict(), StructType(fields=fields):
            return {one.name: _known(value[one.name], one.type) for one in fields if one.name in value}
        case dict(), DictType(value_type=inner):
            return {key: _known(item, inner) for key, item in value.items()}
        case list(), VarTupleType(item_type=inner):
            return [_known(item, inner) for item in value]
        case dict(), UnionType(types=(StructType() as record, NoneType())):
            return _known(value, record)
        case _:
            return value
