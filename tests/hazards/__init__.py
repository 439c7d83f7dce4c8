"""Tiny models that each carry one hazard for whoever cuts them.

A theme is a file, and a hazard is a public function of it that builds one model:

    for name, build in HAZARDS.items():
        hazard = build()
        path = hazard.write(folder)
        ...  # cut the model at path at hazard.cut, and load the parts
        assert hazard.objections(parts) == []
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction
from types import ModuleType

from . import (
    boundary_shapes,
    boundary_types,
    captures,
    constants,
    external_data,
    functions,
    initializers,
    interface,
    metadata,
    numerics,
    structure,
)
from .hazard import Hazard

__all__ = ["HAZARDS", "Hazard"]

THEMES = (
    captures,
    initializers,
    external_data,
    constants,
    functions,
    boundary_types,
    boundary_shapes,
    structure,
    interface,
    numerics,
    metadata,
)


def _hazards_of(theme: ModuleType) -> Iterator[tuple[str, Callable[[], Hazard]]]:
    for name, member in vars(theme).items():
        if isfunction(member) and member.__module__ == theme.__name__ and not name.startswith("_"):
            yield name, member


HAZARDS: dict[str, Callable[[], Hazard]] = {name: build for theme in THEMES for name, build in _hazards_of(theme)}
