"""What a planner hands to `plans`: who runs which groups, how good that is, and how good it could be at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from ..costs.device import Device
from .instance import Floats
from .solver.chain_dp import Aggregation
from .solver.search import SearchResult

_SAME: Final = 1e-6
"""Shares of a value by which it may differ from a bound and yet be it: the exact solver knows no better."""

MetricUnit = Literal["s", "bytes", "parts", "devices", "layers", "flops", "tokens/s"]


class Optimality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a plan is, by what it was planned for.

    Attributes:
        objective: what was made as small (or, of tokens a second, as large) as can be, in words.
        value: what was reached.
        bound: no plan whatever does better; proven.
        unit: of both.
        is_optimal: it is proven that no plan reaches a better value.
    """

    objective: str
    value: float
    bound: float
    unit: MetricUnit
    is_optimal: bool

    @property
    def gap(self) -> float:
        """How far the value may be from the best there is: 0 for optimal, 0.02 for at most 2 % worse."""
        worse, better = (self.bound, self.value) if self.unit == "tokens/s" else (self.value, self.bound)
        if worse <= better or self.is_optimal:
            return 0.0
        return worse / better - 1 if better > 0 else float("inf")


@dataclass(frozen=True)
class Solution:
    """The plan that a planner chose.

    Attributes:
        found: the groups of each part.
        devices: the device that runs each part.
        outcome: how good it is.
        costs: for each part the table, over the rungs of the ladder it was found on, of what a part costs its device.
        joined: whether the sum of the parts' costs counts, or the greatest.
        front: for a cluster, other plans worth having: seconds between two requests, and seconds of one request; the
            shortest time between two first. None of them is as good as another in both.
    """

    found: SearchResult
    devices: tuple[Device, ...]
    outcome: Optimality
    costs: tuple[Floats, ...]
    joined: Aggregation
    front: tuple[tuple[float, float], ...] = ()


def is_same(value: float, bound: float) -> bool:
    """Is a value no worse than a bound, as far as numbers can tell?"""
    return value <= bound * (1 + _SAME)


def optimality_of(objective: str, found: SearchResult, bound: float, unit: MetricUnit) -> Optimality:
    """The outcome of a search whose first rank is the objective; what comes of a complete ladder is its own bound."""
    value = found.ranks[0]
    is_optimal = found.is_optimal or is_same(value, bound)
    return Optimality(objective, value, value if is_optimal else bound, unit, is_optimal)
