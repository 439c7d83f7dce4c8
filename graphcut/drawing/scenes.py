"""From a product to its scene: what there is to see of an analysis, a plan, a cascade."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..analysis.cut_points import Analysis
from ..core.manifest import MANIFEST, Cascade
from ..core.units import count, size
from ..core.wiring import Tensor, Unit, Wiring
from ..loading.model import Model, TensorBytes
from ..planning.goals import Across, At, Limits
from ..planning.plans import Plan
from .cards import cascade_card, copies, counted_bytes, file_bytes, homes_of, plan_card
from .part_labels import contents
from .profiles import profile_of, spread
from .scene import Bus, CutOption, CutProfile, Lane, Other, Scene
from .wording import (
    answer,
    answer_where,
    checks,
    divided_states,
    flop,
    open_sizes,
    outcomes,
    plan_notes,
    reasonings,
    recomputings,
    verdict,
    wanted,
)

if TYPE_CHECKING:  # it loads ONNX Runtime
    from ..verifying.verification import Verification

_MOST_PLACES: Final = 8
_MOST_TENSORS: Final = 3
_SAME: Final = 1e-6
"""Shares of a time by which it may differ from another and yet be it."""


def scene_of_analysis(analysis: Analysis) -> Scene:
    """What there is to see of a model: where it can be cut, and what that costs there. There are no parts."""
    model = analysis.model
    graph = model.graph
    profile = profile_of(graph, [graph.flow], model.tensor_bytes, analysis.key_nodes, analysis.repeat)
    place = most_even(best_places(profile))
    following = "" if place is None else _cutting(model.path, place.node)
    return Scene(
        title=model.path.name,
        sentence=answer_where(place, len(profile.valleys)),
        facts=tuple(_facts(model, model.dims)),
        cards=(),
        lanes=(),
        buses=(),
        profile=profile,
        checks=(),
        recomputed=(),
        reasons=(),
        notes=(*model.notes, *open_sizes(model, model.dims)),
        following=following,
        details=tuple(_analysis_details(analysis)),
        model=str(model.path),
    )


def scene_of_plan(made: Plan, analysis: Analysis) -> Scene:
    """What there is to see of a plan for the analysed model. What to do next only its owner knows: nothing is said.

    A plan that names places has no figures: its parts need what the weights take that they read.
    """
    return _scene_of_parts(made, analysis, [f"p{i}" for i in range(len(made.parts))])


def scene_of_split(cascade: Cascade, made: Plan, analysis: Analysis) -> Scene:
    """What there is to see of a cascade that was cut as planned: all that the plan says, of the files that it became.

    Args:
        cascade: the cascade.
        made: the plan that it was cut by.
        analysis: of the model that was cut.
    """
    planned = _scene_of_parts(made, analysis, [part.file for part in cascade.parts])
    rows = zip(cascade.parts, planned.cards, made.partition.blocks, strict=True)
    cards = (
        replace(card, nodes=part.nodes, need_bytes=file_bytes(cascade, part) + counted_bytes(made, block))
        for part, card, block in rows
    )
    # Who named the places need not be told so.
    details = planned.details[1:] if isinstance(made.goal, At) else planned.details
    scene = replace(
        planned,
        sentence="",
        cards=tuple(cards),
        following=_after(cascade, None),
        details=(*details, *_storage(cascade)),
    )
    return _answered(scene)


def _scene_of_parts(made: Plan, analysis: Analysis, names: Sequence[str]) -> Scene:
    """What there is to see of a plan whose parts are called so."""
    model = analysis.model
    blocks = made.partition.blocks
    sizes = _planned_bytes(made, model)
    homes = [block.nodes for block in blocks]
    lanes = tuple(_lanes(blocks, made.partition.wiring, model.boundary_types, sizes))
    columns = _columns(made.partition.wiring, len(blocks))
    words = contents(model.graph, homes)
    holders = Counter(node for block in blocks for node in block.replicas)
    cards = (plan_card(made, i, names[i], words[i], columns[i], holders) for i in range(len(blocks)))
    return _answered(
        Scene(
            title=model.path.name,
            sentence="",
            facts=tuple(_facts(model, made.dims, None if made.costs is None else sum(made.costs.flops))),
            cards=tuple(cards),
            lanes=lanes,
            buses=_buses(lanes),
            profile=profile_of(model.graph, homes, sizes, analysis.key_nodes),
            checks=(),
            recomputed=tuple(recomputings(made.recomputed, names)),
            reasons=tuple(reasonings(made.reasons, names)),
            notes=tuple(plan_notes(made, model)),
            following="",
            details=(("goal", wanted(made.goal)), *_limits(made.limits, names), *outcomes(made)),
            others=tuple(_others(made)),
            model=str(model.path),
        )
    )


def _planned_bytes(made: Plan, model: Model) -> TensorBytes:
    """Bytes of each tensor for the dims of the plan, whatever the model was opened with."""
    if made.costs is not None:
        return made.costs.tensor_bytes
    return (model if model.dims == made.dims else replace(model, dims=made.dims)).tensor_bytes


def scene_of_cascade(cascade: Cascade, model: Model | None = None, report: Verification | None = None) -> Scene:
    """What there is to see of a cascade.

    Without the model there is no profile, contents of parts are empty, a flowing node that one part alone repeats is
    not counted among the replicas, and sizes are those that the manifest tells.

    Args:
        cascade: the cascade.
        model: the model that was cut, if at hand, opened with the dims of the manifest.
        report: what verifying found, if it was verified.

    Raises:
        CascadeError: the cascade was not cut from `model`.
    """
    parts, manifest = cascade.parts, cascade.manifest
    homes = homes_of(cascade, model) if model is not None else [()] * len(parts)
    sizes = {name: tensor.bytes_for(manifest.dims) for name, tensor in cascade.tensors.items()}
    if model is not None:
        sizes = {**sizes, **model.tensor_bytes}
    lanes = tuple(_lanes(parts, cascade.wiring, cascade.tensors, sizes))
    columns = _columns(cascade.wiring, len(parts))
    words = contents(model.graph, homes) if model is not None else [""] * len(parts)
    dims = [("dims", _dims(manifest.dims))] if manifest.dims else []
    ends = [model.graph.nodes[home[-1]].name if model is not None and home else "" for home in homes]
    cards = map(partial(cascade_card, cascade), parts, copies(cascade, model), words, columns, ends)
    profile = None
    if model is not None:
        profile = profile_of(model.graph, homes, sizes, Analysis(model).key_nodes)
    return _answered(
        Scene(
            title=cascade.source.name,
            sentence=verdict(report),
            facts=tuple(_facts(model, manifest.dims) if model is not None else dims),
            cards=tuple(cards),
            lanes=lanes,
            buses=_buses(lanes),
            profile=profile,
            checks=checks(report),
            recomputed=(),
            reasons=(),
            notes=(
                *(open_sizes(model, manifest.dims) if model is not None else ()),
                *divided_states(parts, manifest.states),
            ),
            following=_after(cascade, report),
            details=tuple(_storage(cascade)),
            model="" if model is None else str(model.path),
        )
    )


def best_places(profile: CutProfile) -> list[CutOption]:
    """For each eighth of the model the cheapest place to cut."""
    total = profile.weights[-1] if profile.weights else 0
    return spread(profile.valleys, len(profile.nodes), total, _MOST_PLACES)


def most_even(places: Sequence[CutOption]) -> CutOption | None:
    """Of some places the one that divides the weights most evenly; None where there is none."""
    return min(places, key=lambda place: (abs(place.weights_before - place.weights_after), place.bytes), default=None)


# Heads


def _facts(model: Model, dims: Mapping[str, int], flops: int | None = None) -> Iterable[tuple[str, str]]:
    flowing, all_nodes = len(model.graph.flow), len(model.graph.nodes)
    yield "node" if flowing == 1 else "nodes", f"{flowing:,}"
    if constants := all_nodes - flowing:
        yield "constant" if constants == 1 else "constants", f"{constants:,}"
    yield "weights", size(model.weight_bytes)
    if flops is not None:
        yield "per run", flop(flops)
    if dims:
        yield "dims", _dims(dims)


def _dims(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={number}" for name, number in dims.items())


def _analysis_details(analysis: Analysis) -> Iterable[tuple[str, str]]:
    model = analysis.model
    yield "inputs", _tensor_list([model.tensors[name] for name in model.graph.reads])
    yield "outputs", _tensor_list([model.tensors[name] for name in model.graph.writes])
    if analysis.repeat is not None:
        yield "repeats", str(analysis.repeat)
    wiring = analysis.segments.wiring
    residual = {tensor for row in wiring.residual.values() for tensors in row.values() for tensor in tensors}
    keys, segments = count(len(analysis.key_nodes), "key node"), count(len(analysis.segments.blocks), "segment")
    skipping = f"{count(len(residual), 'tensor')} {'skips' if len(residual) == 1 else 'skip'} over a segment"
    yield "key nodes", f"{keys}, {segments}; {skipping}"
    found = len(analysis.dominators)
    cutting = "; cutting at one sends only its outputs" if found else ""
    yield "dominators", f"{count(found, 'node') if found else 'no node is'} on every path{cutting}"


def _tensor_list(tensors: Sequence[Tensor]) -> str:
    text = ", ".join(f"{tensor.name} {tensor}" for tensor in tensors[:_MOST_TENSORS])
    more = len(tensors) - _MOST_TENSORS
    return f"{text}, and {more} more" if more > 0 else text


def _storage(cascade: Cascade) -> Iterable[tuple[str, str]]:
    if cascade.manifest.weights == "share":
        yield "weights", "all parts refer to those of the model"


def _limits(limits: Limits, names: Sequence[str]) -> Iterable[tuple[str, str]]:
    pinned = [f"{node} in {names[part]}" for node, part in limits.pins]
    if found := [*pinned, *(f"nothing of {name} crosses" for name in limits.avoid)]:
        yield "limits", ", ".join(found)


def _answered(scene: Scene) -> Scene:
    """A scene with parts and the answer, before what stood there: the verdict."""
    return replace(scene, sentence=answer(scene.cards, scene.lanes, scene.crossing, scene.sentence))


def _others(made: Plan) -> Iterable[Other]:
    """The plans of the front; the chosen one is marked."""
    if len(made.front) > 1:
        chosen = _chosen(made)
        for i, (period, latency) in enumerate(made.front):
            yield Other(period, latency, i == chosen)


def _chosen(made: Plan) -> int | None:
    """The first plan of the front that is as good as the one that was chosen; None where that is not among them."""
    if made.outcome is None or not isinstance(made.goal, Across):
        return None
    for i, pair in enumerate(made.front):
        value = _worth(made.goal, *pair)
        if value is not None and abs(value - made.outcome.value) <= _SAME * made.outcome.value:
            return i
    return None


def _worth(goal: Across, period_s: float, latency_s: float) -> float | None:
    """What a plan of the front comes to; None where its two times do not tell."""
    match goal.objective:
        case "throughput":
            return period_s
        case "latency":
            return latency_s
        case "decode":
            return 1 / max(latency_s / goal.in_flight, period_s)
        case "bytes" | "devices":
            return None


def _after(cascade: Cascade, report: Verification | None) -> str:
    """The command to try next: verify it; once that is done, the whole picture."""
    place = _quoted(cascade.path.parent if cascade.path.name == MANIFEST else cascade.path)
    if report is None:
        return f"graphcut verify {place}"
    return f"graphcut show {place} --to html -o report.html" if report.same else ""


def _cutting(model: Path, node: str) -> str:
    """The command that cuts after a node. Commas stand between names there: a name with one is quoted twice."""
    name = f'"{node.replace(chr(34), chr(34) * 2)}"' if {",", '"'}.intersection(node) else node
    return f"graphcut split {_quoted(model)} --at-nodes{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


# What crosses


def _lanes(units: Sequence[Unit], wiring: Wiring, tensors: Mapping[str, Tensor], sizes: TensorBytes) -> Iterable[Lane]:
    """The tensors that cross, in the order they are made."""
    crossing = wiring.boundary_tensors
    for unit in units:
        for name in unit.writes:
            if name in crossing:
                source, readers = crossing[name]
                number, is_exact = sizes[name]
                yield Lane(name, str(tensors[name]), number, is_exact, source, tuple(sorted(readers)))


def _buses(lanes: Sequence[Lane]) -> tuple[Bus, ...]:
    """The lanes of the same ends together."""
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, lane in enumerate(lanes):
        alike.setdefault((lane.source, lane.readers), []).append(i)
    return tuple(
        Bus(
            source=source,
            readers=readers,
            lanes=tuple(places),
            bytes=sum(lanes[i].bytes for i in places),
            is_exact=all(lanes[i].is_exact for i in places),
        )
        for (source, readers), places in alike.items()
    )


def _columns(wiring: Wiring, parts: int) -> list[int]:
    """For each part how many must run before it, one after another: the longest path in the links."""
    sources: list[set[int]] = [set() for _ in range(parts)]
    for source, readers in wiring.boundary_tensors.values():
        for reader in readers:
            sources[reader].add(source)
    columns: list[int] = []
    for found in sources:  # parts stand in an order in which they can run
        columns.append(max((columns[source] + 1 for source in found), default=0))
    return columns
