"""`scripts/check-qnn models`: a table of models cut for an accelerator and the CPU beside it, and verified there.

Each row is made in a process of its own, with a limit. Beside it stands what ONNX Runtime does with the whole model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import encoders

import graphcut
from graphcut import Across, Cluster, Device, Model, demos
from graphcut.running.providers import session_on
from graphcut.running.stage import SessionConfig, session_options

from hazards import HAZARDS

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
LIMIT_S = 600.0

QNN = {"backend_type": "htp", "soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
TARGETS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "qnn": ("QNNExecutionProvider", QNN),
    "openvino": ("OpenVINOExecutionProvider", {"device_type": "CPU"}),
    "webgpu": ("WebGpuExecutionProvider", {}),
    "coreml": ("", {}),  # its rule file, without a compiler
}


def hazard(name: str, path: Path) -> None:
    """A model of the tests' hazards."""
    onnx.save(HAZARDS[name]().model, path)


def quantized(path: Path) -> None:
    """ResNet with QuantizeLinear and DequantizeLinear around each operator."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    demos.write("resnet", path.with_name("float.onnx"))
    feeds = iter([{"image": np.random.default_rng(0).random((1, 3, 64, 64), np.float32)}])
    reader = type("Reader", (), {"get_next": staticmethod(lambda: next(feeds, None))})()
    quantize_static(path.with_name("float.onnx"), path, reader, quant_format=QuantFormat.QDQ)


def with_inputs(path: Path) -> None:
    """A U-Net whose weights are inputs with a value, too."""
    demos.write("unet", path)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.save(proto, path)


def decoder(path: Path, **options: int) -> None:
    """A decoder of these sizes."""
    demos.write("llm", path, **options)


def of_transformers(path: Path, **options: int) -> None:
    """A decoder whose norms are those of torch's exports of transformers' Llama: a product with a Reciprocal, no Div.

    The compiler of onnxruntime-qnn 2.7.0 fails on them: Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, and a Mul whose
    first input is the weight.
    """
    decoder(path, **options)
    proto = onnx.load(path, load_external_data=False)
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "Div" and "norm" in node.name:
            inverse = f"{node.output[0]}_inverse"
            nodes.append(onnx.helper.make_node("Reciprocal", node.input[1:], [inverse], f"{node.name}_inverse"))
            node.op_type, node.input[1] = "Mul", inverse
        nodes.append(node)
    graph = onnx.GraphProto(node=nodes)
    del proto.graph.node[:]
    proto.graph.MergeFrom(graph)
    onnx.save(proto, path)


STEP = {"batch": 1, "seq": 1, "past": 15, "total": 16}
GENAI = {"batch_size": 1, "sequence_length": 1, "past_sequence_length": 15, "total_sequence_length": 16}
MODELS: Mapping[str, tuple[Callable[[Path], object] | Path, Mapping[str, int]]] = {
    "MiniLM-like": (encoders.save_sentence_encoder, {"batch": 1, "seq": 16}),
    "Whisper-like encoder": (encoders.save_speech_encoder, {"batch": 1}),
    "U-Net": (partial(demos.write, "unet"), {"batch": 1}),
    "ResNet, int8 QDQ": (quantized, {"batch": 1}),
    "CLIP": (FIXTURES / "clip.onnx", {}),
    "LSTM": (FIXTURES / "lstm.onnx", {}),
    "YOLO-like": (encoders.save_detector, {}),
    "U-Net, weights are inputs": (with_inputs, {"batch": 1}),
    "multitask, dynamic shapes": (partial(demos.write, "multitask"), {}),
    "control flow (Loop)": (partial(hazard, "loop_scan_output"), {}),
    "sequences": (partial(hazard, "sequence_boundary"), {}),
    "Llama, int4": (FIXTURES / "tiny-llama-int4" / "model.onnx", {**GENAI, "kv_cache_dim": 16}),
    "Llama, 26 MB": (partial(decoder, hidden=256, layers=6, heads=8, vocab=2000), STEP),
    "Llama of transformers, 26 MB": (partial(of_transformers, hidden=256, layers=6, heads=8, vocab=2000), STEP),
    "decoder, 1 GB": (partial(decoder, hidden=2048, layers=4, heads=16, vocab=8000), STEP),
}
SMALL = ("U-Net", "YOLO-like")
TITLES = ("model", "nodes", "ONNX Runtime alone", "can run", "parts", "crossings", "FLOPs there", "fallback", "numbers")


def whole(model: Model, target: str) -> str:
    """What ONNX Runtime does with the whole model on a provider."""
    provider, options = TARGETS[target]
    settings = session_options(SessionConfig(optimize="basic"))
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for name, number in model.dims.items():
        settings.add_free_dimension_override_by_name(name, number)
    try:
        session, problem = session_on(model.path, settings, provider, options)
    except Exception as error:  # noqa: BLE001 - it has no common class
        return f"fails: {' '.join(str(error).split())[-60:]}"
    if session is None:
        return f"fails: {problem}"
    taken = session.get_provider_graph_assignment_info()
    there = [len(one.get_nodes()) for one in taken if one.ep_name == provider]
    left = sum(len(one.get_nodes()) for one in taken if one.ep_name != provider)
    return f"{len(there)} subgraphs, {left} nodes fall back"


def cluster(target: str) -> Cluster:
    """The accelerator, with its compiler or with rules, and a CPU."""
    provider, options = TARGETS[target]
    settings = {"provider": provider, "provider_options": tuple(f"{k}={v}" for k, v in options.items())}
    settings = {**settings, "compiles": True} if provider else {"rules": graphcut.read_rules(target)}
    npu = Device(name="npu", flops_per_s=1e13, bytes_per_s=6e10, **settings)
    return Cluster(devices=(npu, Device(name="cpu")), origin="cpu")


def row(name: str, target: str, folder: Path) -> list[str]:
    """The row of a model in the table."""
    made, dims = MODELS[name]
    path = made if isinstance(made, Path) else folder / "model.onnx"
    if not isinstance(made, Path):
        made(path)
    model = graphcut.load(path, dims=dims)
    alone = child("whole", name, target, str(path)) if TARGETS[target][0] else ["-"]
    plan = graphcut.compiled(model, graphcut.plan(model, Across(cluster(target), "crossings")))
    rules = plan.goal.cluster.devices[0].rules or graphcut.DeviceRules(name=target)
    found = graphcut.device_support(graphcut.weigh(model, plan.dims), rules)
    begins = sum(len(row.nodes) for row in found.unsupported if row.kind == "whole")
    cells = [name, str(found.nodes), alone[0], f"{found.supported + begins}"]
    if not found.supported + begins:
        return [*cells, "1", "0", "0 %", "-", f"none can run there: {found.unsupported[0].why}"]
    parts = graphcut.split(model, plan, folder / "parts", force=True)
    share = sum(m.flops for m, d in zip(plan.metrics, plan.devices, strict=True) if d.name == "npu")
    share /= sum(metrics.flops for metrics in plan.metrics) or 1
    report = graphcut.verify(model, parts)
    placed = report.placement
    fallback = "0" if placed.held else placed.gap or "; ".join(placed.objections) or "-"
    tensors = [tensor for run in report.runs for tensor in run if not tensor.is_identical]
    worst = max(tensors, key=lambda one: one.max_abs / (one.allowed or 1e-30), default=None)
    numbers = "no run" if not report.runs else "the same bits"
    if worst is not None:
        numbers = f"differ by {worst.max_abs:.1e}, {worst.allowed:.1e} allowed"
    if not report:
        numbers = f"NO: {report.failure or f'{numbers} at {worst and worst.tensor!r}'}"
    if target == "qnn" and placed.held:
        try:
            graphcut.export(parts, folder / "compiled", to="qnn", force=True)
            numbers += "; compiled"
        except graphcut.GraphcutError as error:
            numbers += f"; {error}"
    return [*cells, str(len(plan.parts)), str(len(plan.parts) - 1), f"{share:.1%}", fallback, numbers]


def child(*words: str) -> list[str]:
    """What a process of its own prints: a compiler may crash, hang, or take all memory."""
    command = [sys.executable, __file__, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"stopped after {LIMIT_S:.0f} s"]
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    said = " ".join(done.stderr.split())[-120:]
    return list(json.loads(lines[-1])) if lines else [f"status {done.returncode}: {said}"]


def main() -> None:
    """Print the table of a target."""
    words = sys.argv[1:]
    if words[:1] == ["whole"]:
        name, target, path = words[1:]
        print(json.dumps([whole(graphcut.load(path, dims=MODELS[name][1]), target)]))
        return
    if words[:1] == ["row"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(row(words[1], words[2], Path(folder))))
        return
    parser = argparse.ArgumentParser(prog="scripts/check-qnn models", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--small", action="store_true", help="two models; fails where one is not verified")
    options = parser.parse_args(words)
    print(f"ONNX Runtime {ort.__version__}\n\n| {' | '.join(TITLES)} | seconds |\n|{'---|' * (len(TITLES) + 1)}")
    wrong = False
    for name in SMALL if options.small else MODELS:
        start = time.perf_counter()
        cells = child("row", name, options.target)
        cells = cells if len(cells) == len(TITLES) else [name, *cells, *[""] * (len(TITLES) - 2)]
        wrong |= "NO: " in cells[-1] or not cells[-1]
        print(f"| {' | '.join(cells)} | {time.perf_counter() - start:.0f} |", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
