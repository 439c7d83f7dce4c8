"""`scripts/benchmark compare`: faults planted in conversions of twelve models, and whether `compare` names the node.

Each fault is planted in a copy of a model, at a node that chance chooses among those that can have it; the copy is then
converted: not at all, to float16, or to int8. A case counts if the fault alone changes an output to less than 40 dB. A
hit names a tensor that the node computes. Conversions without a fault must have no culprit. Of int8 it is also told at
which place ONNX Runtime's qdq_loss_debug has the tensor, in the order of the errors against the first model.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import encoders

import graphcut
from graphcut import demos, generate_inputs

from conftest import FIXTURES

VISIBLE_DB = 40.0
PLACES = 3  #: so many nodes are tried until a fault is visible.


def fixture(name: str, path: Path) -> None:
    """One of the fixtures, with its weights in the file."""
    onnx.save(onnx.load(FIXTURES / name), path)


MODELS: Mapping[str, Callable[[Path], object]] = {
    "MiniLM-like": encoders.save_sentence_encoder,
    "Whisper-like encoder": encoders.save_speech_encoder,
    "Whisper-like decoder": encoders.save_speech_decoder,
    "YOLO-like": encoders.save_detector,
    "ResNet": partial(demos.write, "resnet"),
    "U-Net": partial(fixture, "unet.onnx"),
    "CLIP": partial(fixture, "clip.onnx"),
    "LSTM": partial(fixture, "lstm.onnx"),
    "LLM": partial(demos.write, "llm"),
    "LLM fp16": partial(demos.write, "llm", dtype="float16"),
    "Llama, fused": partial(fixture, "tiny-llama-fp32/model.onnx"),
    "Llama, int4": partial(fixture, "tiny-llama-int4/model.onnx"),
}

Feeds = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class Subject:
    """A model that a fault is planted in."""

    def __init__(self, proto: ModelProto, values: Mapping[str, Any]) -> None:
        self.proto, self.graph, self.values = proto, proto.graph, values
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.constants = {node.output[0]: node for node in proto.graph.node if node.op_type == "Constant"}

    def array(self, name: str) -> Array | None:
        """The values of a constant; None for another tensor."""
        if name in self.weights:
            return numpy_helper.to_array(self.weights[name])
        values = [a.t for a in self.constants[name].attribute if a.name == "value"] if name in self.constants else []
        return numpy_helper.to_array(values[0]) if values else None

    def give(self, node: NodeProto, index: int, array: Array) -> None:
        """Give one node another constant."""
        name = f"{node.input[index]}@planted"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        node.input[index] = name

    def through(self, node: NodeProto, *made: NodeProto) -> None:
        """Put nodes after the first output of a node, which keeps its name: they read and write `@`."""
        name = node.output[0]
        node.output[0] = f"{name}@raw"
        for i, one in enumerate(made):
            one.name = f"{name}@planted{i}"
            one.input[0] = f"{name}@raw" if i == 0 else f"{name}@{i}"
            one.output[0] = name if i == len(made) - 1 else f"{name}@{i + 1}"
        place = next(i for i, other in enumerate(self.graph.node) if other is node or other == node)
        rest = [*self.graph.node][place + 1 :]
        kept = [*self.graph.node][: place + 1]
        copies = [NodeProto.FromString(one.SerializeToString()) for one in (*kept, *made, *rest)]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def is_float(self, name: str) -> bool:
        """Whether it is a tensor of floats that a node writes."""
        return name in self.values and self.values[name].dtype in (np.float32, np.float16)


Plant = Callable[[Subject, NodeProto], bool]  #: plants a fault in a node; False if that can't have it.


def scale(on: Subject, node: NodeProto) -> bool:
    """A vector of weights is 1.5 times what it was."""
    for i, name in enumerate(node.input):
        array = on.array(name)
        if array is not None and array.dtype.kind == "f" and array.ndim == 1 and array.size > 1:
            on.give(node, i, array * array.dtype.type(1.5))
            return True
    return False


def epsilon(on: Subject, node: NodeProto) -> bool:
    """The epsilon of a norm is 0.1."""
    for attribute in node.attribute:
        if attribute.name == "epsilon":
            attribute.f = 0.1
            return True
    readers = {other.op_type for other in on.graph.node if node.output[0] in other.input}
    if node.op_type == "Add" and "Sqrt" in readers:
        for i, name in enumerate(node.input):
            array = on.array(name)
            if array is not None:
                on.give(node, i, np.full_like(array, 0.1))
                return True
    return False


def transposed(on: Subject, node: NodeProto) -> bool:
    """A square weight is transposed."""
    for i, name in enumerate(node.input):
        array = on.array(name)
        if array is not None and array.dtype.kind == "f" and array.ndim > 1 and array.shape[-1] == array.shape[-2] > 1:
            on.give(node, i, array.swapaxes(-1, -2))
            return True
    return False


def axis(on: Subject, node: NodeProto) -> bool:
    """Another axis, or two axes of equal length in another order."""
    value = on.values.get(node.output[0])
    if (
        node.op_type in {"Softmax", "LogSoftmax", "CumSum", "LayerNormalization"}
        and value is not None
        and value.ndim > 1
    ):
        kept = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", -2)])
        return True
    if node.op_type == "Transpose":
        for perm in node.attribute:
            shape = on.values[node.output[0]].shape if node.output[0] in on.values else ()
            same = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j] > 1]
            if same:
                i, j = same[0]
                perm.ints[i], perm.ints[j] = perm.ints[j], perm.ints[i]
                return True
    return False


def wrong_cast(on: Subject, node: NodeProto) -> bool:
    """Floats become integers, and floats again."""
    if not on.is_float(node.output[0]):
        return False
    kind = helper.np_dtype_to_tensor_dtype(on.values[node.output[0]].dtype)
    on.through(node, *(helper.make_node("Cast", ["@"], ["@"], to=to) for to in (TensorProto.INT32, kind)))
    return True


def clip(on: Subject, node: NodeProto) -> bool:
    """Values above the mean magnitude are cut off."""
    if not on.is_float(node.output[0]):
        return False
    value = on.values[node.output[0]]
    most = np.array(np.abs(value.astype(np.float64)).mean(), value.dtype)
    names = f"{node.output[0]}@least", f"{node.output[0]}@most"
    for name, limit in zip(names, (-most, most), strict=True):
        on.graph.initializer.append(numpy_helper.from_array(np.array(limit, value.dtype), name))
    on.through(node, helper.make_node("Clip", ["@", *names], ["@"]))
    return True


def int8_scale(on: Subject, node: NodeProto) -> bool:
    """Values are quantized with one scale, and dequantized with 1.5 times it."""
    name = node.output[0]
    if not on.is_float(name) or on.values[name].dtype != np.float32 or not on.values[name].size:
        return False
    step = np.float32(np.abs(on.values[name]).max() / 127)
    for end, factor in (("q", 1.0), ("dq", 1.5)):
        on.graph.initializer.append(numpy_helper.from_array(np.array(step * factor, np.float32), f"{name}@{end}"))
    on.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), f"{name}@zero"))
    pair = (("QuantizeLinear", "q"), ("DequantizeLinear", "dq"))
    on.through(node, *(helper.make_node(op, ["@", f"{name}@{end}", f"{name}@zero"], ["@"]) for op, end in pair))
    return True


def sign(on: Subject, node: NodeProto) -> bool:
    """A minus is left out, a difference turned round, the sines of a rotary embedding negated."""
    if node.op_type == "Neg" and on.is_float(node.output[0]):
        node.op_type = "Identity"
    elif node.op_type == "Sub" and on.is_float(node.output[0]):
        node.input[0], node.input[1] = node.input[1], node.input[0]
    elif node.op_type in {"RotaryEmbedding", "GroupQueryAttention"} and len(node.input) > 3:
        index = 3 if node.op_type == "RotaryEmbedding" else 8
        if index >= len(node.input) or (array := on.array(node.input[index])) is None:
            return False
        on.give(node, index, -array)
    else:
        return False
    return True


FAULTS: Mapping[str, Plant] = {
    "scale": scale,
    "epsilon": epsilon,
    "transposed": transposed,
    "axis": axis,
    "cast": wrong_cast,
    "clip": clip,
    "int8 scale": int8_scale,
    "sign": sign,
}


def plain(source: Path, target: Path, _: Feeds) -> None:
    """No conversion."""
    onnx.save(onnx.load(source), target)


def half(source: Path, target: Path, _: Feeds) -> None:
    """To float16, but for inputs and outputs."""
    from onnxruntime.transformers import float16

    onnx.save(float16.convert_float_to_float16(str(source), keep_io_types=True), target)


def int8(source: Path, target: Path, feeds: Feeds) -> None:
    """Products and convolutions to int8, calibrated on the inputs."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    reader = SimpleNamespace(get_next=partial(next, iter([dict(feeds)]), None))
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(
        str(source),
        str(target),
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=["MatMul", "Conv", "Gemm"],
        **types,
    )


