"""Conversions of a model, each made by the library that is kept for it. graphcut quantizes nothing itself."""

import io
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NamedTuple

import msgspec
import onnx
import onnx.version_converter
import onnxruntime as ort
from onnx import ModelProto

from ..analysis.repeated_blocks import repeated_block
from ..core.errors import GraphcutError, UsageError, needing
from ..core.records import table
from ..core.tensors import Dims
from ..core.text import printable
from ..core.units import size
from ..decoding.token_inputs import role_of
from ..loading.model import Model
from ..loading.subgraphs import domain, is_external, locations_in, remove_named, tensors_in
from ..running.process_memory import available_bytes
from ..running.stage import SessionConfig, session_options
from ..running.values import Feeds
from ..surgery.model_files import make_constants, write_model


class _Conversions(msgspec.Struct):
    """The names of conversions, and who makes them."""

    precisions: dict[str, tuple[str, ...]]
    steps: dict[str, tuple[str, ...]]
    packages: dict[str, tuple[str, int]]  #: who makes it, and how often that holds all weights in memory.
    imports: dict[str, str]  #: what else it imports that graphcut does not bring.


_TABLE: Final = table("automating/conversions.toml", _Conversions)
PRECISIONS, STEPS = _TABLE.precisions, _TABLE.steps
"""The conversions of each precision, and of steps that may come before one; opset=N is one, too."""

_FUSED_TYPES: Final = {"whisper": "bart", "distilbert": "bert", "roberta": "bert", "xlm-roberta": "bert"}
"""What ONNX Runtime calls some model types of Hugging Face; others have the same name there, or are tried as bert."""


_FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_SAME_NUMBERS: Final = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


class Job(NamedTuple):
    """What a conversion is given."""

    model: Model  #: the model that it converts.
    target: Path  #: the file that it writes.
    home: Path  #: the folder of the given model.
    calibration: Sequence[Feeds]  #: inputs for static quantization.
    excluded: Sequence[str]  #: nodes that are not quantized.
    number: int  #: of a conversion that has one, such as 17 in opset=17.


def _clean(job: Job) -> dict[str, Any]:
    """Types of inner tensors may be stale, and make quantizers fail; these name nodes by their names."""
    proto = deepcopy(job.model.proto)
    for node, known in zip(proto.graph.node, job.model.graph.nodes, strict=True):
        node.name = known.name
    foreign = {name for node in proto.graph.node if domain(node.domain) for name in node.output}
    typed = {value.name for value in proto.graph.value_info}
    remove_named(proto.graph.value_info, typed - foreign)  # nothing else knows the types of foreign ones
    return _written(job, proto)


def _written(job: Job, proto: ModelProto) -> dict[str, Any]:
    """Write a copy of the model that was changed."""
    pieces = [(tensor, job.model.range_of(tensor)) for tensor in tensors_in(proto) if is_external(tensor)]
    write_model(job.target, proto, pieces, is_inline=False, force=False)
    return {}


def _constants(job: Job) -> dict[str, Any] | None:
    proto = deepcopy(job.model.proto)
    return _written(job, proto) if make_constants(proto) else None


def _optimize(job: Job, *, level: str = "ORT_ENABLE_EXTENDED", dims: Dims = MappingProxyType({})) -> dict[str, Any]:
    data = {"session.optimized_model_external_initializers_file_name": f"{job.target.name}.data"}
    options = session_options(SessionConfig(), data, dims)
    # The level above extended also chooses layouts for this processor.
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(job.target)
    ort.InferenceSession(str(job.model.path), options, providers=["CPUExecutionProvider"])
    return {"graph_optimization_level": level} | ({"dims": dict(dims)} if dims else {})


def _static(job: Job) -> dict[str, Any]:
    """Sizes of inputs become those given, and what follows from them is computed. Basic operators stay basic."""
    dims = job.model.dims
    if unknown := [name for name in job.model.symbols if name not in dims]:
        raise UsageError(f"static: {', '.join(unknown)} has no number", hint="give each a number with `dims`")
    return _optimize(job, level="ORT_ENABLE_BASIC", dims=dims)


def _opset(job: Job) -> dict[str, Any]:
    _save(onnx.version_converter.convert_version(onnx.load(job.model.path), job.number), job.target)
    return {"opset": job.number}


