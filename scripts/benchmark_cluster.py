"""`scripts/benchmark cluster`: machines made of namespaces (root, iproute2), with links of a known rate.

First decoding beside llama.cpp's RPC: two machines of one core each, half of the layers on each. Then decoding on three
machines whose messages take 5 ms longer, with `lookup`, with a draft, and without. Then what plans and simulations
predict for three machines, beside what is measured. Both sides of a ratio run in turn.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_sizes
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_llama import Llama, write_gguf, write_onnx
from benchmark_machines import TMP, Machines, machines
from msgspec.structs import replace

import graphcut
from graphcut import (
    Across,
    Cluster,
    Device,
    Into,
    Limits,
    Model,
    Plan,
    RunLog,
    Sampling,
    SessionConfig,
    demos,
    scenario_of_plan,
    simulate,
    stream,
    weigh,
)
from graphcut.decoding.speculation import Speculation
from graphcut.planning.goals import Objective
from graphcut.planning.planner import with_metrics
from graphcut.running.sampling import GREEDY

PROMPT, DECODED, ROUNDS = 128, 48, 3
SETTLED = 48  # so many tokens are not counted: meanwhile weights move to huge pages
SEQUENCES = (1, 2, 4)
REQUESTS, ALONE, WARM, WINDOW = 24, 12, 4, 6  # ALONE: requests one by one
RATES = ("100mbit", "20mbit")
LATE = "100mbit/5ms"
WAYS = {"without": None, "lookup": "lookup", "draft": f"{TMP}/draft"}
TEXTS = {"that repeats": 0.0, "that repeats a little": 0.1, "that does not": 1.0}  # with their temperatures
KEPT = 2  # the layers of the draft


def bench_cluster(folder: Path, *, small: bool, llama_cpp: Path | None) -> None:
    """All benchmarks."""
    if os.geteuid() or shutil.which("tc") is None:
        sys.exit("needs root and iproute2")
    llama = Llama(hidden=256, layers=4, heads=4, width=512) if small else Llama()
    llama = replace_sizes(llama, faint=llama.layers - KEPT, seed=1)  # with this seed its text repeats soon
    bench_rival(folder, llama, llama_cpp)
    bench_late(folder, llama)
    bench_predictions(folder, small=small)


def bench_rival(folder: Path, llama: Llama, llama_cpp: Path | None) -> None:
    """Tokens a second, and bytes on the wire for each."""
    write_onnx(llama, folder / "llama.onnx")
    model = graphcut.load(folder / "llama.onnx")
    devices = tuple(Device(name=name, threads=1, link_bytes_per_s=1.25e7, bytes_per_s=1e10) for name in "ab")
    goal = Across(Cluster(devices=devices, origin="a"), "decode", 2)
    graphcut.split(model, graphcut.plan(model, goal), folder / "llama.parts")
    with machines(["100mbit"] * 2, [0, min(1, (os.cpu_count() or 1) - 1)]) as made:
        made.start_ray()
        made.put(folder / "llama.parts")
        if llama_cpp is not None:
            write_gguf(llama, folder / "llama.gguf")
            made.put(folder / "llama.gguf")
            made.put(llama_cpp / "llama-bench")
            made.put(llama_cpp / "ggml-rpc-server")
            made.start(1, f"{TMP}/ggml-rpc-server -H 10.77.0.11 -p 50052 -t 1")
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            if llama_cpp is not None:
                found.setdefault("llama.cpp alone on one core", []).append(rival(made, "-ngl 0 -dev none"))
                how = f"-ngl {llama.layers // 2} -rpc 10.77.0.11:50052"
                found.setdefault("llama.cpp's RPC, half of the layers remote", []).append(rival(made, how))
            for number in SEQUENCES:
                one = made.measured("decode", f"{TMP}/llama.parts", number)
                name = f"graphcut over Ray, {number} sequence{'s' * (number > 1)}"
                found.setdefault(name, []).append((one["per_s"], one["bytes"]))
            for lookup, name in enumerate(("text that repeats", "the same, --draft lookup")):
                one = made.measured("repeat", f"{TMP}/llama.parts", lookup)
                found.setdefault(f"graphcut over Ray, {name}", []).append((one["per_s"], one["bytes"]))
    print(f"two machines of one core, 100 Mbit/s, a prompt of {PROMPT}, {DECODED} decoded, medians of {ROUNDS} rounds")
    print(f"{'':46} {'tokens/s':>10} {'wire bytes a token':>20}")
    for name, rows in found.items():
        print(f"{name:46} {statistics.median(n for n, _ in rows):10.1f} {statistics.median(n for _, n in rows):20,.0f}")


def rival(made: Machines, how: str) -> tuple[float, float]:
    """Tokens a second of llama.cpp, and bytes a token; what its set-up sends is taken off."""
    base = f"{TMP}/llama-bench -m {TMP}/llama.gguf -p 0 -d {PROMPT} -t 1 -o json {how}"
    carried = []
    for decoded in (1, DECODED):
        before = made.carried()
        found = json.loads(made.on(0, f"{base} -n {decoded} -r 1 2>/dev/null"))
        carried.append(made.carried() - before)
    return found[0]["avg_ts"], (carried[1] - carried[0]) / (DECODED - 1)


@dataclass(frozen=True)
class Trial:
    """A model whose runs are predicted, and how it runs: with as many in flight as planned, and one by one."""

    name: str
    model: Model
    objective: Objective
    in_flight: int  # as it is planned
    runs: Sequence[Sequence[object]]
    outputs: tuple[str, ...] | None = None  # that are asked for

    def planned(self, cluster: Cluster) -> Plan:
        """Three parts, on the devices by their names."""
        goal = Across(cluster, self.objective, self.in_flight, outputs=self.outputs)
        analysis, costs = graphcut.analyze(self.model), weigh(self.model, self.model.dims)
        parts = graphcut.plan(analysis, Into(3), costs=costs, limits=Limits(recompute="never")).parts
        devices = tuple(sorted(cluster.devices, key=lambda one: one.name))
        bare = Plan(goal, self.model.graph, parts, devices, dims=self.model.dims, model=self.model)
        return with_metrics(analysis, bare, costs)


def bench_late(folder: Path, llama: Llama) -> None:
    """Tokens of text that repeats and of text that does not, with proposals and without, beside what is planned.

    A random model has no good draft, so its last layers change little, and the draft is the model without them.
    """
    write_onnx(llama, folder / "late.onnx")
    write_onnx(replace_sizes(llama, layers=KEPT, faint=0), folder / "draft.onnx")
    graphcut.split(folder / "draft.onnx", Into(1), folder / "draft", force=True)
    model = graphcut.load(folder / "late.onnx", dims={"batch": 1, "seq": 1, "past": PROMPT, "total": PROMPT + 1})
    trial = Trial("late", model, "decode", 1, [("repeat", f"{TMP}/late", *one) for one in product(range(3), repeat=2)])
    found: dict[tuple[object, ...], list[dict[str, Any]]] = {tuple(words[2:]): [] for words in trial.runs}
    with machines([LATE] * 3, [0, 1, 1]) as made:
        made.start_ray()
        cluster = measured_cluster(made)
        shutil.rmtree(folder / "late", ignore_errors=True)
        graphcut.split(trial.model, trial.planned(cluster), folder / "late")
        made.put(folder / "late")
        made.put(folder / "draft")
        for _ in range(ROUNDS):
            for words in trial.runs:
                found[tuple(words[2:])].append(made.measured(*words))
    latency_ms = ", ".join(f"{one.name} {one.latency_s * 1e3:.1f}" for one in cluster.devices)
    print(f"three machines, {LATE}, {4 * DECODED} tokens decoded; latency measured in ms: {latency_ms}")
    for (text, what), (way, how) in product(enumerate(TEXTS), enumerate(WAYS)):
        without, own = found[0, text], found[way, text]
        times = fitted(trial, cluster, without).times
        planned_per_s = 1 / times.latency_s if times is not None else 0.0
        ratios = sorted(b["per_s"] / a["per_s"] for a, b in zip(without, own, strict=True))
        per_s, right = (statistics.median(one[name] for one in own) for name in ("per_s", "right"))
        print(
            f"text {what:22} {how:8} {per_s:6.1f} tokens/s (planned without {planned_per_s:.1f}), {right:.0%} right,",
            f"{statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def bench_predictions(folder: Path, *, small: bool) -> None:
    """Three machines, the second and the third on one core. Links are measured before the runs of each round."""
    demos.write("unet", folder / "unet.onnx")
    llama = Llama(hidden=256, layers=6, heads=4, width=512) if small else Llama()
    write_onnx(llama, folder / "decoder.onnx")
    prompted = replace_sizes(llama, layers=min(llama.layers, 6), vocab=2000)  # so that logits take no minute
    write_onnx(prompted, folder / "prompt.onnx")
    token = {"batch": 1, "seq": 1, "past": PROMPT, "total": PROMPT + 1}
    prompt = {"batch": 1, "seq": PROMPT, "past": 0, "total": PROMPT}
    unet, decoder, prompts = (
        graphcut.load(folder / f"{name}.onnx", dims=dims)
        for name, dims in (("unet", {"batch": 8}), ("decoder", token), ("prompt", prompt))
    )
    trials = [
        Trial("unet", unet, "throughput", 1, [("pipeline", f"{TMP}/unet", WINDOW), ("pipeline", f"{TMP}/unet", 1)]),
        Trial("decoder", decoder, "decode", 2, [("decode", f"{TMP}/decoder", 2), ("decode", f"{TMP}/decoder", 1)]),
        Trial(
            "prompt",
            prompts,
            "throughput",
            1,
            [("pipeline", f"{TMP}/prompt", WINDOW), ("pipeline", f"{TMP}/prompt", 1)],
            ("logits",),
        ),
    ]
    print(f"{'three machines':34} {'planned':>9} {'simulated':>9} {'measured':>9}  ratios   wire / boundary bytes")
    for rate in RATES:
        with machines([rate] * 3, [0, 1, 1]) as made:
            made.start_ray()
            clusters, found = [measured_cluster(made)], []
            for trial in trials:
                shutil.rmtree(folder / trial.name, ignore_errors=True)
                graphcut.split(trial.model, trial.planned(clusters[0]), folder / trial.name)
                made.put(folder / trial.name)
            for _ in range(ROUNDS + 1):
                clusters.append(measured_cluster(made))
                found.append([[made.measured(*words) for words in trial.runs] for trial in trials])
        cluster = typical(clusters[2:])
        for trial, seen in zip(trials, zip(*found[1:], strict=True), strict=True):
            for i, what in enumerate(("period", "latency")):
                _compare(f"{trial.name}-{rate}", trial, cluster, what, [both[i] for both in seen])


def measured_cluster(made: Machines) -> Cluster:
    """What `graphcut measure cluster` says."""
    made.on(0, f"python -m graphcut measure cluster --seconds 3 --force -o {TMP}/cluster.toml")
    return graphcut.read_cluster(Path(made.net("tmp", 0).strip()) / "cluster.toml")


def typical(clusters: Sequence[Cluster]) -> Cluster:
    """One with the medians of what was measured of links, object stores and steps."""
    named = [{one.name: one for one in cluster.devices} for cluster in clusters]

    def median(name: str, field: str) -> float:
        return statistics.median(getattr(own[name], field) for own in named)

    fields = ("link_bytes_per_s", "latency_s")
    links = {name: {field: median(name, field) for field in fields} for name in named[0]}
    devices = (replace(one, threads=1, **links[name]) for name, one in named[0].items())
    rest = {one: statistics.median(getattr(own, one) for own in clusters) for one in ("store_s", "step_s")}
    return replace(clusters[0], devices=tuple(devices), **rest)


def _compare(title: str, trial: Trial, cluster: Cluster, what: str, found: Sequence[dict[str, Any]]) -> None:
    """Print what is predicted with the times of the parts in the same runs, beside what was measured."""
    again = fitted(trial, cluster, found)
    is_period, is_decoder = what == "period", trial.objective == "decode"
    scenario, times = scenario_of_plan(again, trial.model, None), again.times
    assert times is not None  # noqa: S101 - it is a plan for a cluster
    planned_s = times.objective(again.goal.objective, again.goal.in_flight) if is_period else times.latency_s
    window = (None if is_decoder else WINDOW) if is_period else 1
    simulated_s = 1 / simulate(scenario, requests=100, window=window).per_s
    found_s = statistics.median(one["period_s"] for one in found)
    # What crosses in the whole run; the first device is where the driver is, so the inputs do not.
    sent = sum(one.sent_bytes for one in again.metrics) + sum(one.output_bytes for one in again.metrics[1:])
    tokens = (2 if is_period else 1) * (PROMPT + SETTLED + DECODED - 1)
    number = tokens if is_decoder else REQUESTS if is_period else ALONE
    wire = statistics.median(one["carried"] for one in found) / (sent * number)
    print(
        f"{title:24} {what:9} {planned_s * 1e3:6.1f} ms {simulated_s * 1e3:6.1f} ms {found_s * 1e3:6.1f} ms",
        f"{found_s / planned_s:6.2f} {found_s / simulated_s:6.2f}   {wire:.2f}",
        flush=True,
    )


def fitted(trial: Trial, cluster: Cluster, found: Sequence[dict[str, Any]]) -> Plan:
    """The plan for devices on which its parts take what they took in these runs."""
    run_s = [statistics.median(own) for own in zip(*(one["parts"] for one in found), strict=True)]
    first = trial.planned(cluster)
    speeds = [part.run_s / seconds for part, seconds in zip(first.metrics, run_s, strict=True)]
    return trial.planned(replace(cluster, devices=tuple(map(_faster, first.devices, speeds))))


def _faster(device: Device, times: float) -> Device:
    speeds = {"flops_per_s": device.flops_per_s * times, "bytes_per_s": device.bytes_per_s * times}
    return replace(device, **speeds, dispatch_s=device.dispatch_s / times)


def carried() -> int:
    """The bytes that this machine has received and sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    numbers = line.partition(":")[2].split()
    return int(numbers[0]) + int(numbers[8])


