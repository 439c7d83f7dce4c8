"""`cluster.toml`: devices, links, faults and failures, and the messages for wrong files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graphcut import Cluster, Device, GraphcutError, NetworkLink, RecordError, read_cluster
from graphcut.costs.cluster import ReliabilityModel, ScheduledFailure, read_simulated_cluster

from cases import each

Read = Callable[[str], Cluster]

ALONE = '[[devices]]\nname = "a"\n'
PAIR = f'{ALONE}[[devices]]\nname = "b"\n'
POSITIVE = "expected a finite number above 0"
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


def test_every_field_of_a_cluster_file_is_read(read: Read) -> None:
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
        provider_options = ["intra_op_num_threads=2"]
        threads = 1
        session_config = ["session.use_env_allocators=1"]
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
        provider_options=("intra_op_num_threads=2",),
        threads=1,
        session_config=("session.use_env_allocators=1",),
    )
    link = NetworkLink(between=("pi", "größe"), bytes_per_s=1500.0, latency_s=0.25)
    assert read(text) == Cluster(devices=(pi, Device(name="größe")), links=(link,))


def test_a_device_needs_only_a_name(read: Read) -> None:
    assert read(ALONE) == Cluster(devices=(Device(name="a"),))
    assert Device(name="a").memory_bytes is None


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(read: Read) -> None:
    assert read(f"\ufeff{PAIR}".replace("\n", "\r\n")) == read(PAIR)


@each(("words", "number"), [('"1GB"', 10**9), ('"1GiB"', 2**30), ('"1500"', 1500), ("1500", 1500), ("1.5e9", 1.5e9)])
@each("field", ["memory_bytes", "bytes_per_s", "link_bytes_per_s"])
def test_bytes_may_be_a_number_or_a_size_in_text(read: Read, field: str, words: str, number: float) -> None:
    assert getattr(read(f"{ALONE}{field} = {words}").devices[0], field) == number


def test_a_bandwidth_may_end_in_per_second(read: Read) -> None:
    assert read(f'{ALONE}bytes_per_s = "10GB/s"').devices[0].bytes_per_s == 1e10


# What can't be read


def test_a_missing_cluster_file_is_a_record_error(tmp_path: Path) -> None:
    for place, why in ((tmp_path / "no.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(RecordError) as caught:
            read_cluster(place)
        assert str(caught.value) == f"{place} can't be read: {why}"
        assert caught.value.hint == "name a TOML file that lists devices"


def test_a_model_is_not_a_cluster(chain: Path) -> None:
    with pytest.raises(GraphcutError, match=r"chain\.onnx (can't be read: it is not text|is not TOML: .*)"):
        read_cluster(chain)


@each(
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
        (f'origin = "c"\n{PAIR}', r": the origin 'c' is not a device; a host of its own is a table: \[origin\]"),
        (f'{PAIR}[origin]\nname = "b"', ": the origin 'b' is a device: write origin = 'b'"),
    ],
)
def test_a_wrong_record_is_refused_with_its_location(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert re.fullmatch(said, refusal(text)), refusal(text)


@each(
    ("text", "hint"),
    [
        (f"{PAIR}memory = 1", "did you mean 'memory_bytes'? its fields are provider, provider_options, threads, "),
        (f"{PAIR}colour = 1", "its fields are provider, "),
        (f"colour = 1\n{PAIR}", "its fields are devices, links, origin, overlap, store_s, step_s, faults, failures"),
        (f"{PAIR}[origin]\nrate = 1", "its fields are name, link_bytes_per_s, latency_s"),
    ],
)
def test_where_a_field_is_unknown_the_known_ones_are_named(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(GraphcutError, match="unknown field") as caught:
        read_cluster(path)
    assert caught.value.hint.startswith(hint)


@each(
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
def test_a_device_with_an_impossible_value_is_refused_by_field_and_name(
    refusal: Callable[[str], str], field: str, value: str
) -> None:
    said = refusal(f"{PAIR}{field} = {value}")
    assert said.startswith(f": devices[1]: {field} of device 'b' can't be {value}: expected ")


@each("words", ["lots", "", "4 G", "1e9"])
def test_text_that_is_not_a_size_is_refused_with_its_location(refusal: Callable[[str], str], words: str) -> None:
    """A file may hold many of them."""
    assert refusal(f'{PAIR}memory_bytes = "{words}"') == f": devices[1].memory_bytes: {words!r} is not a size"


# Links


@each(
    ("text", "said"),
    [
        (f'{PAIR}[[links]]\nbetween = ["a", "c"]\nbytes_per_s = 1', ": a link ends at 'c', which is not a device"),
        (f'{PAIR}[[links]]\nbetween = ["b", "b"]\nbytes_per_s = 1', ": a link goes from 'b' to itself"),
        (
            f'{PAIR}[[links]]\nbetween = ["a"]\nbytes_per_s = 1',
            ": links[0].between: Expected `array` of length 2, got 1",
        ),
        (LINK, ": links[0]: Object missing required field `bytes_per_s`"),
        (
            f"{LINK}bytes_per_s = 0",
            ": links[0]: bytes_per_s of the link between a and b can't be 0: expected a finite number above 0",
        ),
        (
            f"{LINK}bytes_per_s = nan",
            ": links[0]: bytes_per_s of the link between a and b can't be nan: expected a finite number above 0",
        ),
    ],
)
def test_an_impossible_link_is_refused(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert refusal(text) == said


@pytest.mark.parametrize("fields", ["bytes_per_s = inf", "bytes_per_s = 1\nlatency_s = inf"])
def test_a_link_has_finite_values(refusal: Callable[[str], str], fields: str) -> None:
    """JSON has no infinity: a plan that holds one could not be saved and opened again."""
    assert "the link between a and b" in refusal(f"{LINK}{fields}")


def test_two_links_between_the_same_devices_are_refused(refusal: Callable[[str], str]) -> None:
    both = f'{LINK}bytes_per_s = 1\n[[links]]\nbetween = ["b", "a"]\nbytes_per_s = 2'
    assert "a and b" in refusal(both).replace("b and a", "a and b")


def test_the_default_latency_of_a_link_is_a_tenth_of_a_millisecond(read: Read) -> None:
    assert read(f"{LINK}bytes_per_s = 1").links[0].latency_s == 1e-4


# Faults and failures


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


def test_faults_and_failures_are_read_from_the_cluster_file(tmp_path: Path) -> None:
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


def test_planning_reads_the_cluster_file_without_faults_and_failures(read: Read) -> None:
    """So that a plan, and its file, are the same whatever is simulated."""
    found = read(FAULTY)
    assert type(found) is Cluster
    assert found == read(FAULTY.partition("[[faults]]")[0])


@each(
    ("text", "said"),
    [
        ('[[faults]]\ndevice = "c"', ": a failure names 'c', which is not a device"),
        ('[[failures]]\ndevice = "c"\nat_s = 1', ": a failure names 'c', which is not a device"),
        ('[[faults]]\nbetween = ["a", "b"]', ": a fault names a link between a and b, and there is none"),
        ('[[faults]]\ndevice = "a"\n[[faults]]\ndevice = "a"', ": there are 2 faults of a"),
        (
            "[[faults]]\nloss = 0.5",
            ": faults[0]: a fault names either a 'device' or the two devices 'between' which a link is",
        ),
        (
            '[[faults]]\ndevice = "a"\nloss = 1',
            ": faults[0]: loss of device 'a' can't be 1: expected a number of 0 or more, less than 1",
        ),
        (
            '[[faults]]\ndevice = "a"\njitter_s = nan',
            ": faults[0]: jitter_s of device 'a' can't be nan: expected a finite number of 0 or more",
        ),
        (
            '[[faults]]\ndevice = "a"\nmean_up_s = 5',
            ": faults[0]: mean_up_s and mean_down_s of device 'a' belong together",
        ),
        (
            '[[faults]]\ndevice = "a"\nmean_up_s = 5\nmean_down_s = 0',
            ": faults[0]: mean_down_s of device 'a' can't be 0: expected a finite number above 0",
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
            ": failures[0]: at_s of a failure of 'a' can't be -1: expected a finite number of 0 or more",
        ),
        (
            '[[failures]]\ndevice = "a"\nat_s = 1\nfor_s = 0',
            ": failures[0]: for_s of a failure of 'a' can't be 0: expected a finite number above 0",
        ),
        ('[[faults]]\ndevice = "a"\nlost = 0.5', ": faults[0]: Object contains unknown field `lost`"),
    ],
)
def test_an_impossible_fault_is_refused(refusal: Callable[[str], str], text: str, said: str) -> None:
    assert refusal(f"{PAIR}{text}") == said
