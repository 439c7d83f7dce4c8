"""Measure this machine as a device for plans, with kernels of ONNX Runtime."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product, repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from timeit import timeit
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from msgspec import Struct
from msgspec.structs import fields
from msgspec.structs import replace as changed
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ..core.atomic_files import write_file
from ..core.errors import needing
from ..core.product import Product
from ..costs.cluster import Cluster, Host, NetworkLink
from ..costs.device import Device
from ..planning.goals import At, Into
from ..planning.planner import plan
from ..running.stage import SessionConfig, session_options
from ..surgery.cutting import split
from ..workers.executors.via import Via
from ..workers.pipelined import stream
from ..workers.run_log import RunLog

_ROWS: Final = 512
_WIDTH: Final = 1024
_ELEMENTS: Final = 1 << 24  # 64 MiB of float32: more than caches hold
_LARGE_NODES: Final = 4
_SMALL_NODES: Final = 200
_SMALL: Final = 16
_WEIGHTS: Final = (2048, 5120)  # 40 MiB of float32
_REQUESTS: Final = 50
_Ends = Sequence[ValueInfoProto]  #: inputs or outputs of a model.


@dataclass(frozen=True, repr=False)
class Calibration(Product):
    """This machine, as it was measured."""

    device: Device  #: with `flops_per_s`, `bytes_per_s` and `dispatch_s` as measured; the rest are defaults.
    rounds: int  #: how often each was measured.
    #: how far the median of the most disturbed measurement is above its fastest, which counts: 0.1 for a tenth.
    spread: float


def calibrate(name: str = "", *, seconds: float = 10.0, threads: int = 0) -> Calibration:
    """Measure FLOP/s, memory bandwidth and the time to start a node on this machine, on the CPU, for `seconds`.

    FLOP/s are those of a MatMul of float32 with 512 rows and a weight of 1024 by 1024; the bandwidth is that of
    elementwise nodes on 64 MiB; the time to start a node is that of an addition of 16 elements. They take turns, three
    times at least, and the fastest of each counts. The device is called `name`, by default as this machine is in its
    network; 0 `threads` of an operator leave the number to ONNX Runtime.
    """
    ends = time.perf_counter() + seconds
    runs = [
        _Run("MatMul", (_ROWS, _WIDTH), (_WIDTH, _WIDTH), nodes=1, threads=threads),
        _Run("Mul", (_ELEMENTS,), (), nodes=_LARGE_NODES, threads=threads),
        _Run("Add", (_SMALL,), (_SMALL,), nodes=_SMALL_NODES, threads=threads),
    ]
    rounds = [[run.seconds() for run in runs] for _ in range(4)][1:]  # the first warms up
    while time.perf_counter() < ends:
        rounds.append([run.seconds() for run in runs])
    samples = list(zip(*rounds, strict=True))
    matmul_s, large_s, small_s = map(min, samples)
    device = Device(
        name=name or platform.node() or "here",
        flops_per_s=2 * _ROWS * _WIDTH**2 / matmul_s,
        bytes_per_s=2 * 4 * _ELEMENTS * _LARGE_NODES / large_s,
        dispatch_s=small_s / _SMALL_NODES,
    )
    return Calibration(device, len(rounds), max(median(times) / min(times) - 1 for times in samples))


class _Run:
    """A chain of equal nodes in a session, each of which reads the one before and a weight."""

    def __init__(self, op: str, shape: Sequence[int], weight: Sequence[int], *, nodes: int, threads: int) -> None:
        chain = [helper.make_node(op, [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(nodes)]
        ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i in (0, nodes)]
        model = model_of(chain, ends[:1], ends[1:], [numpy_helper.from_array(np.full(weight, 1.5, np.float32), "w")])
        options = session_options(SessionConfig(threads=threads))
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._inputs = {"x0": ort.OrtValue.ortvalue_from_numpy(np.ones(shape, np.float32))}

    def seconds(self) -> float:
        """The time of one run."""
        return timeit(partial(self._session.run_with_ort_values, None, self._inputs), number=1)


def model_of(nodes: Sequence[NodeProto], inputs: _Ends, outputs: _Ends, weights: Sequence[TensorProto]) -> ModelProto:
    """A model of operators of ONNX and of ONNX Runtime."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "measured", inputs, outputs, weights)
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _decoder_like(parts: int) -> tuple[ModelProto, tuple[str, ...]]:
    """A model, and the nodes behind which it is cut into so many parts.

    Each part multiplies by more weights than caches hold, as those of a decoder do, and sends next to nothing. ONNX
    Runtime makes the weights once, as it loads a part.
    """
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, (1, _SMALL)) for i in (0, parts)]
    shapes = {"first": (_SMALL, _WEIGHTS[0]), "weights": _WEIGHTS, "last": (_WEIGHTS[0], _SMALL)}
    constants = [numpy_helper.from_array(np.array(shape), f"shape of {name}") for name, shape in shapes.items()]
    constants.append(numpy_helper.from_array(np.array(2**-11, np.float32), "value"))  # products stay small
    layers = [("first", 0), ("weights", 0), ("weights", 1), ("last", 0)]  # and whether the weight is transposed
    nodes = []
    for i in range(parts):
        nodes += [helper.make_node("Expand", ["value", f"shape of {name}"], [f"{name} {i}"]) for name in shapes]
        chain = [f"x{i}", *(f"x{i} in {k}" for k in range(1, len(layers))), f"x{i + 1}"]
        for (name, transposed), (read, written) in zip(layers, pairwise(chain), strict=True):
            nodes.append(helper.make_node("Gemm", [read, f"{name} {i}"], [written], f"to {written}", transB=transposed))
    return model_of(nodes, ends[:1], ends[1:], constants), tuple(f"to x{i}" for i in range(1, parts))


