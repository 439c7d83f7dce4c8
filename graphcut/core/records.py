"""Records in JSON files, each of a format that has a name and a version; what goes wrong with others; sizes in text.

And the tables of the package itself, which are data: TOML or JSON files beside the modules that read them.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.inspect import DictType, NoneType, StructType, Type, UnionType, VarTupleType

from .errors import RecordError, UsageError, validation_message
from .units import given_bytes, parse_bytes

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Table = TypeVar("_Table")
_MAKERS: Final = {"cascade": "split", "plan": "save_plan"}  #: what writes files that are named for each other.
_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)  #: how editors say that text is Unicode.


def as_json(record: object) -> bytes:
    """A record as the content of a JSON file, a line for each value."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def read_record(path: Path, kind: type[_Record], version: str, again: str, unread: str) -> _Record:
    """The record in a JSON file whose field `format` is `version`, else a RecordError; a UsageError for a model.

    The hint of a RecordError is `unread` for a file that can't be read, and `again` for one that holds something else.
    Of a later minor version, such as `graphcut.cascade/1.2`, it is what this version knows: other fields are left out.
    """
    if path.suffix.lower() == ".onnx" and path.is_file():
        _check_kind(path, "model", version)
    hint = f"{again}, or use the version of graphcut that wrote it"
    with reading(path, "JSON", unread=unread, hint=hint):
        raw = path.read_bytes()
        if raw.startswith(_MARKS):
            message = f"{path} is not JSON: it begins with a byte order mark"
            raise RecordError(message, hint="save it as UTF-8 without such a mark")
        found = msgspec.json.decode(raw)
        given = found.get("format") if isinstance(found, dict) else None
        (major, minor), (own_major, own_minor) = _version(str(given)), _version(version)
        if major == own_major and minor > own_minor:
            return msgspec.convert(_known(found, msgspec.inspect.type_info(kind)) | {"format": version}, kind)
        if major == own_major:
            return msgspec.json.decode(raw, type=kind)
    _check_kind(path, str(given), version)
    what = f"the format {given!r}" if given else "no format"
    raise RecordError(f"{path} has {what}, and this version of graphcut reads {version!r}", hint=hint)


def _check_kind(path: Path, given: str, version: str) -> None:
    """A UsageError for a plan or a model, by its format, where a cascade is read, or the other way round."""
    given, wanted = (text.removeprefix("graphcut.").partition("/")[0] for text in (given, version))
    if wanted in _MAKERS and given in {"model", *_MAKERS} - {wanted}:
        raise UsageError(f"{path} is a {given}, not a {wanted}", hint=f"`{_MAKERS[wanted]}(...)` makes one")


@contextmanager
def reading(
    path: Path, form: str, *, unread: str, hint: str, fields_hint: Callable[[str], str] = lambda _: ""
) -> Iterator[None]:
    """What goes wrong where a file of a form such as `JSON` is read and decoded becomes a RecordError.

    Its hint is `unread` for a file that can't be read, else `hint`; for a wrong field what `fields_hint` gives for the
    message, if that is anything.
    """
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}", hint=unread) from None
    except UsageError as error:
        raise RecordError(f"{path}: {error}", hint=error.hint) from None
    except msgspec.ValidationError as error:
        message = validation_message(error)
        raise RecordError(f"{path}: {message}", hint=fields_hint(message) or hint) from None
    except (msgspec.DecodeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not {form}: {error}", hint=hint) from None


def json_beside(path: Path, kind: Any = dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The content of a JSON file beside a model, of a kind; a RecordError if it can't be read."""
    with reading(path, "JSON", unread="take the file of the model", hint="take the file of the model"):
        return msgspec.convert(json.loads(path.read_bytes()), kind)  # Python writes Infinity, which JSON does not have


def table(file: str, kind: type[_Table]) -> _Table:
    """The content of a file of the package, such as `inputs/sizes.toml`, as a kind.

    It is JSON if it is read when the command starts: TOML takes two milliseconds more.
    """
    return msgspec.convert(_content(file), kind, str_keys=True)


@cache
def _content(file: str) -> Any:  # noqa: ANN401 - TOML or JSON
    decode = msgspec.json.decode if file.endswith(".json") else msgspec.toml.decode
    return decode(Path(__file__).parents[1].joinpath(file).read_bytes())


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


def with_sizes(found: Any, place: str = "") -> Any:  # noqa: ANN401 - the content of a file; msgspec checks it next
    """`found` with sizes in text as numbers: the values of keys that contain "bytes". `place` is where it is."""
    if isinstance(found, list):
        return [with_sizes(value, f"{place}[{i}]") for i, value in enumerate(found)]
    if isinstance(found, dict):
        return {key: with_sizes(value, f"{place}.{key}".lstrip(".")) for key, value in found.items()}
    if "bytes" not in place.rpartition(".")[2]:
        return found
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if not isinstance(found, str):
        return found
    try:
        return parse_bytes(found.removesuffix("/s")) if place.endswith("_per_s") else given_bytes(found)
    except UsageError as error:
        raise UsageError(f"{place}: {error}", hint=error.hint) from None
