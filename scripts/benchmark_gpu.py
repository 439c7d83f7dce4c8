"""`scripts/benchmark gpu`: parts on one GPU beside the whole model, and memory planned for it beside what it takes.

Tensors between parts on one GPU stay there, so that a run copies what the whole model copies: its inputs and outputs.
Latencies are ratios of neighbours in time: all ways are loaded in one process and take turns, input by input.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from ctypes import CDLL, Structure, byref, c_ulonglong, c_void_p
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort
from benchmark_run import LARGE, MIB, SMALL, feeds_of, row
from benchmark_times import MODELS
from msgspec.structs import replace

import graphcut
from graphcut import Across, Cascade, Cluster, Device, Into, Limits, Runner, SessionConfig, generate_inputs
from graphcut.demos.saving import save
from graphcut.running.in_process.sequential import input_values
from graphcut.running.stage import Stage, session_options

PROVIDER = "CUDAExecutionProvider"
DIMS = {"batch": 1, "seq": 64, "past": 0, "total": 64}
PARTS = (1, 2, 4, 12)
TURNS = 61
TOKENS = 48

Feeds = Mapping[str, Any]


def bench_gpu(folder: Path, *, small: bool) -> None:
    """Everything; or one line without a GPU."""
    if PROVIDER not in ort.get_available_providers():
        print(f"not run: this ONNX Runtime has no {PROVIDER} (pip install onnxruntime-gpu)")
        return
    model = folder / "resnet.onnx"
    save(MODELS["resnet50"](8), model)
    try:
        ort.InferenceSession(model, session_options(SessionConfig()), providers=[PROVIDER], enable_fallback=0)
    except RuntimeError as error:
        print(f"not run: {PROVIDER} can't be started: {' '.join(str(error).split())[:200]}")
        return
    print(f"ONNX Runtime {ort.__version__}, {card()}; {TURNS} turns, medians")
    cases = dict(made_models(folder, small=small))
    for name, (path, dims) in cases.items():
        bench_model(name, path, dims, folder / name)
    bench_memory(cases, folder)


def card() -> str:
    """The name of the first GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def made_models(folder: Path, *, small: bool) -> Iterator[tuple[str, tuple[Path, Mapping[str, int]]]]:
    """By name the models, and numbers for their symbols."""
    for kind in ("float32", "float16"):
        path = folder / f"decoder-{kind}.onnx"
        words = [sys.executable, "-m", "graphcut", "demo", "llm", *(SMALL if small else LARGE), "--dtype", kind]
        subprocess.run([*words, "-o", str(path)], check=True, capture_output=True)
        yield f"decoder {kind}", (path, DIMS)
    for name in ("resnet50", "vit"):
        path = folder / f"{name}.onnx"
        save(MODELS[name](2 if small else 1), path)
        yield name, (path, {})


def bench_model(name: str, path: Path, dims: Mapping[str, int], folder: Path) -> None:
    """Latencies and copies of a model, and of a decoder its tokens."""
    folder.mkdir()
    model = graphcut.load(path, dims=dims)
    analysis = graphcut.analyze(model)
    # A GPU takes microseconds for any node, however cheap, and nothing for a tensor that stays.
    plans = {n: graphcut.plan(analysis, Into(n), limits=Limits(recompute="never")) for n in PARTS}
    cut = {n: graphcut.split(model, plan, folder / f"parts{n}") for n, plan in plans.items()}
    feeds = {f", {seq} tokens": feeds_of(model, seq) for seq in (1, 64, 512)} if dims else {"": generate_inputs(model)}
    session = ort.InferenceSession(path, session_options(SessionConfig()), providers=[PROVIDER])
    with ExitStack() as stack:
        runners = {n: stack.enter_context(Runner(cut[n], config=SessionConfig(provider=PROVIDER))) for n in cut}
        for what, feed in feeds.items():
            bench_latency(f"{name}{what}", session, runners, feed)
    if dims:
        bench_tokens(name, path, cut)


