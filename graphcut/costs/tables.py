"""Cost models as CSV tables, one row a module: Olive's columns and some of ours, read, written and computed.

Olive (github.com/microsoft/Olive, `generate-cost-model`) writes `module,num_params,num_bytes,num_flops`, where
`num_flops` is for one token: in its shipped files one for each multiply-add of a linear layer, in what its command
writes today two. Ours are two, for the sizes the model was weighed with. So `num_flops` of two tables compare as
proportions only, and `apply_table` takes them as such. Olive reads our tables too: it looks at its own columns alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ..core.atomic_files import replacing
from ..core.errors import GraphcutError, RecordError, UsageError
from ..core.graph import Graph
from ..core.product import Product

if TYPE_CHECKING:
    from ..loading.model import Model
    from .weighing import Costs

REMAINDER: Final = "(remainder)"
"""The row of a measured table for the time that belongs to no module. It matches no node, and is no gap."""

_ASSETS: Final = Path(__file__).parent / "cost_models"
_REQUIRED: Final = ("module", "num_params", "num_bytes", "num_flops")
_OPTIONAL: Final = ("activation_bytes", "output_bytes", "time_s")
_ORT: Final = ("#name", "input_sizes", "initializers_sizes", "total_dynamic_sizes", "total_temp_allocations")
_ORT_HASH: Final = re.compile(r"_\d+$")
_NO_PARAMETERS: Final = frozenset({6, 7, 8, 9})  # TensorProto's int32, int64, string and bool: shapes, places, masks
_PACKED: Final = frozenset({"com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4"})
_HINT: Final = f"a cost model has the columns {','.join(_REQUIRED)}, and may have {', '.join(_OPTIONAL)}"


class CostRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one module costs. 0 and `None` both mean that the table says nothing.

    Attributes:
        module: its path, such as `model.layers.0.self_attn.q_proj`; for a node that tells no module its name.
        num_params: elements of the weights it reads; of 4-bit weights, the elements before they were packed.
        num_bytes: what its weights take.
        num_flops: floating-point operations. How many tokens that is for, and whether a multiply-add is one or two,
            is the table's own affair.
        activation_bytes: the most that its activations take at a time while it runs.
        output_bytes: what it hands to other modules, and out of the model.
        time_s: how long it ran, in seconds.
    """

    module: str
    num_params: int = 0
    num_bytes: int = 0
    num_flops: int = 0
    activation_bytes: int | None = None
    output_bytes: int | None = None
    time_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Does it say nothing of its module, like Olive's rows for dropouts?"""
        return not any(getattr(self, column) for column in (*_REQUIRED[1:], *_OPTIONAL))


@dataclass(frozen=True, repr=False)
class CostTable(Product):
    """A cost model.

    Attributes:
        rows: one a module, none twice.
        source: the file it was read from; `None` where it was computed.
    """

    rows: tuple[CostRow, ...]
    source: Path | None = None

    @property
    def is_measured(self) -> bool:
        """Does any row say how long its module ran?"""
        return any(row.time_s is not None for row in self.rows)


def shipped_tables() -> Mapping[str, Path]:
    """The cost models that come with graphcut, by name; computed, not measured (see assets/README.md)."""
    return {file.stem: file for file in sorted(_ASSETS.glob("*.csv"))}


