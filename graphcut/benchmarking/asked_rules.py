"""What a provider can run of a model, or of the parts of a plan, asked from ONNX Runtime, which asks its compiler."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic
from typing import Final

import onnxruntime as ort
from msgspec.structs import replace
from onnx.parser import parse_model

from ..analysis.cut_points import AnalysisLike, analyze
from ..core.errors import RunError
from ..core.graph import between, grouped, outside_reads, partition
from ..core.text import few
from ..costs.device import Device
from ..costs.device_rules import DeviceRules, Kind, RefusedNodes
from ..loading.model import Model
from ..planning.goals import Across
from ..planning.planner import plan
from ..planning.plans import Plan
from ..running.device_memory import OF_CPU, device_memory
from ..running.placement import LIMIT_S, Asked, Placement, placement
from ..running.providers import entries, fixed_sizes
from ..running.stage import external_weights_entry
from ..surgery.part_models import part_model

_MOST_TRIED: Final = 200  #: so many sub-models are compiled at most to find what is at fault.
_MOST_TRIED_S: Final = 10 * LIMIT_S  #: so long they are compiled at most.
_NO_DEVICE: Final = "are its options right, and is its device here, with a driver? Else give a rule file"
_SIGMOID: Final = '<ir_version: 8, opset_import: ["": 13]> g (float[1, 4] x) => (float[1, 4] y) { y = Sigmoid(x) }'
_SOURCE: Final = f"asked from ONNX Runtime {ort.__version__}"


def ask(model: Model, provider: str, options: Mapping[str, str] | None = None) -> DeviceRules:
    """The nodes of a model that a provider can't run, as rules for this model.

    Those that ONNX Runtime gives to another provider can't. Where the provider can't compile what is left, sub-models
    are compiled: the shortest row of nodes that fails has a node too many. If it is one alone, it is refused, else the
    last of them is in rules of the kind `whole`, with its like in all repeated layers. The rest is tried again.

    Args:
        model: the model. Where its dims have numbers, its shapes are static.
        provider: the provider.
        options: its options.

    Raises:
        RunError: the provider is not here, can't be started, or fails on any model.
    """
    asked = _Asked(model, Asked(provider=provider, options=options or {}), placement)
    return DeviceRules(name=provider, source=_SOURCE, refused=tuple(asked.refused((model.graph.flow,))))


def compiled(source: AnalysisLike, made: Plan, prove_s: float = 0.0) -> Plan:
    """A plan, or one for the same goal whose parts compile on the devices that say `compiles`.

    Parts are compiled as `ask` compiles a model. While the compiler of one leaves nodes or fails, the rules of its
    device refuse what is at fault, and all is planned again. For crossings, a node that compiles, but not together with
    those before it, begins a part instead. What was compiled is not compiled again. After 20 minutes, or 200 trials,
    whatever else fails is refused.

    Args:
        source: the analysis of the model that is cut, the model, or its path.
        made: the plan.
        prove_s: as for `plan`.

    Raises:
        PlanError: no plan meets the goal, such as if no device can run a node.
        RunError: the provider of such a device is not here, or can't be started.
    """
    analysis, goal, limits = analyze(source), made.goal, replace(made.limits, inside_layers=True)
    compilers = {
        d.name: _Asked(analysis.model, Asked(provider=d.provider, options=entries(d.provider_options)), placement)
        for d in (goal.cluster.devices if isinstance(goal, Across) else ())
        if d.compiles
    }
    while isinstance(goal, Across):
        parts = grouped((device.name, nodes) for device, nodes in zip(made.devices, made.parts, strict=True))
        found = {name: tuple(compilers[name].refused(own)) for name, own in parts.items() if name in compilers}
        if not any(found.values()):
            break
        devices = (_without(device, found.get(device.name, ())) for device in goal.cluster.devices)
        goal = replace(goal, cluster=replace(goal.cluster, devices=tuple(devices)))
        made = plan(analysis, goal, limits=limits, costs=made.costs, table=made.table, prove_s=prove_s)
    return made


def _without(device: Device, found: Sequence[RefusedNodes]) -> Device:
    """The device with rules that also refuse what was found. What begins a part and still fails can't run at all."""
    rules = device.rules or DeviceRules(name=device.name, source=_SOURCE)
    begun = {name for one in rules.refused if one.kind == "whole" for name in one.nodes}
    last = (one if begun.isdisjoint(one.nodes) else replace(one, kind="operator") for one in found)
    return replace(device, rules=replace(rules, refused=(*rules.refused, *last)))


