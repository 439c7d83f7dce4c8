"""The result of a simulation on the terminal."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean

from msgspec.structs import asdict
from rich.console import RenderableType
from rich.text import Text

from ...core.units import count, duration, size
from ...simulating.results import DeviceUse, SimulationResult
from ..path_kinds import kind_of
from ..sentences import assumed_sizes, spread
from .lanes import MAX_ROWS
from .screen import Screen, Section, picture
from .tables import Column, section, table


def draw_simulation(result: SimulationResult, source: Path, screen: Screen) -> RenderableType:
    """The result of a simulation of `source`, a plan or a cascade."""
    how = "plan for others" if kind_of(source) == "plan" else "set others"  # a plan's predictions are for its sizes
    return picture(
        [_title(result, str(source), screen), *_answer(result, how, screen)],
        _latency(result, screen),
        section(screen, _device_columns(result, screen)),
        _links(result, screen),
        _cost_of_failures(result, screen),
    )


def _title(result: SimulationResult, source: str, screen: Screen) -> Text:
    in_flight = f"at most {result.window or 0:,} in flight"
    how = in_flight if result.rate_per_s is None else f"{_rate(result.rate_per_s)} a second"
    return screen.title(source, f"{count(result.requests, 'request')}, {how}, seed {result.seed}")


def _answer(result: SimulationResult, how: str, screen: Screen) -> Iterable[RenderableType]:
    busiest = max(result.devices, key=_busy)
    if result.stopped:
        when = f"stopped after {duration(result.total_s)}, {count(result.answered, 'request')} answered"
        yield screen.verdict(f"{when}: {result.stopped}", holds=False)
    fetching = f" and fetches for {_share(busiest.fetching)}" if busiest.fetching else ""
    computes = f"computes for {_share(busiest.computing)} of the time{fetching}"
    yield screen.text(f"{_rate(result.per_s)} answers a second. The busiest device, {busiest.name}, {computes}.")
    if result.rate_per_s is not None and _busy(busiest) >= 0.98:  # it can take no more
        yield screen.note("requests arrive faster than they are answered: the longer the run, the higher the latency")
    if not result.is_exact:
        yield screen.note("some sizes are not known and count as 1: times are too short, and the throughput too high")
    for sentence in (spread(), *assumed_sizes(result.assumed, {}, how)):
        yield screen.note(sentence)
    if result.done:
        parts = ", ".join(f"part {index}" for index in result.done)
        verb = "runs" if len(result.done) == 1 else "run"
        yield screen.note(f"a request is one step; {parts} {verb} once for all steps, which is not counted")
    if result.failed:
        yield screen.note(f"{count(result.failed, 'request')} failed: workers ended at every attempt")


def _latency(result: SimulationResult, screen: Screen) -> Section:
    if result.latency is None:
        return []
    text = "   ".join(f"{word} {duration(seconds)}" for word, seconds in asdict(result.latency).items())
    return [Text("latency  ", "bold").append_text(screen.text(text, "not bold"))]


def _device_columns(result: SimulationResult, screen: Screen) -> Iterable[Column]:
    """A row for each device, or for all devices with the same parts if there are too many."""
    groups = [[device] for device in result.devices]
    if len(groups) > MAX_ROWS:
        ordered = sorted(result.devices, key=lambda device: (not device.parts, device.parts))
        groups = [list(group) for _, group in groupby(ordered, key=lambda device: device.parts)]
    is_grouped = len(groups) < len(result.devices)
    names = [count(len(group), "device") if is_grouped else group[0].name for group in groups]
    computing = _means(groups, lambda device: device.computing)
    yield Column("device", [Text(name, style="bold") for name in names], min_width=12)
    yield Column("runs", [Text(", ".join(f"part {i}" for i in one.parts) or "-") for one, *_ in groups], min_width=12)
    yield Column("steps", [f"{sum(device.steps for device in group):,}" for group in groups], drop_order=2)
    yield Column("computing", list(map(_share, computing)))
    yield _bars(computing, screen, drop_order=3)
    if is_grouped:
        yield Column("max", [_share(max(device.computing for device in group)) for group in groups], drop_order=1)
    yield Column("fetching", list(map(_share, _means(groups, lambda device: device.fetching))))
    if any(device.failures for device in result.devices):
        yield Column("failures", [f"{sum(device.failures for device in group):,}" for group in groups])
        yield Column("down", list(map(_share, _means(groups, lambda device: device.down))))


def _means(groups: Sequence[Sequence[DeviceUse]], share: Callable[[DeviceUse], float]) -> list[float]:
    return [mean(map(share, group)) for group in groups]


def _bars(shares: Iterable[float], screen: Screen, *, drop_order: int) -> Column:
    return Column("", [Text(screen.bar(share), style="cyan") for share in shares], drop_order=drop_order)


def _links(result: SimulationResult, screen: Screen) -> Iterable[RenderableType]:
    """The links that carried anything, the busiest first."""
    links = sorted((link for link in result.links if link.bytes), key=lambda link: -link.used)
    shown, rest = links[:MAX_ROWS], links[MAX_ROWS:]
    names = [Text(f"{link.source or 'router'} → {link.target or 'router'}") for link in shown]
    columns = [
        Column("link", names, min_width=12),
        Column("carried", [size(link.bytes) for link in shown]),
        Column("used", [_share(link.used) for link in shown]),
        _bars([link.used for link in shown], screen, drop_order=1),
    ]
    yield from section(screen, columns)
    if rest:
        yield screen.more(f"{count(len(rest), 'more link')}, used for at most {_share(rest[0].used)}")
    if result.lost:
        yield screen.text(f"{count(result.lost, 'message')} lost and sent again", "dim")


def _cost_of_failures(result: SimulationResult, screen: Screen) -> Iterable[RenderableType]:
    """The same run with and without failures."""
    if (without := result.without_failures) is None:
        return
    both = (result, without)
    rows: dict[str, list[str]] = {
        "answers a second": [_rate(one.per_s) for one in both],
        "answered": [f"{one.answered:,}" for one in both],
        "time": [duration(one.total_s) for one in both],
    }
    if result.latency and without.latency:
        latencies = (result.latency, without.latency)
        rows["mean latency"] = [duration(one.mean) for one in latencies]
        rows["p99 latency"] = [duration(one.p99) for one in latencies]
    cells = zip(*rows.values(), strict=True)
    values = (Column(title, column) for title, column in zip(("with", "without"), cells, strict=True))
    yield table(screen, [Column("cost of failures", list(map(Text, rows))), *values])
    if result.restarted:
        text = f"{count(result.restarted, 'request')} restarted: a device that failed had tensors that nothing else has"
        yield screen.text(text, "dim")


def _busy(device: DeviceUse) -> float:
    return device.computing + device.fetching + device.messaging


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


def _share(share: float) -> str:
    """A percentage with at most three digits."""
    return f"{100 * share:.3g} %" if share < 0.995 else f"{100 * share:.0f} %"
