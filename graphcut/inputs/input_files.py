"""Inputs read from a .npz file, a sound, or an ONNX test-data folder, and values near the defaults in a model."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from ..core.errors import GraphcutError, UsageError, check_names
from ..core.tensors import Tensors
from .sound import sound_inputs

if TYPE_CHECKING:
    from onnx import TensorProto

_NONE_KNOWN: Final[Tensors] = MappingProxyType({})
_WRITE_AGAIN: Final = "write it again with numpy.savez"


def load_readers(paths: Iterable[Path]) -> None:
    """Load the modules that `read_inputs` needs for `paths`."""
    if any(path.is_dir() for path in paths):
        import onnx  # noqa: F401


def read_inputs(path: Path, model_reads: Sequence[str], *, tensors: Tensors = _NONE_KNOWN) -> dict[str, object]:
    """The inputs that a file or folder holds, by name, in the order of the model; some may be missing.

    `path` is a .npz file whose arrays have the names of inputs; or a .wav file for the one input that hears (`sound`);
    or a folder of ONNX test data, with `input_0.pb`, `input_1.pb`, ... in the order `model_reads` of the model's
    inputs. Types and shapes are not checked; `tensors` are needed to read sequences and optionals from a folder. A
    GraphcutError if `path` does not exist or can't be read, a UsageError if it is of another kind, is damaged, or holds
    a name that is no input.
    """
    try:
        if path.suffix.lower() == ".wav":
            return sound_inputs(path, {name: tensors[name] for name in model_reads if name in tensors})
        found = _read_folder(path, model_reads, tensors) if path.is_dir() else _read_npz(path)
    except FileNotFoundError:
        hint = "inputs are a .npz file, or a folder with input_0.pb"
        raise GraphcutError(f"{path} does not exist", hint=hint) from None
    except OSError as error:
        raise GraphcutError(f"{path} can't be read: {error.strerror or error}", hint="check its permissions") from None
    check_names(found, model_reads, f"{path} holds", "its inputs:", ", which is no input of the model")
    return {name: found[name] for name in model_reads if name in found}


def _read_npz(path: Path) -> dict[str, object]:
    with path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise UsageError(f"{path} is not a .npz file", hint="write one with numpy.savez(path, **inputs)")
        try:
            with zipfile.ZipFile(opened) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                return {name: _array(path, archive, info, name) for name, info in members.items()}
        except (zipfile.BadZipFile, NotImplementedError, OverflowError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} can't be read: {error}", hint=_WRITE_AGAIN) from None


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> object:
    try:
        with archive.open(info) as member:
            _check_header(path, member, info, name)
            member.seek(0)
            return np.lib.format.read_array(member, allow_pickle=False)  # a pickle could run any code
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the readers of zip, deflate and numpy's headers raise all kinds
        raise UsageError(f"{path}: {name!r} can't be read: {error}", hint=_WRITE_AGAIN) from None


def _check_header(path: Path, member: IO[bytes], info: zipfile.ZipInfo, name: str) -> None:
    """Refuse an array of objects, and one whose header claims more values than the archive can hold."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if member.read(6) != np.lib.format.MAGIC_PREFIX:
        raise UsageError(f"{path}: {name!r} is not an array", hint=_WRITE_AGAIN)
    version = (*member.read(2),)
    if version not in read:
        raise ValueError(f"EOF, or an unknown version of the format: {version}")
    shape, _, dtype = read[version](member)
    if dtype.hasobject:
        message = f"{path}: {name!r} is a pickled array of Python objects, which could run any code and is not read"
        raise UsageError(message, hint="save words with dtype=str, and sequences as a folder of ONNX test data")
    claimed = prod(shape) * max(1, dtype.itemsize)
    held = min(info.file_size, path.stat().st_size * 1032)  # deflate makes data at most so many times smaller
    if claimed > held:
        raise ValueError(f"it claims {claimed:,} bytes, and the file holds {held:,} at most")


def _read_folder(path: Path, model_reads: Sequence[str], tensors: Tensors) -> dict[str, object]:
    matches = ((re.fullmatch(r"input_(\d+)\.pb", file.name), file) for file in path.iterdir())
    if not (numbered := {int(match[1]): file for match, file in matches if match}):
        raise UsageError(f"{path} holds no input_0.pb", hint="name the test_data_set_0 folder, or a .npz file")
    found: dict[str, object] = {}
    for number, file in sorted(numbered.items()):
        if number >= len(model_reads):
            message = f"{file} is input {number}, and the model has {len(model_reads)}, counted from 0"
            raise UsageError(message, hint=f"its inputs: {', '.join(model_reads) or 'none'}")
        name = model_reads[number]
        found[name] = _read_message(file, name, tensors[name].dtype if name in tensors else "")
    return found


def _read_message(file: Path, name: str, dtype: str) -> object:
    # onnx is imported here alone: a .npz file can be read where onnx is not installed.
    from google.protobuf.message import DecodeError
    from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper
    from onnx.numpy_helper import to_array, to_list

    from ..loading.subgraphs import is_external, tensors_in

    def to_optional(message: OptionalProto) -> object:
        # numpy_helper reads an empty optional with a declared type as a tensor without a type.
        has_value = any(field.name.endswith("_value") for field, _ in message.ListFields())
        return numpy_helper.to_optional(message) if has_value else None

    kinds: dict[str, Any] = {"sequence": (SequenceProto, to_list), "optional": (OptionalProto, to_optional)}
    kind, to_value = kinds.get(dtype.partition("(")[0], (TensorProto, to_array))
    try:
        message = kind.FromString(file.read_bytes())
        if any(map(is_external, tensors_in(message))):  # in any file of this machine
            text = f"{file} stores the values of input {name!r} in another file, which is not read"
            raise UsageError(text, hint="store them inside the message, in raw_data")
        value: object = to_value(message)
    except (DecodeError, ValueError, TypeError) as error:
        text = f"{file} can't be read as {dtype or 'a tensor'}, which input {name!r} is: {error}"
        raise UsageError(text, hint="are the files numbered in the order of the model's inputs?") from None
    return value


def near_default(default: TensorProto, random: np.random.Generator) -> Any:  # noqa: ANN401 - an array of any type
    """Values near a default: floats within 10 % of it; other types unchanged, since they may be shapes."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(default)
    if values.dtype.kind == "f":
        return np.asarray(values * random.uniform(0.9, 1.1, values.shape), values.dtype)
    return values