def read_table(path: str | Path) -> CostTable:
    """The cost model in the file at `path`, its columns in any order.

    A file of ONNX Runtime's node memory statistics (`session.collect_node_memory_stats_to_file`) is recognised by its
    first line. Its rows are nodes: `num_bytes` is then the bytes of initializers, and `activation_bytes` what the node
    read, what was allocated for its outputs, and its temporary memory (a sum, so "at most").

    Raises:
        UsageError: there is no such file, or it can't be read.
        RecordError: it is no cost model; the sentence names line and column.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        known = ", ".join(shipped_tables())
        raise UsageError(f"there is no file {path}", hint=f"cost models that come with graphcut: {known}") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}", hint="name a CSV file") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not text in UTF-8", hint=_HINT) from None
    is_ort = text.startswith(_ORT[0])
    rows = _merged(_ort_rows(path, text)) if is_ort else tuple(_rows(path, text))
    return CostTable(rows, path)


class _Cell(NamedTuple):
    """One value, and where it stands."""

    path: Path
    line: int
    column: str
    text: str

    def error(self, what: str) -> RecordError:
        return RecordError(f"{self.path}, line {self.line}, column {self.column}: {self.text!r} {what}", hint=_HINT)

    def whole(self) -> int:
        """A whole number. Olive writes half bytes for 4-bit weights; what is begun counts."""
        return -int(-self.number() // 1)

    def number(self) -> float:
        if not re.fullmatch(r"\d+(\.\d*)?([eE][-+]?\d{1,2})?", self.text):
            raise self.error("is not a number of 0 or more")
        return int(self.text) if self.text.isdigit() else float(self.text)


def _rows(path: Path, text: str) -> Iterator[CostRow]:
    lines = _lines(path, text)
    _, header = next(lines, (1, []))
    _check_header(path, header)
    seen: dict[str, int] = {}
    for line, values in lines:
        if len(values) != len(header):
            raise RecordError(
                f"{path}, line {line}: {len(values)} values, and the first line names {len(header)} columns", hint=_HINT
            )
        row = _row({name: _Cell(path, line, name, value) for name, value in zip(header, values, strict=True)})
        if row.module in seen:
            raise RecordError(
                f"{path}, line {line}: module {row.module!r} stands in line {seen[row.module]} already",
                hint="give each module one row",
            )
        seen[row.module] = line
        yield row


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Each line that holds something, with its number."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield reader.line_num, [value.strip() for value in values]
    except csv.Error as error:
        raise RecordError(f"{path}, line {reader.line_num}: {error}", hint=_HINT) from None


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise RecordError(f"{path}, line 1: there is no column {missing[0]!r}", hint=_HINT)
    for i, name in enumerate(header):
        if name not in (*_REQUIRED, *_OPTIONAL):
            raise RecordError(f"{path}, line 1: column {name!r} is not known", hint=_HINT)
        if name in header[:i]:
            raise RecordError(f"{path}, line 1: column {name!r} stands there twice", hint=_HINT)


def _row(cells: Mapping[str, _Cell]) -> CostRow:
    if not cells["module"].text:
        raise cells["module"].error("is no module")
    optional = {name: cells[name] for name in _OPTIONAL if name in cells and cells[name].text}
    return CostRow(
        module=cells["module"].text,
        num_params=cells["num_params"].whole(),
        num_bytes=cells["num_bytes"].whole(),
        num_flops=cells["num_flops"].whole(),
        activation_bytes=optional["activation_bytes"].whole() if "activation_bytes" in optional else None,
        output_bytes=optional["output_bytes"].whole() if "output_bytes" in optional else None,
        time_s=float(optional["time_s"].number()) if "time_s" in optional else None,
    )


def _ort_rows(path: Path, text: str) -> Iterator[CostRow]:
    """ONNX Runtime's rows (core/framework/resource_accountant.cc): names unquoted, each with a hash behind it."""
    for line, content in enumerate(text.splitlines(), start=1):
        # A name may hold commas, so the numbers are counted from the end.
        name, *values = content.rsplit(",", len(_ORT) - 1)
        if line == 1 or not content.strip():
            if line == 1 and (name, *values) != _ORT:
                raise RecordError(
                    f"{path}, line 1: node memory statistics have the columns {','.join(_ORT)}",
                    hint="collect them with session.collect_node_memory_stats_to_file",
                )
            continue
        if len(values) != len(_ORT) - 1:
            raise RecordError(
                f"{path}, line {line}: {len(values) + 1} values, and there are {len(_ORT)} columns",
                hint="collect them again with session.collect_node_memory_stats_to_file",
            )
        cells = zip(_ORT[1:], values, strict=True)
        reads, weights, made, temporary = (_Cell(path, line, c, value.strip()).whole() for c, value in cells)
        yield CostRow(module=_ORT_HASH.sub("", name), num_bytes=weights, activation_bytes=reads + made + temporary)


