"""What a person can name to be shown: a model, a plan, a cascade. Each is opened by what it is, and drawn or told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import CascadeError, GraphcutError, UsageError

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..loading.model import Model
    from ..planning.cluster import SimulatedCluster
    from ..simulating.scenario import Scenario
    from .scene import Scene

OutputFormat = Literal["html", "svg", "dot", "mermaid"]
"""What draws a scene as text."""


def is_model(place: Path) -> bool:
    """Is it called like a model?"""
    return place.suffix.lower() == ".onnx"


def is_plan(place: Path) -> bool:
    """Is it a file that says of itself that it holds a plan?"""
    if not place.is_file():
        return False
    with place.open("rb") as stream:
        return b'"graphcut.plan/' in stream.read(512)


def scene_at(place: Path, *, model: Path | None = None, dims: Mapping[str, int] | None = None) -> Scene:
    """What there is to see of `place`.

    Args:
        place: an .onnx file, a plan file, or the folder or manifest of a cascade.
        model: the model that a plan or a cascade belongs to, where it has moved.
        dims: numbers for symbolic dimensions of a model or a cascade, on top of those that a cascade keeps. The figures
            of a plan hold for those that it was made with.

    Raises:
        UsageError: the model of a plan is not there; a model belongs to no other; a plan is asked for other sizes.
        GraphcutError: what stands there can't be opened.
    """
    _check_exists(place)
    if is_model(place):
        return _scene_of_model(place, model, dims)
    if is_plan(place):
        return _scene_of_plan(place, model, dims)
    from ..core.manifest import open_cascade
    from .scenes import scene_of_cascade

    cascade = with_dims(open_cascade(place), dims or {})
    return scene_of_cascade(cascade, source_of(cascade, model))


def rendered_at(
    place: Path, pen: OutputFormat, *, model: Path | None = None, dims: Mapping[str, int] | None = None
) -> str:
    """`scene_at`, drawn.

    Raises:
        UsageError: as `scene_at`; or nothing is cut, and the pen draws parts alone.
        GraphcutError: what stands there can't be opened.
    """
    scene = scene_at(place, model=model, dims=dims)
    if pen in {"dot", "mermaid"} and not scene.cards:
        raise UsageError(f"{place} is not cut: there are no parts to draw", hint="draw a plan or a cascade")
    match pen:
        case "html":
            from .html import html_of

            return html_of(scene)
        case "svg":
            from .svg.document import svg_of

            return svg_of(scene)
        case "dot":
            from .dot import dot_of

            return dot_of(scene)
        case "mermaid":
            from .mermaid import mermaid_of

            return mermaid_of(scene)


def record_at(place: Path, *, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Everything that there is to say of `place`: of a model what analyzing finds, else what stands in its file.

    Args:
        place: as for `scene_at`.
        dims: numbers for symbolic dimensions of a model.

    Raises:
        GraphcutError: what stands there can't be opened.
    """
    from . import json_records as pen

    _check_exists(place)
    if is_model(place):
        from ..analysis.cut_points import analyze
        from ..loading.model import load

        return pen.analysis_record(analyze(load(place, dims=dims)))
    if is_plan(place):
        from ..planning.plan_files import read_plan

        return pen.builtins(read_plan(place))
    from ..core.manifest import open_cascade

    return pen.cascade_record(open_cascade(place))


def scenario_at(place: Path, world: SimulatedCluster | None, *, model: Path | None = None) -> Scenario:
    """What there is to simulate of `place`.

    Args:
        place: a plan file, or the folder or manifest of a cascade.
        world: the cluster it is in; None for the one that a plan was made for.
        model: the model that a plan belongs to, where it has moved.

    Raises:
        UsageError: the model of a plan is not there, or there is no world, or not all devices are in it.
        GraphcutError: what stands there can't be opened.
    """
    from ..simulating.scenario import scenario_of_cascade, scenario_of_plan

    _check_exists(place)
    if is_model(place):
        raise UsageError(f"{place} is a model that is not cut", hint="`graphcut plan MODEL ... -o FILE` plans it")
    if is_plan(place):
        from ..analysis.cut_points import analyze
        from ..planning.plan_files import replay

        opened = _planned_model(place, model)
        return scenario_of_plan(replay(analyze(opened), place), opened, world)
    if world is None:
        raise UsageError(
            f"{place} is a cascade, which has no device speeds", hint="name a cluster file with --cluster FILE"
        )
    from ..core.manifest import open_cascade

    return scenario_of_cascade(open_cascade(place), world)


