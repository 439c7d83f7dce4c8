"""The files beside a language model that say how text becomes tokens."""

from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from ...core.errors import RecordError
from ...core.manifest import TextFile

_Content = TypeVar("_Content")


def text_files(folder: Path) -> tuple[TextFile, ...]:
    """The names of such files in a folder."""
    return tuple(name for name in get_args(TextFile) if (folder / name).is_file())


def read_json(path: Path, kind: type[_Content]) -> _Content:
    """The content of a JSON file.

    Raises:
        RecordError: it can't be read, or is of another kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path} can't be read: {why}", hint="take the file of the model") from None
