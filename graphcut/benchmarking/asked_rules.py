"""What a provider can run of a model, asked from ONNX Runtime, which asks the provider's compiler."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import Final

import onnxruntime as ort

from ..analysis.cut_points import analyze
from ..core.graph import partition
from ..costs.device_rules import DeviceRules, Kind, RefusedNodes
from ..costs.weighing import weigh
from ..loading.model import Model
from ..running.device_memory import OF_CPU, device_memory
from ..running.placement import LIMIT_S, Asked, Placement, placement
from ..running.stage import external_weights_entry
from ..surgery.part_models import part_model

_MOST_TRIED: Final = 200  #: so many sub-models are compiled at most to find what is at fault.


def ask(
    model: Model, provider: str, options: Mapping[str, str] | None = None, *, limit_s: float = LIMIT_S
) -> DeviceRules:
    """The nodes of a model that a provider can't run, as rules for this model.

    Those that ONNX Runtime gives to another provider can't. Where the provider can't compile what is left, sub-models
    are compiled: the shortest row of nodes that fails has a node too many. The one with the fewest FLOPs is refused,
    with its like in all repeated layers, and the rest is tried again.

    Args:
        model: the model. Where its dims have numbers, its shapes are static.
        provider: the provider.
        options: its options.
        limit_s: to compile may take so long each time; a process of its own does it.

    Raises:
        RunError: the provider is not here, or can't be started.
    """
    asked = _Asked(model, partial(Asked, provider=provider, options=options or {}), partial(placement, limit_s=limit_s))
    source = f"asked from ONNX Runtime {ort.__version__}"
    return DeviceRules(name=provider, source=source, refused=tuple(asked.refused()))


@dataclass(frozen=True)
class _Asked:
    """What a provider said of a model and of its sub-models."""

    model: Model
    asked: Callable[..., Asked]  #: a question to the provider about a model.
    place: Callable[[Asked], Placement]  #: the answer.
    _answers: dict[tuple[int, ...], Placement] = field(default_factory=dict)

    @cached_property
    def _flops(self) -> Mapping[int, int]:
        return dict(zip(self.model.graph.flow, weigh(self.model).flops, strict=True))

    @cached_property
    def _alike(self) -> Mapping[int, Sequence[int]]:
        """For each node of a layer that the model repeats the nodes at its place in all layers."""
        repeat = analyze(self.model).repeat
        rows = zip(*repeat.blocks, strict=True) if repeat is not None else ()
        return {node: row for row in rows for node in row}

    def refused(self) -> Iterator[RefusedNodes]:
        """The nodes that it does not take, for each reason."""
        found: dict[int, tuple[Kind, str]] = {}
        while failed := next((row for row in self._rows(found) if self._fails(row)), None):
            if len(self._answers) > _MOST_TRIED:
                found.update(dict.fromkeys(failed, ("whole", "not tried: too many sub-models can't be compiled")))
                continue
            fault, why = self._fault(failed)
            found.update(dict.fromkeys(self._alike.get(fault, (fault,)), why))
        for row in self._rows(found):
            found.update({n: self._reason(n) for n in self._left(row)})
        for why in dict.fromkeys(found.values()):
            names = self.model.graph.names(n for n in self.model.graph.flow if found.get(n) == why)
            yield RefusedNodes(nodes=names, kind=why[0], why=why[1])

    def _rows(self, refused: Collection[int]) -> list[tuple[int, ...]]:
        """The nodes between refused ones."""
        return [tuple(row) for is_in, row in groupby(self.model.graph.flow, key=refused.__contains__) if not is_in]

    def _left(self, row: tuple[int, ...]) -> set[int]:
        """The nodes that it leaves to another provider.

        ONNX Runtime has folded or fused a node that no provider took: it goes where what reads it goes. If nothing here
        does, it may be in a fused node that is left, if there is one.
        """
        graph, answer, provider, left = self.model.graph, self._placed(row), self.asked().provider, set[int]()
        # The CPU computes sizes for a GPU.
        computes_sizes = () if device_memory(provider, {}) == OF_CPU else graph.size_nodes
        fallen, taken = {*answer.fallen_back(provider)}, {*answer.names.get(provider, ())}
        has_fused = not fallen.issubset(graph.names(row))
        for n in reversed(row):
            node = graph.nodes[n]
            readers = {reader for name in node.writes for reader in graph.readers.get(name, ())}.intersection(row)
            is_unknown = node.name not in taken and (has_fused if not readers else not left.isdisjoint(readers))
            if n not in computes_sizes and (node.name in fallen or is_unknown):
                left.add(n)
        return left

    def _reason(self, node: int) -> tuple[Kind, str]:
        """What is known of a node that the provider leaves to another one, which does not say why."""
        own, model = self.model.graph.nodes[node], self.model
        if not all(model.tensor_bytes[name][1] for name in (*own.reads, *own.writes)):
            return "shape", "not taken; dynamic shape"
        if any(name in model.graph.weights for name in own.reads):
            return "input", "not taken; a weight is an input"
        return "operator", "not taken"

    def _fault(self, nodes: tuple[int, ...]) -> tuple[int, tuple[Kind, str]]:
        """The node to leave out of nodes that can't be compiled, and why."""
        end = bisect_left(range(len(nodes) - 1), x=True, key=lambda i: self._fails(nodes[: i + 1]))
        length = bisect_left(range(end), x=True, key=lambda i: self._fails(nodes[end - i : end + 1]))
        row = nodes[end - length : end + 1]
        problem = self._placed(row).problem
        if len(row) == 1:
            return row[0], ("operator", f"can't be compiled: {problem[-60:]}")
        return min(row, key=self._flops.__getitem__), ("whole", f"{len(row)} nodes in a row can't be compiled")

    def _fails(self, nodes: tuple[int, ...]) -> bool:
        return bool(self._placed(nodes).problem)

    def _placed(self, nodes: tuple[int, ...]) -> Placement:
        if nodes not in self._answers:
            entries = external_weights_entry(self.model.path.parent)
            asked = self.asked(message=self._sub_model(nodes), dims=dict(self.model.dims), entries=entries)
            self._answers[nodes] = self.place(asked)
        return self._answers[nodes]

    def _sub_model(self, nodes: tuple[int, ...]) -> bytes:
        """These nodes, consecutive ones, as a model whose nodes have the names that graphcut gives them."""
        flow, graph = self.model.graph.flow, self.model.graph
        first, last = flow.index(nodes[0]), flow.index(nodes[-1])
        groups = [group for group in (flow[:first], nodes, flow[last + 1 :]) if group]
        proto = part_model(self.model, partition(graph, groups).blocks[bool(first)])
        names = {name: node.name for node in graph.nodes for name in node.writes}
        for node in proto.graph.node:
            node.name = next((names[name] for name in node.output if name in names), node.name)
        return proto.SerializeToString()
