"""`scripts/benchmark compare`: faults planted in conversions of twelve models, and whether `compare` names the node.

Each fault is planted in a copy of a model, at a node that chance chooses among those that can have it; the copy is then
converted: not at all, to float16, or to int8. A case counts if the fault alone changes an output to less than 40 dB. A
hit names a tensor that the node computes. Conversions without a fault must have no culprit. Beside it: of int8 at which
place ONNX Runtime's qdq_loss_debug has the tensor, by the errors against the first model; and if polygraphy
can be imported, at which place it is among the tensors that differ by more than its default, and by more than 1 %.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import encoders
from planted_faults import FAULTS, HELD_OUT, Plant, Subject

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
    #: by other tools the place of the tensor, 0 if it does not have it or fails, and processor seconds.
    peers: Mapping[str, tuple[int, float]] = {}


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


def places_in_loss_debug(path: Path, target: Path, feeds: Feeds, tensor: str) -> dict[str, int]:
    """The place of a tensor in the order of errors of qdq_loss_debug; 0 if it has others, none if it has none."""
    from onnxruntime.quantization import qdq_loss_debug as peer

    activations = []
    for model in (target, path):
        peer.modify_model_output_intermediate_tensors(str(model), str(path.with_name("augmented.onnx")))
        activations.append(peer.collect_activations(str(path.with_name("augmented.onnx")), iter([dict(feeds)])))
    errors = peer.compute_activation_error(peer.create_activation_matching(*activations))
    order = sorted(
        (name for name in errors if "xmodel_err" in errors[name]), key=lambda name: errors[name]["xmodel_err"]
    )
    return {"qdq_loss_debug": order.index(tensor) + 1 if tensor in order else 0} if order else {}


def places_in_polygraphy(path: Path, target: Path, feeds: Feeds, tensor: str) -> dict[str, int]:
    """The place of a tensor among those that differ, in the order of the model, by two allowed differences."""
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    marked = (ModifyOutputs(OnnxFromPath(str(one)), outputs=constants.MARK_ALL) for one in (path, target))
    found = Comparator.run([OnnxrtRunner(SessionFromOnnx(BytesFromOnnx(one))) for one in marked], data_loader=[feeds])
    places = {}
    for allowed in (1e-5, 1e-2):
        same = CompareFunc.simple(atol=allowed, rtol=allowed)
        (outputs,) = next(iter(Comparator.compare_accuracy(found, compare_func=same)[0].dct.values()))
        differing = [name for name, is_same in outputs.items() if not is_same]
        places[f"polygraphy {allowed}"] = differing.index(tensor) + 1 if tensor in differing else 0
    return places


PEERS = {"int8": places_in_loss_debug, "": places_in_polygraphy}  #: each with the conversion that it is for.


def places(path: Path, target: Path, feeds: Feeds, tensor: str, noise: str) -> dict[str, tuple[int, float]]:
    """For other tools the place of the tensor that a fault was planted in, and processor seconds."""
    found = {}
    for ending, peer in PEERS.items():
        if not noise.endswith(ending):
            continue
        started = time.process_time()
        try:
            made = peer(path, target, feeds, tensor)
        except ImportError:
            continue
        except Exception:  # noqa: BLE001 - a tool that fails does not find the tensor
            made = {f"{peer.__name__} fails": 0}
        found |= {name: (place, time.process_time() - started) for name, place in made.items()}
    return found


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
                node = planted(path, (FAULTS | HELD_OUT)[fault], values, feeds, rng, source) if fault else ""
                for noise in NOISES if node or not fault else ():
                    name = f"{model}{padding}, {fault or 'no fault'}, {noise}"
                    try:
                        NOISES[noise](source if fault else path, target, feeds)
                        case = compared(path, target, feeds, name, node)
                        tensor = node.partition("\n")[2]
                        yield case._replace(peers=places(path, target, feeds, tensor, noise) if node else {})
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


def bench_compare(folder: Path, *, small: bool, seed: int = 17, faults: Iterable[str] = (*FAULTS, *HELD_OUT)) -> None:
    """Print hits at rank 1 and 3, false alarms and processor seconds."""
    ranks, alarms, seconds = defaultdict[str, Counter[int]](Counter), Counter[bool](), list[float]()
    peer_seconds = defaultdict[str, list[float]](list)
    for case in cases(folder, [*MODELS][:: 3 if small else 1], [*faults], seed):
        seconds.append(case.seconds)
        culprits = case.found.culprits
        rank = next((i for i, one in enumerate(culprits, 1) if is_hit(one, case.target)), 0)
        if case.target:
            for peer, (place, took) in case.peers.items():
                ranks[f"{case.name.split(', ')[-1]}, {peer}"][place] += 1
                peer_seconds[peer].append(took)
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
    for peer, took in peer_seconds.items():
        print(f"{peer}: processor seconds: median {np.median(took):.2f}, most {max(took):.2f}")
    print(f"processor seconds: median {np.median(seconds):.2f}, most {max(seconds):.2f}")
