"""`scripts/benchmark decode`: processor time of a token, parts beside the whole model in plain ONNX Runtime."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
from benchmark_llama import Llama, write_onnx

import graphcut
from graphcut import Into, SessionConfig
from graphcut.running.stage import session_options

TOKENS, SKIPPED = 160, 48  # of each sequence, and those at its beginning that are not counted: weights still move
CONTEXTS, PARTS = (32, 1000), (1, 2, 4)
ROUNDS = 5
ONE_THREAD = SessionConfig(threads=1)  # processor time is compared: threads that wait for each other would add to it


def bench_decode(folder: Path, *, small: bool) -> None:
    """One sequence, greedy, after prompts of two lengths; each way makes one token in turn.

    Each length has a process of its own: who gets the memory that another one freed may get its huge pages, too.
    """
    for bits in (32, 4):
        llama, home = llama_of(bits, small=small), folder / f"llama{bits}"
        home.mkdir(exist_ok=True)
        write_onnx(llama, home / "model.onnx")
        (home / "genai_config.json").write_text(json.dumps(genai_config(llama)), encoding="utf-8")
        cut = {n: graphcut.split(home / "model.onnx", Into(n), folder / f"{bits}.{n}", force=True) for n in PARTS}
        for context in CONTEXTS:
            words = [sys.executable, __file__, folder, bits, context, int(small)]
            subprocess.run(list(map(str, words)), check=True)
        bench_lookup(cut[4], f"{bits} bits, 4 parts")


def llama_of(bits: int, *, small: bool) -> Llama:
    """The model that decodes."""
    sizes = {"hidden": 512, "layers": 6, "heads": 8, "width": 1408, "vocab": 8192} if small else {}
    return Llama(**sizes, context=2048, bits=bits)


def bench_ways(folder: Path, bits: int, context: int, *, small: bool) -> None:
    """Every way after a prompt of one length."""
    llama, home = llama_of(bits, small=small), folder / f"llama{bits}"
    prompt = np.random.default_rng(context).integers(3, llama.vocab, context).tolist()
    ways: dict[str, Iterator[int]] = {
        "whole, shared buffer": whole(home / "model.onnx", llama, prompt, shared=True),
        "whole, growing": whole(home / "model.onnx", llama, prompt, shared=False),
    }
    if find_spec("onnxruntime_genai"):
        ways["ONNX Runtime GenAI"] = by_genai(home, prompt)
    ways |= {f"graphcut, {n} parts": parts(graphcut.open_cascade(folder / f"{bits}.{n}"), prompt) for n in PARTS}
    report(f"{bits} bits, context {context}", ways)


def bench_lookup(cascade: graphcut.Cascade, title: str) -> None:
    """Tokens with proposals by `lookup`, beside those without: of text that repeats, and of text that is drawn."""
    drawn = graphcut.Sampling(temperature=1.0)
    for what, sampling in (("repeats", graphcut.Sampling()), ("does not", drawn)):
        seconds: dict[str, list[float]] = {"": [], "lookup": []}
        for _ in range(ROUNDS):
            found = [timed_all(seconds[draft], cascade, sampling, draft or None) for draft in seconds]
        ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
        steps = " to ".join(str(number) for _, number in found)
        same = "the same tokens" if found[0][0] == found[1][0] else "tokens differ"
        print(f"{title}, text {what:9} lookup to without: {ratio:.3f}, {steps} steps, {same}", flush=True)


def timed_all(
    seconds: list[float], cascade: graphcut.Cascade, sampling: graphcut.Sampling, draft: str | None
) -> tuple[list[int], int]:
    """All tokens after a prompt that repeats, and in how many steps; the processor time is added to `seconds`."""
    began, prompt = time.process_time(), [5, 6, 7, 8, 9, 11] * 8
    settings = graphcut.DecodingSettings(workers=1, config=ONE_THREAD)
    if draft is not None:
        settings["draft"] = draft
    made = graphcut.generate(cascade, [prompt], max_tokens=TOKENS, sampling=sampling, **settings)
    (tokens,) = made.all()
    seconds.append(time.process_time() - began)
    return tokens, made.log.answered


def report(title: str, ways: dict[str, Iterator[int]]) -> None:
    """The median over tokens of the processor time of each way, and its ratio to the first one."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TOKENS):
        found = {way: timed(seconds[way], flow.__next__) for way, flow in ways.items()}
        if len(set(found.values())) > 1:
            print(f"  tokens differ: {found}")
    first = next(iter(ways))
    for way, own in seconds.items():
        ratios = [a / b for a, b in zip(own[SKIPPED:], seconds[first][SKIPPED:], strict=True)]
        took = statistics.median(own[SKIPPED:])
        print(f"{title:24} {way:24} {took * 1000:8.3f} ms  {statistics.median(ratios):.3f}", flush=True)


