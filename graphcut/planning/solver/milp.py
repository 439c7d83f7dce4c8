"""A proof that a plan is optimal, or of how far from that it can be: a mixed-integer program, solved by HiGHS.

The program knows no order and no ladder: each group stands in one of K parts, and what depends on it in the same or a
later one (Tarnawski et al., NeurIPS 2020, with part numbers that rise along every edge for their contiguity).
LinguaLinked's assignment of modules to devices (ACL 2024, section 3.2) is the special case of a chain. What is alive
while a part runs is not in it: where memory counts that, the program is a relaxation, and its bound holds all the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

import numpy as np

from ..instance import Workload
from .cost_tables import DeviceClass

Sense = Literal["period", "latency", "token", "received", "parts", "size"]
"""What is made least: seconds of the busiest part, of all together, of a token; bytes received; how many parts there
are; bytes of the largest part."""

_MOST_BINARIES: Final = 20_000

MilpForm = list[tuple[float, int]]
"""A linear form: coefficients, each with its variable."""


@dataclass(frozen=True)
class MilpProblem:
    """What is to be proven.

    Attributes:
        load: the workload.
        kinds: the kinds of devices; a part may take what its device holds.
        counts: how many there are of each.
        sense: what is made least.
        in_flight: sequences in flight, for `token`.
        pins: for a group the part that it must stand in.
        exactly: every part holds something; else parts at the end may stay empty.
    """

    load: Workload
    kinds: tuple[DeviceClass, ...]
    counts: tuple[int, ...]
    sense: Sense
    in_flight: int = 1
    pins: Mapping[int, int] = field(default_factory=dict)
    exactly: bool = False


@dataclass(frozen=True)
class MilpResult:
    """What the solver found in its time.

    Attributes:
        bound: no plan is better.
        parts: the groups of each part of the best plan that it found; empty where it found none.
    """

    bound: float
    parts: tuple[tuple[int, ...], ...]


def solve(question: MilpProblem, *, time_limit_s: float) -> MilpResult | None:
    """Ask HiGHS; None where the program is too large for an answer to be hoped for."""
    if question.load.groups * sum(question.counts) > _MOST_BINARIES:
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import, and seldom asked for
    from scipy.sparse import coo_array

    program = _Program(question)
    entries = [(i, variable, value) for i, (form, _) in enumerate(program.rows) for value, variable in form]
    rows, columns, values = (np.array(numbers) for numbers in zip(*entries, strict=True))
    matrix = coo_array((values, (rows, columns)), shape=(len(program.rows), len(program.upper))).tocsr()
    costs = np.zeros(len(program.upper))
    for value, variable in program.objective:
        costs[variable] += value
    with _quiet():
        found = milp(
            c=costs,
            constraints=LinearConstraint(matrix, lb=np.array([low for _, low in program.rows])),
            bounds=Bounds(np.array(program.lower), np.array(program.upper)),
            integrality=np.array(program.integral, dtype=np.int8),
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
    bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
    return MilpResult(bound * program.unit, () if found.x is None else program.parts_in(found.x))


@contextmanager
def _quiet() -> Iterator[None]:
    """HiGHS now and then writes a line of its own to the process's stdout, past Python and whatever it is told."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class _Program:
    """Variables as columns; constraints as forms that must be at least a number.

    `until[g][k]` says that group g stands in part k or before it; `uses[k][d]` that part k runs on a device of kind d.
    All times and bytes are counted in `unit`, since numbers of very different size make solvers err.
    """

    def __init__(self, question: MilpProblem) -> None:
        self.question = question
        self.load = question.load
        self.parts = range(sum(question.counts))
        self.rows: list[tuple[MilpForm, float]] = []
        self.objective: MilpForm = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.integral: list[bool] = []
        self.unit = 1.0 if question.sense == "parts" else self._whole()
        self.until = [[self._variable(1, whole=True) for _ in self.parts] for _ in range(self.load.groups)]
        self.uses = [[self._variable(1, whole=True) for _ in question.kinds] for _ in self.parts]
        self._order()
        self._devices()
        self.busy = [self._variable(np.inf) for _ in self.parts]
        self.received: list[MilpForm] = []
        for k in self.parts:
            self._part(k)
        self._least()

    def parts_in(self, solution: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[tuple[int, ...], ...]:
        """The groups of each part that is not empty."""
        first = [next(k for k in self.parts if solution[row[k]] > 0.5) for row in self.until]
        rows = (tuple(g for g, k in enumerate(first) if k == part) for part in self.parts)
        return tuple(row for row in rows if row)

    def _whole(self) -> float:
        """All of what is counted, on one device."""
        load = self.load
        if self.question.sense == "received":
            return float(max(1, load.tensor_bytes.sum()))
        if self.question.sense == "size":
            return float(load.held.sum() + load.shared.sum() + 1)
        return float(load.work[np.isfinite(load.work)].sum()) or 1.0

    def _variable(self, most: float, *, whole: bool = False) -> int:
        self.lower.append(0.0)
        self.upper.append(most)
        self.integral.append(whole)
        return len(self.upper) - 1

    def _at_least(self, form: MilpForm, low: float) -> None:
        self.rows.append((form, low))

    def _here(self, group: int, k: int, factor: float = 1.0) -> MilpForm:
        """`factor` if the group stands in part k."""
        row = self.until[group]
        return [(factor, row[k])] if k == 0 else [(factor, row[k]), (-factor, row[k - 1])]

    def _order(self) -> None:
        """Parts fill up; nobody stands before what he depends on; pinned groups stand in their parts."""
        below, _ = self.load.edges
        for group, row in enumerate(self.until):
            self.lower[row[-1]] = 1.0
            for k in self.parts:
                if k:
                    self._at_least([(1, row[k]), (-1, row[k - 1])], 0)
                for other in below[group]:
                    self._at_least([(1, self.until[other][k]), (-1, row[k])], 0)
        for group, part in self.question.pins.items():
            for k in self.parts:
                variable = self.until[group][k]
                self.lower[variable] = self.upper[variable] = float(k >= part)

    def _devices(self) -> None:
        """A part that holds something runs on one device; there are only so many of a kind."""
        everyone = range(self.load.groups)
        for k in self.parts:
            self._at_least([(-1, use) for use in self.uses[k]], -1)
            for group in everyone:
                self._at_least([*((1.0, use) for use in self.uses[k]), *self._here(group, k, -1)], 0)
            if self.question.exactly:
                self._at_least([term for group in everyone for term in self._here(group, k)], 1)
            elif k:  # the empty ones stand at the end
                self._at_least([*((1.0, use) for use in self.uses[k - 1]), *((-1.0, use) for use in self.uses[k])], 0)
        for kind, number in enumerate(self.question.counts):
            self._at_least([(-1, self.uses[k][kind]) for k in self.parts], -number)

    def _part(self, k: int) -> None:
        """What part k receives, sends and holds, and how long it keeps its device busy."""
        load = self.load
        received, sent = self._crossing(k)
        shared = self._shared(k)
        late = self._variable(1)
        for tensor, variable in received.items():
            if load.tensor_bytes[tensor]:
                self._at_least([(1, late), (-1, variable)], 0)
        moved = [(float(load.tensor_bytes[t]), v) for side in (received, sent) for t, v in side.items()]
        self.received.append([(float(load.tensor_bytes[t]), v) for t, v in received.items()])
        declared = [(float(load.declared[t]), v) for side in (received, sent) for t, v in side.items()]
        held = [term for g in range(load.groups) for term in self._here(g, k, float(load.held[g]))]
        taken = [*held, *declared, *((float(load.shared[i]), v) for i, v in shared.items())]
        for number, kind in enumerate(self.question.kinds):
            use = self.uses[k][number]
            work = [term for g in range(load.groups) for term in self._here(g, k, float(load.work[number, g]))]
            work += [(float(load.shared_work[number, i]), v) for i, v in shared.items()]
            work += [(value * kind.s_per_byte, v) for value, v in moved] + [(kind.latency_s, late)]
            if self.question.sense == "size":
                work = taken
            self._where_used(use, [(1, self.busy[k])], _times(work, 1 / self.unit))
            if np.isfinite(kind.memory_bytes):
                room = kind.memory_bytes - load.part_bytes
                self._where_used(use, [(room / kind.memory_bytes, use)], _times(taken, 1 / kind.memory_bytes))

    def _where_used(self, use: int, most: MilpForm, form: MilpForm) -> None:
        """`form` is at most `most` where the device is used; elsewhere anything, which is no more than all of it."""
        everything = sum(value for value, _ in form if value > 0)
        self._at_least([*most, (-everything, use), *_times(form, -1)], -everything)

    def _crossing(self, k: int) -> tuple[dict[int, int], dict[int, int]]:
        """For each tensor a variable that is 1 where part k receives it, and one where it sends it."""
        load = self.load
        received = {tensor: self._variable(1) for tensor in range(load.readers.number)}
        sent = {tensor: self._variable(1) for tensor in range(load.readers.number)}
        for tensor, reader in zip(load.readers.thing.tolist(), load.readers.group.tolist(), strict=True):
            writer = int(load.writer[tensor])
            self._at_least([(1, received[tensor]), *self._here(reader, k, -1), *self._here(writer, k)], 0)
            self._at_least([(1, sent[tensor]), *self._here(writer, k, -1), *self._here(reader, k)], 0)
        return received, sent

    def _shared(self, k: int) -> dict[int, int]:
        """For each shared thing a variable that is 1 where part k needs it."""
        edges = self.load.sharers
        found = {thing: self._variable(1) for thing in range(edges.number)}
        for thing, group in zip(edges.thing.tolist(), edges.group.tolist(), strict=True):
            self._at_least([(1, found[thing]), *self._here(group, k, -1)], 0)
        return found

    def _least(self) -> None:
        """The objective."""
        match self.question.sense:
            case "period" | "size":
                self.objective = [(1, self._above([[(1, busy)] for busy in self.busy]))]
            case "latency":
                self.objective = [(1, busy) for busy in self.busy]
            case "token":
                share = [(1 / self.question.in_flight, busy) for busy in self.busy]
                self.objective = [(1, self._above([share, *([(1.0, busy)] for busy in self.busy)]))]
            case "received":
                self.objective = [(value / self.unit, v) for form in self.received for value, v in form]
            case "parts":
                self.objective = [(1, use) for uses in self.uses for use in uses]
            case _:
                assert_never(self.question.sense)

    def _above(self, forms: Iterable[MilpForm]) -> int:
        """A variable that is no less than any of the forms."""
        most = self._variable(np.inf)
        for form in forms:
            self._at_least([(1, most), *_times(form, -1)], 0)
        return most


def _times(form: Sequence[tuple[float, int]], factor: float) -> MilpForm:
    return [(value * factor, variable) for value, variable in form]
