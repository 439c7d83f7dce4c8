"""`fetch`: parts and the byte ranges that they read, from a folder, a server or a store; and running what is there."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from checkpoints import save_checkpoint
from onnx import helper, numpy_helper
from range_server import Served, serving

import graphcut
from graphcut import At, Cascade, CascadeError, GraphcutError, Into, RunError, Runner, SessionConfig, UsageError, demos
from graphcut.core.errors import StallWarning
from graphcut.core.present_parts import open_present
from graphcut.inputs.generating import generate_inputs
from graphcut.transferring import fetching
from graphcut.transferring.file_sources import source_of

from cases import each, seeded
from conftest import FIXTURES, LAYER_ENDS, floats, model_of

EXACT = SessionConfig(optimize="none")


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    """A decoder in three parts that share the weights of a checkpoint in two files, with digests."""
    home = tmp_path_factory.mktemp("served")
    demos.write("llm", home / "whole.onnx", layers=6, hidden=128)
    weights = [tensor for tensor in onnx.load(home / "whole.onnx").graph.initializer if len(tensor.raw_data) >= 1024]
    save_checkpoint(home / "hf", {tensor.name: numpy_helper.to_array(tensor) for tensor in weights}, files=2)
    graphcut.link(home / "whole.onnx", home / "hf", home / "linked.onnx")
    return graphcut.split(home / "linked.onnx", Into(3), weights="share", digest=True)


@pytest.fixture(scope="module")
def copied(linked: Cascade, tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    """The same decoder in two parts with weights of their own."""
    return graphcut.split(linked.source, Into(2), tmp_path_factory.mktemp("copied") / "parts")


@pytest.fixture
def served(linked: Cascade) -> Iterator[Served]:
    with serving(linked.root) as found:
        yield found


def url_of(served: Served) -> str:
    return f"{served.url}linked.cascade.json"


def needed_bytes(cascade: Cascade, part: int) -> int:
    """The bytes of a part, of its weights and of the manifest."""
    digests = [file.digest for file in cascade.parts[part].data.values()]
    weights = sum(length for digest in digests if digest is not None for _, length in digest.ranges)
    return weights + cascade.file(cascade.parts[part]).stat().st_size + cascade.path.stat().st_size


def feeds_of(cascade: Cascade) -> dict[str, Any]:
    model = graphcut.load(cascade.source)
    return dict(generate_inputs(model, seed=0, sizes={"batch": 1, "seq": 4, "past": 0, "total": 4}))


def test_parts_fetched_into_three_folders_give_the_bits_of_the_whole(
    linked: Cascade, served: Served, tmp_path: Path
) -> None:
    values = feeds_of(linked)
    expected = graphcut.run(linked, values, config=EXACT)
    for k in range(3):
        served.sent = 0
        graphcut.fetch(url_of(served), tmp_path / f"device-{k}", parts=[k])
        assert served.sent <= 1.05 * needed_bytes(linked, k)
    for k in range(3):
        cascade = open_present(tmp_path / f"device-{k}" / "linked.cascade.json")
        assert [part.file for part in cascade.parts] == [linked.parts[k].file]
        assert set(cascade.manifest.reads) == set(linked.parts[k].reads)
        fed = {name: values[name] for name in cascade.manifest.reads}
        with Runner(cascade.path, config=EXACT) as runner:
            made = runner.run(fed)
        assert all(np.array_equal(made[n], v) for n, v in graphcut.run(cascade, fed, config=EXACT).items())
        values |= made
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, strict=True)


def test_files_take_only_what_their_parts_read(linked: Cascade, served: Served, tmp_path: Path) -> None:
    graphcut.fetch(url_of(served), tmp_path / "out", parts=[1])
    names = {"linked.cascade.json", "fetched.json", linked.parts[1].file, *linked.parts[1].data}
    assert {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.*")} == names
    for name, data in linked.parts[1].data.items():
        found, whole = (root / name for root in (tmp_path / "out", linked.root))
        assert found.stat().st_size == data.bytes
        assert data.digest is not None
        for start, length in data.digest.ranges:
            assert found.read_bytes()[start : start + length] == whole.read_bytes()[start : start + length]
    read = sum(length for d in linked.parts[1].data.values() if d.digest for _, length in d.digest.ranges)
    sent = sum(end - start for _, start, end in served.ranges)
    assert sent == read


def test_the_same_command_adds_parts_until_the_cascade_is_whole(
    linked: Cascade, served: Served, tmp_path: Path
) -> None:
    for k in (2, 0, 1):
        cascade = graphcut.fetch(url_of(served), tmp_path / "out", parts=[k])
    assert cascade.manifest.elsewhere == {}
    assert graphcut.verify_files(cascade)
    assert graphcut.verify(linked.source, cascade, structural_only=True)
    served.sent = 0
    graphcut.fetch(url_of(served), tmp_path / "out")
    assert served.sent == linked.path.stat().st_size
    for wrong, said, hint in (
        ({"parts": [3]}, "there is no part 3", "the cascade has the parts 0 to 2"),
        ({"device": "pi"}, "no part is for the device 'pi'", "the parts are for no devices: split with `Across`, or"),
    ):
        for output in (tmp_path / "out", tmp_path / "new"):
            with pytest.raises(UsageError, match=said) as caught:
                graphcut.fetch(url_of(served), output, **wrong)
            assert caught.value.hint.startswith(hint)
    assert not (tmp_path / "new").exists()
    assert graphcut.verify_files(tmp_path / "out" / linked.path.name)


def test_parts_of_a_device_are_fetched_by_its_name(linked: Cascade, tmp_path: Path) -> None:
    manifest = json.loads(linked.path.read_text())
    host = {"provider": "CPUExecutionProvider", "provider_options": [], "threads": 0, "session_config": []}
    manifest["devices"] = [{"name": name, "memory_bytes": None, **host} for name in ("nano", "laptop")]
    for part, name in zip(manifest["parts"], ("nano", "laptop", "nano"), strict=True):
        part["device"] = name
    path = linked.root / "devices.json"
    path.write_text(json.dumps(manifest))
    found = graphcut.fetch(path, tmp_path / "out", device="nano")
    assert [part.file for part in found.parts] == [linked.parts[k].file for k in (0, 2)]
    with pytest.raises(UsageError, match="device 'nanno'") as caught:
        graphcut.fetch(path, tmp_path / "other", device="nanno")
    assert caught.value.hint == "did you mean 'nano'? the parts are for laptop, nano"
    path.unlink()


def test_what_several_parts_of_a_rank_read_is_fetched_once(tmp_path: Path) -> None:
    path = FIXTURES / "tiny-llama-fp32" / "model.onnx"
    ranked = graphcut.split_by_rank(path, tmp_path / "parts", ranks=2)
    with serving(ranked.root) as served:
        found = graphcut.fetch(f"{served.url}cascade.json", tmp_path / "rank-1", device="rank-1")
        spans = sorted(span for _, *span in served.ranges)
    assert {part.rank for part in found.parts} == {1}
    data = "part-rank-1.onnx.data"
    assert (found.root / data).read_bytes() == (ranked.root / data).read_bytes()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_folder_and_a_store_serve_as_well(copied: Cascade, tmp_path: Path) -> None:
    graphcut.fetch(copied.root, tmp_path / "from-folder", parts=[1])
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    for file in copied.root.iterdir():
        memory.pipe(f"/bucket/{file.name}", file.read_bytes())
    graphcut.fetch("memory://bucket", tmp_path / "from-store", parts=[1])
    for name in (copied.parts[1].file, *copied.parts[1].data, "cascade.json"):
        assert (tmp_path / "from-store" / name).read_bytes() == (copied.root / name).read_bytes()
        assert (tmp_path / "from-folder" / name).read_bytes() == (copied.root / name).read_bytes()
    memory.pipe(f"/bucket/{copied.parts[0].file}.data", b"short")
    with pytest.raises(CascadeError, match="has 5 bytes, but had"):
        graphcut.fetch("memory://bucket", tmp_path / "from-store", parts=[0])


# What goes wrong


def test_a_fetch_that_breaks_off_goes_on_where_it_stopped(
    copied: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with serving(copied.root) as served:
        served.breaks_after = copied.path.stat().st_size + 1000
        with pytest.raises(GraphcutError, match=r"part-0.onnx.data can't be read") as caught:
            graphcut.fetch(served.url, tmp_path / "out", parts=[0])
        assert "the same command goes on" in caught.value.hint
        with pytest.raises(CascadeError, match=r"has no cascade"):
            graphcut.open_cascade(tmp_path / "out")
        served.breaks_after = None
        graphcut.fetch(served.url, tmp_path / "out", parts=[0])
    assert open_present(tmp_path / "out").parts == copied.parts[:1]


def test_any_error_of_a_store_says_what_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the packages for stores are no OSErrors: that of Hugging Face raises httpx.ConnectError."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

    def refused(*_: object, **__: object) -> bytes:
        raise RuntimeError("name or service not known")

    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refused)
    message = "cascade.json of memory://nowhere can't be read: name or service not known"
    with pytest.raises(GraphcutError, match=message) as caught:
        graphcut.fetch("memory://nowhere", tmp_path / "out")
    assert caught.value.hint == "check the address; the same command goes on where this one stopped"


def test_a_server_that_is_busy_is_asked_again(
    linked: Cascade, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    served.failures = 2
    graphcut.fetch(url_of(served), tmp_path / "out", parts=[0])
    assert open_present(tmp_path / "out" / "linked.cascade.json").parts == linked.parts[:1]


FETCH = """
import sys, graphcut
graphcut.fetch(sys.argv[1], sys.argv[2])
"""


def test_a_fetch_that_is_killed_goes_on_and_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    """Some blocks of weights; the server sends two, and the process is killed while it waits for the others."""
    draw = np.random.default_rng(0)
    weights = [numpy_helper.from_array(draw.random((2048, 2048), np.float32), f"w{i}") for i in range(3)]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(3)]
    onnx.save(model_of(nodes, [floats("t0", 1, 2048)], [floats("t3", 1, 2048)], weights), tmp_path / "net.onnx")
    cascade = graphcut.split(tmp_path / "net.onnx", Into(1), tmp_path / "parts")
    ((name, data),) = cascade.parts[0].data.items()
    assert data.digest is not None
    with serving(cascade.root) as served:
        served.most_ranges = 2
        process = subprocess.Popen([sys.executable, "-c", FETCH, served.url, str(tmp_path / "out")])
        while not served.is_written(tmp_path / "out" / name, 2):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "out" / "cascade.json").exists()
        written = {*served.ranges[:2]}
        served.most_ranges = None
        served.ranges.clear()
        graphcut.fetch(served.url, tmp_path / "out")
        asked = {*served.ranges}  # the server may note a request of the killed process only now
        assert len(asked) == len(data.digest.blocks) - 2 > 3
        assert asked.isdisjoint(written)
    assert graphcut.verify_files(tmp_path / "out")


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_server_that_sends_nothing_is_said(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    """One that sends slowly is not."""
    monkeypatch.setattr(fetching, "_STALL_S", 0.3)
    served.most_ranges = 0 if is_silent else None
    served.pause_s = 0.0 if is_silent else 0.05

    def answer_later() -> None:
        while not served.ranges:
            time.sleep(0.01)
        time.sleep(0.8)
        served.most_ranges = None

    later = threading.Thread(target=answer_later)
    later.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphcut.fetch(url_of(served), tmp_path / "out", parts=[0])
    later.join()
    said = [str(one.message) for one in caught if issubclass(one.category, StallWarning)]
    assert said == ["the server has sent nothing for 0 s; still waiting"] * is_silent


def test_a_server_without_range_is_said(served: Served, tmp_path: Path) -> None:
    served.knows_range = False
    with pytest.raises(CascadeError, match="sends whole files only") as caught:
        graphcut.fetch(url_of(served), tmp_path / "out", parts=[0])
    assert "knows HTTP Range" in caught.value.hint
    place, _ = source_of(url_of(served))
    served.wholes, name, problems = 0, next(served.root.glob("*.onnx")).name, list[str]()

    def ask() -> None:
        with pytest.raises(CascadeError) as refusal:
            place.piece(name, 0, 10, 100)
        problems.append(str(refusal.value))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(problems), len(set(problems)), served.wholes) == (8, 1, 1)


@each("change", ["shorter", "empty", "longer", "one bit", "part"])
def test_a_file_that_is_not_that_of_the_split_is_refused(copied: Cascade, tmp_path: Path, change: str) -> None:
    shutil.copytree(copied.root, tmp_path / "served")
    part = copied.parts[0]
    file = tmp_path / "served" / (part.file if change == "part" else next(iter(part.data)))
    raw = bytearray(file.read_bytes())
    if change in {"shorter", "empty"}:
        del raw[-1 if change == "shorter" else 0 :]
    elif change == "longer":
        raw += b"x"
    else:
        raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with serving(tmp_path / "served") as served, pytest.raises(CascadeError, match=file.name) as caught:
        graphcut.fetch(served.url, tmp_path / "out", parts=[0])
    assert "truncated, or of another split" in caught.value.hint
    assert not (tmp_path / "out" / "cascade.json").exists()
    assert not (tmp_path / "out" / part.file).exists()


def test_a_missing_file_and_a_missing_server_are_named(tmp_path: Path) -> None:
    with serving(tmp_path) as served, pytest.raises(GraphcutError, match=r"cascade.json of .* can't be read: .*404"):
        graphcut.fetch(served.url, tmp_path / "out")
    with pytest.raises(GraphcutError, match=r"cascade.json of .* can't be read"):
        graphcut.fetch(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UsageError, match=r"fsspec|can't be opened"):
        graphcut.fetch("nosuchstore://x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@each("name", ["../evil", "/evil", "sub/../../evil", "cascade.json", "x\0y"])
def test_a_manifest_can_name_no_file_outside_of_the_folder(copied: Cascade, tmp_path: Path, name: str) -> None:
    manifest = json.loads(copied.path.read_text())
    for key in ("file", "data"):
        changed = json.loads(json.dumps(manifest))
        part = changed["parts"][0]
        part[key] = name if key == "file" else {name: next(iter(part["data"].values()))}
        (tmp_path / "served").mkdir(exist_ok=True)
        (tmp_path / "served" / "cascade.json").write_text(json.dumps(changed))
        with pytest.raises(CascadeError, match="no file for this folder"):
            graphcut.fetch(tmp_path / "served", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_without_digests_are_refused(linked: Cascade, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(linked.root / "whole.onnx", home / "net.onnx")
    graphcut.split(home / "net.onnx", Into(2), weights="share")
    with pytest.raises(CascadeError, match="have no digest") as caught:
        graphcut.fetch(home / "net.cascade.json", tmp_path / "out")
    assert caught.value.hint == "split again with `digest=True`, or copy the weights"


def test_a_folder_with_other_files_is_left_alone(copied: Cascade, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UsageError, match="not of this cascade"):
        graphcut.fetch(copied.root, tmp_path)
    graphcut.fetch(copied.root, tmp_path / "out", parts=[0])
    shutil.copytree(copied.root, tmp_path / "newer")
    (tmp_path / "newer" / "cascade.json").write_bytes(copied.path.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="not of this cascade"):
        graphcut.fetch(tmp_path / "newer", tmp_path / "out", parts=[1])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine", "newer", "out"]


def test_too_little_space_is_said_before_anything_is_fetched(
    copied: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with serving(copied.root) as served:
        with pytest.raises(GraphcutError, match="1 B free"):
            graphcut.fetch(served.url, tmp_path / "out")
        assert served.ranges == []


@each("name", ["part-0.onnx", "part-0.onnx.data", "cascade.json"])
def test_what_is_no_regular_file_is_refused(copied: Cascade, tmp_path: Path, name: str) -> None:
    """A pipe may never end."""
    source = Path(shutil.copytree(copied.root, tmp_path / "parts"))
    (source / name).unlink()
    os.mkfifo(source / name)
    with pytest.raises(CascadeError, match=f"{name} is no regular file"):
        graphcut.fetch(source, tmp_path / "out")
    with pytest.raises(GraphcutError, match=f"{name} is no regular file"):
        graphcut.open_cascade(source)


def test_a_part_is_no_cascade(copied: Cascade, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"part-0\.onnx is a file, and no manifest") as caught:
        graphcut.fetch(copied.file(copied.parts[0]), tmp_path / "out")
    assert caught.value.hint == "name the folder or the manifest of a whole cascade, and its parts by `parts`"


def test_there_is_no_such_part(copied: Cascade, tmp_path: Path) -> None:
    for k in (-1, 2):
        with pytest.raises(UsageError, match=f"no part {k}") as caught:
            graphcut.fetch(copied.root, tmp_path / "out", parts=[k])
        assert caught.value.hint == "the cascade has the parts 0 to 1"


# Running what is there


def test_what_is_missing_is_said_by_part(copied: Cascade, tmp_path: Path) -> None:
    graphcut.fetch(copied.root, tmp_path / "out", parts=[1])
    cascade = open_present(tmp_path / "out")
    inputs = feeds_of(copied)
    with pytest.raises(RunError, match=r"it is written by part-0.onnx, not here"):
        graphcut.run(cascade, {name: inputs[name] for name in cascade.manifest.reads if name in inputs})
    with pytest.raises(CascadeError, match=r"part-0.onnx is missing"):
        graphcut.open_cascade(tmp_path / "out")


def test_a_part_whose_weights_are_incomplete_is_refused(copied: Cascade, tmp_path: Path) -> None:
    graphcut.fetch(copied.root, tmp_path / "out", parts=[0])
    (name,) = copied.parts[0].data
    os.truncate(tmp_path / "out" / name, 10)
    with pytest.raises(CascadeError, match="has 10 bytes"):
        open_present(tmp_path / "out")


@seeded(3)
def test_parts_that_are_there_are_a_cascade_of_their_own(linked: Cascade, seed: int, tmp_path: Path) -> None:
    """Cut at random; of random parts, inputs and outputs are what goes in and out of them."""
    draw = random.Random(seed)  # noqa: S311 - the same parts each time
    cascade = graphcut.split(linked.source, At(LAYER_ENDS), tmp_path / "parts")
    values = feeds_of(linked)
    for k in range(len(cascade.parts)):
        alone = graphcut.fetch(cascade.root, tmp_path / f"alone-{k}", parts=[k])
        values |= graphcut.run(alone, {n: values[n] for n in alone.manifest.reads}, config=EXACT)
    kept = draw.sample(range(len(cascade.parts)), 2)
    found = graphcut.fetch(cascade.root, tmp_path / "some", parts=kept)
    outputs = graphcut.run(found, {n: values[n] for n in found.manifest.reads}, config=EXACT)
    for name, value in outputs.items():
        np.testing.assert_array_equal(value, values[name], strict=True)
