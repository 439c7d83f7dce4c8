"""Layers over the cut profile: what `compare --json` and `analyze --rules NAME --json` found of its nodes."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import UsageError
from ..core.records import reading
from ..costs.device_support import DeviceSupport
from ..verifying.two_models import ModelComparison, ratio
from .scene import Layer, Scene
from .svg.error_chart import NO_ERROR_DB
from .verification_records import RECORDS

_HINT: Final = "name what `graphcut compare --json` or `graphcut analyze --rules NAME --json` wrote"


def with_layers(scene: Scene, paths: Sequence[Path]) -> Scene:
    """The scene with a layer over its cut profile for each of these files.

    Raises:
        RecordError: a file has something else.
        UsageError: the scene has no cut profile, or none of its nodes is in a file.
    """
    return replace(scene, layers=tuple(_layer(scene, path) for path in paths))


def _layer(scene: Scene, path: Path) -> Layer:
    with reading(path, "JSON", unread=_HINT, hint=_HINT):
        found: Any = msgspec.json.decode(path.read_bytes(), type=RECORDS[ModelComparison] | DeviceSupport)
    if scene.profile is None:
        raise UsageError(f"{scene.title} has no cut profile: its model is not at hand", hint="name it with `model`")
    if isinstance(found, DeviceSupport):
        title, refused = found.rules.name, ((node, row) for row in found.unsupported for node in row.nodes)
        said = {node: (1.0, f"can't run {row.op}: {row.why}") for node, row in refused}
        legend = f"at the top where {title} can't run a node, by {path.name}."
    else:
        title, said = "error", _errors(found)
        legend = f"the error of nodes in {path.name}, 0 dB or no ratio at the top, no error at the bottom."
    if said and not said.keys() & {*scene.profile.nodes}:
        hint = "`graphcut compare` names the nodes of its first model; show that model, a plan of it, or its parts"
        raise UsageError(f"no node of {path} is in {scene.title}", hint=hint)
    heights, words = zip(*(said.get(node, (0.0, "")) for node in scene.profile.nodes), strict=True)
    return Layer(title=f"{title} ({path.name})", legend=legend, heights=heights, words=words)


def _errors(found: Any) -> dict[str, tuple[float, str]]:  # noqa: ANN401 - the document of a comparison
    """For each node the tensor that it writes with the largest error."""
    rated = [(inf if one.is_equal else -inf if one.db is None else one.db, one) for one in found.errors]
    return {
        one.node: (1 - min(max(db, 0.0), NO_ERROR_DB) / NO_ERROR_DB, f"{one.tensor}: {ratio(db)}")
        for db, one in sorted(rated, key=lambda row: -row[0])
    }
