"""`cluster.toml`: devices and links as people write them, and what is said of a file that does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graphcut import Cluster, Device, GraphcutError, NetworkLink, RecordError, UsageError, read_cluster
from graphcut.planning.cluster import ReliabilityModel, ScheduledFailure, read_simulated_cluster

Read = Callable[[str], Cluster]

ALONE = '[[devices]]\nname = "a"\n'
PAIR = f'{ALONE}[[devices]]\nname = "b"\n'
LINK = f'{PAIR}[[links]]\nbetween = ["a", "b"]\n'


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def written(text: str) -> Cluster:
        (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
        return read_cluster(tmp_path / "cluster.toml")

    return written


@pytest.fixture
def refusal(read: Read, tmp_path: Path) -> Callable[[str], str]:
    """What is said of a file, its path left out."""

    def said(text: str) -> str:
        with pytest.raises(RecordError) as caught:
            read(text)
        assert caught.value.hint
        return str(caught.value).removeprefix(f"{tmp_path / 'cluster.toml'}")

    return said


# What is read


def test_every_field_of_a_file_reaches_its_record(read: Read) -> None:
    text = """
        [[devices]]
        name = "pi"
        memory_bytes = "4GB"
        flops_per_s = 1e10
        bytes_per_s = "3.5GB"
        dispatch_s = 1e-5
        link_bytes_per_s = "100MiB"
        latency_s = 0
        provider = "XnnpackExecutionProvider"
        [[devices]]
        name = "größe"
        [[links]]
        between = ["pi", "größe"]
        bytes_per_s = "1.5kB"
        latency_s = 0.25
    """
    pi = Device(
        name="pi",
        memory_bytes=4_000_000_000,
        flops_per_s=1e10,
        bytes_per_s=3.5e9,
        dispatch_s=1e-5,
        link_bytes_per_s=104_857_600.0,
        latency_s=0.0,
        provider="XnnpackExecutionProvider",
    )
    link = NetworkLink(between=("pi", "größe"), bytes_per_s=1500.0, latency_s=0.25)
    assert read(text) == Cluster(devices=(pi, Device(name="größe")), links=(link,))


def test_a_device_needs_no_more_than_a_name(read: Read) -> None:
    assert read(ALONE) == Cluster(devices=(Device(name="a"),))
    assert Device(name="a").memory_bytes is None


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(read: Read) -> None:
    assert read(f"\ufeff{PAIR}".replace("\n", "\r\n")) == read(PAIR)


@pytest.mark.parametrize(
    ("words", "number"), [('"1GB"', 10**9), ('"1GiB"', 2**30), ('"1500"', 1500), ("1500", 1500), ("1.5e9", 1.5e9)]
)
@pytest.mark.parametrize("field", ["memory_bytes", "bytes_per_s", "link_bytes_per_s"])
def test_a_number_of_bytes_may_be_a_size_or_a_number(read: Read, field: str, words: str, number: float) -> None:
    assert getattr(read(f"{ALONE}{field} = {words}").devices[0], field) == number


def test_bytes_a_second_may_say_so(read: Read) -> None:
    assert read(f'{ALONE}bytes_per_s = "10GB/s"').devices[0].bytes_per_s == 1e10


# What can't be read


def test_a_file_that_is_not_there_is_the_users_slip(tmp_path: Path) -> None:
    for place, why in ((tmp_path / "no.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError) as caught:
            read_cluster(place)
        assert str(caught.value) == f"{place} can't be read: {why}"
        assert caught.value.hint == "name a TOML file that lists devices"


def test_a_model_is_no_cluster(chain: Path) -> None:
    with pytest.raises(GraphcutError, match=r"chain\.onnx (can't be read: it is not text|is not TOML: .*)"):
        read_cluster(chain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[devices\n", r" is not TOML: .* \(at line 1, column 10\)"),
        ("", ": Object missing required field `devices`"),
        ("devices = []", ": a cluster has at least one device"),
        ("devices = 5", ": devices: Expected `array`, got `int`"),
        ('[devices]\nname = "a"', ": devices: Expected `array`, got `object`"),
        ('[[device]]\nname = "a"', ": Object contains unknown field `device`"),
        ("[[devices]]", r": devices\[0\]: Object missing required field `name`"),
        ('[[devices]]\nname = ""', r": devices\[0\]: a device needs a name"),
        (f'{PAIR}memory = "1GB"', r": devices\[1\]: Object contains unknown field `memory`"),
        (f'{PAIR}flops_per_s = "fast"', r": devices\[1\]\.flops_per_s: Expected `float`, got `str`"),
        (f'{ALONE}latency_s = "1ms"', r": devices\[0\]\.latency_s: Expected `float`, got `str`"),
        (f"{ALONE}{ALONE}{PAIR}", ": 3 devices are called 'a'"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert re.fullmatch(said, refusal(text)), refusal(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes", "0"),
        ("memory_bytes", "-5"),
        ("flops_per_s", "0"),
        ("flops_per_s", "inf"),
        ("flops_per_s", "nan"),
        ("bytes_per_s", "-1.5"),
        ("link_bytes_per_s", "inf"),
        ("latency_s", "-1"),
        ("latency_s", "inf"),
        ("dispatch_s", "nan"),
    ],
)
def test_a_device_that_can_not_be_is_refused_by_field_and_name(
    refusal: Callable[[str], str], field: str, value: str
) -> None:
    said = refusal(f"{PAIR}{field} = {value}")
    assert said.startswith(f": devices[1]: {field} of device 'b' can't be {value}: expected ")


@pytest.mark.parametrize("words", ["lots", "", "4 G", "1e9"])
def test_a_size_that_is_none_is_told_with_file_and_place(refusal: Callable[[str], str], words: str) -> None:
    """A file may hold many of them."""
    assert refusal(f'{PAIR}memory_bytes = "{words}"') == f": devices[1].memory_bytes: {words!r} is not a size"


# Links


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{PAIR}[[links]]\nbetween = ["a", "c"]\nbytes_per_s = 1', ": a link ends at 'c', which is no device"),
        (f'{PAIR}[[links]]\nbetween = ["b", "b"]\nbytes_per_s = 1', ": a link goes from 'b' to itself"),
        (
            f'{PAIR}[[links]]\nbetween = ["a"]\nbytes_per_s = 1',
            ": links[0].between: Expected `array` of length 2, got 1",
        ),
        (LINK, ": links[0]: Object missing required field `bytes_per_s`"),
        (f"{LINK}bytes_per_s = 0", ": links[0]: the link between a and b can't carry 0 bytes a second"),
        (f"{LINK}bytes_per_s = nan", ": links[0]: the link between a and b can't carry nan bytes a second"),
    ],
)
def test_a_line_that_can_not_be_is_refused(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert refusal(text) == said


@pytest.mark.parametrize("fields", ["bytes_per_s = inf", "bytes_per_s = 1\nlatency_s = inf"])
def test_a_line_is_finite_like_a_device(refusal: Callable[[str], str], fields: str) -> None:
    """JSON has no infinity: a plan that holds one could not be saved and opened again."""
    assert "the link between a and b" in refusal(f"{LINK}{fields}")


def test_two_lines_between_the_same_devices_are_refused(refusal: Callable[[str], str]) -> None:
    both = f'{LINK}bytes_per_s = 1\n[[links]]\nbetween = ["b", "a"]\nbytes_per_s = 2'
    assert "a and b" in refusal(both).replace("b and a", "a and b")


@pytest.fixture
def pair(read: Read) -> Cluster:
    """The links to the router carry 100 and 50 bytes a second, and a third device has a link of its own to `a`."""
    return read(
        """
        [[devices]]
        name = "a"
        link_bytes_per_s = 100
        latency_s = 1
        [[devices]]
        name = "b"
        link_bytes_per_s = 50
        latency_s = 2
        [[devices]]
        name = "c"
        [[links]]
        between = ["c", "a"]
        bytes_per_s = 10
        latency_s = 0.5
        """
    )


def test_over_the_router_both_lines_count_and_the_latency_of_the_receiver(pair: Cluster) -> None:
    a, b, _ = pair.devices
    assert pair.seconds_between(a, b, 200) == 2 + 200 / 100 + 200 / 50
    assert pair.seconds_between(b, a, 200) == 1 + 200 / 50 + 200 / 100


def test_a_direct_line_counts_instead_of_the_router_in_both_directions(pair: Cluster) -> None:
    a, _, c = pair.devices
    assert pair.seconds_between(a, c, 200) == pair.seconds_between(c, a, 200) == 0.5 + 200 / 10


def test_a_line_waits_a_tenth_of_a_millisecond_where_nothing_is_said(read: Read) -> None:
    assert read(f"{LINK}bytes_per_s = 1").links[0].latency_s == 1e-4


# What goes wrong


FAULTY = f"""{PAIR}
[[links]]
between = ["a", "b"]
bytes_per_s = 1000

