"""What a device can run, as rules: records, and the files that hold them (docs/reference/rule-file.md)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ..core.errors import RecordError, did_you_mean
from ..core.graph import grouped
from ..core.product import Product
from ..core.records import reading, with_sizes
from ..core.tensors import ELEMENT_TYPES

Kind = Literal["operator", "opset", "type", "rank", "attribute", "input", "shape", "size", "node", "whole"]
"""Why a node can't run. `whole`: it can, and not in one part with those before it. For crossings, it begins a part."""

Value = int | float | str  #: of an attribute.
Limit = Annotated[int, msgspec.Meta(ge=1)]

_SHIPPED: Final = Path(__file__).parent / "rule_files"
_HINT: Final = "docs/reference/rule-file.md describes rule files"


class AttributeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an attribute may be; of a list each item. One that is left out has its default, or is not judged."""

    name: str  #: its name.
    any_of: tuple[Value, ...] | None = None  #: the values that it may have.
    at_least: float | None = None  #: the least number that it may be.
    at_most: float | None = None  #: the largest.


class TensorRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of the tensors of a node."""

    #: element types of what it reads and writes; constant integers (shapes, axes, indices) may have any. None: any.
    types: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None  #: ranks of the activations that it reads and writes; None for any.
    static_shapes: bool | None = None  #: each of them has a number for each dimension.
    largest_tensor_bytes: Limit | None = None  #: the most bytes of any of its tensors, weights included.

    def __post_init__(self) -> None:
        if unknown := [name for name in self.types or () if name not in ELEMENT_TYPES]:
            known = f"{did_you_mean(unknown[0], ELEMENT_TYPES)}types are {', '.join(ELEMENT_TYPES)}"
            raise ValueError(f"there is no element type {unknown[0]!r}; {known}")


class OperatorRule(TensorRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators, and when a node of one can run. What is not given here is as for the whole device."""

    ops: tuple[str, ...]  #: the operators.
    domain: str = ""  #: their domain; empty for ONNX's own.
    opset_from: int = 1  #: the first version of the operator set,
    opset_to: int | None = None  #: and the last one; None for no last one.
    attributes: tuple[AttributeRule, ...] = ()  #: what their attributes may be.
    #: the inputs, by index, that must be weights or constants where they are given.
    constant_inputs: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The operators as nodes name them (`Node.op`)."""
        return tuple(f"{self.domain}.{op}" if self.domain not in {"", "ai.onnx"} else op for op in self.ops)


class RefusedNodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that a device can't run, whatever their operator."""

    nodes: tuple[str, ...]  #: their names, or globs.
    why: str = "named in the rules"  #: the reason, in a few words.
    kind: Kind = "node"  #: what it is, if that is known.


class DeviceRules(Product, TensorRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes a device can run, and how large a part of it may be."""

    name: str  #: what the rules are for.
    source: str = ""  #: where they are documented.
    version: str = ""  #: of the source.
    #: what it can run; a node needs one rule that takes it. Empty: any operator.
    operators: tuple[OperatorRule, ...] = ()
    nodes: tuple[str, ...] = ()  #: names or globs of nodes; no other ones can run. Empty: any.
    refused: tuple[RefusedNodes, ...] = ()  #: nodes that can't.
    largest_part_bytes: Limit | None = None  #: the most bytes of the weights and the graph of a part.
    most_part_nodes: Limit | None = None  #: the most nodes of a part.
    most_part_inputs: Limit | None = None  #: the most inputs of a part.
    most_part_outputs: Limit | None = None  #: the most outputs.

    @property
    def part_limits(self) -> dict[str, int | None]:
        """The limits of a part: its bytes, nodes, inputs and outputs."""
        names = "largest_part_bytes", "most_part_nodes", "most_part_inputs", "most_part_outputs"
        return {name: getattr(self, name) for name in names}


def shipped_rules() -> Mapping[str, Path]:
    """The rule files that come with graphcut, by name."""
    return {file.stem: file for file in sorted(_SHIPPED.glob("*.toml"))}


def read_rules(path: str | Path) -> DeviceRules:
    """The rules in a TOML file, in the JSON of a `DeviceSupport`, or in a file that comes with graphcut.

    Raises:
        RecordError: the file can't be read, or has no such rules; the message says where.
    """
    path = shipped_rules().get(str(path), Path(path))
    form, unread = path.suffix[1:].upper() or "TOML", f"name a rule file, or one of {', '.join(shipped_rules())}"
    with reading(path, form, unread=unread, hint=_HINT):
        found = (msgspec.json if form == "JSON" else msgspec.toml).decode(path.read_text(encoding="utf-8-sig"))
        found = found.get("rules", found) if form == "JSON" and isinstance(found, dict) else found
        rules = msgspec.convert(with_sizes(found), DeviceRules)
    _check_operators(path, rules.operators)
    return rules


def _check_operators(path: Path, operators: Sequence[OperatorRule]) -> None:
    """Refuse an operator that ONNX does not have. Those of domains that ONNX does not know are taken as they are."""
    from onnx import defs  # only rule files need it

    known = grouped((schema.domain, schema.name) for schema in defs.get_all_schemas())
    for i, rule in enumerate(operators):
        names = known.get("" if rule.domain == "ai.onnx" else rule.domain)
        if unknown := next((op for op in rule.ops if names is not None and op not in names), None):
            hint = f"{did_you_mean(unknown, names or ())}an operator of another domain names it in the field domain"
            raise RecordError(f"{path}: operators[{i}]: ONNX has no operator {unknown!r}", hint=hint)
