"""The cards of a scene: what each part of a plan or of a cascade holds, needs and takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..core.errors import CascadeError
from ..core.graph import Block, Graph
from ..core.manifest import Cascade, Part
from ..costs.device import Device
from ..costs.weighing import peak_bytes
from ..loading.model import Model
from ..planning.by_goal.cluster_mapping import COUNTING
from ..planning.goals import Across, Counted, Within
from ..planning.plans import Plan
from .scene import Card


def plan_card(made: Plan, part: int, name: str, content: str, column: int, holders: Mapping[int, int]) -> Card:
    """The card of a planned part.

    Args:
        made: the plan.
        part: the place of the part.
        name: what it is called.
        content: what stands in it.
        column: see `Card.column`.
        holders: for each node how many parts compute it for themselves.
    """
    block, graph = made.partition.blocks[part], made.graph
    device = made.devices[part] if isinstance(made.goal, Across) else None
    figures = made.metrics[part] if made.metrics else None
    weight_bytes = sum(graph.weights[name].bytes for name in block.weights)
    return Card(
        name=name,
        device=device.name if device is not None else "",
        content=content,
        nodes=len(block.nodes) + len(block.replicas),
        replicas=sum(not graph.nodes[node].is_constant or holders[node] > 1 for node in block.replicas),
        weight_bytes=weight_bytes,
        need_bytes=weight_bytes if figures is None else figures.written_bytes + counted_bytes(made, block),
        budget_bytes=_budget(made, device),
        activation_bytes=figures.activation_bytes if figures else None,
        flops=figures.flops if figures else None,
        busy_s=figures.busy_s if figures else None,
        reads=block.reads,
        writes=block.writes,
        column=column,
        intensity=figures.intensity if figures else None,
        last=graph.nodes[max(block.nodes)].name if block.nodes else "",
    )


def _budget(made: Plan, device: Device | None) -> int | None:
    if isinstance(made.goal, Within):
        return made.goal.memory_bytes
    return None if device is None else device.memory_bytes


def counted_bytes(made: Plan, block: Block) -> int:
    """What the goal counts of a part besides its files, as the planner counts it."""
    counting: Sequence[Counted] = ()
    if isinstance(made.goal, Within):
        counting = made.goal.counting
    elif isinstance(made.goal, Across):
        counting = COUNTING
    if not counting or made.costs is None:
        return 0
    sizes, graph = made.costs.tensor_bytes, made.graph
    pasts = {cache.past for cache in made.costs.caches}
    presents = {cache.present for cache in made.costs.caches}
    nodes = sorted({*block.nodes, *(node for node in block.replicas if not graph.nodes[node].is_constant)})
    own = {name: sizes[name] for node in nodes for name in graph.nodes[node].writes if name not in presents}
    caches = [*pasts.intersection(block.reads), *presents.intersection(block.writes)]
    parts: dict[Counted, Callable[[], int]] = {
        "inputs": lambda: sum(sizes[name][0] for name in block.reads if name not in pasts),
        "cache": lambda: sum(sizes[name][0] for name in caches),
        "activations": lambda: peak_bytes(graph, nodes, own, writes=block.writes),
    }
    return sum(parts[what]() for what in counting)


def cascade_card(cascade: Cascade, part: Part, replicas: int, content: str, column: int, last: str) -> Card:
    """The card of a part of a cascade, of which nothing but its files is known."""
    return Card(
        name=part.file,
        device=part.device or "",
        content=content,
        nodes=part.nodes,
        replicas=replicas,
        weight_bytes=part.weight_bytes,
        need_bytes=file_bytes(cascade, part),
        budget_bytes=None,
        activation_bytes=None,
        flops=None,
        busy_s=None,
        reads=part.reads,
        writes=part.writes,
        column=column,
        last=last,
    )


def file_bytes(cascade: Cascade, part: Part) -> int:
    """What a part takes of its files; where it shares those of the model, no more than the weights that it reads."""
    data = part.weight_bytes if cascade.manifest.weights == "share" else sum(part.data.values())
    return data + cascade.file(part).stat().st_size


def copies(cascade: Cascade, model: Model | None) -> Iterable[int]:
    """For each part how many of its nodes stand in others too."""
    holders = Counter(name for part in cascade.parts for name in part.replicas)
    flowing = set() if model is None else {model.graph.nodes[node].name for node in model.graph.flow}
    for part in cascade.parts:
        yield sum(holders[name] > 1 or name in flowing for name in part.replicas)


def homes_of(cascade: Cascade, model: Model) -> list[tuple[int, ...]]:
    """For each part the nodes whose home it is: all that what it gives out depends on, up to what it is fed.

    Raises:
        CascadeError: the parts do not hold each node of the model once.
    """
    graph = model.graph
    homes = [_home(graph, part) for part in cascade.parts]
    if sorted(node for home in homes for node in home) != list(graph.flow):
        raise CascadeError(
            f"{cascade.path.parent} was not cut from {model.path}: its parts hold other nodes",
            hint="name the model it was cut from, or split again",
        )
    return homes


def _home(graph: Graph, part: Part) -> tuple[int, ...]:
    fed, copied = set(part.reads), set(part.replicas)
    found: set[int] = set()
    wanted = list(part.writes)
    while wanted:
        name = wanted.pop()
        node = graph.producer.get(name)
        if node is not None and node not in found and name not in fed and not graph.nodes[node].is_constant:
            found.add(node)
            wanted.extend(graph.nodes[node].reads)
    return tuple(sorted(node for node in found if graph.nodes[node].name not in copied))
