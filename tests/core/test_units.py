"""Sizes as people write them and as they like to read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcut import UsageError
from graphcut.core.units import count, duration, given_bytes, operations, parse_bytes, size, sizes_as_given

from cases import each

FACTORS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@each(
    ("text", "meant"),
    [
        ("0", 0),
        ("17", 17),
        ("17 B", 17),
        ("2GB", 2_000_000_000),
        ("2gib", 2_147_483_648),
        ("1.5 KiB", 1536),
        ("  512MiB\n", 536_870_912),
        ("0.5TB", 500_000_000_000),
    ],
)
def test_a_size_means_what_people_mean_by_it(text: str, meant: int) -> None:
    assert parse_bytes(text) == meant


@each("text", ["", "GB", "-1", "+1", "1e3", "1,000", "2 G", "2GBs", "1.", ".5", "1 2", "nan", "2 GB 3", "0x10"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert str(caught.value) == f"{text!r} is not a size"
    assert caught.value.hint == "write it like 512MiB, 2GB or 1.5GiB"


@settings(deadline=None)
@given(st.integers(0, 2**70), st.sampled_from(sorted(FACTORS)))
def test_a_whole_number_of_units_is_exact(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * FACTORS[unit]
    assert parse_bytes(str(number)) == number


@settings(deadline=None)
@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["kB", "MB", "GB", "TB"]))
def test_three_decimals_lose_no_byte(whole: int, thousandths: int, unit: str) -> None:
    """2.01 kB are 2010 bytes, though 2.01 * 1000 is 2009.9999999999998."""
    assert parse_bytes(f"{whole}.{thousandths:03}{unit}") == (whole * 1000 + thousandths) * FACTORS[unit] // 1000


def test_a_size_longer_than_any_float_is_still_a_size() -> None:
    assert parse_bytes("9" * 400) == 10**400 - 1


@each(
    ("number", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1024, "1 KiB"),
        (999 * 1024, "999 KiB"),
        (1000 * 1024, "0.977 MiB"),
        (4_980_736, "4.75 MiB"),
        (3 * 2**30, "3 GiB"),
        (7_600_000_000, "7.08 GiB"),
        (2**40, "1 TiB"),
        (-5, "-5 B"),
    ],
)
def test_three_digits_say_a_size(number: int, said: str) -> None:
    assert size(number) == said


@settings(deadline=None)
@given(st.integers(0, 999 * 2**40))
def test_what_is_said_can_be_read_back_to_three_digits(number: int) -> None:
    assert abs(parse_bytes(size(number)) - number) <= number * 0.005 + 1


@each(
    ("texts", "said"),
    [
        (["12345kB"], "20 MB"),
        (["2GB"], "20 MB"),
        (["1.5 mb "], "20 MB"),
        (["2000KiB"], "19.1 MiB"),
        (["2000000"], "19.1 MiB"),
        (["2000000 B"], "19.1 MiB"),
        (["4GiB", "1MB"], "20 MB"),
        (["1MB", "4GiB"], "20 MB"),
        ([], "19.1 MiB"),
    ],
)
def test_all_sizes_are_in_decimal_units_once_one_was_given_in_these(texts: list[str], said: str) -> None:
    """Whatever the numbers are; for a command, and for none after it."""
    with sizes_as_given():
        for text in texts:
            assert given_bytes(text) == parse_bytes(text)
        assert size(20_000_000) == said
    assert size(20_000_000) == "19.1 MiB"


def test_the_library_says_sizes_in_binary_units() -> None:
    given_bytes("2GB")
    assert size(20_000_000) == "19.1 MiB"


def test_the_noun_follows_the_number() -> None:
    assert [count(number, "node") for number in (0, 1, 2, 1491)] == ["0 nodes", "1 node", "2 nodes", "1,491 nodes"]


@each(
    ("seconds", "said"),
    [
        (0, "0 µs"),
        (5e-6, "5 µs"),
        (161.4e-6, "161 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),
        (0.00797, "7.97 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (12.44, "12.4 s"),
        (99.4, "99.4 s"),
        (120, "2 min"),
        (186, "3.1 min"),
        (-0.002, "-2 ms"),
    ],
)
def test_three_digits_say_a_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_days_are_said_without_an_exponent() -> None:
    """A device of 1 flop/s is a slip of the pen that people make."""
    assert "e+" not in duration(30 * 86_400)


@settings(deadline=None)
@given(st.floats(1e-6, 5e4))
def test_a_duration_is_said_to_three_digits(seconds: float) -> None:
    number, unit = duration(seconds).split()
    factor = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert abs(float(number) * factor - seconds) <= seconds * 0.00501


@each(
    ("number", "said"),
    [
        (0, "0 FLOP"),
        (513, "513 FLOP"),
        (999.4, "999 FLOP"),
        (1000, "1 kFLOP"),
        (32_768, "32.8 kFLOP"),
        (386_000_000, "386 MFLOP"),
        (999_600_000, "1 GFLOP"),
        (7.6e12, "7.6 TFLOP"),
        (2e15, "2 PFLOP"),
    ],
)
def test_three_digits_say_a_number_of_operations(number: float, said: str) -> None:
    """With a space between number and unit, whatever the unit's first letter."""
    assert f"{operations(number)}FLOP" == said
