"""The machines on which clusters are tested: links of a known rate, which can be pulled, and files of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from netcluster import SCRIPT, NetCluster, machines

_RECEIVE = "import socket; s = socket.create_server(('', 5000)); open('/tmp/ready', 'w'); c, _ = s.accept()"
_COUNT = f"{_RECEIVE}; print(sum(iter(lambda: len(c.recv(1 << 16)), 0)))"
_UDP = "import socket, timeit; s = socket.socket(type=socket.SOCK_DGRAM)"
_ECHO = f"{_UDP}; s.bind(('', 5000)); open('/tmp/ready', 'w'); [s.sendto(*s.recvfrom(9)) for _ in range(10)]"
_ASKING = "s.settimeout(5); s.connect(('h1', 5000)); ask = lambda: (s.send(b'x'), s.recv(9))"
_ASK = f"{_UDP}; {_ASKING}; print(min(timeit.repeat(ask, number=1, repeat=10)))"
_SEND = "import socket; s = socket.create_connection(('h1', 5000), timeout=5); s.sendall(bytes(1_000_000))"


@pytest.fixture(scope="module")
def pair() -> Iterator[NetCluster]:
    with machines("100mbit", "20mbit") as found:
        yield found


def test_machines_have_names_processes_and_temporary_files_of_their_own(pair: NetCluster) -> None:
    pair("on", 0, "touch /tmp/here")
    assert [pair("on", k, "hostname").strip() for k in (0, 1)] == ["h0", "h1"]
    assert (pair.tmp(0) / "here").exists()
    assert not (pair.tmp(1) / "here").exists()
    assert int(pair("on", 1, "ls -d /proc/[0-9]* | wc -l")) < 10


def test_a_second_up_is_refused_and_the_machines_stay(pair: NetCluster) -> None:
    with pytest.raises(RuntimeError, match=r"there are machines in .* already: netcluster down ends them"):
        pair("up", 1)
    assert [pair("on", k, "hostname").strip() for k in (0, 1)] == ["h0", "h1"]


def test_a_folder_below_tmp_is_refused_before_anything_is_made() -> None:
    with TemporaryDirectory(dir="/tmp") as folder:
        with pytest.raises(RuntimeError, match="is below /tmp, and each machine has a /tmp of its own"):
            NetCluster(Path(folder) / "it")("up", 1)
        assert [*Path(folder).iterdir()] == []


def test_bytes_that_cross_a_link_are_counted(pair: NetCluster) -> None:
    receiver = pair.start("on", 1, f'python3 -c "{_COUNT}"')
    while not (pair.tmp(1) / "ready").exists():
        assert receiver.poll() is None
    before = pair.received()[1]
    pair("on", 0, f'python3 -c "{_SEND}"')
    assert receiver.communicate(timeout=30)[0] == "1000000\n"
    assert 1_000_000 < pair.received()[1] - before < 1_100_000


@pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="a delay is made by a TAP device")  # noqa: PTH110
def test_what_a_machine_sends_arrives_later_and_what_it_receives_does_not() -> None:
    with machines("100mbit/20ms", "100mbit") as late:
        echo = late.start("on", 1, f'python3 -c "{_ECHO}"')
        while not (late.tmp(1) / "ready").exists():
            assert echo.poll() is None
        assert 0.02 < float(late("on", 0, f'python3 -c "{_ASK}"')) < 0.03


def test_a_pulled_cable_and_a_power_cut_part_machines(pair: NetCluster) -> None:
    ask = "python3 -c \"import socket; socket.create_connection(('h1', 22), timeout=0.3)\" 2>&1 | tail -1"
    assert "ConnectionRefused" in pair("on", 0, ask)  # it answers that nobody listens
    pair("link", 1, "down")
    assert "ConnectionRefused" not in pair("on", 0, ask)
    pair("link", 1, "up")
    pair("on", 1, "touch /tmp/kept")
    pair("kill", 1)
    with pytest.raises(RuntimeError):
        pair("on", 1, "true")
    pair("start", 1)
    assert "kept" in pair("on", 1, "ls /tmp")


def test_all_that_a_benchmark_runs_on_a_machine_is_in_one_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started in the background, too: else one of two programs that are compared would get more of a core."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    try:
        made = import_module("benchmark_machines").Machines(["-"], [min(os.sched_getaffinity(0))])
    except (OSError, SystemExit) as error:
        pytest.skip(f"no machines can be made here: {error}")
    try:
        made.start(0, "tail -f /dev/null")
        started = made.on(0, "cat /proc/$(pgrep -x tail)/cgroup")
        assert started == made.on(0, "cat /proc/self/cgroup")
        assert "graphcut-benchmark-" in started
    finally:
        made.down()
