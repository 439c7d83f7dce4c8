"""`Heads`: one part for each head of a model, and one for the trunk that several of them need."""

from collections import Counter
from collections.abc import Iterable

from ...core.errors import PlanError, UsageError, check_names
from ...core.graph import Graph, reached
from ...solving.instance import Parts
from ..goals import Heads


def parts_of_heads(graph: Graph, goal: Heads) -> Parts:
    """The nodes of the trunk, if there is one, and of each head in the order of the goal.

    A head holds the nodes that only its outputs need. The trunk holds the nodes that outputs of several heads need, or
    an output that no head names. Heads do not read from each other, so they can run side by side.
    """
    groups = goal.groups or tuple((name,) for name in dict.fromkeys(graph.writes))
    _check(graph, groups)
    named = {name for group in groups for name in group}
    needed = [_ancestors(graph, group) for group in groups]
    unnamed = _ancestors(graph, (name for name in graph.writes if name not in named))
    uses = Counter(node for nodes in (*needed, unnamed, unnamed) for node in nodes)
    trunk = tuple(node for node in graph.flow if uses[node] != 1)
    heads = [tuple(node for node in graph.flow if node in nodes and uses[node] == 1) for nodes in needed]
    parts = tuple(part for part in (trunk, *heads) if part)
    if len(parts) < 2:
        hint = "`analyze(...)` lists the outputs; name those that belong together in one group of `Heads`"
        raise PlanError("these outputs share all their nodes: no head can be cut off", hint=hint)
    return parts


def _check(graph: Graph, groups: Iterable[tuple[str, ...]]) -> None:
    for name, times in Counter(name for group in groups for name in group).items():
        check_names([name], graph.writes, "the model has no output", "its outputs:")
        if times > 1:
            raise UsageError(f"output {name!r} is in two heads", hint="name each output once")


def _ancestors(graph: Graph, outputs: Iterable[str]) -> set[int]:
    """The flowing nodes that some of the outputs depend on."""
    writers = {graph.producer[name] for name in outputs if name in graph.producer}
    return reached(writers.intersection(graph.flow), graph.predecessors)
