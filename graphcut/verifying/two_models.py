"""`compare_models`: whether two models compute the same, and which nodes add an error of their own."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from math import ceil, inf
from operator import itemgetter
from typing import Any, Final

import numpy as np

from ..core.errors import RunError, UsageError
from ..core.file_checks import check_parts
from ..core.product import Product
from ..core.records import table
from ..core.units import count
from ..loading.opening import ModelLike, load
from ..running.stage import SessionConfig
from ..running.values import Feeds, Value
from .causes import ModelChange, causes_of, changes_of
from .differences import decibels
from .numerical import EXACT, TensorComparison, accepted_inputs, compare_tensor, run_whole
from .sections import EXCESS, Pair, TensorError, converted, error_of

_EXCESS_DB: Final = -decibels(EXCESS)
_TWICE_DB: Final = decibels(0.5)
"""Where an attribute, an input or a weight differs by more than rounding explains, half of what the types explain."""

_MOST_DB: Final = 180.0  #: larger effects are alike: of 10 ** 9, or of 10 ** -9.
_NOUNS: Final = table("verifying/change_nouns.json", dict[str, str])  #: what kinds of changes are called.


@dataclass(frozen=True)
class Culprit:
    """A tensor whose nodes in the second model add more error by themselves than their types explain."""

    error: TensorError  #: how much the tensor differs from that of the first model.
    node: str  #: the node of the second model that writes it.
    nodes: tuple[str, ...]  #: all its nodes that compute it from `sources`.
    #: the lowest ratio of an output of the first model after the tensor alone got the value that the second model
    #: computes from the same values; -infinite if that can't be run.
    effect_db: float
    sources: tuple[tuple[str, str], ...]  #: the tensors that both compute it from, by their names in both models.
    causes: tuple[str, ...]  #: what differs in the nodes that compute it, one sentence each.


@dataclass(frozen=True, repr=False)
class ModelComparison(Product):
    """The result of comparing two models. It is true if they agree; `print` shows it."""

    outputs: tuple[TensorComparison, ...]  #: the outputs that both models compute, random ones left out.
    #: of each tensor that both compute, in topological order; none if all outputs are equal.
    errors: tuple[TensorError, ...]
    #: the most effect on the outputs first; of effects that differ by less than 6 dB that which stands out most.
    culprits: tuple[Culprit, ...]
    harmless: tuple[Culprit, ...]  #: those that change no output by more than their types explain.
    changes: tuple[ModelChange, ...]  #: what differs in the graphs and weights.
    #: the lowest signal-to-noise ratio of an output, in dB: infinite if all are equal, -infinite if a shape or which
    #: numbers are finite differs.
    worst_db: float
    worst: str  #: this output; empty if all are equal.
    has_tolerance: bool  #: a tolerance was given, so the outputs decide whether the models agree.
    #: if the outputs differ by more than 4 times of what they do where all tensors that are compared are outputs, too:
    #: the last tensor that has to be an output, with those before it, since graph optimizations across it make the
    #: difference; empty if that does not help. None if they do not differ so.
    fused: str | None = None
    inputs: Feeds = field(default_factory=dict, repr=False)  #: those of the run that this is about.

    @property
    def same(self) -> bool:
        """Whether the models agree: the outputs within the tolerance given; without one, by `culprits`.

        Without a tolerance no node may add more error by itself than its types explain, unless it changes no output;
        graph optimizations may not make a difference, nor may outputs differ in which numbers are finite.
        """
        if self.has_tolerance:
            return all(one.passes for one in self.outputs)
        return not self.culprits and self.fused is None and self.worst_db > -inf

    @property
    def table(self) -> "np.ndarray[Any, Any]":
        """`errors` as numpy records."""
        shown = [(one.name, object if one.type is str else one.type) for one in fields(TensorError) if one.repr]
        return np.array([tuple(getattr(error, name) for name, _ in shown) for error in self.errors], shown)

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
        how = "within the tolerance" if self.has_tolerance else "and no node adds more error than its types explain"
        return f"the models agree: {worst}{', ' * bool(self.worst)}{how * bool(self.worst)}"

    @property
    def lines(self) -> tuple[str, ...]:
        """What was found, one line each."""
        found = []
        for number, one in enumerate(self.culprits, 1):
            module = f" in {one.error.module}" if one.error.module else ""
            effect = f"an output has {ratio(one.effect_db)} by it alone"
            found.append(f"{number}. {one.node!r}{module}: {own_text(one.error)}; {effect}")
            found += [f"   {cause}" for cause in one.causes]
        if self.fused:
            found.append(f"graph optimizations across {self.fused!r} make a difference; as an output it prevents them")
        elif not self.same and not self.culprits:
            found.append("no tensor that was compared shows where: graph optimizations across them can be the cause")
        for one in self.harmless:
            found.append(f"harmless: {one.node!r}: {own_text(one.error)}; it changes no output by more")
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
    return "no error" if db == inf else f"{round(db, 1) + 0.0:.1f} dB"


def own_text(error: TensorError) -> str:
    """What the nodes of a tensor add by themselves, and what their types explain."""
    return f"{ratio(error.own_db)} by itself, {ratio(error.expected_db)} by its types"


def compare_models(  # noqa: PLR0913 - independent settings
    model: ModelLike,
    other: ModelLike,
    *,
    inputs: Sequence[Mapping[str, object]] = (),
    seed: int = 0,
    tolerance: float | None = None,
    ignore: Sequence[str] = (),
    config: SessionConfig = EXACT,
    model_config: SessionConfig = EXACT,
    histograms: bool = False,
) -> ModelComparison:
    """Run two models on the same inputs, and find the nodes of the second one that add an error of their own.

    If the outputs differ, all tensors that both models have are compared (`matching.matched_tensors`). Then what lies
    between these tensors, the sections of both models, runs on the same values, those of either model: so the error
    that a section adds is told from what it inherits. It stands out if it is more than 4 times what the types in the
    section explain (`sections.ROUNDOFF`), or half of it where an attribute, an input or a weight differs, or, with a
    tolerance, if there is any. What stands out is put into the first model, whose outputs tell how much it matters.

    Takes for each set of inputs two runs of each model, for its outputs and for all tensors; one of the second model's
    sections, two of the first one's, and one more if types differ; one of the first model for each of at most 8 tensors
    that stand out.

    Memory: tensors of 64 MiB, and those read later, eight times. Weights are mapped from disk; ONNX Runtime holds those
    that it converts, such as float16 on the CPU.

    Args:
        model: the model or its path.
        other: the model that is compared with it. Inputs of other names are matched by their position.
        inputs: sets of inputs; by default two sets of different sizes are generated.
        seed: seed of the generated inputs.
        tolerance: the allowed difference of an output of floats, as a fraction of its largest value; 0: all bits are
            equal. By default the types of each tensor decide.
        ignore: names or globs of tensors and nodes that are not reported.
        config: how the other model runs: its provider and its graph optimizations. Exposed tensors restrict what can be
            fused.
        model_config: how the first model runs; by default on the CPU, without graph optimizations.
        histograms: count how the numbers of each tensor are spread in both models.

    Raises:
        UsageError: the other model has another input, or has no output that can be compared with one of the model.
        CascadeError: a model is a part that was changed, by a manifest beside it.
        RunError: a model refuses the inputs.
    """
    first, second = load(model), load(other)
    check_parts([first.path, second.path])
    pair = Pair(first, second, config, model_config, has_histograms=histograms)
    if more := [name for name in second.graph.reads if name not in pair.here and name not in second.graph.weights]:
        raise UsageError(
            f"no input of {first.title} can be compared with {more[0]!r}", hint="compare forms of one model"
        )
    if not any(name in first.graph.writes for name in pair.there):
        message = f"no output of {second.title} can be compared with one of {first.title}"
        hint = "outputs are matched by name, or by position if there are equally many; not those of random nodes"
        raise UsageError(message, hint=hint)
    sets, refused = accepted_inputs(first, inputs, seed, first.dims)
    if refused:
        raise refused
    changes = tuple(changes_of(pair))
    touched = (one for one in changes if one.kind in {"attribute", "input", "weight"} and not one.is_rounding)
    pair.changed.update(one.node for one in touched)
    for feeds in sets:
        found = _Run(pair, feeds, tolerance, ignore).compared(changes)
        if not found:
            break
    return found


class _Run:
    """Both models on one set of inputs."""

    def __init__(self, pair: Pair, feeds: Feeds, tolerance: float | None, ignore: Sequence[str]) -> None:
        self.pair, self.feeds, self.tolerance, self.ignore = pair, feeds, tolerance, ignore
        self.graph = pair.first.model.graph
        self.writes = [name for name in self.graph.writes if name in pair.there and not self._is_ignored(name)]
        if not self.writes:
            raise UsageError("every output that both models compute is ignored", hint="ignore fewer, or inner tensors")
        self.values = run_whole(pair.first.model, feeds, self.writes, config=pair.first.config)

    def compared(self, changes: tuple[ModelChange, ...]) -> ModelComparison:
        found, kinds = self._found(), {name: self.pair.kinds(name) for name in self.writes}
        fraction, has_tolerance = self.tolerance or 0.0, self.tolerance is not None
        pairs = ((kind, self.values[name], found[name], other) for name, (kind, other) in kinds.items())
        outputs = tuple(compare_tensor(kind, one, two, fraction, None, other) for kind, one, two, other in pairs)
        result = ModelComparison(outputs, (), (), (), changes, inf, "", has_tolerance, inputs=self.feeds)
        if all(one.is_identical for one in outputs):
            return result
        errors, suspects = list[TensorError](), list[tuple[TensorError, Value]]()
        for error, value in self.pair.measure(self.feeds):
            errors.append(error)
            if self._stands_out(error):  # values are held of those alone that stand out most
                suspects = sorted([*suspects, (error, value)], key=lambda one: -_excess(one[0]))[:8]
        culprits = [self._culprit(error, self._effect(error, value)) for error, value in suspects]
        culprits.sort(key=lambda one: (_step(one.effect_db), -_excess(one.error)))
        harmless = [one for one in culprits if one.effect_db >= decibels(EXCESS * self.pair.rounding(one.error.tensor))]
        exposed = [min(one.db, one.expected_db) for one in errors if one.tensor in self.writes]
        worst, worst_db = self._worst(found)
        return replace(
            result,
            errors=tuple(errors),
            culprits=tuple(one for one in culprits if one not in harmless),
            harmless=tuple(harmless),
            worst_db=worst_db,
            worst=worst if worst_db < inf else "",
            fused=self._fused(min(exposed, default=-inf) - _EXCESS_DB, worst_db),
        )

    def _found(self, *more: str) -> dict[str, Value]:
        """The outputs of the second model by their names in the first, if `more` tensors of it are outputs, too."""
        partners = {name: self.pair.there[name] for name in self.writes}
        second, wanted = self.pair.second, [*dict.fromkeys((*partners.values(), *more))]
        made = run_whole(second.model, self.pair.fed(self.feeds), wanted, config=second.config)
        return {name: made[partner] for name, partner in partners.items()}

    def _worst(self, found: Mapping[str, Value]) -> tuple[str, float]:
        """The output with the lowest ratio, and this."""
        ratios = {name: error_of(self.values[name], found[name], *self.pair.kinds(name)).db for name in self.writes}
        return min(ratios.items(), key=itemgetter(1))

    def _fused(self, least_db: float, worst_db: float) -> str | None:
        """The last tensor that must be an output, with those before it, so that no output has less than `least_db`.

        None if none has anyway, empty if all tensors as outputs do not suffice. Takes a run for each bisection.
        """
        if worst_db >= least_db:
            return None
        names = [self.pair.there[name] for name in self.pair.computed]
        indices = range(len(names))
        last = bisect_left(indices, x=True, key=lambda i: self._worst(self._found(*names[: i + 1]))[1] >= least_db)
        return names[last] if last < len(names) else ""

    def _is_ignored(self, *names: str) -> bool:
        return any(fnmatchcase(name, glob) for name in names for glob in self.ignore)

    def _stands_out(self, one: TensorError) -> bool:
        nodes = self.graph.names(self.pair.first.section([one.tensor]).nodes)
        margin = _EXCESS_DB if self.pair.changed.isdisjoint(nodes) else -_TWICE_DB
        limit = inf if self.tolerance is not None else one.expected_db - margin
        return one.own_db < limit and not self._is_ignored(one.tensor, one.node, one.other)

    def _effect(self, one: TensorError, value: Value) -> float:
        """The lowest ratio of an output of the first model if the tensor has the value that was computed."""
        targets = [name for name in self.writes if name != one.tensor and name in self.graph.producer]
        found = [inf] if len(targets) == len(self.writes) else [one.own_db]
        with suppress(RunError):
            given = {**self.feeds, one.tensor: converted(value, self.pair.kinds(one.tensor)[::-1])}
            made = self.pair.first.run(targets, given, given=[one.tensor]) if targets else {}
            kinds = ((name, self.pair.kinds(name)[0]) for name in made)
            return min(*found, *(error_of(self.values[n], made[n], kind, kind).db for n, kind in kinds), inf)
        return -inf

    def _culprit(self, one: TensorError, effect_db: float) -> Culprit:
        pair, graph = self.pair, self.pair.second.model.graph
        node, nodes = graph.nodes[graph.producer[one.other]], pair.sections([one.tensor])[1].nodes
        sources = tuple((name, pair.there.get(name, name)) for name in pair.sources([one.tensor]))
        return Culprit(one, node.name, graph.names(nodes), effect_db, sources, causes_of(pair, one.tensor))


def _excess(one: TensorError) -> float:
    """How much more the nodes of a tensor that stands out add than its types explain, in dB."""
    return one.expected_db - one.own_db


def _step(db: float) -> int:
    """Effects of one power of two count as equal: what follows a fault often has the effect of the fault."""
    return ceil(min(max(db, -_MOST_DB), _MOST_DB) / _TWICE_DB)
