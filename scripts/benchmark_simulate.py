"""`scripts/benchmark simulate`: what a simulation says beside what is measured, and how long large ones take.

A cascade runs here as a pipeline. What each part took, and the words to and from workers, go into a simulation, and the
seconds for all requests are compared: what is left is what the simulation does not know of.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark_run import SMALL, feeds_of, row

import graphcut
from graphcut import (
    Cascade,
    Device,
    Into,
    Pipeline,
    ReliabilityModel,
    RunLog,
    Scenario,
    SimulatedCluster,
    Via,
    scenario_of_cascade,
    scenario_of_plan,
    simulate,
)

REQUESTS = 100
ROUNDS = 5


class WordsLog(RunLog):
    """A log that also notes what steps take on top of their parts: words, and tensors that go along."""

    def __init__(self, parts: int, workers: int) -> None:
        """Nothing is noted yet."""
        super().__init__(parts, workers)
        self.words: list[float] = []
        self._began: dict[int, float] = {}

    def started(self, worker: int, step: Any, now_s: float, given_s: float | None = None) -> None:  # noqa: ANN401
        """See `RunLog`."""
        super().started(worker, step, now_s, given_s)
        self._began[worker] = now_s

    def done(self, worker: int, step: Any, seconds: Sequence[float], *when: Any) -> Any:  # noqa: ANN401
        """See `RunLog`."""
        self.words.append(when[0] - self._began[worker] - sum(seconds))
        return super().done(worker, step, seconds, *when)


def bench_simulate(folder: Path, *, small: bool) -> None:
    """Pipelines of two workers, then many devices."""
    path = folder / "decoder.onnx"
    subprocess.run([sys.executable, "-m", "graphcut", "demo", "llm", *SMALL, "-o", path], check=True)
    model = graphcut.load(path, dims={"batch": 1, "seq": 64, "past": 0, "total": 64})
    analysis = graphcut.analyze(model)
    ways: tuple[Via, Via] = ("threads", "processes")
    for number in (2, 3, 4):
        cascade = graphcut.split(model, graphcut.plan(analysis, Into(number)), folder / f"parts{number}")
        for via in ways:
            bench_measured(cascade, [feeds_of(model, 64, seed) for seed in range(4)], via=via, workers=2)
    made = graphcut.plan(analysis, Into(4))
    devices = tuple(Device(name=f"d{i}") for i in range(4))
    for copies, requests in ((25, 1_000),) if small else ((250, 5_000), (1_000, 10_000)):
        bench_large(scenario_of_plan(made, model, SimulatedCluster(devices=devices)).copied(copies), requests)
        faults = tuple(ReliabilityModel(device=d.name, loss=0.01, mean_up_s=2.0, mean_down_s=0.5) for d in devices)
        bench_large(
            scenario_of_plan(made, model, SimulatedCluster(devices=devices, faults=faults)).copied(copies), requests
        )


def bench_measured(cascade: Cascade, feeds: Sequence[Mapping[str, Any]], *, via: Via, workers: int) -> None:
    """Measured seconds for all requests, and simulated ones from the parts' times in the same run."""
    ratios, rates = [], []
    for _ in range(ROUNDS):
        log = WordsLog(len(cascade.parts), workers)
        with Pipeline(cascade, via=via, workers=workers, balanced=False, log=log) as pipeline:
            for future in [pipeline.submit(feed) for feed in feeds]:
                future.result()
            began = time.perf_counter()
            for future in [pipeline.submit(feeds[i % len(feeds)]) for i in range(REQUESTS)]:
                future.result()
            measured_s = time.perf_counter() - began
            scenario = scenario_of_log(cascade, log, statistics.fmean(log.words))
            found = simulate(scenario, requests=REQUESTS, window=pipeline.window)
        ratios.append(found.total_s / measured_s)
        rates.append(REQUESTS / measured_s)
    ratio, rate = statistics.median(ratios), statistics.median(rates)
    said = f"{ratio:.3f} ({min(ratios):.2f}-{max(ratios):.2f}), {rate:.0f}/s"
    row(f"{len(cascade.parts)} parts, {workers} {via}: simulated to measured", said, "0.85 to 1.15")


def scenario_of_log(cascade: Cascade, log: RunLog, overhead_s: float) -> Scenario:
    """A measured run: each part takes its mean time on each worker that ran it, and tensors take no time."""
    parts, workers = range(len(cascade.parts)), range(log.workers)
    totals = [[log.part_totals.get((part, worker)) for part in parts] for worker in workers]
    cluster = SimulatedCluster(devices=tuple(Device(name=f"worker {i}", latency_s=overhead_s / 2) for i in workers))
    return replace(
        scenario_of_cascade(cascade, cluster),
        tensor_bytes={name: 0 for part in cascade.parts for name in part.writes},
        assignment=tuple(tuple(part for part, total in enumerate(row) if total) for row in totals),
        seconds=tuple(tuple(total.seconds / total.runs if total else 0.0 for total in row) for row in totals),
    )


def bench_large(scenario: Scenario, requests: int) -> None:
    """Seconds that a simulation takes."""
    began = time.perf_counter()
    found = simulate(scenario, requests=requests)
    seconds = time.perf_counter() - began
    failing = f", {sum(device.failures for device in found.devices):,} failures" if scenario.can_fail else ""
    what = f"{len(found.devices):,} devices, {requests:,} requests{failing}"
    row(what, f"{seconds:.1f} s, {found.answered:,} answered", "10 s")
