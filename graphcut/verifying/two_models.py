"""`compare_models`: where two models begin to differ, found by bisection over the tensors that both have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import RunError, UsageError
from ..core.graph import reached
from ..core.product import Product
from ..core.units import count
from ..loading.model import Model, ModelLike, load
from ..running.stage import SessionConfig
from .numerical import EXACT, TensorComparison, accepted_inputs, compare_tensor, random_tensors, run_whole


@dataclass(frozen=True, repr=False)
class ModelComparison(Product):
    """The result of comparing two models. It is true if no output differs by more than is allowed; `print` shows it."""

    common: int  #: number of tensors that both models compute under the same name, random ones left out.
    runs: int  #: how often both models were run on the same inputs to compare tensors.
    outputs: tuple[TensorComparison, ...]  #: the outputs of the model that the other one computes, too.
    #: the first tensor that differs by more than is allowed, though no tensor in `sources` does; None if no output
    #: differs.
    first: TensorComparison | None
    node: str  #: the node of the model that writes it; empty if there is none.
    sources: tuple[str, ...]  #: the tensors that it is computed from: for each path to it the last that both have.

    @property
    def same(self) -> bool:
        """Whether all outputs agree."""
        return self.first is None

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        worst = self.first
        agreeing = f"outputs that agree: {sum(one.passes for one in self.outputs):,} of {len(self.outputs):,}"
        common = f"{self.common:,} tensors have the same name in both, {count(self.runs, 'run')} of each"
        lines = [f"the models {'agree' if self.same else 'differ'}", f"{agreeing}; {common}"]
        if worst is not None:
            sources = ", ".join(map(repr, self.sources)) or "inputs of the model alone"
            lines.append(f"the first tensor that differs: {worst.tensor!r}, from node {self.node!r}")
            lines.append(f"max abs {worst.max_abs:.3g} (allowed {worst.allowed:.3g}), {worst.max_ulps:,} ulps")
            lines.append(f"what it is computed from agrees: {sources}")
        return "\n".join(lines)


def compare_models(
    model: ModelLike,
    other: ModelLike,
    *,
    inputs: Sequence[Mapping[str, object]] = (),
    seed: int = 0,
    tolerance: float = 0.0,
    config: SessionConfig = EXACT,
) -> ModelComparison:
    """Run two models on the same inputs, and find where they begin to differ.

    Outputs are compared first. If one differs, the first tensor that does is found by bisection: it differs, and each
    tensor that it is computed from agrees. In a graph with branches there can be several such tensors; it is one of
    those that an output that differs depends on. Tensors are compared where both models compute them under the same
    name. Takes one run of each model for each set of inputs, and then at most ceil(log2(n)) for n such tensors.

    Memory: the values of the tensors alive at one cut at a time. Weights are mapped from disk; ONNX Runtime holds those
    that it converts, such as float16 on the CPU.

    Args:
        model: the model or its path. It runs on the CPU, without graph optimizations.
        other: the model that is compared with it. It has no other inputs.
        inputs: sets of inputs; by default two sets of different sizes are generated.
        seed: seed of the generated inputs.
        tolerance: the allowed difference of a tensor of floats, as a fraction of its largest value. By default bits
            must be equal. Floats of different types are compared as numbers.
        config: how the other model runs: its provider and its graph optimizations. Exposed tensors restrict what can be
            fused.

    Raises:
        UsageError: the other model has another input, or computes no output of the model.
        RunError: a model refuses the inputs.
    """
    both = _Pair(load(model), load(other), tolerance, config)
    found = ModelComparison(len(both.position), 0, (), None, "", ())
    sets, refusal = accepted_inputs(both.model, inputs, seed, both.model.dims)
    if not sets:
        message = f"{both.model.path.name} rejects the generated inputs: {refusal}"
        raise RunError(message, hint="give yours as `inputs`")
    for feeds in sets:
        found = _compared(both, feeds)
        if not found:
            break
    return found


class _Pair:
    """Two models, and the tensors that both compute."""

    def __init__(self, model: Model, other: Model, tolerance: float, config: SessionConfig) -> None:
        self.model, self.other, self.tolerance, self.config, self.runs = model, other, tolerance, config, 0
        self.sources = _common_tensors(model, other)
        self.position = {name: i for i, name in enumerate(self.sources)}
        names, known = (model.path.name, other.path.name), (*model.graph.reads, *other.graph.weights)
        if more := [name for name in other.graph.reads if name not in known]:
            message = f"{names[1]} has an input {more[0]!r}, and {names[0]} has none"
            raise UsageError(message, hint="compare two forms of one model")
        if self.sources.keys().isdisjoint(model.graph.writes):
            raise UsageError(f"{names[1]} computes no output of {names[0]}", hint="outputs are compared by their names")

    def compared(self, feeds: Mapping[str, object], names: Sequence[str]) -> list[TensorComparison]:
        """Run both models, and compare tensors."""
        self.runs += 1
        own, others = self.model.tensors, self.other.tensors
        fed = {name: _as_type(feeds[name], others[name].dtype) for name in self.other.graph.reads if name in feeds}
        values = run_whole(self.model, feeds, names, config=EXACT)
        found = run_whole(self.other, fed, names, config=self.config)
        return [compare_tensor(own[n], values[n], found[n], self.tolerance, None, other=others[n]) for n in names]

    def ancestors(self, target: str, after: int) -> list[str]:
        """The tensors that `target` is computed from, and itself, in order; without those of an index up to `after`."""
        found = reached([target], lambda one: (name for name in self.sources[one] if self.position[name] > after))
        return sorted(found, key=self.position.__getitem__)


def _common_tensors(model: Model, other: Model) -> dict[str, tuple[str, ...]]:
    """The tensors that both compute, in order, each with those that it is computed from by paths without another."""
    computed = {name for i in other.graph.flow for name in other.graph.nodes[i].writes}
    computed -= random_tensors(model) | random_tensors(other)
    common: dict[str, tuple[str, ...]] = {}
    behind: dict[str, tuple[str, ...]] = {}  # of each tensor: itself if both compute it, else what it comes from
    for i in model.graph.flow:
        node = model.graph.nodes[i]
        found = tuple(dict.fromkeys(name for read in node.reads for name in behind.get(read, ())))
        behind |= {name: (name,) if name in computed else found for name in node.writes}
        common |= {name: found for name in node.writes if name in computed}
    return common


def _compared(both: _Pair, feeds: Mapping[str, object]) -> ModelComparison:
    outputs = both.compared(feeds, [name for name in both.position if name in both.model.graph.writes])
    first = next((one for one in outputs if not one.passes), None)
    agreeing = -1  # of the ancestors of `first` up to this index, those that are read after it agree
    while first is not None and len(line := both.ancestors(first.tensor, agreeing)) > 1:
        middle = both.position[line[(len(line) - 1) // 2]]
        later = [name for name in line if both.position[name] > middle]
        read = {name for reader in later for name in both.sources[reader]}
        alive = [name for name in line if name in read and both.position[name] <= middle]
        differing = next((one for one in both.compared(feeds, alive) if not one.passes), None)
        first, agreeing = (first, middle) if differing is None else (differing, agreeing)
    graph = both.model.graph
    node = graph.nodes[graph.producer[first.tensor]].name if first else ""
    sources = both.sources[first.tensor] if first else ()
    return ModelComparison(len(both.position), both.runs, tuple(outputs), first, node, sources)


def _as_type(value: object, dtype: str) -> object:
    """An array of floats as one of another type of floats."""
    is_other = isinstance(value, np.ndarray) and value.dtype.kind == "f" and dtype in {"float16", "float32", "float64"}
    return np.asarray(value).astype(dtype) if is_other else value