def timed(seconds: list[float], call: Callable[[], int]) -> int:
    """What `call` returns; the processor time it took is added to `seconds`."""
    began = time.process_time()
    found = call()
    seconds.append(time.process_time() - began)
    return found


def parts(cascade: graphcut.Cascade, prompt: list[int]) -> Iterator[int]:
    """The tokens of a cascade, in one worker."""
    with closing(graphcut.generate(cascade, [prompt], max_tokens=TOKENS, workers=1, config=ONE_THREAD)) as made:
        for token in made:
            yield token.token


def whole(path: Path, llama: Llama, prompt: list[int], *, shared: bool) -> Iterator[int]:
    """The tokens of the whole model, as one would write it: with one buffer for past and present, or without."""
    session = ort.InferenceSession(path, session_options(ONE_THREAD), providers=["CPUExecutionProvider"])
    pasts = [one.name for one in session.get_inputs() if one.name.startswith("past")]
    presents = [name.replace("past_key_values", "present") for name in pasts]
    shape = (1, llama.heads, len(prompt) + TOKENS if shared else 0, llama.head)
    kept = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in pasts}
    binding, fresh, length = session.io_binding(), np.array([prompt]), 0
    for past, present in zip(pasts, presents, strict=True) if shared else ():
        binding.bind_ortvalue_input(past, kept[past])
        binding.bind_ortvalue_output(present, kept[past])
    while True:
        length += fresh.shape[1]
        mask = np.ones((1, length), np.int64)
        if shared:
            binding.bind_cpu_input("input_ids", fresh)
            binding.bind_cpu_input("attention_mask", mask)
            binding.bind_output("logits")
            session.run_with_iobinding(binding)
            logits = binding.get_outputs()[len(presents)].numpy()
        else:
            fed = {"input_ids": fresh, "attention_mask": mask}
            values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in fed.items()}
            found, *made = session.run_with_ort_values(["logits", *presents], {**values, **kept})
            kept, logits = dict(zip(pasts, made, strict=True)), found.numpy()
        fresh = logits[:, -1].argmax(-1)[:, None]
        yield int(fresh[0, 0])


def by_genai(home: Path, prompt: list[int]) -> Iterator[int]:
    """The tokens that ONNX Runtime GenAI makes."""
    import onnxruntime_genai as genai

    model = genai.Model(str(home))
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=len(prompt) + TOKENS, do_sample=False)
    generator = genai.Generator(model, settings)
    generator.append_tokens(prompt)
    while True:
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def genai_config(llama: Llama) -> dict[str, object]:
    """How GenAI runs the model: with one buffer for past and present, in one thread."""
    kinds = ("key", "value")
    session = {"intra_op_num_threads": 1, "log_id": "genai", "provider_options": []}
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    decoder = {
        "filename": "model.onnx",
        "session_options": session,
        "head_size": llama.head,
        "hidden_size": llama.hidden,
        "num_attention_heads": llama.heads,
        "num_key_value_heads": llama.heads,
        "num_hidden_layers": llama.layers,
        "inputs": inputs | {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in kinds},
        "outputs": {"logits": "logits"} | {f"present_{kind}_names": f"present.%d.{kind}" for kind in kinds},
    }
    ids = {"bos_token_id": 1, "eos_token_id": [], "pad_token_id": 0}
    model = {"type": "llama", "context_length": llama.context, "vocab_size": llama.vocab, "decoder": decoder, **ids}
    return {"model": model, "search": {"past_present_share_buffer": True, "do_sample": False}}


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    own_bits, own_context, is_small = map(int, numbers)
    bench_ways(Path(path), own_bits, own_context, small=bool(is_small))
