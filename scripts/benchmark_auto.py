"""`scripts/benchmark auto`: each kind of model converted, and cut within a quarter, a half, three quarters and all.

Budgets are shares of the file of the converted model in one part, and of the given one. Every result is checked: no
part has more bytes on the disk than its budget; `verify` says that the parts are the converted model; run without graph
optimizations, they give its outputs (the same bits; a tolerance for float16); exported, they give them too: the tokens
of GenAI, the steps of Triton's ensemble run by ONNX Runtime, which need `source scripts/setup peers`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "exporting"))

import encoders
from test_genai import tokens
from test_triton import SCHEMA, run_ensemble

import graphcut
from graphcut import SessionConfig, demos, generate_inputs

from conftest import FIXTURES

SHARES = (0.25, 0.5, 0.75, 1.0)
CALIBRATION = "CALIBRATION"


class Kind(NamedTuple):
    """A kind of model."""

    name: str
    save: Callable[[Path], object]  #: writes it to a file.
    conversions: Sequence[Sequence[str]]  #: options of `auto`, each a row of the table.
    engine: str  #: for which its parts are exported.


def copied(name: str, path: Path) -> None:
    """One of the fixtures, with what is beside it."""
    shutil.copytree(FIXTURES / name, path.parent, dirs_exist_ok=True)


BITS_4, BITS_8, HALF = (("--precision", name) for name in ("int4", "int8", "fp16"))
STATIC, OPTIMIZED = ("--precision", "int8-static", "--calibration", CALIBRATION), ("--prepare", "fuse")
KINDS = (
    Kind("Llama-like", partial(copied, "tiny-llama-fp32"), (BITS_4, BITS_8), "genai"),
    Kind("Qwen-like", encoders.save_qwen, (BITS_4, BITS_8), "genai"),
    Kind("MiniLM-like", encoders.save_sentence_encoder, (OPTIMIZED, (*OPTIMIZED, *BITS_8)), "triton"),
    Kind("ResNet", partial(demos.write, "resnet"), (STATIC, HALF), "triton"),
    Kind("Whisper-like encoder", encoders.save_speech_encoder, ((*OPTIMIZED, *BITS_8), HALF), "triton"),
    Kind("Whisper-like decoder", encoders.save_speech_decoder, (BITS_4, BITS_8), "triton"),
    Kind("YOLO-like", encoders.save_detector, (BITS_8, HALF), "triton"),
)


def run(*words: object) -> tuple[int, str]:
    """The exit code of a command, and the errors that it printed."""
    command = [sys.executable, "-m", "graphcut", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


def made(folder: Path, *words: object) -> str:
    """Why a command refused; else an empty text, and its output is in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    code, told = run(*words, "-o", folder)
    if code not in {0, 4}:
        sys.exit(f"graphcut {' '.join(map(str, words))}: exit {code}\n{told}")
    return told[told.index("error: ") :] if code else ""


def bytes_of_parts(folder: Path) -> list[int]:
    """What each part takes on the disk."""
    parts = sorted(folder.glob("part-*.onnx"))
    return [sum(file.stat().st_size for file in folder.glob(f"{part.name}*")) for part in parts]


def check(kind: Kind, parts: Path, converted: Path, budget: int) -> None:
    """Check everything that the table says of the parts."""
    largest = max(bytes_of_parts(parts))
    said = json.loads((parts / "auto.json").read_text("utf-8"))["tried"][-1]["largest_bytes"]
    expect("sizes", is_met=largest == said <= budget)
    expect("verify", is_met=run("verify", parts)[0] == 0)
    feeds, options = generate_inputs(graphcut.load(converted), seed=1), ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(converted, options)
    names = [value.name for value in session.get_outputs()]
    whole = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    compare(whole, graphcut.run(graphcut.open_cascade(parts), feeds, config=SessionConfig(optimize="none")), converted)
    exported = parts.with_name("exported")
    expect("export", is_met=made(exported, "export", parts, "--to", kind.engine) == "")
    if kind.engine == "genai":
        whole_folder = converted.parent
        config = json.loads((FIXTURES / "tiny-llama-fp32" / "genai_config.json").read_text("utf-8"))
        config["model"]["decoder"]["filename"] = converted.name
        (whole_folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
        expect("tokens", is_met=tokens(exported) == tokens(whole_folder))
    elif SCHEMA.exists():
        name = next(folder.name for folder in exported.iterdir() if not (folder / "1" / "model.onnx").exists())
        compare(whole, run_ensemble(exported, name, feeds), converted)


def expect(what: str, *, is_met: bool) -> None:
    """End if something is not as the table says."""
    if not is_met:
        sys.exit(f"{what}: not as expected")


def compare(whole: dict[str, np.ndarray], found: dict[str, np.ndarray], model: Path) -> None:
    """Check that outputs are the same: bits, or almost if the model computes in half precision."""
    is_half = any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in onnx.load(model).graph.initializer)
    for name, value in whole.items():
        tolerance = 4e-3 * float(np.abs(value).max(initial=0)) if is_half else 0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def bench_auto(folder: Path, *, small: bool) -> None:
    """Print the table; `small` takes a quarter and the whole alone."""
    shares = (SHARES[0], SHARES[-1]) if small else SHARES
    print("| model | options | of | whole | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
    print("|---|---|---|---|" + "---|" * len(shares))
    for kind in KINDS:
        home = folder / kind.name
        home.mkdir()
        model = home / "model.onnx"
        kind.save(model)
        for conversion in kind.conversions:
            bench(kind, model, [calibration(model) if word == CALIBRATION else word for word in conversion], shares)


def calibration(model: Path) -> Path:
    """A folder of inputs."""
    folder = model.parent / "calibration"
    folder.mkdir(exist_ok=True)
    for seed in range(2):
        np.savez(folder / f"{seed}.npz", **generate_inputs(graphcut.load(model), seed=seed))
    return folder


def bench(kind: Kind, model: Path, options: Sequence[object], shares: Sequence[float]) -> None:
    """The rows of a conversion."""
    parts, words = model.parent / "parts", " ".join(map(str, options)).partition(" --calibration")[0]
    for title, before in (("converted", options), ("given", ())):
        made(parts, "auto", model, *before, "--num-splits", 1)
        (whole,), cells = bytes_of_parts(parts), []
        for share in shares:
            budget = int(whole * share)
            refusal = made(parts, "auto", model, *options, "--count", "files", "--memory", budget, "--keep")
            if refusal:
                print(f"{kind.name} {words} {budget}: {refusal}", file=sys.stderr)
                cells.append("refused")
                continue
            found, (*_, converted) = bytes_of_parts(parts), sorted((parts / "models").glob("*.onnx"), key=by_steps)
            check(kind, parts, converted, budget)
            cells.append(f"{len(found)}, {max(found) / budget:.0%}")
        print(f"| {kind.name} | `{words}` | {title} | {whole / 2**20:.0f} MiB | {' | '.join(cells)} |", flush=True)


def by_steps(model: Path) -> int:
    """The models of later steps have longer names."""
    return len(model.name)
