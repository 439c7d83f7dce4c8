"""One piece of a model, run in ONNX Runtime several times: what its profile says of each node, in medians.

ONNX Runtime writes a profile in Chrome's trace format: an event for each kernel and for each run, with microseconds,
the shapes of what a kernel wrote, and what the CPU allocator held (onnxruntime/core/framework/sequential_executor.cc).
"""

from __future__ import annotations

import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto

from ..core.errors import RunError
from ..core.wiring import BITS, Tensor
from ..loading.graph_reader import values_bytes
from ..running.stage import SessionConfig, external_weights_entry, ort_message, session_options
from ..running.values import Value, copied, is_numeric_tensor, to_array, to_value
from .fused_nodes import taken_in

_KERNEL: Final = "_kernel_time"
_HALF_INLINE_AT_MOST: Final = 2**27
"""Bytes of half-precision weights up to which the optimised graph is one file: it holds them in float32, and protobuf
2 GiB. Of other weights it holds references."""

_WORDS: Final = {"float": "float32", "double": "float64"}


class _Arguments(msgspec.Struct):
    output_type_shape: list[dict[str, list[int]]] = []
    mem_in_use_peak: str = "0"


class _Event(msgspec.Struct):
    """What we read of an event: times in microseconds."""

    cat: str
    name: str
    ts: int
    dur: int = 0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


@dataclass(frozen=True)
class ProfiledPiece:
    """What a piece did.

    Attributes:
        run_s: the median time of one run, unprofiled.
        kernels: for each node that ran, the places of the piece's nodes whose work it did, and its median seconds.
        tensor_bytes: what tensors really took, as far as the profile shows them.
        peak_bytes: the most that ONNX Runtime's CPU allocator held; 0 where the profile does not say.
        writes: what the piece gave out.
    """

    run_s: float
    kernels: tuple[tuple[tuple[int, ...], float], ...]
    tensor_bytes: Mapping[str, int]
    peak_bytes: int
    writes: Mapping[str, Value]


def profile(
    piece: ModelProto, feeds: Mapping[str, Value], tensors: Mapping[str, Tensor], folder: Path, *, rounds: int
) -> ProfiledPiece:
    """Run `piece` on `feeds` once to warm up, then `rounds` times with and `rounds` times without profiling.

    Args:
        piece: a model whose nodes have unique names.
        feeds: a value for each of its inputs.
        tensors: types of its inputs and outputs.
        folder: where the files of its weights lie.
        rounds: how often to run.

    Raises:
        RunError: ONNX Runtime refuses the piece or the inputs.
    """
    with tempfile.TemporaryDirectory(prefix="graphcut-") as scratch:
        try:
            session = _Session(piece, tensors, folder, Path(scratch))
            for _ in range(1 + rounds):
                writes = session.run(feeds)
            events = msgspec.json.decode(Path(session.end_profiling()).read_bytes(), type=list[_Event])
            times = [_seconds(session, feeds) for _ in range(rounds)]
        except RunError:
            raise
        except Exception as error:
            raise RunError(
                f"ONNX Runtime refuses the model: {ort_message(error)}", hint="feed it with --inputs"
            ) from error
        optimized = onnx.load(Path(scratch) / "optimized.onnx", load_external_data=False).graph.node
    kernels = _kernels(events, {node.name for node in optimized}, rounds)
    taken = taken_in(piece.graph.node, optimized)
    return ProfiledPiece(
        run_s=median(times),
        kernels=tuple((taken[name], seconds) for name, seconds in kernels.items()),
        tensor_bytes=_tensor_bytes(events, optimized),
        peak_bytes=max((int(event.args.mem_in_use_peak) for event in events), default=0),
        writes=writes,
    )


