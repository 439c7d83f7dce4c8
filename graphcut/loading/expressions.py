"""Symbolic dimensions that are expressions: `"past_sequence_length + sequence_length"`, `"floor(h/2 - 1/2) + 1"`.

optimum, torch.onnx and tools that use sympy write these into dim_param; ONNX itself treats them as names. `/` is the
division of rational numbers, as in sympy, so that they are computed exactly.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z_][\w.:\-]*")
"""A plain name. `seq-len` is one: exporters write differences with spaces."""

_OPERATORS: Final[Mapping[type[ast.operator], Callable[..., Fraction | int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_CALLS: Final[Mapping[str, Callable[..., Fraction | int]]] = {
    "max": max, "min": min, "floor": math.floor, "ceil": math.ceil, "ceiling": math.ceil,
}  # fmt: skip


@cache
def atoms(symbol: str) -> tuple[str, ...]:
    """The names in a symbolic dimension, in order; the whole text if it cannot be evaluated."""
    if (tree := _parse(symbol)) is None:
        return (symbol,)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id.lower() not in _CALLS]
    found = tuple(dict.fromkeys(node.id for node in sorted(names, key=lambda node: node.col_offset)))
    return found if found and _value(tree, dict.fromkeys(found, 64)) is not None else (symbol,)


def evaluate(symbol: str, numbers: Mapping[str, int]) -> int | None:
    """The value of a symbolic dimension; `None` if a name in it has no number, or the value is no whole number.

    >>> evaluate("floor(h/2 - 1/2) + 1", {"h": 320})  # floor(159.5) + 1
    160
    """
    if symbol in numbers:
        return numbers[symbol]
    tree = _parse(symbol)
    value = None if tree is None else _value(tree, numbers)
    return None if value is None or value.denominator > 1 else int(value)


@cache
def _parse(symbol: str) -> ast.expr | None:
    if _NAME.fullmatch(symbol):
        return None
    try:
        return ast.parse(symbol.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _value(tree: ast.expr, numbers: Mapping[str, int]) -> Fraction | None:
    operation: Callable[..., Fraction | int] | None
    match tree:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.Name(id=name):
            return Fraction(numbers[name]) if name in numbers else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            operation, parts = operator.sub, [ast.Constant(0), operand]
        case ast.BinOp(left=left, op=op, right=right):
            operation, parts = _OPERATORS.get(type(op)), [left, right]
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            operation = _CALLS.get(name.lower())
        case _:
            return None
    values = [_value(part, numbers) for part in parts]
    try:
        return None if operation is None or None in values else Fraction(operation(*values))
    except (ArithmeticError, TypeError):
        return None
