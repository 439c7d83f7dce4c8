"""Cost models as CSV tables with one row for each module: read, written and computed.

Olive (github.com/microsoft/Olive, `generate-cost-model`) writes the columns `module,num_params,num_bytes,num_flops`,
with `num_flops` for one token: 1 for each multiply-add of a linear layer in the files that it ships, 2 in what its
command writes today. A table of graphcut has 2, for the dims of the model. So `num_flops` of two tables are comparable
as proportions only, and that is how `apply_table` takes them. Olive reads tables of graphcut; it ignores other columns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.atomic_files import replacing, write_errors
from ..core.errors import RecordError
from ..core.graph import Graph, grouped
from ..core.product import Product
from ..core.records import reading

if TYPE_CHECKING:
    from ..loading.model import Model
    from .weighing import Costs

REMAINDER: Final = "(remainder)"
"""The row of a measured table with the time that belongs to no module; it is meant to match no node."""

_SHIPPED: Final = Path(__file__).parent / "cost_models"
_REQUIRED: Final = ("module", "num_params", "num_bytes", "num_flops")
_OPTIONAL: Final = ("activation_bytes", "output_bytes", "time_s")
_NUMBER: Final = re.compile(r"\d+(\.\d*)?([eE][-+]?\d{1,2})?")
_NO_PARAMETERS: Final = frozenset({6, 7, 8, 9})  # TensorProto's int32, int64, string and bool: shapes, indices, masks
_PACKED: Final = frozenset({"com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4"})
_HINT: Final = f"a cost model has the columns {','.join(_REQUIRED)}, and may have {', '.join(_OPTIONAL)}"


class CostRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The costs of a module; 0 and `None` both mean unknown."""

    module: str  #: its path, such as `model.layers.0.self_attn.q_proj`; the name of a node without a module.
    num_params: int = 0  #: elements of its weights; for 4-bit weights before packing.
    num_bytes: int = 0  #: bytes of its weights.
    #: floating-point operations; tables differ in the number of tokens and in what a multiply-add counts.
    num_flops: int = 0
    activation_bytes: int | None = None  #: peak bytes of activations while it runs.
    output_bytes: int | None = None  #: bytes of its outputs that other modules read, or that are outputs of the model.
    time_s: float | None = None  #: how long it runs, in seconds.

    @property
    def is_empty(self) -> bool:
        """Whether all its costs are unknown, as in Olive's rows for dropouts."""
        return not any(getattr(self, column) for column in (*_REQUIRED[1:], *_OPTIONAL))


@dataclass(frozen=True, repr=False)
class CostTable(Product):
    """A cost model."""

    rows: tuple[CostRow, ...]  #: one for each module.

    @property
    def is_measured(self) -> bool:
        """Whether any row has a time."""
        return any(row.time_s is not None for row in self.rows)


def shipped_tables() -> Mapping[str, Path]:
    """The cost models that come with graphcut, by name. They are computed, not measured (see cost_models/README.md)."""
    return {file.stem: file for file in sorted(_SHIPPED.glob("*.csv"))}


def read_table(path: str | Path) -> CostTable:
    """The cost model in a file, its columns in any order.

    Raises:
        RecordError: it can't be read, or is not a cost model; the message has line and column.
    """
    path, known = Path(path), ", ".join(shipped_tables())
    with reading(path, "CSV", unread=f"name a CSV file; cost models that come with graphcut: {known}", hint=_HINT):
        text = path.read_text(encoding="utf-8-sig")
    return CostTable(tuple(_rows(path, text)))


def _rows(path: Path, text: str) -> Iterator[CostRow]:
    lines = _lines(path, text)
    _, header = next(lines, (1, []))
    _check_header(path, header)
    seen: dict[str, int] = {}
    for line, values in lines:
        where = f"{path}, line {line}"
        if len(values) != len(header):
            raise RecordError(f"{where}: {len(values)} values, and line 1 has {len(header)} columns", hint=_HINT)
        cells = {name: value for name, value in zip(header, values, strict=True) if value or name in _REQUIRED}
        module = cells.pop("module")
        if not module:
            raise RecordError(f"{where}, column module: the name is missing", hint=_HINT)
        if module in seen:
            raise RecordError(f"{where}: module {module!r} is already in line {seen[module]}", hint="remove one row")
        seen[module] = line
        numbers = {name: _number(value, f"{where}, column {name}") for name, value in cells.items()}
        whole = {name: ceil(number) for name, number in numbers.items() if name != "time_s"}  # Olive has half bytes
        yield msgspec.convert({"module": module, **numbers, **whole}, CostRow)