class _Session:
    """A piece, loaded. Its profile and its optimised graph go to `scratch`."""

    def __init__(self, piece: ModelProto, tensors: Mapping[str, Tensor], folder: Path, scratch: Path) -> None:
        self._tensors = tensors
        self._reads = [value.name for value in piece.graph.input]
        self._writes = [value.name for value in piece.graph.output]
        self._is_all_numbers = all(is_numeric_tensor(tensors[name]) for name in (*self._reads, *self._writes))
        options = session_options(SessionConfig())
        options.enable_profiling = True
        options.profile_file_prefix = os.fspath(scratch / "profile")
        options.optimized_model_filepath = os.fspath(scratch / "optimized.onnx")
        options.add_session_config_entry(*external_weights_entry(folder))
        if sum(values_bytes(tensor) for tensor in piece.graph.initializer if is_half(tensor)) > _HALF_INLINE_AT_MOST:
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", "optimized.data"
            )
        self._session = ort.InferenceSession(piece.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        fed = {name: feeds[name] for name in self._reads if name in feeds}
        if self._is_all_numbers:
            return dict(zip(self._writes, self._session.run_with_ort_values(self._writes, fed), strict=True))
        # Strings, lists, dicts and None go in and out by another door, which takes no OrtValues.
        arrays = {name: to_array(value, self._tensors[name]) for name, value in fed.items()}
        made = zip(self._writes, map(copied, self._session.run(self._writes, arrays)), strict=True)
        return {name: to_value(value, self._tensors[name]) for name, value in made}

    def end_profiling(self) -> str:
        """Stop profiling; later runs are not slowed down by it. The profile's path."""
        path: str = self._session.end_profiling()
        return path


def is_half(tensor: TensorProto) -> bool:
    """Is it of a type that ONNX Runtime's CPU kernels compute in float32, from copies of the weights?"""
    return tensor.data_type in {TensorProto.FLOAT16, TensorProto.BFLOAT16}


def _seconds(session: _Session, feeds: Mapping[str, Value]) -> float:
    begin = time.perf_counter()
    session.run(feeds)
    return time.perf_counter() - begin


def _kernels(events: Sequence[_Event], names: Iterable[str], rounds: int) -> dict[str, float]:
    """The median seconds of each node, over the last `rounds` runs; those inside bodies count in their outer node."""
    known = set(names)
    runs = sorted((event.ts, event.ts + event.dur) for event in events if event.name == "model_run")[-rounds:]
    begins = [begin for begin, _ in runs]
    found: dict[str, list[float]] = {}
    for event in _outermost(events):
        name = event.name.removesuffix(_KERNEL)
        place = bisect_right(begins, event.ts) - 1
        if place >= 0 and name in known:
            times = found.setdefault(name, [0.0] * len(runs))
            times[place] += event.dur / 1e6
    return {name: median(times) for name, times in found.items()}


def _outermost(events: Sequence[_Event]) -> Iterator[_Event]:
    """Kernel events that lie in no other one: If, Loop and Scan last as long as what runs in their bodies."""
    until = -1
    # Of two that begin together, the longer one is around the other.
    for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
        if event.cat == "Node" and event.name.endswith(_KERNEL) and event.ts >= until:
            until = event.ts + event.dur
            yield event


def _tensor_bytes(events: Sequence[_Event], optimized: Iterable[NodeProto]) -> dict[str, int]:
    writes = {node.name: [name for name in node.output if name] for node in optimized}
    found = {}
    for event in events:
        names, shapes = writes.get(event.name.removesuffix(_KERNEL), []), event.args.output_type_shape
        if len(names) == len(shapes):
            sizes = zip(names, map(_bytes, shapes), strict=True)
            found.update({name: size for name, size in sizes if size is not None})
    return found


def _bytes(typed: Mapping[str, Sequence[int]]) -> int | None:
    """The bytes of `{"float": [1, 64]}`."""
    ((word, shape),) = typed.items()
    bits = BITS.get(_WORDS.get(word, word))
    elements = 1
    for dim in shape:
        elements *= dim
    return None if bits is None else (elements * bits + 7) // 8
