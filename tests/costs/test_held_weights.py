"""What ONNX Runtime takes for weights, by their type and operator: a plan says no less, and at most 15 % more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import cross_attention
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import (
    Across,
    Cascade,
    Cluster,
    Device,
    PlanError,
    SimulatedCluster,
    Within,
    scenario_of_cascade,
    scenario_of_plan,
)
from graphcut.core.errors import MemoryCapError
from graphcut.core.manifest import HalfType
from graphcut.costs.fusions import joined_nodes
from graphcut.costs.held_weights import CAST_BYTES, HeldBytes
from graphcut.costs.kernel_work import kept_buffer, kernel_work
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.decoding.decoder import Decoder
from graphcut.decoding.decoding_memory import kept_bytes, predict_decoding
from graphcut.demos import write
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_plan, scene_of_split
from graphcut.running.in_process.memory_plan import AvailableMemory, part_memory, predict_memory, tensor_sizes

from cases import each
from conftest import ORT_VERSION, Draw, floats, model_of
from heavy import in_a_process

MIB = 1 << 20
SLACK_BYTES = 1 << 20  # by so much the memory of a process differs from start to start

MEASURE = """
import gc, os, re, numpy as np, onnxruntime as ort
from graphcut.running.process_memory import PeakMemory, resident_bytes, return_freed_memory, return_large_blocks
from graphcut.running.stage import SessionConfig, session_options
return_large_blocks()
gc.disable()
def made(path):
    options = session_options(SessionConfig(arena=False, threads=1))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    session.run(None, {x.name: np.ones(x.shape, types[x.type]) for x in session.get_inputs()})
    return session
def code_bytes():
    with open("/proc/self/smaps") as file:
        mappings = re.split(r"^(?=[0-9a-f]+-)", file.read(), flags=re.MULTILINE)
    return 1024 * sum(int(re.search(r"Rss: +(\\d+)", one)[1]) for one in mappings if ".so" in one)
def added(folder):
    small = made(f"{folder}/small.onnx")
    return_freed_memory()
    code, before, peak = code_bytes(), resident_bytes(), PeakMemory()
    large = made(f"{folder}/large.onnx")
    return peak.bytes - before - (code_bytes() - code)
for folder in given:
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, str(added(folder)).encode())
        os._exit(0)
    os.close(writing)
    said[folder] = int(os.read(reading, 99))
    os.wait()
"""
"""For each folder a process opens and runs a small model, and then a large one of the same kind: what that one adds.

