"""Why each cut of a plan is where it is: what crosses there, and what the next best places would cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from .instance import Floats
from .problem import PlanningProblem
from .results import Solution

_MOST: Final = 2


class CandidateCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place for a cut, all other cuts of the plan left where they are.

    Attributes:
        after: the last node before it.
        cost: what the objective would come to: its unit is that of the outcome, but for `devices` and parts within a
            budget, where it is seconds and received bytes, and for tokens, where it is seconds between two.
        crossing_bytes: bytes that cross there, each tensor once.
    """

    after: str
    cost: float
    crossing_bytes: int


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cut.

    Attributes:
        chosen: where it is.
        bottleneck: the part that decides the objective.
        alternatives: the next best places, the best first.
    """

    chosen: CandidateCut
    bottleneck: int
    alternatives: tuple[CandidateCut, ...]


def reasons(choice: Solution, task: PlanningProblem) -> tuple[Reason, ...]:
    """One reason for each cut, in order."""
    climb = choice.found.climb
    steps = zip(choice.costs, pairwise(climb.rungs), strict=True)
    own = np.array([float(table[high, low]) for table, (low, high) in steps])
    return tuple(_reason(choice, task, own, bar) for bar in range(len(own) - 1))


def _reason(choice: Solution, task: PlanningProblem, own: Floats, bar: int) -> Reason:
    climb, ladder = choice.found.climb, choice.found.ladder
    low, here, high = climb.rungs[bar : bar + 3]
    join = np.add if choice.joined == "sum" else np.maximum
    both = join(choice.costs[bar][:, low], choice.costs[bar + 1][high, :])
    rest = np.delete(own, [bar, bar + 1])
    if len(rest):
        both = join(both, rest.sum() if choice.joined == "sum" else rest.max())
    order = [int(rung) for rung in np.argsort(both, kind="stable") if np.isfinite(both[rung]) and rung != here]
    crossing = ladder.sent[:, 0]

    def place(rung: int) -> CandidateCut:
        last = ladder.members(0, rung)[-1]
        node = task.groups[last][-1]
        return CandidateCut(task.graph.nodes[node].name, float(both[rung]), int(crossing[rung]))

    return Reason(place(here), int(own.argmax()), _apart([place(rung) for rung in order[: 4 * _MOST]], place(here)))


def _apart(places: Sequence[CandidateCut], own: CandidateCut) -> tuple[CandidateCut, ...]:
    """The best places of different names."""
    named = {place.after: place for place in reversed(places) if place.after != own.after}
    return tuple(sorted(named.values(), key=lambda place: place.cost)[:_MOST])
