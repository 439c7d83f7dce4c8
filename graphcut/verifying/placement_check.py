"""Whether the nodes of each part are taken by the provider of its device."""

from dataclasses import dataclass
from typing import Final

from ..core.errors import RunError
from ..core.manifest import COMPILED, Cascade
from ..core.units import count
from ..loading.model import Model
from ..running.device_memory import OF_CPU, device_memory
from ..running.placement import place_part
from ..running.providers import CPU, computed_type, entries


@dataclass(frozen=True)
class PlacementCheck:
    """What was found of the parts of devices with another provider than the CPU's."""

    objections: tuple[str, ...] = ()  #: parts that can't be opened, or have nodes that the provider does not take.
    gap: str = ""  #: why parts were not checked.
    held: str = ""  #: how many were, and hold.
    providers: tuple[str, ...] = ()  #: those on which the parts run to be compared, besides the CPU's.
    computes: str = ""  #: the coarsest type in which these compute float32; empty if that of one is not known.


NOT_PLACED: Final = PlacementCheck()
_COARSEST: Final = ("", "bfloat16", "float16", "tf32", "float32")  #: types that providers compute in.


def check_placement(model: Model, cascade: Cascade) -> PlacementCheck:
    """Open each such part with its provider, in a process of its own, and read back where its nodes went.

    Sizes are fixed where a run fixes them. Nodes of the model that compute sizes may go to the CPU beside a GPU. A
    RunError if a compiled part can't be opened here, since it can't be run then.
    """
    placed = [(part, one) for part in cascade.parts if (one := cascade.settings(part)).provider != CPU]
    try:
        found = [place_part(cascade, part) for part, _ in placed]
    except RunError as error:
        if any(part.file.endswith(COMPILED) for part, _ in placed):
            raise
        return PlacementCheck(gap=f"where nodes run was not checked: {error}")
    objections, sizes = [], model.graph.names(model.graph.size_nodes)
    for (part, one), answer in zip(placed, found, strict=True):
        besides = () if device_memory(one.provider, {}) == OF_CPU else sizes
        if text := answer.objection(one.provider, besides):
            objections.append(f"{part.place} on {one.provider}: {text}")
    if objections:
        return PlacementCheck(tuple(objections))
    held = f"the nodes of {count(len(placed), 'part')} run where they were planned" if placed else ""
    types = (computed_type(one.provider, entries(one.provider_options)) for _, one in placed)
    computes, names = min(types, key=_COARSEST.index, default=""), dict.fromkeys(one.provider for _, one in placed)
    return PlacementCheck(held=held, providers=tuple(names), computes=computes)
