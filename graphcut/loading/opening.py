"""`load`: open an ONNX model without its weights. All of graphcut gets its models from here."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from onnx import ModelProto

from ..core.errors import UsageError, check_names, wrong_type
from ..core.file_checks import check_parts
from ..core.manifest import PIPELINE
from ..core.states import check_state_pairs
from ..core.tensors import MAX_BYTES, Dims
from .exported_pipelines import exported_pipeline
from .in_memory import TemporaryFolder, is_graph, write_model
from .model import Model, load_unchecked, symbols_in
from .pipelines import open_pipeline, read_pipeline

ModelLike = str | Path | Model | ModelProto
"""A model, its path, or a model in memory: an `onnx.ModelProto`, or an `onnx_graphsurgeon.Graph` (which is untyped)."""


def load(source: ModelLike, *, dims: Dims | None = None, states: Mapping[str, str] | None = None) -> Model:
    """Open a model. Takes time and memory for its graph only: the values of large weights are not read.

    Args:
        source: the path of an .onnx file, with its external data in the same folder or below; or of a pipeline of
            models: a pipeline file (`.toml`), or a folder with `pipeline.toml` or with what Optimum or ONNX Runtime
            GenAI exported; or a `Model`, which is returned as it is, or with other `dims` and `states`; or a model in
            memory: an `onnx.ModelProto` or an `onnx_graphsurgeon.Graph`, which is written to a temporary file.
        dims: numbers for symbolic dimensions, such as `{"batch": 1, "seq": 16}`. They are used for sizes and costs; the
            model and its parts keep the symbols.
        states: outputs by the inputs that they become at the next step, where names and operators don't show it.

    Raises:
        CascadeError: the file is a part, by a manifest beside it, and was changed after the model was cut.
        RecordError: a pipeline file, or a configuration, can't be read, or says what can't be.
        ModelError: the file can't be read or is not a valid model, or its weights are missing or refused; a model in
            memory refers to a file, or onnx_graphsurgeon would change what the graph computes.
        TypeError: `source` is none of these.
        UsageError: `dims` has an unknown symbol or a negative number, or `states` an unknown input or output, or pairs
            of which the output can't become the input.
    """
    if isinstance(source, Model):
        model = source
    elif isinstance(source, str | Path):
        model = _open_path(Path(source))
        states = None if states is None else {**model.states, **states}
    else:
        model = _open_in_memory(source)
    if dims is not None:
        _check_dims(model, dims)
        model = model.with_dims(dims)
    if states is not None:
        model = replace(model, states=MappingProxyType(dict(states)))
        check_state_pairs(states, model.graph.reads, model.graph.writes, model.tensors if states else {})
    return model


def _open_path(path: Path) -> Model:
    file, is_there = path, False
    with suppress(OSError):  # a name that can't be; `load_unchecked` says why
        file = path / PIPELINE if path.is_dir() else path
        is_there = file.suffix == ".toml" and file.is_file()
    if is_there:
        return open_pipeline(file, read_pipeline(file))
    if file.name == PIPELINE and (found := exported_pipeline(file.parent)) is not None:
        return open_pipeline(file, found)
    model = load_unchecked(path)
    check_parts([path], has_weights=False)
    return model


def _open_in_memory(source: object) -> Model:
    if not isinstance(source, ModelProto) and not is_graph(source):
        expected = "a Model, a path, an onnx.ModelProto or an onnx_graphsurgeon.Graph"
        raise wrong_type(source, expected, hint="pass the path of an .onnx file, or what load() returns")
    folder = TemporaryFolder()
    model = replace(load_unchecked(write_model(source, folder.path)), temporary_folder=folder)
    if is_graph(source):
        from .graphsurgeon_bridge import refuse_shifted_outputs  # imports onnx_graphsurgeon

        refuse_shifted_outputs(model.proto)
    return model


def _check_dims(model: Model, dims: Dims) -> None:
    symbols = symbols_in(model.proto)
    for name, number in dims.items():
        if name not in symbols and not any(name in tensor.dim_names for tensor in model.tensors.values()):
            known = sorted({*symbols, *model.symbols})
            check_names([name], known, f"{model.title} has no symbolic dimension", "its symbolic dimensions:")
        if number % 1 or not 0 <= number <= MAX_BYTES:
            raise UsageError(f"dimension {name!r} can't be {number}", hint="a size is a whole number up to 2**56")
