"""Available memory: of the machine, and of the cgroups around this process. Huge pages."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from mmap import MADV_DONTDUMP, MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import with_concat

import graphcut
from graphcut import Into
from graphcut.running import process_memory
from graphcut.running.process_memory import HugePages, PeakMemory, available_bytes, resident_bytes
from graphcut.workers.executors.protocol import Step
from graphcut.workers.executors.worker import Worker

from conftest import floats, model_of
from heavy import in_a_process

MIB = 1 << 20
MAP_NORESERVE = 0x4000  # of Linux; the module has it from Python 3.13 on


def machine(root: Path, available_bytes: int, cgroup: str = "/") -> None:
    files = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable:   {available_bytes // 1024} kB\n",
        "proc/self/cgroup": f"0::{cgroup}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def limit(group: Path, limit: int | str, current: int = 0, page_cache: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {page_cache // 2}\nactive_file {page_cache // 2}\n")


def test_without_a_cgroup_the_available_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    machine(tmp_path, 900 * MIB)
    assert available_bytes(tmp_path) == 900 * MIB


def test_a_container_limit_counts_and_page_cache_is_available(tmp_path: Path) -> None:
    machine(tmp_path, 900 * MIB)
    limit(tmp_path / "sys/fs/cgroup", 300 * MIB, current=250 * MIB, page_cache=100 * MIB)
    assert available_bytes(tmp_path) == 150 * MIB


def test_what_a_system_without_proc_says_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS: half of the physical memory is available, and this process has as much as at its peak."""
    none, now = tmp_path / "none", resident_bytes()
    monkeypatch.setattr(process_memory, "_SELF", none)
    monkeypatch.setattr(process_memory, "_sizes_file", lambda _: os.open(none, os.O_RDONLY))
    assert available_bytes(none) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert now < resident_bytes() + MIB < 1 << 40, "Linux counts some pages later"
    assert PeakMemory().is_since_start
    assert process_memory.status_bytes("VmHWM", none) == 0
    assert process_memory.unloaded_library_bytes() > 0


def test_limits_of_outer_cgroups_count(tmp_path: Path) -> None:
    machine(tmp_path, 900 * MIB, "/user.slice/job")
    limit(tmp_path / "sys/fs/cgroup/user.slice", 200 * MIB, current=150 * MIB)
    limit(tmp_path / "sys/fs/cgroup/user.slice/job", "max")
    assert available_bytes(tmp_path) == 50 * MIB


@pytest.mark.parametrize(("limit_bytes", "expected"), [("max", 900 * MIB), (100 * MIB, 0)])
def test_no_limit_and_an_exceeded_limit(tmp_path: Path, limit_bytes: int | str, expected: int) -> None:
    machine(tmp_path, 900 * MIB, "/somewhere/outside")
    limit(tmp_path / "sys/fs/cgroup", limit_bytes, current=120 * MIB)
    assert available_bytes(tmp_path) == expected


def is_asked_for_huge_pages() -> bool:
    """Whether memory is in huge pages where a program asks for it, and nowhere else."""
    there = process_memory._HUGE_PAGES
    return (
        there.exists()
        and "[madvise]" in there.read_text()
        and tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 1)
    )


needs_huge_pages = pytest.mark.skipif(
    not is_asked_for_huge_pages(), reason="needs a Linux (6.1) that gives huge pages if asked"
)


