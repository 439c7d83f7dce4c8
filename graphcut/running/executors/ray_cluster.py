"""The Ray cluster that a run uses: found or started, the machines in it, and on which of them a worker belongs."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import ray  # noqa: TID251 - this is the place
from ray import exceptions  # noqa: TID251 - this is the place
from ray._private import services  # noqa: TID251 - which cluster was started here
from ray._private import worker as ray_worker  # noqa: TID251 - for what Ray prints, see `_hush`
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: TID251 - this is the place

from ...core.errors import RunError, UsageError
from ...core.manifest import Manifest
from ..stage import SessionConfig
from .file_transfer import remove

_DEVICE: Final = "dev:"
"""How the resources begin by which machines say which devices of a plan they are."""

_ON_GPU: Final = frozenset(
    f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX")
)

_ANSWER_S: Final = 5.0
"""How long a cluster may take to accept a connection."""

_TINY: Final = 0.001
"""What a worker takes of its device, so that several can sit on one: the resource only says where."""

_STATISTICS: Final = "RAY_USAGE_STATS_ENABLED"
"""Ray reports to its makers unless this is 0."""

_MODE: Final = "RAY_AUTH_MODE"
"""Ray itself sets this for clusters that it starts."""

_TOKEN: Final = "RAY_AUTH_TOKEN"  # noqa: S105 - a name
"""Without it, Ray writes one into the user's home that stays, and that later clusters ask for."""

_OURS: Final = secrets.token_hex(32)
"""The token of clusters that are started here; Ray remembers it as long as the process lives."""

RayNode = Mapping[str, Any]
"""What Ray tells of one: `NodeID`, `Alive`, `Resources`."""


class RayCluster:
    """The cluster that this process is connected to: one that it was connected to before, one that runs, or its own."""

    def __init__(self, workers: int) -> None:
        """Connect; start one on this machine where none runs and none is named by RAY_ADDRESS.

        Raises:
            RunError: the one that is named can't be reached.
        """
        self._is_ours = not ray.is_initialized()
        self._folder: str | None = None
        self._print: Any = None
        if self._is_ours:
            self._connect(workers)
            self._hush()

    def leave(self) -> None:
        """Go away, and shut down what was started here."""
        if self._is_ours:
            ray.shutdown()
        if self._print is not None:
            ray_worker.print_to_stdstream = self._print
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, workers: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address := _running():
            with _told({_STATISTICS: "0"}):
                _join(address, **quiet)
            return
        # Ray's sockets lie in its folder, and their paths must be short.
        self._folder = tempfile.mkdtemp(prefix="gc-", dir="/tmp")
        cores = max(workers, os.cpu_count() or 1)
        with _told({_STATISTICS: "0", _TOKEN: _OURS}):
            ray.init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=self._folder, **quiet)

    def _hush(self) -> None:
        # Ray writes to stdout that an actor or a machine was lost, whatever it is told about logs; we say it ourselves.
        self._print = getattr(ray_worker, "print_to_stdstream", None)
        if self._print is not None:
            ray_worker.print_to_stdstream = lambda *_, **__: None