They are copies of a process that has loaded all modules. Code of libraries is the process's and does not count: a copy
maps its pages again when it first touches them, and where Python searched for garbage meanwhile it touched 0.4 MiB.
"""


def chain(kind: str, width: int) -> ModelProto:
    """Layers of a kind, each of which reads a square weight."""
    nodes, weights = list[NodeProto](), list[TensorProto]()
    is_half, shape = kind.endswith("float16"), [1, width]
    random = np.random.default_rng(3)  # equal weights are held once

    def weight(name: str, *sizes: int, dtype: str = "float16" if is_half else "float32") -> str:
        weights.append(numpy_helper.from_array(random.integers(1, 99, sizes).astype(dtype), name))
        return name

    def node(op: str, *reads: str, writes: str, domain: str = "", **attributes: Any) -> str:  # noqa: ANN401 - as for ONNX
        nodes.append(helper.make_node(op, reads, [writes], domain=domain, **attributes))
        return writes

    x = "x"
    for i in range(8 if kind.startswith("int4") else 4):
        match kind.split(maxsplit=1)[0]:
            case "MatMul":
                x = node("MatMul", x, weight(f"w{i}", width, width), writes=f"y{i}")
            case "shared":
                x = node("MatMul", x, "w" if i else weight("w", width, width), writes=f"y{i}")
            case "Conv":
                shape = [1, width // 8, 4, 4]
                x = node("Conv", x, weight(f"w{i}", width // 8, width // 8, 8, 8), writes=f"y{i}", pads=[4, 4, 3, 3])
            case "QDQ" | "weights":
                scale, zero = weight(f"s{i}", width), weight(f"z{i}", width, dtype="int8")
                read = weight(f"w{i}", width, width, dtype="int8")
                read = node("DequantizeLinear", read, scale, zero, writes=f"d{i}", axis=1)
                if kind == "QDQ int8":
                    ends = weight(f"t{i}"), weight(f"u{i}", dtype="uint8")
                    x = node("QuantizeLinear", x, *ends, writes=f"q{i}")
                    x = node("DequantizeLinear", x, *ends, writes=f"e{i}")
                x = node("MatMul", x, read, writes=f"y{i}")
            case "int4":
                packed = weight(f"w{i}", width, width // 32, 16, dtype="uint8"), weight(f"s{i}", width * width // 32)
                sizes = {"K": width, "N": width, "bits": 4, "block_size": 32, "accuracy_level": int(kind[-1])}
                x = node("MatMulNBits", x, *packed, writes=f"y{i}", domain="com.microsoft", **sizes)
    dtype = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
    given, wanted = (helper.make_tensor_value_info(name, dtype, shape) for name in ("x", x))
    made = model_of(nodes, [given], [wanted], weights)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def convolutions(kind: str, width: int) -> ModelProto:
    """Four convolutions in a row: of which the first has the largest weight, of integers, of images that grow."""
    random, nodes, weights = np.random.default_rng(3), list[NodeProto](), list[TensorProto]()
    side, given = (width, width) if kind == "ConvInteger" else (4, 2 * width if kind == "narrowing" else width)
    kernel = {"narrowing": [8, 8], "ConvInteger": [3, 3], "ConvTranspose": [2, 2]}[kind]
    for i in range(4):
        shape = [width, width if i else given, *kernel]
        dtype = "int8" if kind == "ConvInteger" else "float32"
        weights.append(numpy_helper.from_array(random.integers(1, 99, shape).astype(dtype), f"w{i}"))
        match kind:
            case "narrowing":
                nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[4, 4, 3, 3]))
            case "ConvInteger":
                nodes.append(helper.make_node("DynamicQuantizeLinear", [f"x{i}"], [f"q{i}", f"s{i}", f"z{i}"]))
                nodes.append(helper.make_node("ConvInteger", [f"q{i}", f"w{i}", f"z{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
                nodes.append(helper.make_node("Cast", [f"c{i}"], [f"x{i + 1}"], to=TensorProto.FLOAT))
            case _:
                nodes.append(helper.make_node("ConvTranspose", [f"x{i}", f"w{i}"], [f"x{i + 1}"], strides=[2, 2]))
    larger = 16 * side if kind == "ConvTranspose" else side
    return model_of(nodes, [floats("x0", 1, given, side, side)], [floats("x4", 1, width, larger, larger)], weights)


GELU = ["Div q x,root", "Erf e q", "Add f e,one", "Mul g x,f", "Mul y g,half"]
INTEGERS = "DynamicQuantizeLinear p,s,z x0; MatMulInteger m p,i,z; Cast c m; Mul t s,half; Mul n c,t; Add x n,b"
LINES = {
    "integers": [*INTEGERS.split("; "), *GELU],
    "scores": ["Transpose t x0", "MatMul s x0,t", "Mul m s,half", "Softmax p m", "MatMul y p,x0"],
    "residual": ["Conv a x0,k", "Relu r a", "Conv c r,k", "Add d c,r", "Relu e d", "Conv f e,k", "Relu y f"],
    "folded": ["Conv a x0,k", "BatchNormalization y a,ones,ones,ones,ones"],
    "in place": ["Sin a x0", "Sigmoid r a", "Relu c r", "Softmax d c", "Sin y d"],
    "columns": ["Sin a x0", "Softmax0 p a", "Sin y p"],
}


def written(lines: Sequence[str], width: int = 64, *shape: int | str) -> ModelProto:
    """A model of nodes that are each given as its operator, its outputs and its inputs."""
    random = np.random.default_rng(3)
    values = {"b": random.normal(size=512), "k": random.normal(size=(width // 16, width // 16, 1, 1))}
    values |= {"ones": np.ones(width // 16), "one": np.ones(()), "half": np.full((), 0.5), "root": np.sqrt(2)}
    weights = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in values.items()]
    weights.append(numpy_helper.from_array(random.integers(-99, 99, (512, 512)).astype(np.int8), "i"))
    nodes = list[NodeProto]()
    for op, writes, reads in map(str.split, lines):
        attributes: dict[str, Any] = {"to": TensorProto.FLOAT} if op == "Cast" else {"axis": 0} if op[-1] == "0" else {}
        nodes.append(helper.make_node(op.removesuffix("0"), reads.split(","), writes.split(","), **attributes))
    shape = shape or (width, 512)
    return model_of(nodes, [floats("x0", *shape)], [floats("y", *shape)], weights)


def saved(kind: str, width: int, path: Path) -> Path:
    is_image = kind in {"narrowing", "ConvInteger", "ConvTranspose"}
    if kind in LINES:
        side = {"residual": 64, "folded": 2}.get(kind)
        made = written(LINES[kind], width, *([1, width // 16, side, side] if side else []))
    elif kind == "cross attention":
        made = cross_attention(width)
    else:
        made = convolutions(kind, width) if is_image else chain(kind, width)
    onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
    return path


WIDTHS = {
    "integers": 2048,
    "scores": 1024,
    "residual": 2048,
    "in place": 4096,
    "columns": 4096,
    "folded": 16384,
    "cross attention": 512,
    "MatMul float32": 1024,
    "MatMul float16": 1024,
    "shared float16": 2048,
    "Conv float32": 1024,
    "Conv float16": 1024,
    "narrowing": 128,
    "ConvInteger": 128,
    "ConvTranspose": 128,
    "QDQ int8": 2048,
    "weights int8": 2048,
    "int4 accuracy 0": 1792,
    "int4 accuracy 4": 1792,
}


@pytest.mark.skipif(ORT_VERSION < (1, 32), reason="measured with ONNX Runtime 1.32")
def test_a_part_needs_what_is_measured_and_at_most_15_percent_more(tmp_path: Path) -> None:
    needed = dict[str, int]()
    for kind, width in WIDTHS.items():
        (tmp_path / kind).mkdir()
        saved(kind, 64, tmp_path / kind / "small.onnx")
        needed[kind] = graphcut.plan(saved(kind, width, tmp_path / kind / "large.onnx"), Within(1 << 40)).needs[0]
    measured = in_a_process(MEASURE, *(tmp_path / kind for kind in WIDTHS))
    ratios = {kind: needed[kind] / measured[str(tmp_path / kind)] for kind in WIDTHS}
    assert {kind: ratio for kind, ratio in ratios.items() if not 1 <= ratio <= 1.15} == {}


@each("kind", ["MatMul float32", "MatMul float16", "QDQ int8"])
def test_what_a_part_needs_is_one_number_everywhere(kind: str, tmp_path: Path) -> None:
    """Planned, split, shown, on the page, run, in `bench`, scheduled and simulated, to the byte."""
    model = graphcut.load(saved(kind, 64, tmp_path / "model.onnx"))
    whole = graphcut.plan(model, Within(1 << 40)).needs[0]
    made = graphcut.plan(model, Within(SESSION_BYTES + 3 * (whole - SESSION_BYTES) // 4))
    assert len(made.parts) == 2
    cascade = graphcut.split(model, made, tmp_path / "parts")
    analysis, cluster = graphcut.analyze(model), SimulatedCluster(devices=(Device(name="a"), Device(name="b")))
    scenes = scene_of_plan(made, analysis), scene_of_split(cascade, made, analysis), scene_of_cascade(cascade)
    run = part_memory(cascade, tensor_sizes(cascade, {}), prepacked=True)
    simulated = scenario_of_plan(made, model, cluster), scenario_of_cascade(cascade, cluster)
    found = {
        tuple(one.memory.needs for one in cascade.parts if one.memory is not None),
        *(tuple(card.need_bytes for card in scene.cards if card.measure == "needs") for scene in scenes),
        tuple(one.loaded + max(one.loading, one.running) for one in run),
        *(tuple(part.memory_bytes for part in scenario.parts) for scenario in simulated),
    }
    assert found == {made.needs}
    assert least_allowed(cascade) == max(made.needs)


def least_allowed(cascade: Cascade) -> int:
    """What a limit must leave for the parts loaded in turn, without what the process has: `bench` allows this."""
    with pytest.raises(MemoryCapError) as caught:
        predict_memory(cascade, {}, AvailableMemory(1, is_exact=True, base_bytes=0), is_once=False)
    return caught.value.smallest_bytes - SLACK_BYTES


def test_the_same_is_needed_to_decode_and_by_ranks(tmp_path: Path) -> None:
    """Decoding a prompt of the sizes that the plan assumes: besides, the logits of the step before are still held."""
    path = tmp_path / "model.onnx"
    write("llm", path, layers=1)
    model = graphcut.load(path)
    cascade = graphcut.split(model, graphcut.plan(model, Within(1 << 40)), tmp_path / "parts")
    (memory,), total = (part.memory for part in cascade.parts), cascade.manifest.dims["total"]
    decoder = Decoder(cascade, {})
    found = predict_decoding(decoder, AvailableMemory(None, base_bytes=0), (total, total), 1, prepacked=True)
    states, logits = sum(kept_bytes(decoder, 1, total).values()), cascade.tensors["logits"]
    assert memory is not None
    assert found.plan.peak_bytes + states == memory.needs + logits.bytes_for(cascade.manifest.dims)[0]
    ranked = graphcut.split_by_rank(model, tmp_path / "ranks", ranks=2)
    assert [(card.measure, card.need_bytes) for card in scene_of_cascade(ranked).cards] == [
        ("needs", part.needed.needs) for part in ranked.parts
    ]


# By hand


def reading(*layers: tuple[str, str, str], dtype: int = TensorProto.FLOAT16) -> ModelProto:
    """A chain of operators, each with a weight of 16 numbers (`op`, the weight, the name of the node)."""
    nodes, names = list[NodeProto](), list[str]()
    for i, (op, name, node) in enumerate(layers):
        nodes.append(helper.make_node(op, [f"x{i}", name], [f"x{i + 1}"], name=node))
        names.append(name)
    weights = [helper.make_tensor(name, dtype, [4, 4], [1.0] * 16) for name in dict.fromkeys(names)]
    ends = [helper.make_tensor_value_info(f"x{i}", dtype, [4, 4]) for i in (0, len(layers))]
    return model_of(nodes, ends[:1], ends[1:], weights)


def held(model: graphcut.Model, device: Device, *nodes: int) -> HeldBytes:
    return graphcut.weigh(model).held(device).of(nodes)


def test_a_search_counts_no_more_than_a_part_takes_while_it_is_opened_and_if_it_is_cautious_no_less(
    tmp_path: Path,
) -> None:
    """Weights that are folded count all together, and the largest of all once more."""
    write("unet", tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    weights, flow = graphcut.weigh(model).held(Device(name="pi")), model.graph.flow
    assert any(weights.opening_of_all_bytes.values())
    for begin in range(0, len(flow), 7):
        for nodes in (flow[begin : begin + 5], flow[begin : begin + 20], flow[begin:]):
            least, most = map(max, zip(*(weights.opening_bytes.get(node, (0, 0)) for node in nodes), strict=True))
            of_all = sum(weights.opening_of_all_bytes.get(node, 0) for node in nodes)
            assert least + of_all <= weights.of(nodes).opening <= most + of_all


def test_a_device_that_computes_float16_holds_what_the_file_has(opened: Draw) -> None:
    model = opened(reading(("MatMul", "a", "first"), ("MatMul", "b", "second")))
    plain, native = Device(name="plain"), Device(name="native", native=("float16",))
    other = Device(name="other", provider="QNNExecutionProvider")
    assert held(model, plain, 0, 1) == HeldBytes(more=32 + 32 + 2 * CAST_BYTES, opening=64, unpacked=64)
    assert held(model, native, 0, 1) == HeldBytes(more=0, opening=32)
    assert held(model, other, 0, 1) == HeldBytes()


SCALED = ["Transpose t x0", "MatMul s x0,t", "Mul m s,half"]


@each(
    ("lines", "joined"),
    [
        (LINES["integers"], "mcnqef"),
        ([*SCALED, "Sin y m"], "s"),
        ([*SCALED, "Add y m,s"], ""),  # something else reads the product
        ([*INTEGERS.split("; ")[:3], "Add y c,b"], ""),  # no scale
        ([*INTEGERS.split("; ")[:3], "Abs t s", "Mul y c,t"], ""),  # a scale that is no product of two
        (["Add x x0,b", *GELU], ""),  # that kernel takes as much as the nodes
        (["Div q x0,half", *(line.replace("x,", "x0,") for line in GELU[1:])], ""),  # this is no gelu
    ],
)
def test_tensors_between_nodes_that_are_fused_are_never_written(
    opened: Draw, lines: Sequence[str], joined: str
) -> None:
    model = opened(written(lines))
    assert {one.tensor for one in joined_nodes(model).values()} == {*joined}


def test_nodes_are_fused_where_all_of_them_are_in_the_part(opened: Draw) -> None:
    model = opened(written(LINES["integers"]))
    costs, numbers = graphcut.weigh(model), model.graph.flow_index
    work = {node: kernel_work(costs.held(Device(name="d")), node, costs.tensor_bytes) for node in model.graph.flow}
    names = {model.graph.nodes[node].writes[0]: node for node in numbers}
    for outside, joined in (("", "cnxefg"), ("m", ""), ("n", ""), ("y", "cnx")):
        inside = {*model.graph.flow}.difference([names[outside]] if outside else [])
        found = {
            name for name, node in names.items() if node in inside and work[node].within(model.graph, node, inside) < 0
        }
        assert found == {*joined}


@each(("rows", "saved"), [(64, 1), ("n", 0)])
def test_a_node_writes_over_its_input_where_its_size_is_in_the_file(opened: Draw, rows: int | str, saved: int) -> None:
    model = opened(written(["Sin a x0", "Relu r a", "Sin y r"], 64, rows, 512))
    costs = graphcut.weigh(model, {} if rows == 64 else {"n": 64})
    held = costs.held(Device(name="d"))
    assert [kernel_work(held, node, costs.tensor_bytes).always for node in range(3)] == [0, -saved * 64 * 2048, 0]


@each(("rows", "number"), [(4, 4 * 32 * 64), (1, 0)])
def test_nodes_with_weights_in_4_bits_keep_one_buffer_for_all_of_them(opened: Draw, rows: int, number: int) -> None:
    made = chain("int4 accuracy 0", 64)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = rows
    model = opened(made)
    assert kept_buffer(model)[0] == number


def test_a_convolution_in_blocks_takes_what_casts_take(opened: Draw) -> None:
    """Another node with another weight is made of it."""
    weight = numpy_helper.from_array(np.ones((64, 64, 1, 1), np.float32), "w")
    ends = floats("x", 1, 64, 4, 4), floats("y", 1, 64, 4, 4)
    model = opened(model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [ends[0]], [ends[1]], [weight]))
    number = 4 * 64**2
    assert held(model, Device(name="d"), 0) == HeldBytes(more=CAST_BYTES, opening=3 * number, unpacked=3 * number)
    assert held(model, Device(name="other", provider="QNNExecutionProvider"), 0) == HeldBytes()


@pytest.mark.skipif(ORT_VERSION < (1, 32), reason="measured with ONNX Runtime 1.32")
@each("op", ["HardSwish", "Mish"])
def test_a_part_needs_what_a_kernel_in_three_steps_takes(op: str, tmp_path: Path) -> None:
    for name, width in (("small", 16), ("large", 1 << 20)):
        made = model_of([helper.make_node(op, ["x"], ["y"])], [floats("x", width)], [floats("y", width)])
        made.opset_import[0].version = 20
        onnx.save(made, tmp_path / f"{name}.onnx")
    needed = graphcut.plan(tmp_path / "large.onnx", Within(1 << 40)).needs[0]
    measured = in_a_process(MEASURE, tmp_path)[str(tmp_path)]
    assert measured <= needed <= 1.15 * measured


def test_a_weight_that_several_nodes_of_a_part_widen_is_cast_in_each_run(opened: Draw) -> None:
    model = opened(reading(("MatMul", "a", "first"), ("MatMul", "a", "second")))
    assert held(model, Device(name="d"), 0) == HeldBytes(more=32 + CAST_BYTES, opening=64, unpacked=64)
    assert held(model, Device(name="d"), 0, 1) == HeldBytes(more=2 * CAST_BYTES, opening=64, unpacked=64)


def test_float16_does_not_fit_where_its_file_would(opened: Draw) -> None:
    """Four layers of 1 MiB on two devices: as float32 each takes 2 MiB, and the largest as much to be opened."""
    made = model_of(
        [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(4)],
        [floats("x0", 1, 724)],
        [floats("x4", 1, 724)],
        [numpy_helper.from_array(np.zeros((724, 724), np.float16), f"w{i}") for i in range(4)],
    )
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    model = opened(made)

    def plan_on(memory: int, *natives: tuple[HalfType, ...]) -> list[str]:
        devices = [Device(name=f"d{i}", memory_bytes=memory, native=native) for i, native in enumerate(natives)]
        return [device.name for device in graphcut.plan(model, Across(Cluster(devices=tuple(devices)))).devices]

    memory = 4_300_000 + SESSION_BYTES
    with pytest.raises(PlanError, match="no division fits the devices"):
        plan_on(memory, (), ())
    assert plan_on(memory, ("float16",), ("float16",)) == ["d0", "d1"]
    # Three layers with float16 (3.1 MB, and 1 MB to open), one without (2.1 MB, and 2.1 MB).
    assert plan_on(memory, (), ("float16",)) in (["d0", "d1"], ["d1", "d0"])
