"""`write_reproducer`: the nodes that a comparison names, from both models, with inputs and outputs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..core.atomic_files import Content, write_folder
from ..core.errors import UsageError
from ..loading.opening import ModelLike, load
from ..running.npz_files import save_outputs
from ..running.values import to_array, to_value
from ..surgery.extracting import extract
from ..verifying.numerical import EXACT, run_whole
from ..verifying.sections import converted
from ..verifying.two_models import ModelComparison


def write_reproducer(
    model: ModelLike, other: ModelLike, found: ModelComparison, folder: str | Path, *, force: bool = False
) -> None:
    """Write what computes the first culprit's tensor in both models, to be run with ONNX Runtime alone.

    The folder has `first.onnx` and `second.onnx`, with `-inputs.npz` and `-outputs.npz` for each: the same values as
    inputs, those of the first model in the types of each, and the outputs for them on the CPU without optimizations.

    Args:
        model: the first model that was compared, or its path.
        other: the second one.
        found: what `compare_models` returned for them.
        folder: where to write.
        force: replace such a folder.

    Raises:
        UsageError: there is no culprit, or the folder exists.
    """
    if not found.culprits:
        raise UsageError("no node adds an error that its types do not explain", hint="there is nothing to reproduce")
    culprit, first, second = found.culprits[0], load(model), load(other)
    inner = [name for name, _ in culprit.sources if name not in first.graph.input_index]
    values: dict[str, object] = {**found.inputs, **run_whole(first, found.inputs, inner, config=EXACT)}
    files: dict[str, Content] = {}
    for i, (side, tensor) in enumerate(((first, culprit.error.tensor), (second, culprit.error.other))):
        name, feeds = ("first", "second")[i], dict[str, object]()
        for pair in (pair for pair in culprit.sources if pair[0] in values and pair[i] in side.tensors):
            kinds = first.tensors[pair[0]], side.tensors[pair[i]]
            feeds[pair[i]] = converted(to_value(values[pair[0]], kinds[0]), kinds)
        files[f"{name}.onnx"] = partial(extract, side, inputs=[*feeds], outputs=tensor)
        for what in ("inputs", "outputs"):
            files[f"{name}-{what}.npz"] = partial(_save, f"{name}.onnx", feeds)
    write_folder(folder, files, kind="a reproducer", force=force)


def _save(model: str, feeds: Mapping[str, object], path: Path) -> None:
    """Save the inputs of a model beside it, or the outputs for them."""
    made = load(path.with_name(model))
    values = {name: feeds[name] for name in made.graph.reads if name in feeds}
    if path.name.endswith("-outputs.npz"):
        values = dict(run_whole(made, values, made.graph.writes, config=EXACT))
    save_outputs({name: to_array(value, made.tensors[name]) for name, value in values.items()}, path)