def seconds_of(log: RunLog, first: int) -> list[float]:
    """What each part took on average, from a request on."""
    spans = [span for span in log.spans if span.request >= first]
    return [statistics.fmean(span.seconds for span in spans if span.part == part) for part in range(log.parts)]


def decode(parts: str, number: int) -> dict[str, Any]:
    """Decode so many sequences; the prompts are not counted."""
    draw = np.random.default_rng(0)
    return decoded(parts, [draw.integers(0, 256, PROMPT).tolist() for _ in range(number)], DECODED)


def repeat(parts: str, way: int, text: int = 0) -> dict[str, Any]:
    """Decode a sequence whose prompt repeats, and what follows, too, unless it is drawn."""
    sampling, draft = Sampling(temperature=[*TEXTS.values()][text]), [*WAYS.values()][way]
    return decoded(parts, [[5, 6, 7, 8, 9, 11] * 8], 4 * DECODED, sampling, draft)


def decoded(
    parts: str,
    prompts: list[list[int]],
    most: int,
    sampling: Sampling = GREEDY,
    draft: str | None = None,
) -> dict[str, Any]:
    """Decode so many tokens after each prompt, and the first ones."""
    number, how, judged = len(prompts), SessionConfig(threads=1), [(0, 0)]
    judge = Speculation.judge

    def noted(self: Speculation, proposed: int, right: int) -> None:
        judged.append((proposed, right))
        judge(self, proposed, right)

    Speculation.judge = noted  # type: ignore[method-assign]
    length = SETTLED + most
    tokens = graphcut.generate(parts, prompts, max_tokens=length, sampling=sampling, via="ray", config=how, draft=draft)
    tokens.log.is_tracing = True
    stream = iter(tokens)
    for _ in islice(stream, number * SETTLED):
        pass
    began_s, before = time.perf_counter(), carried()
    count = sum(1 for _ in islice(stream, number * most))
    ended_s, after = time.perf_counter(), carried()
    tokens.close()
    proposed, right = map(sum, zip(*judged, strict=True))
    found = {
        "per_s": count / (ended_s - began_s),
        "period_s": (ended_s - began_s) / count,
        "right": right / max(1, proposed),
    }
    return {**found, "bytes": (after - before) / count, "parts": seconds_of(tokens.log, number)}


