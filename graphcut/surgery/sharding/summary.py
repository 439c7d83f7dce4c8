"""`describe`: what is divided in a sharded model, what is not and why, and what it costs, as lines of text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from ...analysis.axes.division import DividedClass, Division
from ...core.text import printable
from ...core.units import count, size
from ...loading.model import Model
from .sharding import Sharding

_Row = tuple[str, ...]


def describe(sharding: Sharding) -> list[str]:
    """The axes that are divided, the share of weights, what is replicated, and the exchanges of either mode."""
    division = sharding.division
    by_rank = ", ".join(size(number) for number in sharding.rank_bytes)
    return [
        *_table([("divided", "units", "nodes", "weights"), *_classes(division)]),
        f"divided: {sharding.divided_share:.1%} of the weights that nodes multiply by ({size(sharding.product_bytes)})",
        f"weights of the ranks: {by_rank}; replicated: {size(sharding.replicated_bytes)}",
        *_not_divided(division),
        *_table([("", "exchanges in a run", "bytes that a rank receives"), *_exchanges(sharding)]),
    ]


def _table(rows: list[_Row]) -> Iterator[str]:
    """Aligned columns: the first one to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells)


def _classes(division: Division) -> Iterator[_Row]:
    """A row for the classes that are alike: of the same place in repeated modules, with as many units and nodes."""
    sizes = {name: weight.bytes for name, weight in division.model.graph.weights.items()}
    rows: Counter[_Row] = Counter()
    for divided in division.classes:
        weights = sum(sizes[name] for name in divided.axes.weights)
        rows[_place(division.model, divided), str(divided.axes.units), str(len(divided.factors)), size(weights)] += 1
    for (place, *cells), number in rows.items():
        yield (f"{number} \N{MULTIPLICATION SIGN} {place}" if number > 1 else place), *cells


def _place(model: Model, divided: DividedClass) -> str:
    """What the modules of the products of a class have in common, with * for numbers; else the name of the first."""
    nodes = [model.graph.nodes[node] for node in divided.axes.products if node in divided.factors]
    steps = list(zip(*(node.module.split("/") for node in nodes), strict=False))
    equal = next((i for i, step in enumerate(steps) if len(set(step)) > 1), len(steps))
    common = "/".join(step[0] for step in steps[:equal])
    return printable(re.sub(r"\d+", "*", common or nodes[0].name))


def _not_divided(division: Division) -> Iterator[str]:
    nodes = division.model.graph.nodes
    rows = Counter((n in division.class_of, nodes[n].op, why.reason) for n, why in division.alone.items())
    for (is_divided, op, reason), number in rows.items():
        what = "divided alone" if is_divided else "not divided"
        yield f"{what}: {count(number, 'node')} {printable(op)}, because of {printable(reason)}"


def _exchanges(sharding: Sharding) -> Iterable[_Row]:
    for one in sharding.modes:
        received, is_exact = one.received_bytes
        name = f"{one.mode} (as written)" if one is sharding.division else one.mode
        yield name, str(len(one.joins)), size(received) if is_exact else f"at least {size(received)}"
