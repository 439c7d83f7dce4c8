"""`Across(objective="crossings")`: the fewest changes of the device, with all FLOPs where they take the least time.

It is for an accelerator that can't run every node, beside a device that can: each node with FLOPs is on the fastest
device that can run it. One without FLOPs is on any that can, so that it costs no crossing.

Example: an accelerator can run all but nodes 1 and 3 of a chain of five, and node 2 moves data alone. Then 1, 2 and 3
are one part on the CPU: two crossings, and not four.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

import numpy as np

from ...core.errors import UsageError
from ...costs.device import NodeSeconds
from ...costs.device_rules import DeviceRules
from ...costs.device_support import first_nodes
from ...solving.chain_dp import ChainPartition
from ...solving.instance import Bools, Workload
from ...solving.order_prefixes import prefix_tables
from ...solving.relaxed_tables import LowerBounds
from ...solving.search import SearchResult
from ...solving.topological_orders import fastest, fewest_runs
from ..goals import Across
from ..problem import PlanningProblem
from ..results import Solution
from .cluster_mapping import ClusterEvaluator
from .no_plan import check_all_can_run


def plan_crossings(problem: PlanningProblem, goal: Across, seconds: NodeSeconds) -> Solution:
    """The plan with the fewest crossings; it is exact for two kinds of devices.

    A part that is larger than rules allow is cut greedily; memory is not planned for.
    """
    if problem.pins:
        raise UsageError("nodes can't be pinned where crossings are counted", hint="leave out `pins`")
    evaluator = ClusterEvaluator.of(problem, goal, seconds)
    load, classes = evaluator.load, evaluator.classes
    check_all_can_run(problem, load)
    flops = dict(zip(problem.graph.flow, problem.costs.flops, strict=True))
    is_free = np.array([not any(flops[node] for node in group) for group in problem.groups])
    may_run = fastest(load.work) | (np.isfinite(load.work) & is_free)
    fewest = fewest_runs(load, may_run)
    rules = [(one.devices[0].rules, first_nodes(problem.costs, one.devices[0].rules)) for one in classes]
    runs = [(c, part) for c, run in fewest for part in _within_limits(problem, load, run, *rules[c])]
    order, ends = tuple(group for _, run in runs for group in run), [0, *accumulate(len(run) for _, run in runs)]
    value = float(len(runs) - 1)
    bound = float(len(fewest) - 1 if len(classes) <= 2 else _fewest_on_paths(load, may_run))
    kinds = tuple(c for c, _ in runs)
    chain = ChainPartition(tuple(range(len(ends))), kinds, (value,), is_best=False)
    result = SearchResult(prefix_tables(load, order, ends), chain)
    devices = tuple(classes[c].devices[0] for c in kinds)
    return Solution(result, devices, "changes of the device", "crossings", LowerBounds(bound, bound, bound), (), "sum")


def _within_limits(
    problem: PlanningProblem, load: Workload, run: Sequence[int], rules: DeviceRules | None, first: Collection[int]
) -> Iterator[tuple[int, ...]]:
    """A run in parts that keep the rules' limits of nodes and bytes, unless a group alone does not.

    A group with one of the `first` nodes begins a part.
    """
    limits = [*rules.part_limits.values()][:2] if rules is not None else []
    most = np.array([np.inf if limit is None else limit for limit in limits])
    costs = [np.array([load.single_bytes[g] + load.part_bytes, len(problem.groups[g])])[: len(most)] for g in run]
    begin = 0
    for end in range(1, len(run) + 1):
        is_last = end == len(run) or any(node in first for node in problem.groups[run[end]])
        if is_last or (sum(costs[begin : end + 1]) > most).any():
            yield tuple(run[begin:end])
            begin = end


def _fewest_on_paths(load: Workload, may_run: Bools) -> int:
    """The most changes that any path of groups needs: no plan has fewer."""
    changes = np.where(may_run, 0.0, np.inf)
    for group in range(load.groups):
        for before in load.edges[0][group]:
            cheapest = np.minimum(changes[:, before], changes[:, before].min() + 1)
            changes[:, group] = np.maximum(changes[:, group], cheapest)
    return int(changes.min(axis=0).max())