def _overhead_s(names: Sequence[str], via: Via, *, insecure: bool) -> float:
    """Seconds that a request through a part on each device takes besides computing: the median of some requests."""
    model, cuts = _decoder_like(len(names))
    feeds = repeat({"x0": np.ones((1, _SMALL), np.float32)}, _REQUESTS)
    config, log = SessionConfig(threads=1, insecure=insecure), RunLog(len(names), len(names), is_tracing=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        made = replace(plan(path, At(cuts) if cuts else Into(1)), devices=tuple(Device(name=name) for name in names))
        cascade = split(path, made, Path(folder) / "parts")
        answers = stream(cascade, feeds, via=via, window=1, balanced=False, config=config, log=log)
        ends_s = [time.perf_counter() for _ in answers]
    computed_s = [0.0] * _REQUESTS
    for span in log.spans:
        computed_s[span.request] += span.seconds
    taken_s = (after - before for before, after in pairwise(ends_s))
    return median(taken - computed for taken, computed in zip(taken_s, computed_s[1:], strict=True))


def calibrate_cluster(seconds: float = 10.0, *, insecure: bool = False) -> tuple[Cluster, Calibration]:
    """Measure a Ray cluster: each device as `calibrate` does, all at the same time, its free memory, and the links.

    The link of a device to the router is as fast as the fastest that its machine has to another one. Between the
    devices of two machines that are slower to each other than their links say there are direct links. What object
    stores take is the median over the links. What a step takes besides computing is measured in runs: on this machine
    that is `step_s`, and what it takes longer on another one is two messages. Returns the most disturbed calibration,
    too. With `insecure` the cluster may ask for no token. The errors are those of `measure_cluster`, and a UsageError
    without Ray.
    """
    with needing("measuring a cluster", "ray"):
        from ..workers.executors.ray_measuring import Machine, measure_cluster

    found = measure_cluster(partial(calibrate, seconds=seconds), insecure=insecure)
    links = dict(found.links)
    step_s = _overhead_s(("one", "two"), "threads", insecure=insecure) / 2
    for here, there in found.links:
        if here == found.here:
            steps = [*here[:1], there[0]]
            latency_s = (_overhead_s(steps, "ray", insecure=insecure) - len(steps) * step_s) / 2
            links[here, there] = links[here, there]._replace(latency_s=max(latency_s, 0.0))

    def own(machine: Machine) -> dict[str, float]:
        mine = {ends: link for ends, link in links.items() if machine in ends}
        to_driver = [link for ends, link in mine.items() if found.here in ends]
        return {
            "link_bytes_per_s": max(one.bytes_per_s for one in mine.values()),
            "latency_s": min(one.latency_s for one in to_driver or mine.values()),
        }

    own_link = {name: own(machine) for ends in links for machine in ends for name in machine}
    devices = tuple(
        changed(one.device, name=name, memory_bytes=found.memory_bytes[name], **own_link.get(name, {}))
        for name, one in found.found.items()
    )
    cluster = Cluster(devices=devices, origin=found.here[0] if found.here else changed(Host(), **own(found.here)))
    slower = tuple(
        NetworkLink(between=between, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)
        for (a, b), link in links.items()
        for between in product(a or (Host().name,), b)
        if link.bytes_per_s < 0.8 * min(cluster.machines[name].link_bytes_per_s for name in between)
    )
    store_s = median(one.store_s for one in links.values()) if links else 0.0
    measured = changed(cluster, links=slower, store_s=store_s, step_s=step_s)
    return measured, max(found.found.values(), key=lambda one: one.spread)


def save_device(found: Calibration, path: str | Path) -> None:
    """Write a cluster file with the measured device, see `save_cluster`."""
    save_cluster(Cluster(devices=(found.device,)), found, path)


def save_cluster(cluster: Cluster, worst: Calibration, path: str | Path) -> None:
    """Write a cluster file, completely or not at all. Numbers are rounded to three digits."""
    lines = [f"# measured with ONNX Runtime {ort.__version__} in {worst.rounds} rounds, spread {worst.spread:.0%}"]
    if isinstance(cluster.origin, str):
        lines.append(f"origin = {_toml(cluster.origin)}")
    lines += [f"{name} = {_toml(s)}" for name in ("store_s", "step_s") if (s := getattr(cluster, name))]
    tables: list[tuple[str, Struct]] = [("[[devices]]", one) for one in cluster.devices]
    tables += [("[[links]]", one) for one in cluster.links]
    tables += [("[origin]", one) for one in [cluster.origin] if isinstance(one, Host)]
    for title, record in tables:
        found = {one.name: (getattr(record, one.name), one.default) for one in fields(record)}
        lines += [title, *(f"{name} = {_toml(value)}" for name, (value, default) in found.items() if value != default)]
    write_file(path, ("\n".join(lines) + "\n").encode(), "check that the folder exists and has room")


def _toml(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
