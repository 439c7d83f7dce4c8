"""Who runs what: how the parts of a cascade are shared out among workers, and workers of each kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from ...core.errors import UsageError
from ...core.manifest import Cascade, Part
from ..executors.protocol import Executor
from ..executors.threads import ThreadExecutor
from ..executors.worker import StatesByPart
from ..stage import SessionConfig
from .load_balancing import LoadBalance, even_bounds
from .requests import ScheduledPart
from .worker_pool import WorkerState

Via = Literal["threads", "processes", "ray"]


def scheduled_parts(cascade: Cascade, states: StatesByPart) -> list[ScheduledPart]:
    """The parts as the scheduler sees them: states that a part keeps are not sent around."""
    made = []
    read = {name for part in cascade.parts for name in part.reads}
    for place, part in enumerate(cascade.parts):
        kept = {name for state in states.get(place, ()) for name in (state.past, state.present)}
        made.append(
            ScheduledPart(
                part.file,
                tuple(name for name in part.reads if name not in kept),
                tuple(name for name in part.writes if name not in kept or name in read),
                part_memory_bytes(part),
                is_stateful=bool(kept),
            )
        )
    return made


def part_memory_bytes(part: Part) -> int:
    """What a part takes on its device, in bytes: weights, and activations for the sizes it was planned for."""
    return part.weight_bytes + part.activation_bytes


def assign_parts(cascade: Cascade, workers: int | None, overlap: int = 0) -> list[WorkerState]:
    """Who owns which parts.

    Raises:
        UsageError: there can't be so many workers.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers can't run anything", hint="take 1 or more")
    parts, hosts = cascade.parts, cascade.manifest.devices
    if workers is None and hosts and all(part.device is not None for part in parts):
        owned = {host: tuple(i for i, part in enumerate(parts) if part.device == host.name) for host in hosts}
        return [
            WorkerState(host.name, host.memory_bytes, own, also=_beside(own, overlap, len(parts)))
            for host, own in owned.items()
        ]
    number = workers or min(len(parts), os.cpu_count() or 1)
    bounds = even_bounds([part_memory_bytes(part) + 1.0 for part in parts], min(number, len(parts)))
    spans = [tuple(range(start, stop)) for start, stop in pairwise(bounds)]
    while len(spans) < number:  # the heaviest is shared by so many that each has less to do than the next heaviest
        spans.append(max(spans, key=lambda span: sum(part_memory_bytes(parts[i]) for i in span) / spans.count(span)))
    return [
        WorkerState(f"worker {i}", None, span, also=_beside(span, overlap, len(parts))) for i, span in enumerate(spans)
    ]


def _beside(owned: Sequence[int], overlap: int, parts: int) -> frozenset[int]:
    """The parts that are owned, and up to `overlap` on either side of each."""
    near = {place + step for place in owned for step in range(-overlap, overlap + 1)}
    return frozenset(near.intersection(range(parts)))


def make_executor(
    cascade: Cascade, via: Via, config: SessionConfig, states: StatesByPart, workers: Sequence[WorkerState]
) -> Executor:
    """Workers of a kind."""
    match via:
        case "threads":
            return ThreadExecutor(cascade, config, states)
        case "processes":
            from ..executors.processes import ProcessExecutor

            return ProcessExecutor(cascade, config, states)
        case "ray":
            try:
                from ..executors.ray_executor import RayExecutor
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != "ray":
                    raise
                hint = "pip install 'graphcut[ray]'"
                raise UsageError("`ray` needs Ray, which is not installed", hint=hint) from None
            return RayExecutor(cascade, config, states, [member.name for member in workers])


def load_balance_of(units: Sequence[ScheduledPart], workers: Sequence[WorkerState]) -> LoadBalance | None:
    """Parts can change hands where each worker owns a stretch of its own, and at least one owns several."""
    owned = [part for member in workers for part in member.owns]
    is_row = owned == list(range(len(units))) and all(member.owns for member in workers)
    if len(workers) < 2 or not is_row or len(owned) == len(workers):
        return None
    bounds = (0, *(member.owns[-1] + 1 for member in workers))

    def allowed(worker: int, parts: range) -> bool:
        limit = workers[worker].memory_bytes
        return limit is None or sum(units[i].memory_bytes for i in parts) <= limit

    return LoadBalance(bounds, allowed=allowed)


def share_threads(config: SessionConfig, workers: int, via: Via) -> SessionConfig:
    """Threads for one operator: together no more than there are cores. Machines of Ray share out their own."""
    if config.threads or via == "ray":
        return config
    return replace(config, threads=max(1, (os.cpu_count() or 1) // workers))
