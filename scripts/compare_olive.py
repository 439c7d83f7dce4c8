"""Olive's own splitter and graphcut's pass for Olive on one decoder: seconds, memory, sizes of parts.

source scripts/setup olive
graphcut demo llm -o llm.onnx --hidden 768 --layers 10 --heads 12 --kv-heads 12 --vocab 32000 --external
.venv-olive/bin/python scripts/compare_olive.py olive llm.onnx --layers 10
.venv-olive/bin/python scripts/compare_olive.py graphcut llm.onnx
.venv-olive/bin/python scripts/compare_olive.py graphcut llm.onnx --memory 170MB
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ["OLIVE_DISABLE_TELEMETRY"] = "1"

from olive.hardware.accelerator import DEFAULT_CPU_ACCELERATOR
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.split import SplitModel

from graphcut.core.units import size
from graphcut.exporting.olive import GraphcutSplit

PARTS = 3


def peak_bytes() -> int:
    """The maximum resident set size of this process so far."""
    line = next(line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def main() -> None:
    """Run one of the passes, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splitter", choices=["olive", "graphcut"])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, help="olive: the layers, which are divided evenly by their names")
    parser.add_argument("--memory", help="graphcut: a budget instead of three parts")
    words = parser.parse_args()
    if words.splitter == "olive":
        assignments = ";".join(f"model.layers.{i}={i * PARTS // words.layers}" for i in range(words.layers))
        kind, config = SplitModel, {"split_assignments": assignments, "save_as_external_data": True}
    else:
        kind, config = GraphcutSplit, {"memory": words.memory} if words.memory else {"num_splits": PARTS}
    made = create_pass_from_dict(kind, config, disable_search=True, accelerator_spec=DEFAULT_CPU_ACCELERATOR)
    with tempfile.TemporaryDirectory() as folder:
        before, begin, processor = peak_bytes(), time.perf_counter(), time.process_time()
        made.run(ONNXModelHandler(words.model), f"{folder}/parts")
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        print(f"{seconds:.2f} s, {processor:.2f} s of processor, {size(peak_bytes() - before)} more memory")
        for data in sorted(Path(folder, "parts").glob("*.data")):
            print(f"{data.name}  {size(data.stat().st_size)}")


if __name__ == "__main__":
    main()
