"""Exact lower bounds by a mixed-integer linear program for a planning problem, solved by HiGHS.

The program knows no order and no boundaries: each group is in one of K parts, and its successors are in the same part
or a later one (Tarnawski et al., NeurIPS 2020, with part numbers that never fall along an edge for contiguity).
LinguaLinked's assignment of modules to devices (ACL 2024, section 3.2) is the special case of a chain. Peak memory
while a part runs is not modelled: where a limit counts it, the program is a relaxation, and its bound is still valid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, assert_never

import numpy as np

from ..costs.cluster import Overlap
from .cost_tables import DeviceClass
from .instance import Parts, Workload
from .order_prefixes import prefix_tables
from .search import Evaluator, SearchResult, better, result_on
from .transfers import STEPS_AT_ONCE

if TYPE_CHECKING:
    from highspy import Highs

MilpObjective = Literal["period", "latency", "token", "received", "parts", "size"]
"""What is minimized: seconds of the slowest part, of all parts, of a token; bytes received; parts; most bytes."""

MOST_BINARIES: Final = 20_000
_PRECISION: Final = 1e-9  #: by how much a constraint may be violated. With HiGHS' own 1e-6 bounds were 6e-6 too low.
_ROUNDING: Final = 1e-6  #: by rounding a bound exceeds the value of a plan by no more than this share of it.

LinearForm = list[tuple[float, int]]  #: coefficients, each with the index of its variable.


@dataclass(frozen=True)
class MilpProblem:
    """A planning problem to be solved exactly."""

    load: Workload  #: the workload.
    classes: tuple[DeviceClass, ...]  #: the device classes; a part takes no more memory than its device has.
    counts: tuple[int, ...]  #: the number of devices of each class.
    objective: MilpObjective  #: what is minimized.
    in_flight: int = 1  #: sequences in flight, for `token`.
    pins: Mapping[int, int] = field(default_factory=dict)  #: for a group the part that it must be in.
    no_empty_part: bool = False  #: every part holds a group; otherwise parts at the end may be empty.
    #: a group is in no earlier part than its predecessors. Otherwise a part is all that one device runs of an
    #: interleaved plan, and what is counted twice where parts share it counts once: the bound holds.
    is_ordered: bool = True
    #: see `Cluster.overlap`. The driver is left out, and the links: the program is a relaxation.
    overlap: Overlap = "none"


class MilpResult(NamedTuple):
    """What the solver found within its time limit."""

    bound: float  #: a lower bound of the objective of any plan; -inf where none was found.
    parts: Parts  #: the groups of each part of the best plan found; empty where none was found.

    def bound_below(self, value: float) -> float:
        """The bound, where it may be one: it is -inf if a plan of this value shows that the solver was wrong."""
        return min(self.bound, value) if self.bound <= value * (1 + _ROUNDING) else -np.inf


def prove(
    found: SearchResult, lower_bound: float, problem: MilpProblem, evaluate: Evaluator, *, time_limit_s: float
) -> tuple[SearchResult, float]:
    """The best result and the best lower bound of the first value known after the exact solver has had its time.

    It solves `problem` unless `found` is optimal already or the time limit is 0; `evaluate` values its plan.
    """
    if found.is_optimal or found.chain.values[0] <= lower_bound or not time_limit_s:
        return found, lower_bound
    answer = solve(problem, time_limit_s=time_limit_s)
    if answer.parts:
        order = tuple(group for part in answer.parts for group in part)
        tables = prefix_tables(problem.load, order, [0, *accumulate(map(len, answer.parts))])
        found = better(found, result_on(tables, evaluate)) or found
    return found, max(lower_bound, answer.bound_below(found.chain.values[0]))


def solve(problem: MilpProblem, *, time_limit_s: float) -> MilpResult:
    """The result of HiGHS; no bound and no parts where the program is too large to be solved in a reasonable time."""
    if problem.load.groups * sum(problem.counts) > MOST_BINARIES:
        return MilpResult(-np.inf, ())
    from highspy import HighsModelStatus, SolutionStatus  # a quarter of a second to import, and rarely needed

    if problem.load.replicas is not None:
        problem = replace(problem, load=problem.load.replicas.without)
    solver = _silent_solver()
    options = {"time_limit": time_limit_s, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
    options |= {f"{kind}_feasibility_tolerance": _PRECISION for kind in ("mip", "primal", "dual")}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    formulation = _Formulation(problem, solver)
    solver.run()
    info, has_ended = solver.getInfo(), {HighsModelStatus.kOptimal, HighsModelStatus.kTimeLimit}
    has_plan = info.primal_solution_status == SolutionStatus.kSolutionStatusFeasible
    is_bound = solver.getModelStatus() in has_ended
    bound = formulation.lower_bound(float(info.mip_dual_bound)) if is_bound else -np.inf
    return MilpResult(bound, formulation.parts_in(solver.getSolution().col_value) if has_plan else ())


def _silent_solver() -> Highs:
    from highspy import Highs

    class Silent(Highs):  # highspy 1.16 prints its version as soon as it enables callbacks, which its constructor does
        def enableCallbacks(self) -> None:  # noqa: N802 - the name is highspy's
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    return Silent()  # type: ignore[no-untyped-call]


class _Formulation:
    """The variables (columns) and the constraints (rows): linear forms that must be at least a number.

    `until[g][k]` is 1 if group g is in part k or an earlier one; `uses[k][c]` is 1 if part k runs on a device of class
    c. Times and bytes are counted in `unit`, since solvers lose precision on numbers of very different size.
    """

    def __init__(self, problem: MilpProblem, solver: Highs) -> None:
        self.problem, self.load, self.solver = problem, problem.load, solver
        self.parts = range(sum(problem.counts))
        load = self.load  # the unit: all of what is counted, on one device
        known = {"parts": 1.0, "received": max(1.0, load.tensor_bytes.sum()), "size": load.total_bytes + 1}
        self.unit = float(known.get(problem.objective) or load.work[np.isfinite(load.work)].sum() or 1.0)
        self.until = [[int(solver.addBinary()) for _ in self.parts] for _ in range(self.load.groups)]
        self.uses = [[int(solver.addBinary()) for _ in problem.classes] for _ in self.parts]
        self._constrain_order()
        self._constrain_devices()
        #: for each part what a request takes, and how long that keeps its device busy.
        self.steps = [self._variable(np.inf) for _ in self.parts]
        self.in_turn = problem.overlap == "none"
        self.busy = self.steps if self.in_turn else [self._variable(np.inf) for _ in self.parts]
        self.received = [self._constrain_part(k) for k in self.parts]
        self._set_objective()

    def lower_bound(self, dual_bound: float) -> float:
        """The bound of the program as a bound of the objective: in seconds, bytes or whole parts."""
        if self.problem.objective == "parts":
            return float(np.ceil(dual_bound - 1e-6))
        return dual_bound * self.unit + (self.load.part_bytes if self.problem.objective == "size" else 0)

    def parts_in(self, solution: Sequence[float]) -> Parts:
        """The groups of each part that is not empty."""
        first = [next(k for k in self.parts if solution[row[k]] > 0.5) for row in self.until]
        parts = (tuple(g for g, k in enumerate(first) if k == part) for part in self.parts)
        return tuple(part for part in parts if part)

    def _variable(self, most: float) -> int:
        return int(self.solver.addVariable(0.0, most))

    def _at_least(self, form: LinearForm, low: float) -> None:
        row: dict[int, float] = defaultdict(float)
        for value, variable in form:
            row[variable] += value
        self.solver.addRow(low, np.inf, len(row), np.array([*row], dtype=np.int32), np.array([*row.values()]))

    def _is_in(self, group: int, k: int, factor: float = 1.0) -> LinearForm:
        """`factor` if the group is in part k, else 0."""
        row = self.until[group]
        return [(factor, row[k])] if k == 0 else [(factor, row[k]), (-factor, row[k - 1])]

    def _constrain_order(self) -> None:
        """Every group is in one part, not before its predecessors, and pinned groups are in their parts."""
        predecessors = self.load.edges[0] if self.problem.is_ordered else [()] * self.load.groups
        for group, row in enumerate(self.until):
            self.solver.changeColBounds(row[-1], 1.0, 1.0)
            for k in self.parts:
                if k:
                    self._at_least([(1, row[k]), (-1, row[k - 1])], 0)
                for other in predecessors[group]:
                    self._at_least([(1, self.until[other][k]), (-1, row[k])], 0)
        for group, part in self.problem.pins.items():
            for k in self.parts:
                self.solver.changeColBounds(self.until[group][k], float(k >= part), float(k >= part))

    def _constrain_devices(self) -> None:
        """A part that is not empty runs on one device, and there are only so many of each class."""
        groups = range(self.load.groups)
        for k in self.parts:
            self._at_least([(-1, use) for use in self.uses[k]], -1)
            for group in groups:
                self._at_least([*((1.0, use) for use in self.uses[k]), *self._is_in(group, k, -1)], 0)
            if self.problem.no_empty_part:
                self._at_least([term for group in groups for term in self._is_in(group, k)], 1)
            elif k:  # empty parts are at the end
                self._at_least([*((1.0, use) for use in self.uses[k - 1]), *((-1.0, use) for use in self.uses[k])], 0)
        for c, count in enumerate(self.problem.counts):
            self._at_least([(-1, self.uses[k][c]) for k in self.parts], -count)

    def _constrain_part(self, k: int) -> LinearForm:
        """What part k receives, sends and holds, and how long it keeps its device busy. Returns what it receives."""
        load, groups = self.load, range(self.load.groups)
        received, sent = self._received_and_sent(k)
        shared = self._shared(k)
        late = self._variable(1)
        for variable in compress(received, load.tensor_bytes):
            self._at_least([(1, late), (-1, variable)], 0)
        tensor_bytes = load.tensor_bytes.tolist()
        moved_in, moved_out = [*zip(tensor_bytes, received, strict=True)], [*zip(tensor_bytes, sent, strict=True)]
        if not self.in_turn:
            self._at_least([(STEPS_AT_ONCE, self.busy[k]), (-1, self.steps[k])], 0)
        taken = [term for g in groups for term in self._is_in(g, k, float(load.own_bytes[g]))]
        taken += zip(load.declared_bytes.tolist(), received, strict=True)
        taken += zip(load.sent_declared_bytes.tolist(), sent, strict=True)
        taken += zip(load.shared_bytes.tolist(), shared, strict=True)
        for c, (use, device_class) in enumerate(zip(self.uses[k], self.problem.classes, strict=True)):
            work = [term for g in groups for term in self._is_in(g, k, float(load.work[c, g]))]
            work += zip(load.shared_work[c].tolist(), shared, strict=True)
            step = [*work, (device_class.latency_s, late)]
            step += _times(moved_in + moved_out * self.in_turn, device_class.s_per_byte)
            if self.problem.objective == "size":
                step = taken
            self._at_most_where_used(use, _times(step, 1 / self.unit), [(1, self.steps[k])])
            if not self.in_turn:
                self._at_most_where_used(use, _times(work, 1 / self.unit), [(1, self.busy[k])])
            if np.isfinite(memory := device_class.memory_bytes):
                room = (memory - load.part_bytes) / memory
                self._at_most_where_used(use, _times(taken, 1 / memory), [(room, use)])
        return moved_in

    def _at_most_where_used(self, use: int, form: LinearForm, most: LinearForm) -> None:
        """`form` is at most `most` where the device is used; elsewhere it may be anything (big-M: all of it)."""
        everything = sum(value for value, _ in form if value > 0)
        self._at_least([*most, (-everything, use), *_times(form, -1)], -everything)

    def _received_and_sent(self, k: int) -> tuple[list[int], list[int]]:
        """For each tensor a variable that is 1 if part k receives it, and one that is 1 if part k sends it."""
        readers = self.load.readers
        received, sent = ([self._variable(1) for _ in range(readers.count)] for _ in range(2))
        for tensor, reader in zip(readers.item.tolist(), readers.group.tolist(), strict=True):
            writer = int(self.load.writer[tensor])
            self._at_least([(1, received[tensor]), *self._is_in(reader, k, -1), *self._is_in(writer, k)], 0)
            self._at_least([(1, sent[tensor]), *self._is_in(writer, k, -1), *self._is_in(reader, k)], 0)
        return received, sent

    def _shared(self, k: int) -> list[int]:
        """For each shared item a variable that is 1 if part k needs it."""
        edges = self.load.sharers
        found = [self._variable(1) for _ in range(edges.count)]
        for item, group in zip(edges.item.tolist(), edges.group.tolist(), strict=True):
            self._at_least([(1, found[item]), *self._is_in(group, k, -1)], 0)
        return found

    def _set_objective(self) -> None:
        busy: list[LinearForm] = [[(1.0, busy)] for busy in self.busy]
        objective: LinearForm = [(1.0, step) for step in self.steps]
        match self.problem.objective:
            case "period" | "size":
                objective = [(1.0, self._maximum(busy))]
            case "latency":
                pass
            case "token":
                objective = [(1.0, self._maximum([_times(objective, 1 / self.problem.in_flight), *busy]))]
            case "received":
                objective = [(value / self.unit, v) for form in self.received for value, v in form]
            case "parts":
                objective = [(1.0, use) for uses in self.uses for use in uses]
            case _:
                assert_never(self.problem.objective)
        for value, variable in objective:
            self.solver.changeColCost(variable, value)

    def _maximum(self, forms: Iterable[LinearForm]) -> int:
        """A variable that is no less than any of the forms."""
        most = self._variable(np.inf)
        for form in forms:
            self._at_least([(1, most), *_times(form, -1)], 0)
        return most


def _times(form: LinearForm, factor: float) -> LinearForm:
    return [(value * factor, variable) for value, variable in form]
