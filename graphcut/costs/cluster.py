"""Clusters, read from `cluster.toml`: devices, the links between them, and how both fail in simulations."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ..core.errors import did_you_mean
from ..core.graph import grouped
from ..core.product import Product
from ..core.records import reading, with_sizes
from ..core.wiring import MESSAGE_BYTES
from .device import Device, check_finite
from .device_rules import read_rules, shipped_rules


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A direct link between two devices, used instead of the router."""

    between: tuple[str, str]  #: the names of the two devices.
    bytes_per_s: float  #: bandwidth in each direction.
    latency_s: float = 1e-4  #: seconds until the first byte arrives.

    def __post_init__(self) -> None:
        what = f"the link between {' and '.join(self.between)}"
        check_finite(self, what, above_0=("bytes_per_s",), from_0=("latency_s",))


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that runs no parts."""

    name: str = "driver"  #: unlike that of any device.
    link_bytes_per_s: float = 1.25e8  #: bandwidth of its link to the router, in each direction.
    latency_s: float = 1e-4  #: overhead of a message, in seconds.

    def __post_init__(self) -> None:
        check_finite(self, f"host {self.name!r}", above_0=("link_bytes_per_s",), from_0=("latency_s",))


Overlap = Literal["all", "none"]
"""What a device does while it computes. `all`: it sends what it computed before, and receives what it computes next, as
in a run. `none`: nothing, it receives, computes and sends in turn (Tarnawski et al., NeurIPS 2020)."""

LinkEnds = tuple[str | None, str | None]  #: one direction of a link: from a machine to another one; None is the router.


class Cluster(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Devices, the links between them, and where requests come from."""

    devices: tuple[Device, ...]  #: the devices; each reaches all others over its own link to the router.
    links: tuple[NetworkLink, ...] = ()  #: direct links.
    #: where the driver is, which has the inputs and gets the outputs: on a device, by its name, or on a host of its
    #: own. By default on a host called `driver`, with the link to the router that a device has by default.
    origin: str | Host | None = None
    overlap: Overlap = "all"  #: what a device does while it computes; planning assumes it.
    #: seconds that a tensor which does not travel in messages takes besides link and latency, unless `overlap` is
    #: `none`: the time of Ray's object stores.
    store_s: float = 0.0
    step_s: float = 0.0  #: seconds that a step takes besides messages, tensors and computing: those of the scheduler.

    def __post_init__(self) -> None:
        check_finite(self, "a cluster", from_0=("store_s", "step_s"))
        if not self.devices:
            raise ValueError("a cluster has at least one device")
        name, times = Counter(device.name for device in self.devices).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{times} devices are called {name!r}")
        known = {device.name for device in self.devices}
        if isinstance(self.origin, str) and self.origin not in known:
            raise ValueError(f"the origin {self.origin!r} is not a device; a host of its own is a table: [origin]")
        if isinstance(self.origin, Host) and self.origin.name in known:
            raise ValueError(f"the origin {self.origin.name!r} is a device: write origin = {self.origin.name!r}")
        known.add(self.driver.name)
        for link in self.links:
            if unknown := next((end for end in link.between if end not in known), None):
                raise ValueError(f"a link ends at {unknown!r}, which is not a device")
            if link.between[0] == link.between[1]:
                raise ValueError(f"a link goes from {link.between[0]!r} to itself")
        for ends, times in Counter(frozenset(link.between) for link in self.links).items():
            if times > 1:
                raise ValueError(f"there are {times} links between {' and '.join(sorted(ends))}")

    @cached_property
    def driver(self) -> Device | Host:
        """The machine of the driver."""
        if isinstance(self.origin, str):
            return next(device for device in self.devices if device.name == self.origin)
        return self.origin or Host()

    @cached_property
    def machines(self) -> dict[str, Device | Host]:
        """The devices and the machine of the driver, by name."""
        return {machine.name: machine for machine in (*self.devices, self.driver)}

    def route(self, source: str, target: str) -> tuple[dict[LinkEnds, float], float]:
        """Bytes per second of the link directions that a message uses, and its latency; nothing within a machine."""
        if source == target:
            return {}, 0.0
        if (link := self.link_between.get(frozenset((source, target)))) is not None:
            return {(source, target): link.bytes_per_s}, link.latency_s
        sender, receiver = self.machines[source], self.machines[target]
        return {(source, None): sender.link_bytes_per_s, (None, target): receiver.link_bytes_per_s}, receiver.latency_s

    @cached_property
    def routes(self) -> Callable[[str, tuple[str, ...]], tuple[dict[LinkEnds, float], float]]:
        """`route` from a machine to each of several: a link that carries several copies is as much slower."""

        def found(source: str, targets: tuple[str, ...]) -> tuple[dict[LinkEnds, float], float]:
            rates, late_s = zip(*(self.route(source, target) for target in targets), strict=True)
            uses = grouped(pair for row in rates for pair in row.items())
            return {ends: own[0] / len(own) for ends, own in uses.items()}, max(late_s)

        return cache(found)

    def is_small(self, size_bytes: float) -> bool:
        """Whether a tensor travels in the messages of steps, to and from the driver, as small ones do in a run."""
        return self.overlap != "none" and size_bytes <= MESSAGE_BYTES

    def stored_s(self, size_bytes: float) -> float:
        """Seconds that a tensor takes besides link and latency, if it does not travel in messages."""
        return self.store_s if self.overlap != "none" and size_bytes > MESSAGE_BYTES else 0.0

    def message_s(self, device: str) -> float:
        """Seconds that a message between the driver and a device takes, in either direction."""
        return self.route(self.driver.name, device)[1]

    def overhead_s(self, devices: Iterable[str]) -> float:
        """Seconds that a step on devices takes besides tensors and computing: two messages with each, and `step_s`."""
        return 0.0 if self.overlap == "none" else 2 * self.routes(self.driver.name, (*devices,))[1] + self.step_s

    @cached_property
    def link_between(self) -> dict[frozenset[str], NetworkLink]:
        """The direct link between two devices, by their names."""
        return {frozenset(link.between): link for link in self.links}


