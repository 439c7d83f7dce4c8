"""`scripts/benchmark figures`: memory, bytes and time of parts, planned beside measured; bytes simulated, too.

Eight kinds of models in float32, float16, int8 and int4, where the library that converts them changes weights, each cut
by three plans: into two parts of equal time, into parts of at most half of the memory that the whole needs, and over
two unequal devices.

- Memory: each part is opened and run in a process of its own that has a session of one node, as graphcut does it; what
  counts is the peak above that, the largest of three processes. Not counted is the code of libraries: it is the
  process's, as in `graphcut run`. Rows of mapped tables that the run did not read are added: another run may read them.
- Bytes: what the plan and its simulation send, beside what parts write and others read in a run.
- Time: the share of each part in the processor time of all, predicted from the costs that were measured for the model.

One command shows all. 54 of the 88 plans took 370 s of processor time, of which 282 run two at a time, and 738 s beside
six other programs on 2 cores. `--small` halves the widths.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmark_times import LLAMA, MODELS, in_turn_s, made_parts, worst_share

import graphcut
from graphcut import (
    Across,
    Cascade,
    Cluster,
    Device,
    Goal,
    GraphcutError,
    Into,
    Model,
    Plan,
    Scenario,
    SessionConfig,
    SimulatedCluster,
    Within,
    generate_inputs,
    scenario_of_plan,
    simulate,
)
from graphcut.demos import write
from graphcut.demos.drafting import Draft
from graphcut.demos.saving import save
from graphcut.running.stage import Stage
from graphcut.running.values import Value, from_array

PRECISION_NAMES = ("fp32", "fp16", "int8", "int4")
DIMS = {"llama": {"batch": 1, "seq": 64, "past": 0, "total": 64}}
ROUNDS = 3
"""Processes in which each part is opened."""
MOST = 1.15
"""So much of what is measured may be planned."""


class Row(NamedTuple):
    """A plan of a model."""

    memory: Sequence[float]  #: for each part, what was planned to what was measured.
    are_equal: bool  #: the plan and its simulation send what was sent, and say the same of memory.
    worst_share: float  #: how far the predicted share of a part is from its real one, at most.


def bench_figures(folder: Path, *, small: bool) -> None:
    """The table, and how many of its figures miss their goals."""
    print(
        "| model, type | plan | MiB planned | MiB measured | planned to measured | bytes planned; simulated; sent "
        "| shares of time planned | measured | off |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    rows = [row for name in (*KINDS, "llama") for row in bench_model(folder, name, small=small)]
    ratios, shares = [ratio for row in rows for ratio in row.memory], [row.worst_share for row in rows]
    low, high, far = (
        sum(one < 1 for one in ratios),
        sum(one > MOST for one in ratios),
        sum(one > 0.05 for one in shares),
    )
    print(f"\n{len(rows)} plans, {len(ratios)} parts.")
    print(f"Memory, planned to measured: {min(ratios):.2f} to {max(ratios):.2f}; {low} below 1, {high} above {MOST}.")
    print(f"Bytes, or simulated memory: {sum(not row.are_equal for row in rows)} plans differ.")
    print(f"Shares of time: {far} plans more than 5 % off, at most {max(shares):.1%}.")


def bench_model(folder: Path, name: str, *, small: bool) -> Iterator[Row]:
    """The rows of one kind of model."""
    home = folder / name
    home.mkdir()
    save_model(name, home / "fp32.onnx", small=small)
    with ThreadPoolExecutor(2) as both:
        paths = [*both.map(partial(converted, home), PRECISION_NAMES)]
    for precision, path in zip(PRECISION_NAMES, paths, strict=True):
        if path is not None:
            model = graphcut.load(path, dims=DIMS.get(name, {}))
            yield from bench_precision(f"{name}, {precision}", model)


def unet(scale: int) -> Draft:
    """A U-Net with many channels: every level has a skip connection."""
    draft, widths = Draft("unet"), [256 // scale, 512 // scale]
    x, width, skips = draft.reads("image", "float32", [1, 4, 32, 32]), 4, list[tuple[str, int]]()
    draft.returns("mask", "float32", [1, 4, 32, 32])
    for level, wider in enumerate(widths):
        x = rectified(draft.inside(f"down{level}"), x, (width, wider))
        skips.append((x, wider))
        x, width = draft.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), wider
    x = rectified(draft.inside("bottom"), x, (width, width))
    for level, (skip, narrower) in reversed([*enumerate(skips)]):
        up = draft.inside(f"up{level}")
        larger = up.node("Resize", x, "", up.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
        x = rectified(up, up.node("Concat", larger, skip, axis=1), (width + narrower, narrower))
        width = narrower
    draft.node("Sigmoid", draft.inside("head").conv(x, (width, 4), kernel=1), writes="mask")
    return draft


def rectified(at: Draft, x: str, channels: tuple[int, int]) -> str:
    """Two convolutions."""
    before, after = channels
    x = at.node("Relu", at.inside("conv1").conv(x, (before, after)))
    return at.node("Relu", at.inside("conv2").conv(x, (after, after)))


def lstm(scale: int) -> Draft:
    """Four layers of LSTM."""
    draft, width = Draft("lstm"), 768 // scale
    x = draft.reads("x", "float32", [32, 1, width])
    draft.returns("y", "float32", [32, 1, width])
    for layer in range(4):
        at = draft.inside(f"layers.{layer}")
        weights = [at.weight(name, (1, 4 * width, width), scale=width**-0.5) for name in ("weight", "recurrence")]
        made = at.node("LSTM", x, *weights, hidden_size=width)
        x = at.node("Squeeze", made, at.constant(np.array([1])), writes="y" if layer == 3 else "")
    return draft


def save_model(name: str, path: Path, *, small: bool) -> None:
    """Write a model of this kind."""
    if name == "llama":
        options: Mapping[str, Any] = LLAMA
        write("llm", path, **options)
    else:
        save(KINDS[name](2 if small else 1), path)


KINDS: Mapping[str, Callable[[int], Draft]] = {**MODELS, "unet": unet, "lstm": lstm}


def converted(home: Path, precision: str) -> Path | None:
    """The model in this precision, by `graphcut auto`; None if its library can't convert it, or changes no weights."""
    model, parts = home / "fp32.onnx", home / precision
    if precision == "fp32":
        return model
    words = ["auto", model, "--precision", precision, "--num-splits", "1", "--keep", "-o", parts]
    done = subprocess.run([sys.executable, "-m", "graphcut", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{home.name}, {precision}: {done.stderr}", end="", file=sys.stderr)
        return None
    return parts / "models" / f"fp32-clean-{precision}.onnx"


def bench_precision(title: str, model: Model) -> Iterator[Row]:
    """The rows of a model in one precision."""
    table = graphcut.measure(model, threads=1).table
    (whole,) = graphcut.plan(model, Into(1)).memory
    fast, slow = Device(name="fast"), Device(name="slow", flops_per_s=5e10, bytes_per_s=1e10)
    goals: Mapping[str, Goal] = {
        "2 parts": Into(2),
        "half of the memory": Within(whole.needs // 2),
        "2 devices": Across(Cluster(devices=(fast, slow))),
    }
    for what, goal in goals.items():
        try:
            plan = graphcut.plan(model, goal, table=table)
        except GraphcutError as error:
            print(f"{title}, {what}: {error}", file=sys.stderr)
            continue
        yield bench_plan(f"| {title} | {what}", model, plan)


def bench_plan(title: str, model: Model, plan: Plan) -> Row:
    """One row."""
    with tempfile.TemporaryDirectory(dir=model.path.parent) as folder:
        cascade = graphcut.split(model, plan, f"{folder}/parts")
        feeds = generate_inputs(model, sizes=dict(model.dims))
        measured, sent = measured_memory(cascade, feeds, Path(folder))
    scenario = simulated(plan, model)
    planned, bytes_ = [one.needs for one in plan.memory], (plan.received_bytes, simulated_bytes(scenario), sent)
    ratios = [a / b for a, b in zip(planned, measured, strict=True)]
    seconds = [part.run_s for part in plan.metrics], in_turn_s(made_parts(model, plan.parts))
    is_same = planned == [part.memory_bytes for part in scenario.parts]
    row = Row(ratios, is_same and len({*bytes_}) == 1, worst_share(*seconds))
    mib = [" ".join(f"{number / 2**20:.1f}" for number in numbers) for numbers in (planned, measured)]
    share = [" ".join(f"{number / sum(numbers):.1%}" for number in numbers) for numbers in seconds]
    cells = [title, *mib, f"{min(ratios):.2f} to {max(ratios):.2f}", "; ".join(map(str, bytes_)), *share]
    print(" | ".join([*cells, f"{row.worst_share:.1%} |"]), flush=True)
    return row


def simulated(plan: Plan, model: Model) -> Scenario:
    """The scenario of a plan; of one without devices, each part on one of its own."""
    is_placed = isinstance(plan.goal, Across)
    devices = plan.devices if is_placed else [Device(name=f"device {i}") for i in range(len(plan.parts))]
    return scenario_of_plan(plan, model, SimulatedCluster(devices=tuple({one.name: one for one in devices}.values())))


def simulated_bytes(scenario: Scenario) -> int:
    """What parts receive from others in a simulated request."""
    names = {device.name for device in scenario.cluster.devices}
    received = sum(link.bytes for link in simulate(scenario, requests=1, window=1).links if link.target in names)
    return received - sum(
        scenario.tensor_bytes.get(name, 0) for part in scenario.parts for name in part.reads if name in scenario.inputs
    )


def measured_memory(cascade: Cascade, feeds: Mapping[str, np.ndarray], folder: Path) -> tuple[list[int], int]:
    """The peak of each part in a process of its own, and the bytes that parts wrote and others read."""
    values, found = dict(feeds), list[int]()
    for index, part in enumerate(cascade.parts):
        fed: dict[str, Any] = {name: values[name] for name in part.reads}
        homes = [folder / f"{index}.{i}" for i in range(ROUNDS)]
        for home in homes:
            home.mkdir()
            np.savez(home / "fed.npz", **fed)
        with ThreadPoolExecutor(2) as both:
            found.append(max(both.map(partial(measured_peak, cascade, index), homes)))
        with np.load(homes[0] / "made.npz") as file:
            values |= {name: file[name] for name in file.files}
    writer = {name: i for i, part in reversed([*enumerate(cascade.parts)]) for name in part.writes}
    read = [(name, i) for i, part in enumerate(cascade.parts) for name in part.reads]
    return found, sum(values[name].nbytes for name, i in read if writer.get(name, i) != i)


def measured_peak(cascade: Cascade, index: int, home: Path) -> int:
    """What `measure_part` prints in a process of its own."""
    words = [sys.executable, __file__, str(cascade.root), str(index), str(home)]
    return int(subprocess.run(words, check=True, capture_output=True).stdout)


def measure_part(root: str, index: str, folder: str) -> None:
    """Open a part and run it; print by how much that raises the memory of this process, which has a small part open."""
    from graphcut.running.process_memory import PeakMemory, resident_bytes, return_freed_memory, return_large_blocks

    cascade = graphcut.open_cascade(root)
    with np.load(f"{folder}/fed.npz") as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    gc.disable()
    return_large_blocks()
    small, fed = opened(small_cascade(Path(folder)), 0, {"x": np.ones(1, np.float32)})
    small.step(fed)
    return_freed_memory()
    code, before, peak = mapped_bytes(".so", "Rss"), resident_bytes(), PeakMemory()
    stage, fed = opened(cascade, int(index), arrays)
    most = peak.bytes - (mapped_bytes(".so", "Rss") - code)
    peak = PeakMemory()
    stage.step(fed)  # what it reads of mapped weights is there from the start in the second run
    written = stage.step(fed)
    most = max(most, peak.bytes - (mapped_bytes(".so", "Rss") - code))
    print(most - before + mapped_bytes(root, "Size") - mapped_bytes(root, "Rss"))
    arrays = {name: value.numpy() for name, value in written.items()}
    np.savez(f"{folder}/made.npz", **arrays)


def opened(cascade: Cascade, index: int, arrays: Mapping[str, np.ndarray]) -> tuple[Stage, Mapping[str, Value]]:
    """A part, and what it is fed."""
    fed = {name: from_array(array.copy(), cascade.tensors[name]) for name, array in arrays.items()}
    return Stage(cascade, cascade.parts[index], config=SessionConfig(threads=1, arena=False)), fed


def small_cascade(folder: Path) -> Cascade:
    """A part of one node."""
    draft = Draft("small")
    draft.returns("y", "float32", [1])
    draft.node("Relu", draft.reads("x", "float32", [1]), writes="y")
    save(draft, folder / "small.onnx")
    model = graphcut.load(folder / "small.onnx")
    return graphcut.split(model, graphcut.plan(model, Into(1)), folder / "small.parts", force=True)


def mapped_bytes(name: str, field: str) -> int:
    """The sum of a field of this process's mappings of files with this in their path."""
    number, is_one = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_one = name in line
        elif is_one and (found := re.match(rf"{field}: +(\d+) kB", line)):
            number += int(found[1]) * 1024
    return number


if __name__ == "__main__":
    measure_part(*sys.argv[1:])
