"""The command `graphcut merge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..core.units import count
from .common_options import Texts, say_gap, say_phases
from .output import say

if TYPE_CHECKING:
    from .. import Model

_EXAMPLE = "for example --connect a.hidden=b.x, with the names of the files, or --connect 1.hidden=2.x"


def merge(paths: list[Path], output: Path, connect: Texts = None, force: bool = False) -> None:
    """Merge the parts of a cascade, or models, into one model.

    Inputs of models read outputs of the same name in other ones, unless connections are given. Other names that models
    share are changed.

    What an exporter left in a folder, such as an encoder and decoders, becomes a pipeline file if FILE ends with .toml.

    Examples:
        graphcut merge llm.parts -o whole.onnx
        graphcut merge llm.parts/part-0.onnx llm.parts/part-1.onnx -o joined.onnx
    """
    if len(paths) > 1:
        from .. import load, merge_models

        models = [load(path) for path in paths]
        model = merge_models(models, output, connect=_connections(models, connect), force=force)
        ends = f"{count(len(model.graph.reads), 'input')}, {count(len(model.graph.writes), 'output')}"
        say(f"wrote {output}: {count(len(model.graph.nodes), 'node')}, {ends}")
        say_gap(*paths)
        return
    if output.suffix == ".toml" and paths[0].is_dir():
        from .. import save_pipeline

        pipeline = save_pipeline(paths[0], output, force=force)
        say(f"wrote {output}: {', '.join(f'{name} ({one.runs})' for name, one in pipeline.models.items())}")
        return
    if connect:
        raise UsageError("--connect joins two models or more", hint="name them: graphcut merge a.onnx b.onnx")
    from .. import merge as merged
    from .. import open_cascade
    from ..drawing.opening import source_of

    cascade = open_cascade(paths[0])
    original = source_of(cascade, None)
    model = merged(cascade, output, force=force)
    is_original = model.digest == cascade.manifest.source.graph
    equals = f": its graph equals that of the original model{_left_out(original)}" if is_original else ""
    say(f"wrote {output}{equals}")
    say_phases(cascade.manifest.stepwise)
    say_gap(cascade)


def _left_out(original: Model | None) -> str:
    """What no part has of the original model; it is not known without the model."""
    if original is None:
        return ", without what no output depends on, if it has such nodes or weights"
    left = (*original.dropped, *original.unused)
    text = f", without {len(left):,} of its nodes and weights, on which no output depends: {', '.join(left[:3])}"
    return text if left else ""


def _connections(models: Sequence[Model], texts: Texts) -> dict[tuple[int, str], tuple[int, str]] | None:
    """What inputs read, by the index of a model and a name; None if nothing is said."""
    if texts is None:
        return None
    ends: dict[str, tuple[int, str]] = {}
    for i, model in enumerate(models):
        for name in (*model.graph.reads, *model.graph.writes):
            for label in (model.stem, str(i + 1)):
                ends.setdefault(f"{label}.{name}", (i, name))
    found: dict[tuple[int, str], tuple[int, str]] = {}
    for text in texts:
        signs = [at for at, sign in enumerate(text) if sign == "="]  # names may have this sign, too
        at = next((at for at in signs if text[:at] in ends and text[at + 1 :] in ends), None)
        if at is None:
            raise UsageError(f"--connect {text} names no output and input of the models", hint=_EXAMPLE)
        found[ends[text[at + 1 :]]] = ends[text[:at]]
    return found