def _fuse(job: Job) -> dict[str, Any] | None:
    from onnxruntime.transformers import optimizer

    config = dict[str, Any]()
    with suppress(OSError, msgspec.MsgspecError):
        config = msgspec.json.decode((job.home / "config.json").read_bytes(), type=dict[str, Any])
    kind = _FUSED_TYPES.get(config.get("model_type", ""), config.get("model_type"))
    options = {
        "model_type": kind if kind in optimizer.MODEL_TYPES else "bert",
        "num_heads": config.get("num_attention_heads", 0),
        "hidden_size": config.get("hidden_size", 0),
        "opt_level": 0,
    }
    made = optimizer.optimize_model(str(job.model.path), **options)
    fused = {name: number for name, number in made.get_fused_operator_statistics().items() if number}
    if not any("Attention" in name for name in fused):
        return None
    _save(made.model, job.target)
    return {**options, "fused": fused}


def _fp16(job: Job) -> dict[str, Any]:
    from onnxruntime.transformers import float16

    transposes = (node for node in job.model.proto.graph.node if node.op_type == "Transpose")
    perms = ((node.name, attribute.ints) for node in transposes for attribute in node.attribute)
    # ONNX Runtime crashes where it fuses a node that moves the first axis with a product of float16.
    moves_batch = [name for name, perm in perms if len(perm) > 2 and 0 in perm[-2:]]
    options = {"keep_io_types": True, "node_block_list": moves_batch}
    _save(float16.convert_float_to_float16(str(job.model.path), **options), job.target)
    return options


