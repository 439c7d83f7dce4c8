"""Export a cascade for C++: its files, and a header that runs them with ONNX Runtime's C++ API."""

from importlib import resources

from ..core.manifest import Cascade
from .cascade_files import Export, cascade_files


def export_of(cascade: Cascade) -> Export:
    """A cascade beside `cascade.hpp`, which runs it in a C++ program."""
    files = cascade_files(cascade, for_each="the folder must hold all that the program reads")
    return {**files, "cascade.hpp": resources.files(__package__).joinpath("cascade.hpp").read_bytes()}
