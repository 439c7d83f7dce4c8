"""Running in little memory: what is predicted, what stays loaded, what waits on disk; and that the caps are kept."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import graphcut
from graphcut import At, Cascade, RunError, Runner, SessionConfig, demos
from graphcut.running.in_process import memory_plan, runner
from graphcut.running.in_process.memory_plan import (
    AvailableMemory,
    PartMemory,
    ResidencyPlan,
    best_pinned,
    peak_of,
    predict_memory,
)
from graphcut.running.in_process.memory_plan import schedule as scheduled
from graphcut.running.in_process.spilling import SpillStore
from graphcut.running.npz_files import save_outputs
from graphcut.running.stage import Stage
from graphcut.running.values import NON_NUMPY_TYPES, to_array, to_value

from conftest import floats, model_of
from heavy import WEIGHT_BYTES, WIDTH, in_a_process, write_heavy

MIB = 1 << 20
Array = NDArray[Any]


def cut(path: Path, *names: str, dims: Mapping[str, int] | None = None, **options: Any) -> Cascade:  # noqa: ANN401
    model = graphcut.load(path, dims=dims)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(names)), **options)


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """Four parts with a weight each. `t1` skips over two of them, `t2` is an output too, `mask` is read at the end."""
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"mul{i}") for i in range(3)]
    nodes.append(helper.make_node("Sum", ["t3", "t1", "mask"], ["y"], name="sum"))
    random = np.random.default_rng(3)
    weights = [onnx.numpy_helper.from_array(random.normal(size=(64, 64)).astype(np.float32), f"w{i}") for i in range(3)]
    inputs = [floats("t0", "rows", 64), floats("mask", "rows", 64)]
    outputs = [floats("y", "rows", 64), floats("t2", "rows", 64)]
    onnx.save(model_of(nodes, inputs, outputs, weights), tmp_path / "model.onnx")
    return cut(tmp_path / "model.onnx", "mul0", "mul1", "mul2", dims={"rows": 8})


def feeds_of(number: int, rows: int = 8) -> dict[str, Array]:
    random = np.random.default_rng(number)
    return {name: random.normal(size=(rows, 64)).astype(np.float32) for name in ("t0", "mask")}


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    return list(found) == list(expected) and all(np.array_equal(found[name], expected[name]) for name in expected)


# What is chosen


def need(loaded: int, loading: int = 0, running: int = 0) -> PartMemory:
    return PartMemory(loaded=loaded, loading=loading, ahead=loaded + loading, running=running)


def test_the_peak_is_that_of_the_part_that_takes_most() -> None:
    needs = [need(10, 4, 1), need(20, 0, 5), need(8, 8, 30)]
    every = frozenset(range(3))
    assert peak_of(needs, frozenset()) == 8 + 30
    assert peak_of(needs, every) == 38 + 30
    assert peak_of(needs, frozenset({1})) == 20 + 8 + 30
    # While the second runs (20 + 5), the third is loaded (8 + 8).
    assert peak_of(needs, frozenset(), is_ahead=True) == 20 + 5 + 16
    # Nothing comes after the third, and the second stays: beside it the third is loaded.
    assert peak_of(needs, frozenset({1}), is_ahead=True) == max(20 + 8 + 30, 20 + 10 + 1 + 16, 20 + 5 + 16)


def test_what_fits_is_never_streamed() -> None:
    needs = [need(10), need(20), need(30)]
    for is_once in (True, False):
        assert scheduled(needs, 60, is_once=is_once) == ResidencyPlan(
            frozenset({0, 1, 2}), is_ahead=False, peak_bytes=60
        )
        found = scheduled(needs, 59, is_once=is_once)
        assert found is not None
        assert found.pinned != {0, 1, 2}


def test_the_next_part_is_loaded_ahead_when_two_fit() -> None:
    needs = [need(10), need(20), need(30)]
    assert scheduled(needs, 50, is_once=True) == ResidencyPlan(frozenset(), is_ahead=True, peak_bytes=50)
    assert scheduled(needs, 49, is_once=True) == ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=30)
    assert scheduled(needs, 30, is_once=True) == ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=30)
    assert scheduled(needs, 29, is_once=True) is None


def test_parts_that_are_used_again_stay_where_they_fit() -> None:
    needs = [need(10), need(20), need(30)]
    # 40 hold 30 and 10 while 20 goes; or 20 and 10 while 30 goes needs 60. Pinning 10 leaves 30 for the largest.
    assert scheduled(needs, 40, is_once=False) == ResidencyPlan(frozenset({0}), is_ahead=False, peak_bytes=40)
    assert scheduled(needs, 50, is_once=False) == ResidencyPlan(frozenset({2}), is_ahead=False, peak_bytes=50)


@pytest.mark.parametrize("seed", range(60))
def test_what_stays_is_what_brute_force_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    needs = [need(*(int(n) for n in random.integers(0, (40, 12, 25)))) for _ in range(random.integers(1, 9))]
    least, most = peak_of(needs, frozenset()), peak_of(needs, frozenset(range(len(needs))))
    room = int(random.integers(least, max(least + 1, most)))
    choices = [frozenset(c) for n in range(len(needs) + 1) for c in itertools.combinations(range(len(needs)), n)]
    fitting = [choice for choice in choices if peak_of(needs, choice) <= room]
    found = best_pinned(needs, room)
    assert found in fitting
    assert sum(needs[i].loaded for i in found) == max(sum(needs[i].loaded for i in choice) for choice in fitting)


def test_large_sizes_are_filled_to_a_part_in_many_thousand() -> None:
    random = np.random.default_rng(1)
    needs = [need(int(size)) for size in random.integers(10 * MIB, 200 * MIB, 40)]
    room = sum(one.loaded for one in needs) // 2
    pinned = best_pinned(needs, room)
    assert room - peak_of(needs, pinned) < room // 1000


# What is predicted


SHAPES = {"t0": (8, 64), "mask": (8, 64)}
TENSOR = 4 * 8 * 64
"""Bytes of each tensor at a border, for 8 rows."""


def room_of(memory_bytes: int | None) -> AvailableMemory:
    return AvailableMemory(base_bytes=50 * MIB, memory_bytes=memory_bytes, free_bytes=1 << 40)


def test_the_smallest_cap_is_the_smallest(cascade: Cascade) -> None:
    with pytest.raises(RunError) as caught:
        predict_memory(cascade, SHAPES, room_of(1))
    (smallest,) = (
        int(word.replace(",", "")) for word in str(caught.value).split() if word[0].isdigit() and len(word) > 3
    )
    found = predict_memory(cascade, SHAPES, room_of(smallest))
    assert found.peak_bytes == smallest
    with pytest.raises(RunError, match=f"takes {smallest:,} bytes at the least, and the cap is {smallest - 1:,}"):
        predict_memory(cascade, SHAPES, room_of(smallest - 1))


def test_the_hint_of_a_refusal_is_a_cap_that_holds(cascade: Cascade) -> None:
    with pytest.raises(RunError) as caught:
        predict_memory(cascade, SHAPES, room_of(60))
    from graphcut.core.units import parse_bytes

    word = next(word for word in caught.value.hint.split() if word[0].isdigit())
    assert predict_memory(cascade, SHAPES, room_of(parse_bytes(word))).peak_bytes <= parse_bytes(word)


def test_activations_are_exact_for_the_sizes_of_the_split(cascade: Cascade) -> None:
    sizes = memory_plan.sizes_for(cascade, SHAPES)
    assert sizes.is_exact
    assert list(sizes.activations) == [part.activation_bytes for part in cascade.parts]
    assert set(sizes.tensors.values()) == {TENSOR}


def test_activations_are_scaled_for_other_sizes_and_said_to_be_estimates(cascade: Cascade) -> None:
    sizes = memory_plan.sizes_for(cascade, {"t0": (24, 64), "mask": (24, 64)})
    assert not sizes.is_exact
    assert set(sizes.tensors.values()) == {3 * TENSOR}
    assert list(sizes.activations) == [3 * part.activation_bytes for part in cascade.parts]
    assert predict_memory(cascade, {"t0": (24, 64)}, room_of(1 << 30)).is_about


def test_tensors_that_wait_are_those_that_skip(cascade: Cascade) -> None:
    """Before the third part wait t2, which it reads and which is an output, t1 for the last part, and the mask."""
    sizes = memory_plan.sizes_for(cascade, SHAPES)
    assert memory_plan.crossing_bytes(cascade, sizes) == 4 * TENSOR  # before the last: t1, t2, t3, mask


def test_what_a_part_takes_is_the_sum_of_what_it_is_known_to_take(cascade: Cascade) -> None:
    sizes = memory_plan.sizes_for(cascade, SHAPES)
    slow, fast = (memory_plan.needs_of(cascade, sizes, prepacked=prepacked) for prepacked in (False, True))
    weight = 4 * 64 * 64
    assert [one.loading for one in fast] == [weight, weight, weight, 0]
    assert [one.loading for one in slow] == [0, 0, 0, 0]
    session = 2 * MIB + 4096 * cascade.parts[0].nodes
    assert fast[0].loaded == slow[0].loaded == session + weight
    assert (fast[0].ahead, slow[0].ahead) == (session + 2 * weight, session)
    # Before the first part the mask lies beside, after the last t2; and one output is being copied.
    assert fast[0].running == cascade.parts[0].activation_bytes + TENSOR
    assert fast[3].running == cascade.parts[3].activation_bytes + 2 * TENSOR


def test_half_precision_counts_twice_since_the_processor_widens_it(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"], name=f"mul{i}") for i in range(2)]
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float16), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [8, 64]) for name in ("t0", "t2")]
    onnx.save(model_of(nodes, ends[:1], ends[1:], [weight]), tmp_path / "model.onnx")
    cascade = cut(tmp_path / "model.onnx", "mul0")
    sizes = memory_plan.sizes_for(cascade, {"t0": (8, 64)})
    assert not sizes.is_exact
    first = memory_plan.needs_of(cascade, sizes, prepacked=False)[0]
    assert (first.loaded, first.loading) == (2 * 2 * 64 * 64 + 2 * MIB + 4096 * cascade.parts[0].nodes, 2 * 2 * 64 * 64)


def test_weights_are_mapped_only_where_not_all_fit_and_bits_may_differ(cascade: Cascade) -> None:
    def is_mapped(memory_bytes: int | None, **options: bool) -> bool:
        return predict_memory(cascade, SHAPES, room_of(memory_bytes), **options).is_mapped

    assert [is_mapped(None), is_mapped(1 << 30), is_mapped(56 * MIB)] == [False, False, True]
    assert not is_mapped(56 * MIB, exact=True)


def test_a_forecast_says_which_parts_stay(cascade: Cascade) -> None:
    def residency_of(memory_bytes: int, *, is_once: bool) -> str:
        return predict_memory(cascade, SHAPES, room_of(memory_bytes), is_once=is_once, exact=True).residency

    assert residency_of(1 << 30, is_once=True) == "4 parts, resident"
    assert residency_of(53 * MIB, is_once=True) == "one part at a time"
    assert residency_of(55 * MIB, is_once=True) == "one part at a time, the next one loaded ahead"
    assert residency_of(55 * MIB, is_once=False) == "1 of 4 parts resident"


# How it is run


class Counting:
    """Counts how often each part is loaded, and how many there are at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads: list[str] = []
        self.alive = self.most = 0
        counting = self

        class Counted(Stage):
            def __init__(self, cascade: Cascade, part: graphcut.Part, *, config: SessionConfig) -> None:
                super().__init__(cascade, part, config=config)
                counting.loads.append(part.file)
                counting.alive += 1
                counting.most = max(counting.most, counting.alive)

            def close(self) -> None:
                super().close()
                counting.alive -= 1

        monkeypatch.setattr(runner, "Stage", Counted)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spill"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def tight(cascade: Cascade, monkeypatch: pytest.MonkeyPatch, spare_bytes: int = 0, **options: Any) -> Runner:  # noqa: ANN401
    """A runner with the smallest cap there is for so many inputs of so many rows, and some bytes more."""
    times, rows = options.pop("times", 2), options.pop("rows", 8)
    made = Runner(cascade, memory_bytes=1, **options)
    with pytest.raises(RunError) as caught:
        made.run_all([feeds_of(i, rows) for i in range(times)])
    smallest = int(str(caught.value).split()[3].replace(",", ""))
    room = AvailableMemory(made._room.base_bytes, smallest + spare_bytes, 0)
    monkeypatch.setattr(made, "_room", room)
    return made


