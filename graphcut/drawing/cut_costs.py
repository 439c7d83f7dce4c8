"""What the page needs to predict parts as plans do: its script has the formulas of `planning/predictions.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from ..core.wiring import MESSAGE_BYTES
from ..costs.cluster import Cluster, Host, NetworkLink
from ..costs.device import Counted, Device, run_s
from ..costs.matching import apply_table
from ..costs.weighing import weigh
from ..loading.model import Model
from ..planning.by_goal.cluster_mapping import COUNTING
from ..planning.disk_size import serialized_sizes
from ..planning.goals import Across, Into, Within
from ..planning.plans import ANY_DEVICE, Plan
from ..planning.predictions import travelling
from ..planning.results import Optimality

_VALUES: Final[Mapping[str, str]] = {
    "time": "busy_s",
    "bytes": "written_bytes",
    "flops": "flops",
    "throughput": "period_s",
    "latency": "latency_s",
    "decode": "token_s",
}
"""For what a goal compares parts by, or its objective, the name that the script has for what is minimized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCosts:
    """The costs of nodes and tensors. Nodes are named as in `CutModel`."""

    #: an activation each: the node that writes it (-1 for an input of the model), and the nodes that read it.
    writers: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    bytes: tuple[int, ...]  #: its size.
    exact: tuple[bool, ...]  #: whether that is known.
    declared: tuple[int, ...]  #: what it takes in the file of a part that reads it,
    listed: tuple[int, ...]  #: and so much less in that of the part that writes it.
    outputs: tuple[int, ...]  #: which of them are outputs of the model,
    pasts: tuple[int, ...]  #: inputs that are caches,
    presents: tuple[int, ...]  #: outputs that are caches,
    sent: tuple[tuple[int, int], ...]  #: and those that travel from and to the driver of a cluster, with their bytes.
    nodes: tuple[int, ...]  #: what each node takes in a file.
    shared: tuple[tuple[int, tuple[int, ...]], ...]  #: what takes bytes once in a part that has one of these nodes.
    part: int  #: what every part takes.
    flops: tuple[int, ...]  #: of each node.
    seconds: tuple[tuple[float, ...], ...]  #: what each node takes, for each kind of device.
    devices: tuple[Device, ...]  #: the device of each part, then the others; without a cluster one, as it is assumed.
    kinds: tuple[int, ...]  #: the kind of each of these.
    is_cluster: bool  #: whether these are the devices of a cluster: a part more than there are has none.
    links: tuple[NetworkLink, ...]  #: its direct links,
    driver: Device | Host  #: the machine of its driver,
    overlap: str  #: and its rule;
    message_bytes: int  #: where it holds, a tensor of at most so many travels in messages, to and from the driver.
    store_s: float  #: seconds that others take besides link and latency.
    step_s: float  #: seconds that a step takes besides messages, tensors and computing.
    counting: tuple[Counted, ...]  #: what counts besides files,
    budget_bytes: int | None  #: and the most that it may be, without a cluster.
    value: str = ""  #: what the goal minimizes, as the script names it; empty if it can't be told.
    in_flight: int = 1  #: the number of sequences, for tokens a second.
    best: Optimality | None = None  #: what the plan reached, and its bound.
    needs_parts: bool = False  #: the bound is that of plans with as many parts.


def cut_costs_of(model: Model, plan: Plan | None = None, dims: Mapping[str, int] | None = None) -> CutCosts | None:
    """The costs for cuts in `model`, by the rules of `plan`; of one without a goal that counts, those of one device.

    None if parts of the plan are not on one device each, or send other tensors than the model has.
    """
    goal = None if plan is None else plan.goal
    costs = (plan and plan.costs) or weigh(model, dims if plan is None else plan.dims)
    if plan is not None and (plan.has_groups or costs.sends_half):
        return None
    graph, sizes = model.graph, serialized_sizes(model)
    index = {node: i for i, node in enumerate(graph.flow)}
    names = list(dict.fromkeys(t for n in index for t in (*graph.nodes[n].reads, *graph.nodes[n].writes)))
    place = {name: i for i, name in enumerate(names)}
    cluster = goal.cluster if isinstance(goal, Across) else Cluster(devices=(ANY_DEVICE,), overlap="none")
    named = plan.devices if plan is not None and isinstance(goal, Across) else ()
    devices = (*named, *(device for device in cluster.devices if device not in named))
    table = None if plan is None else plan.table
    seconds = [run_s(costs, device) if table is None else apply_table(costs, table, device)[0] for device in devices]
    kinds = {row: i for i, row in enumerate(dict.fromkeys(seconds))}
    sent = travelling(goal, costs) if isinstance(goal, Across) else {}
    return CutCosts(
        writers=tuple(index.get(graph.producer.get(name, -1), -1) for name in names),
        readers=tuple(tuple(index[node] for node in graph.readers.get(name, ())) for name in names),
        bytes=tuple(costs.tensor_bytes[name][0] for name in names),
        exact=tuple(costs.tensor_bytes[name][1] for name in names),
        declared=tuple(sizes.declarations[name] for name in names),
        listed=tuple(sizes.listed.get(name, 0) for name in names),
        outputs=tuple(place[name] for name in dict.fromkeys(graph.writes) if name in place),
        pasts=tuple(place[cache.past] for cache in costs.caches),
        presents=tuple(place[cache.present] for cache in costs.caches),
        sent=tuple((place[name], number) for name, number in sorted(sent.items()) if name in place),
        nodes=tuple(sizes.nodes[node] for node in graph.flow),
        shared=tuple((number, tuple(index[node] for node in users)) for number, users in sizes.shared if users),
        part=sizes.part,
        flops=costs.flops,
        seconds=tuple(kinds),
        devices=devices,
        kinds=tuple(kinds[row] for row in seconds),
        is_cluster=isinstance(goal, Across),
        links=cluster.links,
        driver=cluster.driver,
        overlap=cluster.overlap,
        message_bytes=-1 if cluster.overlap == "none" else MESSAGE_BYTES,
        store_s=cluster.stored_s(inf),
        step_s=cluster.step_s,
        counting=goal.counting if isinstance(goal, Within) else COUNTING if isinstance(goal, Across) else (),
        budget_bytes=goal.memory_bytes if isinstance(goal, Within) else None,
        value=_VALUES.get(
            goal.by if isinstance(goal, Into) else goal.objective if isinstance(goal, Across) else "", ""
        ),
        in_flight=goal.in_flight if isinstance(goal, Across) else 1,
        best=None if plan is None else plan.outcome,
        needs_parts=isinstance(goal, Into),
    )
