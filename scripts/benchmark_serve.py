"""`scripts/benchmark serve`: OpenAI's client against `examples/serve`, with parts on threads and on three machines.

Tokens a second, the time to the first token, fairness, processor time of a token (server, HTTP included), whether texts
are those of one client; what the others get when half of the clients hang up, and when a worker is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from benchmark_llama import Llama, write_onnx

import graphcut
from graphcut import Across, Cluster, Device, Into

SERVE = Path(__file__).resolve().parent.parent / "examples/serve/serve.py"
# On a busy machine Ray Serve's proxy takes longer to start than the 5 s it is given.
PATIENT = {f"RAY_SERVE_PROXY_{what}_CHECK_TIMEOUT_S": "300" for what in ("READY", "HEALTH")}
CLIENTS = (1, 2, 4, 8, 16, 32)
TOKENS, PORT = 48, 8124
TMP = "/tmp"  # noqa: S108 - each machine has one of its own


def bench_serve(folder: Path, *, small: bool) -> None:
    """Both ways to serve; the machines need root and iproute2."""
    sizes = {"hidden": 512, "layers": 6, "heads": 8, "width": 1408, "vocab": 8192} if small else {}
    llama = Llama(**sizes, context=1024)
    write_onnx(llama, folder / "llama.onnx")
    write_tokenizer(llama.vocab, folder / "tokenizer.json")
    model = graphcut.load(folder / "llama.onnx")
    graphcut.split(model, Into(4), folder / "served")
    with served_here(folder / "served") as (mark, kill):
        report("four parts on threads", asked, mark, kill)
    shutil.rmtree(folder / "served")
    if os.geteuid() or shutil.which("tc") is None:
        print("three machines: needs root and iproute2")
    else:
        bench_machines(model, folder)


def bench_machines(model: graphcut.Model, folder: Path) -> None:
    """A part on each of three machines, the second and the third on one core."""
    from benchmark_machines import machines

    devices = tuple(Device(name=name, threads=1) for name in "abc")
    made = replace(graphcut.plan(model, Into(3)), goal=Across(Cluster(devices=devices)), devices=devices)
    graphcut.split(model, made, folder / "served")
    with machines(["100mbit"] * 3, [0, 1, 1]) as made:
        made.start_ray()
        made.put(folder / "served")
        own = " ".join(f"{name}={value}" for name, value in PATIENT.items())
        made.start(0, f"env {own} python {SERVE} {TMP}/served --via ray --most 32 --port {PORT}")
        script = Path(__file__).resolve()
        report(
            "three machines, 100 Mbit/s",
            lambda *words: json.loads(made.on(0, f"python {script} {' '.join(map(str, words))}").splitlines()[-1]),
            made.environment["NETCLUSTER"],
            lambda: made.net("on", 2, "pkill -KILL -f '[r]ay::RemoteWorker'"),
        )


@contextmanager
def served_here(parts: Path) -> Iterator[tuple[str, Callable[[], object] | None]]:
    """A server on this machine: a mark of its processes, and how a worker is killed, which can't be on threads."""
    words = [sys.executable, SERVE, parts, "--most", "32", "--port", str(PORT)]
    mark = f"BENCHMARK={parts}"
    own = {"BENCHMARK": str(parts), "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0", **PATIENT}
    with (parts.parent / "log").open("wb") as log:
        process = subprocess.Popen(list(map(str, words)), env={**os.environ, **own}, stdout=log, stderr=log)
    try:
        yield mark, None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def report(title: str, ask: Callable[..., dict[str, Any]], mark: str, kill: Callable[[], object] | None) -> None:
    """Print what is measured; `ask` runs clients where the server is."""
    ask("ready", 1)
    texts = ask("clients", 1, 1)["texts"]  # workers start
    print(
        f"{title}\nclients  tokens/s  first token: median, worst  slowest/fastest client  ms of processor  other texts"
    )
    for number in CLIENTS:
        before = processor_s(mark)
        found = ask("clients", number, 2)
        per_token = (processor_s(mark) - before) / found["tokens"]
        texts = {**found["texts"], **texts}
        differ = sum(texts[one] != text for one, text in found["texts"].items())
        print(
            f"{number:7} {found['per_s']:9.1f} {found['first_s']:14.3f} {found['worst_s']:10.3f} s"
            f" {found['fairness']:20.2f} {per_token * 1e3:22.2f} {differ:12}",
            flush=True,
        )
    found = ask("cancels", 8, 1)
    print(f"half of 8 hang up: the others {found['before_s'] * 1e3:.0f} to {found['after_s'] * 1e3:.0f} ms a token")
    if kill is not None:
        whole = ask("clients", 8, 6)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, "clients", 8, 6)
            time.sleep(4)  # they start, and need some seconds more than that
            kill()
            is_late = asking.done()
            found = asking.result()
        if is_late:
            sys.exit("the worker was killed after the last answer: this machine needs more requests")
        differ = sum(whole["texts"][one] != text for one, text in found["texts"].items())
        pauses = f"longest pause {found['pause_s']:.1f} s, {whole['pause_s']:.1f} s without"
        print(f"a worker killed under 8: {pauses}; {differ} other texts of {len(found['texts'])}", flush=True)


