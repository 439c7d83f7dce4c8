"""The parts of each device of a cascade, as a table on the terminal."""

from rich.console import RenderableType
from rich.text import Text

from ...core.manifest import Cascade
from ...core.units import size
from .screen import Screen
from .tables import Column, table


def draw_devices(cascade: Cascade, screen: Screen) -> RenderableType:
    """For each device its parts, their weights, and how many of them are in the folder of the cascade."""
    hosts = cascade.manifest.devices
    owned = [[part for part in cascade.parts if part.device == host.name] for host in hosts]
    here = [[part for part in parts if cascade.file(part).is_file()] for parts in owned]
    columns = [
        Column("device", [Text(host.name) for host in hosts]),
        Column("parts", [Text(", ".join(part.file for part in parts)) for parts in owned], min_width=8),
        Column("weights", [size(sum(part.weight_bytes for part in parts)) for parts in owned]),
        Column("here", [f"{len(found)} of {len(parts)}" for found, parts in zip(here, owned, strict=True)]),
    ]
    return table(screen, columns)
