"""Whether the nodes of each part are taken by the provider of its device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..core.errors import RunError
from ..core.manifest import Cascade, Part
from ..core.units import count
from ..running.placement import PlacementProcess
from ..running.providers import CPU, entries, fixed_sizes

_SHOWN: Final = 3  #: a sentence names so many nodes.


@dataclass(frozen=True)
class PlacementCheck:
    """What was found of the parts of devices with another provider than the CPU's."""

    objections: tuple[str, ...] = ()  #: parts that can't be opened, or have nodes that the provider does not take.
    gap: str = ""  #: why parts were not checked.
    held: str = ""  #: how many were, and hold.
    providers: tuple[str, ...] = ()  #: those on which the parts run to be compared, besides the CPU's.


NOT_PLACED: Final = PlacementCheck()


def check_placement(cascade: Cascade) -> PlacementCheck:
    """Open each such part with its provider, in a process of its own, and read back where its nodes went.

    Sizes are fixed where a run fixes them.
    """
    parts = [part for part in cascade.parts if cascade.settings(part).provider != CPU]
    try:
        objections = [text for part in parts for text in _objections(cascade, part)]
    except RunError as error:
        return PlacementCheck(gap=f"where nodes run was not checked: {error}")
    if objections:
        return PlacementCheck(tuple(objections))
    held = f"the nodes of {count(len(parts), 'part')} run where they were planned" if parts else ""
    providers = tuple(dict.fromkeys(cascade.settings(part).provider for part in parts))
    return PlacementCheck(held=held, providers=providers)


def _objections(cascade: Cascade, part: Part) -> Iterator[str]:
    """A sentence if the provider of the device does not take all nodes of a part; a RunError if it is not here."""
    settings = cascade.settings(part)
    with PlacementProcess(settings.provider, entries(settings.provider_options)) as process:
        sizes = fixed_sizes(settings.provider, cascade.manifest.given_dims)
        found = process.ask(cascade.file(part), sizes, entries(settings.session_config))
    if found.is_missing:
        raise RunError(f"{settings.provider}: {found.problem}")
    fallen = found.fallen_back(settings.provider)
    if found.problem:
        yield f"{part.place} can't be opened with {settings.provider}: {found.problem}"
    elif fallen:
        named = ", ".join(map(repr, fallen[:_SHOWN])) + ", …" * (len(fallen) > _SHOWN)
        yield f"{part.place}: {settings.provider} does not take {count(len(fallen), 'node')}: {named}"
