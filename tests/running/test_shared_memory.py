"""Shared memory: what is written is what is read, room is used again, and a full disk is said, not died of."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from graphcut import RunError
from graphcut.running.executors.output_buffers import OutputBuffers
from graphcut.running.executors.protocol import Step
from graphcut.running.executors.shared_memory import INLINE_BYTES, SharedMemory, TensorRef, TensorSpec, spec_of
from graphcut.running.values import NON_NUMPY_TYPES

Array = NDArray[Any]
LARGE = INLINE_BYTES // 4 + 1


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return str(tmp_path / "shared")


def tensor(array: Array) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)


def floats_of(length: int, value: float = 1.0) -> ort.OrtValue:
    return tensor(np.full(length, value, np.float32))


def read(shared: SharedMemory, slot: TensorRef) -> list[float]:
    return list(shared.read(slot).numpy())


def regions(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 11), (LARGE,), (3, LARGE)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bool", "int8", "uint16", "int64", "uint64"])
def test_what_one_process_writes_another_reads(folder: str, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    slots = SharedMemory([folder], "a").write({"x": tensor(np.asarray(array))})
    found = SharedMemory([folder], "b").read(slots["x"])
    np.testing.assert_array_equal(found.numpy(), array, strict=True)


@pytest.mark.parametrize("length", [5, LARGE * 2])
@pytest.mark.parametrize("name", NON_NUMPY_TYPES)
def test_types_that_numpy_lacks_pass_as_their_bits(folder: str, name: str, length: int) -> None:
    bits, number = NON_NUMPY_TYPES[name]
    array = np.random.default_rng(0).integers(0, 200, length).astype(bits)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    found = SharedMemory([folder], "b").read(SharedMemory([folder], "a").write({"x": value})["x"])
    assert (found.element_type(), found.shape()) == (number, [length])
    again = SharedMemory([folder], "c").write({"x": found})["x"]
    raw = again.inline or (Path(again.region or "").read_bytes()[again.offset :])[: array.nbytes]
    assert raw == array.tobytes()


@pytest.mark.parametrize("length", [5, LARGE * 8])
def test_four_bit_integers_pass_packed(folder: str, length: int) -> None:
    """The numbers 0 to 7 in turns, as a quantised model gives them out."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=TensorProto.UINT4)]
    back = [helper.make_node("DequantizeLinear", ["q", "s"], ["y"])]
    x, y, s = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [] if name == "s" else ["n"]) for name in "xys")
    q = helper.make_tensor_value_info("q", TensorProto.UINT4, ["n"])
    first, second = (
        ort.InferenceSession(
            helper.make_model(
                helper.make_graph(body, "g", inputs, outputs),
                opset_imports=[helper.make_opsetid("", 21)],
                ir_version=10,
            ).SerializeToString()
        )
        for body, inputs, outputs in ((nodes, [x, s], [q]), (back, [q, s], [y]))
    )
    numbers, scale = np.arange(length, dtype=np.float32) % 8, tensor(np.array(1, np.float32))
    (made,) = first.run_with_ort_values(["q"], {"x": tensor(numbers), "s": scale})
    passed = SharedMemory([folder], "b").read(SharedMemory([folder], "a").write({"q": made})["q"])
    (found,) = second.run_with_ort_values(["y"], {"q": passed, "s": scale})
    np.testing.assert_array_equal(found.numpy(), numbers)


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "ünïcode", ""], object),
        np.array(["long" * INLINE_BYTES], object),
        [np.arange(3), np.arange(0)],
        {"a": 1.5},
        None,
    ],
    ids=["strings", "long strings", "sequence", "map", "nothing"],
)
def test_what_is_no_tensor_of_numbers_passes_as_it_is(folder: str, value: object) -> None:
    found = SharedMemory([folder], "b").read(SharedMemory([folder], "a").write({"x": value})["x"])
    assert repr(found) == repr(value)


