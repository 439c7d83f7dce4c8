"""Olive and graphcut on one decoder of 458 MiB: seconds, memory, sizes of parts, differences of outputs.

source scripts/setup olive
.venv-olive/bin/python scripts/compare_olive.py auto --memory 20MB   # both from fp32 to int4 parts within a budget
.venv-olive/bin/python scripts/compare_olive.py olive                # splitting alone: into three parts, by Olive
.venv-olive/bin/python scripts/compare_olive.py graphcut             # by graphcut's pass for Olive
.venv-olive/bin/python scripts/compare_olive.py graphcut --memory 250MB

Olive's way to a budget is `olive auto-opt --precision int4 --memory 20MB --cost-model costs.csv`: it assigns the
modules of the PyTorch model to parts, exports, quantizes and splits. `auto-opt` is measured on the exported model,
which it quantizes and does not split; so its passes are given the exported model, too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

os.environ["OLIVE_DISABLE_TELEMETRY"] = "1"

HIDDEN, LAYERS, HEADS, VOCABULARY, PARTS, TOKENS = 768, 10, 12, 32000, 3, 64


def graphcut(*words: str) -> list[str]:
    """A command line of graphcut in this environment."""
    return [sys.executable, "-m", "graphcut", *words]


def run_pass(module: str, name: str, config: dict[str, Any], model: object, output: Path, memory: str = "") -> Any:  # noqa: ANN401
    """What one of Olive's passes makes of a model."""
    from olive.hardware.accelerator import AcceleratorSpec
    from olive.passes.olive_pass import create_pass_from_dict

    limit = AcceleratorSpec.str_to_int_memory(memory) if memory else None
    device = AcceleratorSpec("cpu", "CPUExecutionProvider", memory=limit)
    kind = getattr(import_module(module), name)
    return create_pass_from_dict(kind, config, disable_search=True, accelerator_spec=device).run(model, str(output))


def write_models(folder: Path) -> None:
    """The exported model, the same as PyTorch has it, and Olive's cost model of that."""
    sizes = {
        "--hidden": HIDDEN,
        "--layers": LAYERS,
        "--attention-heads": HEADS,
        "--kv-heads": HEADS,
        "--vocab": VOCABULARY,
    }
    words = [word for name, number in sizes.items() for word in (name, str(number))]
    subprocess.run(graphcut("demo", "llm", "-o", f"{folder}/llm.onnx", "--external", *words), check=True)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCABULARY,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "torch")
    costs = ["generate-cost-model", "-m", f"{folder}/torch", "-p", "int4", "-o", f"{folder}/costs.csv"]
    subprocess.run([sys.executable, "-m", "olive", *costs], check=True, stdout=subprocess.DEVNULL)
    table = folder / "costs.csv"  # of int4 it has bytes like 12288000.0, which Olive itself can't read again
    table.write_text(table.read_text("utf-8").replace(".0,", ","), "utf-8")


def olive_auto(folder: Path, memory: str) -> None:
    """Olive's passes: modules to parts by the cost model and the budget, split, int4."""
    from olive.model import HfModelHandler, ONNXModelHandler

    torch, costs = HfModelHandler(folder / "torch"), {"cost_model": str(folder / "costs.csv")}
    module = "olive.passes.pytorch.capture_split_info"
    captured = run_pass(module, "CaptureSplitInfo", costs, torch, folder / "captured", memory)
    assigned = {"split_assignments": captured.model_attributes["split_assignments"], "save_as_external_data": True}
    exported = ONNXModelHandler(str(folder / "llm.onnx"))
    parts = run_pass("olive.passes.onnx.split", "SplitModel", assigned, exported, folder / "split")
    blocks = {"block_size": 32, "save_as_external_data": True}
    module = "olive.passes.onnx.rtn_quantization"
    run_pass(module, "OnnxBlockWiseRtnQuantization", blocks, parts, folder / "olive")


