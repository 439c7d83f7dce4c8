"""Shared memory: values are unchanged, regions are reused, and a full disk is an error, not a crash."""

from __future__ import annotations

import errno
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
from graphcut.core.tensors import ELEMENT_TYPES, NON_NUMPY_TYPES
from graphcut.workers.executors.protocol import Step
from graphcut.workers.executors.shared_memory import (
    INLINE_BYTES,
    OutputBuffers,
    SharedMemory,
    TensorRef,
    TensorSpec,
    spec_of,
)

from cases import each

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


def read(shared: SharedMemory, ref: TensorRef) -> list[float]:
    return list(shared.read(ref).numpy())


def regions(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


@each("shape", [(), (0,), (3, 0, 2), (1,), (7, 11), (LARGE,), (3, LARGE)])
@each("dtype", ["float32", "float16", "float64", "bool", "int8", "uint16", "int64", "uint64"])
def test_values_written_by_one_process_are_read_by_another(folder: str, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    refs = SharedMemory([folder], "a").write({"x": tensor(np.asarray(array))})
    found = SharedMemory([folder], "b").read(refs["x"])
    np.testing.assert_array_equal(found.numpy(), array, strict=True)


@each("length", [5, LARGE * 2])
@each("name", sorted(NON_NUMPY_TYPES))
def test_types_that_numpy_lacks_keep_their_bits(folder: str, name: str, length: int) -> None:
    number, _, bits = ELEMENT_TYPES[name]
    array = np.random.default_rng(0).integers(0, 200, length).astype(bits)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    found = SharedMemory([folder], "b").read(SharedMemory([folder], "a").write({"x": value})["x"])
    assert (found.element_type(), found.shape()) == (number, [length])
    again = SharedMemory([folder], "c").write({"x": found})["x"]
    raw = again.inline or (Path(again.region or "").read_bytes()[again.offset :])[: array.nbytes]
    assert raw == array.tobytes()


@pytest.mark.parametrize("length", [5, LARGE * 8])
def test_four_bit_integers_stay_packed(folder: str, length: int) -> None:
    """The numbers 0 to 7 as outputs of a quantized model."""
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


@each(
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
def test_values_that_are_no_numeric_tensors_are_unchanged(folder: str, value: object) -> None:
    found = SharedMemory([folder], "b").read(SharedMemory([folder], "a").write({"x": value})["x"])
    assert repr(found) == repr(value)


def test_values_share_a_region_and_small_ones_are_inline(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    refs = shared.write({"a": floats_of(LARGE), "s": floats_of(3), "b": floats_of(LARGE, 2.0)})
    assert refs["a"].region == refs["b"].region
    assert refs["s"].region is None
    assert refs["b"].offset % 64 == 0
    assert regions(folder) == ["a-1"]


def test_reading_does_not_copy_but_copying_does(folder: str) -> None:
    """A value that was read changes when its writer overwrites the region; a copy does not."""
    maker, reader = SharedMemory([folder], "a"), SharedMemory([folder], "b")
    ref = maker.write({"x": floats_of(LARGE, 1.0)})["x"]
    seen, copied = reader.read(ref), reader.copy(ref)
    maker.free([ref.region or ""])
    assert maker.write({"x": floats_of(LARGE, 2.0)})["x"] == ref
    assert seen.numpy()[0] == 2
    assert copied.numpy()[0] == 1


@pytest.mark.usefixtures("own_garbage")
def test_a_value_outlives_its_file_and_its_reader(folder: str) -> None:
    reader = SharedMemory([folder], "b")
    ref = SharedMemory([folder], "a").write({"x": floats_of(LARGE)})["x"]
    seen = reader.read(ref)
    Path(ref.region or "").unlink()
    reader.forget([ref.region or ""])
    del reader
    gc.collect()
    np.testing.assert_array_equal(seen.numpy(), np.ones(LARGE))


def test_freed_regions_are_reused_and_grow(folder: str) -> None:
    """Whatever the sizes, there are never more regions than were in use at once: two."""
    maker, reader = SharedMemory([folder], "a"), SharedMemory([folder], "b")
    used: list[TensorRef] = []
    for length in (LARGE, LARGE * 3, LARGE * 50, LARGE, LARGE * 200, LARGE * 7):
        used.append(maker.write({"x": floats_of(length, float(length))})["x"])
        assert read(reader, used[-1]) == [length] * length
        if len(used) == 2:
            maker.free([used.pop(0).region or ""])
    assert regions(folder) == ["a-1", "a-2"]


def test_the_smallest_sufficient_region_is_taken(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    refs = [shared.write({"x": floats_of(length)})["x"] for length in (LARGE * 100, LARGE * 5, LARGE * 20)]
    shared.free(ref.region or "" for ref in refs)
    assert shared.write({"x": floats_of(LARGE * 4)})["x"].region == refs[1].region


@pytest.mark.parametrize("refusal", [None, errno.EINVAL, errno.EOPNOTSUPP])
def test_disk_blocks_are_reserved(folder: str, refusal: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system can't reserve them they are written."""

    def refuse(*_: int) -> None:
        raise OSError(refusal, "refused")

    if refusal is not None:
        monkeypatch.setattr("os.posix_fallocate", refuse)
    ref = SharedMemory([folder], "a").allocate({"x": TensorSpec(1, (1000, 1000))})["x"]
    status = Path(ref.region or "").stat()
    assert status.st_size >= 4_000_000
    assert status.st_blocks * 512 >= status.st_size


def test_reading_a_removed_region_is_a_lookup_error(folder: str) -> None:
    ref = SharedMemory([folder], "a").write({"x": floats_of(LARGE)})["x"]
    Path(ref.region or "").unlink()
    with pytest.raises(LookupError):
        SharedMemory([folder], "b").read(ref)


def test_a_removed_region_is_not_reused(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    ref = shared.write({"x": floats_of(LARGE)})["x"]
    Path(ref.region or "").unlink()
    shared.free([ref.region or ""])
    again = shared.write({"x": floats_of(LARGE)})["x"]
    assert read(SharedMemory([folder], "b"), again) == [1] * LARGE


@contextmanager
def no_file_longer_than(length: int) -> Iterator[None]:
    """The system limits the length of files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_second_folder_is_used_if_the_first_has_no_room(folder: str, tmp_path: Path) -> None:
    ref = SharedMemory([str(tmp_path / "none"), folder], "a").write({"x": floats_of(LARGE)})["x"]
    assert ref.region == f"{folder}/a-1"


def test_an_error_says_how_much_room_is_missing(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    with no_file_longer_than(8192), pytest.raises(RunError) as caught:
        shared.write({"x": floats_of(1_000_000)})
    assert str(caught.value) == f"there is no room for 4 MiB in {Path(folder).parent}"
    assert "TMPDIR" in caught.value.hint
    assert regions(folder) == []


def test_a_region_that_can_not_grow_is_unchanged(folder: str) -> None:
    shared = SharedMemory([folder], "a")
    ref = shared.write({"x": floats_of(LARGE)})["x"]
    shared.free([ref.region or ""])
    with no_file_longer_than(16384), pytest.raises(RunError):
        shared.write({"x": floats_of(1_000_000)})
    assert shared.write({"x": floats_of(LARGE)})["x"] == ref


# Output buffers

STEP = Step(0, (0,), ("y",))


def work_of(array: Array, seen: list[bool]) -> Any:  # noqa: ANN401 - see `OutputBuffers`
    """A step that returns `array`, in its output buffer if that has the right shape; `seen` notes whether it had."""

    def work(into: Any, _report: object) -> Any:  # noqa: ANN401
        fits = "y" in into and tuple(into["y"].shape()) == array.shape
        seen.append(fits)
        if not fits:
            return {"y": tensor(array)}, (0.0,)
        into["y"].numpy()[:] = array
        return {"y": into["y"]}, (0.0,)

    return work


def test_outputs_are_written_into_buffers_from_the_second_step_of_a_signature_on(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    buffers, held = OutputBuffers(shared), {"x": floats_of(2)}
    for number in range(3):
        refs, _ = buffers.run(STEP, held, work_of(np.full(LARGE, number, np.float32), seen), print)
        assert read(SharedMemory([folder], "b"), refs["y"]) == [number] * LARGE
        shared.free([refs["y"].region or ""])
    assert seen == [False, True, True]
    assert regions(folder) == ["a-1"]


def test_inputs_of_another_shape_are_another_signature(folder: str) -> None:
    buffers, seen = OutputBuffers(SharedMemory([folder], "a")), list[bool]()
    for length in (LARGE, LARGE + 1, LARGE, LARGE + 1):
        buffers.run(STEP, {"x": floats_of(length)}, work_of(np.ones(length, np.float32), seen), print)
    assert seen == [False, False, True, True]


def test_value_dependent_shapes_are_not_predicted_twice(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    buffers, held = OutputBuffers(shared), {"x": floats_of(2)}
    for length in (LARGE, LARGE + 5, LARGE, LARGE):
        refs, _ = buffers.run(STEP, held, work_of(np.full(length, 3, np.float32), seen), print)
        assert read(SharedMemory([folder], "b"), refs["y"]) == [3] * length
        shared.free([refs["y"].region or ""])
    assert seen == [False, False, False, False]


def test_buffers_are_freed_when_a_step_fails(folder: str) -> None:
    shared, seen = SharedMemory([folder], "a"), list[bool]()
    buffers, held = OutputBuffers(shared), {"x": floats_of(2)}
    first, _ = buffers.run(STEP, held, work_of(np.ones(LARGE, np.float32), seen), print)

    def fail(_into: object, _report: object) -> Any:  # noqa: ANN401
        raise RunError("no")

    with pytest.raises(RunError):
        buffers.run(STEP, held, fail, print)
    second, _ = buffers.run(STEP, held, work_of(np.ones(LARGE, np.float32), seen), print)
    assert {first["y"].region, second["y"].region} == {f"{folder}/a-1", f"{folder}/a-2"}
    assert regions(folder) == ["a-1", "a-2"]


def test_specs_exist_for_numeric_tensors_only() -> None:
    assert spec_of(tensor(np.zeros((2, 3), np.int64))) == TensorSpec(7, (2, 3))
    assert TensorSpec(16, (3, 5)).size_bytes == 30
    assert spec_of([np.zeros(3)]) is None
    assert spec_of(np.array(["a"], object)) is None
    assert ml_dtypes.bfloat16(1).nbytes == TensorSpec(16, ()).size_bytes
