"""Builders: the scene of an analysis, a plan, a cascade."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from ..analysis.cut_points import Analysis, CutPoint
from ..core.manifest import MANIFEST, PIPELINE, Cascade
from ..core.tensors import Dims, Tensor, TensorBytes
from ..core.text import few, shell_word
from ..core.units import count, flop, size
from ..core.wiring import Unit, Wiring
from ..costs.device import run_s
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from ..planning.goals import Across, At, Limits, counted_by
from ..planning.planner import plan as make_plan
from ..planning.plans import ANY_DEVICE, Plan
from ..sharding.axes.classes import axis_classes
from ..sharding.axes.table import class_rows
from . import sentences
from .card_builders import by_phase, cascade_card, contents, file_bytes, needs_of, own_nodes, plan_card, replica_counts
from .cut_costs import cut_costs_of
from .cut_model import cut_model_of
from .drawn_graph import drawn_graph
from .layer_modules import layer_modules
from .plan_schedules import schedules_of_plan
from .profile_builder import best_options, build_profile
from .scene import BoundaryTensor, CutProfile, OtherPlan, Scene, buses_of

_SHOWN: Final = 3  #: tensors or axes in a list.


def scene_of_analysis(analysis: Analysis) -> Scene:
    """The scene of a model that is not cut: its cut profile and its cut points."""
    model, blocks, wiring = analysis.sized, analysis.segments.blocks, analysis.segments.wiring
    graph, sizes = model.graph, model.tensor_bytes
    profile = build_profile(analysis, [graph.flow], sizes)
    best = _most_balanced(analysis, profile)
    return Scene(
        title=_title(model.path),
        sentence=sentences.cut_points_answer(best, len(profile.cut_options)),
        facts=tuple(_facts(model, model.dims)),
        dims=dict(model.dims),
        profile=profile,
        notes=(
            *sentences.unknown_sizes(model, model.sizes, model.dims),
            *sentences.unbound_sizes(model, model.dims),
            *(sentences.assumed_device(best) if best is not None else ()),
            *sentences.assumed_sizes(model.dims, analysis.model.dims),
            *model.notes,
        ),
        next_command="" if best is None else _split_command(model.path, best.cuts[0]),
        details=tuple(_analysis_details(analysis)),
        model=str(model.path),
        cut_model=cache(partial(cut_model_of, model, [graph.flow], sizes, analysis.model.dims)),
        graph=lambda: drawn_graph(model, [graph.flow], sizes, layer_modules(graph, analysis.repeat)),
        cut_costs=partial(cut_costs_of, analysis.model, dims=model.dims),
        segments=tuple(graph.nodes[block.nodes[0]].name for block in blocks if block.nodes),
        segment_tensors=_boundary_tensors(blocks, wiring, model.boundary_types, sizes),
    )


def _most_balanced(analysis: Analysis, profile: CutProfile) -> Plan | None:
    """The plan for one of the cheap cut points whose slower part takes least time; None if there is none.

    Finishing parts takes time, so only three are tried that divide the time of the nodes best, and of them no one whose
    slower part has nodes that alone take longer than the best plan.
    """
    costs = weigh(analysis.model, analysis.sized.dims)
    before_s = [0.0, *accumulate(run_s(costs, ANY_DEVICE))]

    def slower_s(one: CutPoint) -> float:
        return max(before_s[one.nodes_before], before_s[-1] - before_s[one.nodes_before])

    best: tuple[float, int, Plan] | None = None
    for one in sorted(best_options(profile), key=slower_s)[:3]:
        if best is None or slower_s(one) < best[0]:
            made = make_plan(analysis, At(one.node), costs=costs)
            found = max(part.busy_s for part in made.metrics), made.received_bytes, made
            best = found if best is None else min(best, found, key=itemgetter(0, 1))
    return best and best[2]


def scene_of_plan(plan: Plan, analysis: Analysis, files: Sequence[str] = (), given: Dims | None = None) -> Scene:
    """The scene of a plan for the analysed model; the caller knows the next command.

    Parts are called `p0`, `p1`, ..., or as `files` says. A plan for a goal that names nodes has no predictions: a part
    needs what its weights take. `given` are the numbers that `--dim` must say; by default those that nobody assumes.
    """
    names = files or [f"p{i}" for i in range(len(plan.parts))]
    model, blocks, wiring = analysis.model, plan.partition.blocks, plan.partition.wiring
    sizes = model.with_dims(plan.dims).tensor_bytes if plan.costs is None else plan.costs.tensor_bytes
    sent = sizes if plan.costs is None else plan.costs.sent_bytes
    rows = [block.nodes for block in blocks]
    tensors = _boundary_tensors(blocks, wiring, model.boundary_types, sent)
    own = {n: i for n, i in plan.dims.items() if n in model.dims or analysis.sized.dims.get(n) != i}
    holders = Counter(node for block in blocks for node in block.replicas)
    modules = layer_modules(model.graph, analysis.repeat)
    labels, depths = tuple(contents(model, rows, modules)), wiring.depths(len(blocks))
    cards = [plan_card(plan, i, names[i], labels[i], depths[i], holders) for i in range(len(blocks))]
    scene = Scene(
        title=_title(model.path),
        facts=tuple(_facts(model, plan.dims, plan.costs)),
        dims=dict(plan.dims),
        cards=by_phase(cards, model.phases_of(blocks) if model.stepwise else (), model.loop),
        tensors=tensors,
        buses=buses_of(tensors),
        profile=build_profile(analysis, rows, sizes, modules),
        recomputed=tuple(sentences.recomputations(plan, names)),
        reasons=lambda: tuple(sentences.cut_reasons(plan.reasons, names)),
        notes=tuple(sentences.plan_notes(plan, model)),
        details=(("goal", sentences.goal_text(plan.goal)), *_limits(plan.limits, names), *sentences.outcomes(plan)),
        other_plans=tuple(_other_plans(plan)),
        model=str(model.path),
        cut_model=partial(cut_model_of, model, rows, sizes, own if given is None else given),
        graph=partial(drawn_graph, model, rows, sizes, modules),
        cut_costs=partial(cut_costs_of, model, plan),
        schedules=cache(partial(schedules_of_plan, plan, model)),
    )
    return _answered(scene)


def scene_of_split(cascade: Cascade, plan: Plan, analysis: Analysis) -> Scene:
    """The scene of a new cascade: everything that its plan tells, with the names and sizes of the written files."""
    planned = scene_of_plan(plan, analysis, [part.file for part in cascade.parts], cascade.manifest.given_dims)
    cards, pairs = planned.cards, zip(cascade.parts, planned.cards, strict=True)
    if not plan.metrics:
        cards = tuple(replace(card, **needs_of(cascade, part)) for part, card in pairs)
    elif not counted_by(plan.goal):
        cards = tuple(replace(card, need_bytes=file_bytes(cascade, part)) for part, card in pairs)
    details = planned.details[1:] if isinstance(plan.goal, At) else planned.details  # the user just named these nodes
    details, command = (*details, *_storage(cascade)), _verify_command(cascade)
    return _answered(replace(planned, cards=cards, next_command=command, details=details))


def scene_of_ranks(cascade: Cascade, plan: Plan, model: Model) -> Scene:
    """The scene of a new cascade whose layers are divided, with the schedule of its plan, if that is for a cluster."""
    scene = scene_of_cascade(cascade, model)
    return replace(scene, schedules=cache(partial(schedules_of_plan, plan, plan.model or model)))


def _answered(scene: Scene) -> Scene:
    return replace(scene, sentence=sentences.answer(scene))


def scene_of_cascade(cascade: Cascade, model: Model | None = None) -> Scene:
    """The scene of a cascade.

    Without the model there is no profile and no content of parts; a flowing node that only one part repeats is not
    counted as a replica; and sizes are those in the manifest.
    """
    parts, manifest = cascade.parts, cascade.manifest
    is_ranked = any(part.rank is not None for part in parts)
    sizes = {name: tensor.bytes_for(manifest.dims) for name, tensor in cascade.tensors.items()}
    facts = [("dims", sentences.dims_text(manifest.dims))] if manifest.dims else []
    labels, last_nodes, known = [""] * len(parts), [""] * len(parts), dict[str, Any]()
    if model is not None:
        model = model.with_dims(manifest.dims)
        rows = own_nodes(cascade, model)
        sizes |= model.tensor_bytes
        facts = list(_facts(model, manifest.dims))
        analysis = Analysis(model)
        modules = layer_modules(model.graph, analysis.repeat)
        labels = list(contents(model, rows, modules))
        last_nodes = [model.graph.nodes[row[-1]].name if row else "" for row in rows]
        known = {"model": str(model.path), "profile": build_profile(analysis, rows, sizes, modules)}
        known["graph"] = partial(drawn_graph, model, rows, sizes, modules)
        if not is_ranked:
            known["cut_model"] = partial(cut_model_of, model, rows, sizes, manifest.given_dims)
            known["cut_costs"] = partial(cut_costs_of, model)
    tensors = _boundary_tensors(parts, cascade.wiring, cascade.tensors, sizes)
    if is_ranked:
        ends = ((one, {parts[i].device for i in one.readers}) for one in tensors)
        tensors = tuple(replace(one, is_exchange=readers != {parts[one.source].device}) for one, readers in ends)
    depths = cascade.wiring.depths(len(parts))
    cards = map(partial(cascade_card, cascade), parts, replica_counts(cascade, model), labels, depths, last_nodes)
    scene = Scene(
        title=_title(cascade.source),
        facts=tuple(facts),
        dims=dict(manifest.dims),
        cards=by_phase(list(cards), cascade.phases, manifest.loop),
        tensors=tensors,
        elsewhere=len(cascade.absent),
        buses=buses_of(tensors),
        notes=(
            *([f"not in this folder: {', '.join(cascade.absent)}"] if cascade.absent else ()),
            *(sentences.unbound_sizes(model, manifest.dims) if model is not None else ()),
            *sentences.separated_states(parts, manifest.states),
            *sentences.assumed_sizes(manifest.dims, manifest.given_dims),
        ),
        next_command=_verify_command(cascade),
        details=tuple(_storage(cascade)),
        **known,
    )
    return _answered(scene)


# Facts and details


def _title(model: Path) -> str:
    """The name of a model's file; with its folder where that says what the model is: `llama/model.onnx`.

    Of a pipeline of models the name of its folder.
    """
    if model.name == PIPELINE:
        return model.resolve().parent.name
    return f"{model.resolve().parent.name}/{model.name}" if model.stem in {"model", "sharded"} else model.name


def _facts(model: Model, dims: Mapping[str, int], costs: Costs | None = None) -> Iterable[tuple[str, str]]:
    flowing, all_nodes = len(model.graph.flow), len(model.graph.nodes)
    yield "node" if flowing == 1 else "nodes", f"{flowing:,}"
    if constants := all_nodes - flowing:
        yield "constant" if constants == 1 else "constants", f"{constants:,}"
    yield "weights", size(model.weight_bytes)
    if costs is not None:
        yield "per run", f"{'' if costs.sizes.are_exact else '≥ '}{flop(sum(costs.flops))}"
    if dims:
        yield "dims", sentences.dims_text(dims)


def _analysis_details(analysis: Analysis) -> Iterable[tuple[str, str]]:
    model = analysis.model
    for word, names in (("inputs", model.graph.reads), ("outputs", model.graph.writes)):
        yield word, few([f"{name} {model.tensors[name]}" for name in names], _SHOWN)
    if analysis.repeat is not None:
        yield "repeats", str(analysis.repeat)
    sizes = {name: weight.bytes for name, weight in model.graph.weights.items()}
    free = [one for one in axis_classes(model, with_blocked=False) if not one.blockers]
    if rows := class_rows(model, sorted(free, key=lambda one: -sum(sizes[name] for name in one.weights))):
        yield "divisible", few([f"{row.place} ({row.units} units)" for row in rows], _SHOWN)
    wiring = analysis.segments.wiring
    residual = {tensor for row in wiring.residual.values() for tensors in row.values() for tensor in tensors}
    keys, segments = count(len(analysis.key_nodes), "key node"), count(len(analysis.segments.blocks), "segment")
    skipping = f"{count(len(residual), 'tensor')} {'skips' if len(residual) == 1 else 'skip'} over a segment"
    yield "key nodes", f"{keys}, {segments}; {skipping}"
    found = len(analysis.dominators)
    cutting = "; a cut at one of them sends only its outputs" if found else ""
    yield "dominators", f"{count(found, 'node') if found else 'no node is'} on every path{cutting}"


def _storage(cascade: Cascade) -> Iterable[tuple[str, str]]:
    if cascade.manifest.weights == "share":
        yield "weights", "all parts refer to the model's weight files"
    if cascade.manifest.text_files:
        yield "text", ", ".join(cascade.manifest.text_files)


def _limits(limits: Limits, names: Sequence[str]) -> Iterable[tuple[str, str]]:
    pinned = [f"{node} in {names[part]}" for node, part in limits.pins]
    if found := [*pinned, *(f"no tensor of {name} crosses a boundary" for name in limits.avoid)]:
        yield "limits", ", ".join(found)
    if limits.boundary_dtype:
        yield "boundary", f"float32 tensors are sent as {limits.boundary_dtype}: outputs differ from the model's"


def _other_plans(plan: Plan) -> Iterable[OtherPlan]:
    """The plans of the front; the first that is as good as the chosen one is marked."""
    if len(plan.front) > 1:
        chosen = next((i for i, one in enumerate(plan.front) if _is_as_good(plan, one.period_s, one.latency_s)), None)
        for i, one in enumerate(plan.front):
            yield OtherPlan(*astuple(one), is_chosen=i == chosen)


def _is_as_good(plan: Plan, period_s: float, latency_s: float) -> bool:
    """Whether these times give the plan's objective its value; False if they do not determine it."""
    goal, outcome = plan.goal, plan.outcome
    if outcome is None or not isinstance(goal, Across) or goal.objective in {"bytes", "devices", "crossings"}:
        return False
    value = latency_s if goal.objective == "latency" else period_s
    if goal.objective == "decode":
        value = (plan.costs.step_tokens if plan.costs else 1) / max(latency_s / goal.in_flight, period_s)
    return abs(value - outcome.value) <= 1e-6 * outcome.value