def pipeline(parts: str, window: int) -> dict[str, Any]:
    """Run a cascade on equal inputs, so many of them in flight; of a decoder only the logits are asked for."""
    cascade, log = graphcut.open_cascade(parts), RunLog(3, 3, is_tracing=True)
    tensors = {name: cascade.tensors[name] for name in cascade.manifest.reads}
    dims, outputs = cascade.manifest.dims, [name for name in cascade.manifest.writes if name == "logits"] or None
    feed = {
        name: np.ones([dims.get(str(dim), dim) for dim in tensor.shape or ()], tensor.dtype)
        for name, tensor in tensors.items()
    }
    number = REQUESTS if window > 1 else ALONE
    config = SessionConfig(threads=1)
    answers = stream(
        cascade, [feed] * number, via="ray", config=config, log=log, balanced=False, window=window, outputs=outputs
    )
    ends_s = [time.perf_counter() for _ in answers]
    period_s = (ends_s[-1] - ends_s[WARM]) / (len(ends_s) - 1 - WARM)
    return {"period_s": period_s, "parts": seconds_of(log, WARM + 1)}


if __name__ == "__main__":
    word, path, *numbers = sys.argv[1:]
    print(json.dumps({"decode": decode, "repeat": repeat, "pipeline": pipeline}[word](path, *map(int, numbers))))
