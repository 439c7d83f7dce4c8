"""Weights that are not those of the split: an error that names the file on every way to run, never a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import graphcut
from graphcut import At, Cascade, MemoryCapError, Model, RunError, Runner
from graphcut.benchmarking.comparison import bench
from graphcut.core.digests import version_of
from graphcut.core.file_checks import check_unchanged
from graphcut.inputs.generating import generate_inputs

from conftest import LAYER_ENDS, openings

Feeds = Mapping[str, Any]
Way = Callable[[Cascade, Iterable[Feeds]], Iterable[Any]]


@pytest.fixture
def cascade(external_llm: Model) -> Cascade:
    return graphcut.split(external_llm, At(LAYER_ENDS))


@pytest.fixture
def feeds(external_llm: Model) -> list[Feeds]:
    return [dict(generate_inputs(external_llm, seed=seed)) for seed in range(3)]


def weights_of(cascade: Cascade, part: int) -> Path:
    (name,) = cascade.parts[part].data
    return cascade.root / name


def other_weights(file: Path, offset: int = 0) -> bytes:
    """The weights in `file` with the highest bit of an exponent flipped in the float at `offset`."""
    raw = bytearray(file.read_bytes())
    raw[offset + 3] ^= 0x40
    return bytes(raw)


def update(file: Path, content: bytes) -> None:
    """Replace a file by renaming a new one, as rsync does."""
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


# Before a run


def in_least_memory(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Any]:
    feeds = iter(feeds)
    first = [next(feeds)]
    with Runner(cascade, memory_bytes=1, exact=True) as runner, pytest.raises(MemoryCapError) as caught:
        runner.run_all(first)
    with Runner(cascade, memory_bytes=caught.value.smallest_bytes + (8 << 20), exact=True) as runner:
        yield runner.run(first[0])
        yield from map(runner.run, feeds)


def all_loaded(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Any]:
    with Runner(cascade) as runner:
        yield from map(runner.run, feeds)


def generated(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Any]:
    yield from graphcut.generate(cascade, [[1, 2, 3] for _ in feeds], max_tokens=2)


def measured(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Any]:
    for way in bench(cascade, next(iter(feeds)), ways=["parts"], rounds=1):
        if way.error:
            raise RunError(way.error)
        yield way


WAYS: Mapping[str, Way] = {
    "run": lambda cascade, feeds: [graphcut.run(cascade, feed) for feed in feeds],
    "least memory": in_least_memory,
    "all parts loaded": all_loaded,
    "threads": lambda cascade, feeds: graphcut.stream(cascade, feeds, workers=3),
    "processes": lambda cascade, feeds: graphcut.stream(cascade, feeds, via="processes", workers=3),
    "generate": generated,
    "bench": measured,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_part_whose_weights_have_a_flipped_bit_is_not_run(cascade: Cascade, feeds: list[Feeds], way: str) -> None:
    assert list(WAYS[way](cascade, feeds))
    file = weights_of(cascade, 1)
    file.write_bytes(other_weights(file))
    with pytest.raises(RunError, match=r"part-1\.onnx\.data was changed after the model was cut"):
        list(WAYS[way](cascade, feeds))


def test_a_part_of_a_newer_version_beside_older_parts_is_not_run(
    external_llm: Model, cascade: Cascade, feeds: list[Feeds]
) -> None:
    data = external_llm.path.with_name("llm.onnx.data")
    data.write_bytes(other_weights(data, offset=data.stat().st_size - 4))
    newer = graphcut.split(external_llm.path, At(LAYER_ENDS), external_llm.path.with_name("newer"))
    assert [part.sha256 for part in newer.parts] == [part.sha256 for part in cascade.parts]
    for name in ("part-2.onnx", "part-2.onnx.data"):
        update(cascade.root / name, (newer.root / name).read_bytes())
    with pytest.raises(RunError, match=r"part-2\.onnx\.data was changed after the model was cut") as caught:
        graphcut.run(cascade, feeds[0])
    assert caught.value.hint == "copy it again, or split the model again"


@pytest.mark.parametrize("digest", [False, True])
def test_shared_weights_are_compared_if_they_have_digests(
    external_llm: Model, feeds: list[Feeds], *, digest: bool
) -> None:
    cascade = graphcut.split(external_llm, At(LAYER_ENDS[:1]), weights="share", digest=digest)
    graphcut.run(cascade, feeds[0])
    file = external_llm.path.with_name("llm.onnx.data")
    update(file, other_weights(file))
    if digest:
        with pytest.raises(RunError, match=r"llm\.onnx\.data was changed after the model was cut"):
            graphcut.run(cascade, feeds[0])
    else:
        graphcut.run(cascade, feeds[0])  # nothing is known of its content


def test_what_other_parts_read_of_shared_weights_may_change(external_llm: Model) -> None:
    """Only a part that reads changed bytes is refused."""
    cascade = graphcut.split(external_llm, At(LAYER_ENDS), weights="share", digest=True)
    starts = [
        [offset for offset, _ in data.digest.ranges]
        for part in cascade.parts
        for data in part.data.values()
        if data.digest
    ]
    file = weights_of(cascade, 0)
    update(file, other_weights(file, next(offset for offset in starts[1] if offset not in starts[0])))
    check_unchanged(cascade, cascade.parts[0].contents)
    with pytest.raises(RunError, match=r"llm\.onnx\.data was changed after the model was cut"):
        check_unchanged(cascade, cascade.parts[1].contents)


def test_weights_are_read_once_however_often_their_part_is_loaded(
    cascade: Cascade, feeds: list[Feeds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime opens files too, but not through Python."""
    file = weights_of(cascade, 1)
    a_second_later_ns = file.stat().st_ctime_ns + 10**9
    monkeypatch.setattr("time.time_ns", lambda: a_second_later_ns)
    with openings(file) as seen:
        for feed in feeds:
            graphcut.run(cascade, feed)
        assert len(seen) == 1
        update(file, file.read_bytes())
        a_second_later_ns += 10**9
        seen.clear()
        for feed in feeds:
            graphcut.run(cascade, feed)
        assert len(seen) == 1