class ReliabilityModel(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jitter, message loss and failures of a device or of a direct link. Only simulations use it, planning does not."""

    device: str | None = None  #: the name of the device, if it describes one and its link to the router.
    between: tuple[str, str] | None = None  #: the names of the two devices, if it describes a direct link.
    jitter_s: float = 0.0  #: mean of the delay of a message on top of the latency; exponentially distributed.
    loss: float = 0.0  #: the share of messages that get lost and are sent again.
    #: mean time from a repair to the next failure; exponentially distributed. None: it does not fail.
    mean_up_s: float | None = None
    mean_down_s: float | None = None  #: mean time of a repair; exponentially distributed.

    def __post_init__(self) -> None:
        if (self.device is None) == (self.between is None):
            raise ValueError("a fault names either a 'device' or the two devices 'between' which a link is")
        what = f"device {self.device!r}" if self.between is None else f"the link between {' and '.join(self.between)}"
        check_finite(self, what, above_0=("mean_up_s", "mean_down_s"), from_0=("jitter_s",))
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss of {what} can't be {self.loss:g}: expected a number of 0 or more, less than 1")
        if (self.mean_up_s is None) != (self.mean_down_s is None):
            raise ValueError(f"mean_up_s and mean_down_s of {what} belong together")
        if self.mean_up_s is not None and self.between is not None:
            raise ValueError(f"{what} can't fail as a device does: only devices have mean_up_s and mean_down_s")


class ScheduledFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure of a device at a known time."""

    device: str  #: the name of the device.
    at_s: float  #: when it fails, in seconds from the start.
    for_s: float | None = None  #: seconds until it is back, with nothing loaded; None where it never is.

    def __post_init__(self) -> None:
        check_finite(self, f"a failure of {self.device!r}", above_0=("for_s",), from_0=("at_s",))


class SimulatedCluster(Cluster, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A cluster, and how its devices and links fail."""

    faults: tuple[ReliabilityModel, ...] = ()  #: reliability of devices and links.
    failures: tuple[ScheduledFailure, ...] = ()  #: failures at known times.

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {device.name for device in self.devices}
        named = [*(fault.device for fault in self.faults), *(failure.device for failure in self.failures)]
        if unknown := next((name for name in named if name is not None and name not in known), None):
            raise ValueError(f"a failure names {unknown!r}, which is not a device")
        for subject, times in Counter(map(_subject, self.faults)).items():
            names = " and ".join(sorted(subject))
            if len(subject) > 1 and subject not in self.link_between:
                raise ValueError(f"a fault names a link between {names}, and there is none")
            if times > 1:
                raise ValueError(f"there are {times} faults of {names}")

    @property
    def planned(self) -> Cluster:
        """The cluster without how it fails."""
        return Cluster(**{field: getattr(self, field) for field in Cluster.__struct_fields__})

    @cached_property
    def fault_of(self) -> dict[frozenset[str], ReliabilityModel]:
        """The fault of a device, or of the link between two devices, by their names."""
        return {_subject(fault): fault for fault in self.faults}


_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "devices": Device, "links": NetworkLink, "origin": Host, "faults": ReliabilityModel, "failures": ScheduledFailure
}  # fmt: skip


def _subject(fault: ReliabilityModel) -> frozenset[str]:
    return frozenset(fault.between or (fault.device or "",))


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes, without how it fails; sizes may be text (`memory_bytes = "4GB"`).

    Raises:
        RecordError: the file can't be read, is not TOML, or not a cluster.
    """
    return read_simulated_cluster(path).planned


def read_simulated_cluster(path: str | Path) -> SimulatedCluster:
    """The cluster that a TOML file describes, and how it fails; see `read_cluster`.

    Raises:
        RecordError: the file can't be read, is not TOML, or not a cluster.
    """
    path, hint = Path(path), "docs/reference/cluster-file.md describes cluster files"
    with reading(path, "TOML", unread="name a TOML file that lists devices", hint=hint, fields_hint=_fields_hint):
        found = msgspec.toml.decode(path.read_text(encoding="utf-8-sig"))
        return msgspec.convert(_with_rules(with_sizes(found), path.parent), type=SimulatedCluster)


def _fields_hint(message: str) -> str:
    """The fields that a table may have, if an unknown one is what `message` is about; else empty."""
    place, is_unknown, name = message.partition("Object contains unknown field ")
    known = _TABLES.get(place.rstrip(": ").partition("[")[0], SimulatedCluster).__struct_fields__
    return f"{did_you_mean(name.strip('`'), known)}its fields are {', '.join(known)}" if is_unknown else ""


def _with_rules(found: Any, folder: Path) -> Any:  # noqa: ANN401 - the content of the file; msgspec checks it next
    """`found` with the rules of each device that names a rule file, seen from the folder, or one that is shipped."""
    devices = found.get("devices")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and isinstance(name := device.get("rules"), str):
            device["rules"] = msgspec.to_builtins(read_rules(name if name in shipped_rules() else folder / name))
    return found
