"""What came of a simulation, on one screen of a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..core.units import count, duration, size
from ..simulating.results import DeviceUse, LinkUse, SimulationResult
from .glyphs import Glyphs, glyphs_for
from .json_records import builtins
from .lanes import MOST_ROWS
from .tables import Column, Trimmed, table

_ARROW: Final = " \N{RIGHTWARDS ARROW} "
_BAR: Final = 10
_FULL: Final = 0.98
"""A device that is busy for this share of the time keeps up with nothing more."""


def simulation_record(found: SimulationResult, source: str) -> dict[str, Any]:
    """`graphcut.simulated/1`: what came of a simulation of `source`."""
    return {"schema": "graphcut.simulated/1", "source": source, **builtins(found)}


def draw_simulation(found: SimulationResult, source: str, console: Console) -> RenderableType:
    """What came of a simulation of `source`."""
    return Trimmed(Group(*_ReportScreen(found, source, glyphs_for(console), console.width).lines()))


@dataclass(frozen=True)
class _UseRow:
    """Devices that were to run the same parts."""

    name: str
    devices: Sequence[DeviceUse]

    def mean(self, share: str) -> float:
        shares: list[float] = [getattr(device, share) for device in self.devices]
        return sum(shares) / len(shares)

    @property
    def parts(self) -> str:
        parts = self.devices[0].parts
        return ", ".join(f"part {i}" for i in parts) if parts else "-"


@dataclass(frozen=True)
class _ReportScreen:
    """What came of a simulation, and what it is drawn with."""

    found: SimulationResult
    source: str
    signs: Glyphs
    width: int

    def lines(self) -> Iterable[RenderableType]:
        """Everything, from top to bottom; pieces with something in them stand apart."""
        yield self.head()
        yield from self.answers()
        for piece in (self.latencies(), self.devices(), self.used(), self.costs()):
            if piece:
                yield Text()
                yield from piece

    def head(self) -> Text:
        found = self.found
        how = (
            f"at most {found.window:,} on their way"
            if found.rate_per_s is None
            else f"{_rate(found.rate_per_s)} a second"
        )
        line = self.signs.text(self.source, "bold")
        return line.append(f"  {count(found.requests, 'request')}, {how}, seed {found.seed}", "not bold")

    def answers(self) -> Iterable[Text]:
        found = self.found
        if found.stopped:
            when = f"stopped after {duration(found.total_s)}, {count(found.answered, 'request')} answered"
            yield self.signs.text(f"{self.signs.no} {when}: {found.stopped}", "bold red")
        yield self.signs.text(f"{_rate(found.per_s)} answers a second. {self.bottleneck()}")
        if found.rate_per_s is not None and _busy(max(found.devices, key=_busy)) >= _FULL:
            yield self.signs.text(
                "note: requests come in faster than they are answered, so the longer this goes on the longer they take",
                "yellow",
            )
        if found.failed:
            yield self.signs.text(f"note: {count(found.failed, 'request')} given up: workers ended each time", "yellow")

    def bottleneck(self) -> str:
        busiest = max(self.found.devices, key=_busy)
        fetching = f", and fetches for {_share(busiest.fetching)}" if busiest.fetching else ""
        return f"The busiest device, {busiest.name}, computes for {_share(busiest.computing)} of the time{fetching}."

    def latencies(self) -> list[RenderableType]:
        latency = self.found.latency
        if latency is None:
            return []
        facts = {
            "mean": latency.mean,
            "half within": latency.p50,
            "9 of 10": latency.p90,
            "99 of 100": latency.p99,
            "all": latency.max,
        }
        said = "   ".join(f"{word} {duration(seconds)}" for word, seconds in facts.items())
        return [Text("latency  ", "bold").append_text(self.signs.text(said, "not bold"))]

    # Devices and lines

    def devices(self) -> list[RenderableType]:
        rows = self.rows()
        columns = [
            Column("device", [Text(row.name, style="bold") for row in rows], fewest=12),
            Column("runs", [Text(row.parts) for row in rows], fewest=12),
            Column("steps", [f"{sum(device.steps for device in row.devices):,}" for row in rows], spare=2),
            Column("computing", [_share(row.mean("computing")) for row in rows]),
            Column("", [self.bar(row.mean("computing")) for row in rows], spare=3),
        ]
        if len(rows) < len(self.found.devices):
            columns.append(Column("most", [_share(max(d.computing for d in row.devices)) for row in rows], spare=1))
        columns.append(Column("fetching", [_share(row.mean("fetching")) for row in rows]))
        if any(device.failures for device in self.found.devices):
            columns.append(Column("failures", [f"{sum(d.failures for d in row.devices):,}" for row in rows]))
            columns.append(Column("down", [_share(row.mean("down")) for row in rows]))
        return [table(columns, width=self.width, signs=self.signs)]

    def rows(self) -> list[_UseRow]:
        """A row a device, or for each set of parts where there are too many devices."""
        devices = self.found.devices
        if len(devices) <= MOST_ROWS:
            return [_UseRow(device.name, [device]) for device in devices]
        ordered = sorted(devices, key=lambda device: (not device.parts, device.parts))
        groups = [list(group) for _, group in groupby(ordered, key=lambda device: device.parts)]
        return [_UseRow(count(len(group), "device"), group) for group in groups]

    def bar(self, share: float) -> Text:
        return Text(self.signs.bar * max(round(share * _BAR), int(share > 0)), style="cyan")

    def used(self) -> list[RenderableType]:
        """The links that carried anything, the fullest first."""
        links = sorted((link for link in self.found.links if link.bytes), key=lambda link: -link.used)
        if not links:
            return []
        shown, rest = links[:MOST_ROWS], links[MOST_ROWS:]
        columns = [
            Column("link", [Text(_named(link)) for link in shown], fewest=12),
            Column("carried", [size(link.bytes) for link in shown]),
            Column("used", [_share(link.used) for link in shown]),
            Column("", [self.bar(link.used) for link in shown], spare=1),
        ]
        drawn: list[RenderableType] = [table(columns, width=self.width, signs=self.signs)]
        if rest:
            more = f"{count(len(rest), 'more link')}, used for {_share(rest[0].used)} at most"
            drawn.append(self.signs.text(f"{self.signs.more} {more}", "dim"))
        if self.found.lost:
            drawn.append(self.signs.text(f"{count(self.found.lost, 'message')} got lost and went again", "dim"))
        return drawn

    # Failures

    def costs(self) -> list[RenderableType]:
        """What failures cost: beside the same run without any."""
        found, without = self.found, self.found.without_failures
        if without is None:
            return []
        both = (found, without)
        facts: list[tuple[str, list[str]]] = [
            ("answers a second", [_rate(one.per_s) for one in both]),
            ("answered", [f"{one.answered:,}" for one in both]),
            ("time", [duration(one.total_s) for one in both]),
        ]
        if found.latency and without.latency:
            told = (found.latency, without.latency)
            facts.append(("mean latency", [duration(one.mean) for one in told]))
            facts.append(("99 of 100 within", [duration(one.p99) for one in told]))
        columns = [
            Column("what failures cost", [Text(word) for word, _ in facts]),
            Column("with", [values[0] for _, values in facts]),
            Column("without", [values[1] for _, values in facts]),
        ]
        drawn: list[RenderableType] = [table(columns, width=self.width, signs=self.signs)]
        if found.restarted:
            said = f"{count(found.restarted, 'request')} restarted, because a device that failed had their tensors"
            drawn.append(self.signs.text(said, "dim"))
        return drawn


def _busy(device: DeviceUse) -> float:
    return device.computing + device.fetching + device.messaging


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


def _share(share: float) -> str:
    """A share in per cent, of three digits at most."""
    return f"{100 * share:.3g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _named(link: LinkUse) -> str:
    return f"{link.source or 'router'}{_ARROW}{link.target or 'router'}"