def weights() -> mmap:
    """32 MiB that were not this process's before, apart from its other memory."""
    held = mmap(-1, 32 * MIB, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    held.madvise(MADV_DONTDUMP)  # the system keeps memory apart that is treated in another way
    held.write(bytes(range(256)) * (MIB // 8))
    return held


def in_huge_pages(held: mmap) -> int:
    """The bytes of a mapping that are in huge pages."""
    place, is_here, found = np.frombuffer(held, np.uint8).ctypes.data, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if ends := re.match(r"(\w+)-(\w+) ", line):
            is_here = int(ends[1], 16) <= place < int(ends[2], 16)
        elif is_here and line.startswith("AnonHugePages"):
            found = 1024 * int(line.split()[1])
    return found


def moved(pages: HugePages) -> None:
    """Move what was noted, all of it."""
    pages.start()
    pages._thread.join()


@needs_huge_pages
def test_what_is_allocated_moves_to_huge_pages_and_takes_no_more_memory() -> None:
    pages = HugePages()
    with pages.noting():
        held = weights()
        resident = resident_bytes()
    moved(pages)
    assert resident_bytes() < resident + MIB
    assert in_huge_pages(held) > 16 * MIB
    assert held[:] == bytes(range(256)) * (MIB // 8)


@needs_huge_pages
def test_without_huge_pages_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(process_memory, "_HUGE_PAGES", tmp_path / "enabled")
    pages = HugePages()
    with pages.noting():
        held = weights()
    assert not pages._blocks
    assert len(held) == 32 * MIB


@needs_huge_pages
@pytest.mark.parametrize("is_unmapped", [True, False])
def test_what_is_freed_before_it_moves_stays_free(*, is_unmapped: bool) -> None:
    pages = HugePages()
    with pages.noting():
        held = weights()
    held.madvise(MADV_DONTNEED)
    for place in range(0, 32 * MIB, MIB):
        held[place] = 1  # a page of 256
    if is_unmapped:
        held.close()
    resident = resident_bytes()
    moved(pages)
    assert resident_bytes() < resident + MIB


@needs_huge_pages
def test_memory_that_was_freed_before_moves_where_it_is_allocated_again() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    size, pages = 60_000, HugePages()  # less than what the system gets back at once

    def allocated() -> list[int]:
        places = [library.malloc(size) for _ in range(32 * MIB // size)]
        for place in places:
            ctypes.memset(place, 1, size)
        return places

    *places, last = allocated()
    for place in places:
        library.free(ctypes.c_void_p(place))
    with pages.noting():
        places = allocated()
    assert pages._blocks  # how many depends on the holes of the heap
    for place in (*places, last):
        library.free(ctypes.c_void_p(place))


@needs_huge_pages
def test_memory_that_is_reserved_and_not_used_is_not_searched() -> None:
    """A page table of a tebibyte takes 256 MiB as a byte for each page."""
    reserved, pages = mmap(-1, 1 << 40, flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE), HugePages()
    resident, peak = resident_bytes(), PeakMemory()
    with pages.noting():
        held = weights()
    assert peak.bytes < resident + 64 * MIB
    assert len(reserved) > len(held)


def worker_of(folder: Path, *, is_decoder: bool) -> Worker:
    """A worker with a part that takes 32 MiB, and keeps states if it is that of a decoder."""
    onnx.save(with_concat(), folder / "decoder.onnx")
    cascade = graphcut.split(folder / "decoder.onnx", Into(1), folder / "parts")
    load: Callable[[int], Any] = lambda _: weights()  # noqa: E731
    return Worker(cascade, {0: cascade.manifest.states} if is_decoder else {}, load)


@needs_huge_pages
@pytest.mark.parametrize("is_decoder", [True, False])
def test_weights_move_after_the_first_token_where_parts_keep_states(tmp_path: Path, *, is_decoder: bool) -> None:
    """A part that computes once for many examples reads its weights less often than they would take to move."""
    worker = worker_of(tmp_path, is_decoder=is_decoder)
    worker.hold(frozenset({0}))
    held: Any = worker.stages[0]
    worker.run(Step(length=9), {})  # a prompt
    assert not worker._pages._thread.is_alive()
    assert in_huge_pages(held) == 0
    worker.run(Step(length=1), {})
    if is_decoder:
        worker._pages._thread.join()
    assert (in_huge_pages(held) > 16 * MIB) == is_decoder


@needs_huge_pages
def test_a_worker_that_drops_its_parts_moves_nothing_more(tmp_path: Path) -> None:
    worker = worker_of(tmp_path, is_decoder=True)
    worker.hold(frozenset({0}))
    worker.run(Step(length=1), {})
    moving = worker._pages._thread
    worker.hold(frozenset())
    assert not moving.is_alive()
    assert not worker._pages._blocks


HOLES = """
import numpy as np, onnxruntime as ort
from graphcut.running.process_memory import PeakMemory, resident_bytes, return_freed_memory, return_large_blocks
from graphcut.running.stage import SessionConfig, session_options
return_large_blocks()
session = ort.InferenceSession(given[0], session_options(SessionConfig(arena=False, threads=1)))
x = np.ones((64, 480), np.float32)
return_freed_memory()
before, peak = resident_bytes(), PeakMemory()
session.run(None, {"x0": x})
said["above"] = peak.bytes - before
"""


def test_small_tensors_that_are_freed_leave_no_holes(tmp_path: Path) -> None:
    """Halves of 60 KiB: the heap would not use freed ones again, since aligned blocks need more than their size."""
    nodes = list[onnx.NodeProto]()
    for i in range(30):  # what turns queries and keys, and something of each half that lives on
        lines = f"Split a{i},b{i} x{i}; Neg c{i} b{i}; Concat d{i} c{i},a{i}; Sin e{i} d{i}; Add x{i + 1} x{i},e{i}"
        for op, writes, reads in map(str.split, lines.split("; ")):
            nodes.append(onnx.helper.make_node(op, reads.split(","), writes.split(",")))
            if op in {"Split", "Concat"}:
                nodes[-1].attribute.append(onnx.helper.make_attribute("axis", 1))
    onnx.save(model_of(nodes, [floats("x0", 64, 480)], [floats("x30", 64, 480)]), tmp_path / "model.onnx")
    tensor = 4 * 64 * 480
    assert (
        in_a_process(HOLES, tmp_path / "model.onnx")["above"] < 8 * tensor
    )  # 4 are alive at a time, and code is loaded
