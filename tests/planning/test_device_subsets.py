"""Orders of many different devices, of which a plan may use the first."""

from __future__ import annotations

from graphcut.planning.by_goal.device_subsets import next_orders


def test_in_a_long_order_devices_are_exchanged_that_are_near_each_other() -> None:
    """Of 100 devices those that are up to six apart, at the end of the order, too."""
    given, *exchanged = next_orders(range(100), (1,) * 100)
    assert given == tuple(range(100))
    pairs = [tuple(i for i, device in enumerate(order) if device != i) for order in exchanged]
    assert pairs == [(i, j) for i in range(100) for j in range(i + 1, min(i + 7, 100))]


def test_two_idle_devices_are_not_exchanged() -> None:
    assert [*next_orders([1], (1, 1, 1))] == [(1, 0, 2), (0, 1, 2), (2, 0, 1)]