# During a run


def changing(feeds: list[Feeds], change: Callable[[], object]) -> Iterator[Feeds]:
    """The feeds; `change` is called before the last one."""
    yield from feeds[:-1]
    change()
    yield feeds[-1]


def assert_right(found: Iterable[Any], expected: list[Any]) -> None:
    for outputs, wanted in zip(found, expected, strict=True):
        assert list(outputs) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_array_equal(outputs[name], value, strict=True)


def test_weights_replaced_while_parts_are_loaded_in_turn_are_an_error(cascade: Cascade, feeds: list[Feeds]) -> None:
    """With a memory limit: see `test_memory_plan.py`."""
    expected, file = [graphcut.run(cascade, feed) for feed in feeds[:2]], weights_of(cascade, 1)
    answers = (graphcut.run(cascade, feed) for feed in changing(feeds, lambda: update(file, other_weights(file))))
    assert_right([next(answers), next(answers)], expected)
    with pytest.raises(RunError, match=r"part-1\.onnx\.data was changed after the model was cut"):
        next(answers)


@pytest.mark.parametrize("way", ["all parts loaded", "threads", "processes"])
def test_parts_that_stay_loaded_keep_their_weights_when_files_are_replaced(
    cascade: Cascade, feeds: list[Feeds], way: str
) -> None:
    expected, file = list(WAYS[way](cascade, feeds)), weights_of(cascade, 1)
    many = [*feeds[:2]] * 10 + [feeds[2]]
    found = list(WAYS[way](cascade, changing(many, lambda: update(file, other_weights(file)))))
    assert_right(found, [*expected[:2]] * 10 + [expected[2]])


@pytest.mark.parametrize("prepacked", [True, False])
def test_weights_that_are_overwritten_while_they_are_mapped_are_an_error(
    cascade: Cascade, feeds: list[Feeds], *, prepacked: bool
) -> None:
    file = weights_of(cascade, 1)
    with Runner(cascade, config=graphcut.SessionConfig(prepacked=prepacked)) as runner:
        runner.run(feeds[0])
        with file.open("r+b") as stream:
            stream.write(other_weights(file)[:4])
        with pytest.raises(RunError, match=r"part-1\.onnx\.data was overwritten while it was used") as caught:
            runner.run(feeds[1])
    assert caught.value.hint == "copy it again, or split the model again; don't change a cascade while it runs"


@pytest.mark.parametrize("name", ["part-0.onnx", "part-0.onnx.data"])
def test_a_file_that_is_replaced_between_check_and_load_is_found(
    cascade: Cascade, feeds: list[Feeds], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, load = cascade.root / name, ort.InferenceSession
    before = version_of(file)

    def replaced_first(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of ONNX Runtime
        update(file, file.read_bytes())
        return load(*arguments, **options)

    monkeypatch.setattr(ort, "InferenceSession", replaced_first)
    with pytest.raises(RunError, match=f"{name} was changed while it was loaded"):
        graphcut.run(cascade, feeds[0])
    assert version_of(file) != before