[[faults]]
device = "a"
jitter_s = 0.5
loss = 0.25
mean_up_s = 3600
mean_down_s = 60

[[faults]]
between = ["b", "a"]
loss = 0.5

[[failures]]
device = "b"
at_s = 10
for_s = 2.5

[[failures]]
device = "a"
at_s = 20
"""


def test_what_goes_wrong_stands_in_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(FAULTY, encoding="utf-8")
    a = ReliabilityModel(device="a", jitter_s=0.5, loss=0.25, mean_up_s=3600.0, mean_down_s=60.0)
    link = ReliabilityModel(between=("b", "a"), loss=0.5)
    world = read_simulated_cluster(tmp_path / "cluster.toml")
    assert world.faults == (a, link)
    assert world.failures == (
        ScheduledFailure(device="b", at_s=10.0, for_s=2.5),
        ScheduledFailure(device="a", at_s=20.0),
    )
    assert world.fault_of == {frozenset("a"): a, frozenset("ab"): link}


def test_planning_reads_the_same_file_without_what_goes_wrong(read: Read) -> None:
    """So that a plan, and its file, are the same whatever is simulated."""
    found = read(FAULTY)
    assert type(found) is Cluster
    assert found == read(FAULTY.partition("[[faults]]")[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[faults]]\ndevice = "c"', ": 'c' is to fail, which is no device"),
        ('[[failures]]\ndevice = "c"\nat_s = 1', ": 'c' is to fail, which is no device"),
        ('[[faults]]\nbetween = ["a", "b"]', ": a fault is said of a link between a and b, and there is none"),
        ('[[faults]]\ndevice = "a"\n[[faults]]\ndevice = "a"', ": 2 faults are said of a"),
        (
            "[[faults]]\nloss = 0.5",
            ": faults[0]: a fault is that of a `device`, or of the link `between` two, and of one of them only",
        ),
        (
            '[[faults]]\ndevice = "a"\nloss = 1',
            ": faults[0]: loss of device 'a' can't be 1: it is 0 or more, and less than 1",
        ),
        (
            '[[faults]]\ndevice = "a"\njitter_s = nan',
            ": faults[0]: jitter_s of device 'a' can't be nan: it is 0 or more, and finite",
        ),
        (
            '[[faults]]\ndevice = "a"\nmean_up_s = 5',
            ": faults[0]: mean_up_s and mean_down_s of device 'a' belong together",
        ),
        (
            '[[faults]]\ndevice = "a"\nmean_up_s = 5\nmean_down_s = 0',
            ": faults[0]: mean_up_s and mean_down_s of device 'a' are above 0, and finite",
        ),
        (
            '[[faults]]\nbetween = ["a", "b"]\nmean_up_s = 5\nmean_down_s = 1',
            (
                ": faults[0]: the link between a and b can't fail as a device does: "
                "only devices have mean_up_s and mean_down_s"
            ),
        ),
        (
            '[[failures]]\ndevice = "a"\nat_s = -1',
            ": failures[0]: 'a' can't fail at -1 s: that is 0 or more, and finite",
        ),
        (
            '[[failures]]\ndevice = "a"\nat_s = 1\nfor_s = 0',
            ": failures[0]: 'a' can't fail for 0 s: that is above 0, and finite",
        ),
        ('[[faults]]\ndevice = "a"\nlost = 0.5', ": faults[0]: Object contains unknown field `lost`"),
    ],
)
def test_a_fault_that_can_not_be_is_refused(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert refusal(f"{PAIR}{text}") == said
