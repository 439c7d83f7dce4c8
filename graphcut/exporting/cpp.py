"""Export a cascade for C++: its files, and a header that runs them with ONNX Runtime's C++ API."""

from importlib import resources
from pathlib import Path

from ..core.atomic_files import Content, write_folder
from ..core.manifest import CascadeLike, open_cascade
from .cascade_files import PARTS, cascade_files


def export_cpp(cascade: CascadeLike, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write a cascade beside `cascade.hpp`, which runs it in a C++ program."""
    files: dict[str, Content] = {
        **cascade_files(open_cascade(cascade), for_each="the folder must hold all that the program reads"),
        "cascade.hpp": resources.files(__package__).joinpath("cascade.hpp").read_bytes(),
    }
    return write_folder(folder, files, own=(PARTS,), what="a file of such an export", force=force)
