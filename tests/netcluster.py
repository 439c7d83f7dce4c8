"""Several machines on this one, by `scripts/netcluster`: namespaces with links of limited rate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "netcluster"
_LONGEST_S = 120.0


class NetCluster:
    """Machines `h0`, `h1`, ... at 10.77.0.10, .11, ... Each has a `/tmp` of its own; the rest is shared."""

    def __init__(self, folder: Path) -> None:
        python = Path(sys.prefix)
        inherited = {name: os.environ[name] for name in os.environ if name not in {"RAY_ADDRESS", "TMPDIR"}}
        self._environment = {
            **inherited,
            "NETCLUSTER": str(folder),
            "KEEP": str(python),
            "PATH": f"{python / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPT.parent.parent),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # else the other tests would keep workers waiting
            "RAY_prestart_worker_first_driver": "0",  # nor are workers started before they are asked for
            "RAY_enable_worker_prestart": "0",
        }

    def __call__(self, *words: object) -> str:
        """What `scripts/netcluster` prints on stdout; an error is a RuntimeError with what it says."""
        done = self.start(*words)
        out, err = done.communicate(timeout=_LONGEST_S)
        if done.returncode:
            raise RuntimeError(f"netcluster {' '.join(map(str, words))}: {err.strip() or out.strip()}")
        return out

    def start(self, *words: object) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        command = [str(SCRIPT), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._environment, stdout=pipe, stderr=pipe, text=True)

    def tmp(self, machine: int) -> Path:
        """Where the `/tmp` of a machine is."""
        return Path(self("tmp", machine).strip())

    def received(self) -> list[int]:
        """The bytes that each machine has received."""
        return [int(number) for number in re.findall(r"received (\d+)", self("bytes"))]


@contextmanager
def machines(*rates: str) -> Iterator[NetCluster]:
    """One machine for each rate of a link, such as `20mbit`, or `-` for no limit; the test is skipped without root."""
    if missing := [tool for tool in ("ip", "tc", "nsenter", "unshare") if which(tool) is None]:
        pytest.skip(f"{missing[0]} is not installed: apt-get install iproute2 util-linux")
    with TemporaryDirectory(prefix="netcluster-", dir="/run" if os.access("/run", os.W_OK) else None) as folder:
        cluster = NetCluster(Path(folder) / "it")
        try:
            try:
                cluster("up", len(rates), *rates)
            except RuntimeError as error:
                pytest.skip(f"no machines can be made here: {error}")
            yield cluster
        finally:
            cluster("down")