class WorkerPlacement:
    """On which machine each worker belongs.

    Machines say which devices they are by resources, `dev:edge0`. Where none says so, any machine will do.
    """

    def __init__(self, manifest: Manifest, names: Sequence[str], config: SessionConfig) -> None:
        """Look once at the machines.

        Raises:
            RunError: some machines say which device they are, and one is missing.
        """
        machines = alive()
        known = sorted({word for one in machines for word in one["Resources"] if word.startswith(_DEVICE)})
        hosts = {host.name: host.provider for host in manifest.devices}
        self._policy = config
        self._machines = machines
        self._devices = [name if known and name in hosts else "" for name in names]
        self._providers = [config.provider or hosts.get(name, "") for name in names]
        missing = next((name for name in self._devices if name and _resource(name) not in known), None)
        if missing is not None:
            raise RunError(
                f"the cluster has no device {missing!r}; it has {', '.join(word[len(_DEVICE) :] for word in known)}",
                hint=f"""start Ray on that machine with --resources='{{"{_resource(missing)}": 1}}'""",
            )

    def wishes(self, worker: int) -> dict[str, Any]:
        """What Ray is told about an actor. Ray itself repeats nothing, and starts nothing again."""
        # Half of what there is for each: all find room again when half of the cluster is lost.
        cores = min(1.0, int(50 * _cores(self._machines) / len(self._devices)) / 100)
        wishes: dict[str, Any] = {"num_cpus": max(0.01, cores), "max_restarts": 0, "max_task_retries": 0}
        if self._providers[worker] in _ON_GPU:  # Ray hides graphics cards from actors that don't ask for them
            wishes["num_gpus"] = _TINY
        if device := self._devices[worker]:
            return {**wishes, "resources": {_resource(device): _TINY}}
        return {**wishes, "scheduling_strategy": "SPREAD"}

    def config(self, worker: int) -> SessionConfig:
        """The policy for a worker: where it names no number of threads, it gets its share of its machine's cores."""
        if self._policy.threads:
            return self._policy
        machines, sharing = self._machines, len(self._devices)
        if device := self._devices[worker]:
            machines = [one for one in machines if _resource(device) in one["Resources"]][:1]
            sharing = sum(_resource(other) in machines[0]["Resources"] for other in self._devices)
        return replace(self._policy, threads=max(1, int(_cores(machines)) // sharing))

    def missing(self, worker: int) -> str:
        """The device of a worker, if no machine is alive that has it; else nothing."""
        device = self._devices[worker]
        return device if device and not any(_resource(device) in one["Resources"] for one in alive()) else ""


def _named() -> str:
    """The cluster that the user names; nothing if Ray is to look for one."""
    named = os.environ.get("RAY_ADDRESS", "")
    return "" if named == "auto" else named


def _running() -> str | None:
    """Where the cluster is that RAY_ADDRESS names, or that `ray start` started on this machine.

    Raises:
        UsageError: it is to be reached as a client.
        RunError: it does not answer; Ray itself would try for five minutes.
    """
    named = _named()
    if named == "local":
        return None
    if named.startswith("ray://"):
        raise UsageError(
            f"{named} is an address for clients from outside of a Ray cluster, which can't hand over tensors",
            hint="run graphcut on a machine of the cluster, with RAY_ADDRESS=HOST:6379",
        )
    address: str | None = named or services.find_bootstrap_address(None)
    if not address:
        return None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, ValueError) as error:
        if not named:
            return None  # it was not stopped properly
        raise RunError(
            f"there is no Ray cluster at {address}: {error}",
            hint="start one there with `ray start --head`, or unset RAY_ADDRESS to use this machine alone",
        ) from None
    return address


def alive() -> list[RayNode]:
    """The machines that are alive."""
    machines: list[RayNode] = ray.nodes()  # type: ignore[no-untyped-call]
    return [one for one in machines if one["Alive"]]


def hear(refs: Sequence[Any]) -> None:
    """Listen to errors that are known already: Ray prints those that nobody has heard."""
    for ref in ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else ():
        with suppress(exceptions.RayError):
            ray.get(ref, timeout=0)


def remove_there(folders: Mapping[str, str], timeout_s: float) -> None:
    """Remove a folder on each of some machines, by the names of the machines."""
    task = ray.remote(num_cpus=0, max_retries=0)(remove)
    answers = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(folder)
        for node, folder in folders.items()
    ]
    if answers:
        ray.wait(answers, num_returns=len(answers), timeout=timeout_s)


def _join(address: str, **quiet: Any) -> None:  # noqa: ANN401 - as Ray takes them
    try:
        # Ray uses the token that lies on this machine by itself only where it looks for the cluster by itself.
        ray.init(address=address if _named() else None, **quiet)
    except (ConnectionError, exceptions.AuthenticationError) as error:
        asks = "AuthenticationError" in f"{error.__context__!s} {type(error).__name__}"
        raise RunError(
            f"the Ray cluster at {address} can't be joined: {'it asks for a token' if asks else error}",
            hint="set RAY_AUTH_MODE=token, with the token in ~/.ray/auth_token" if asks else "`ray status` tells more",
        ) from None


@contextmanager
def _told(wishes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that Ray reads when it starts, where they are not set; then all are as they were."""
    before = {name: os.environ.get(name) for name in (*wishes, _MODE)}
    for name, wish in wishes.items():
        os.environ.setdefault(name, wish)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _cores(machines: Sequence[RayNode]) -> float:
    return sum(float(one["Resources"].get("CPU", 0)) for one in machines)


def _resource(device: str) -> str:
    return f"{_DEVICE}{device}"
