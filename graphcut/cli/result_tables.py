"""Tables of results that one command alone prints: what `auto` did, what `bench` measured, what `doctor` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ..core.units import count, duration, operations, size
from ..drawing.terminal.screen import NO, Screen, picture
from ..drawing.terminal.tables import Column, section, table

if TYPE_CHECKING:  # these load ONNX Runtime
    from .. import AutoRecord, Environment, Figures, WayResult

_FORMATS = {"snr": "{:.1f} dB", "max": "{:.3g}", "mean": "{:.3g}", "top1": "{:.1%}", "perplexity": "{:,.4g}"}


def draw_automation(record: AutoRecord, screen: Screen) -> RenderableType:
    """The steps and the precisions that were tried, with their figures, and the result."""
    steps, tried = record.steps, record.tried
    made = [
        Column("step", [Text(step.name) for step in steps]),
        Column("by", [Text(f"{step.package} {step.version}") for step in steps], drop_order=1),
        Column("weights", [size(step.bytes) for step in steps]),
        *_figures([step.figures for step in steps]),
    ]
    found = [
        Column("tried", [Text(one.precision) for one in tried]),
        Column("parts", [f"{one.parts or '-'}" for one in tried]),
        Column("largest on disk", [size(one.largest_bytes) if one.largest_bytes else "-" for one in tried]),
        *_figures([one.figures for one in tried]),
    ]
    verdicts = [screen.text(f"  {one.precision}: {screen.words(one.verdict)}") for one in tried]
    unmet = "a limit of --accept is not met; nothing was written"
    answer = screen.verdict(record.verified or unmet, holds=bool(record.verified))
    guess = "inputs were generated: random weights or inputs say nothing about accuracy; give yours: --inputs"
    notes = [screen.note(guess)] if steps and record.inputs.startswith("generated") else []
    return picture(section(screen, made), [table(screen, found), *verdicts], [answer], notes=notes)


def _figures(of: Sequence[Figures | None]) -> list[Column]:
    """The columns of the figures that any row has."""
    rows = {name: [_shown(one, name) for one in of] for name in _FORMATS}
    return [Column(name, cells) for name, cells in rows.items() if {*cells} != {"-"}]


def _shown(figures: Figures | None, name: str) -> str:
    value = getattr(figures, name, None)
    if name == "snr" and figures is not None and figures.max == 0:
        return "same"
    return "-" if value is None or abs(value) == float("inf") else _FORMATS[name].format(value)


def draw_benchmark(results: Sequence[WayResult], screen: Screen) -> RenderableType:
    """A row for each way to run the model; below, the ways that failed."""
    ran = [one for one in results if not one.error]
    columns = [
        Column("way to run it", [Text(one.title) for one in ran]),
        Column("one input", [duration(one.run_s) for one in ran]),
        Column("ratio", [f"{one.ratio:.2f}" for one in ran]),
        Column("processor", [duration(one.cpu_s) for one in ran], drop_order=1),
        Column("memory", [size(one.peak_bytes) if one.peak_bytes else "-" for one in ran]),
        Column("load", [duration(one.load_s) for one in ran], drop_order=2),
        Column("outputs", [Text(_difference(one.difference)) for one in ran], drop_order=3),
    ]
    failed = (screen.text(f"{one.title}: not measured: {one.error}", "yellow") for one in results if one.error)
    return picture([table(screen, columns), *failed])


def _difference(difference: float | None) -> str:
    return "not compared" if difference is None else f"within {difference:.1e}" if difference else "same bits"


def draw_environment(found: Environment, screen: Screen) -> RenderableType:
    """This machine, the providers and the packages, and the verdict."""
    memory = "unknown memory" if found.memory_bytes is None else f"{size(found.memory_bytes)} of memory available"
    facts = f"{count(found.cores, 'core')}, {memory}, {size(found.disk_bytes)} of disk free here"
    reached = f", which can't be reached: {found.ray_problem}" if found.ray_problem else ""
    cluster = f"Ray: {found.ray or 'no cluster'}{reached}"
    lines = [facts, f"clock: {found.utc}, steps of {found.clock_step_s * 1e9:.0f} ns", cluster]
    if (rates := found.measured) is not None:
        speeds = f"{operations(rates.flops_per_s)}FLOP/s, {operations(rates.bytes_per_s)}B/s of memory bandwidth"
        disk = f"{duration(rates.dispatch_s)} to start a node, {operations(rates.disk_bytes_per_s)}B/s to disk"
        lines.append(f"measured: {speeds}, {disk}; spread {rates.spread:.0%}")
    providers = [
        Column("provider", [Text(one.name) for one in found.providers]),
        Column("computes", [Text(", ".join(one.native) or "-") for one in found.providers], min_width=12),
        Column("widens", [Text(", ".join(one.widened) or "-") for one in found.providers]),
    ]
    problems = [screen.text(f"{one.name}: {one.problem}", "yellow") for one in found.providers if one.problem]
    packages = [
        Column("package", [Text(one.name) for one in found.packages]),
        Column("for", [Text(f"extra {one.extra}" if one.extra else "graphcut") for one in found.packages]),
        Column("installed", [Text(one.version or "no") for one in found.packages]),
        Column("expected", [screen.text(one.expected) for one in found.packages]),
        Column("", [screen.text("" if one.is_usable else NO) for one in found.packages]),
    ]
    answer = "what graphcut needs works here" if found.works else "graphcut lacks what it needs, see above"
    title = screen.title(f"graphcut {found.graphcut}", f"python {found.python}, {found.system}")
    return picture(
        [title, *map(screen.text, lines)],
        [table(screen, providers), *problems],
        [table(screen, packages)],
        [screen.verdict(answer, holds=found.works)],
    )
