"""Tensors between parts on one device stay in its memory, and what is copied is counted.

Where there is no GPU, a device is played by the CPU: a tensor counts as in the memory of the device that wrote it. With
a GPU the same tests run on it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import decoders
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from msgspec.structs import replace

import graphcut
from graphcut import At, Cascade, Runner, SessionConfig
from graphcut.core.manifest import Part, PlannedDevice, save_manifest
from graphcut.core.tensors import Tensor
from graphcut.running import stage as stage_module
from graphcut.running.device_memory import OF_CPU, DeviceMemory, DeviceTensor, device_memory, read_on_device
from graphcut.running.in_process.layerwise import LayerwisePass
from graphcut.running.in_process.loaded_parts import LoadedParts
from graphcut.running.in_process.sequential import input_values
from graphcut.running.in_process.spilling import SpillStore
from graphcut.running.stage import Stage
from graphcut.running.values import CPU_MEMORY, Values, memory_of
from graphcut.workers.run_log import RunLog

from cases import each

GPU = "CUDAExecutionProvider"
FIRST, SECOND = DeviceMemory("cuda", "0"), DeviceMemory("cuda", "1")
X = np.array([[-1, 0, 1, 2], [3, -4, 0.5, 0.25]], np.float32)
HAS_GPU = GPU in ort.get_available_providers()
pytestmark = pytest.mark.skipif(CPU_MEMORY is None, reason="this ONNX Runtime binds outputs otherwise")


@pytest.fixture(params=["played by the CPU", *["GPU"] * HAS_GPU])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The provider of the devices whose option `device_id` is a number."""
    if request.param == "GPU":
        return GPU

    def played(_: str, options: Mapping[str, str]) -> DeviceMemory:
        number = options.get("device_id", "cpu")
        return OF_CPU if number == "cpu" else DeviceMemory("cuda", number)

    monkeypatch.setattr(stage_module, "device_memory", played)
    monkeypatch.setattr(DeviceMemory, "device", CPU_MEMORY)
    return "CPUExecutionProvider"


def on_devices(path: Path, names: Sequence[str], provider: str, numbers: Sequence[str]) -> Cascade:
    """A model cut at these nodes, the parts on devices with these numbers, `cpu` for the CPU."""
    model = graphcut.load(path)
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(names)))
    devices = [_device(number, provider) for number in dict.fromkeys(numbers)]
    parts = tuple(replace(part, device=number) for part, number in zip(cascade.parts, numbers, strict=True))
    return Cascade(cascade.path, replace(cascade.manifest, parts=parts, devices=tuple(devices)))


def _device(number: str, provider: str) -> PlannedDevice:
    if number == "cpu":
        return PlannedDevice(name="cpu", memory_bytes=None)
    return PlannedDevice(name=number, memory_bytes=None, provider=provider, provider_options=(f"device_id={number}",))


# --- where a tensor is


@each("name", ["CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"])
def test_the_memory_of_a_gpu_is_told_by_its_device_id(name: str) -> None:
    assert device_memory(name, {}) == FIRST
    assert device_memory(name, {"device_id": "1", "other": "2"}) == SECOND


@each("name", ["CPUExecutionProvider", "OpenVINOExecutionProvider", "QNNExecutionProvider"])
def test_other_providers_read_and_write_the_memory_of_the_cpu(name: str) -> None:
    assert device_memory(name, {"device_id": "1"}) == OF_CPU


def test_what_a_part_reads_elsewhere_is_counted_and_between_two_devices_twice() -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    here, there = (DeviceTensor(value._ortvalue, memory) for memory in (FIRST, SECOND))
    assert FIRST.copied_bytes([here, "text"]) == OF_CPU.copied_bytes([value]) == 0
    assert FIRST.copied_bytes([value]) == OF_CPU.copied_bytes([here]) == X.nbytes
    assert FIRST.copied_bytes([there]) == 2 * X.nbytes