NAMES = [f"part-{i}.onnx" for i in range(4)]


def test_parts_that_fit_are_loaded_once_for_many_runs(cascade: Cascade, counting: Counting) -> None:
    with Runner(cascade) as made:
        found = [made.run(feeds_of(i)) for i in range(3)]
        assert (counting.loads, counting.alive) == (NAMES, 4)
    assert counting.alive == 0
    assert all(same(outputs, graphcut.run(cascade, feeds_of(i))) for i, outputs in enumerate(found))


def test_inputs_are_fetched_one_by_one_where_parts_stay(cascade: Cascade) -> None:
    fetched: list[int] = []

    def feeds() -> Iterator[dict[str, Array]]:
        for i in range(3):
            fetched.append(i)
            yield feeds_of(i)

    with Runner(cascade) as made:
        answers = made.run_all(feeds())
        next(answers)
        assert fetched == [0]


def test_part_by_part_gives_what_one_by_one_gives_with_one_load_each(
    cascade: Cascade, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tight(cascade, monkeypatch, 10 * TENSOR, exact=True) as made:
        found = list(made.run_all([feeds_of(i) for i in range(5)]))
    assert (counting.loads, counting.most, counting.alive) == (NAMES, 1, 0)
    assert all(same(outputs, graphcut.run(cascade, feeds_of(i))) for i, outputs in enumerate(found))  # type: ignore[arg-type]


def test_what_waits_on_disk_is_what_would_wait_in_memory(
    cascade: Cascade, spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = SpillStore._write

    def noted(self: SpillStore, *arguments: Any) -> Path:  # noqa: ANN401
        path = real(self, *arguments)
        seen.append(len(list(path.parent.iterdir())))
        return path

    monkeypatch.setattr(SpillStore, "_write", noted)
    with tight(cascade, monkeypatch, exact=True) as made:
        found = list(made.run_all([feeds_of(i) for i in range(5)]))
        assert made.forecast is not None
        assert made.forecast.spills
    # t1 and mask of all five wait from the first part to the last; t2, t3 at times: all on disk.
    assert max(seen) >= 15
    assert list(spill_folder.iterdir()) == []
    assert all(same(outputs, graphcut.run(cascade, feeds_of(i))) for i, outputs in enumerate(found))  # type: ignore[arg-type]


def test_the_next_part_is_loaded_while_one_runs(
    cascade: Cascade, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part but the last runs for as long as it takes until the next is there."""
    real = Stage.step

    def patient(stage: Stage, held: Mapping[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while len(counting.loads) < min(4, NAMES.index(stage.part.file) + 2):
            assert time.monotonic() < deadline, "the next part is not loaded"
            time.sleep(0.001)
        return real(stage, held)

    monkeypatch.setattr(Stage, "step", patient)
    with tight(cascade, monkeypatch, 3 * MIB, exact=True) as made:
        (outputs,) = made.run_all([feeds_of(0)])
        assert made.forecast is not None
        assert made.forecast.schedule.is_ahead
    assert (counting.loads, counting.alive) == (NAMES, 0)
    assert counting.most == 2
    monkeypatch.undo()
    assert same(outputs, graphcut.run(cascade, feeds_of(0)))  # type: ignore[arg-type]


def test_under_a_cap_what_fits_stays_from_run_to_run(
    cascade: Cascade, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tight(cascade, monkeypatch, 3 * MIB, exact=True)
    with made:
        for i in range(3):
            assert same(made.run(feeds_of(i)), graphcut.run(cascade, feeds_of(i)))
        assert made.forecast is not None
        (stays,) = made.forecast.schedule.pinned
    assert counting.loads.count(NAMES[stays]) == 1
    assert [counting.loads.count(name) for name in NAMES if name != NAMES[stays]] == [3, 3, 3]


def test_a_run_under_a_cap_gives_what_a_run_gives(cascade: Cascade) -> None:
    expected = graphcut.run(cascade, feeds_of(0))
    assert same(graphcut.run(cascade, feeds_of(0), memory_bytes=1 << 40), expected)
    with pytest.raises(RunError, match="at the least, and the cap is 1,000"):
        graphcut.run(cascade, feeds_of(0), memory_bytes=1000)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_run_that_is_admitted_is_run(cascade: Cascade, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    with tight(cascade, monkeypatch, exact=True, times=times, rows=8000) as made:
        assert len(list(made.run_all([feeds_of(i, rows=8000) for i in range(times)]))) == times


def test_a_cap_that_cannot_hold_is_refused_before_any_part_is_loaded(cascade: Cascade, counting: Counting) -> None:
    with Runner(cascade, memory_bytes=1000) as made, pytest.raises(RunError, match="at the least"):
        made.run_all([feeds_of(0)])
    assert counting.loads == []


def test_a_later_input_that_is_too_large_is_refused_alone(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    with tight(cascade, monkeypatch, exact=True) as made:
        found = list(made.run_all([feeds_of(0), feeds_of(1, rows=4000), feeds_of(2)], on_error="skip"))
    assert isinstance(found[1], RunError)
    assert "at the least" in str(found[1])
    assert all(same(found[i], graphcut.run(cascade, feeds_of(i))) for i in (0, 2))  # type: ignore[arg-type]


def test_a_later_input_that_is_larger_takes_room_from_those_that_wait(
    cascade: Cascade, spill_folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for the next part, and for inputs to wait in memory, until the third comes.

    Of its tensors, 350 kB each, three are there while the first part runs, and eight at the end.
    """
    rows = [8, 8, 1400, 8]
    seen: list[tuple[int, bool, int]] = []
    made = tight(cascade, monkeypatch, 3 * MIB, exact=True)

    def feeds() -> Iterator[dict[str, Array]]:
        for i, number in enumerate(rows):
            seen.append((i, made._stages.is_ahead, len(list(spill_folder.rglob("*")))))
            yield feeds_of(i, number)

    with made:
        found = list(made.run_all(feeds()))
    assert seen[1] == (1, True, 0)
    i, is_ahead, files = seen[3]
    assert (i, is_ahead) == (3, False)
    assert files > 0
    assert (counting.alive, list(spill_folder.iterdir())) == (0, [])
    monkeypatch.undo()
    assert all(same(one, graphcut.run(cascade, feeds_of(i, rows[i]))) for i, one in enumerate(found))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_tight", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_input_that_fails_is_skipped_or_raised(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, place: int, *, is_tight: bool
) -> None:
    """Rows that don't fit together are found by the last part; a missing input before the first."""
    feeds: list[dict[str, Array]] = [feeds_of(i) for i in range(3)]
    feeds[place]["mask"] = np.ones((7, 64), np.float32)
    made = tight(cascade, monkeypatch, 10 * MIB if not is_tight else 0, exact=True)
    with made:
        found = list(made.run_all(feeds, on_error="skip"))
        assert [isinstance(one, RunError) for one in found] == [i == place for i in range(3)]
        assert str(found[place]).startswith("part-3.onnx failed: ")
        before, error = answers_before_an_error(made, feeds)
        assert error.startswith("part-3.onnx failed")
        assert same_all(before, found[:place])
        del feeds[place]["mask"]
        found = list(made.run_all(feeds, on_error="skip"))
        assert str(found[place]).endswith("'mask', and nothing is fed for it")
        assert [isinstance(one, RunError) for one in found] == [i == place for i in range(3)]
        before, error = answers_before_an_error(made, feeds)
        assert error == str(found[place])
        assert same_all(before, found[:place])


def answers_before_an_error(made: Runner, feeds: Sequence[Mapping[str, Array]]) -> tuple[list[Any], str]:
    found = list[Any]()
    try:
        for one in made.run_all(feeds):
            found.append(one)
    except RunError as error:
        return found, str(error)
    raise AssertionError


def same_all(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(found) == len(expected) and all(map(same, found, expected))


def test_inputs_that_all_fail_are_all_told(cascade: Cascade) -> None:
    with Runner(cascade) as made:
        found = list(made.run_all([{}, {}], on_error="skip"))
    assert [type(one) for one in found] == [RunError, RunError]


def test_stopping_early_leaves_nothing(
    cascade: Cascade, counting: Counting, spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tight(cascade, monkeypatch, exact=True) as made:
        answers = made.run_all([feeds_of(i) for i in range(5)])
        next(answers)
        assert list(spill_folder.iterdir()) != []
        answers.close()
        assert list(spill_folder.iterdir()) == []
    assert counting.alive == 0


# What can go wrong


def test_a_full_disk_is_told_and_nothing_stays(
    cascade: Cascade, spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = Path.write_bytes, [4]

    def full(path: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            real(path, b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data)

    with tight(cascade, monkeypatch, exact=True) as made:
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunError, match="No space left on device") as caught:
            list(made.run_all([feeds_of(i) for i in range(5)]))
    assert "TMPDIR" in caught.value.hint
    assert list(spill_folder.iterdir()) == []


def test_what_waits_in_memory_goes_to_disk_when_room_is_taken_away(cascade: Cascade, spill_folder: Path) -> None:
    arrays = {name: np.full((8, 64), i, np.float32) for i, name in enumerate(("t1", "t2", "t3"))}
    with SpillStore(cascade.tensors, 3 * TENSOR) as shelf:
        for name, array in arrays.items():
            shelf.put((1, name), to_value(array, cascade.tensors[name]))
        assert (shelf.in_memory_bytes, list(spill_folder.iterdir())) == (3 * TENSOR, [])
        shelf.shrink(TENSOR)
        assert (shelf.in_memory_bytes, shelf.spilled_bytes) == (TENSOR, 2 * TENSOR)
        assert [file.stat().st_size for file in spill_folder.rglob("*") if file.is_file()] == [TENSOR, TENSOR]
        found = {name: to_array(shelf.get((1, name)), cascade.tensors[name]) for name in arrays}
        assert same(found, arrays)
    assert list(spill_folder.iterdir()) == []


def test_a_spilled_tensor_that_is_gone_is_told(cascade: Cascade, spill_folder: Path) -> None:
    tensor = cascade.tensors["t1"]
    with SpillStore({"t1": tensor}, 0) as shelf:
        shelf.put((1, "t1"), to_value(np.ones((8, 64), np.float32), tensor))
        for file in spill_folder.rglob("*"):
            if file.is_file():
                file.unlink()
        with pytest.raises(RunError, match=r"'t1' waited in .*, which can't be read back"):
            shelf.get((1, "t1"))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "bfloat16", "float8e5m2"])
@pytest.mark.usefixtures("spill_folder")
def test_a_tensor_of_any_type_comes_back_from_disk(dtype: str) -> None:
    from graphcut.core.wiring import Tensor

    tensor = Tensor(name="t", dtype=dtype, shape=None)
    carried = NON_NUMPY_TYPES[dtype][0] if dtype in NON_NUMPY_TYPES else np.dtype(dtype)
    for shape in ((3, 5), (), (2, 0)):
        value = np.ones(shape, carried)
        bare = Tensor(name="t", dtype=dtype, shape=shape)
        with SpillStore({"t": tensor}, 0) as shelf:
            shelf.put((0, "t"), to_value(value, bare))
            np.testing.assert_array_equal(to_array(shelf.get((0, "t")), bare), value, strict=True)


def spoil(cascade: Cascade, what: str) -> None:
    part = cascade.parts[2]
    if what == "changed":
        cascade.file(part).write_bytes(b"changed")
    elif what == "gone":
        cascade.file(part).unlink()
    else:
        with (cascade.root / next(iter(part.data))).open("r+b") as file:
            file.truncate(100)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("changed", r"part-2\.onnx was changed after the model was cut"),
        ("gone", r"part-2\.onnx can't be read: No such file or directory"),
        ("short", r"part-2\.onnx\.data was changed after the model was cut"),
    ],
)
def test_a_part_that_is_spoilt_while_it_runs_is_told(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    def feeds() -> Iterator[dict[str, Array]]:
        yield feeds_of(0)
        spoil(cascade, what)
        yield feeds_of(1)

    with tight(cascade, monkeypatch, exact=True) as made, pytest.raises(RunError, match=words) as caught:
        list(made.run_all(feeds()))
    assert caught.value.hint


# What is measured

MEASURE = """
import hashlib
import numpy as np
import graphcut
from graphcut import Runner, RunError
cascade = graphcut.open_cascade(given[0])
exact, times = given[1] == "exact", int(given[2])
dims = cascade.manifest.dims
def feeds(seed):
    random = np.random.default_rng(seed)
    made = {}
    for name in cascade.manifest.reads:
        tensor = cascade.tensors[name]
        shape = [dims.get(d, d) for d in tensor.shape]
        is_index = tensor.dtype == "int64"
        made[name] = random.integers(1, 2, shape) if is_index else random.normal(size=shape).astype(tensor.dtype)
    return made
def smallest(runner):
    try:
        runner.run_all([feeds(i) for i in range(times)])
    except RunError as error:
        return int(str(error).split()[3].replace(",", ""))
"""

SMALLEST = """
import dataclasses
runner = Runner(cascade, memory_bytes=1, exact=exact)
cap = smallest(runner)
runner._room = dataclasses.replace(runner._room, memory_bytes=cap)
answered = sum(1 for _ in runner.run_all([feeds(i) for i in range(times)]))
said.update(cap=cap, measured=runner.peak.bytes, predicted=runner.forecast.peak_bytes, answered=answered)
"""


def write_chain(folder: Path) -> tuple[Cascade, int]:
    write_heavy(folder / "heavy.onnx", 8)
    names = tuple(f"add{i}" for i in range(7))
    return cut(folder / "heavy.onnx", *names, dims={"rows": 16}, weights="share"), 16


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    """300 MB of weights in eight parts, and next to nothing on disk."""
    return write_chain(tmp_path_factory.mktemp("heavy"))[0]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    """A decoder in four parts; the first and the last share the largest weight, which the last one transposes."""
    path = tmp_path_factory.mktemp("decoder") / "llm.onnx"
    demos.write("llm", path, hidden=512, layers=4, vocab=16000, tied=True, external=True)
    model = graphcut.load(path, dims={"batch": 2, "seq": 64, "total": 64, "past": 0})
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(4)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak since a moment")
@pytest.mark.parametrize("name", ["heavy", "decoder"])
@pytest.mark.parametrize("exact", ["exact", "mapped"])
def test_the_smallest_cap_is_kept(request: pytest.FixtureRequest, name: str, exact: str) -> None:
    cascade: Cascade = request.getfixturevalue(name)
    said = in_a_process(MEASURE + SMALLEST, cascade.path, exact, 3)
    assert said["answered"] == 3
    assert said["measured"] <= said["predicted"] <= said["cap"]


PEAK = """
from graphcut.running.in_process.process_memory import PeakMemory, give_back, resident_bytes
(graphcut.Runner(cascade, memory_bytes=1 << 40, exact=exact)).run(feeds(0))  # the library's code is in memory now
import gc; gc.collect(); give_back()
base = resident_bytes()
runner = Runner(cascade, memory_bytes=1, exact=exact)
import dataclasses
runner._room = dataclasses.replace(runner._room, memory_bytes=smallest(runner) + (4 << 20))
(outputs,) = runner.run_all([feeds(0)])
said["above"] = runner.peak.bytes - base
runner.close(); del outputs
said["left"] = resident_bytes() - base
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak since a moment")
@pytest.mark.parametrize("name", ["heavy", "decoder"])
def test_one_part_at_a_time_takes_little_more_than_the_largest_part(request: pytest.FixtureRequest, name: str) -> None:
    """Mapped, so that no weight is there twice. What was taken comes back."""
    cascade: Cascade = request.getfixturevalue(name)
    said = in_a_process(MEASURE + PEAK, cascade.path, "mapped", 1)
    sizes = memory_plan.sizes_for(cascade, {})
    largest = max(part.weight_bytes for part in cascade.parts)
    activations = max(part.activation_bytes for part in cascade.parts)
    assert said["above"] <= 1.15 * (largest + memory_plan.crossing_bytes(cascade, sizes) + activations) + 4 * MIB
    assert said["left"] <= 4 * MIB


LOADED = """
import graphcut
from graphcut.running.in_process.process_memory import PeakMemory, resident_bytes
from graphcut.running.stage import SessionConfig, Stage
cascade = graphcut.open_cascade(given[0])
Stage(cascade, cascade.parts[0], config=SessionConfig(prepacked=False)).close()  # the library's code is in memory now
before, peak = resident_bytes(), PeakMemory()
stage = Stage(cascade, cascade.parts[0], config=SessionConfig(prepacked=False))
said["above"] = peak.bytes - before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak since a moment")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_mapped_weight_is_not_read_when_it_is_loaded_though_it_be_transposed(
    tmp_path: Path, *, transposed: bool
) -> None:
    write_heavy(tmp_path / "heavy.onnx", 2, transposed=transposed)
    cascade = cut(tmp_path / "heavy.onnx", "add0", weights="share")
    assert in_a_process(LOADED, cascade.path)["above"] < 4 * MIB < WEIGHT_BYTES / 8


TWO_OUTPUTS = """
import numpy as np
import graphcut
from graphcut.running.in_process.process_memory import give_back, resident_bytes, keep_nothing_large
from graphcut.running.stage import SessionConfig, Stage
from graphcut.running.in_process.sequential import input_values
keep_nothing_large()
cascade = graphcut.open_cascade(given[0])
held = input_values(cascade, {"x": np.ones(20_000_000, np.float32)})
made = Stage(cascade, cascade.parts[0], config=SessionConfig(arena=False)).step(held)
both = resident_bytes()
del made["a"]
said["freed"] = both - resident_bytes()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has now")
def test_an_output_that_nobody_holds_is_freed_though_others_of_its_part_live(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], name="halve", axis=0),
        helper.make_node("Add", ["a", "b"], ["y"], name="add"),
    ]
    onnx.save(model_of(nodes, [floats("x", 20_000_000)], [floats("y", 10_000_000)]), tmp_path / "model.onnx")
    cascade = cut(tmp_path / "model.onnx", "halve")
    assert cascade.parts[0].writes == ("a", "b")
    assert in_a_process(TWO_OUTPUTS, cascade.path)["freed"] > 35_000_000


LIMITED = """
import re, resource
import numpy as np
import onnxruntime as ort
import graphcut
from graphcut.running.stage import SessionConfig, session_options
cascade, model, limit, answer = graphcut.open_cascade(given[0]), given[1], int(given[2]), given[3]
x = np.load(given[4])
taken = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, taken + limit))
try:
    ort.InferenceSession(model, session_options(SessionConfig()), providers=["CPUExecutionProvider"])
