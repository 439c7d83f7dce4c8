"""`scripts/benchmark faults`: what a run over Ray does when something is lost, on machines made of namespaces.

Three machines with links of 100 Mbit/s. The first one feeds a cascade in two parts, which the two others have. For each
fault: the longest times between answers, what was said, and whether all answers came in order with the right bits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

import numpy as np
import onnx
from benchmark_machines import ADDRESS, NETCLUSTER, TMP, Machines, machines
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import Device, RunLog, SessionConfig, stream

ROWS, WIDTH, LAYERS = 128, 256, 8
PERIOD_S: Final = 0.03  #: between two requests.
BEFORE: Final = 60  #: answers before the fault.
SECONDS: Final = 12  #: of requests for a run.
LONG_S: Final = 0.5  #: times between answers that are shown, and the longest.
LAST: Final = 2  #: the machine that is disturbed.
WORKER: Final = "$(pgrep -f '[r]ay::RemoteWorker')"


def pulled(seconds: float) -> Callable[[Machines], None]:
    """Pull the cable for a time."""

    def disturb(made: Machines) -> None:
        made.net("link", LAST, "down")
        time.sleep(seconds)
        made.net("link", LAST, "up")

    return disturb


def restarted(made: Machines) -> None:
    """Turn the machine off, and start it and Ray on it again."""
    made.net("kill", LAST)
    join(made)


def join(made: Machines) -> None:
    """Start the machine that is off."""
    made.net("start", LAST)
    options = f"--node-ip-address=10.77.0.1{LAST} --num-cpus=1 --object-store-memory=200000000"
    device = json.dumps({"dev:c": 1})
    made.on(LAST, f"ray start --address={ADDRESS}:6379 {options} --resources='{device}'")


FAULTS: Final[dict[str, Callable[[Machines], object]]] = {
    "none": lambda _: None,
    "the process of a worker is killed": lambda made: made.net("on", LAST, f"kill -9 {WORKER}"),
    "it is paused for 3 s": lambda made: made.net("on", LAST, f"kill -STOP {WORKER}; sleep 3; kill -CONT {WORKER}"),
    "the cable is pulled for 1 s": pulled(1),
    "for 5 s": pulled(5),
    "the link goes from 100 to 8 Mbit/s": lambda made: made.net("rate", LAST, "8mbit"),
    "the machine is off, and Ray runs on it again soon": restarted,
    "the machine is off for good": lambda made: made.net("kill", LAST),
    "the cable is pulled for good": lambda made: made.net("link", LAST, "down"),
}
#: the faults after which the machine is off or alone.
FOR_GOOD: Final = {"the machine is off for good", "the cable is pulled for good"}


def bench_faults(folder: Path, *, small: bool) -> None:
    """All faults, one after another, each in a run of its own."""
    write_cascade(folder)
    with machines(["100mbit"] * 3, [0, 1, 1]) as made:
        made.start_ray()
        made.put(folder / "parts")
        print("| fault | longest times between answers | exact, in order | what is printed |\n|---|---|---|---|")
        for name in list(FAULTS)[:3] if small else FAULTS:
            found = disturbed(made, FAULTS[name])
            gaps = ", ".join(f"{gap:.2g} s" for gap in found["gaps"])
            print(f"| {name} | {gaps} | {'yes' if found['exact'] else 'NO'} | {'; '.join(found['said'])} |", flush=True)
            if name in FOR_GOOD:
                restarted(made)
            else:
                made.net("rate", LAST, "100mbit")


def write_cascade(folder: Path) -> None:
    """Layers in two parts, for the devices `b` and `c`: 128 KiB cross from one to the other, 1 KiB are the answer."""
    draw = np.random.default_rng(0)
    weights = [draw.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for _ in range(LAYERS)]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(LAYERS)]
    nodes.append(helper.make_node("ReduceMean", [f"t{LAYERS}"], ["y"], axes=[0], keepdims=1))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "it.onnx")
    model = graphcut.load(folder / "it.onnx")
    plan = graphcut.plan(model, graphcut.At(f"n{LAYERS // 2}"))
    graphcut.split(model, replace(plan, devices=(Device(name="b"), Device(name="c"))), folder / "parts")


def disturbed(made: Machines, disturb: Callable[[Machines], object]) -> dict[str, Any]:
    """What a run says of a fault."""
    began = Path(made.net("tmp", 0).strip()) / "began"
    began.unlink(missing_ok=True)
    command = f"taskset -c 0 python {Path(__file__).resolve()} {TMP}/parts"
    running = Popen([str(NETCLUSTER), "on", "0", command], env=made.environment, stdout=PIPE, stderr=PIPE, text=True)
    while not began.exists():
        if running.poll() is not None:
            sys.exit(running.communicate()[1])
        time.sleep(0.01)
    disturb(made)
    out, error = running.communicate(timeout=300)
    if running.returncode:
        sys.exit(error)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def paced(feeds: list[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The feeds over and over, one in each period; those that are late come at once."""
    began_s = time.perf_counter()
    for i in range(int(SECONDS / PERIOD_S)):
        time.sleep(max(0.0, began_s + i * PERIOD_S - time.perf_counter()))
        yield feeds[i % len(feeds)]


def drive(parts: str) -> dict[str, Any]:
    """Run requests, and compare all answers with those of one process."""
    config, log, said = SessionConfig(threads=1), RunLog(2, 2), list[str]()
    log.notify = lambda text, _: said.append(text)
    draw = np.random.default_rng(1)
    feeds = [{"t0": draw.normal(size=(ROWS, WIDTH)).astype(np.float32)} for _ in range(8)]
    expected = [graphcut.run(parts, feed, config=config)["y"] for feed in feeds]
    times, is_exact = list[float](), True
    for i, answer in enumerate(stream(parts, paced(feeds), via="ray", config=config, log=log)):
        times.append(time.perf_counter())
        is_exact &= isinstance(answer, dict) and np.array_equal(answer["y"], expected[i % len(feeds)])
        if i == BEFORE:
            Path(TMP, "began").touch()
    gaps = np.diff(times[BEFORE:])
    longest = [float(gap) for gap in gaps if gap >= min(LONG_S, gaps.max())]
    return {"gaps": longest, "said": said, "exact": is_exact and len(times) == int(SECONDS / PERIOD_S)}


if __name__ == "__main__":
    print(json.dumps(drive(sys.argv[1])))
