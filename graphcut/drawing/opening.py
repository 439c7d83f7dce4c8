"""Open a path as what it is (a model, a plan, a cascade), as a scene, a picture, a document or a scenario."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ..analysis.cut_points import analyze
from ..core.errors import CascadeError, GraphcutError, UsageError, check_names
from ..core.manifest import PIPELINE, Cascade, open_cascade
from ..core.present_parts import open_present
from ..core.text import nothing_at
from ..loading.model import Model
from ..loading.opening import load
from ..planning.plan_files import read_plan, replay
from .dot import dot_of
from .html import html_of
from .mermaid import mermaid_of
from .path_kinds import Kind, kind_of
from .scene import Scene
from .scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan
from .svg.document import svg_of

if TYPE_CHECKING:
    from ..costs.cluster import SimulatedCluster
    from ..simulating.scenario import Scenario

OutputFormat = Literal["html", "svg", "dot", "mermaid"]  #: the formats that a scene is drawn in as text.
_RENDERERS: Final = {"html": html_of, "svg": svg_of, "dot": dot_of, "mermaid": mermaid_of}


def kind_at(path: Path, hint: str = "name a model, a plan, or the folder of a cascade") -> Kind:
    """What is at `path`.

    Raises:
        CascadeError: nothing is.
    """
    if not path.exists():
        raise CascadeError(nothing_at(path, f"{path} does not exist"), hint=hint)
    return kind_of(path)


def scene_at(path: Path, *, model: Path | None = None, dims: Mapping[str, int] | None = None) -> Scene:
    """The scene of what is at `path`: a model, a plan file, or the folder or manifest of a cascade.

    `model` is the model of a plan or a cascade that has moved. `dims` are numbers for symbolic dimensions of a model or
    a cascade, in addition to those that a cascade stores; the predictions of a plan are for those it was made with.
    """
    kind = kind_at(path)
    if kind == "model":
        if model is not None:
            raise UsageError(f"{path} is a model itself", hint="`model` is for a plan or a cascade")
        return scene_of_analysis(analyze(load(path, dims=dims)))
    if kind == "plan":
        _check_fixed(path, dims)
        analysis = analyze(_model_of_plan(path, model))
        return scene_of_plan(replay(analysis, path), analysis)
    cascade = with_dims(open_present(path), dims or {})
    return scene_of_cascade(cascade, None if cascade.absent else source_of(cascade, model))


def rendered(
    scene: Scene, output_format: OutputFormat, layers: Sequence[Path] = (), words: Callable[[str], str] = str
) -> str:
    """A scene as text in that format, with layers over its profile; see `with_layers`.

    `words` gives the words in which notes name arguments.
    """
    if layers:
        from .profile_layers import with_layers

        scene = with_layers(scene, layers)
    if output_format == "mermaid" and not scene.cards:
        raise UsageError(f"{scene.title} is not cut: there are no parts to draw", hint="draw a plan or a cascade")
    return _RENDERERS[output_format](replace(scene, notes=tuple(map(words, scene.notes))))


def record_at(path: Path, *, dims: Mapping[str, int] | None = None) -> msgspec.Struct:
    """The document of what is at `path`: the analysis of a model for `dims`, a plan file, or a cascade."""
    from .json_records import analysis_record, cascade_record

    kind = kind_at(path)
    if kind == "model":
        return analysis_record(analyze(load(path, dims=dims)))
    return read_plan(path) if kind == "plan" else cascade_record(open_present(path))


def scenario_at(
    path: Path,
    cluster: SimulatedCluster | None,
    *,
    model: Path | None = None,
    outputs: Sequence[str] | None = None,
    dims: Mapping[str, int] | None = None,
) -> Scenario:
    """The scenario for a simulation of a plan or cascade on `cluster`; None is the one that the plan was made for.

    `outputs` are those that requests ask for, by default those of the plan, and all of a cascade. `dims` are as in
    `scene_at`.
    """
    from ..simulating.scenario import scenario_of_cascade, scenario_of_plan

    kind = kind_at(path, "name a plan, which `save_plan(...)` writes, or the folder of a cascade")
    if kind == "model" and path.suffix.lower() != ".onnx" and path.is_file():
        raise UsageError(f"{path} is no plan and no cascade: it is not JSON", hint="`save_plan(...)` writes a plan")
    if kind == "model":
        raise UsageError(f"{path} is a model that is not cut", hint="`save_plan(...)` writes a plan of it")
    if kind == "plan":
        _check_fixed(path, dims)
        opened = _model_of_plan(path, model)
        return scenario_of_plan(replay(analyze(opened), path), opened, cluster, outputs)
    cascade = with_dims(open_cascade(path), dims or {})
    if cluster is None:
        raise UsageError(f"{path} is a cascade, which has no device speeds", hint="name a cluster file with `cluster`")
    return scenario_of_cascade(cascade, cluster, source_of(cascade, model), outputs)


def _check_fixed(plan: Path, dims: Mapping[str, int] | None) -> None:
    if dims:
        raise UsageError(f"the predictions of {plan} are for fixed sizes", hint="plan again with other `dims`")


def with_dims(cascade: Cascade, dims: Mapping[str, int]) -> Cascade:
    """The cascade with sizes for these dims, in addition to those it stores; its files are unchanged."""
    manifest = cascade.manifest
    symbols = dict.fromkeys(dim for tensor in manifest.tensors for dim in tensor.shape or () if isinstance(dim, str))
    check_names(dims, symbols, f"no tensor of {cascade.path} has a dimension", "its dimensions:")
    assumed = tuple(name for name in manifest.assumed if name not in dims)
    bound = msgspec.structs.replace(manifest, dims={**manifest.dims, **dims}, assumed=assumed)
    return replace(cascade, manifest=bound) if dims else cascade


def source_of(cascade: Cascade, named: Path | None) -> Model | None:
    """The model that the cascade was cut from; None if it is missing or has changed, and none is named."""
    try:
        model = load(named or cascade.source)
        if model.digest == cascade.manifest.source.graph:
            return model.with_dims(cascade.manifest.dims)
    except GraphcutError:
        if named is not None:
            raise
    if named is not None:
        raise CascadeError(f"{cascade.path} was not cut from {named}: the graphs differ", hint="name its own model")
    return None


def _model_of_plan(path: Path, named: Path | None) -> Model:
    """The named model; else the one that the plan names, beside the plan, or in this folder."""
    if named is not None:
        return load(named)
    record = read_plan(path)
    recorded = Path(os.path.normpath(path.parent.resolve() / record.model))
    places = (recorded, path.parent / recorded.name, Path(recorded.name))
    # What an exporter left is a pipeline of models without a pipeline file.
    found = [one for one in places if one.is_file() or (one.name == PIPELINE and kind_of(one.parent) == "model")]
    if model := next((one for one in map(load, found) if one.digest == record.graph), None):
        return model
    differs = f"{found[0]} is not the model of {path}: the graphs differ" if found else ""
    raise UsageError(differs or f"the model of {path} is not at {recorded}", hint="name it with `model`")