def _int4(job: Job) -> dict[str, Any]:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    tables, home = _embeddings(job), str(job.model.path.parent.absolute())
    options = {"bits": 4, "block_size": 32, "is_symmetric": True, "nodes_to_exclude": job.excluded}
    options["nodes_to_include"] = list(tables)  # with `Gather` among the types, it takes all, and breaks the opset
    proto = onnx.load(job.model.path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.name in tables.values() and is_external(tensor):  # it reads these itself, by no absolute path
            onnx.external_data_helper.load_external_data_for_tensor(tensor, home)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    for place in locations_in(proto):  # onnx_ir maps each weight from its file when its turn comes
        place.value = f"{home}/{place.value}"
    made = MatMulNBitsQuantizer(proto, **options)
    made.process()
    made.model.model.ir_version = max(made.model.model.ir_version, 10)  # the first that has numbers of 4 bits
    for place in locations_in(made.model.model):
        place.value = Path(place.value).name
    onnx.external_data_helper.load_external_data_for_model(made.model.model, home)
    _save(made.model.model, job.target)
    return options


def _embeddings(job: Job) -> dict[str, str]:
    """The nodes that take rows of a matrix by given numbers, such as tokens, and the matrix, which they alone read."""
    model, graph, found = job.model.proto, job.model.graph, dict[str, str]()
    uses = Counter([*graph.writes, *(weight for node in graph.nodes for weight in node.weights)])
    floats = {t.name for t in model.graph.initializer if t.data_type in _FLOATS and len(t.dims) == 2}
    for proto, node in zip(model.graph.node, graph.nodes, strict=True):
        if node.op != "Gather" or node.name in job.excluded or any(axis.i for axis in proto.attribute):
            continue
        table, numbers = proto.input
        while (maker := graph.producer.get(numbers)) is not None and graph.nodes[maker].op in _SAME_NUMBERS:
            numbers = model.graph.node[maker].input[0]
        is_given = numbers in graph.input_index and role_of(job.model.tensors[numbers]) != "positions"
        if is_given and table in floats and uses[table] == 1:  # positions choose sines, which lose too much
            found[node.name] = table
    return found


def _int8(job: Job) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # It takes ONNX's own operator for ONNX Runtime's, which is older and has other inputs.
    excluded = [*job.excluded, *(node.name for node in job.model.graph.nodes if node.op == "Attention")]
    # Products of two unsigned types are exact on every processor, and convolutions take no others.
    extra = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    how = {"nodes_to_exclude": excluded, "use_external_data_format": True, "extra_options": extra}
    quantize_dynamic(str(job.model.path), str(job.target), weight_type=QuantType.QUInt8, **how)
    return {"weight_type": "QUInt8", "nodes_to_exclude": excluded}


def _preprocess(job: Job) -> dict[str, Any]:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    options = {"skip_symbolic_shape": True}
    saving = {"save_as_external_data": True, "external_data_location": f"{job.target.name}.data"}
    quant_pre_process(*(str(job.model.path), str(job.target)), **options, **saving, all_tensors_to_one_file=True)
    return options


def _int8_static(job: Job) -> dict[str, Any]:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    types = {"activation_type": "QUInt8", "weight_type": "QInt8"}
    opsets = {domain(one.domain): one.version for one in job.model.proto.opset_import}
    per_channel = opsets.get("", 0) >= 13  # DequantizeLinear has no axis before
    reader = SimpleNamespace(get_next=partial(next, iter(job.calibration), None))  # as the library takes inputs
    how = {"quant_format": QuantFormat.QDQ, "per_channel": per_channel, "use_external_data_format": True}
    how |= {name: QuantType[kind] for name, kind in types.items()}
    quantize_static(str(job.model.path), str(job.target), reader, **how)
    return {"quant_format": "QDQ", "per_channel": per_channel, **types}


def _save(proto: ModelProto, target: Path) -> None:
    onnx.save(proto, target, save_as_external_data=True, location=f"{target.name}.data")


_FUNCTIONS: Final[Mapping[str, Callable[[Job], dict[str, Any] | None]]] = {
    "clean": _clean, "fuse": _fuse, "optimize": _optimize, "constants": _constants, "static": _static, "opset": _opset,
    "fp16": _fp16, "preprocess": _preprocess, "int8-static": _int8_static, "int8": _int8, "int4": _int4,
}  # fmt: skip


def _kind(name: str) -> str:
    """The conversion without what follows its name: its number, or that some nodes are left out."""
    return name.partition("=")[0].removesuffix("-mixed")


def library_of(name: str) -> tuple[str, str]:
    """The package that makes a conversion, and its version."""
    package = _TABLE.packages[_kind(name)][0]
    return package, version(package.partition(".")[0])


def check_possible(names: Sequence[str], model: Model) -> None:
    """Refuse conversions whose packages are missing or hold more in memory than there is, with a GraphcutError."""
    free = available_bytes()
    for name in names:
        if (module := _TABLE.imports.get(_kind(name))) and find_spec(module) is None:
            message = f"{name} needs the package {module}, which is not installed"
            raise UsageError(message, hint="pip install 'graphcut[auto]'")
        package, times = _TABLE.packages[_kind(name)]
        if free is not None and (needed := times * model.weight_bytes) > free:
            takes = f"holds all weights in memory and takes about {size(needed)}; {size(free)} are free"
            raise GraphcutError(f"{name}: {package} {takes}", hint="try int4, which streams weights, or fp32")


def convert(name: str, model: Model, target: Path, home: Path, calibration: Sequence[Feeds]) -> dict[str, Any] | None:
    """Write what a conversion makes of a model to `target`; returns the options that its package was given.

    The given model is in the folder `home`, which may have a configuration that says what kind it is.

    None if it found nothing to do. A GraphcutError if a package fails.
    """
    excluded, number = _ends(model) if name.endswith("-mixed") else [], int(name.partition("=")[2] or 0)
    try:
        with _silence(target.parent), needing(name, "auto"):
            return _FUNCTIONS[_kind(name)](Job(model, target, home, calibration, excluded, number))
    except GraphcutError:
        raise
    except Exception as error:
        message = f"{name}: {' '.join(library_of(name))} failed: {type(error).__name__}: {printable(str(error))}"
        raise GraphcutError(message, hint=advice(model)) from error


def advice(model: Model) -> str:
    """What to do if a conversion of a model fails."""
    is_quantized = any(node.op == "DequantizeLinear" for node in model.graph.nodes)
    other = "the model is quantized already: leave `precisions` out" if is_quantized else "try another precision"
    return f"nothing was changed; {other}, or fewer of `steps`"


def _ends(model: Model) -> list[str]:
    """The nodes up to the end of the first layer, and from the beginning of the last; without layers one of each."""
    graph, repeat = model.graph, repeated_block(model)
    order = list(repeat.blocks) if repeat else [(i,) for i in graph.flow if graph.nodes[i].weights]
    inner = {i for block in order[1:-1] for i in block}
    return [graph.nodes[i].name for i in graph.flow if i not in inner]


@contextmanager
def _silence(folder: Path) -> Iterator[None]:
    """Libraries print, log and warn while they work, and one sets up logging for the whole process; files go here."""
    root, nothing, before = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    place, tempfile.tempdir = tempfile.tempdir, str(folder)  # which is removed even after a kill
    root.addHandler(nothing)
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        tempfile.tempdir = place
        root.removeHandler(nothing)
