"""Axis classes as rows of text; those of repeated layers, which are alike, are one row."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ...core.text import few, printable
from ...core.units import size
from ...costs.matching import common_start
from ...loading.model import Model
from .classes import AxisClass

_MOST: Final = 2  #: names in a list.
_LONGEST: Final = 32  #: characters of a name.
_NUMBER: Final = re.compile(r"[0-9][0-9.,]*( [KMGT]?i?B)?")


class ClassRow(NamedTuple):
    """Axis classes that are alike."""

    place: str  #: how many, and the modules of their products, with * for numbers.
    units: str  #: how many units each has.
    nodes: str  #: how many nodes each divides.
    weights: str  #: the bytes of the weights of each.
    blocked: str  #: the operators that block them.
    axes: str  #: their weights, each with its axis.


def class_rows(model: Model, classes: Iterable[AxisClass]) -> list[ClassRow]:
    """A row for the classes of the same place in repeated modules that have as many units and nodes."""
    sizes = {name: weight.bytes for name, weight in model.graph.weights.items()}
    rows: Counter[ClassRow] = Counter()
    for one in classes:
        numbers = str(one.units), str(len(one.factors)), size(sum(sizes[name] for name in one.weights))
        blocked = _counted(printable(blocker.reason) for blocker in one.blockers)
        rows[ClassRow(_place(model, one), *numbers, blocked, _axes(one))] += 1
    return [row._replace(place=_times(number, row.place)) for row, number in rows.items()]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns: the first one and texts to the left, numbers to the right."""
    columns = [*zip(*rows, strict=True)]
    fits = [str.rjust if all(map(_NUMBER.fullmatch, column[1:])) else str.ljust for column in columns]
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        yield "  ".join(fit(cell, width) for fit, cell, width in zip(fits, row, widths, strict=True)).rstrip()


def _place(model: Model, one: AxisClass) -> str:
    """What the modules of the products of a class have in common; else the name of the first."""
    nodes = [model.graph.nodes[node] for node in one.products if node in one.factors]
    return _alike("/".join(common_start(node.module.split("/") for node in nodes)) or nodes[0].name)


def _axes(one: AxisClass) -> str:
    """The weights without the modules that all of them are in; equal ones are counted."""
    axes = {use.tensor: layout.axis for use, layout in one.layouts.items() if use.tensor in one.weights}
    before = len("".join(common_start(re.split(r"(?<=[./])", name)[:-1] for name in axes)))
    return _counted(f"{_alike(name[before:])}[{axis}]" for name, axis in axes.items())


def _counted(texts: Iterable[str]) -> str:
    return few([_times(number, text) for text, number in Counter(texts).items()], _MOST)


def _times(number: int, text: str) -> str:
    return f"{number} \N{MULTIPLICATION SIGN} {text}" if number > 1 else text


def _alike(name: str) -> str:
    """A name with * for numbers between separators; of a long one, its end."""
    text = re.sub(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])", "*", name)
    return printable(text if len(text) <= _LONGEST else "\N{HORIZONTAL ELLIPSIS}" + text[1 - _LONGEST :])
