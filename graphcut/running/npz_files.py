"""Outputs into a .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..core.atomic_files import replacing
from ..core.errors import RunError


def save_outputs(outputs: Mapping[str, object], path: Path) -> None:
    """Write `outputs` to `path`, whole or not at all; strings as numpy's fixed-width text.

    Not by `numpy.savez`, which takes names as keywords and so has none of its own left for an output called `file`.

    Raises:
        RunError: an output is a sequence, a map or nothing, for which the format has no place; or the disk refuses.
    """
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise RunError(
                f"output {name!r} is a {type(value).__name__}, and a .npz file holds arrays alone",
                hint="run the cascade from Python: graphcut.run gives it back as it is",
            )
    try:
        with replacing(path) as new, zipfile.ZipFile(new, "w", allowZip64=True) as archive:
            for name, value in outputs.items():
                array = np.asarray(value)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    plain = array.astype(str) if array.dtype.kind == "O" else array
                    np.lib.format.write_array(member, plain, allow_pickle=False)
    except OSError as error:
        raise RunError(
            f"{path} can't be written: {error.strerror or error}", hint="is there such a folder, and room in it?"
        ) from None
