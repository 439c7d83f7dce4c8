"""One model written to a file: its weights go into the file, into `OUTPUT.data`, or stay where they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from onnx import ModelProto, TensorProto

from ..core.atomic_files import mend, replace_files, scratch_folder
from ..core.errors import GraphcutError, UsageError
from ..loading.external_data import (
    ByteRange,
    Columns,
    FileLayout,
    lay_out,
    read_columns,
    read_values,
    refer_to_file,
    write_data,
)
from ..loading.model import Model
from ..loading.subgraphs import is_external, tensors_in
from ..loading.wire_format import large_bytes

INLINE_BYTES: Final = 64 << 20
"""Weights of at most this size together are written into the model file."""

Storage = Literal["copy", "share"]
Pieces = Sequence[tuple[TensorProto, ByteRange | Columns]]
"""External tensors, and where their values are."""


def data_file(output: Path) -> Path:
    """The data file of a model file."""
    return output.with_name(f"{output.name}.data")


def check_targets(output: Path, sources: Sequence[Path], *, force: bool) -> None:
    """Check that a model and its data file can be written; what a killed run left there is removed first.

    Raises:
        UsageError: one is in `sources`, which are read, or is a folder, or exists, unless `force` is given.
    """
    mend(output.absolute().parent, output.name)
    read = {source.resolve() for source in sources}
    for target in (output, data_file(output)):
        if target.resolve() in read:
            raise UsageError(f"{target} is also to be read", hint="choose another name with -o")
        if target.is_dir():
            raise UsageError(f"{target} is a folder", hint="name a file with -o")
        if target.exists() and not force:
            raise UsageError(f"{target} already exists", hint="choose another name with -o, or add --force")


def check_sharing(model: Model, folder: Path) -> None:
    """Check that a model in `folder` can refer to the weights of another one where they are.

    Raises:
        UsageError: it can't.
    """
    hint = "choose a name in that folder, or copy the weights: --weights copy"
    home = model.path.absolute().parent.resolve()
    if model.temporary_folder is not None:
        raise UsageError("the model was given in memory, so it has no weights to share", hint="copy the weights")
    if folder.resolve() != home:
        raise UsageError(f"a model that shares weights must be in the folder of {model.path.name}", hint=hint)
    for file, _ in model.data.values():
        if not file.resolve().is_relative_to(home):
            raise UsageError(f"the weights in {file} are behind a symbolic link, so they can't be shared", hint=hint)


def files_of(model: Model) -> list[Path]:
    """The files of a model: its own, and those with its weights."""
    return [model.path, *(file for file, _ in model.data.values())]


def make_locations_unique(
    models: Sequence[ModelProto], data: Sequence[Mapping[str, tuple[Path, int]]]
) -> dict[str, tuple[Path, int]]:
    """The data files of all models, by locations that are unique. Changes the locations in the messages."""
    found = {f"{i}/{location}": file for i, files in enumerate(data) for location, file in files.items()}
    for i, model in enumerate(models):
        for tensor in filter(is_external, tensors_in(model)):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = f"{i}/{entry.value}"
    return found


def place_values(pieces: Pieces, name: str, *, home: Path | None = None, inline_bytes: int = -1) -> FileLayout:
    """The data file with the values of tensors, which refer to it afterwards.

    Args:
        pieces: the tensors.
        name: the name of the data file.
        home: the folder of the new model. Ranges of files stay where they are, in this folder or below, and the data
            file has only the columns. None: everything is copied.
        inline_bytes: if what is copied takes at most so much, it is put into the messages. Small values that are in a
            file stay in one: the digest of the graph counts values in messages.
    """
    if home is not None:
        for tensor, piece in pieces:
            if isinstance(piece, ByteRange):
                refer_to_file(tensor, piece.file.relative_to(home).as_posix(), piece.offset, piece.length)
        pieces = [pair for pair in pieces if isinstance(pair[1], Columns)]
    layout = lay_out(piece for _, piece in pieces)
    is_large = all(piece.length >= large_bytes(tensor.data_type) for tensor, piece in pieces)
    if home is None and layout.file_bytes <= inline_bytes and (is_large or not layout.file_bytes):
        for tensor, piece in pieces:
            put_inside(tensor, piece)
        return lay_out([])
    for tensor, piece in pieces:
        refer_to_file(tensor, name, layout.offset_of(piece), piece.length)
    return layout


def put_inside(tensor: TensorProto, piece: ByteRange | Columns) -> None:
    """Put values into the message of their tensor."""
    if isinstance(piece, ByteRange):
        read_values(tensor, piece)
        return
    tensor.ClearField("data_location")
    del tensor.external_data[:]
    tensor.raw_data = b"".join(part.tobytes() for _, part in read_columns([piece]))


def write_model(output: Path, model: ModelProto, layout: FileLayout, *, force: bool) -> None:
    """Write a model, and its data file if it has one: both or neither.

    Raises:
        GraphcutError: writing failed.
    """
    data, folder = data_file(output), output.absolute().parent
    try:
        with scratch_folder(folder, output.name) as scratch:
            new = scratch / "new"
            new.mkdir()
            if layout.file_bytes:
                write_data(layout, new / data.name, has_digest=False)
            (new / output.name).write_bytes(model.SerializeToString(deterministic=True))
            old = [data.absolute(), output.absolute()] if force else []
            replace_files(scratch, folder, last=output.name, old=old)
    except OSError as error:
        raise GraphcutError(
            f"writing {output} failed: {error.strerror or error}", hint="nothing was changed"
        ) from error
