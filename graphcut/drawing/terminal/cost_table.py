"""A cost model on the terminal: its sums, and its most expensive modules."""

from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ...core.units import count, duration, flop, size
from ...costs.tables import CostRow, CostTable
from ...costs.weighing import Costs
from ..sentences import assumed_sizes, dims_text, unbound_sizes, uncounted_operators
from .screen import Screen, picture
from .tables import Column, table

_SUMMED: Final = ("num_params", "num_bytes", "num_flops", "time_s")


def draw_cost_table(found: CostTable, costs: Costs, screen: Screen) -> RenderableType:
    """The most expensive modules: by measured time if there is any, else by FLOPs and bytes."""
    rows = found.rows
    how = "measured" if found.is_measured else "computed, not measured"
    title = screen.title(costs.model.title, f"{count(len(rows), 'module')}, {how}", dims_text(costs.dims))
    ranked = sorted(rows, key=lambda row: (row.time_s or 0.0, row.num_flops, row.num_bytes), reverse=True)
    sums = {name: sum(getattr(row, name) or 0 for row in rows) for name in _SUMMED}
    shown = [*ranked[:12], CostRow(module=f"all {count(len(rows), 'module')}", **sums)]
    columns = [
        Column("module", [Text(row.module) for row in shown], min_width=12),
        Column("parameters", [f"{row.num_params:,}" for row in shown]),
        Column("weights", [size(row.num_bytes) for row in shown]),
        Column("compute", [flop(row.num_flops) for row in shown]),
    ]
    if found.is_measured:
        columns.append(Column("time", [duration(row.time_s or 0.0) for row in shown]))
    sizes = *unbound_sizes(costs.model, costs.dims), *assumed_sizes(costs.dims, costs.model.dims)
    notes = (*uncounted_operators(costs.uncounted), *sizes)
    return picture([title], [table(screen, columns)], notes=map(screen.note, notes))
