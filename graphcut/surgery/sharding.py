"""`shard`: one ONNX model in which every layer that can be divided stands once for each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from onnx import ModelProto, TensorProto

from ..core.arguments import Storage
from ..core.errors import UsageError, check_word
from ..core.product import Product
from ..core.text import printable
from ..core.units import count, size
from ..costs.device_groups import RankMode
from ..loading.external_data import ByteRange, Columns, read_values, refer_to_file
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from ..loading.slices import SHARDED, ShardingNote, bytes_of_slice, inline_slice
from ..loading.subgraphs import is_external, locations_in, tensors_in
from ..loading.wire_format import large_bytes
from ..sharding.axes.division import Divider, Division, products_of
from ..sharding.axes.table import aligned, class_rows
from ..sharding.rewriting import ShardedGraph, WeightSlice, sharded_graph
from .model_files import Pieces, checked_home, place_of, write_model


class ShardingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.sharding/1"):
    """A sharded model as JSON."""

    path: str  #: the .onnx file.
    mode: str  #: `exact` or `sum`.
    shares: tuple[int, ...]  #: the share of each rank.
    units: tuple[tuple[int, ...], ...]  #: for each class of axes the units that each rank has.
    weights: tuple[tuple[str, ...], ...]  #: for each class the weights that are divided in it.
    not_divided: dict[str, str]  #: the nodes that multiply by a weight and are not divided, each with the reason.
    rank_bytes: tuple[int, ...]  #: bytes of weights that each rank has for itself.
    replicated_bytes: int  #: bytes of weights that are not divided.
    product_bytes: int  #: bytes of the weights of nodes that multiply by weights.
    divided_product_bytes: int  #: how many of these are divided.
    exchanges: dict[str, int]  #: for each mode how many tensors are put together from pieces in a run.
    received_bytes: dict[str, int]  #: for each mode the bytes that a rank receives in a run, on average.


@dataclass(frozen=True, repr=False)
class Sharding(Product):
    """A sharded model, and what is divided in it.

    `print` shows the axes that are divided, the share of weights, what is replicated, and the exchanges of either mode.
    """

    path: Path  #: the .onnx file.
    division: Division  #: what is divided, and how.
    #: bytes of weights that each rank has for itself.
    rank_bytes: tuple[int, ...]
    replicated_bytes: int  #: bytes of weights that are not divided; nodes that are not divided read them.
    product_bytes: int  #: bytes of the weights of nodes that multiply by weights: what sharding is meant to divide.
    divided_product_bytes: int  #: how many of these are divided.

    @cached_property
    def model(self) -> Model:
        """The sharded model."""
        return load(self.path, dims=self.division.model.dims or None)

    @cached_property
    def modes(self) -> tuple[Division, Division]:
        """The division, and the one in the other mode, to compare what they exchange."""
        own = self.division
        other: RankMode = "sum" if own.mode == "exact" else "exact"
        return own, Divider(own.model, other).divide(own.shares)

    @property
    def divided_share(self) -> float:
        """The share of `product_bytes` that is divided; 0 if there are none."""
        return self.divided_product_bytes / self.product_bytes if self.product_bytes else 0.0

    @property
    def record(self) -> ShardingRecord:
        """The sharded model as JSON."""
        division = self.division
        whole = {node: why.reason for node, why in division.alone.items() if node not in division.class_of}
        sizes = ("rank_bytes", "replicated_bytes", "product_bytes", "divided_product_bytes")
        return ShardingRecord(
            path=str(self.path),
            mode=division.mode,
            shares=division.shares,
            units=tuple(divided.units for divided in division.classes),
            weights=tuple(divided.axes.weights for divided in division.classes),
            not_divided={division.model.graph.nodes[node].name: reason for node, reason in whole.items()},
            exchanges={one.mode: len(one.joins) for one in self.modes},
            received_bytes={one.mode: one.received_bytes[0] for one in self.modes},
            **{name: getattr(self, name) for name in sizes},
        )

    def __str__(self) -> str:
        classes = (divided.axes._replace(factors=divided.factors) for divided in self.division.classes)
        rows = (row[:4] for row in class_rows(self.division.model, classes))
        by_rank = ", ".join(size(number) for number in self.rank_bytes)
        lines = [
            *aligned([("divided", "units", "nodes", "weights"), *rows]),
            f"divided: {self.divided_share:.1%} of the weights that nodes multiply by ({size(self.product_bytes)})",
            f"weights of the ranks: {by_rank}; replicated: {size(self.replicated_bytes)}",
            *_not_divided(self.division),
            *aligned([("", "exchanges in a run", "bytes that a rank receives"), *_exchanges(self)]),
        ]
        return "\n".join(lines)


def shard(
    model: ModelLike,
    output: str | Path | None = None,
    *,
    ranks: int | Sequence[int],
    mode: RankMode = "exact",
    weights: Storage = "copy",
    force: bool = False,
) -> Sharding:
    """Write a model in which every layer that can be divided stands once for each rank (tensor parallelism).

    The result is an ordinary ONNX model: the nodes of a divided layer are in it once for each rank, with slices of the
    weights, and nodes that join the pieces. A state such as a KV cache that is divided becomes one input and one output
    for each rank; all other inputs and outputs stay as they are. See docs/explanation/sharding.md.

    Args:
        model: the model or its path.
        output: the .onnx file to write; by default `STEM.sharded.onnx` in the current folder, or in the model's for
            shared weights. Weights of more than 64 MiB are written to `OUTPUT.data`.
        ranks: the number of ranks; or the share of each, such as `(3, 1, 1, 1)`. Ranks get whole units, such as heads
            of keys and values.
        mode: `exact`: pieces are joined before a node that sums over the divided axis, and the columns of its weight
            are divided; no sum is. `sum`: such a node computes partial sums, which are added.
        weights: `copy`: the sharded model has all its weights. `share`: weights and slices that are ranges of the
            model's files refer to them; the sharded model must then be in the model's folder.
        force: overwrite an existing file.

    Raises:
        UsageError: the ranks make no sense, nothing can be divided, or `output` exists.
        GraphcutError: writing failed.
    """
    model = load(model)
    output = place_of(model, output, ".sharded.onnx", weights)
    home = checked_home(model, output, weights, force=force)
    division = division_of(model, ranks, mode)
    graph = filled_graph(division, output.absolute().parent)
    write_model(output, graph.proto, pieces_of(model, graph.proto, graph.slices), home=home, force=force)
    sizes = {name: weight.bytes for name, weight in model.graph.weights.items()}
    products = {name for node in products_of(model, division.operations) for name in model.graph.weights_of(node)}
    return Sharding(
        path=output,
        division=division,
        rank_bytes=tuple(sum(one.bytes for one in graph.slices if one.rank == r) for r in range(len(division.shares))),
        replicated_bytes=sum(sizes.get(name, 0) for name in graph.whole),
        product_bytes=sum(sizes[name] for name in products),
        divided_product_bytes=sum(sizes[name] for name in products & {one.source.name for one in graph.slices}),
    )


def division_of(model: Model, ranks: int | Sequence[int], mode: RankMode) -> Division:
    """How a model is divided among ranks. A UsageError if their shares make no sense, or nothing is divided."""
    check_word(mode, RankMode, "mode")
    division = Divider(model, mode).divide((1,) * ranks if isinstance(ranks, int) else ranks)
    if not division.classes:
        hint = "its weights are multiplied by operators without a rule, or have too few units for these shares"
        raise UsageError(f"no layer of {model.title} can be divided", hint=hint)
    return division


def filled_graph(division: Division, folder: Path) -> ShardedGraph:
    """The sharded model, which is to be in `folder`; its metadata say what it is a sharded form of.

    Its slices of few bytes have their values; others refer to as many bytes of the model's file. What is there does not
    matter: `pieces_of` says where the values are. But the sharded model is a valid one, whose types can be inferred.
    """
    if division.model.loop is not None:
        what = f"{division.model.title} has {division.model.loop.steps} steps, and ranks run no loop"
        raise UsageError(what, hint="divide the layers of one of its models, or cut the pipeline without ranks")
    model, graph = division.model, sharded_graph(division)
    note = ShardingNote(model.path_from(folder), model.digest, division.shares, division.mode)
    graph.proto.metadata_props.add(key=SHARDED, value=msgspec.json.encode(note).decode())
    for one in graph.slices:
        if not is_external(one.source):
            one.tensor.raw_data = inline_slice(one.source, one.note)
        elif one.bytes < large_bytes(one.source.data_type):
            read_values(one.tensor, bytes_of_slice(one.source, model.range_of(one.source), one.note))
        else:
            place = next(locations_in(one.source)).value
            refer_to_file(one.tensor, place, model.range_of(one.source).offset, one.bytes)
    return graph


def pieces_of(model: Model, proto: ModelProto, slices: Iterable[WeightSlice]) -> Pieces:
    """The large weights of a `filled_graph`, or of a part of one, and where their values are."""
    known = {one.tensor.name: one for one in slices}
    pieces: list[tuple[TensorProto, ByteRange | Columns]] = []
    for tensor in filter(is_external, tensors_in(proto)):
        one = known.get(tensor.name)
        source = model.range_of(tensor if one is None else one.source)
        pieces.append((tensor, source if one is None else bytes_of_slice(one.source, source, one.note)))
    return pieces


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
