"""The memory of this process: how much it has, the most it had, and giving back what was freed."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

_PROCESS: Final = Path("/proc/self")
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD in malloc.h of glibc
_SMALL_BYTES: Final = 128 << 10  # glibc's own first value for it
_UNKNOWN_CODE_BYTES: Final = 24 << 20
"""What kernels of ONNX Runtime's library take when they first run, where nothing tells which of it is there already."""


def resident_bytes() -> int:
    """What this process has in memory now; where only Linux would tell, the most that it ever had."""
    return _status("VmRSS") or _lifetime_peak_bytes()


def code_to_come_bytes() -> int:
    """What ONNX Runtime's library may still take, once its kernels run: all of its file that is not in memory yet."""
    try:
        text = (_PROCESS / "smaps").read_text()
    except OSError:
        return _UNKNOWN_CODE_BYTES
    missing, is_library = 0, False
    for line in text.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_library = "onnxruntime" in line and ".so" in line
        elif is_library and (found := re.match(r"(Size|Rss): +(\d+) kB", line)):
            missing += (1 if found[1] == "Size" else -1) * int(found[2]) * 1024
    return missing


def available_bytes() -> int | None:
    """What may still be taken: what this machine has free, and no more than what its container allows; None if unknown.

    Pages that only repeat what files hold count as free.
    """
    found = []
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    with suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, min(found)) if found else None


class PeakMemory:
    """The most memory that this process has had since this was made.

    Attributes:
        is_since_start: the system can't begin anew: it is the most that the process ever had.
    """

    def __init__(self) -> None:
        """Begin now."""
        try:
            (_PROCESS / "clear_refs").write_text("5")  # the mark of the highest water becomes that of now
            self.is_since_start = False
        except OSError:
            self.is_since_start = True

    @property
    def bytes(self) -> int:
        """How much, in bytes: all pages in memory, those of mapped files included."""
        return _status("VmHWM") or _lifetime_peak_bytes()


def give_back() -> None:
    """Return what was freed to the system, where the C library would keep it (glibc)."""
    if trim := getattr(_c_library(), "malloc_trim", None):
        trim(0)


def keep_nothing_large() -> None:
    """From now on, blocks of 128 KiB and more go back to the system as soon as they are freed (glibc).

    That is where glibc begins; but once a large block was freed it keeps all blocks of that size, up to 32 MiB. Then
    freed activations and weights lie around, and a run takes twice what it needs.
    """
    if (option := getattr(_c_library(), "mallopt", None)) and hasattr(_c_library(), "malloc_trim"):
        option(_MMAP_THRESHOLD, _SMALL_BYTES)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _status(word: str) -> int | None:
    try:
        text = (_PROCESS / "status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{word}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _lifetime_peak_bytes() -> int:
    import resource

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024
