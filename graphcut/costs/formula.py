"""Polynomials in the symbols of a model, such as `8192*batch*seq + 5`: a cost or a size before the dims are bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..core.graph import grouped
from ..core.tensors import Dim
from ..loading.operations import Operation, Shape

Term = tuple[tuple[str, ...], int]
"""The symbols of a product, sorted, each as often as it occurs, and the coefficient."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A polynomial with non-negative integer coefficients."""

    terms: tuple[Term, ...] = ()  #: sorted by their symbols; each product of symbols once, none with the coefficient 0.
    #: whether all sizes in it were numbers or symbols. An unknown size counts as 1, which makes the formula a lower
    #: bound.
    is_exact: bool = True

    @staticmethod
    def of(dim: Dim) -> Formula:
        """A size as a formula: a number or a symbol; `None` becomes 1 and not exact."""
        return _product((dim,))

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in it."""
        return frozenset(symbol for symbols, _ in self.terms for symbol in symbols)

    def at(self, dims: Mapping[str, int]) -> int:
        """The value for `dims`; a symbol that they don't bind counts as 1, as in `Tensor.bytes_for`."""
        return sum(number * prod(dims.get(symbol, 1) for symbol in symbols) for symbols, number in self.terms)

    def is_exact_at(self, dims: Mapping[str, int]) -> bool:
        """Whether `at(dims)` is the cost and not a lower bound: no size is unknown, and `dims` bind every symbol."""
        return self.is_exact and self.symbols <= dims.keys()

    @lru_cache(maxsize=65_536)  # noqa: B019 - formulas are small, and a model has many nodes and few shapes
    def __add__(self, other: Formula | int) -> Formula:
        """The sum."""
        return _sum((*self.terms, *_formula(other).terms), is_exact=self.is_exact and _formula(other).is_exact)

    @lru_cache(maxsize=65_536)  # noqa: B019
    def __mul__(self, other: Formula | int) -> Formula:
        """The product."""
        other = _formula(other)
        terms = ((tuple(sorted(one + two)), a * b) for one, a in self.terms for two, b in other.terms)
        return _sum(terms, is_exact=self.is_exact and other.is_exact)

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        """The terms, highest degree first; with `≥` in front of a lower bound."""
        ordered = sorted(self.terms, key=lambda term: (-len(term[0]), term[0]))
        text = " + ".join(_term(symbols, coefficient) for symbols, coefficient in ordered) or "0"
        return text if self.is_exact else f"≥ {text}"


ZERO = Formula()
UNKNOWN = Formula((((), 1),), is_exact=False)
Rule = Callable[[Operation], Formula]  #: the FLOPs of one run of a node.


def product(dims: Iterable[Dim]) -> Formula:
    """The number of elements of a tensor of these sizes; 1 for a scalar."""
    return _product(tuple(dims))


def elements(shape: Shape | None) -> Formula:
    """The number of elements of a tensor."""
    return UNKNOWN if shape is None else product(shape)


def rows(shape: Shape | None) -> Formula:
    """The number of rows of a tensor: the product of all its sizes but the last."""
    return UNKNOWN if shape is None else product(shape[:-1])


def axis(shape: Shape | None, index: int) -> Dim:
    """The size of a tensor along one axis; `None` if it is unknown."""
    return shape[index] if shape is not None and -len(shape) <= index < len(shape) else None


def size(shape: Shape | None, index: int) -> Formula:
    """The size of a tensor along one axis as a formula."""
    return Formula.of(axis(shape, index))


def divided(dim: Dim, parts: int) -> Dim:
    """A size divided by a number; `None` for a symbol, which may not be divisible."""
    return dim // parts if isinstance(dim, int) and parts > 0 else None


@lru_cache(maxsize=65_536)  # a model has many nodes and few shapes
def _product(dims: tuple[Dim, ...]) -> Formula:
    symbols = tuple(sorted(dim for dim in dims if isinstance(dim, str)))
    number = prod(dim for dim in dims if isinstance(dim, int))
    return Formula(((symbols, number),) if number else (), None not in dims)


def _formula(value: Formula | int) -> Formula:
    return value if isinstance(value, Formula) else _product((value,))


def _sum(terms: Iterable[Term], *, is_exact: bool) -> Formula:
    return Formula(tuple(sorted((symbols, sum(own)) for symbols, own in grouped(terms).items())), is_exact)


def _term(symbols: tuple[str, ...], coefficient: int) -> str:
    # A symbol may be an expression, as torch's exporter writes them; then it needs parentheses.
    names = [symbol if symbol.isidentifier() else f"({symbol})" for symbol in symbols]
    return "*".join(names if names and coefficient == 1 else [str(coefficient), *names])