@each(
    "memory, others, dtype, stays",
    [
        (FIRST, [FIRST], "float32", True),
        (FIRST, [SECOND, FIRST], "float16", True),
        (FIRST, [SECOND], "float32", False),
        (FIRST, [OF_CPU], "float32", False),
        (OF_CPU, [OF_CPU], "float32", False),
        (FIRST, [FIRST], "bfloat16", False),
        (FIRST, [FIRST], "string", False),
    ],
)
def test_an_output_stays_where_a_part_on_the_same_device_reads_it(
    memory: DeviceMemory, others: Sequence[DeviceMemory], dtype: str, *, stays: bool
) -> None:
    writer = part(writes=("x", "unread", "output"))
    readers = [(part(reads=("x", "output")), other) for other in others]
    tensors = {name: Tensor(name=name, dtype=dtype, shape=(1,)) for name in writer.writes}
    cascade: Any = SimpleNamespace(tensors=tensors, manifest=SimpleNamespace(writes=("output",)))
    assert read_on_device(cascade, writer, memory, readers) == ({"x"} if stays else set())


def part(reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> Part:
    sizes = ("weight_bytes", "looked_up_bytes", "largest_weight_bytes", "activation_bytes", "nodes")
    more: Any = dict.fromkeys(sizes, 0)
    return Part(file="", reads=reads, writes=writes, replicas=(), device=None, graph="", sha256="", data={}, **more)


def test_the_memory_of_a_device_is_not_read_as_that_of_the_cpu() -> None:
    class OnDevice(ort.OrtValue):  # type: ignore[misc]
        """A tensor whose address the CPU can't read."""

        def __init__(self) -> None:
            super().__init__(ort.OrtValue.ortvalue_from_numpy(X)._ortvalue)

        def device_name(self) -> str:
            return "cuda"

        def data_ptr(self) -> int:
            raise AssertionError

    np.testing.assert_array_equal(memory_of(OnDevice()).view(np.float32).reshape(X.shape), X)


# --- runs


def test_parts_on_one_device_copy_only_inputs_and_outputs(chain: Path, provider: str) -> None:
    """Whether or not a part is read by more than the next one."""
    cascade = on_devices(chain, ("exp", "neg"), provider, ["0", "0", "0"])
    expected = graphcut.run(Cascade(cascade.path, replace(cascade.manifest, devices=())), {"x": X})["y"]
    with Runner(cascade) as runner:
        for runs in (1, 2):
            np.testing.assert_allclose(runner.run({"x": X})["y"], expected, rtol=1e-6)
            assert runner.copied_bytes == runs * (X.nbytes + expected.nbytes)


@each(
    "numbers, tensors",
    [
        # `exp` is read by the second part, `relu` by the third, `neg` by the third.
        (["cpu", "cpu", "cpu"], 0),
        (["0", "0", "0"], 2),
        (["0", "0", "cpu"], 3),
        (["0", "cpu", "0"], 4),
        (["cpu", "0", "cpu"], 2),
        (["0", "1", "1"], 6),
        (["0", "1", "0"], 6),
    ],
)
def test_what_crosses_between_devices_is_copied_and_counted(
    chain: Path, provider: str, numbers: Sequence[str], tensors: int
) -> None:
    """All tensors are equally large, the input and the output included. Between two devices each is copied twice."""
    if provider == GPU and "1" in numbers:
        pytest.skip("one GPU")
    cascade = on_devices(chain, ("exp", "neg"), provider, numbers)
    expected = graphcut.run(Cascade(cascade.path, replace(cascade.manifest, devices=())), {"x": X})["y"]
    with Runner(cascade) as runner:
        np.testing.assert_allclose(runner.run({"x": X})["y"], expected, rtol=1e-6)
        assert runner.copied_bytes == tensors * X.nbytes
    log = RunLog(parts=3, workers=1)
    (found,) = graphcut.stream(cascade, [{"x": X}], workers=1, log=log)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)  # type: ignore[index]
    assert log.copied_bytes == tensors * X.nbytes


