"""Available memory: of the machine, and of the cgroups around this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcut.running.process_memory import available_bytes

MIB = 1 << 20


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
