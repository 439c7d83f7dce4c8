"""What the page needs to predict parts as plans do: its script has the formulas of `planning/predictions.py`."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from ..core.graph import grouped
from ..core.wiring import MESSAGE_BYTES
from ..costs.cluster import Cluster
from ..costs.device import run_s
from ..costs.held_weights import CAST_BYTES, HeldWeights, Holding
from ..costs.kernel_work import kernel_work
from ..costs.matching import apply_table
from ..costs.part_memory import computed_bytes
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from ..planning.disk_size import memory_sizes, serialized_sizes
from ..planning.goals import Across, Into, Within, counted_by
from ..planning.plans import ANY_DEVICE, Plan
from ..planning.predictions import driven_bytes
from .cut_model import flowing_tensors
from .scene import PageData

#: what is minimized, as the script names it: by what parts are balanced by, and by the objective for a cluster.
_BALANCED: Final[Mapping[str, str]] = {"time": "busy_s", "bytes": "written_bytes", "flops": "flops"}
_OBJECTIVES: Final[Mapping[str, str]] = {"throughput": "period_s", "latency": "latency_s", "decode": "token_s"}


def cut_costs_of(model: Model, plan: Plan | None = None, dims: Mapping[str, int] | None = None) -> PageData | None:
    """The costs for cuts in `model`, by the rules of `plan`; of one without a goal that counts, those of one device.

    Nodes are named as in `cut_model_of`.
    None if parts of the plan are not on one device each, on devices that hold weights in different ways or have rules,
    or send other tensors than the model has.
    """
    goal = None if plan is None else plan.goal
    costs = (plan and plan.costs) or weigh(model, dims if plan is None else plan.dims)
    cluster = goal.cluster if isinstance(goal, Across) else Cluster(devices=(ANY_DEVICE,), overlap="none")
    is_mixed = len({device.widened for device in cluster.devices}) > 1
    has_rules = any(device.rules is not None for device in cluster.devices)
    if is_mixed or has_rules or (plan is not None and (plan.has_groups or costs.sends_half)):
        return None
    held = costs.held(cluster.devices[0])
    return {
        **_of_tensors(costs, held, driven_bytes(goal, costs) if isinstance(goal, Across) else {}),
        **_of_nodes(costs, held),
        **_of_devices(costs, cluster, plan),
        **_of_goal(costs, plan),
    }


def _of_tensors(costs: Costs, held: HeldWeights, sent: Mapping[str, int]) -> PageData:
    graph, sizes = costs.model.graph, costs.model.once(serialized_sizes)
    computed = {t: n for node in graph.flow for t, n in computed_bytes(held, node, costs.tensor_bytes).items()}
    names = flowing_tensors(graph)
    place = {name: i for i, name in enumerate(names)}
    return {
        # For each tensor of `cut_model_of` its size where it is computed; what it takes in the file of a part that
        # reads it, and how much less in that of the part that writes it.
        "computed": tuple(computed.get(name, costs.tensor_bytes[name][0]) for name in names),
        "declared": tuple(sizes.declarations[name] for name in names),
        "listed": tuple(sizes.listed.get(name, 0) for name in names),
        # Which tensors are outputs of the model, inputs that are caches, outputs that are caches; and those that travel
        # from and to the driver of a cluster, with their bytes.
        "outputs": tuple(place[name] for name in dict.fromkeys(graph.writes) if name in place),
        "pasts": tuple(place[cache.past] for cache in costs.caches),
        "presents": tuple(place[cache.present] for cache in costs.caches),
        "sent": tuple((place[name], number) for name, number in sorted(sent.items()) if name in place),
    }


def _of_nodes(costs: Costs, held: HeldWeights) -> PageData:
    graph, sizes = costs.model.graph, costs.model.once(serialized_sizes)
    memory, index = memory_sizes(costs.model, sizes), graph.flow_index
    works = [kernel_work(held, node, costs.tensor_bytes) for node in graph.flow]
    return {
        # What devices hold of each weight that nodes read, see held_weights.py; which nodes are cast for a node, see
        # `execution_order`; and what the kernel of each node takes besides, see kernel_work.py.
        "held": tuple(_held(held, index)),
        "casts": tuple((index[node], [index[one] for one in own]) for node in graph.flow if (own := held.casts(node))),
        "work": tuple((*work[:3], tuple(index[node] for node in work.ends)) for work in works),
        # What each node takes in a file; what takes bytes once in a part that has one of some nodes; what every part
        # takes; the FLOPs of each node.
        "nodes": tuple(sizes.nodes[node] for node in graph.flow),
        "shared": tuple((number, tuple(index[node] for node in users)) for number, users in sizes.shared if users),
        "part": sizes.part,
        "flops": costs.flops,
        # The same of what counts in memory.
        "inner": tuple(memory.nodes[node] for node in graph.flow),
        "loaded": tuple((number, tuple(index[node] for node in users)) for number, users in memory.shared if users),
        "session": memory.part,
    }


def _of_devices(costs: Costs, cluster: Cluster, plan: Plan | None) -> PageData:
    named = plan.devices if plan is not None and isinstance(plan.goal, Across) else ()
    devices = (*named, *(device for device in cluster.devices if device not in named))
    table = None if plan is None else plan.table
    seconds = [run_s(costs, device) if table is None else apply_table(costs, table, device)[0] for device in devices]
    kinds = {row: i for i, row in enumerate(dict.fromkeys(seconds))}
    return {
        # The device of each part, then the others, and the kind of each; without a cluster one, as it is assumed. A
        # part more than there are devices in a cluster has none. The seconds of each node for each kind.
        "devices": devices,
        "kinds": tuple(kinds[row] for row in seconds),
        "seconds": tuple(kinds),
        # Direct links, the machine of the driver, and its rule; where it holds, a tensor of at most so many bytes
        # travels in messages. Seconds that others take besides link and latency, and a step besides all that.
        "links": cluster.links,
        "driver": cluster.driver,
        "overlap": cluster.overlap,
        "message_bytes": -1 if cluster.overlap == "none" else MESSAGE_BYTES,
        "store_s": cluster.stored_s(inf),
        "step_s": cluster.step_s,
    }


def _of_goal(costs: Costs, plan: Plan | None) -> PageData:
    goal = None if plan is None else plan.goal
    balanced = _BALANCED.get(goal.by, "") if isinstance(goal, Into) else ""
    return {
        "is_cluster": isinstance(goal, Across),
        # What counts besides files, and the most that it may be, without a cluster.
        "counting": counted_by(goal),
        "budget_bytes": goal.memory_bytes if isinstance(goal, Within) else None,
        # What the goal minimizes, as the script names it, empty if it can't be told; what the plan reached, and whether
        # its bound is that of plans with as many parts.
        "value": _OBJECTIVES.get(goal.objective, "") if isinstance(goal, Across) else balanced,
        "in_flight": goal.in_flight if isinstance(goal, Across) else 1,
        "step_tokens": costs.step_tokens,
        "best": None if plan is None else plan.outcome,
        "needs_parts": isinstance(goal, Into),
    }


def _held(weights: HeldWeights, index: Mapping[int, int]) -> Iterator[tuple[int, list[tuple[float, ...]]]]:
    """The bytes of each weight, and the nodes that read it, each with its `Holding`."""
    uses = ((name, (index[node], *use)) for node, own in weights.uses.items() for name, use in own.items())
    users: dict[str, list[tuple[float, ...]]] = grouped(uses)
    yield from ((weights.model.graph.weights[name].bytes, rows) for name, rows in users.items())
    for node, i in index.items():
        if times := weights.remakings(node):
            yield CAST_BYTES, [(i, *Holding(1.0 + times))]
