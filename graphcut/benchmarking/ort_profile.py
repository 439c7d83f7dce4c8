"""Profile a piece of a model with ONNX Runtime: the seconds of each kernel in each of several runs.

ONNX Runtime writes profiles in Chrome's trace event format: an event for each kernel and for each run, in microseconds,
with the shapes of what a kernel wrote (onnxruntime/core/framework/sequential_executor.cc). Fusions keep the names of
their outputs, so the nodes of the model that a kernel computes are found by these.
"""

import os
import re
import tempfile
import timeit
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto

from ..core.graph import reached
from ..core.tensors import BITS
from ..loading.model import Model
from ..loading.shape_inference import dtype_from_ort
from ..loading.tensor_values import values_bytes
from ..running.stage import SessionConfig, explaining, external_weights_entry, opening, run_session, session_options
from ..running.values import Value

_KERNEL: Final = "_kernel_time"  #: the end of the name of a kernel's event; the name of its node comes before.
_RENAMED: Final = re.compile(
    r"^(?:InsertedPrecisionFreeCast_)?(?:((.+?)(?:_bn|_mul)?)_nchwc(?:_token_\d+)?|(.+))$", re.DOTALL
)
"""Names that ONNX Runtime makes of a tensor's: for its value in float32 (core/optimizer/insert_cast_transformer.cc),
and for the node that writes it in blocks of channels, perhaps a convolution now (nchwc_transformer.cc)."""

_HALVES: Final = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
"""What ONNX Runtime's CPU kernels compute in float32, with a float32 copy of the weights."""

_MOST_INLINE_HALF_BYTES: Final = 1 << 27
"""Half-precision weights up to this size are written into the optimized graph's file, as float32. A protobuf file holds
at most 2 GiB. Other weights are references there."""


class _Arguments(msgspec.Struct):
    input_type_shape: list[dict[str, list[int]]] = []
    output_type_shape: list[dict[str, list[int]]] = []


class ProfileEvent(msgspec.Struct):
    """An event of a profile, as far as it is read; times in microseconds."""

    cat: str
    name: str
    ts: int
    dur: int = 0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


class ProfiledKernel(NamedTuple):
    """Measurements of a node of the optimized graph."""

    nodes: tuple[int, ...]  #: the indices of the piece's nodes that it computes.
    #: equal for kernels that should take the same time: operator, attributes and shapes are equal. Kernels of repeated
    #: blocks are such. What runs before and after does not count: else the first and the last block had a time of their
    #: own, of fewer samples, so shares of parts of an LSTM were 5 % off in place of 2.
    kind: Hashable
    seconds: tuple[float, ...]  #: its time in each run with profiling.


class ProfiledPiece(NamedTuple):
    """Measurements of a piece."""

    run_s: tuple[float, ...]  #: the times of the runs without profiling.
    kernels: tuple[ProfiledKernel, ...]  #: the nodes that ran.
    tensor_bytes: Mapping[str, int]  #: the sizes of tensors, as far as the profile shows them.
    outputs: Mapping[str, Value]  #: the values of the piece's outputs.


def profile(model: Model, piece: ModelProto, feeds: Mapping[str, Value], rounds: int, threads: int) -> ProfiledPiece:
    """Run a piece of a model, once to warm up, then `rounds` times with and without profiling.

    The nodes of `piece` have unique names.
    """
    with tempfile.TemporaryDirectory(prefix="graphcut-") as scratch:
        inputs, names = ([value.name for value in values] for values in (piece.graph.input, piece.graph.output))
        fed = {name: feeds[name] for name in inputs if name in feeds}
        with opening():
            session = _session(piece, model.path.parent, Path(scratch), threads)
        with explaining("ONNX Runtime refuses the model", "feed it with `inputs`"):
            for _ in range(1 + rounds):
                outputs = run_session(session, fed, names, model.tensors)
            events = msgspec.json.decode(Path(session.end_profiling()).read_bytes(), type=list[ProfileEvent])
            times = timeit.repeat(partial(run_session, session, fed, names, model.tensors), number=1, repeat=rounds)
        optimized = onnx.load(Path(scratch) / "optimized.onnx", load_external_data=False).graph.node
    _name_as_in_profile(events, optimized)
    seconds = kernel_seconds(events, {node.name for node in optimized}, rounds)
    fused = fused_nodes(piece.graph.node, optimized)
    kinds = kernel_kinds(events, optimized)
    return ProfiledPiece(
        run_s=tuple(times),
        kernels=tuple(ProfiledKernel(fused[name], kinds[name], times) for name, times in seconds.items()),
        tensor_bytes=_tensor_bytes(events, optimized),
        outputs=outputs,
    )


