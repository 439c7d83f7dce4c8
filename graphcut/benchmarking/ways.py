"""The ways to run a model or its cascade that `bench` measures. Imports no ONNX Runtime, so that help is fast."""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..core.records import table

CORES: Final = os.cpu_count() or 1

BASELINE: Final = "whole"  #: the way that the others are compared with.


class Way(NamedTuple):
    """A way to run a model: its title in a table of results, and a line for a list of all ways."""

    title: str
    description: str


WAYS: Final[Mapping[str, Way]] = {
    name: Way(title.format(cores=CORES), description)
    for name, (title, description) in table("benchmarking/ways.json", dict[str, Way]).items()
}
"""The ways that `bench` measures, by their names."""
