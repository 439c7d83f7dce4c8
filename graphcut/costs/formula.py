"""A polynomial in the symbols of a model, such as `8192*batch*seq + 5`: what a node costs before numbers are put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..core.wiring import Dim

Term = tuple[tuple[str, ...], int]
"""The symbols that are multiplied, sorted and repeated as often as they occur, and their coefficient."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A polynomial with non-negative whole coefficients.

    Attributes:
        terms: sorted by their symbols, each product of symbols once, none with the coefficient 0.
        is_exact: every size that went in was a number or a symbol. Where one was unknown it counts as 1, and the
            formula is a lower bound.
    """

    terms: tuple[Term, ...] = ()
    is_exact: bool = True

    @staticmethod
    def of(dim: Dim) -> Formula:
        """One size: a number, a symbol, or `None`, which counts as 1 and is not exact."""
        return _of(dim)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in it."""
        return frozenset(symbol for symbols, _ in self.terms for symbol in symbols)

    def at(self, dims: Mapping[str, int]) -> int:
        """Its value for `dims`; a symbol without a number counts as 1, as in `Tensor.bytes_for`."""
        total = 0
        for symbols, coefficient in self.terms:
            value = coefficient
            for symbol in symbols:
                value *= dims.get(symbol, 1)
            total += value
        return total

    def is_exact_at(self, dims: Mapping[str, int]) -> bool:
        """Is `at(dims)` the whole cost, with no size unknown and no symbol without a number?"""
        return self.is_exact and all(symbol in dims for symbols, _ in self.terms for symbol in symbols)

    def __add__(self, other: Formula | int) -> Formula:
        """The sum."""
        other = _coerced(other)
        is_exact = self.is_exact and other.is_exact
        coefficients = dict(self.terms)
        for symbols, coefficient in other.terms:
            coefficients[symbols] = coefficients.get(symbols, 0) + coefficient
        return Formula(tuple(sorted(coefficients.items())), is_exact)

    def __mul__(self, other: Formula | int) -> Formula:
        """The product."""
        other = _coerced(other)
        is_exact = self.is_exact and other.is_exact
        coefficients: dict[tuple[str, ...], int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                symbols = tuple(sorted(left + right))
                coefficients[symbols] = coefficients.get(symbols, 0) + a * b
        return Formula(tuple(sorted(coefficients.items())), is_exact)

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        """Highest powers first; `≥` where it is a lower bound."""
        ordered = sorted(self.terms, key=lambda term: (-len(term[0]), term[0]))
        text = " + ".join(_term(symbols, coefficient) for symbols, coefficient in ordered) or "0"
        return text if self.is_exact else f"≥ {text}"


ZERO = Formula()
UNKNOWN = Formula((((), 1),), is_exact=False)


def product(dims: Iterable[Dim]) -> Formula:
    """The number of elements of a tensor with these sizes: `product(())` is 1, a scalar's."""
    return _product(tuple(dims))


# A model has few different shapes and many nodes: the caches spare most of the arithmetic. They hold values alone.
@lru_cache(maxsize=65_536)
def _product(dims: tuple[Dim, ...]) -> Formula:
    number, symbols = 1, []
    for dim in dims:
        if isinstance(dim, str):
            symbols.append(dim)
        elif dim is not None:
            number *= dim
    return Formula(((tuple(sorted(symbols)), number),) if number else (), None not in dims)


@lru_cache(maxsize=65_536)
def _of(dim: Dim) -> Formula:
    return _product((dim,))


def _coerced(value: Formula | int) -> Formula:
    return value if isinstance(value, Formula) else _of(value)


def _term(symbols: tuple[str, ...], coefficient: int) -> str:
    if not symbols:
        return str(coefficient)
    # A symbol that is an expression itself, as torch's exporter writes them, needs its brackets.
    names = [symbol if symbol.isidentifier() else f"({symbol})" for symbol in symbols]
    return "*".join(names if coefficient == 1 else [str(coefficient), *names])