def _session(piece: ModelProto, folder: Path, scratch: Path, threads: int) -> ort.InferenceSession:
    """A session that writes its profile and its optimized graph into `scratch`."""
    options = session_options(SessionConfig(threads=threads), external_weights_entry(folder))
    options.enable_profiling = True
    options.profile_file_prefix = os.fspath(scratch / "profile")
    options.optimized_model_filepath = os.fspath(scratch / "optimized.onnx")
    halves = (tensor for tensor in piece.graph.initializer if tensor.data_type in _HALVES)
    if sum(map(values_bytes, halves)) > _MOST_INLINE_HALF_BYTES:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.data")
    return ort.InferenceSession(piece.SerializeToString(), options, providers=["CPUExecutionProvider"])


def kernel_seconds(events: Sequence[ProfileEvent], names: Collection[str], rounds: int) -> dict[str, tuple[float, ...]]:
    """The seconds of each node in `names` in each of the last `rounds` runs.

    What runs in the subgraph of a control-flow node counts for that node.
    """
    runs = sorted((event.ts, event.ts + event.dur) for event in events if event.name == "model_run")[-rounds:]
    begins = [begin for begin, _ in runs]
    found: dict[str, list[float]] = {}
    for name, event in _outermost(events):
        index = bisect_right(begins, event.ts) - 1
        if index >= 0 and name in names:
            found.setdefault(name, [0.0] * len(runs))[index] += event.dur / 1e6
    return {name: tuple(times) for name, times in found.items()}