def bench_latency(name: str, session: ort.InferenceSession, runners: Mapping[int, Runner], feed: Feeds) -> None:
    """One input at a time, all ways in turn; and the bytes that a run copies."""
    ways: dict[str, Callable[[Feeds], Any]] = {"whole": lambda fed: session.run(None, dict(fed))}
    ways |= {f"{n} part{'s'[: n > 1]}": runner.run for n, runner in runners.items()}
    outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, dict(feed)), strict=True))
    least = sum(np.asarray(one).nbytes for one in (*feed.values(), *outputs.values()))
    worst, copied = dict[str, float](), dict[str, int]()
    for way, runner in zip(list(ways)[1:], runners.values(), strict=True):
        worst[way] = largest_difference(outputs, runner.run(feed))
        before = runner.copied_bytes
        runner.run(feed)
        copied[way] = runner.copied_bytes - before
    times = in_turn_s(ways, feed)
    row(f"{name}: whole", f"{statistics.median(times['whole']) * 1e3:.2f} ms, {least / MIB:.2f} MiB", "-")
    for way in worst:
        ratio = statistics.median(a / b for a, b in zip(times[way], times["whole"], strict=True))
        found = f"{ratio:.3f}, {copied[way] / MIB:.2f} MiB, {worst[way]:.0e}"
        row(f"{name}: {way}: time to whole, copied, difference", found, "<= 1.05" if way == "2 parts" else "-")


def largest_difference(expected: Feeds, found: Feeds) -> float:
    """The largest difference between two sets of outputs, to the largest number of each."""
    pairs = [(np.asarray(expected[name], np.float64), np.asarray(found[name], np.float64)) for name in expected]
    return max(float(abs(a - b).max() / abs(a).max()) for a, b in pairs if a.size)


