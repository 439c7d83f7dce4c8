"""`scripts/benchmark run`: what running a cascade costs beside the whole model, on a decoder that is made for it.

Latencies are ratios of neighbours in time: all ways are loaded in one process and take turns, input by input. What
needs a process of its own (memory, pipelines) goes through the contest behind `graphcut bench`.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from benchmark_llama import Llama, write_onnx

import graphcut
from graphcut import Cascade, Into, Pipeline, Runner, SessionConfig, bench, generate_inputs
from graphcut.running.in_process.memory_plan import boundary_bytes, part_memory, peak_memory, tensor_sizes
from graphcut.running.stage import session_options

LARGE = [
    "--hidden",
    "1024",
    "--layers",
    "12",
    "--attention-heads",
    "16",
    "--kv-heads",
    "16",
    "--intermediate",
    "2816",
    "--vocab",
    "8192",
    "--external",
]
SMALL = [
    "--hidden",
    "256",
    "--layers",
    "12",
    "--attention-heads",
    "4",
    "--kv-heads",
    "4",
    "--vocab",
    "1024",
    "--external",
]
TURNS = 31
TOKENS = 80
MIB = 1024**2

Feeds = Mapping[str, Any]


def row(what: str, found: str, goal: str) -> None:
    """A line of the table."""
    print(f"{what:<58} {found:>30}   goal: {goal}", flush=True)


def feeds_of(model: graphcut.Model, seq: int, seed: int = 0) -> Feeds:
    """A prompt of so many tokens, and an empty cache."""
    return dict(generate_inputs(model, seed=seed, sizes={"batch": 1, "seq": seq, "past": 0, "total": seq}))


def bench_run(folder: Path, *, small: bool) -> None:
    """Everything."""
    path = folder / "decoder.onnx"
    command = [sys.executable, "-m", "graphcut", "demo", "llm", *(SMALL if small else LARGE), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    model = graphcut.load(path, dims={"batch": 1, "seq": 64, "past": 0, "total": 64})
    analysis = graphcut.analyze(model)
    cut = {n: graphcut.split(model, graphcut.plan(analysis, Into(n)), folder / f"parts{n}") for n in (4, 12)}
    for seq in (8, 64, 128):
        bench_latency(path, cut, feeds_of(model, seq), seq)
    bench_ranks(model, folder)
    bench_contest(cut[4], feeds_of(model, 64))
    bench_memory(cut)
    whole_cut = {1: graphcut.split(model, graphcut.plan(analysis, Into(1)), folder / "parts1")}
    bench_decoding(model, {**whole_cut, **cut})
    bench_4_bits(folder / "llama.onnx", small=small)
    bench_balance(cut[12], model)


def bench_latency(path: Path, cut: Mapping[int, Cascade], feed: Feeds, seq: int) -> None:
    """One input at a time, all ways in turn."""
    with ExitStack() as stack:
        ways = {"whole": whole(path)}
        for number, cascade in cut.items():
            ways[f"{number} parts"] = stack.enter_context(Runner(cascade)).run
        ratios = in_turn(ways, feed)
    for way, goal in {"4 parts": "<= 1.03", "12 parts": "<= 1.05"}.items():
        row(f"{way}, {seq} tokens: latency, to the whole model", f"{ratios[way]:.3f}", goal)


def bench_load(folder: Path, *, small: bool) -> None:
    """`scripts/benchmark load`: memory and time to the first answer, loading included, each in a process of its own."""
    path = folder / "decoder.onnx"
    command = [sys.executable, "-m", "graphcut", "demo", "llm", *(SMALL if small else [*LARGE, "--layers", "18"])]
    subprocess.run([*command, "-o", str(path)], check=True, capture_output=True)
    model = graphcut.load(path)
    cascade = graphcut.split(model, Into(6), folder / "parts", max_shard_bytes=100 * 10**6)
    ways = ["whole-mapped", "parts-in-turn", "parts-in-turn-mapped"]
    weights = f"{model.weight_bytes / MIB:,.0f} MiB of weights, the most of a part"
    row(weights, f"{max(part.weight_bytes for part in cascade.parts) / MIB:,.0f} MiB", "-")
    for one in bench(cascade, feeds_of(model, 8), ways=ways, rounds=3):
        row(f"{one.title}: first answer, peak", f"{one.load_s:.2f} s, {one.peak_bytes / MIB:,.0f} MiB", "-")


def whole(path: Path, threads: int = 0) -> Callable[[Feeds], Any]:
    """The model that was cut, loaded. Its threads don't spin: they would take the cores from whoever comes next."""
    options = session_options(SessionConfig(threads=threads))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))


