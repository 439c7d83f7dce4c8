"""`compare_models`: whether two models compute the same, and which nodes add an error of their own."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final

import numpy as np

from ..core.errors import RunError, UsageError
from ..core.product import Product
from ..core.units import count
from ..loading.model import ModelLike, load
from ..running.stage import SessionConfig
from ..running.values import Feeds
from .causes import ModelChange, causes_of, changes_of
from .differences import decibels
from .numerical import EXACT, TensorComparison, accepted_inputs, compare_tensor, run_whole
from .segments import EXCESS, Measured, Pair, converted, error_of

_CHANGED: Final = 0.5
"""The same where an attribute, an input or a weight differs by more than rounding explains."""

_NOUNS: Final = {
    "removed": "removed node",
    "added": "added node",
    "operator": "changed operator",
    "attribute": "changed attribute",
    "input": "changed input",
    "weight": "changed weight",
}
_SUSPECTS: Final = 8
"""Of so many tensors, those that stand out most, it is found out what they change at the outputs."""


@dataclass(frozen=True)
class TensorError:
    """The error of a tensor that both models compute, as signal-to-noise ratios in dB: infinite if there is none."""

    tensor: str  #: its name in the first model.
    other: str  #: its name in the second one.
    node: str  #: the node of the first model that writes it.
    module: str  #: the module of this node; empty if unknown.
    db: float  #: of its value in the second model, against that in the first.
    own_db: float  #: of what the second model computes for it from the values of the first.
    expected_db: float  #: of the rounding that its types explain.
    broken: int  #: how many of its numbers are finite in one model alone.


@dataclass(frozen=True)
class Culprit:
    """A tensor whose nodes in the second model add more error by themselves than their types explain."""

    error: TensorError
    node: str  #: the node of the second model that writes it.
    nodes: tuple[str, ...]  #: all its nodes that compute it from `sources`.
    #: the lowest ratio of an output of the first model after the tensor alone got the value that the second model
    #: computes from the same values; None if that can't be run.
    effect_db: float | None
    sources: tuple[tuple[str, str], ...]  #: the tensors that both compute it from, by their names in both models.
    causes: tuple[str, ...]  #: what differs in the nodes that compute it, one sentence each.


@dataclass(frozen=True, repr=False)
class ModelComparison(Product):
    """The result of comparing two models. It is true if they agree; `print` shows it."""

    outputs: tuple[TensorComparison, ...]  #: the outputs that both models compute, random ones left out.
    errors: tuple[
        TensorError, ...
    ]  #: of each tensor that both compute, in topological order; none if outputs are equal.
    culprits: tuple[Culprit, ...]  #: the most effect on the outputs first.
    harmless: tuple[Culprit, ...]  #: those that change no output by more than their types explain.
    changes: tuple[ModelChange, ...]  #: what differs in the graphs and weights.
    #: the lowest signal-to-noise ratio of an output, in dB: infinite if all are equal, -infinite if a shape or which
    #: numbers are finite differs.
    worst_db: float
    worst: str  #: this output; empty if all are equal.
    has_tolerance: bool  #: a tolerance was given, so the outputs decide whether the models agree.
    inputs: Feeds = field(default_factory=dict, repr=False)  #: those of the run that this is about.

    @property
    def same(self) -> bool:
        """Whether the models agree: the outputs within the tolerance given; without one, by `culprits`.

        Without a tolerance no node may add more error by itself than its types explain, unless it changes no output,
        and which numbers of an output are finite must not differ.
        """
        if self.has_tolerance:
            return all(one.passes for one in self.outputs)
        return not self.culprits and self.worst_db > -inf

    @property
    def table(self) -> "np.ndarray[Any, Any]":
        """`errors` as numpy records."""
        fields = {"tensor": object, "other": object, "node": object, "module": object}
        fields |= {"db": np.float64, "own_db": np.float64, "expected_db": np.float64, "broken": np.int64}
        rows = [tuple(getattr(error, name) for name in fields) for error in self.errors]
        return np.array(rows, [*fields.items()])

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        return "\n".join([self.answer, *self.lines])

    @property
    def answer(self) -> str:
        """The result in one line."""
        worst = f"{self.worst!r} has {ratio(self.worst_db)}" if self.worst else "all bits of all outputs are equal"
        if not self.same:
            return f"the models differ: {worst}"
        how = (
            "" if not self.worst else ", within the tolerance" if self.has_tolerance else ", which their types explain"
        )
        return f"the models agree: {worst}{how}"

    @property
    def lines(self) -> tuple[str, ...]:
        """What was found, one line each."""
        found = []
        for number, one in enumerate(self.culprits, 1):
            module = f" in {one.error.module}" if one.error.module else ""
            effect = "" if one.effect_db is None else f", an output {ratio(one.effect_db)} by it alone"
            found.append(f"{number}. {one.node!r}{module}: {_own(one.error)}{effect}")
            found += [f"   {cause}" for cause in one.causes]
        if not self.same and not self.culprits:
            found.append("no tensor that both models have shows where: compare without graph optimizations")
        for one in self.harmless:
            found.append(
                f"harmless: {one.node!r}: {_own(one.error)}, and no output changes by more than its types explain"
            )
        if self.errors:
            named = sum(error.tensor != error.other for error in self.errors)
            found.append(f"{count(len(self.errors), 'tensor')} compared, {named:,} of them under two names")
        kinds = Counter("rounded weight" if change.is_rounding else _NOUNS[change.kind] for change in self.changes)
        texts = ", ".join(count(kinds[noun], noun) for noun in (*_NOUNS.values(), "rounded weight") if kinds[noun])
        return (*found, f"graph and weights: {texts or 'the same'}")


def ratio(db: float) -> str:
    """A signal-to-noise ratio: `61.3 dB`; `no error`; or why there is none."""
    if db == -inf:
        return "no ratio (another shape, zeros, or numbers that are not finite)"
    return "no error" if db == inf else f"{db:.1f} dB"


def _own(error: TensorError) -> str:
    return f"{ratio(error.own_db)} by itself, its types explain {ratio(error.expected_db)}"


def compare_models(
    model: ModelLike,
    other: ModelLike,
    *,
    inputs: Sequence[Mapping[str, object]] = (),
    seed: int = 0,
    tolerance: float | None = None,
    ignore: Sequence[str] = (),
    config: SessionConfig = EXACT,
) -> ModelComparison:
    """Run two models on the same inputs, and find the nodes of the second one that add an error of their own.

    If the outputs differ, all tensors that both models have are compared (`matching.matched_tensors`). Then what lies
    between these tensors, the segments of both models, runs on the same values, those of the first model. So the error
    that a segment adds is told from what it inherits. It stands out if it is more than 4 times what the types in the
    segment explain (`segments.ROUNDOFF`), or half of it where an attribute, an input or a weight differs, or, with a
    tolerance, if there is any. What stands out is put into the first model, whose outputs tell how much it
    matters.

    Takes one run of each model and one of its segments, and two for the rest, for each set of inputs, and one of the
    first model for each of at most 8 tensors that stand out.

    Memory: tensors of 64 MiB, and those read later, eight times. Weights are mapped from disk; ONNX Runtime holds those
    that it converts, such as float16 on the CPU.

    Args:
        model: the model or its path. It runs on the CPU, without graph optimizations.
        other: the model that is compared with it. Inputs of other names are matched by their position.
        inputs: sets of inputs; by default two sets of different sizes are generated.
        seed: seed of the generated inputs.
        tolerance: the allowed difference of an output of floats, as a fraction of its largest value; 0: all bits are
            equal. By default the types of each tensor decide.
        ignore: names or globs of tensors and nodes that are not reported.
        config: how the other model runs: its provider and its graph optimizations. Exposed tensors restrict what can be
            fused.

    Raises:
        UsageError: the other model has another input, or computes no output of the model.
        RunError: a model refuses the inputs.
    """
    pair = Pair(load(model), load(other), config)
    first = pair.first.model
    _check_ends(pair)
    sets, refusal = accepted_inputs(first, inputs, seed, first.dims)
    if not sets:
        raise RunError(f"{first.path.name} rejects the generated inputs: {refusal}", hint="give yours as `inputs`")
    found = ModelComparison((), (), (), (), (), inf, "", tolerance is not None)
    changes = tuple(changes_of(pair))
    for feeds in sets:
        found = _Run(pair, feeds, tolerance, ignore, changes).compared()
        if not found:
            break
    return replace(found, changes=changes)


def _check_ends(pair: Pair) -> None:
    first, second = pair.first.model, pair.second.model
    known = (*pair.here, *second.graph.weights)
    if more := [name for name in second.graph.reads if name not in known]:
        message = f"{second.path.name} has an input {more[0]!r}, and {first.path.name} has none"
        raise UsageError(message, hint="compare two forms of one model")
    if not any(name in first.graph.writes for name in pair.there):
        message = f"{second.path.name} computes no output of {first.path.name}"
        raise UsageError(message, hint="outputs are matched by their names, or by position if there are equally many")


class _Run:
    """Both models on one set of inputs."""

    def __init__(
        self,
        pair: Pair,
        feeds: Feeds,
        tolerance: float | None,
        ignore: Sequence[str],
        changes: Iterable[ModelChange],
    ) -> None:
        self.pair, self.feeds, self.tolerance, self.ignore = pair, feeds, tolerance, ignore
        kinds = {"attribute", "input", "weight"}
        self.changed = {one.node for one in changes if one.kind in kinds and not one.is_rounding}
        first, second = pair.first.model, pair.second.model
        self.writes = [name for name in first.graph.writes if name in pair.there and not self._is_ignored(name)]
        if not self.writes:
            raise UsageError("every output that both models compute is ignored", hint="ignore fewer, or inner tensors")
        partners = [pair.there[name] for name in self.writes]
        self.values = run_whole(first, feeds, self.writes, config=EXACT)
        found = run_whole(second, pair.fed(feeds), partners, config=pair.config)
        self.found = {name: found[partner] for name, partner in zip(self.writes, partners, strict=True)}

    def compared(self) -> ModelComparison:
        outputs = tuple(self._output(name) for name in self.writes)
        errors = {name: error_of(self.values[name], self.found[name], *self.pair.kinds(name)) for name in self.writes}
        worst = min(errors, key=lambda name: errors[name].db)
        empty = ModelComparison(outputs, (), (), (), (), inf, "", self.tolerance is not None, self.feeds)
        if all(one.is_identical for one in outputs):
            return empty
        measured, ranked = list[Measured](), list[Measured]()
        for one in self.pair.measure(self.feeds):
            measured.append(one._replace(value=None))  # values are held of those alone that stand out most
            if self._stands_out(one):
                ranked = sorted([*ranked, one], key=_excess, reverse=True)[:_SUSPECTS]
        effects = {one.tensor: self._effect(one) for one in ranked}
        ranked.sort(key=lambda one: (-effects[one.tensor], -_excess(one)))
        are_harmful = [effects[one.tensor] > EXCESS * one.rounding for one in ranked]
        culprits = [self._culprit(one, effects[one.tensor]) for one in ranked]
        return replace(
            empty,
            errors=tuple(self._row(one) for one in measured),
            culprits=tuple(one for one, is_harmful in zip(culprits, are_harmful, strict=True) if is_harmful),
            harmless=tuple(one for one, is_harmful in zip(culprits, are_harmful, strict=True) if not is_harmful),
            worst_db=errors[worst].db,
            worst=worst if errors[worst].db < inf else "",
        )

    def _is_ignored(self, *names: str) -> bool:
        return any(fnmatchcase(name, glob) for name in names for glob in self.ignore)

    def _output(self, name: str) -> TensorComparison:
        own, other = self.pair.kinds(name)
        fraction = self.tolerance or 0.0
        return compare_tensor(own, self.values[name], self.found[name], fraction, None, other=other)

    def _stands_out(self, one: Measured) -> bool:
        row, graph = self._row(one), self.pair.first.model.graph
        is_changed = not self.changed.isdisjoint(graph.names(self.pair.first.segment([one.tensor]).nodes))
        factor = 0.0 if self.tolerance is not None else _CHANGED if is_changed else EXCESS
        return one.own.relative > factor * one.expected and not self._is_ignored(one.tensor, row.node, row.other)

    def _effect(self, one: Measured) -> float:
        """The largest relative error of an output of the first model if the tensor has the value that was computed."""
        graph, kinds = self.pair.first.model.graph, self.pair.kinds(one.tensor)
        targets = [name for name in self.writes if name != one.tensor and name in graph.producer]
        found = {one.tensor: one.own.relative} if one.tensor in self.writes else {}
        try:
            value = converted(one.value, kinds[::-1])
            made = self.pair.first.run(targets, {**self.feeds, one.tensor: value}, given=[one.tensor])
        except RunError:
            return inf
        outputs = {name: error_of(self.values[name], made[name], *[self.pair.kinds(name)[0]] * 2) for name in targets}
        return max(found.get(one.tensor, 0.0), *(error.relative for error in outputs.values()), 0.0)

    def _row(self, one: Measured) -> TensorError:
        graph, partner = self.pair.first.model.graph, self.pair.there[one.tensor]
        node = graph.nodes[graph.producer[one.tensor]]
        ratios = one.error.db, one.own.db, decibels(one.expected)
        return TensorError(one.tensor, partner, node.name, node.module, *ratios, one.error.broken)

    def _culprit(self, one: Measured, effect: float) -> Culprit:
        row, graph = self._row(one), self.pair.second.model.graph
        node = graph.nodes[graph.producer[row.other]].name
        ours, theirs = self.pair.first.segment([one.tensor]), self.pair.second.segment([row.other])
        here = self.pair.here
        names = (*ours.sources, *(here.get(name, name) for name in theirs.sources))
        sources = tuple((name, self.pair.there.get(name, name)) for name in dict.fromkeys(names))
        nodes = graph.names(theirs.nodes)
        return Culprit(row, node, nodes, decibels(effect), sources, causes_of(self.pair, one.tensor))


def _excess(one: Measured) -> float:
    """The error that a tensor's nodes add, as a multiple of what its types explain."""
    return one.own.relative / one.expected if one.expected else inf
