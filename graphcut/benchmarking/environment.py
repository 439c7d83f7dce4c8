"""What works on this machine and why the rest does not: packages, execution providers, memory, disk, Ray, the clock."""

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper
from packaging.requirements import Requirement

from ..core.product import Product
from ..core.tensors import ELEMENT_TYPES
from ..core.version import __version__
from ..running.process_memory import available_bytes
from ..running.providers import CPU, ort_message, placement_of, plugins, session_on
from ..running.stage import SessionConfig, session_options
from .calibration import calibrate, model_of

EXTRAS: Final = ("auto", "ray", "serve", "stores", "text")  #: of the package; those for development are left out.
_WIDTH: Final = 32  #: MatMulNBits has blocks of 32.
_TYPES: Final = ("float32", "float16", "bfloat16", "float64", "int8", "int4")
_DISK_BYTES: Final = 64 << 20


class PackageState(msgspec.Struct, frozen=True):
    """A package that graphcut or one of its extras needs."""

    name: str  #: its name.
    extra: str  #: the extra that needs it; empty if graphcut does.
    version: str  #: the installed version; empty if there is none.
    expected: str  #: the versions that graphcut accepts.
    is_usable: bool  #: an accepted version is installed.


class ProviderState(msgspec.Struct, frozen=True):
    """An execution provider, and the element types with which it multiplies matrices."""

    name: str  #: its name.
    native: tuple[str, ...]  #: element types that it computes with as they are.
    widened: tuple[str, ...]  #: those that it converts to float32 first.
    problem: str  #: why it can't be used, or takes no product; empty otherwise.


class MeasuredRates(msgspec.Struct, frozen=True):
    """How fast this machine is, measured in a second."""

    flops_per_s: float  #: floating-point operations of a MatMul of float32.
    bytes_per_s: float  #: memory bandwidth.
    dispatch_s: float  #: seconds to start a node.
    disk_bytes_per_s: float  #: writing 64 MiB into the current folder.
    spread: float  #: how far the median of the most disturbed measurement but the disk's is above its fastest.


