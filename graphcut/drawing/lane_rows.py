"""The rows of a lane chart: one for each boundary tensor, or for each bus where there are too many tensors."""

from collections.abc import Sequence
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
    shown = _most_important(scene.buses, most)
    rows = [LaneRow("bus", i, scene.buses[i], *_name_and_type(scene, scene.buses[i])) for i in shown]
    hidden = [bus for i, bus in enumerate(scene.buses) if i not in shown]
    if not hidden:
        return rows, ""
    tensors = count(sum(len(bus.tensors) for bus in hidden), "more tensor")
    return rows, f"and {tensors}, {size_text(totals_of(hidden))}"


def _most_important(buses: Sequence[Bus], most: int) -> list[int]:
    """Indices of at most `most` buses, ascending: residual ones before others, large ones before small ones."""
    if len(buses) <= most:
        return list(range(len(buses)))
    ranked = sorted(range(len(buses)), key=lambda i: (not buses[i].is_residual, -buses[i].bytes, i))
    return sorted(ranked[: most - 1])


def _name_and_type(scene: Scene, bus: Bus) -> tuple[str, str]:
    first, types = scene.tensors[bus.tensors[0]], {scene.tensors[i].type for i in bus.tensors}
    more = f" and {len(bus.tensors) - 1} more" if len(bus.tensors) > 1 else ""
    return f"{first.tensor}{more}", first.type if len(types) == 1 else ""
