"""`scripts/benchmark cluster`: machines made of namespaces (root, iproute2), with links of a known rate.

First decoding beside llama.cpp's RPC: two machines of one core each, half of the layers on each. Then what plans and
simulations predict for three machines, beside what is measured. Both sides of a ratio run in turn.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_llama import Llama, write_gguf, write_onnx
from msgspec.structs import replace

import graphcut
from graphcut import Across, Device, Into, Limits, Model, Plan, SessionConfig, demos, stream
from graphcut.costs.weighing import weigh
from graphcut.planning.cluster import Cluster
from graphcut.planning.planner import with_metrics
from graphcut.running.run_log import RunLog
from graphcut.simulating.scenario import scenario_of_plan
from graphcut.simulating.simulator import simulate

NETCLUSTER = Path(__file__).with_name("netcluster")
PROMPT, DECODED, ROUNDS = 128, 48, 3
SEQUENCES = (1, 2, 4)
REQUESTS, WARM = 24, 4
RATES = ("100mbit", "20mbit")
ADDRESS = "10.77.0.10"
TMP = "/tmp"  # noqa: S108 - each machine has one of its own


class Machines:
    """Machines with Ray. The driver and the first device are on the first one.

    Those that are on one core get equal shares of it, whatever the others do: 1 ms of each 2 ms for two of them.
    """

    def __init__(self, rates: Sequence[str], cores: Sequence[int]) -> None:
        self.count, self._cores = len(rates), cores
        self._groups = [limited(f"graphcut-{i}", cores.count(core)) for i, core in enumerate(cores)]
        kept = {Path(sys.prefix), Path(__file__).resolve().parent.parent}
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "TMPDIR"}},
            "NETCLUSTER": f"/run/graphcut-benchmark-{os.getpid()}",
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
        """What a command prints on a machine, on its core."""
        join = f"echo $$ >{self._groups[machine]}/cgroup.procs && taskset -c {self._cores[machine]}"
        return self.net("on", machine, f"{join} {command}")

    def start(self, machine: int, command: str) -> None:
        """Run a command until the machines end."""
        background = f"{{ taskset -c {self._cores[machine]} {command} >{TMP}/started.log 2>&1 </dev/null & }}; sleep 2"
        self.net("on", machine, background)

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
    """Both benchmarks."""
    if os.geteuid() or shutil.which("tc") is None:
        sys.exit("needs root and iproute2")
    llama = Llama(hidden=256, layers=4, heads=4, width=512) if small else Llama()
    bench_rival(folder, llama, llama_cpp)
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
    print(f"two machines of one core, 100 Mbit/s, a prompt of {PROMPT}, {DECODED} decoded, medians of {ROUNDS} rounds")
    print(f"{'':46} {'tokens/s':>10} {'wire bytes a token':>20}")
    for name, rows in found.items():
        print(f"{name:46} {statistics.median(n for n, _ in rows):10.1f} {statistics.median(n for _, n in rows):20,.0f}")


def rival(made: Machines, how: str) -> tuple[float, float]:
    """Tokens a second of llama.cpp, and bytes a token; what its set-up sends is taken off."""
    base = f"{TMP}/llama-bench -m {TMP}/llama.gguf -p 0 -d {PROMPT} -t 1 -o json {how}"
    carried = []
    for decoded, rounds in ((1, 1), (DECODED, 1)):
        before = made.carried()
        found = json.loads(made.on(0, f"{base} -n {decoded} -r {rounds} 2>/dev/null"))
        carried.append(made.carried() - before)
    return found[0]["avg_ts"], (carried[1] - carried[0]) / (DECODED - 1)


def bench_predictions(folder: Path, *, small: bool) -> None:
    """Three machines, the second and the third on one core. What parts take is that of the same runs."""
    demos.write("unet", folder / "unet.onnx")
    llama = Llama(hidden=256, layers=6, heads=4, width=512) if small else Llama(layers=6, vocab=8000)
    write_onnx(llama, folder / "decoder.onnx")
    print(f"{'three machines':34} {'planned':>9} {'simulated':>9} {'measured':>9}  ratios   wire / boundary bytes")
    for rate in RATES:
        with machines([rate] * 3, [0, 1, 1]) as made:
            made.start_ray()
            made.on(0, f"python -m graphcut cluster measure --seconds 3 -o {TMP}/cluster.toml")
            cluster = graphcut.read_cluster(Path(made.net("tmp", 0).strip()) / "cluster.toml")
            cluster = replace(cluster, devices=tuple(replace(one, threads=1) for one in cluster.devices))
            for name, dims, objective in (
                ("unet", {"batch": 8}, "throughput"),
                ("decoder", {"batch": 1, "seq": 1, "past": PROMPT, "total": PROMPT + 1}, "decode"),
            ):
                model = graphcut.load(folder / f"{name}.onnx", dims=dims)
                _predicted(
                    made,
                    folder / f"{name}-{rate}",
                    model,
                    Across(cluster, objective, 2 if objective == "decode" else 1),
                )


def _predicted(made: Machines, folder: Path, model: Model, goal: Across) -> None:
    analysis, costs = graphcut.analyze(model), weigh(model, model.dims)
    parts = graphcut.plan(analysis, Into(3), costs=costs, limits=Limits(recompute="never")).parts

    def planned(cluster: Cluster) -> Plan:
        devices = sorted(cluster.devices, key=lambda one: one.name)
        bare = Plan(replace(goal, cluster=cluster), model.graph, parts, tuple(devices), dims=model.dims, model=model)
        return with_metrics(analysis, bare, costs)

    first = planned(goal.cluster)
    graphcut.split(model, first, folder)
    made.put(folder)
    is_decoder, path = goal.objective == "decode", f"{TMP}/{folder.name}"
    # As many in flight as planned, and one.
    runs = [("decode", path, n) for n in (2, 1)] if is_decoder else [("pipeline", path, 8, n) for n in (6, 1)]
    seen = [[made.measured(*words) for words in runs] for _ in range(ROUNDS + 1)]
    for i, (what, window) in enumerate((("period", None if is_decoder else 6), ("latency", 1))):
        found = [both[i] for both in seen[1:]]
        run_s = [statistics.median(own) for own in zip(*(one["parts"] for one in found), strict=True)]
        speeds = [part.run_s / seconds for part, seconds in zip(first.metrics, run_s, strict=True)]
        again = planned(replace(goal.cluster, devices=tuple(map(_faster, first.devices, speeds))))
        scenario, times = scenario_of_plan(again, model, None), again.times
        assert times is not None  # noqa: S101 - it is a plan for a cluster
        planned_s = times.objective(goal) if what == "period" else times.latency_s
        simulated_s = 1 / simulate(scenario, requests=100, window=window).per_s
        found_s = statistics.median(one["period_s"] for one in found)
        # What crosses in the whole run; the first device is where the driver is, so the inputs do not.
        sent = sum(one.sent_bytes for one in again.metrics) + sum(one.output_bytes for one in again.metrics[1:])
        number = (2 - i) * (PROMPT + DECODED - 1) if is_decoder else (REQUESTS, 2 * WARM)[i]
        wire = statistics.median(one["carried"] for one in found) / (sent * number)
        print(
            f"{folder.name:24} {what:9} {planned_s * 1e3:6.1f} ms {simulated_s * 1e3:6.1f} ms {found_s * 1e3:6.1f} ms",
            f"{found_s / planned_s:6.2f} {found_s / simulated_s:6.2f}   {wire:.2f}",
            flush=True,
        )


def _faster(device: Device, times: float) -> Device:
    speeds = {"flops_per_s": device.flops_per_s * times, "bytes_per_s": device.bytes_per_s * times}
    return replace(device, **speeds, dispatch_s=device.dispatch_s / times)


def carried() -> int:
    """The bytes that this machine has received and sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    numbers = line.partition(":")[2].split()
    return int(numbers[0]) + int(numbers[8])


