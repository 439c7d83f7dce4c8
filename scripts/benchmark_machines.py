"""Machines made of namespaces, for `scripts/benchmark cluster`: each has a core or a share of one, and Ray."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import graphcut

NETCLUSTER = Path(__file__).with_name("netcluster")
ADDRESS = "10.77.0.10"
TMP = "/tmp"  # noqa: S108 - each machine has one of its own


class Machines:
    """Machines with Ray. The driver and the first device are on the first one.

    Those that are on one core get equal shares of it, whatever the others do: 1 ms of each 2 ms for two of them.
    """

    def __init__(self, rates: Sequence[str], cores: Sequence[int]) -> None:
        self.count, self._cores = len(rates), cores
        name = f"graphcut-benchmark-{os.getpid()}"
        self._groups = [limited(f"{name}-{i}", cores.count(core)) for i, core in enumerate(cores)]
        kept = {Path(sys.prefix), Path(__file__).resolve().parent.parent}
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "TMPDIR"}},
            "NETCLUSTER": f"/run/{name}",
            "KEEP": ":".join(map(str, kept)),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 64,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(graphcut.__file__).resolve().parent.parent),
        }
        self.net("up", self.count, *rates)

    def net(self, *words: object) -> str:
        """What `netcluster` prints."""
        command = [str(NETCLUSTER), *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=200)
        if done.returncode:
            sys.exit(f"netcluster {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def on(self, machine: int, command: str) -> str:
        """What a command prints on a machine, on its core and in its control group."""
        join = f"echo $$ >{self._groups[machine]}/cgroup.procs && taskset -c {self._cores[machine]}"
        return self.net("on", machine, f"{join} {command}")

    def start(self, machine: int, command: str) -> None:
        """Run a command in the same way until the machines end."""
        background = f"{command} >{TMP}/started.log 2>&1 </dev/null & sleep 2"
        self.on(machine, f"bash -c {shlex.quote(background)}")

    def down(self) -> None:
        """End all processes, and remove the machines."""
        self.net("down")
        time.sleep(1)  # until the control groups are empty
        for group in self._groups:
            group.rmdir()

    def start_ray(self) -> None:
        """Start Ray; the machines are the devices a, b, c."""
        for machine in range(self.count):
            role = "--head --port=6379 --include-dashboard=false" if not machine else f"--address={ADDRESS}:6379"
            device = json.dumps({f"dev:{'abc'[machine]}": 1})
            options = f"--node-ip-address=10.77.0.1{machine} --num-cpus=1 --object-store-memory=200000000"
            self.on(machine, f"ray start {role} {options} --resources='{device}'")

    def put(self, path: Path) -> None:
        """Copy a file or a folder into /tmp of all machines."""
        for machine in range(self.count):
            target = Path(self.net("tmp", machine).strip()) / path.name
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)

    def carried(self) -> int:
        """The bytes that all machines have received."""
        return sum(map(int, re.findall(r"received (\d+)", self.net("bytes"))))

    def measured(self, *words: object) -> dict[str, Any]:
        """What this script measures on the first machine, and the bytes that crossed meanwhile."""
        before = self.carried()
        found = self.on(0, f"python {Path(__file__).with_name('benchmark_cluster.py')} {' '.join(map(str, words))}")
        return {**json.loads(found.splitlines()[-1]), "carried": self.carried() - before}


@contextmanager
def machines(rates: Sequence[str], cores: Sequence[int]) -> Iterator[Machines]:
    """Machines with links of these rates, each on a core of this one."""
    made = Machines(rates, cores)
    try:
        yield made
    finally:
        made.down()


def limited(name: str, sharing: int) -> Path:
    """A control group that has one of so many equal shares of a core, before the other programs of this machine."""
    root = Path("/sys/fs/cgroup")
    old = root / "cpu"
    group = (old if old.is_dir() else root) / name
    group.mkdir(exist_ok=True)
    if old.is_dir():  # cgroup v1
        (group / "cpu.cfs_period_us").write_text(f"{1000 * sharing}")
        (group / "cpu.cfs_quota_us").write_text("1000" if sharing > 1 else "-1")
        (group / "cpu.shares").write_text("262144")
    else:
        (group / "cpu.max").write_text(f"{1000 if sharing > 1 else 'max'} {1000 * sharing}")
        (group / "cpu.weight").write_text("10000")
    return group