def _verify_command(cascade: Cascade) -> str:
    """The command that verifies a cascade, named by its folder where that is enough."""
    path = cascade.path.parent if cascade.path.name == MANIFEST else cascade.path
    can_be_compared = cascade.source.exists() and not cascade.absent
    return f"graphcut verify {shell_word(str(path))}{'' if can_be_compared else ' --files'}"


def _split_command(model: Path, node: str) -> str:
    """The command that cuts after a node; empty for a name with NUL, which no command can have.

    `--at-nodes` takes a list: a name with a comma or a line end is quoted inside it.
    """
    if "\0" in node:
        return ""
    name = f'"{node.replace(chr(34), chr(34) * 2)}"' if {*',"\r\n'}.intersection(node) else node
    option = f"--at-nodes{'=' if name.startswith('-') else ' '}{shell_word(name)}"
    # A pipeline is named by its folder: there may be no such file.
    return f"graphcut split {shell_word(str(model.parent if model.name == PIPELINE else model))} {option}"


# Boundary tensors


def _boundary_tensors(
    units: Sequence[Unit], wiring: Wiring, tensors: Mapping[str, Tensor], sizes: TensorBytes
) -> tuple[BoundaryTensor, ...]:
    """The tensors between units, in the order they are made."""
    return tuple(
        BoundaryTensor(
            tensor=name,
            type=str(tensors[name]),
            bytes=sizes[name][0],
            is_exact=sizes[name][1],
            source=source,
            readers=tuple(sorted(readers)),
        )
        for unit in units
        for name in unit.writes
        if name in wiring.boundary_tensors
        for source, readers in [wiring.boundary_tensors[name]]
    )