def seconds_of(log: RunLog, parts: int) -> list[float]:
    """What a step of each part took, lately."""
    return [next(total.recent_s for (part, _), total in log.part_totals.items() if part == i) for i in range(parts)]


def decode(parts: str, number: int) -> dict[str, Any]:
    """Decode so many sequences; the prompts are not counted."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 256, PROMPT).tolist() for _ in range(number)]
    tokens = graphcut.generate(parts, prompts, max_tokens=DECODED, via="ray", config=SessionConfig(threads=1))
    stream = iter(tokens)
    for _ in islice(stream, number):
        pass
    began_s, before = time.perf_counter(), carried()
    count = sum(1 for _ in islice(stream, number * (DECODED - 1)))
    ended_s, after = time.perf_counter(), carried()
    tokens.close()
    found = {"per_s": count / (ended_s - began_s), "period_s": (ended_s - began_s) / count}
    return {**found, "bytes": (after - before) / count, "parts": seconds_of(tokens.log, tokens.log.parts)}


def pipeline(parts: str, batch: int, window: int) -> dict[str, Any]:
    """Run a cascade on equal inputs, so many of them in flight."""
    cascade, log = graphcut.open_cascade(parts), RunLog(3, 3)
    tensors = {name: cascade.tensors[name] for name in cascade.manifest.reads}
    feed = {name: np.ones((batch, *(tensor.shape or ())[1:]), tensor.dtype) for name, tensor in tensors.items()}
    number = REQUESTS if window > 1 else 2 * WARM
    config = SessionConfig(threads=1)
    answers = stream(cascade, [feed] * number, via="ray", config=config, log=log, balanced=False, window=window)
    ends = [(time.perf_counter(), carried()) for _ in answers]
    (began_s, before), (ended_s, after) = ends[WARM], ends[-1]
    count = len(ends) - 1 - WARM
    return {"period_s": (ended_s - began_s) / count, "bytes": (after - before) / count, "parts": seconds_of(log, 3)}


if __name__ == "__main__":
    word, path, *numbers = sys.argv[1:]
    print(json.dumps({"decode": decode, "pipeline": pipeline}[word](path, *map(int, numbers))))
