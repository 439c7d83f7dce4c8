"""One model written to a file: its weights go into the file, into `OUTPUT.data`, or stay where they are."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Final

import onnx
from onnx import ModelProto, TensorProto

from ..core.arguments import Storage
from ..core.atomic_files import mend, replace_files, scratch_folder, write_errors
from ..core.errors import UsageError, check_word
from ..core.file_checks import check_parts
from ..loading.external_data import ByteRange, Columns, FileLayout, lay_out, read_values, refer_to_file, write_data
from ..loading.model import Model, range_in
from ..loading.opening import load
from ..loading.part_marks import check_replaceable
from ..loading.subgraphs import FIRST_IR_WITH_DEFAULTS, is_external, locations_in, remove_named, tensors_in
from ..loading.wire_format import large_bytes

INLINE_BYTES: Final = 64 << 20  #: weights of at most this size together are written into the model file.

Pieces = Sequence[tuple[TensorProto, ByteRange | Columns]]  #: external tensors, and where their values are.


def data_file(output: Path) -> Path:
    """The data file of a model file."""
    return output.with_name(f"{output.name}.data")


def place_of(model: Model, output: str | Path | None, suffix: str, weights: Storage) -> Path:
    """`output`; by default `STEM` and this suffix in the current folder, or beside a model whose weights are shared."""
    folder = model.path.parent if weights == "share" else Path()
    return folder / f"{model.stem}{suffix}" if output is None else Path(output)


def check_targets(output: Path, sources: Sequence[Path], *, force: bool) -> None:
    """Check that a model and its data file can be written; what a killed run left there is removed first.

    A UsageError if one is in `sources`, which are read, or is a folder, or exists, unless `force` is given; a
    CascadeError if one of `sources` is a part that was changed.
    """
    check_parts(sources)
    mend(output.absolute().parent, output.name)
    read = {source.resolve() for source in sources}
    for target in (output, data_file(output)):
        if target.resolve() in read:
            raise UsageError(f"{target} is also to be read", hint="choose another name with `output`")
        if target.is_dir():
            raise UsageError(f"{target} is a folder", hint="name a file with `output`")
        if target.exists() and not force:
            raise UsageError(f"{target} already exists", hint="choose another name with `output`, or add `force=True`")


def check_sharing(model: Model, folder: Path) -> None:
    """Raise a UsageError if a model in `folder` can't refer to the weights of another one where they are."""
    home = model.path.absolute().parent.resolve()
    hint = f"choose a place in {home}, or copy the weights with `weights='copy'`"
    if model.temporary_folder is not None:
        raise UsageError("a model given in memory has no weights to share", hint="copy them, or load it by its path")
    if folder.resolve() != home:
        raise UsageError(f"what shares weights must be in the folder of {model.path.name}, not in {folder}", hint=hint)
    for file, _ in model.data.values():
        if not file.resolve().is_relative_to(home):
            raise UsageError(f"the weights in {file} are behind a symbolic link, so they can't be shared", hint=hint)


def checked_home(model: Model, output: Path, weights: Storage, *, force: bool) -> Path | None:
    """The folder of the weights that a model at `output` is to share with another one; None if it has copies.

    The errors are those of `check_sharing` and `check_targets`.
    """
    check_word(weights, Storage, "weights")
    if weights == "share":
        check_sharing(model, output.absolute().parent)
    check_targets(output, model.files, force=force)
    return model.path.parent if weights == "share" else None


def place_values(pieces: Pieces, name: str, *, home: Path | None = None, inline_bytes: int = -1) -> FileLayout:
    """The data file `name` with the values of tensors, which refer to it afterwards.

    With `home`, the folder of the new model, ranges of files stay where they are, there or below, and the data file has
    only the columns. Without it everything is copied, into the messages if it takes at most `inline_bytes`. Small
    values that are in a file stay in one: the digest of the graph counts values in messages.
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
            read_values(tensor, piece)
        return lay_out([])
    for tensor, piece in pieces:
        refer_to_file(tensor, name, layout.offset_of(piece), piece.length)
    return layout


def write_model(
    output: Path, model: ModelProto, pieces: Pieces, *, home: Path | None = None, is_inline: bool = True, force: bool
) -> None:
    """Write a model, and its data file if it has one: both or neither. A GraphcutError if writing fails.

    `home` is as for `place_values`. Without `is_inline` even few values are in the data file.
    """
    data, folder = data_file(output), output.absolute().parent
    layout = place_values(pieces, data.name, home=home, inline_bytes=INLINE_BYTES if is_inline else -1)
    with write_errors(output), scratch_folder(folder, output.name) as scratch:
        new = scratch / "new"
        new.mkdir()
        if layout.file_bytes:
            check_replaceable(data.absolute(), output)
            write_data(layout, new / data.name, has_digest=False)
        (new / output.name).write_bytes(model.SerializeToString(deterministic=True))
        # A data file that is not replaced stays: other models may read it, from other folders, too.
        old = [*([data.absolute()] if layout.file_bytes else []), output.absolute()] if force else []
        replace_files(scratch, folder, last=output.name, old=old)


def copy_ranges(source: Path, ranges: Iterable[tuple[int, int]], size_bytes: int, target: Path) -> None:
    """Write a file of `size_bytes` that has these ranges of bytes of `source`, each (offset, length), and holes."""
    copies = tuple((ByteRange(source, offset, length), offset) for offset, length in ranges)
    write_data(FileLayout(copies, size_bytes), target, has_digest=False)


def make_constants(model: ModelProto) -> bool:
    """Make constants of inputs that have a value, which nobody can feed afterwards; returns whether there were any."""
    given = {tensor.name for tensor in model.graph.initializer}.intersection(value.name for value in model.graph.input)
    remove_named(model.graph.input, given)
    model.ir_version = max(model.ir_version, FIRST_IR_WITH_DEFAULTS)
    return bool(given)


def save_with_constants(source: Path, target: Path) -> Path:
    """A model file whose weights are no inputs: `target`, written if IR 3 made inputs of all of them, else `source`."""
    proto = onnx.load(source, load_external_data=False)
    if proto.ir_version >= FIRST_IR_WITH_DEFAULTS:
        return source
    make_constants(proto)
    onnx.load_external_data_for_model(proto, str(source.parent))
    onnx.save(proto, target)
    return target


def write_together(
    output: Path,
    models: Sequence[Model],
    join: Callable[[Sequence[ModelProto]], ModelProto],
    *,
    force: bool,
    also_read: Sequence[Path] = (),
) -> Model:
    """Write the model that `join` makes of the messages of others, and open it. It is given copies.

    The errors are those of `check_targets` and `write_model`.
    """
    check_targets(output, [*also_read, *(file for model in models for file in model.files)], force=force)
    protos = [deepcopy(model.proto) for model in models]
    # Locations that no two models share.
    data = {f"{i}/{place}": file for i, model in enumerate(models) for place, file in model.data.items()}
    for i, proto in enumerate(protos):
        for place in locations_in(proto):
            place.value = f"{i}/{place.value}"
    joined = join(protos)
    pieces = [(tensor, range_in(data, tensor)) for tensor in tensors_in(joined) if is_external(tensor)]
    write_model(output, joined, pieces, force=force)
    return load(output)