NOISES = {"none": plain, "fp16": half, "int8": int8}


def padded(feeds: Feeds) -> Feeds | None:
    """The same inputs with the last third of each sequence masked; None without a mask."""
    if "attention_mask" not in feeds or feeds["attention_mask"].ndim != 2 or feeds["attention_mask"].shape[-1] < 3:
        return None
    mask = feeds["attention_mask"].copy()
    mask[:, -(mask.shape[-1] // 3) :] = 0
    return {**feeds, "attention_mask": mask}


class Case(NamedTuple):
    """A comparison, and what it should find."""

    name: str
    target: str  #: the node; empty without a fault.
    found: graphcut.ModelComparison
    seconds: float
    peer: int | None = None  #: the place in qdq_loss_debug; 0: it does not have the tensor, or fails.


def values_of(model: graphcut.Model, feeds: Feeds) -> dict[str, Any]:
    """The values of all floats that nodes write, and of the outputs."""
    names = [name for i in model.graph.flow for name in model.graph.nodes[i].writes]
    plain = [name for name in names if model.tensors[name].dtype in {"float32", "float16"}]
    return run_of(onnx.load(model.path), feeds, [*dict.fromkeys((*plain, *model.graph.writes))])


def run_of(proto: ModelProto, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
    """The arrays that ONNX Runtime computes for tensors, without graph optimizations; others are left out."""
    outputs = {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = zip(names, session.run([*names], dict(feeds)), strict=True)
    return {name: value for name, value in found if isinstance(value, np.ndarray)}


def db_between(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The lowest ratio of an output."""
    pairs = ((a[name].astype(np.float64), b[name].astype(np.float64)) for name in a if name in b)
    with np.errstate(divide="ignore"):
        return min(10 * float(np.log10(np.square(x).sum() / np.square(x - y).sum())) for x, y in pairs)


def planted(
    path: Path, fault: Plant, values: Mapping[str, Any], feeds: Feeds, rng: np.random.Generator, target: Path
) -> str:
    """The node that a fault was planted in, visibly; empty if there is none."""
    proto = onnx.load(path)
    model = graphcut.load(path)
    names = [model.graph.nodes[i].writes[0] for i in model.graph.flow]
    outputs = {name: values[name] for name in model.graph.writes if name in values}
    rng.shuffle(names)
    tried = 0
    for name in names:
        subject = Subject(ModelProto.FromString(proto.SerializeToString()), values)
        node = next(one for one in subject.graph.node if one.output and one.output[0] == name)
        if not fault(subject, node):
            continue
        try:
            numbers = run_of(ModelProto.FromString(subject.proto.SerializeToString()), feeds, [*outputs])
        except Exception:  # noqa: BLE001, S112 - ONNX Runtime's errors share no base class
            continue
        if np.all([np.isfinite(one).all() for one in numbers.values()]) and db_between(outputs, numbers) < VISIBLE_DB:
            onnx.save(subject.proto, target)
            return f"{model.graph.nodes[model.graph.producer[name]].name}\n{name}"
        tried += 1
        if tried == PLACES:
            break
    return ""


def compared(path: Path, target: Path, feeds: Feeds, name: str, node: str) -> Case:
    """Compare, and take the processor time."""
    started = time.process_time()
    found = graphcut.compare_models(path, target, inputs=[feeds])
    return Case(name, node, found, time.process_time() - started)


def place_in_loss_debug(path: Path, target: Path, feeds: Feeds, tensor: str) -> int | None:
    """The place of a tensor in the order of errors of qdq_loss_debug; 0 if it has others, None if it has none."""
    from onnxruntime.quantization import qdq_loss_debug as peer

    activations = []
    for model in (target, path):
        peer.modify_model_output_intermediate_tensors(str(model), str(path.with_name("augmented.onnx")))
        activations.append(peer.collect_activations(str(path.with_name("augmented.onnx")), iter([dict(feeds)])))
    errors = peer.compute_activation_error(peer.create_activation_matching(*activations))
    order = sorted(
        (name for name in errors if "xmodel_err" in errors[name]), key=lambda name: errors[name]["xmodel_err"]
    )
    return order.index(tensor) + 1 if tensor in order else 0 if order else None


def cases(folder: Path, models: Sequence[str], faults: Sequence[str], seed: int) -> Iterator[Case]:
    """Each model with each fault that can be planted visibly, and without one, in each conversion that succeeds."""
    for model in models:
        path, source, target = (folder / f"{name}.onnx" for name in ("model", "faulty", "converted"))
        MODELS[model](path)
        loaded = graphcut.load(path)
        given = dict(generate_inputs(loaded, seed=seed))
        for feeds in filter(None, (given, padded(given))):
            values, padding = values_of(loaded, feeds), "" if feeds is given else " padded"
            for fault in ("", *faults):
                rng = np.random.default_rng([seed, *f"{model}{fault}{padding}".encode()])
                node = planted(path, FAULTS[fault], values, feeds, rng, source) if fault else ""
                for noise in NOISES if node or not fault else ():
                    name = f"{model}{padding}, {fault or 'no fault'}, {noise}"
                    try:
                        NOISES[noise](source if fault else path, target, feeds)
                        case = compared(path, target, feeds, name, node)
                        if node and noise == "int8":
                            with suppress(KeyError):  # it fails if it knows no tensor in one of the models
                                case = case._replace(peer=0)
                                case = case._replace(peer=place_in_loss_debug(path, target, feeds, node.split("\n")[1]))
                        yield case
                    except (graphcut.GraphcutError, Exception) as error:  # noqa: BLE001 - of the converter
                        print(f"  {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)


def is_hit(culprit: graphcut.Culprit, target: str) -> bool:
    """Whether a culprit is the node, or has it or what was inserted after it among at most four that are named.

    Those that a conversion to int8 inserts do not count.
    """
    node, _, tensor = target.partition("\n")
    names = [name for name in culprit.nodes if "uantizeLinear" not in name]
    inside = len(names) <= 4 and any(name == node or name.startswith(f"{tensor}@planted") for name in names)
    return culprit.error.node == node or inside


def bench_compare(folder: Path, *, small: bool, seed: int = 17) -> None:
    """Print hits at rank 1 and 3, false alarms and processor seconds."""
    ranks, alarms, seconds = defaultdict[str, Counter[int]](Counter), Counter[bool](), list[float]()
    for case in cases(folder, [*MODELS][:: 3 if small else 1], [*FAULTS], seed):
        seconds.append(case.seconds)
        culprits = case.found.culprits
        rank = next((i for i, one in enumerate(culprits, 1) if is_hit(one, case.target)), 0)
        if case.target:
            if case.peer is not None:
                ranks["qdq_loss_debug, int8"][case.peer] += 1
            for group in ("all", case.name.split(", ")[-1], case.name.split(", ")[-2]):
                ranks[group][rank] += 1
            is_good, what = rank == 1, f"rank {rank}"
        else:
            alarms[case.found.same] += 1
            is_good, what = case.found.same, "agree" if case.found.same else "ALARM"
        print(f"  {case.name}: {what}, {case.seconds:.1f} s", flush=True)
        if not is_good:
            print(f"    {case.target!r}; found: {case.found}", flush=True)
    for group, counts in ranks.items():
        total, three = sum(counts.values()), sum(number for rank, number in counts.items() if 1 <= rank <= 3)
        print(f"{group}: first {counts[1] / total:.1%}, among three {three / total:.1%} of {total}")
    print(f"without a fault: {alarms[False]} alarms of {alarms.total()}")
    print(f"processor seconds: median {np.median(seconds):.2f}, most {max(seconds):.2f}")
