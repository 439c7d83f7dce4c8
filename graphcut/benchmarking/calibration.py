"""Measure this machine as a device for plans, with kernels of ONNX Runtime."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import onnxruntime as ort
from msgspec import Struct
from msgspec.structs import fields
from msgspec.structs import replace as changed
from onnx import TensorProto, helper, numpy_helper

from ..core.atomic_files import replacing
from ..core.errors import GraphcutError
from ..core.product import Product
from ..costs.device import Device
from ..planning.cluster import Cluster, Host, NetworkLink
from ..running.stage import SessionConfig, session_options

_ROWS: Final = 512
_WIDTH: Final = 1024
_ELEMENTS: Final = 1 << 24  # 64 MiB of float32: more than caches hold
_LARGE_NODES: Final = 4
_SMALL_NODES: Final = 200
_SMALL: Final = 16
_SLOWER: Final = 0.8  #: two machines have a direct link if it has less than this share of what their links allow.


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
        weights = [numpy_helper.from_array(np.full(weight, 1.5, np.float32), "w")]
        graph = helper.make_graph(chain, "calibration", ends[:1], ends[1:], weights)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        options = session_options(SessionConfig(threads=threads))
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._inputs = {"x0": ort.OrtValue.ortvalue_from_numpy(np.ones(shape, np.float32))}

    def seconds(self) -> float:
        """The time of one run."""
        began = time.perf_counter()
        self._session.run_with_ort_values(None, self._inputs)
        return time.perf_counter() - began


def calibrate_cluster(seconds: float = 10.0, *, insecure: bool = False) -> tuple[Cluster, Calibration]:
    """Measure a Ray cluster: each device as `calibrate` does, all at the same time, its free memory, and the links.

    The link of a device to the router is as fast as the fastest that it has to another machine. Between two machines
    that are slower to each other than their links say there is a direct link. What object stores take is the median
    over the links. Returns the most disturbed calibration, too. The errors are those of `measure_cluster`.
    """
    from ..running.executors.ray_measuring import measure_cluster

    found = measure_cluster(partial(calibrate, seconds=seconds), insecure=insecure)
    names = {name: name or Host().name for ends in found.links for name in ends}
    links = {(names[a], names[b]): link for (a, b), link in found.links.items()}

    def own(name: str) -> dict[str, float]:
        mine = [link for ends, link in links.items() if name in ends]
        fastest, least = max(one.bytes_per_s for one in mine), min(one.latency_s for one in mine)
        return {"link_bytes_per_s": fastest, "latency_s": least}

    devices = {
        name: changed(one.device, name=name, memory_bytes=found.memory_bytes[name], **(own(name) if links else {}))
        for name, one in found.found.items()
    }
    cluster = Cluster(devices=tuple(devices.values()), origin=found.origin or changed(Host(), **own(Host().name)))
    slower = tuple(
        NetworkLink(between=ends, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)
        for ends, link in links.items()
        if link.bytes_per_s < _SLOWER * min(cluster.machines[name].link_bytes_per_s for name in ends)
    )
    store_s = median(one.store_s for one in links.values()) if links else 0.0
    return changed(cluster, links=slower, store_s=store_s), max(found.found.values(), key=lambda one: one.spread)


def save_device(found: Calibration, path: str | Path) -> None:
    """Write a cluster file with the measured device, see `save_cluster`."""
    save_cluster(Cluster(devices=(found.device,)), found, path)


def save_cluster(cluster: Cluster, worst: Calibration, path: str | Path) -> None:
    """Write a cluster file, completely or not at all. Numbers are rounded to three digits."""
    lines = [f"# measured with ONNX Runtime {ort.__version__} in {worst.rounds} rounds, spread {worst.spread:.0%}"]
    if isinstance(cluster.origin, str):
        lines.append(f"origin = {_toml(cluster.origin)}")
    if cluster.store_s:
        lines.append(f"store_s = {_toml(cluster.store_s)}")
    tables: list[tuple[str, Struct]] = [
        *(("[[devices]]", one) for one in cluster.devices),
        *(("[[links]]", one) for one in cluster.links),
    ]
    if isinstance(cluster.origin, Host):
        tables.append(("[origin]", cluster.origin))
    for title, record in tables:
        values = {one.name: getattr(record, one.name) for one in fields(record)}
        measured = {one.name: values[one.name] for one in fields(record) if values[one.name] != one.default}
        lines += [title, *(f"{name} = {_toml(value)}" for name, value in measured.items())]
    path = Path(path)
    try:
        with replacing(path) as new:
            new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        hint = "check that the folder exists and has room"
        raise GraphcutError(f"{path} can't be written: {error.strerror or error}", hint=hint) from None


def _toml(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