def kernel_kinds(events: Sequence[ProfileEvent], optimized: Iterable[NodeProto]) -> dict[str, Hashable]:
    """The kind (`ProfiledKernel.kind`) of each node of `optimized` that ran.

    A node with a subgraph is of its own kind, since the time of If and Loop depends on values.
    """
    nodes = {node.name: node for node in optimized}
    own: dict[str, Hashable] = {}
    for name, event in _outermost(events):
        if node := nodes.get(name):
            attributes = (attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
            shapes = str((event.args.input_type_shape, event.args.output_type_shape))
            is_plain = not any(attribute.HasField("g") for attribute in node.attribute)
            own[name] = (node.domain, node.op_type, *attributes, shapes) if is_plain else name
    return own


def _name_as_in_profile(events: Sequence[ProfileEvent], optimized: Sequence[NodeProto]) -> None:
    """Name the nodes without names, of functions that were inlined: both have them in the order in which they run."""
    names = {node.name for node in optimized}
    unknown = dict.fromkeys(name for name, _ in _outermost(events) if name not in names)
    for node, name in zip((node for node in optimized if not node.name), unknown, strict=False):
        node.name = name


def _outermost(events: Sequence[ProfileEvent]) -> Iterator[tuple[str, ProfileEvent]]:
    """Kernel events outside all others, by their nodes: If, Loop and Scan last as long as what runs inside of them."""
    until = -1
    # Of two that begin together, the longer one contains the other.
    for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
        if event.cat == "Node" and event.name.endswith(_KERNEL) and event.ts >= until:
            until = event.ts + event.dur
            yield event.name.removesuffix(_KERNEL), event


def _tensor_bytes(events: Sequence[ProfileEvent], optimized: Iterable[NodeProto]) -> dict[str, int]:
    outputs = {node.name: [name for name in node.output if name] for node in optimized}
    pairs = [(outputs.get(one.name.removesuffix(_KERNEL), []), one.args.output_type_shape) for one in events]
    shapes = {n: s for row, typed in pairs if len(row) == len(typed) for n, s in zip(row, typed, strict=True)}
    return {name: size for name, shape in shapes.items() if (size := shape_bytes(shape)) is not None}


def shape_bytes(typed: Mapping[str, Sequence[int]]) -> int | None:
    """The bytes of a tensor from its type and shape in a profile, such as {"float": [1, 64]}; None for other types."""
    ((type_name, shape),) = typed.items()
    bits = BITS.get(dtype_from_ort(type_name))
    return None if bits is None else (prod(shape) * bits + 7) // 8


def fused_nodes(original: Sequence[NodeProto], optimized: Sequence[NodeProto]) -> dict[str, tuple[int, ...]]:
    """For each node of `optimized`, by name, the indices of the nodes of `original` that it computes.

    These are the nodes on the paths back from the tensors that it writes to tensors that exist in both graphs. A node
    that writes no tensor of the original graph (its output has another layout, or it is inside a function) is found by
    its name, which may be that of a tensor with `_nchwc` at the end; else it counts for its reader, or for the node
    that it reads from. Empty where none of these is known.

    Both are in topological order. Example: MatMul -> Add -> Relu fused into one FusedGemm that writes the output of the
    Relu: {"FusedGemm": (0, 1, 2)}.
    """
    writer = {name: i for i, node in enumerate(original) for name in node.output if name}
    last = _last_nodes(original, optimized, writer)
    kept = {name for own in last.values() for i in own for name in original[i].output}

    def before(node: int) -> list[int]:
        return [writer[name] for name in original[node].input if name in writer and name not in kept]

    found = {name: tuple(sorted(reached(own, before))) for name, own in last.items()}
    _fill_from_neighbours(found, optimized)
    return found


def _last_nodes(
    original: Sequence[NodeProto], optimized: Sequence[NodeProto], writer: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """For each node of `optimized`, by name, the nodes of `original` that write what it writes, where that is known.

    A Conv in blocks of channels has the name of its own output, also if it adds another tensor and computes a Relu:
    which tensor it writes is known by those who read it. They have the order of inputs of a node of their operator, one
    of those that no other kernel is called after, or else of the node that they are called after.
    """
    names = {**writer, **{node.name: i for i, node in enumerate(original) if node.name}}
    found, blocked = dict[str, tuple[int, ...]](), dict[str, str]()
    for node in optimized:
        known = dict.fromkeys(i for name in node.output for i in _found(name, writer))
        found[node.name] = tuple(known or _found(node.name, names))
        if found[node.name] and not known:
            blocked |= dict.fromkeys(node.output, node.name)
    named = {None, *(i for own in found.values() for i in own)}

    def first(own: int, op: str) -> NodeProto:
        found = original[own]
        while found.op_type != op:
            before = [writer[name] for name in found.input[:1] if writer.get(name) not in named]
            if not before:
                return original[own]
            found = original[before[0]]
        return found

    for node in optimized:
        for i in found[node.name]:
            read = original[i].output if node.op_type == "ReorderOutput" else first(i, node.op_type).input
            pairs = [pair for pair in zip(node.input, read, strict=False) if pair[0] in blocked and pair[1] in writer]
            found |= {blocked[name]: (writer[plain],) for name, plain in pairs}
    return found


def _found(name: str, index: Mapping[str, int]) -> list[int]:
    """The number of `name` in `index`, or of the name that it was made of."""
    return [index[one] for one in (name, *chain(*_RENAMED.findall(name))) if one in index][:1]


def _fill_from_neighbours(found: dict[str, tuple[int, ...]], optimized: Sequence[NodeProto]) -> None:
    """Give a node for which nothing was found what its first reader has, or else the node that it reads from."""
    reader = {name: node.name for node in reversed(optimized) for name in node.input}
    writer = {name: node.name for node in optimized for name in node.output}
    ends = [(node.name, node.output, reader) for node in reversed(optimized)]
    for own, tensors, other in (*ends, *((node.name, node.input, writer) for node in optimized)):
        found[own] = found[own] or next((found[other[name]] for name in tensors if name in other), ())
