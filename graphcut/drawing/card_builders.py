"""The cards of a scene: what each part of a plan or of a cascade holds and needs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..core.errors import CascadeError
from ..core.graph import Graph, between
from ..core.manifest import Cascade, Loop, Part
from ..costs.device import COUNTING
from ..loading.model import Model
from ..planning.goals import Across, Goal, counted_by
from ..planning.plans import Plan
from .part_labels import part_labels
from .scene import Card, Modules, NodeRows

_PREDICTED: Final = ("activation_bytes", "flops", "busy_s", "intensity")  #: fields of a card, by the metrics of a part.


def plan_card(plan: Plan, index: int, name: str, content: str, depth: int, holders: Mapping[int, int]) -> Card:
    """The card of the part with that index; `holders` is the number of parts that recompute each replicated node."""
    block, graph = plan.partition.blocks[index], plan.graph
    metrics = plan.metrics[index] if plan.metrics else None
    weight_bytes = sum(graph.weights[name].bytes for name in block.weights)
    return Card(
        name=name,
        device=plan.devices[index].name if isinstance(plan.goal, Across) else "",
        content=content,
        nodes=sum(not graph.nodes[node].is_constant for node in (*block.nodes, *block.replicas)),
        replicas=sum(not graph.nodes[node].is_constant or holders[node] > 1 for node in block.replicas),
        weight_bytes=weight_bytes,
        need_bytes=weight_bytes if metrics is None else plan.needs[index],
        measure="weights" if metrics is None else _measure(plan.goal),
        need_exact=metrics is None or metrics.is_exact or _measure(plan.goal) == _measure(None),
        is_exact=metrics is None or metrics.is_exact,
        budget_bytes=plan.budgets[index],
        reads=block.reads,
        writes=block.writes,
        depth=depth,
        **({name: getattr(metrics, name) for name in _PREDICTED} if metrics else {}),
        last_node=graph.nodes[max(block.nodes)].name if block.nodes else "",
    )


def _measure(goal: Goal | None) -> str:
    """`Card.measure` of a part whose goal this is."""
    counting = counted_by(goal)
    if {*counting} == {*COUNTING}:
        return "needs"
    return " and ".join(", ".join(("weights", "graph", *counting)).rsplit(", ", 1))


def cascade_card(cascade: Cascade, part: Part, replicas: int, content: str, depth: int, last_node: str) -> Card:
    """The card of a cascade's part: only what its manifest and its files tell."""
    return Card(
        name=part.file,
        device=part.device or "",
        rank=part.rank,
        content=content,
        nodes=part.nodes if part.flowing is None else part.flowing,
        replicas=replicas,
        weight_bytes=part.weight_bytes,
        **needs_of(cascade, part),
        reads=part.reads,
        writes=part.writes,
        depth=depth,
        last_node=last_node,
    )


def needs_of(cascade: Cascade, part: Part) -> dict[str, Any]:
    """The fields of a card that say what a part needs: its memory; its files if the manifest does not tell it."""
    if part.memory is None:
        return {"need_bytes": file_bytes(cascade, part), "measure": _measure(None)}
    budgets = (host.memory_bytes for host in cascade.manifest.devices if host.name == part.device)
    needed = {"need_bytes": part.memory.needs, "need_exact": part.memory.is_exact}
    return {**needed, "measure": "needs", "budget_bytes": next(budgets, None)}


def file_bytes(cascade: Cascade, part: Part) -> int:
    """The size of a part's files; of files shared with the model or other parts, only the weights that it reads."""
    is_shared = cascade.manifest.weights == "share" or part.rank is not None
    data = part.weight_bytes if is_shared else sum(file.bytes for file in part.data.values())
    return data + cascade.file(part).stat().st_size


def replica_counts(cascade: Cascade, model: Model | None) -> Iterable[int]:
    """For each part the number of its nodes that are in other parts, too."""
    holders = Counter(name for part in cascade.parts for name in part.replicas)
    flowing = set() if model is None else {model.graph.nodes[node].name for node in model.graph.flow}
    for part in cascade.parts:
        yield sum(holders[name] > 1 or name in flowing for name in part.replicas)


def own_nodes(cascade: Cascade, model: Model) -> list[tuple[int, ...]]:
    """For each part the flowing nodes it computes, without its replicas: every flowing node is in exactly one part."""
    graph = model.graph
    rows = [_own_nodes(graph, part) for part in cascade.parts]
    if sorted(node for row in rows for node in row) != list(graph.flow):
        message = f"{cascade.path.parent} was not cut from {model.path}: its parts hold other nodes"
        raise CascadeError(message, hint="name the model it was cut from, or split again")
    return rows


def _own_nodes(graph: Graph, part: Part) -> tuple[int, ...]:
    """All nodes between the part's inputs and its outputs, without its replicas."""
    ends, replicas = (part.derived.get(name, name) for name in part.writes), set(part.replicas)
    nodes, _ = between(graph, {*part.reads, *part.derived}, ends)
    return tuple(node for node in nodes if graph.nodes[node].name not in replicas)


def contents(model: Model, rows: NodeRows, modules: Modules) -> Iterable[str]:
    """For each part, given by its nodes, what it holds: of a pipeline its models, and modules where they say more."""
    graph = model.graph
    for row, label in zip(rows, part_labels(graph, rows, modules), strict=True):
        written = (name for node in row for name in graph.nodes[node].writes)
        models = dict.fromkeys(model.labels[name] for name in written if name in model.labels)
        is_more = label and not models.keys() >= {*label.split(", ")}
        yield f"{', '.join(models)}: {label}" if models and is_more else ", ".join(models) or label


def by_phase(cards: Sequence[Card], phases: Sequence[int], loop: Loop | None) -> tuple[Card, ...]:
    """The cards with when they run, see `run_phases`; those of a phase are deeper than those of the one before."""
    if not phases:
        return tuple(cards)
    words = "once", "each step" if loop is None else f"each of {loop.steps} steps", "at the end"
    places = [(phase, card.depth) for phase, card in zip(phases, cards, strict=True)]
    depths = {place: depth for depth, place in enumerate(sorted({*places}))}
    found = zip(cards, places, strict=True)
    return tuple(replace(card, runs=words[place[0]], depth=depths[place]) for card, place in found)
