"""Splits and merges that are killed, or meet others at the same place: nothing is lost, and nothing is left over."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import At, Cascade, GraphcutError, UsageError
from graphcut.__main__ import start
from graphcut.core.arguments import Storage
from graphcut.core.atomic_files import rename
from graphcut.core.errors import LeftoverWarning

from cases import FUZZ, crossed
from conftest import floats, model_of

MOMENTS: dict[tuple[Storage, bool], int] = {
    ("copy", False): 16,
    ("copy", True): 29,
    ("share", False): 20,
    ("share", True): 23,
}
"""About how often a split accesses its scratch folder, by its weights, and by whether it replaces another one."""

Work = Callable[[], object]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Three products; each weight has 1 MiB, so it is copied in several pieces."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.random((512, 512), np.float32), f"w{i}") for i in range(3)]
    tensors = ["x", "t0", "t1", "y"]
    nodes = [helper.make_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]], name=f"m{i}") for i in range(3)]
    path = tmp_path / "net.onnx"
    onnx.save(model_of(nodes, [floats("x", "n", 512)], [floats("y", "n", 512)], weights), path)
    return path


def moments(before: int) -> list[int]:
    """Random moments at which a kind of writing is killed; all of them for `scripts/fuzz`."""
    return list(range(1, before)) if FUZZ else random.sample(range(1, before), 4)


def cut(path: Path, *names: str, weights: Storage = "copy", force: bool = True) -> Cascade:
    model = graphcut.load(path)
    plan = graphcut.plan(graphcut.analyze(model), At(names))
    return graphcut.split(model, plan, weights=weights, force=force)


def held(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, empty and hidden folders included."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def signalled(work: Work, number: signal.Signals, *, at: int) -> int:
    """Run `work` in a process of its own, which sends itself a signal before its nth access to a scratch folder.

    Returns:
        Its exit status; 0 if it had ended before.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if event != "os.kill" and (event == "ctypes.dlopen" or any(".tmp-graphcut" in str(a) for a in arguments)):
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), number)

        status = 1
        try:
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)  # Ray leaves a handler of its own in the tests' process
            sys.addaudithook(watch)
            work()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def split_again(path: Path, weights: Storage, states: list[dict[str, bytes]]) -> None:
    """The next run without --force, then one with it: a whole state is found first, the last state is the new one."""
    is_left = any(path.parent.glob(".*/files"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(UsageError):
            cut(path, "m1", weights=weights, force=False)
    assert [warning.category for warning in caught] == [LeftoverWarning] * is_left
    assert held(path.parent) in states
    cut(path, "m1", weights=weights)
    assert held(path.parent) == states[-1]


def states_of(path: Path, weights: Storage, *, is_there_an_old_one: bool) -> list[dict[str, bytes]]:
    """What the folder holds before and after a split at m1."""
    states = []
    for names in (("m0",), ("m1",)):
        cut(path, *names, weights=weights)
        states.append(held(path.parent))
    return states if is_there_an_old_one else states[1:]


def begin(path: Path, weights: Storage, *, is_there_an_old_one: bool) -> None:
    for found in path.parent.iterdir():
        if found != path:
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    if is_there_an_old_one:
        cut(path, "m0", weights=weights)


@pytest.mark.fuzz
@pytest.mark.parametrize(("weights", "old"), MOMENTS)
def test_after_a_kill_the_next_split_finds_a_whole_state_and_leaves_nothing(
    net: Path, weights: Storage, *, old: bool
) -> None:
    states = states_of(net, weights, is_there_an_old_one=old)
    for at in moments(MOMENTS[weights, old]):
        begin(net, weights, is_there_an_old_one=old)
        status = signalled(lambda: cut(net, "m1", weights=weights), signal.SIGKILL, at=at)
        assert status in {-signal.SIGKILL, 0}
        split_again(net, weights, states)


@crossed(("number", "weights"), [signal.SIGTERM, signal.SIGHUP], ["copy", "share"], times=1, together=1)
def test_a_split_that_is_told_to_end_leaves_a_whole_state(
    net: Path, weights: Storage, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = states_of(net, weights, is_there_an_old_one=True)
    words = ["split", net, "--at-nodes", "m1", "--weights", weights, "--force"]
    monkeypatch.chdir(net.parent)  # where the parts are written
    monkeypatch.setattr(sys, "argv", ["graphcut", *map(str, words)])
    for at in moments(MOMENTS[weights, True]):
        begin(net, weights, is_there_an_old_one=True)
        assert signalled(start, number, at=at) in {128 + number, 0}
        assert held(net.parent) in states


@pytest.mark.fuzz
def test_a_killed_merge_is_undone_or_complete(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    cascade, whole = cut(net, "m0"), tmp_path / "whole"
    whole.mkdir()
    graphcut.merge(cascade, whole / "whole.onnx")
    new = held(whole)
    for at in moments(24):
        (whole / "whole.onnx").write_bytes(b"\x0fwhole.onnx.data")  # a name as a message has it: it reads that file
        (whole / "whole.onnx.data").write_bytes(b"old data")
        old = held(whole)
        signalled(lambda: graphcut.merge(cascade, whole / "whole.onnx", force=True), signal.SIGKILL, at=at)
        with suppress(UsageError), warnings.catch_warnings(action="ignore"):
            graphcut.merge(cascade, whole / "whole.onnx")
        assert held(whole) in (old, new)
        graphcut.merge(cascade, whole / "whole.onnx", force=True)
        assert held(whole) == new


def shard_into(net: Path, folder: Path, ranks: int, *, force: bool = True) -> None:
    graphcut.shard(net, folder / "sharded.onnx", ranks=ranks, force=force)


def split_ranks_into(net: Path, folder: Path, ranks: int, *, force: bool = True) -> None:
    graphcut.split_by_rank(net, folder / "parts", ranks=ranks, force=force)


@pytest.mark.fuzz
@pytest.mark.parametrize("write", [shard_into, split_ranks_into])
def test_a_killed_sharding_is_undone_or_complete(
    net: Path, tmp_path: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    folder, states = tmp_path / "here", []
    for ranks in (2, 3):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(net, folder, ranks)
        states.append(held(folder))
    for number, at in zip(cycle((signal.SIGKILL, signal.SIGTERM)), moments(24), strict=False):
        write(net, folder, 2)
        assert signalled(lambda: write(net, folder, 3), number, at=at) in {-number, 128 + number, 0}
        with suppress(UsageError), warnings.catch_warnings(action="ignore"):
            write(net, folder, 3, force=False)
        assert held(folder) in states
        write(net, folder, 3)
        assert held(folder) == states[1]


# Others at the same place


def cut_while(path: Path, meanwhile: Work, *names: str, weights: Storage = "copy", force: bool = False) -> Cascade:
    """Cut the model; something happens when the first bytes are written."""
    happened: list[object] = []

    def progress(*_: object) -> None:
        if not happened:
            happened.append(meanwhile())

    model = graphcut.load(path)
    plan = graphcut.plan(graphcut.analyze(model), At(names))
    return graphcut.split(model, plan, weights=weights, force=force, progress=progress)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_another_program_makes_meanwhile_is_kept(net: Path, *, force: bool) -> None:
    theirs = net.parent / "net.parts" / "theirs.txt"

    def make() -> None:
        theirs.parent.mkdir()
        theirs.write_text("theirs")

    with pytest.raises(UsageError, match=r"net\.parts contains 'theirs\.txt', which belongs to no cascade there"):
        cut_while(net, make, "m0", force=force)
    assert held(net.parent) == {"net.onnx": net.read_bytes(), "net.parts": b"", "net.parts/theirs.txt": b"theirs"}


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_a_file_that_another_program_puts_among_the_parts_meanwhile_is_kept(net: Path, weights: Storage) -> None:
    old = cut(net, "m0", weights=weights)
    before = held(net.parent)
    theirs = net.parent / old.root / ("net.part-2.onnx" if weights == "share" else "theirs.txt")
    with pytest.raises(UsageError, match=f"contains '{theirs.name}', which belongs to no cascade there"):
        cut_while(net, lambda: theirs.write_text("theirs"), "m0", "m1", weights=weights, force=True)
    assert held(net.parent) == before | {str(theirs.relative_to(net.parent)): b"theirs"}


def test_a_file_that_appears_in_the_last_moment_undoes_the_split(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(net, "m0")
    before = held(net.parent)
    theirs = net.parent / "net.parts" / "part-2.onnx"

    def renaming(source: Path, target: Path) -> None:
        theirs.write_text("theirs")
        rename(source, target)

    monkeypatch.setattr("graphcut.core.atomic_files.rename", renaming)
    with pytest.raises(UsageError, match=r"part-2\.onnx was made by another program meanwhile"):
        cut(net, "m0", "m1")
    assert held(net.parent) == before | {"net.parts/part-2.onnx": b"theirs"}


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_a_second_split_into_the_same_folder_is_refused_while_the_first_writes(net: Path, weights: Storage) -> None:
    refused = []

    def second() -> None:
        with pytest.raises(UsageError, match="another run is writing") as caught:
            cut(net, "m1", weights=weights)
        refused.append(caught.value)

    first = cut_while(net, second, "m0", weights=weights)
    assert (len(refused), [part.writes for part in first.parts]) == (1, [("t0",), ("y",)])


def test_one_of_three_splits_into_a_new_folder_wins(net: Path) -> None:
    words = [sys.executable, "-m", "graphcut", "split", str(net), "--at-nodes"]
    options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "cwd": net.parent}
    splits = [subprocess.Popen([*words, at], **options) for at in ("m0", "m1", "m0,m1")]
    said = [split.communicate(timeout=60)[1] for split in splits]
    assert sorted(split.returncode for split in splits) == [0, 2, 2], said
    assert sorted(path.name for path in net.parent.iterdir()) == ["net.onnx", "net.parts"]


def test_a_disk_that_is_full_leaves_everything_as_it_was(net: Path) -> None:
    cut(net, "m0")
    before = held(net.parent)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
        try:
            cut(net, "m1")  # its first part has 2 MiB
        except GraphcutError as error:
            sys.exit("File too large" in str(error) and "nothing was changed" in error.hint)

    assert signalled(limited, signal.SIGKILL, at=0) == 1
    assert held(net.parent) == before
