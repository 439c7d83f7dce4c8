"""Whether the nodes of each part are taken by the provider of its device."""

from dataclasses import dataclass
from typing import Final

from ..core.errors import RunError
from ..core.manifest import Cascade, Part
from ..core.units import count
from ..loading.opening import load
from ..running.placement import place_part
from ..running.providers import CPU, computed_type, entries, is_gpu


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


def check_placement(cascade: Cascade) -> PlacementCheck:
    """Open each such part with its provider, in a process of its own, and read back where its nodes went.

    Sizes are fixed where a run fixes them.
    """
    placed = [(part, one) for part in cascade.parts if (one := cascade.settings(part)).provider != CPU]
    try:
        found = [place_part(cascade, part) for part, _ in placed]
    except RunError as error:
        return PlacementCheck(gap=f"where nodes run was not checked: {error}")
    answers = ((part, one.provider, answer) for (part, one), answer in zip(placed, found, strict=True))
    said = (
        (f"{part.place} on {name}", one.objection(name, _sizes(cascade, part, name))) for part, name, one in answers
    )
    if objections := tuple(f"{where}: {text}" for where, text in said if text):
        return PlacementCheck(objections)
    held = f"the nodes of {count(len(placed), 'part')} run where they were planned" if placed else ""
    types = (computed_type(one.provider, entries(one.provider_options)) for _, one in placed)
    computes = min(types, key=_COARSEST.index, default="")
    return PlacementCheck(
        held=held, providers=tuple(dict.fromkeys(one.provider for _, one in placed)), computes=computes
    )


def _sizes(cascade: Cascade, part: Part, provider: str) -> tuple[str, ...]:
    """The nodes of a part that compute sizes, if the CPU computes these for the provider."""
    if not is_gpu(provider) or part.is_converted:
        return ()
    graph = load(cascade.file(part)).graph
    return graph.names(graph.size_nodes)