def in_turn_s(ways: Mapping[str, Callable[[Feeds], Any]], feed: Feeds) -> dict[str, list[float]]:
    """The seconds of each way, over turns in which each runs once."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 3):
        for way, run in ways.items():
            began = time.perf_counter()
            run(feed)
            if turn >= 3:
                times[way].append(time.perf_counter() - began)
    return times


def bench_tokens(name: str, path: Path, cut: Mapping[int, Cascade]) -> None:
    """Tokens of the whole model, whose caches ONNX Runtime keeps on the GPU, and of cascades in turn."""
    prompt = [1 + i % 200 for i in range(64)]
    ways = {"whole": whole_tokens(path, prompt)}
    ways |= {f"{n} part{'s'[: n > 1]}": part_tokens(cascade, prompt) for n, cascade in cut.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    chosen: dict[str, list[int]] = {way: [] for way in ways}
    for _ in range(TOKENS):
        for way, flow in ways.items():
            began = time.perf_counter()
            chosen[way].append(next(flow))
            seconds[way].append(time.perf_counter() - began)
    row(f"{name}: a token, whole", f"{statistics.median(seconds['whole'][8:]) * 1e3:.2f} ms", "-")
    for way in list(ways)[1:]:
        ratio = statistics.median(a / b for a, b in zip(seconds[way][8:], seconds["whole"][8:], strict=True))
        same = sum(a == b for a, b in zip(chosen[way], chosen["whole"], strict=True))
        row(
            f"{name}: a token, {way}, to the whole model",
            f"{ratio:.3f} ({same} of {TOKENS} equal)",
            "<= 1.05" if way == "2 parts" else "-",
        )


def whole_tokens(path: Path, prompt: Sequence[int]) -> Iterator[int]:
    """The next tokens of the whole model, as one would write it with ONNX Runtime alone."""
    session = ort.InferenceSession(path, session_options(SessionConfig()), providers=[PROVIDER])
    pasts = [one for one in session.get_inputs() if one.name.startswith("past_key_values")]
    presents = [one.name.replace("past_key_values", "present") for one in pasts]
    kind = np.float16 if "float16" in pasts[0].type else np.float32
    sizes = [1 if i == 0 else size if isinstance(size, int) else 0 for i, size in enumerate(pasts[0].shape)]
    kept = dict.fromkeys((one.name for one in pasts), ort.OrtValue.ortvalue_from_numpy(np.zeros(sizes, kind)))
    names, fresh, length = {one.name for one in session.get_inputs()}, list(prompt), 0
    while True:
        before, length = length, length + len(fresh)
        fed = {
            "input_ids": np.array([fresh]),
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(before, length)[None],
        }
        binding = session.io_binding()
        for name, array in fed.items():
            if name in names:
                binding.bind_cpu_input(name, array)
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", "cpu")
        for name in presents:
            binding.bind_output(name, "cuda")
        session.run_with_iobinding(binding)
        logits, *made = binding.get_outputs()
        kept = dict(zip((one.name for one in pasts), made, strict=True))
        fresh = [int(logits.numpy()[0, -1].argmax())]
        yield fresh[0]


def part_tokens(cascade: Cascade, prompt: Sequence[int]) -> Iterator[int]:
    """The next tokens, step by step through the parts."""
    config = SessionConfig(provider=PROVIDER)
    with closing(graphcut.generate(cascade, [list(prompt)], max_tokens=TOKENS, workers=1, config=config)) as made:
        yield from (token.token for token in islice(made, TOKENS))


def bench_memory(cases: Mapping[str, tuple[Path, Mapping[str, int]]], folder: Path) -> None:
    """Memory planned for a GPU, beside what it takes to open and run each part in a process of its own."""
    print("memory, in MiB: planned; measured: a first small model, then the part: opened, run; the same again")
    for name, (path, dims) in cases.items():
        model = graphcut.load(path, dims=dims)
        (whole,) = graphcut.plan(model, Across(gpus(1))).memory
        for cluster in (gpus(1), gpus(2, whole.needs - whole.load // 3)):
            plan = graphcut.plan(model, Across(cluster))
            cascade = graphcut.split(model, plan, folder / f"{name}-across-{len(cluster.devices)}")
            for index, planned in enumerate(plan.memory):
                words = [sys.executable, __file__, str(cascade.root), str(index)]
                done = subprocess.run(words, check=False, capture_output=True, text=True)
                mib = f"{planned.needs / MIB:.1f}; {done.stdout.strip() or done.stderr[-200:]}"
                row(f"{name}: part {index + 1} of {len(plan.memory)}", mib, "-")


class MemoryInfo(Structure):
    """What NVML tells of the memory of a device, in bytes."""

    _fields_: ClassVar = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


def gpus(number: int, memory_bytes: int | None = None) -> Cluster:
    """One GPU, as so many devices between which tensors stay where they are."""
    device = Device(name="gpu", provider=PROVIDER, memory_bytes=memory_bytes, flops_per_s=5e13, bytes_per_s=2e12)
    return Cluster(devices=tuple(replace(device, name=f"gpu {i}") for i in range(number)))


def used_mib() -> float:
    """The memory that the first GPU has given to programs."""
    library, device, found = CDLL("libnvidia-ml.so.1"), c_void_p(), MemoryInfo()
    called = (library.nvmlInit_v2(), library.nvmlDeviceGetHandleByIndex_v2(0, byref(device)))
    if any(called) or library.nvmlDeviceGetMemoryInfo(device, byref(found)):
        sys.exit("NVML does not tell the memory of the GPU")
    return found.used / MIB


def measure_part(root: str, index: str) -> None:
    """Open a part and run it, twice; print what a small model takes before, and by how much each time raises it.

    The first time loads the code of kernels.
    """
    cascade, small = graphcut.open_cascade(root), Path(root).parent / "resnet.onnx"
    start = used_mib()
    session = ort.InferenceSession(small, session_options(SessionConfig()), providers=[PROVIDER])
    session.run(None, dict(generate_inputs(graphcut.load(small))))
    found = [used_mib() - start]
    model = graphcut.load(cascade.source)
    values = input_values(cascade, generate_inputs(model, sizes=dict(cascade.manifest.dims)))
    for part in cascade.parts[: int(index)]:
        stage = Stage(cascade, part, config=SessionConfig())
        values |= stage.step(values)
        stage.close()
    for _ in range(2):
        before = used_mib()
        stage = Stage(cascade, cascade.parts[int(index)], config=SessionConfig())
        opened = used_mib() - before
        stage.step(values)
        stage.step(values)
        found += [opened, used_mib() - before]
        stage.close()
        del stage
    print(*(f"{one:.1f}" for one in found))


if __name__ == "__main__":
    measure_part(*sys.argv[1:])