def _number(text: str, where: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise RecordError(f"{where}: {text!r} is not a number of 0 or more", hint=_HINT)
    return int(text) if text.isdigit() else float(text)


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield reader.line_num, [value.strip() for value in values]
    except csv.Error as error:
        raise RecordError(f"{path}, line {reader.line_num}: {error}", hint=_HINT) from None


def _check_header(path: Path, header: Sequence[str]) -> None:
    if missing := [name for name in _REQUIRED if name not in header]:
        raise RecordError(f"{path}, line 1: there is no column {missing[0]!r}", hint=_HINT)
    for i, name in enumerate(header):
        if name not in (*_REQUIRED, *_OPTIONAL):
            raise RecordError(f"{path}, line 1: unknown column {name!r}", hint=_HINT)
        if name in header[:i]:
            raise RecordError(f"{path}, line 1: there are two columns {name!r}", hint=_HINT)


def save_table(table: CostTable, path: str | Path) -> None:
    """Write `table` to `path`, completely or not at all. Optional columns without any value are left out.

    Raises:
        GraphcutError: the file can't be written.
    """
    path, hint = Path(path), "check that the folder exists and has room"
    columns = (*_REQUIRED, *(c for c in _OPTIONAL if any(getattr(row, c) is not None for row in table.rows)))
    with write_errors(path, hint), replacing(path) as new, new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(row, column) for column in columns] for row in table.rows)


def module_names(graph: Graph) -> tuple[str, ...]:
    """The row of each flowing node in a table: its module with dots, or the name of a node without a module."""
    return tuple(node.module.replace("/", ".") or node.name for node in (graph.nodes[i] for i in graph.flow))


def table_of(costs: Costs) -> CostTable:
    """The computed cost model of a model: a row for each module, in the order in which they first run.

    A module has the nodes that are directly in it; inner modules have rows of their own. A weight counts in the first
    module that reads it, so that the rows add up to the model: an output projection that is tied to the embedding has
    no parameters.
    """
    return CostTable(tuple(_computed_rows(costs)))


def _computed_rows(costs: Costs) -> Iterator[CostRow]:
    from .weighing import peak_bytes  # imports onnx, which reading a table doesn't need

    graph, sizes = costs.model.graph, costs.tensor_bytes
    members = grouped((name, i) for i, name in enumerate(module_names(graph)))
    elements = _elements(costs.model)
    counted: set[str] = set()
    for module, indices in members.items():
        nodes = [graph.flow[i] for i in indices]
        weights = dict.fromkeys(name for n in nodes for name in graph.weights_of(n) if name not in counted)
        counted.update(weights)
        readers = {name: {*graph.readers.get(name, ())} for n in nodes for name in graph.nodes[n].writes}
        writes = [name for name, own in readers.items() if name in graph.outputs or own - {*nodes}]
        yield CostRow(
            module=module,
            num_params=sum(elements[name] for name in weights),
            num_bytes=sum(graph.weights[name].bytes for name in weights),
            num_flops=sum(costs.flops[i] for i in indices),
            activation_bytes=peak_bytes(graph, nodes, sizes, writes=writes),
            output_bytes=sum(sizes[name][0] for name in writes),
        )


def _elements(model: Model) -> dict[str, int]:
    """The number of parameters in each weight."""
    graph = model.proto.graph
    tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    found = {tensor.name: 0 if tensor.data_type in _NO_PARAMETERS else prod(tensor.dims) for tensor in tensors}
    for node, proto in zip(model.graph.nodes, graph.node, strict=True):
        if node.op in _PACKED:
            sizes: dict[str, int] = {attribute.name: attribute.i for attribute in proto.attribute}
            found.update(dict.fromkeys(proto.input[2:4], 0))  # scales and zero points are no parameters
            found[proto.input[1]] = sizes["K"] * sizes["N"]
    return found