except Exception as error:
    said["whole"] = str(error)
(y,) = graphcut.run(cascade, {"x0": x}, memory_bytes=260 << 20, exact=True).values()
np.save(answer, y)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what RLIMIT_DATA limits")
def test_where_the_whole_model_dies_its_parts_answer_bit_for_bit(heavy: Cascade, tmp_path: Path) -> None:
    """300 MB of weights, and 200 MiB to have them in."""
    import onnxruntime as ort

    model, answer, question = heavy.source, tmp_path / "y.npy", tmp_path / "x.npy"
    x = np.random.default_rng(5).normal(size=(4, WIDTH)).astype(np.float32)
    np.save(question, x)
    assert sum(part.weight_bytes for part in heavy.parts) == 8 * WEIGHT_BYTES > 300_000_000
    said = in_a_process(LIMITED, heavy.path, model, 200 * MIB, answer, question)
    assert "bad_alloc" in said["whole"] or "Cannot allocate memory" in said["whole"]
    from graphcut.running.stage import session_options

    session = ort.InferenceSession(model, session_options(SessionConfig()), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x0": x})
    np.testing.assert_array_equal(np.load(answer), expected, strict=True)
    assert not np.array_equal(expected, x)


BARE = """
import importlib.util, sys
wanted = ("onnx", "networkx", "scipy", "typer", "rich", "google", "flatbuffers", "click", "ray")
found = [name for name in wanted if importlib.util.find_spec(name)]
import numpy as np
import graphcut
cascade = graphcut.open_cascade(sys.argv[1])
feeds = dict(np.load(sys.argv[2]))
with graphcut.Runner(cascade, memory_bytes=1 << 40) as runner:
    one, two = runner.run_all([feeds, feeds])
three = graphcut.run(cascade, feeds)
four, = graphcut.stream(cascade, [feeds])
assert all(np.array_equal(one[name], other[name]) for other in (two, three, four) for name in one)
np.savez(sys.argv[3], **one)
print(found)
"""


def test_a_machine_without_onnx_runs_a_cascade(cascade: Cascade, tmp_path: Path) -> None:
    """An environment of its own, which holds numpy, onnxruntime, msgspec and graphcut, and nothing else."""
    place = tmp_path / "bare"
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    for name in ("numpy", "onnxruntime", "msgspec", "graphcut"):
        home = Path(__import__(name).__file__ or "").parent
        for found in (home, home.with_name(f"{name}.libs")):
            if found.exists():
                (site / found.name).symlink_to(found)
    save_outputs(feeds_of(0), tmp_path / "in.npz")
    words = (place / "bin" / "python", "-I", "-c", BARE, cascade.path, tmp_path / "in.npz", tmp_path / "out.npz")
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    with np.load(tmp_path / "out.npz") as found:
        assert same({name: found[name] for name in ("y", "t2")}, graphcut.run(cascade, feeds_of(0)))
