"""The terminal pen for cost models: what the heaviest modules of a model weigh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..core.units import count, duration, size
from ..costs.tables import CostRow, CostTable
from ..costs.weighing import Costs
from .glyphs import glyphs_for
from .tables import Column, table
from .wording import flop

_MOST_ROWS: Final = 12


def draw_cost_table(found: CostTable, costs: Costs, console: Console) -> RenderableType:
    """The sums of a cost model, and its heaviest modules: by time where that was measured, else by FLOPs and bytes."""
    rows = found.rows
    signs = glyphs_for(console)
    head = signs.text(costs.model.path.name, "bold")
    how = "measured" if found.is_measured else "computed, not measured"
    head.append(f"  {count(len(rows), 'module')}, {how}", style="not bold")
    if costs.dims:
        head.append("  " + ", ".join(f"{name}={number}" for name, number in costs.dims.items()), style="not bold dim")
    heaviest = sorted(rows, key=lambda row: (row.time_s or 0.0, row.num_flops, row.num_bytes), reverse=True)
    total = CostRow(
        module=f"all {count(len(rows), 'module')}",
        num_params=sum(row.num_params for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        num_flops=sum(row.num_flops for row in rows),
        time_s=sum(row.time_s or 0.0 for row in rows),
    )
    columns = list(_columns([*heaviest[:_MOST_ROWS], total], is_measured=found.is_measured))
    lines: list[RenderableType] = [head, Text(), table(columns, width=console.width, signs=signs)]
    if costs.uncounted:
        listed = ", ".join(f"{op} ({number})" for op, number in costs.uncounted.items())
        lines.append(signs.text(f"note: no FLOPs are known for {listed}; they count as 0", "yellow"))
    return Group(*lines)


def _columns(rows: Sequence[CostRow], *, is_measured: bool) -> Iterable[Column]:
    yield Column("module", [Text(row.module) for row in rows], fewest=12)
    yield Column("parameters", [f"{row.num_params:,}" for row in rows])
    yield Column("weights", [size(row.num_bytes) for row in rows])
    yield Column("work", [flop(row.num_flops) for row in rows])
    if is_measured:
        yield Column("time", [duration(row.time_s or 0.0) for row in rows])
