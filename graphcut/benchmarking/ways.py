"""The ways to run a model or its cascade that `bench` measures. Imports no ONNX Runtime, so that help is fast."""

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..core.records import table

CORES: Final = os.cpu_count() or 1

BASELINE: Final = "whole"  #: the way that the others are compared with.


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run a model."""

    title: str  #: its title in a table of results.
    description: str  #: a line for a list of all ways.
    runner: str  #: the function of `contender` that loads the model or the cascade.
    session: dict[str, Any] = {}  #: how its sessions differ from those of graphcut.
    options: dict[str, Any] = {}  #: what the function is given besides.


WAYS: Final[Mapping[str, Way]] = {
    name: replace(way, title=way.title.format(cores=CORES))
    for name, way in table("benchmarking/ways.json", dict[str, Way]).items()
}
"""The ways that `bench` measures, by their names."""
