"""Options of a run in a memory limit, and what is said of the memory that is predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.units import size
from .declaring import Size
from .output import complain, say

if TYPE_CHECKING:
    from ..core.manifest import Part


@dataclass(frozen=True)
class MemoryOptions:
    """A memory limit, and how it is kept."""

    memory_bytes: Size = None
    exact: bool = False


def say_before(run: Any, *, exact: bool) -> None:  # noqa: ANN401 - a Runner, or None or `Generation.limited`
    """Say what is predicted, if there is a limit."""
    forecast = None if run is None else run.forecast
    if forecast is None or forecast.memory_bytes is None:
        return
    about = "about " if forecast.is_estimated else ""
    say(f"predicted peak {about}{size(forecast.peak_bytes)} of {size(forecast.memory_bytes)}: {forecast.residency}")
    if forecast.is_mapped and not exact:
        say("weights are mapped, not prepacked: results may differ from those without a limit; --exact avoids this")
    if forecast.spills:
        say("tensors between parts that do not fit into memory go to a temporary folder")


def say_after(run: Any, parts: Sequence[Part]) -> None:  # noqa: ANN401 - as above
    """Say what other providers took, and what was measured, if there is a limit."""
    if run is None:
        return
    peak_bytes = run.peak and run.peak.bytes  # now: what says how a run went imports modules that it does not need
    if run.placements:
        from ..drawing.terminal.runs import placement_text

        for index, nodes in sorted(run.placements.items()):
            complain(placement_text(parts[index].file, nodes))
    forecast = run.forecast
    if peak_bytes is None or forecast is None or forecast.memory_bytes is None:
        return
    since = ", since the process started" if run.peak.is_since_start else ""
    say(f"measured peak {size(peak_bytes)} (resident pages{since})")
    if peak_bytes > forecast.memory_bytes:
        say(f"that is more than {size(forecast.memory_bytes)}: sizes are estimates; split with --dim for exact ones")