def processor_s(mark: str) -> float:
    """The processor seconds of all processes with `mark` in their environment."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def write_tokenizer(vocabulary: int, path: Path) -> None:
    """A word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


def asked(word: str, *numbers: int) -> dict[str, Any]:
    """What clients measure, in a process of their own."""
    done = subprocess.run(
        [sys.executable, __file__, word, *map(str, numbers)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# What clients do.


def ready() -> dict[str, Any]:
    """Wait for the server."""
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30):
                return {}
        except OSError:
            time.sleep(0.5)
    sys.exit("the server does not start")


def said(seed: int, tokens: int = TOKENS, *, until: int | None = None) -> tuple[str, list[float]]:
    """The text after a prompt drawn with a seed, and when each piece came; after `until` pieces the client hangs up."""
    import openai

    prompt = np.random.default_rng(seed).integers(3, 8000, 16 + 8 * (seed % 7)).tolist()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0, timeout=300)
    times, text = [time.perf_counter()], ""
    with client.completions.create(model="any", prompt=prompt, max_tokens=tokens, temperature=0, stream=True) as pieces:
        for piece in pieces:
            times.append(time.perf_counter())
            text += piece.choices[0].text if piece.choices else ""
            if len(times) - 1 == until:
                break
    return text, times


def clients(number: int, requests: int) -> dict[str, Any]:
    """So many clients at once, each with so many requests one after the other; they begin 50 ms apart."""

    def one(index: int) -> list[tuple[int, str, list[float]]]:
        time.sleep(index * 0.05)
        return [(seed, *said(seed)) for seed in range(index, index + 100 * requests, 100)]

    with ThreadPoolExecutor(number) as pool:
        found = list(pool.map(one, range(number)))
    rows = [row for own in found for row in own]
    firsts = [times[1] - times[0] for _, _, times in rows]
    speeds = [sum(len(times) - 1 for _, _, times in own) / (own[-1][2][-1] - own[0][2][0]) for own in found]
    tokens = TOKENS * len(rows)
    wall_s = max(times[-1] for _, _, times in rows) - min(times[0] for _, _, times in rows)
    return {
        "tokens": tokens,
        "per_s": tokens / wall_s,
        "first_s": statistics.median(firsts),
        "worst_s": max(firsts),
        "fairness": min(speeds) / max(speeds),
        "pause_s": max(b - a for _, _, times in rows for a, b in pairwise(times[1:])),
        "texts": {str(seed): text for seed, text, _ in rows},
    }


def cancels(number: int) -> dict[str, Any]:
    """Half of the clients hang up after 12 tokens: what a token takes the others before and after."""
    with ThreadPoolExecutor(number) as pool:
        rows = list(pool.map(lambda i: said(i, 96, until=12 if i % 2 else None)[1], range(number)))
    gone = max(rows[i][-1] for i in range(1, number, 2))
    kept = rows[::2]

    def a_token(times: Sequence[float]) -> float:
        return (times[-1] - times[0]) / (len(times) - 1)

    before = [a_token([t for t in times[1:] if t <= gone]) for times in kept]
    after = [a_token([t for t in times if t > gone]) for times in kept]
    return {"before_s": statistics.median(before), "after_s": statistics.median(after)}


if __name__ == "__main__":
    word, *numbers = sys.argv[1:]
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "ready": lambda _: ready(),
        "clients": clients,
        "cancels": lambda number, _: cancels(number),
    }
    print(json.dumps(ways[word](*map(int, numbers))))
