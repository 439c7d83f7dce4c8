"""Export a cascade for ONNX Runtime on Android and iOS: each part in its ORT format.

    part-0.ort, ...                       the parts with their weights, by ONNX Runtime's own converter
    cascade.json                          the manifest, with these files
    required_operators_and_types.config   the operators that a reduced build of ONNX Runtime must have

The format is that of the ONNX Runtime that is installed here.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from ..core.atomic_files import Content
from ..core.digests import file_digest
from ..core.errors import GraphcutError
from ..core.file_checks import check_files
from ..core.manifest import MANIFEST, Cascade, save_manifest
from ..surgery.model_files import save_with_constants
from .cascade_files import Export

OPERATORS: Final = "required_operators_and_types.config"


def export_of(cascade: Cascade) -> Export:
    """The parts in ORT format, with what is known of their use on phones."""
    check_files(cascade)
    # Written in this order: the last two read the parts that were written before.
    files: dict[str, Content] = {f"{part.name}.ort": partial(_convert, cascade.file(part)) for part in cascade.parts}
    files |= {name: cascade.root / name for name in cascade.manifest.text_files}
    files |= {OPERATORS: partial(_write_operators, cascade), MANIFEST: partial(_write_manifest, cascade)}
    return files


@contextmanager
def _tool(file: Path) -> Iterator[None]:
    """Run a tool of ONNX Runtime, which prints and logs, on a file."""
    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except OSError:
        raise  # such as a full disk: it is no matter of the format
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        if "Failed to save ORT format model" in reason:
            what = f"ONNX Runtime can't write {file} in its own format, so the disk is full or can't be written"
            raise GraphcutError(what, hint="choose another disk with `output`; nothing was changed") from error
        hint = "a part in ORT format holds its weights and ends at 2 GiB: split the model into smaller parts"
        raise GraphcutError(f"ONNX Runtime can't convert {file}: {reason}", hint=hint) from error


def _convert(source: Path, target: Path) -> None:
    from onnxruntime.tools import convert_onnx_models_to_ort as tool

    with _tool(source), TemporaryDirectory() as folder:
        # Where every weight is an input, the converter would keep the inputs of those that it has put into others.
        source = save_with_constants(source, Path(folder, source.name))
        style = [tool.OptimizationStyle.Fixed]
        tool.convert_onnx_models_to_ort(source, target.parent, style, target_platform="arm", enable_type_reduction=True)
    target.with_suffix(f".{OPERATORS}").unlink()  # there is one for all parts


def _write_operators(cascade: Cascade, target: Path) -> None:
    from onnxruntime.tools.ort_format_model import create_config_from_models

    with _tool(cascade.path):
        parts = [target.with_name(f"{part.name}.ort") for part in cascade.parts]
        create_config_from_models(parts, target, enable_type_reduction=True)
    # The comments name temporary files.
    lines = target.read_text("utf-8").splitlines(keepends=True)
    target.write_text("".join(line for line in lines if not line.startswith("#")), "utf-8")


def _write_manifest(cascade: Cascade, target: Path) -> None:
    made = ((part, target.with_name(f"{part.name}.ort")) for part in cascade.parts)
    parts = tuple(replace(part, file=file.name, sha256=file_digest(file), data={}) for part, file in made)
    save_manifest(replace(cascade.manifest, weights="copy", parts=parts), target)