def with_dims(cascade: Cascade, dims: Mapping[str, int]) -> Cascade:
    """A cascade whose sizes are counted for these numbers, on top of those that it keeps; its files stay as they are.

    Raises:
        UsageError: no tensor that crosses a border has such a dimension.
    """
    from msgspec.structs import replace as changed

    manifest = cascade.manifest
    symbols = dict.fromkeys(dim for tensor in manifest.tensors for dim in tensor.shape or () if isinstance(dim, str))
    for name in dims:
        if name not in symbols:
            known = ", ".join(symbols) or "none"
            raise UsageError(
                f"nothing that {cascade.path} tells of has a dimension {name!r}", hint=f"its dimensions: {known}"
            )
    return replace(cascade, manifest=changed(manifest, dims={**manifest.dims, **dims})) if dims else cascade


def source_of(cascade: Cascade, named: Path | None) -> Model | None:
    """The model that was cut; None where it has gone or changed, which is no reason not to show its parts.

    Raises:
        CascadeError: the cascade was not cut from the one that is named.
        GraphcutError: that one can't be opened.
    """
    from ..loading.fingerprint import graph_digest
    from ..loading.model import load

    dims = cascade.manifest.dims
    if named is not None:
        model = load(named, dims=dims)
        if graph_digest(model.proto) != cascade.manifest.source.graph:
            raise CascadeError(f"{cascade.path} was not cut from {named}: the graphs differ", hint="name its own model")
        return model
    try:
        found = load(cascade.source, dims=dims)
    except GraphcutError:
        return None
    return found if graph_digest(found.proto) == cascade.manifest.source.graph else None


def _check_exists(place: Path) -> None:
    if not place.exists():
        raise CascadeError(f"there is nothing at {place}", hint="name a model, a plan, or the folder of a cascade")


def _scene_of_model(place: Path, model: Path | None, dims: Mapping[str, int] | None) -> Scene:
    from ..analysis.cut_points import analyze
    from ..loading.model import load
    from .scenes import scene_of_analysis

    if model is not None:
        raise UsageError(
            f"{place} is a model itself, and belongs to no other", hint="name the model of a plan or a cascade alone"
        )
    return scene_of_analysis(analyze(load(place, dims=dims)))


def _scene_of_plan(place: Path, model: Path | None, dims: Mapping[str, int] | None) -> Scene:
    from ..analysis.cut_points import analyze
    from ..planning.plan_files import replay
    from .scenes import scene_of_plan

    if dims:
        raise UsageError(
            f"the figures of {place} hold for the sizes that it was planned for", hint="plan again with other --dim"
        )
    analysis = analyze(_planned_model(place, model))
    return scene_of_plan(replay(analysis, place), analysis)


def _planned_model(place: Path, named: Path | None) -> Model:
    """The model of a plan: the one at `named`, or else the one that the plan names, beside it or in this folder."""
    from ..loading.fingerprint import graph_digest
    from ..loading.model import load
    from ..planning.plan_files import read_plan

    if named is not None:
        return load(named)
    record = read_plan(place)
    recorded = Path(os.path.normpath(place.parent.resolve() / record.model))
    beside = place.parent / recorded.name
    found = [path for path in (recorded, beside, Path(recorded.name)) if path.is_file()]
    for path in found:
        model = load(path)
        if graph_digest(model.proto) == record.graph:
            return model
    raise UsageError(
        f"{found[0]} is not the model of {place}: the graphs differ"
        if found
        else f"the model of {place} is not at {recorded}",
        hint="name it with --model FILE",
    )
