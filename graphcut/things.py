"""What a person can name to be shown: a model, a plan, a cascade. Each is opened by what it is, and becomes a scene."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CascadeError, GraphcutError, UsageError

if TYPE_CHECKING:
    from .cascade import Cascade
    from .drawing.scene import Scene
    from .model import Model


def scene_at(place: Path, *, model: Path | None = None, dims: Mapping[str, int] | None = None) -> Scene:
    """What there is to see of `place`.

    Args:
        place: an .onnx file, a plan file, or the folder or manifest of a cascade.
        model: the model that a plan or a cascade belongs to, where it has moved.
        dims: numbers for symbolic dimensions, for a model.

    Raises:
        UsageError: the model of a plan is not there.
        GraphcutError: what stands there can't be opened.
    """
    if not place.exists():
        raise CascadeError(f"there is nothing at {place}", hint="name a model, a plan, or the folder of a cascade")
    if place.suffix.lower() == ".onnx":
        from .analysis import analyze
        from .drawing.scenes import scene_of_analysis
        from .model import load

        return scene_of_analysis(analyze(load(place, dims=dims)))
    if is_plan(place):
        return _scene_of_plan(place, model)
    return _scene_of_cascade(place, model)


def is_plan(place: Path) -> bool:
    """Is it a file that says of itself that it holds a plan?"""
    if not place.is_file():
        return False
    with place.open("rb") as stream:
        return b'"graphcut.plan/' in stream.read(512)


def _scene_of_plan(place: Path, model: Path | None) -> Scene:
    from .analysis import analyze
    from .costs.weighing import weigh
    from .drawing.scenes import scene_of_plan
    from .model import load
    from .planning.files import read_plan, replay, with_outcome
    from .planning.plans import with_figures

    name = read_plan(place).model
    found = model or next((p for p in (place.parent / name, Path(name)) if p.is_file()), None)
    if found is None:
        raise UsageError(
            f"{place} is a plan for {name}, which does not lie beside it", hint="name it with --model FILE"
        )
    analysis = analyze(load(found))
    made = replay(analysis, place)
    made = with_outcome(with_figures(analysis, made, weigh(analysis.model, made.dims)), place)
    return scene_of_plan(made, analysis)


def _scene_of_cascade(place: Path, model: Path | None) -> Scene:
    from .cascade import open_cascade
    from .drawing.scenes import scene_of_cascade

    cascade = open_cascade(place)
    return scene_of_cascade(cascade, _source(cascade, model))


def _source(cascade: Cascade, named: Path | None) -> Model | None:
    """The model that was cut; None where it has gone or changed, which is no reason not to show its parts."""
    from .model import load
    from .structure import graph_digest

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
