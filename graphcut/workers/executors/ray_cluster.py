"""The Ray cluster of a run: connecting to one or starting one, its machines, and the placement of workers."""

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from math import ceil
from threading import Event, Lock, Thread
from typing import Any, ClassVar, Final

import ray  # noqa: TID251 - a module of the Ray executor
from ray import exceptions  # noqa: TID251 - a module of the Ray executor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: TID251 - a module of the Ray executor

from ...core.errors import RunError, UsageError
from ...core.manifest import Manifest
from ...running.stage import SessionConfig

_DEVICE: Final = "dev:"  #: the prefix of Ray resources by which a machine declares which devices of a plan it is.

_GPU_PROVIDERS: Final = ("CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX")

#: a worker's share of its device. The resource only selects the machine; several workers may share it.
_TINY_SHARE: Final = 0.001
_NO_STATISTICS: Final = {"RAY_USAGE_STATS_ENABLED": "0"}  #: otherwise Ray sends usage statistics to its makers.
#: the token of clusters that are started here, for as long as this process runs. Without one, Ray would write a token
#: to the user's home, which later clusters would require.
_OWN_TOKEN: Final = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}

#: asks a cluster without a token, and then with the one that is here. The last word that it prints is the answer.
_ASK: Final = """
import os, sys
from ray import exceptions
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient

def ask(mode):
    os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")  # Ray read the mode when it was imported
    GcsClient(sys.argv[1])

mode = os.environ.get("RAY_AUTH_MODE")
try:
    ask("disabled")
    print("open", flush=True)
except exceptions.AuthenticationError:
    print("missing", flush=True)
    if mode == "token" and AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        print("wrong", flush=True)  # Ray aborts if the token can't be sent
        ask(mode)
        print("accepted", flush=True)
os._exit(0)  # to end Ray's modules in order takes a quarter of the time
"""

_connecting: Final = Lock()  #: held by the run that connects or disconnects.

RayNode = Mapping[str, Any]  #: a machine as Ray describes it, with `NodeID`, `Alive` and `Resources`.


