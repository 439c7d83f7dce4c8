"""The rows of a lane chart: one for each boundary tensor, or for each bus where there are too many tensors."""

from dataclasses import dataclass
from typing import Literal

from ..core.units import count
from .scene import Bus, Flow, Scene, totals_of
from .sentences import size_text


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One row."""

    kind: Literal["tensor", "bus"]  #: whether the row is one tensor or all tensors of a bus.
    index: int  #: in `Scene.tensors` or `Scene.buses`.
    flow: Flow  #: that tensor or bus.
    name: str  #: of the tensor, or of the first and how many more.
    type: str  #: of the tensors; empty if they differ.


def lane_rows(scene: Scene, most: int) -> tuple[list[LaneRow], str]:
    """At most `most` rows, and a text about the tensors without a row; empty if there are none."""
    if len(scene.tensors) <= most:
        return [LaneRow("tensor", i, one, one.tensor, one.type) for i, one in enumerate(scene.tensors)], ""
    # Residual ones before others, large ones before small ones.
    ranked = sorted(enumerate(scene.buses), key=lambda row: (not row[1].is_residual, -row[1].bytes, row[0]))
    shown = sorted(i for i, _ in ranked[: most if len(ranked) <= most else most - 1])
    rows = [LaneRow("bus", i, scene.buses[i], *_name_and_type(scene, scene.buses[i])) for i in shown]
    hidden = [bus for i, bus in enumerate(scene.buses) if i not in shown]
    if not hidden:
        return rows, ""
    return rows, f"and {count(sum(len(bus.tensors) for bus in hidden), 'more tensor')}, {size_text(totals_of(hidden))}"


def _name_and_type(scene: Scene, bus: Bus) -> tuple[str, str]:
    first, types = scene.tensors[bus.tensors[0]], {scene.tensors[i].type for i in bus.tensors}
    more = f" and {len(bus.tensors) - 1} more" if len(bus.tensors) > 1 else ""
    return f"{first.tensor}{more}", first.type if len(types) == 1 else ""