@dataclass(frozen=True)
class _Asked:
    """What a provider said of a model and of its sub-models."""

    model: Model
    asked: Asked  #: a question to the provider, without a model.
    place: Callable[[Asked], Placement]  #: the answer.
    _answers: dict[tuple[int, ...], Placement] = field(default_factory=dict)
    _end_s: float = field(default_factory=lambda: monotonic() + _MOST_TRIED_S)  #: until when what fails is searched.

    def refused(self, parts: Sequence[Sequence[int]]) -> Iterator[RefusedNodes]:
        """The nodes of some parts that it does not take, for each reason; of kind `whole` those that begin another."""
        found: dict[int, tuple[Kind, str]] = {}
        while failed := next((row for row in self._rows(parts, found) if self._placed(row).problem), None):
            if len(self._answers) > _MOST_TRIED or monotonic() > self._end_s:
                found.update(dict.fromkeys(failed, ("size", "not tried: too much else can't be compiled")))
                continue
            found.update(dict.fromkeys(*self._faults(failed)))
        for row in self._rows(parts, found):
            found.update({n: self._reason(n) for n in self._left(row)})
        for why in dict.fromkeys(found.values()):
            names = self.model.graph.names(n for n in self.model.graph.flow if found.get(n) == why)
            yield RefusedNodes(nodes=names, kind=why[0], why=why[1])

    def _rows(self, parts: Sequence[Sequence[int]], found: Mapping[int, tuple[Kind, str]]) -> list[tuple[int, ...]]:
        """The nodes of the parts between those that were found, and with them those that begin a part."""
        numbered = (zip(accumulate(map(found.__contains__, part)), part, strict=True) for part in parts)
        pieces = (piece for pairs in numbered for piece in grouped(pairs).values())
        left = {n for n, (kind, _) in found.items() if kind != "whole"}
        return [row for piece in pieces if (row := tuple(n for n in piece if n not in left))]

    def _left(self, row: tuple[int, ...]) -> set[int]:
        """The nodes that it leaves to another provider, or whose constants it leaves.

        ONNX Runtime has folded or fused a node that no provider took: it goes where what reads it goes. If nothing here
        does, it may be in a fused node that is left, if there is one, as all of them may if nothing else is left.
        """
        graph, answer, provider, left = self.model.graph, self._placed(row), self.asked.provider, set[int]()
        # The CPU computes sizes for a GPU.
        computes_sizes = () if device_memory(provider, {}) == OF_CPU else graph.size_nodes
        fallen, taken = {*answer.fallen_back(provider)}, {*answer.names.get(provider, ())}
        names = {n: {graph.nodes[n].name, *graph.names(graph.constants_of[n])} for n in row}
        has_fused = bool(fallen.difference(*names.values()))
        for n in reversed(row):
            node = graph.nodes[n]
            readers = {reader for name in node.writes for reader in graph.readers.get(name, ())}.intersection(row)
            is_unknown = node.name not in taken and (has_fused if not readers else not left.isdisjoint(readers))
            if n not in computes_sizes and (is_unknown or not fallen.isdisjoint(names[n])):
                left.add(n)
        return left or {n for n in row if has_fused and graph.nodes[n].name not in taken and n not in computes_sizes}

    def _reason(self, node: int) -> tuple[Kind, str]:
        """What is known of a node that the provider leaves to another one, which does not say why."""
        own, model = self.model.graph.nodes[node], self.model
        if not all(model.tensor_bytes[name][1] for name in (*own.reads, *own.writes)):
            return "shape", "not taken; dynamic shape"
        if any(name in model.graph.weights for name in own.reads):
            return "input", "not taken; a weight is an input"
        return "operator", "not taken"

    def _faults(self, nodes: tuple[int, ...]) -> tuple[Sequence[int], tuple[Kind, str]]:
        """The last of the fewest nodes in a row that can't be compiled: to leave out, or to begin a part with; and why.

        With its like in all repeated layers, unless more nodes fail together than a layer has.
        """
        end = bisect_left(range(len(nodes) - 1), x=True, key=lambda i: bool(self._placed(nodes[: i + 1]).problem))
        length = bisect_left(range(end), x=True, key=lambda i: bool(self._placed(nodes[end - i : end + 1]).problem))
        row, repeat, own = nodes[end - length : end + 1], analyze(self.model).repeat, self.model.graph.nodes
        kind: Kind = "whole" if len(row) > 1 else "operator"
        together = f" together ({few([own[n].op for n in row], 8)})" if kind == "whole" else ""
        why = f"can't be compiled{together}: {' '.join(self._placed(row).problem.split()[-8:])}"
        places = () if repeat is None or len(row) > len(repeat.blocks[0]) else zip(*repeat.blocks, strict=True)
        like = next((place for place in places if row[-1] in place), row[-1:])
        return [node for node in like if own[node].op == own[row[-1]].op], (kind, why)

    def _placed(self, nodes: tuple[int, ...]) -> Placement:
        """The answer for these nodes; for none that for a Sigmoid.

        If that is the same, and the provider took nothing, it says nothing of the nodes.
        """
        if nodes not in self._answers:
            message = self._sub_model(nodes) if nodes else parse_model(_SIGMOID).SerializeToString()
            entries = external_weights_entry(self.model.path.parent)
            dims = dict(fixed_sizes(self.asked.provider, self.model.dims))  # as a run opens it
            asked = replace(self.asked, message=message, dims=dims, entries=entries)
            answer = self._answers[nodes] = self.place(asked)
            if nodes and not answer.names.get(asked.provider):
                alone = self._placed(())
                if alone.problem == answer.problem and not alone.names.get(asked.provider):
                    what = f"not even for a Sigmoid: {answer.problem or 'it takes none'}"
                    raise RunError(f"{asked.provider} can't be asked, {what}", hint=_NO_DEVICE)
        return self._answers[nodes]

    def _sub_model(self, nodes: tuple[int, ...]) -> bytes:
        """These nodes, of which no path leaves and returns, as a model whose nodes have the names of graphcut."""
        graph = self.model.graph
        before = between(graph, frozenset(), outside_reads([graph.nodes[n] for n in nodes]))[0]
        groups = [group for group in (before, nodes, {*graph.flow}.difference(before, nodes)) if group]
        proto = part_model(self.model, partition(graph, groups).blocks[bool(before)])
        names = {name: node.name for node in graph.nodes for name in node.writes}
        for node in proto.graph.node:
            node.name = next((names[name] for name in node.output if name in names), node.name)
        return proto.SerializeToString()