class Environment(Product, msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.environment/1"):
    """What works on this machine, for a bug report: it names no user, host or path."""

    graphcut: str  #: its version.
    python: str  #: the version of Python.
    system: str  #: system, release and processor architecture.
    cores: int  #: processor cores that this process may use.
    memory_bytes: int | None  #: memory that can still be allocated; null if unknown.
    disk_bytes: int  #: free disk space in the current folder.
    utc: str  #: the time by its clock, in UTC, to compare with others.
    clock_step_s: float  #: the resolution of the clock that measures times.
    packages: tuple[PackageState, ...]  #: what graphcut needs, then what its extras need.
    providers: tuple[ProviderState, ...]  #: those of ONNX Runtime, then those of installed plugins.
    ray: str  #: the address of the Ray cluster that a run would join; empty if there is none.
    ray_problem: str  #: why it can't be reached; empty if it answers, or if there is none.
    measured: MeasuredRates | None  #: if it was asked for.

    @property
    def works(self) -> bool:
        """Whether all that graphcut itself needs is here, and its CPU provider can be started."""
        cpu = next((one for one in self.providers if one.name == CPU), None)
        needed = (one for one in self.packages if not one.extra)
        return cpu is not None and not cpu.problem and all(one.is_usable for one in needed)


def environment(*, measured: bool = False) -> Environment:
    """What works on this machine, and why the rest does not. If `measured`, rates are measured, for about a second."""
    ray, ray_problem = _ray_cluster()
    return Environment(
        graphcut=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=available_bytes(),
        disk_bytes=shutil.disk_usage(".").free,
        utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        clock_step_s=time.get_clock_info("perf_counter").resolution,
        packages=tuple(_packages()),
        providers=tuple(_providers()),
        ray=ray,
        ray_problem=ray_problem,
        measured=_rates() if measured else None,
    )


def _packages() -> Iterator[PackageState]:
    """Those of the installed package's metadata, without those for development."""
    needed = [Requirement(text) for text in requires("graphcut") or ()]
    for extra in ("", *EXTRAS):
        for one in needed:
            if one.marker is None if not extra else one.marker and f'extra == "{extra}"' in str(one.marker):
                found = ""
                with suppress(PackageNotFoundError):
                    found = version(one.name)
                is_usable = bool(found) and one.specifier.contains(found, prereleases=True)
                yield PackageState(one.name, extra, found, str(one.specifier), is_usable)


def _providers() -> Iterator[ProviderState]:
    """Each provider, by opening sessions; plugins that could not be registered, by their packages."""
    problems = plugins()
    for name in dict.fromkeys((*ort.get_available_providers(), *(device.ep_name for device in ort.get_ep_devices()))):
        yield _provider(name)
    yield from (ProviderState(name, (), (), problem) for name, problem in problems.items() if problem)


def _provider(name: str) -> ProviderState:
    computed: dict[str, list[str]] = {"native": [], "widened": []}
    for dtype in _TYPES:
        how, problem = _product(name, dtype)
        if problem and dtype == "float32":
            return ProviderState(name, (), (), problem)
        computed.get(how, []).append(dtype)
    takes_none = "" if computed["native"] else "it can be started and takes no product of matrices"
    return ProviderState(name, tuple(computed["native"]), tuple(computed["widened"]), takes_none)


def _product(provider: str, dtype: str) -> tuple[str, str]:
    """How a provider multiplies matrices of a type: `native`, `widened` or not at all; and why there is no session.

    The CPU's provider widens what it has no kernel for: then its graph has a Cast, once it is prepared.
    """
    options = session_options(SessionConfig(optimize="none"))
    with TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        if provider == CPU:
            options.optimized_model_filepath = str(prepared)
        try:
            session, problem = session_on(_model_of(dtype).SerializeToString(), options, provider, {})
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common class
            return "", f"it can't be started: {ort_message(error)}"
        if session is None:
            return "", problem
        takers = {*placement_of(session)}
        is_cast = provider == CPU and any(node.op_type == "Cast" for node in onnx.load(prepared).graph.node)
    return "widened" if is_cast else "native" if takers == {provider} else "", ""


def _model_of(dtype: str) -> ModelProto:
    """A product of two matrices of a type; of float32 and int4, of which the second is a constant."""
    value = partial(helper.make_tensor_value_info, shape=(_WIDTH, _WIDTH))
    if dtype == "int4":
        sizes: dict[str, Any] = {"K": _WIDTH, "N": _WIDTH, "bits": 4, "block_size": _WIDTH}
        node = helper.make_node("MatMulNBits", ["a", "b", "scales"], ["y"], domain="com.microsoft", **sizes)
        weight = numpy_helper.from_array(np.zeros((_WIDTH, 1, _WIDTH // 2), np.uint8), "b")
        scales = numpy_helper.from_array(np.ones(_WIDTH, np.float32), "scales")
        return model_of([node], [value("a", TensorProto.FLOAT)], [value("y", TensorProto.FLOAT)], [weight, scales])
    kind = ELEMENT_TYPES[dtype].number
    op, written = ("MatMulInteger", TensorProto.INT32) if dtype == "int8" else ("MatMul", kind)
    node = helper.make_node(op, ["a", "b"], ["y"])
    return model_of([node], [value("a", kind), value("b", kind)], [value("y", written)], [])


def _ray_cluster() -> tuple[str, str]:
    """The address of the Ray cluster that a run would join, and why it can't be reached. Ray itself is not loaded."""
    address = os.environ.get("RAY_ADDRESS", "auto") or "auto"
    if address == "auto":
        with suppress(OSError):
            address = (Path(gettempdir()) / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip()
    if address in {"auto", "local"}:
        return "", ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (OSError, ValueError) as error:
        return address, str(error)
    return address, ""


def _rates() -> MeasuredRates:
    found = calibrate(seconds=1.0)
    with TemporaryDirectory(dir=".", prefix=".graphcut-") as folder, (Path(folder) / "written").open("wb") as file:
        content = os.urandom(1 << 20)
        began = time.perf_counter()
        for _ in range(_DISK_BYTES // len(content)):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        disk = _DISK_BYTES / (time.perf_counter() - began)
    own = found.device
    return MeasuredRates(own.flops_per_s, own.bytes_per_s, own.dispatch_s, disk, found.spread)
