"""Writing outputs to a .npz file."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..core.atomic_files import replacing, write_errors
from ..core.errors import RunError


def save_outputs(outputs: Mapping[str, object], path: Path) -> None:
    """Write arrays to `path`, whole or not at all. Strings become numpy's fixed-width text.

    `numpy.savez` takes names as keyword arguments, and so can't write an output named `file`.

    Raises:
        RunError: an output is no array.
        GraphcutError: writing failed.
    """
    hint = "does its folder exist, with free space?"
    with write_errors(path, hint), replacing(path) as new, zipfile.ZipFile(new, "w") as archive:
        for name, value in outputs.items():
            if not isinstance(value, np.ndarray):
                message = f"output {name!r} is a {type(value).__name__}, and a .npz file can hold arrays only"
                raise RunError(message, hint="run the cascade from Python: graphcut.run returns it as it is")
            plain = value.astype(str) if value.dtype.kind == "O" else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)
