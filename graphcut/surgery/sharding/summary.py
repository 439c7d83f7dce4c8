"""`describe`: what is divided in a sharded model, what is not and why, and what it costs, as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...analysis.axes.division import Division
from ...analysis.axes.table import aligned, class_rows
from ...core.text import printable
from ...core.units import count, size
from .sharding import Sharding


def describe(sharding: Sharding) -> list[str]:
    """The axes that are divided, the share of weights, what is replicated, and the exchanges of either mode."""
    division = sharding.division
    classes = (replace(divided.axes, factors=divided.factors) for divided in division.classes)
    by_rank = ", ".join(size(number) for number in sharding.rank_bytes)
    return [
        *aligned([("divided", "units", "nodes", "weights"), *(row[:4] for row in class_rows(division.model, classes))]),
        f"divided: {sharding.divided_share:.1%} of the weights that nodes multiply by ({size(sharding.product_bytes)})",
        f"weights of the ranks: {by_rank}; replicated: {size(sharding.replicated_bytes)}",
        *_not_divided(division),
        *(f"found by running: {rule}" for rule in division.found),
        *aligned([("", "exchanges in a run", "bytes that a rank receives"), *_exchanges(sharding)]),
    ]


def _not_divided(division: Division) -> Iterator[str]:
    nodes = division.model.graph.nodes
    rows = Counter((n in division.class_of, nodes[n].op, why.reason) for n, why in division.alone.items())
    for (is_divided, op, reason), number in rows.items():
        what = "divided alone" if is_divided else "not divided"
        yield f"{what}: {count(number, 'node')} {printable(op)}, because of {printable(reason)}"


def _exchanges(sharding: Sharding) -> Iterable[tuple[str, ...]]:
    for one in sharding.modes:
        received, is_exact = one.received_bytes
        name = f"{one.mode} (as written)" if one is sharding.division else one.mode
        yield name, str(len(one.joins)), size(received) if is_exact else f"at least {size(received)}"