def bench_ranks(model: graphcut.Model, folder: Path) -> None:
    """One input on two ranks of one thread each; beside them the whole model with one thread and with two."""
    with ExitStack() as stack:
        ways = {f"whole, {threads} threads": whole(model.path, threads) for threads in (1, 2)}
        for mode in ("exact", "sum"):
            ranked = graphcut.split_by_rank(model, folder / mode, ranks=2, mode=mode)
            for via in ("threads", "processes"):
                pipeline = stack.enter_context(Pipeline(ranked, via=via, config=SessionConfig(threads=1)))
                ways[f"2 ranks, {mode}, {via}"] = partial(on_ranks, pipeline, ranked)
        for seq in (512, 64, 1):
            for way, ratio in list(in_turn(ways, feeds_of(model, seq)).items())[1:]:
                goal = "<= 0.65" if seq == 512 and "ranks" in way else "-"
                row(f"{way}, {seq} tokens: latency, to one thread", f"{ratio:.2f}", goal)


def on_ranks(pipeline: Pipeline, cascade: Cascade, feed: Feeds) -> Any:  # noqa: ANN401 - outputs by name
    """One input with an empty cache, whose heads are divided among the ranks."""
    reads = {name: cascade.tensors[name].shape or () for name in cascade.manifest.reads}
    sizes = {name: [size if isinstance(size, int) else 0 for size in shape] for name, shape in reads.items()}
    caches = {name: np.empty([1, *size[1:]], np.float32) for name, size in sizes.items() if name not in feed}
    return pipeline.submit({**{name: feed[name] for name in reads if name in feed}, **caches}).result()


