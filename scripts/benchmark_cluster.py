"""`scripts/benchmark cluster`: machines made of namespaces (root, iproute2), with links of a known rate.

First decoding beside llama.cpp's RPC: two machines of one core each, half of the layers on each. Then decoding on three
machines whose messages take 5 ms longer, with `lookup` and without. Then what plans and simulations predict for three
machines, beside what is measured. Both sides of a ratio run in turn.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_sizes
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from benchmark_llama import Llama, write_gguf, write_onnx
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
from graphcut.planning.goals import Objective
from graphcut.planning.planner import with_metrics
from graphcut.running.sampling import GREEDY

NETCLUSTER = Path(__file__).with_name("netcluster")
PROMPT, DECODED, ROUNDS = 128, 48, 3
SEQUENCES = (1, 2, 4)
REQUESTS, ALONE, WARM, WINDOW = 24, 12, 4, 6  # ALONE: requests one by one
RATES = ("100mbit", "20mbit")
LATE = "100mbit/5ms"
ADDRESS = "10.77.0.10"
TMP = "/tmp"  # noqa: S108 - each machine has one of its own


class Machines:
    """Machines with Ray. The driver and the first device are on the first one.

    Those that are on one core get equal shares of it, whatever the others do: 1 ms of each 2 ms for two of them.
    """

    def __init__(self, rates: Sequence[str], cores: Sequence[int]) -> None:
        self.count, self._cores = len(rates), cores
        name = f"graphcut-benchmark-{os.getpid()}"
        self._groups = [limited(f"{name}-{i}", cores.count(core)) for i, core in enumerate(cores)]
        kept = {Path(sys.prefix), Path(__file__).resolve().parent.parent}
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "TMPDIR"}},
            "NETCLUSTER": f"/run/{name}",
            "KEEP": ":".join(map(str, kept)),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 64,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(graphcut.__file__).resolve().parent.parent),
        }
        self.net("up", self.count, *rates)

    def net(self, *words: object) -> str:
        """What `netcluster` prints."""
        command = [str(NETCLUSTER), *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=200)
        if done.returncode:
            sys.exit(f"netcluster {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def on(self, machine: int, command: str) -> str:
        """What a command prints on a machine, on its core and in its control group."""
        join = f"echo $$ >{self._groups[machine]}/cgroup.procs && taskset -c {self._cores[machine]}"
        return self.net("on", machine, f"{join} {command}")

    def start(self, machine: int, command: str) -> None:
        """Run a command in the same way until the machines end."""
        background = f"{command} >{TMP}/started.log 2>&1 </dev/null & sleep 2"
        self.on(machine, f"bash -c {shlex.quote(background)}")

    def down(self) -> None:
        """End all processes, and remove the machines."""
        self.net("down")
        time.sleep(1)  # until the control groups are empty
        for group in self._groups:
            group.rmdir()

    def start_ray(self) -> None:
        """Start Ray; the machines are the devices a, b, c."""
        for machine in range(self.count):
            role = "--head --port=6379 --include-dashboard=false" if not machine else f"--address={ADDRESS}:6379"
            device = json.dumps({f"dev:{'abc'[machine]}": 1})
            options = f"--node-ip-address=10.77.0.1{machine} --num-cpus=1 --object-store-memory=200000000"
            self.on(machine, f"ray start {role} {options} --resources='{device}'")

    def put(self, path: Path) -> None:
        """Copy a file or a folder into /tmp of all machines."""
        for machine in range(self.count):
            target = Path(self.net("tmp", machine).strip()) / path.name
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)

    def carried(self) -> int:
        """The bytes that all machines have received."""
        return sum(map(int, re.findall(r"received (\d+)", self.net("bytes"))))

    def measured(self, *words: object) -> dict[str, Any]:
        """What this script measures on the first machine, and the bytes that crossed meanwhile."""
        before = self.carried()
        found = self.on(0, f"python {Path(__file__).resolve()} {' '.join(map(str, words))}")
        return {**json.loads(found.splitlines()[-1]), "carried": self.carried() - before}


@contextmanager
def machines(rates: Sequence[str], cores: Sequence[int]) -> Iterator[Machines]:
    """Machines with links of these rates, each on a core of this one."""
    made = Machines(rates, cores)
    try:
        yield made
    finally:
        made.down()


def limited(name: str, sharing: int) -> Path:
    """A control group that has one of so many equal shares of a core, before the other programs of this machine."""
    root = Path("/sys/fs/cgroup")
    old = root / "cpu"
    group = (old if old.is_dir() else root) / name
    group.mkdir(exist_ok=True)
    if old.is_dir():  # cgroup v1
        (group / "cpu.cfs_period_us").write_text(f"{1000 * sharing}")
        (group / "cpu.cfs_quota_us").write_text("1000" if sharing > 1 else "-1")
        (group / "cpu.shares").write_text("262144")
    else:
        (group / "cpu.max").write_text(f"{1000 if sharing > 1 else 'max'} {1000 * sharing}")
        (group / "cpu.weight").write_text("10000")
    return group


def bench_cluster(folder: Path, *, small: bool, llama_cpp: Path | None) -> None:
    """All benchmarks."""
    if os.geteuid() or shutil.which("tc") is None:
        sys.exit("needs root and iproute2")
    llama = Llama(hidden=256, layers=4, heads=4, width=512) if small else Llama()
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
    """Tokens of text that repeats and of text that does not, with `lookup` and without, beside what is planned."""
    write_onnx(llama, folder / "late.onnx")
    model = graphcut.load(folder / "late.onnx", dims={"batch": 1, "seq": 1, "past": PROMPT, "total": PROMPT + 1})
    trial = Trial("late", model, "decode", 1, [("repeat", f"{TMP}/late", *way) for way in product((0, 1), (0, 1))])
    found: dict[tuple[object, ...], list[dict[str, Any]]] = {tuple(words[2:]): [] for words in trial.runs}
    with machines([LATE] * 3, [0, 1, 1]) as made:
        made.start_ray()
        cluster = measured_cluster(made)
        shutil.rmtree(folder / "late", ignore_errors=True)
        graphcut.split(trial.model, trial.planned(cluster), folder / "late")
        made.put(folder / "late")
        for _ in range(ROUNDS):
            for words in trial.runs:
                found[tuple(words[2:])].append(made.measured(*words))
    latency_ms = ", ".join(f"{one.name} {one.latency_s * 1e3:.1f}" for one in cluster.devices)
    print(f"three machines, {LATE}, {4 * DECODED} tokens decoded; latency measured in ms: {latency_ms}")
    for is_drawn, what in enumerate(("that repeats", "that does not")):
        without, looked_up = found[0, is_drawn], found[1, is_drawn]
        times = fitted(trial, cluster, without).times
        planned_per_s = 1 / times.latency_s if times is not None else 0.0
        ratios = sorted(b["per_s"] / a["per_s"] for a, b in zip(without, looked_up, strict=True))
        per_s = [statistics.median(one["per_s"] for one in own) for own in (without, looked_up)]
        print(
            f"text {what:14} {per_s[0]:6.1f} tokens/s (planned {planned_per_s:.1f}), with lookup {per_s[1]:6.1f}:",
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
    number = (2 if is_period else 1) * (PROMPT + DECODED - 1) if is_decoder else REQUESTS if is_period else ALONE
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


def repeat(parts: str, has_lookup: int, is_drawn: int = 0) -> dict[str, Any]:
    """Decode a sequence whose prompt repeats, and what follows, too, unless it is drawn."""
    sampling, draft = Sampling(temperature=float(is_drawn)), "lookup" if has_lookup else None
    return decoded(parts, [[5, 6, 7, 8, 9, 11] * 8], 4 * DECODED, sampling, draft)


def decoded(
    parts: str,
    prompts: list[list[int]],
    most: int,
    sampling: Sampling = GREEDY,
    draft: Literal["lookup"] | None = None,
) -> dict[str, Any]:
    """Decode so many tokens after each prompt."""
    number, how = len(prompts), SessionConfig(threads=1)
    tokens = graphcut.generate(parts, prompts, max_tokens=most, sampling=sampling, via="ray", config=how, draft=draft)
    tokens.log.is_tracing = True
    stream = iter(tokens)
    for _ in islice(stream, number):
        pass
    began_s, before = time.perf_counter(), carried()
    count = sum(1 for _ in islice(stream, number * (most - 1)))
    ended_s, after = time.perf_counter(), carried()
    tokens.close()
    found = {"per_s": count / (ended_s - began_s), "period_s": (ended_s - began_s) / count}
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