def test_what_waits_for_many_inputs_is_in_the_memory_of_the_cpu(
    chain: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer-wise pass counts it there, and here writes all of it to files."""
    cascade, made = on_devices(chain, ("exp", "neg"), provider, ["0", "0", "0"]), list[Any]()
    real = Stage.step

    def noted(stage: Stage, values: Values, *, stays: Collection[str]) -> dict[str, Any]:
        outputs = real(stage, values, stays=stays)
        made.extend(outputs.values())
        return outputs

    expected = graphcut.run(Cascade(cascade.path, replace(cascade.manifest, devices=())), {"x": X})["y"]
    monkeypatch.setattr(Stage, "step", noted)
    inputs = (input_values(cascade, {"x": X}) for _ in range(2))
    with SpillStore(cascade.tensors, 0) as store:
        for found in LayerwisePass(cascade, store, on_error="raise").run(inputs, LoadedParts(cascade)):
            np.testing.assert_allclose(found["y"], expected, rtol=1e-6)  # type: ignore[index]
        assert store.spilled_bytes == 2 * 3 * X.nbytes
    assert len(made) == 2 * 4
    assert not any(isinstance(value, DeviceTensor) for value in made)


def test_the_caches_of_a_decoder_stay_on_its_device(tmp_path: Path, provider: str) -> None:
    """Each step copies the inputs and the logits; the first one zeros besides, which have no bytes here."""
    onnx.save(decoders.with_concat(), tmp_path / "decoder.onnx")
    model = graphcut.load(tmp_path / "decoder.onnx")
    cascade = graphcut.split(model, graphcut.plan(model, graphcut.Into(2)))
    prompt, number = [3, 1, 4, 1, 5], 6
    expected = [token.token for token in graphcut.generate(cascade, [prompt], max_tokens=number)]
    log = RunLog(parts=2, workers=1)
    config = SessionConfig(provider=provider, options={"device_id": "0"})
    made = graphcut.generate(cascade, [prompt], max_tokens=number, workers=1, config=config, log=log)
    assert [token.token for token in made] == expected
    lengths = [len(prompt), *[1] * (number - 1)]
    feeds = sum(_fed_bytes(cascade, length, total) for length, total in zip(lengths, np.cumsum(lengths), strict=True))
    assert log.copied_bytes == feeds + sum(lengths) * decoders.VOCABULARY * 4


def _fed_bytes(cascade: Cascade, length: int, total: int) -> int:
    """The bytes of what both parts read of the inputs of a step that are no states."""
    sizes = {"input_ids": length, "position_ids": length, "attention_mask": int(total)}
    read = [name for part in cascade.parts for name in part.reads if name in sizes]
    return sum(8 * sizes[name] for name in read)


def test_states_on_a_device_are_cut_and_joined(tmp_path: Path, provider: str) -> None:
    """Proposed tokens that are wrong are cut off, and sequences of other lengths join a step: no token changes."""
    onnx.save(decoders.with_concat(), tmp_path / "decoder.onnx")
    model = graphcut.load(tmp_path / "decoder.onnx")
    cascade = graphcut.split(model, graphcut.plan(model, graphcut.Into(2)))
    config = SessionConfig(provider=provider, options={"device_id": "0"})
    prompts = [[3, 1, 4, 1, 5, 3, 1, 4], [2, 7], [1, 8, 2, 8]]
    for more in ({"draft": "lookup"}, {"batch": 3}):
        found = graphcut.generate(cascade, prompts, max_tokens=8, workers=1, config=config, **more)
        assert found.all() == graphcut.generate(cascade, prompts, max_tokens=8, workers=1).all()


@pytest.mark.skipif(not HAS_GPU, reason="no GPU, and a device is played in this process alone")
def test_processes_send_tensors_by_the_memory_of_the_cpu(chain: Path) -> None:
    cascade = on_devices(chain, ("exp", "neg"), GPU, ["0", "0", "0"])
    expected = graphcut.run(Cascade(cascade.path, replace(cascade.manifest, devices=())), {"x": X})["y"]
    save_manifest(cascade.manifest, cascade.path)
    log = RunLog(parts=3, workers=2)
    for found in graphcut.stream(cascade.path, [{"x": X}] * 3, via="processes", workers=2, log=log):
        np.testing.assert_allclose(found["y"], expected, rtol=1e-6)  # type: ignore[index]
    assert log.copied_bytes > 3 * (X.nbytes + expected.nbytes)
