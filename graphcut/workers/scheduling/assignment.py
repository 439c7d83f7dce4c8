"""Which worker owns which parts at the start of a run, and how many threads it has."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from ...core.errors import check_positive
from ...core.graph import grouped
from ...core.manifest import Cascade
from ...running.stage import SessionConfig
from ..executors.via import Via, is_elsewhere
from ..executors.worker import StatesByPart
from .load_balancing import even_bounds, spans_of
from .requests import ScheduledPart
from .worker_pool import WorkerState

_NOTHING: Final[Mapping[int, Any]] = MappingProxyType({})


def scheduled_parts(
    cascade: Cascade, states: StatesByPart = _NOTHING, keeps: Mapping[int, Sequence[str]] = _NOTHING
) -> list[ScheduledPart]:
    """The parts as the scheduler sees them.

    States that a part keeps are not sent, and what it `keeps` of the first step of a sequence not again.
    """
    read = {name for part in cascade.parts for name in part.reads}
    kept = ({n for s in states.get(i, ()) for n in (s.past, s.present)} for i in range(len(cascade.parts)))
    return [
        ScheduledPart(
            part.file,
            tuple(name for name in part.reads if name not in own),
            tuple(name for name in part.writes if name not in own or name in read),
            part.needed.needs,
            is_stateful=bool(own),
            keeps_constants=bool(keeps.get(index)),
        )
        for index, (part, own) in enumerate(zip(cascade.parts, kept, strict=True))
    ]


def assign_parts(
    cascade: Cascade, workers: int | None, overlap: int = 0, *, most: int | None = None
) -> list[WorkerState]:
    """The workers and the parts they own: those of the plan's devices, or else consecutive parts of similar memory.

    There are as many workers as the plan has devices, or else as cores, but not more than parts, nor than `most`. If
    more `workers` are asked for, several share the parts with the most memory. Each also holds `overlap` parts before
    and after its own.
    """
    check_positive(workers, f"{workers} workers can't run anything")
    parts, devices = cascade.parts, cascade.manifest.devices

    def worker(name: str, memory_bytes: int | None, owned: tuple[int, ...]) -> WorkerState:
        near = {part + step for part in owned for step in range(-overlap, overlap + 1)}
        return WorkerState(name, memory_bytes, owned, overlap=frozenset(near.intersection(range(len(parts)))))

    if workers is None and devices and all(part.device is not None for part in parts):
        owned = grouped((part.device, i) for i, part in enumerate(parts))
        return [worker(device.name, device.memory_bytes, tuple(owned.get(device.name, ()))) for device in devices]
    number = workers or min(len(parts), os.cpu_count() or 1, most or len(parts))
    bounds = even_bounds([part.needed.needs + 1.0 for part in parts], min(number, len(parts)))
    spans = spans_of(bounds)
    while len(spans) < number:  # one more worker for the span with the most memory for each of its workers
        spans.append(max(spans, key=lambda span: sum(parts[i].needed.needs for i in span) / spans.count(span)))
    return [worker(f"worker {i}", None, span) for i, span in enumerate(spans)]


def share_threads(config: SessionConfig, workers: int, via: Via) -> SessionConfig:
    """`config` with the cores of this machine divided among `workers`. Ray divides the cores of its machines itself."""
    if config.threads or is_elsewhere(via):
        return config
    return replace(config, threads=max(1, (os.cpu_count() or 1) // workers))
