"""What of a model a device can run, drawn for the terminal."""

from rich.console import RenderableType
from rich.text import Text

from ...core.units import count
from ...costs.device_support import DeviceSupport
from .screen import Screen, picture
from .tables import Column, section


def draw_support(found: DeviceSupport, screen: Screen) -> RenderableType:
    """How much the device can run, and a row for each operator and reason of the rest."""
    rules, rows = found.rules, found.unsupported
    columns = [
        Column("not supported", [Text(row.op) for row in rows]),
        Column("why", [Text(row.why) for row in rows], min_width=20),
        Column("nodes", [f"{len(row.nodes):,}" for row in rows]),
        Column("FLOPs", [f"{row.flops_share:.1%}" for row in rows]),
        Column("time", [f"{row.time_share:.1%}" for row in rows]),
        Column("first", [Text(row.nodes[0]) for row in rows], min_width=24, drop_order=1),
        Column("would help", [Text(row.helps) for row in rows], min_width=44),
    ]
    nodes = f"{found.supported:,} of {count(found.nodes, 'node')}"
    said = f"{rules.name} can run {nodes}, {found.flops_share:.1%} of the FLOPs"
    source = " ".join(filter(None, (rules.source, rules.version)))
    notes = [screen.note(f"rules: {source}")] if source else []
    return picture([screen.verdict(said, holds=not rows)], section(screen, columns), notes=notes)