class RayCluster:
    """The cluster that this process is connected to: connected before, running already, or started here."""

    _users: ClassVar[int] = 0  #: how many runs share the connection that the first of them made.
    _thread: ClassVar[Thread] = Thread()  #: the one that made it.
    _is_over: ClassVar[Event] = Event()  #: no run needs it any more.

    def __init__(self, workers: int, *, insecure: bool = False) -> None:
        """Connect; start a cluster for `workers` on this machine if none runs and RAY_ADDRESS names none.

        Runs of one process share a connection, which ends with the last of them.

        Raises:
            RunError: there is no cluster at the address, or its head has one that others can't reach; it requires a
                token that is not here; or, unless `insecure`, it requires none.
        """
        with _connecting:
            self._shares = bool(RayCluster._users) or not ray.is_initialized()
            if self._shares and not RayCluster._users:
                connected = Future[None]()
                how = {"insecure": insecure}
                RayCluster._thread = Thread(target=self._stay, args=(connected, workers), kwargs=how, daemon=True)
                RayCluster._thread.start()
                connected.result()
            RayCluster._users += self._shares

    def leave(self) -> None:
        """Disconnect, and shut down a cluster that was started here, unless another run uses it."""
        with _connecting:
            RayCluster._users -= self._shares
            if self._shares and not RayCluster._users:
                RayCluster._is_over.set()
                RayCluster._thread.join()

    def _stay(self, connected: Future[None], workers: int, *, insecure: bool) -> None:
        """Connect, and stay so until no run needs it: a cluster ends with the thread that started it."""
        RayCluster._is_over.clear()
        try:
            folder = self._connect(workers, insecure=insecure)
        except BaseException as error:  # noqa: BLE001 - raised where the connection is needed
            connected.set_exception(error)
            return
        # Ray prints lost actors and machines to stdout whatever its log settings are; graphcut reports them itself.
        prints = _private("_private.worker", "print_to_stdstream")
        if prints is not None:
            ray._private.worker.print_to_stdstream = lambda *_, **__: None  # noqa: SLF001 - see `_private`
        connected.set_result(None)
        RayCluster._is_over.wait()
        ray.shutdown()
        _read_environment()
        if prints is not None:
            ray._private.worker.print_to_stdstream = prints  # noqa: SLF001 - see `_private`
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _connect(self, workers: int, *, insecure: bool) -> str:
        """Returns the folder of a cluster that is started."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address := _running_address():
            asks_for_token = _asks_for_token(address)
            if not (asks_for_token or insecure):
                raise RunError(
                    f"the Ray cluster at {address} asks for no token: whoever reaches it can run code on its machines",
                    hint="restart Ray everywhere with RAY_AUTH_MODE=token (`insecure=True` accepts it as it is)",
                )
            # With a token that is here, this process would refuse what machines without one send it.
            with _environment(_NO_STATISTICS, mode="token" if asks_for_token else "disabled"):
                try:
                    ray.init(address=address, **quiet)
                except (ConnectionError, exceptions.AuthenticationError) as error:
                    message = f"the Ray cluster at {address} can't be joined: {error}"
                    raise RunError(message, hint="see `ray status`") from None
            check_addresses(alive_machines())
            return ""
        # Ray's sockets are in this folder, and their paths must be short.
        folder = tempfile.mkdtemp(prefix="gc-", dir="/tmp")
        cores = max(workers, os.cpu_count() or 1)
        with _environment(_NO_STATISTICS | _OWN_TOKEN):
            ray.init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=folder, **quiet)
        return folder


class WorkerPlacement:
    """The machine of each worker.

    A machine declares which device it is by a Ray resource like `dev:edge0`. If none does, workers may be anywhere.
    """

    def __init__(self, manifest: Manifest, names: Sequence[str], config: SessionConfig) -> None:
        """Read the machines of the cluster once. If some declare a device, none of the cascade may be missing."""
        self._config = config
        self._machines = alive_machines()
        self._here = str(ray.get_runtime_context().get_node_id())
        known = sorted({name for one in self._machines for name in devices_of(one)})
        providers = {host.name: host.provider for host in manifest.devices}
        self._devices = [name if known and name in providers else "" for name in names]
        self._providers = [config.provider or providers.get(name, "") for name in names]
        if missing := next((name for name in self._devices if name and name not in known), None):
            hint = f"""start Ray on that machine with --resources='{{"{_resource(missing)}": 1}}'"""
            raise RunError(f"the cluster has no device {missing!r}; it has {', '.join(known)}", hint=hint)

    def is_here(self, worker: int) -> bool:
        """Whether this machine declares to be the device of a worker."""
        device, here = self._devices[worker], (one for one in self._machines if one["NodeID"] == self._here)
        return bool(device) and any(_resource(device) in one["Resources"] for one in here)

    def actor_options(self, worker: int, lost: Collection[str]) -> dict[str, Any]:
        """The options of a worker's actor, not on machines whose ids are `lost`: Ray may take them for alive.

        Ray does not restart actors or repeat calls: the scheduler does.
        """
        # At most half of the cores: when half of the cluster is lost, there is room for all workers on the rest.
        cores = min(1.0, int(50 * _cores(self._machines) / len(self._devices)) / 100)
        options: dict[str, Any] = {"num_cpus": max(0.01, cores), "max_restarts": 0, "max_task_retries": 0}
        # Ray hides GPUs from actors that don't ask for one.
        if self._providers[worker].removesuffix("ExecutionProvider") in _GPU_PROVIDERS:
            options["num_gpus"] = _TINY_SHARE
        device, strategy = self._devices[worker], None
        if lost and (left := self._left(device, lost)):
            strategy = NodeAffinitySchedulingStrategy(left[worker % len(left)]["NodeID"], soft=False)
        options |= {"resources": {_resource(device): _TINY_SHARE}} if device else {}
        return {**options, "scheduling_strategy": strategy or (None if device else "SPREAD")}

    def config(self, worker: int) -> SessionConfig:
        """The session config of a worker. If it sets no number of threads, workers share the cores of their machine.

        Of several machines where Ray may start it, the one with the fewest cores for a worker counts.
        """
        if self._config.threads:
            return self._config
        device = self._devices[worker]
        machines = [one for one in self._machines if _has(one, device) and _cores([one])]
        if self.is_here(worker):
            machines = [one for one in self._machines if one["NodeID"] == self._here]
        spread = 1 if device else len(machines)  # workers that may be anywhere are on as many machines
        sharing = [ceil(sum(_has(one, other) for other in self._devices) / spread) for one in machines]
        shares = [int(_cores([one])) // number for one, number in zip(machines, sharing, strict=True)]
        return replace(self._config, threads=max(1, min(shares, default=1)))

    def missing_device(self, worker: int, lost: Collection[str]) -> str:
        """The device of a worker if no machine that is alive and not `lost` has it; else an empty string."""
        device = self._devices[worker]
        return "" if not device or self._left(device, lost) else device

    def _left(self, device: str, lost: Collection[str]) -> list[RayNode]:
        """The machines that are alive and not `lost`, and have a device (or any)."""
        return [one for one in alive_machines() if one["NodeID"] not in lost and _has(one, device)]


def _running_address() -> str | None:
    """The address of the cluster in RAY_ADDRESS, or of one that `ray start` started on this machine.

    It is checked first that the cluster answers, since Ray itself would try for five minutes.
    """
    requested = os.environ.get("RAY_ADDRESS", "")
    requested = "" if requested == "auto" else requested  # then Ray finds a cluster itself
    if requested == "local":
        return None
    if requested.startswith("ray://"):
        message = f"{requested} is an address for Ray clients outside of the cluster, which can't exchange tensors"
        raise UsageError(message, hint="run graphcut on a machine of the cluster, with RAY_ADDRESS=HOST:6379")
    find = _private("_private.services", "find_bootstrap_address")
    address: str | None = requested or (find(None) if find is not None else None)
    if not address:
        return None
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        raise UsageError(f"RAY_ADDRESS={address} has no port", hint="expected HOST:PORT, such as RAY_ADDRESS=HOST:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except OSError as error:
        if not requested:
            return None  # the file of a cluster that was not stopped properly
        hint = "start one there with `ray start --head`, or unset RAY_ADDRESS to use this machine alone"
        raise RunError(f"there is no Ray cluster at {address}: {error}", hint=hint) from None
    return address


def _private(module: str, name: str) -> Any:  # noqa: ANN401 - a function of Ray's
    """A function that Ray does not promise to keep; None if it has gone.

    Without them, a cluster on this machine is found by RAY_ADDRESS alone, and Ray prints lost actors itself.
    """
    with suppress(ImportError):
        return getattr(import_module(f"ray.{module}"), name, None)
    return None


def alive_machines() -> list[RayNode]:
    """The machines of the cluster that are alive."""
    machines: list[RayNode] = ray.nodes()  # type: ignore[no-untyped-call]
    return [machine for machine in machines if machine["Alive"]]


def devices_of(machine: RayNode) -> list[str]:
    """The devices that a machine declares to be."""
    return sorted(name[len(_DEVICE) :] for name in machine["Resources"] if name.startswith(_DEVICE))


def is_answering(machine: RayNode) -> bool:
    """Whether Ray on a machine accepts a connection. Its kernel does that, so one that is busy answers, too."""
    with suppress(OSError):
        address = machine["NodeManagerAddress"], machine["NodeManagerPort"]
        socket.create_connection(address, timeout=1.0).close()
        return True
    return False


def consume_errors(refs: Sequence[Any]) -> None:
    """Fetch results that nobody needs, because Ray prints errors that nobody has fetched."""
    for ref in ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else ():
        with suppress(exceptions.RayError):
            ray.get(ref, timeout=0)


def _asks_for_token(address: str) -> bool:
    """Whether a cluster refuses who has no token. Another process asks: there Ray's lines can be left out.

    Raises:
        RunError: it refuses, and would refuse with what is here, too: Ray itself would try that for 20 seconds.
    """
    answer = b""
    command = [sys.executable, "-c", _ASK, address]
    with suppress(subprocess.TimeoutExpired):
        asked = subprocess.run(command, capture_output=True, check=False, timeout=30.0)  # noqa: S603 - own code
        answer = b"".join(asked.stdout.split()[-1:])
    if answer in {b"open", b"accepted"}:
        return answer == b"accepted"
    refused = f"the Ray cluster at {address} can't be joined"
    if answer == b"missing":
        hint = "set RAY_AUTH_MODE=token, with the token in ~/.ray/auth_token"
        raise RunError(f"{refused}: it requires a token", hint=hint)
    if answer == b"wrong":
        hint = "copy ~/.ray/auth_token from the head, and unset RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH"
        raise RunError(f"{refused}: the token here is not that of the cluster", hint=hint)
    hint = "if it uses TLS, set RAY_USE_TLS=1 and the certificates here, too: see SECURITY.md"
    raise RunError(f"what is at {address} does not answer as a Ray cluster does", hint=hint)


def check_addresses(machines: Sequence[RayNode]) -> None:
    """Check that machines reach each other. Raises RunError, and leaves the cluster, if one has a local address."""
    local = [one["NodeManagerHostname"] for one in machines if one["NodeManagerAddress"].startswith("127.")]
    if local and len({one["NodeManagerHostname"] for one in machines}) > 1:
        ray.shutdown()
        message = f"{local[0]} is in the Ray cluster with an address that other machines can't reach (127.…)"
        hint = "Debian's /etc/hosts does that: `ray start --node-ip-address=ADDRESS` there, and again on the others"
        raise RunError(message, hint=hint)


@contextmanager
def _environment(defaults: Mapping[str, str], mode: str = "") -> Iterator[None]:
    """Set environment variables that are not set, and Ray's `mode` of tokens, and restore all of them afterwards."""
    before = {name: os.environ.get(name) for name in (*defaults, "RAY_AUTH_MODE")}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if mode:
        os.environ["RAY_AUTH_MODE"] = mode
    _read_environment()
    try:
        yield
    finally:
        for name, old in before.items():  # Ray may have set the mode itself
            os.environ.pop(name, None)
            if old is not None:
                os.environ[name] = old


def _read_environment() -> None:
    """Let Ray read environment variables again: it did when it was imported, and keeps to that."""
    if (config := _private("_raylet", "Config")) is not None:
        config.initialize("")


def _has(machine: RayNode, device: str) -> bool:
    """Whether a machine has a device (or any)."""
    return not device or _resource(device) in machine["Resources"]


def _cores(machines: Sequence[RayNode]) -> float:
    return sum(float(machine["Resources"].get("CPU", 0)) for machine in machines)


def _resource(device: str) -> str:
    return f"{_DEVICE}{device}"