def _merged(rows: Iterable[CostRow]) -> tuple[CostRow, ...]:
    """Rows of one name in one: nodes without names are called after their operators there."""
    found: dict[str, CostRow] = {}
    for row in rows:
        first = found.get(row.module)
        found[row.module] = (
            row
            if first is None
            else CostRow(
                module=row.module,
                num_bytes=first.num_bytes + row.num_bytes,
                activation_bytes=max(first.activation_bytes or 0, row.activation_bytes or 0),
            )
        )
    return tuple(found.values())


def save_table(table: CostTable, path: str | Path) -> None:
    """Write `table` to `path`, whole or not at all. Columns of ours of which no row says anything are left out.

    Raises:
        GraphcutError: the disk refuses.
    """
    path = Path(path)
    columns = (*_REQUIRED, *(c for c in _OPTIONAL if any(getattr(row, c) is not None for row in table.rows)))
    try:
        with replacing(path) as new, new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([getattr(row, column) for column in columns] for row in table.rows)
    except OSError as error:
        raise GraphcutError(
            f"{path} can't be written: {error.strerror or error}", hint="is there such a folder, and room in it?"
        ) from None


def module_names(graph: Graph) -> tuple[str, ...]:
    """What the row of each flowing node is called: its module with dots, or the node's name where it tells none."""
    nodes = [graph.nodes[i] for i in graph.flow]
    return tuple(node.module.replace("/", ".") or node.name for node in nodes)


def table_of(costs: Costs) -> CostTable:
    """The cost model of a model, computed: a row for each module, in the order in which they first run.

    A weight counts in the first module that reads it, so that the rows add up to the model: the row of an output
    projection that is tied to the embedding has no parameters. A module is the nodes that stand in it itself; those of
    its inner modules have rows of their own.
    """
    from .weighing import peak_bytes

    graph = costs.model.graph
    outputs = set(graph.writes)
    members: dict[str, list[int]] = {}
    for place, name in enumerate(module_names(graph)):
        members.setdefault(name, []).append(place)
    elements = _elements(costs.model)
    counted: set[str] = set()
    rows = []
    for module, places in members.items():
        nodes = [graph.flow[place] for place in places]
        weights = [
            name for name in dict.fromkeys(name for i in nodes for name in graph.weights_of(i)) if name not in counted
        ]
        counted.update(weights)
        writes = _given_out(graph, nodes, outputs)
        rows.append(
            CostRow(
                module=module,
                num_params=sum(elements[name] for name in weights),
                num_bytes=sum(graph.weights[name].bytes for name in weights),
                num_flops=sum(costs.flops[place] for place in places),
                activation_bytes=peak_bytes(graph, nodes, costs.tensor_bytes, writes=writes),
                output_bytes=sum(costs.tensor_bytes[name][0] for name in writes),
            )
        )
    return CostTable(tuple(rows))


def _given_out(graph: Graph, nodes: Sequence[int], outputs: AbstractSet[str]) -> list[str]:
    """What the nodes write and others read, or the model gives out."""
    inside = set(nodes)
    return [
        name
        for i in nodes
        for name in graph.nodes[i].writes
        if name in outputs or any(reader not in inside for reader in graph.readers.get(name, ()))
    ]


def _elements(model: Model) -> dict[str, int]:
    """How many parameters each weight holds."""
    found: dict[str, int] = {}
    dense = [(t.name, t) for t in model.proto.graph.initializer]
    sparse = [(s.values.name, s.values) for s in model.proto.graph.sparse_initializer]
    for name, tensor in (*dense, *sparse):
        elements = 0 if tensor.data_type in _NO_PARAMETERS else 1
        for dim in tensor.dims:
            elements *= dim
        found[name] = elements
    for node, proto in zip(model.graph.nodes, model.proto.graph.node, strict=True):
        if node.op in _PACKED:
            sizes: dict[str, int] = {attribute.name: attribute.i for attribute in proto.attribute}
            found.update(dict.fromkeys(proto.input[2:4], 0))  # scales and zero points stand for no parameter
            found[proto.input[1]] = sizes["K"] * sizes["N"]
    return found
