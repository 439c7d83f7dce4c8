"""The worked examples in the docstrings of the solver are true."""

from __future__ import annotations

import doctest
import importlib

from cases import each

MODULES = ("chain_dp", "min_cut", "order_ideals", "order_prefixes", "recompute", "topological_orders")


@each("name", MODULES)
def test_the_examples_of_an_algorithm_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"graphcut.solving.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
