"""The machines that parts can run on, the links between them, and what goes wrong with either: `cluster.toml`."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from ..core.errors import RecordError, UsageError, validation_message
from ..core.product import Product
from ..core.units import parse_bytes
from ..costs.device import Device


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A direct link between two devices, instead of the way over the router.

    Attributes:
        between: the names of the two devices.
        bytes_per_s: what it carries, in each direction.
        latency_s: until the first byte arrives.
    """

    between: tuple[str, str]
    bytes_per_s: float
    latency_s: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: a number that must be positive is not.
        """
        ends = " and ".join(self.between)
        if not 0 < self.bytes_per_s < inf:
            raise ValueError(f"the link between {ends} can't carry {self.bytes_per_s:g} bytes a second")
        if not 0 <= self.latency_s < inf:
            raise ValueError(f"the link between {ends} can't have a latency of {self.latency_s:g} s")


class Cluster(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Devices, and the direct links between them.

    Attributes:
        devices: the machines; each reaches all others over its own link to the router.
        links: direct links.
    """

    devices: tuple[Device, ...]
    links: tuple[NetworkLink, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: no device, two of one name, or a link that ends nowhere.
        """
        if not self.devices:
            raise ValueError("a cluster has at least one device")
        name, times = Counter(device.name for device in self.devices).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{times} devices are called {name!r}")
        known = {device.name for device in self.devices}
        for link in self.links:
            if stranger := next((end for end in link.between if end not in known), None):
                raise ValueError(f"a link ends at {stranger!r}, which is no device")
            if link.between[0] == link.between[1]:
                raise ValueError(f"a link goes from {link.between[0]!r} to itself")
        ends, times = (
            Counter(frozenset(link.between) for link in self.links).most_common(1)[0] if self.links else ((), 0)
        )
        if times > 1:
            raise ValueError(f"{times} links go between {' and '.join(sorted(ends))}")

    @cached_property
    def link_between(self) -> dict[frozenset[str], NetworkLink]:
        """The direct link between two devices, by their names."""
        return {frozenset(link.between): link for link in self.links}

    def seconds_between(self, source: Device, target: Device, sent_bytes: int) -> float:
        """What it takes to send so many bytes from one device to another."""
        link = self.link_between.get(frozenset((source.name, target.name)))
        if link is not None:
            return link.latency_s + sent_bytes / link.bytes_per_s
        return target.latency_s + sent_bytes / source.link_bytes_per_s + sent_bytes / target.link_bytes_per_s


class ReliabilityModel(Product, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is always a little wrong with a device or with a direct link. Planning does not count it; simulating does.

    Attributes:
        device: the name of the device, where it is about one and its link to the router.
        between: the names of the two devices, where it is about a direct link.
        jitter_s: what a message takes on top of the latency, on average; exponentially distributed.
        loss: the share of messages that get lost, and are sent again after a while.
        mean_up_s: how long the device works from a repair to its next failure, on average; exponentially distributed.
            None where it does not fail.
        mean_down_s: how long a repair takes, on average; exponentially distributed.
    """

    device: str | None = None
    between: tuple[str, str] | None = None
    jitter_s: float = 0.0
    loss: float = 0.0
    mean_up_s: float | None = None
    mean_down_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: it is about nothing or about two things, or a number is out of its range.
        """
        if (self.device is None) == (self.between is None):
            raise ValueError("a fault is that of a `device`, or of the link `between` two, and of one of them only")
        what = f"device {self.device!r}" if self.between is None else f"the link between {' and '.join(self.between)}"
        if not 0 <= self.jitter_s < inf:
            raise ValueError(f"jitter_s of {what} can't be {self.jitter_s:g}: it is 0 or more, and finite")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss of {what} can't be {self.loss:g}: it is 0 or more, and less than 1")
        if (self.mean_up_s is None) != (self.mean_down_s is None):
            raise ValueError(f"mean_up_s and mean_down_s of {what} belong together")
        if self.mean_up_s is None or self.mean_down_s is None:
            return
        if self.between is not None:
            raise ValueError(f"{what} can't fail as a device does: only devices have mean_up_s and mean_down_s")
        if not (0 < self.mean_up_s < inf and 0 < self.mean_down_s < inf):
            raise ValueError(f"mean_up_s and mean_down_s of {what} are above 0, and finite")


class ScheduledFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device fails at a time that is known.

    Attributes:
        device: its name.
        at_s: when, from the beginning.
        for_s: how long until it is back, as it was but with nothing loaded; None where it never is.
    """

    device: str
    at_s: float
    for_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: a time is negative, or takes no time.
        """
        if not 0 <= self.at_s < inf:
            raise ValueError(f"{self.device!r} can't fail at {self.at_s:g} s: that is 0 or more, and finite")
        if self.for_s is not None and not 0 < self.for_s < inf:
            raise ValueError(f"{self.device!r} can't fail for {self.for_s:g} s: that is above 0, and finite")


class SimulatedCluster(Cluster, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A cluster, and what goes wrong there.

    Attributes:
        faults: what is always a little wrong.
        failures: which devices fail at known times.
    """

    faults: tuple[ReliabilityModel, ...] = ()
    failures: tuple[ScheduledFailure, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: as for a cluster; or something unknown has a fault, or something has two, or fails.
        """
        super().__post_init__()
        known = {device.name for device in self.devices}
        named = [*(fault.device for fault in self.faults), *(failure.device for failure in self.failures)]
        if stranger := next((name for name in named if name is not None and name not in known), None):
            raise ValueError(f"{stranger!r} is to fail, which is no device")
        faulty = [frozenset(fault.between) for fault in self.faults if fault.between is not None]
        if ends := next((ends for ends in faulty if ends not in self.link_between), None):
            raise ValueError(f"a fault is said of a link between {' and '.join(sorted(ends))}, and there is none")
        told = Counter([*faulty, *(frozenset((f.device,)) for f in self.faults if f.device is not None)])
        if told and (most := told.most_common(1)[0])[1] > 1:
            raise ValueError(f"{most[1]} faults are said of {' and '.join(sorted(most[0]))}")

    @cached_property
    def fault_of(self) -> dict[frozenset[str], ReliabilityModel]:
        """The fault of a device, or of the link between two, by their names."""
        return {frozenset(fault.between or (fault.device or "",)): fault for fault in self.faults}


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes; sizes may be written as people do (`memory_bytes = "4GB"`).

    Raises:
        UsageError: the file can't be read.
        RecordError: it is no TOML, or does not fit the record.
    """
    world = read_simulated_cluster(path)
    return Cluster(devices=world.devices, links=world.links)


def read_simulated_cluster(path: str | Path) -> SimulatedCluster:
    """The same, with what goes wrong there.

    Raises:
        UsageError: the file can't be read.
        RecordError: it is no TOML, or does not fit the record.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{path} can't be read: {what}", hint="name a TOML file that lists devices") from None
    hint = "docs/reference/cluster-file.md shows a cluster file"
    try:
        return msgspec.convert(_with_sizes(msgspec.toml.decode(text), ""), type=SimulatedCluster)
    except UsageError as error:
        raise RecordError(f"{path}: {error}", hint=error.hint) from None
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {validation_message(error)}", hint=hint) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not TOML: {error}", hint=hint) from None


def _with_sizes(found: Any, place: str) -> Any:  # noqa: ANN401 - whatever stands in the file; msgspec looks at it next
    """Sizes in words as numbers: the value of each key that speaks of bytes. `place` is where in the file we are."""
    if isinstance(found, list):
        return [_with_sizes(value, f"{place}[{i}]") for i, value in enumerate(found)]
    if not isinstance(found, dict):
        return found
    made = {}
    for key, value in found.items():
        where = f"{place}.{key}".lstrip(".")
        made[key] = _size(value, where) if "bytes" in key else _with_sizes(value, where)
    return made


def _size(value: object, place: str) -> object:
    """A size in words (`4GB`, `125MB/s`) or a whole number with a point in it, as a number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value.removesuffix("/s") if place.endswith("_per_s") else value)
    except UsageError as error:
        raise UsageError(f"{place}: {error}", hint=error.hint) from None
