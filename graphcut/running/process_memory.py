"""Memory of this process and of the machine: what is resident, what is still available, returning freed blocks."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from mmap import PAGESIZE
from pathlib import Path
from threading import Thread
from typing import Final

import numpy as np
import onnxruntime as ort

_HUGE_BYTES: Final = 2 << 20  #: a huge page of x86-64, and of others with pages of 4 KiB.
_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MADV_COLLAPSE: Final = 25  #: the advice of Linux's madvise, from 6.1 on.
_MOVING_PRIORITY: Final = 10  #: a busy core gives a tenth of its time to a thread of this priority.
_SELF: Final = Path("/proc/self")
_M_MMAP_THRESHOLD: Final = -3  #: the parameter of glibc's mallopt, from malloc.h.
#: The heap does not use freed blocks again for as large ones, as aligned ones need more than their size: with 64 KiB,
#: tensors of 48 KiB of a decoder in 4 bits left 0.9 MiB of holes, of 13 MiB. Processor time of its steps, to that with
#: 64 KiB: 1 to 1.08 for 1 token, 1.14 for 16, 1.06 for 32, 1.0 for 64; of convolutions 1.02.
_LARGE_BLOCK_BYTES: Final = 16 << 10
#: code of ONNX Runtime's library that is loaded when kernels first run, where the system has no /proc/self/smaps.
_LIBRARY_CODE_BYTES: Final = 12 << 20

IS_MEASURED: Final = tuple(int(number) for number in ort.__version__.split(".")[:2]) >= (1, 27)
"""Memory was measured for this ONNX Runtime; for earlier ones more is predicted than they take."""

#: the share of its library that never becomes resident. Measured with 1.31 on seven models: 0.36 to 0.42.
_UNUSED_SHARE: Final = 0.35 if IS_MEASURED else 0.0


def status_bytes(field: str, process: Path = _SELF) -> int:
    """A memory field of /proc/PID/status, such as VmRSS, in bytes; 0 if it can't be read."""
    with suppress(OSError):
        if found := re.search(rf"^{field}:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return 0


def resident_bytes() -> int:
    """The resident memory of this process; on systems other than Linux, its maximum so far."""
    with suppress(OSError):
        return int(os.pread(_sizes_file(os.getpid()), 64, 0).split()[1]) * PAGESIZE
    return _lifetime_peak_bytes()


@cache
def _sizes_file(_process: int) -> int:
    """A descriptor of the file with the sizes of this process: to open it takes ten times as long as to read it."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def unloaded_library_bytes() -> int:
    """The pages of ONNX Runtime's library that become resident as its kernels run; an estimate."""
    try:
        text = (_SELF / "smaps").read_text()
    except OSError:
        return _LIBRARY_CODE_BYTES
    sizes, is_library = {"Size": 0, "Rss": 0}, False
    for line in text.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_library = "onnxruntime" in line and ".so" in line
        elif is_library and (found := re.match(r"(Size|Rss): +(\d+) kB", line)):
            sizes[found[1]] += int(found[2]) * 1024
    return max(0, int(sizes["Size"] * (1 - _UNUSED_SHARE)) - sizes["Rss"])


def available_bytes(root: Path = Path("/")) -> int | None:
    """The memory that can still be allocated; None if unknown.

    The smaller of what the machine has available and what the cgroups (v2) of this process leave. Page cache counts as
    available, since the kernel drops it on demand. macOS reports no available memory: half of its physical memory.
    """
    found = [number for number in (_machine_bytes(root), *_cgroup_bytes(root)) if number is not None]
    return max(0, min(found)) if found else None


def _machine_bytes(root: Path) -> int | None:
    with suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        return int(found[1]) * 1024 if (found := re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)) else None
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _cgroup_bytes(root: Path) -> list[int]:
    """What each limited cgroup around this process leaves. In a container the innermost one is mounted as the root."""
    mount = group = root / "sys/fs/cgroup"
    with suppress(OSError):
        if own := re.search(r"^0::/(.+)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE):
            group = mount / own[1]
    found = []
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError, KeyError):  # ValueError: "max", which is no limit
            limit = int((folder / "memory.max").read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache_bytes = int(stat["inactive_file"]) + int(stat["active_file"])
            found.append(limit - int((folder / "memory.current").read_text()) + cache_bytes)
        if folder == mount:
            break
    return found


class PeakMemory:
    """The maximum resident memory of this process since this object was created.

    Creating it resets the process's peak counter (VmHWM), by writing to /proc/self/clear_refs. Other code in this
    process that reads the counter sees the new maximum.
    """

    def __init__(self) -> None:
        self.is_since_start = True  #: there is no counter to reset, so the maximum is that since the process began.
        with suppress(OSError):
            (_SELF / "clear_refs").write_text("5")
            self.is_since_start = False

    @property
    def bytes(self) -> int:
        """The maximum in bytes, resident pages of mapped files included."""
        return status_bytes("VmHWM") or _lifetime_peak_bytes()


def return_freed_memory() -> None:
    """Return freed heap memory to the system, with malloc_trim. Does nothing without glibc."""
    if trim := getattr(_c_library(), "malloc_trim", None):
        trim(0)


def return_large_blocks() -> None:
    """Let free() return blocks of 16 KiB and more to the system at once, for the rest of the process's life.

    glibc starts with 128 KiB, and raises the threshold up to 32 MiB when large blocks are freed. It then keeps freed
    activations and weights, and a run takes twice the memory it needs. mallopt fixes the threshold. Does nothing
    without glibc.
    """
    if (option := getattr(_c_library(), "mallopt", None)) and hasattr(_c_library(), "malloc_trim"):
        option(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


class HugePages:
    """Memory of this process that moves to huge pages (2 MiB), where Linux has any and they are not turned off.

    A decoder reads all its weights for each token, and in small pages up to a fifth of its time is spent on finding
    them. No more memory is resident afterwards: only what fills such a page is moved. Moving takes up to a second for
    some hundred MiB, so a thread does it that yields to those that compute.
    """

    def __init__(self) -> None:
        self._blocks = list[int]()  #: what is left to be moved, as addresses in huge pages.
        self._thread = Thread()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is allocated meanwhile is to be moved."""
        return_freed_memory()  # what was freed before is allocated again, such as the weights of a decoder before
        before = _filled_blocks()
        yield
        self._blocks.extend(sorted(_filled_blocks() - before))

    def start(self) -> None:
        """Move it, unless that is done or goes on."""
        if self._blocks and not self._thread.is_alive():
            self._thread = Thread(target=self._move, name="graphcut huge pages", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Leave what was not moved where it is. Nothing moves afterwards."""
        self._blocks.clear()
        if self._thread.is_alive():
            self._thread.join()

    def _move(self) -> None:
        os.setpriority(os.PRIO_PROCESS, 0, _MOVING_PRIORITY)  # on Linux, that of this thread alone
        while first := self._blocks[:1]:
            del self._blocks[:1]
            for block in _filled(range(first[0], first[0] + 1)):  # none if it was freed meanwhile
                _c_library().madvise(ctypes.c_void_p(block * _HUGE_BYTES), _HUGE_BYTES, _MADV_COLLAPSE)


def _filled_blocks() -> set[int]:
    """The memory of this process that would fill huge pages, as addresses in these; none if these are turned off.

    What is mostly reserved and not used, such as the memory of some runtimes, is left out: it may be terabytes.
    """
    found, most = set[int](), 4 * resident_bytes() // _HUGE_BYTES
    with suppress(OSError):
        text = "" if "[never]" in _HUGE_PAGES.read_text() else (_SELF / "maps").read_text()
        for begin, end in re.findall(r"^(\w+)-(\w+) rw-p \w+ 00:00 0 +(?:\[heap\])?$", text, re.MULTILINE):
            blocks = range(-(-int(begin, 16) // _HUGE_BYTES), int(end, 16) // _HUGE_BYTES)
            if len(blocks) <= most:
                found.update(_filled(blocks))
    return found


def _filled(blocks: range) -> list[int]:
    """Those of these that are resident as a whole; none if some of them is not mapped."""
    place, length = ctypes.c_void_p(blocks.start * _HUGE_BYTES), ctypes.c_size_t(len(blocks) * _HUGE_BYTES)
    pages = np.zeros((len(blocks), _HUGE_BYTES // PAGESIZE), np.uint8)
    is_mapped = _c_library().mincore(place, length, pages.ctypes) == 0
    return [blocks.start + int(i) for i in np.flatnonzero(pages.all(1)) if is_mapped]


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _lifetime_peak_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
