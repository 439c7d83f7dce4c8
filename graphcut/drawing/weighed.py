"""The terminal pen for cost models: what the heaviest modules of a model weigh."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..costs.tables import Row, Table
from ..costs.weighing import Costs
from ..units import count, duration, operations, size
from .tables import table

_MOST_ROWS: Final = 12


def draw_table(found: Table, costs: Costs, console: Console) -> RenderableType:
    """The sums of a cost model, and its heaviest modules: by time where that was measured, else by FLOPs and bytes."""
    rows = found.rows
    head = Text(costs.model.path.name, style="bold")
    how = "measured" if found.is_measured else "computed, not measured"
    head.append(f"  {count(len(rows), 'module')}, {how}", style="not bold")
    if costs.dims:
        head.append("  " + ", ".join(f"{name}={number}" for name, number in costs.dims.items()), style="not bold dim")
    heaviest = sorted(rows, key=lambda row: (row.time_s or 0.0, row.num_flops, row.num_bytes), reverse=True)
    shown = [_cells(row, is_measured=found.is_measured) for row in heaviest[:_MOST_ROWS]]
    total = Row(
        module=f"all {count(len(rows), 'module')}",
        num_params=sum(row.num_params for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        num_flops=sum(row.num_flops for row in rows),
        time_s=sum(row.time_s or 0.0 for row in rows),
    )
    titles = "module", "parameters", "weights", "work", *(("time",) if found.is_measured else ())
    lines: list[RenderableType] = [
        head,
        Text(),
        table(titles, [*shown, _cells(total, is_measured=found.is_measured)], width=console.width, names={0: 12}),
    ]
    if costs.uncounted:
        listed = ", ".join(f"{op} ({number})" for op, number in costs.uncounted.items())
        lines.append(Text(f"note: no FLOPs are known for {listed}; they count as 0", style="yellow"))
    return Group(*lines)


def _cells(row: Row, *, is_measured: bool) -> tuple[Text | str, ...]:
    cells = Text(row.module), f"{row.num_params:,}", size(row.num_bytes), f"{operations(row.num_flops)}FLOP"
    return (*cells, duration(row.time_s or 0.0)) if is_measured else cells
