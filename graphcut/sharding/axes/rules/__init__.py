"""The rule table: the factors of each operator. An operator without a rule can't be divided."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from ....loading.operations import Operation
from ..factors import Factor, Rule
from . import attention, elements, products, shapes

RULES: Final[Mapping[str, Rule]] = {**elements.RULES, **shapes.RULES, **products.PRODUCTS, **attention.RULES}
"""By the operator, as in `Node.op`."""

PRODUCTS: Final = frozenset({*products.PRODUCTS, "com.microsoft.Attention"})  #: operators that multiply by a weight.


def factors_of(o: Operation) -> Sequence[Factor]:
    """The factors of a node that have two units or more.

    None if its operator has no rule, a rank is unknown, or is one that the operator does not take.
    """
    rule, tensors = RULES.get(o.op), zip((*o.inputs, *o.outputs), (*o.reads, *o.writes), strict=True)
    if rule is None or any(name and shape is None for name, shape in tensors):
        return []
    try:
        found = [factor for factor in rule(o) if factor.units > 1]
        places = [(o.reads, place) for one in found for place in one.reads]
        places += [(o.writes, place) for one in found for place in one.writes]
        return found if all(place.axis < len(shapes[place.slot] or ()) for shapes, place in places) else []
    except IndexError:  # of a shape with fewer axes
        return []


def described(o: Operation) -> Hashable:
    """All of a node that rules read: those of repeated layers are described alike, and have the same factors."""
    shapes = tuple(name and (tensor := o.tensors.get(name)) and tensor.shape for name in (*o.inputs, *o.outputs))
    attributes = tuple(attribute.SerializeToString() for attribute in o.node.attribute)
    return o.op, o.version, len(o.inputs), shapes, tuple(map(o.constants.get, o.inputs)), attributes
