"""What a planner returns: the parts and their devices, the value that was reached, and a bound of what is possible."""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from ..costs.device import Device
from .instance import Floats
from .solver.chain_dp import Aggregation
from .solver.search import SearchResult

_TOLERANCE: Final = 1e-6
"""A value that exceeds its bound by this share is equal to it: the tolerance of the exact solver."""

MetricUnit = Literal["s", "bytes", "parts", "devices", "layers", "flops", "tokens/s"]


class Optimality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a plan is, by its objective."""

    objective: str  #: what was minimized (or, for tokens a second, maximized), in words.
    value: float  #: what was reached.
    bound: float  #: a proven bound: no plan has a better value.
    unit: MetricUnit  #: of both.
    is_optimal: bool  #: it is proven that no plan has a better value than this one.

    def __str__(self) -> str:
        """Value, bound and gap in one line."""
        value = f"{self.objective}: {self.value:.4g} {self.unit}"
        if self.is_optimal:
            return f"{value}, optimal (proven)"
        side = "upper" if self.unit == "tokens/s" else "lower"
        return f"{value}, {side} bound {self.bound:.4g} {self.unit}, gap {self.gap:.1%}"

    @property
    def gap(self) -> float:
        """The optimality gap: 0 for optimal, 0.02 if the value is at most 2 % worse than the best possible."""
        worse, better = (self.bound, self.value) if self.unit == "tokens/s" else (self.value, self.bound)
        if worse <= better or self.is_optimal:
            return 0.0
        return worse / better - 1 if better > 0 else float("inf")


@dataclass(frozen=True)
class Solution:
    """The result of a planner."""

    found: SearchResult  #: the groups of each part.
    devices: tuple[Device, ...]  #: the device of each part.
    outcome: Optimality  #: how good it is.
    #: for each part the table, over the boundaries it was found on, of what a part costs its device.
    costs: tuple[Floats, ...]
    aggregation: Aggregation  #: whether the objective is the sum or the maximum of the parts' costs.
    #: for a cluster, the Pareto front: seconds between two requests and seconds of one request, ascending in the first.
    #: No plan on it is as good as another in both.
    front: tuple[tuple[float, float], ...] = ()


def optimality_of(
    objective: str, value: float, lower_bound: float, unit: MetricUnit, *, is_optimal: bool = False
) -> Optimality:
    """The optimality of a value that was minimized; for tokens a second the value is the time of a token.

    Args:
        objective: what was minimized, in words.
        value: what was reached.
        lower_bound: a proven lower bound.
        unit: of the result.
        is_optimal: the value is proven to be optimal; if not, it is if it equals the bound.
    """
    is_optimal = is_optimal or value <= lower_bound * (1 + _TOLERANCE)
    bound = value if is_optimal else lower_bound
    if unit == "tokens/s":
        value, bound = (1 / number if number else float("inf") for number in (value, bound))
    return Optimality(objective, value, bound, unit, is_optimal)