def measured(words: Sequence[str]) -> tuple[float, float, int]:
    """Seconds, seconds of processor, and the most memory of a command."""
    begin = time.perf_counter()
    process = subprocess.Popen(words)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(words)}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def logits(parts: Sequence[Path]) -> np.ndarray[Any, Any]:
    """What models compute that are run one after the other."""
    import onnxruntime

    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, TOKENS))
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(TOKENS)[None]}
    for part in parts:
        session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])
        for needed in session.get_inputs():
            if needed.name.startswith("past"):
                values[needed.name] = np.zeros((1, HEADS, 0, HIDDEN // HEADS), np.float32)
        names = [made.name for made in session.get_outputs()]
        found = session.run(names, {needed.name: values[needed.name] for needed in session.get_inputs()})
        values |= {name.removesuffix("_Q4"): value for name, value in zip(names, found, strict=True)}  # Olive's names
    return values["logits"]


def compare(folder: Path, memory: str) -> None:
    """Print the table."""
    from olive.hardware.accelerator import AcceleratorSpec

    own = [sys.executable, __file__]
    subprocess.run([*own, "write", "--folder", str(folder)], check=True)
    auto = ["auto", f"{folder}/llm.onnx", "--precision", "int4", "--memory", memory, "-o", f"{folder}/graphcut"]
    auto += ["--count", "files"]
    words = ["--precision", "int4", "--cost-model", f"{folder}/costs.csv", "--memory", memory]
    alone = [sys.executable, "-m", "olive", "auto-opt", "-m", f"{folder}/llm.onnx", *words, "-o", f"{folder}/auto-opt"]
    commands = {
        "auto-opt": alone,
        "olive": [*own, "passes", "--folder", str(folder), "--memory", memory],
        "graphcut": graphcut(*auto),
    }
    taken = {name: measured(words) for name, words in commands.items()}
    whole = logits([folder / "llm.onnx"])
    for name, (seconds, processor, peak) in taken.items():
        parts = sorted(
            (folder / name).rglob("*.onnx"),
            key=lambda path: int("".join(filter(str.isdigit, path.parent.name + path.name)) or 0),
        )
        sizes = [sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) for path in parts]
        gap = np.square(logits(parts) - whole).sum()
        print(f"{name}: {' '.join(commands[name])}")
        print(f"  {seconds:.1f} s, {processor:.1f} s of processor, at most {size(peak)} of memory")
        print(f"  {len(parts)} parts: {', '.join(map(size, sizes))}")
        print(f"  the largest is {max(sizes) / AcceleratorSpec.str_to_int_memory(memory):.0%} of the budget")
        print(f"  SNR of the logits {10 * np.log10(np.square(whole).sum() / gap):.1f} dB")


def split_alone(folder: Path, splitter: str, memory: str) -> None:
    """One of the passes that split, and what it took."""
    from olive.model import ONNXModelHandler

    subprocess.run([sys.executable, __file__, "write", "--folder", str(folder)], check=True)
    if splitter == "olive":
        assignments = ";".join(f"model.layers.{i}={i * PARTS // LAYERS}" for i in range(LAYERS))
        module, name = "olive.passes.onnx.split", "SplitModel"
        config: dict[str, Any] = {"split_assignments": assignments, "save_as_external_data": True}
    else:
        sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "olive-pass"))
        module, name = "olive_pass", "GraphcutSplit"
        config = {"memory": memory} if memory else {"num_splits": PARTS}
    before, begin, processor = peak_bytes(), time.perf_counter(), time.process_time()
    run_pass(module, name, config, ONNXModelHandler(str(folder / "llm.onnx")), folder / "parts")
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    print(f"{seconds:.2f} s, {processor:.2f} s of processor, {size(peak_bytes() - before)} more memory")
    for data in sorted((folder / "parts").glob("*.data")):
        print(f"{data.name}  {size(data.stat().st_size)}")


def size(number: int) -> str:
    """Bytes in MiB."""
    return f"{number / 2**20:.1f} MiB"


def peak_bytes() -> int:
    """The maximum resident set size of this process so far."""
    line = next(line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def main() -> None:
    """Do one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["auto", "olive", "graphcut", "write", "passes"])
    parser.add_argument("--memory", default="", help="the budget of a part")
    parser.add_argument("--folder", type=Path, help="for the processes that this one starts")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = words.folder or Path(scratch)
        if words.kind == "write":
            write_models(folder)
        elif words.kind == "passes":
            olive_auto(folder, words.memory)
        elif words.kind == "auto":
            compare(folder, words.memory)
        else:
            split_alone(folder, words.kind, words.memory)


if __name__ == "__main__":
    main()
