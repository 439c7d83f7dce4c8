"""The machines that parts can run on, and the lines between them: `cluster.toml`."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from ..costs.device import Device
from ..errors import RecordError, UsageError
from ..records import with_place
from ..units import parse_bytes


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A direct line between two devices, instead of the way over the router.

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
            raise ValueError(f"the line between {ends} can't carry {self.bytes_per_s:g} bytes a second")
        if not 0 <= self.latency_s < inf:
            raise ValueError(f"the line between {ends} can't have a latency of {self.latency_s:g} s")


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Devices, and the direct lines between them.

    Attributes:
        devices: the machines; each reaches all others over its own line to the router.
        lines: direct lines.
    """

    devices: tuple[Device, ...]
    lines: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what can't be.

        Raises:
            ValueError: no device, two of one name, or a line that ends nowhere.
        """
        if not self.devices:
            raise ValueError("a cluster has at least one device")
        name, times = Counter(device.name for device in self.devices).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{times} devices are called {name!r}")
        known = {device.name for device in self.devices}
        for line in self.lines:
            if stranger := next((end for end in line.between if end not in known), None):
                raise ValueError(f"a line ends at {stranger!r}, which is no device")
            if line.between[0] == line.between[1]:
                raise ValueError(f"a line goes from {line.between[0]!r} to itself")
        ends, times = (
            Counter(frozenset(line.between) for line in self.lines).most_common(1)[0] if self.lines else ((), 0)
        )
        if times > 1:
            raise ValueError(f"{times} lines go between {' and '.join(sorted(ends))}")

    @cached_property
    def line_between(self) -> dict[frozenset[str], Line]:
        """The direct line between two devices, by their names."""
        return {frozenset(line.between): line for line in self.lines}

    def seconds_between(self, source: Device, target: Device, sent_bytes: int) -> float:
        """What it takes to send so many bytes from one device to another."""
        line = self.line_between.get(frozenset((source.name, target.name)))
        if line is not None:
            return line.latency_s + sent_bytes / line.bytes_per_s
        return target.latency_s + sent_bytes / source.line_bytes_per_s + sent_bytes / target.line_bytes_per_s


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes; sizes may be written as people do (`memory_bytes = "4GB"`).

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
    hint = "docs/PLANNING.md shows a cluster file"
    try:
        return msgspec.convert(_with_sizes(msgspec.toml.decode(text), ""), type=Cluster)
    except UsageError as error:
        raise RecordError(f"{path}: {error}", hint=error.hint) from None
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {with_place(error)}", hint=hint) from None
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