def test_values_written_together_lie_in_one_region_and_small_ones_in_the_message(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    slots = shared.write({"a": floats_of(LARGE), "s": floats_of(3), "b": floats_of(LARGE, 2.0)})
    assert slots["a"].region == slots["b"].region
    assert slots["s"].region is None
    assert slots["b"].offset % 64 == 0
    assert regions(folder) == ["a-1"]


def test_what_is_read_lies_in_the_shared_memory_itself(folder: str) -> None:
    """The maker writes on, and the reader sees it: nothing was copied. A copy stays as it was."""
    maker, reader = SharedMemory([folder], "a"), SharedMemory([folder], "b")
    slot = maker.write({"x": floats_of(LARGE, 1.0)})["x"]
    seen, copied = reader.read(slot), reader.copy(slot)
    maker.free([slot.region or ""])
    assert maker.write({"x": floats_of(LARGE, 2.0)})["x"] == slot
    assert seen.numpy()[0] == 2
    assert copied.numpy()[0] == 1


def test_a_value_outlives_the_file_and_whoever_read_it(folder: str) -> None:
    reader = SharedMemory([folder], "b")
    slot = SharedMemory([folder], "a").write({"x": floats_of(LARGE)})["x"]
    seen = reader.read(slot)
    Path(slot.region or "").unlink()
    reader.forget([slot.region or ""])
    del reader
    gc.collect()
    np.testing.assert_array_equal(seen.numpy(), np.ones(LARGE))


def test_freed_room_is_used_again_and_grows(folder: str) -> None:
    """However sizes change, there are never more regions than were in use at once: two."""
    maker, reader = SharedMemory([folder], "a"), SharedMemory([folder], "b")
    used: list[TensorRef] = []
    for length in (LARGE, LARGE * 3, LARGE * 50, LARGE, LARGE * 200, LARGE * 7):
        used.append(maker.write({"x": floats_of(length, float(length))})["x"])
        assert read(reader, used[-1]) == [length] * length
        if len(used) == 2:
            maker.free([used.pop(0).region or ""])
    assert regions(folder) == ["a-1", "a-2"]


def test_the_smallest_room_that_does_is_taken(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    slots = [shared.write({"x": floats_of(length)})["x"] for length in (LARGE * 100, LARGE * 5, LARGE * 20)]
    shared.free(slot.region or "" for slot in slots)
    assert shared.write({"x": floats_of(LARGE * 4)})["x"].region == slots[1].region


def test_room_is_reserved_so_that_writing_can_not_fail(folder: str) -> None:
    slot = SharedMemory([folder], "a").allocate({"x": TensorSpec(1, (1000, 1000))})["x"]
    status = Path(slot.region or "").stat()
    assert status.st_size >= 4_000_000
    assert status.st_blocks * 512 >= status.st_size


def test_what_lies_nowhere_any_more_is_a_lookup_error(folder: str) -> None:
    slot = SharedMemory([folder], "a").write({"x": floats_of(LARGE)})["x"]
    Path(slot.region or "").unlink()
    with pytest.raises(LookupError):
        SharedMemory([folder], "b").read(slot)


def test_room_that_somebody_removed_is_not_used_again(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    slot = shared.write({"x": floats_of(LARGE)})["x"]
    Path(slot.region or "").unlink()
    shared.free([slot.region or ""])
    again = shared.write({"x": floats_of(LARGE)})["x"]
    assert read(SharedMemory([folder], "b"), again) == [1] * LARGE


@contextmanager
def no_file_longer_than(length: int) -> Iterator[None]:
    """As a full disk: the system refuses to make files longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_the_first_folder_has_no_room_the_next_is_used(folder: str, tmp_path: Path) -> None:
    slot = SharedMemory([str(tmp_path / "none"), folder], "a").write({"x": floats_of(LARGE)})["x"]
    assert slot.region == f"{folder}/a-1"


def test_no_room_at_all_is_said_in_words(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    with no_file_longer_than(8192), pytest.raises(RunError) as caught:
        shared.write({"x": floats_of(1_000_000)})
    assert str(caught.value) == f"there is no room for 4 MiB in {Path(folder).parent}"
    assert "TMPDIR" in caught.value.hint
    assert regions(folder) == []


def test_a_region_that_can_not_grow_stays_as_it_is(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    slot = shared.write({"x": floats_of(LARGE)})["x"]
    shared.free([slot.region or ""])
    with no_file_longer_than(16384), pytest.raises(RunError):
        shared.write({"x": floats_of(1_000_000)})
    assert shared.write({"x": floats_of(LARGE)})["x"] == slot


# Outputs that are written where they are to lie

STEP = Step(0, (0,), ("y",))


def work_of(array: Array, seen: list[bool]) -> Any:  # noqa: ANN401 - see `OutputBuffers`
    """Makes `array`, in the room it is given if that has its shape; notes whether it had."""

    def work(into: Any) -> Any:  # noqa: ANN401
        fits = "y" in into and tuple(into["y"].shape()) == array.shape
        seen.append(fits)
        if not fits:
            return {"y": tensor(array)}, (0.0,)
        into["y"].numpy()[:] = array
        return {"y": into["y"]}, (0.0,)

    return work


def test_from_the_second_step_of_a_kind_on_outputs_are_written_in_place(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    landing, held = OutputBuffers(shared), {"x": floats_of(2)}
    for number in range(3):
        slots, _ = landing.run(STEP, held, work_of(np.full(LARGE, number, np.float32), seen))
        assert read(SharedMemory([folder], "b"), slots["y"]) == [number] * LARGE
        shared.free([slots["y"].region or ""])
    assert seen == [False, True, True]
    assert regions(folder) == ["a-1"]


def test_steps_on_inputs_of_another_shape_are_of_another_kind(folder: str) -> None:
    landing, seen = OutputBuffers(SharedMemory([folder], "a")), list[bool]()
    for length in (LARGE, LARGE + 1, LARGE, LARGE + 1):
        landing.run(STEP, {"x": floats_of(length)}, work_of(np.ones(length, np.float32), seen))
    assert seen == [False, False, True, True]


def test_sizes_that_hang_on_values_are_not_guessed_twice(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    landing, held = OutputBuffers(shared), {"x": floats_of(2)}
    for length in (LARGE, LARGE + 5, LARGE, LARGE):
        slots, _ = landing.run(STEP, held, work_of(np.full(length, 3, np.float32), seen))
        assert read(SharedMemory([folder], "b"), slots["y"]) == [3] * length
        shared.free([slots["y"].region or ""])
    assert seen == [False, False, False, False]


def test_room_goes_back_when_a_step_fails(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    landing, held = OutputBuffers(shared), {"x": floats_of(2)}
    first, _ = landing.run(STEP, held, work_of(np.ones(LARGE, np.float32), seen))

    def fail(_into: object) -> Any:  # noqa: ANN401
        raise RunError("no")

    with pytest.raises(RunError):
        landing.run(STEP, held, fail)
    second, _ = landing.run(STEP, held, work_of(np.ones(LARGE, np.float32), seen))
    assert {first["y"].region, second["y"].region} == {f"{folder}/a-1", f"{folder}/a-2"}
    assert regions(folder) == ["a-1", "a-2"]


def test_a_form_is_that_of_a_tensor_of_numbers() -> None:
    assert spec_of(tensor(np.zeros((2, 3), np.int64))) == TensorSpec(7, (2, 3))
    assert TensorSpec(16, (3, 5)).size_bytes == 30
    assert spec_of([np.zeros(3)]) is None
    assert spec_of(np.array(["a"], object)) is None
    assert ml_dtypes.bfloat16(1).nbytes == TensorSpec(16, ()).size_bytes