def in_turn(ways: Mapping[str, Callable[[Feeds], Any]], feed: Feeds) -> dict[str, float]:
    """The median ratio of each way to the first, over turns in which each runs once."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 1):
        for way, run in ways.items():
            began = time.perf_counter()
            run(feed)
            if turn:
                times[way].append(time.perf_counter() - began)
    first = times[next(iter(ways))]
    return {way: statistics.median(a / b for a, b in zip(own, first, strict=True)) for way, own in times.items()}


def bench_contest(cascade: Cascade, feed: Feeds) -> None:
    """Every way in a process of its own, three rounds."""
    found = {one.way: one for one in bench(cascade, feed, rounds=3)}
    for one in found.values():
        same = "same bits" if one.difference == 0 else f"within {one.difference:.0e}" if one.difference else "?"
        figures = f"{one.ratio:.2f}  cpu {one.cpu_s / found['whole'].cpu_s:.2f}  {one.peak_bytes / MIB:,.0f} MiB"
        row(f"{one.title} ({same})", one.error or figures, "-")
    ratio = found["processes"].run_s / found["threads"].run_s
    row("processes to threads, throughput", f"{ratio:.3f}", "<= 1.05")


def bench_memory(cut: Mapping[int, Cascade]) -> None:
    """Memory above that of an idle process, parts loaded in turn, to what is predicted for the fullest moment."""
    for number, cascade in cut.items():
        feed = feeds_of(graphcut.load(cascade.source), 64)
        sizes = tensor_sizes(cascade, {name: value.shape for name, value in feed.items()})
        for way in ("parts-in-turn", "parts-in-turn-mapped"):
            (_, found), needs = (
                bench(cascade, feed, ways=[way], rounds=3),
                part_memory(cascade, sizes, prepacked=way == "parts-in-turn"),
            )
            fullest = peak_memory(needs, frozenset()) + boundary_bytes(cascade, sizes)
            ratio, peak = found.peak_bytes / fullest, found.peak_bytes / MIB
            row(f"{number} {found.title}: peak to the fullest moment", f"{ratio:.2f} ({peak:,.0f} MiB)", "0.87 to 1.00")


def bench_decoding(model: graphcut.Model, cut: Mapping[int, Cascade], goal: str = "<= 1.02") -> None:
    """Tokens of the whole model and of cascades in turn; all keep their caches by reference.

    A cascade of one part shows what the loop costs, and the others what the cuts cost.
    """
    for sequences in (1, 8):
        prompts = [[1 + i, 15, 27, 3, 8, 4, 5, 6] for i in range(sequences)]
        ways = {"whole": whole_tokens(model, prompts)}
        ways |= {f"{number} parts": tokens(cascade, prompts) for number, cascade in cut.items()}
        seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(TOKENS):
            found = {way: timed(seconds[way], flow) for way, flow in ways.items()}
            if any(row != found["whole"] for row in found.values()):
                sys.exit("the parts decode other tokens than the whole model")
        for way in list(ways)[1:]:
            pairs = list(zip(seconds[way][8:], seconds["whole"][8:], strict=True))
            time_ratio, cpu_ratio = (statistics.median(own[i] / whole[i] for own, whole in pairs) for i in range(2))
            what = f"a token of {sequences} sequences, {way}: to the whole model"
            row(what, f"{time_ratio:.3f}  cpu {cpu_ratio:.3f}", goal if sequences == 1 else "<= 1.15")
    began = time.perf_counter()
    graphcut.generate(cut[4], prompts, max_tokens=TOKENS, batch=1, workers=1).all()
    gain = (time.perf_counter() - began) / sum(time_s for time_s, _ in seconds["4 parts"])
    row("8 sequences one by one, to a batch", f"{gain:.1f}", "-")


def bench_4_bits(path: Path, *, small: bool) -> None:
    """The same for a llama of 245 million weights in 4 bits, whose caches are written in place."""
    write_onnx(Llama(hidden=256, layers=4, heads=4, width=512, vocab=1024) if small else Llama(), path)
    model = graphcut.load(path, dims={"batch": 1, "seq": 1, "past": 64, "total": 65})
    analysis = graphcut.analyze(model)
    cut = {n: graphcut.split(model, graphcut.plan(analysis, Into(n)), path.with_suffix(f".{n}")) for n in (1, 4)}
    print("4 bits:")
    bench_decoding(model, cut, "<= 1.08")


def timed(seconds: list[tuple[float, float]], flow: Iterator[list[int]]) -> list[int]:
    """The next tokens; the time and the processor time they took are added to `seconds`."""
    began = time.perf_counter(), time.process_time()
    found = next(flow)
    seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return found


def tokens(cascade: Cascade, prompts: list[list[int]]) -> Iterator[list[int]]:
    """The next token of each sequence, step by step through the parts."""
    config = SessionConfig(threads=os.cpu_count() or 1)
    with closing(graphcut.generate(cascade, prompts, max_tokens=TOKENS, workers=1, config=config)) as made:
        flow = iter(made)
        while True:
            yield [token.token for token in islice(flow, len(prompts))]


def whole_tokens(model: graphcut.Model, prompts: list[list[int]]) -> Iterator[list[int]]:
    """The same through the whole model, as one would write it with ONNX Runtime alone."""
    session = ort.InferenceSession(model.path, session_options(SessionConfig()), providers=["CPUExecutionProvider"])
    pasts = [one.name for one in session.get_inputs() if one.name.startswith("past_key_values")]
    presents = [name.replace("past_key_values", "present") for name in pasts]
    start = [size if isinstance(size, int) else 0 for size in model.tensors[pasts[0]].shape or ()]
    rows, length, fresh = len(prompts), 0, np.array(prompts)
    empty = ort.OrtValue.ortvalue_from_numpy(np.zeros([rows, *start[1:]], np.float32))
    kept = dict.fromkeys(pasts, empty)
    while True:
        before, length = length, length + fresh.shape[1]
        fed = {
            "input_ids": fresh,
            "attention_mask": np.ones((rows, length), np.int64),
            "position_ids": np.tile(np.arange(before, length), (rows, 1)),
        }
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in fed.items() if name in model.tensors}
        logits, *made = session.run_with_ort_values(["logits", *presents], {**values, **kept})
        kept = dict(zip(pasts, made, strict=True))
        fresh = logits.numpy()[:, -1].argmax(-1)[:, None]
        yield fresh[:, 0].tolist()


def bench_balance(cascade: Cascade, model: graphcut.Model) -> None:
    """Two workers, one of them stopped half of the time: the even split against parts that change hands."""
    feeds = [feeds_of(model, 64, seed) for seed in range(4)]
    seconds = {balanced: slowed_s(cascade, feeds, balanced=balanced) for balanced in (False, True)}
    row("a worker slowed to half: gain of balancing", f"{seconds[False] / seconds[True]:.2f}", ">= 1.3")


def slowed_s(cascade: Cascade, feeds: list[Feeds], *, balanced: bool) -> float:
    """Seconds for an input once the run has settled."""
    with Pipeline(cascade, via="processes", workers=2, overlap=5, balanced=balanced) as pipeline:
        waiting = [pipeline.submit(feed) for feed in islice(repeated(feeds), 16)]
        for future in waiting:
            future.result()
        with slowed(newest_child()):
            times = [time.perf_counter()]
            flow = [pipeline.submit(feed) for feed in islice(repeated(feeds), 60)]
            for future in flow:
                future.result()
                times.append(time.perf_counter())
    return (times[-1] - times[30]) / (len(times) - 31)


def repeated(feeds: list[Feeds]) -> Iterator[Feeds]:
    """These again and again."""
    while True:
        yield from feeds


def newest_child() -> int:
    """The process that was started last: a worker. Numbers don't tell, they begin anew at their largest."""
    listed = (tasks.read_text().split() for tasks in Path("/proc/self/task").glob("*/children"))
    return max((int(number) for numbers in listed for number in numbers), key=start_ticks)


def start_ticks(process: int) -> int:
    """When a process was started, in clock ticks since the machine was."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])


@contextmanager
def slowed(process: int) -> Iterator[None]:
    """Let a process run every other 10 ms."""
    ended = threading.Event()

    def hinder() -> None:
        while not ended.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.01)
            os.kill(process, signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=hinder)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
