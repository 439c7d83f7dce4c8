"""`measure`: run a model in ONNX Runtime, whole or piece by piece, and say what each module took."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ..analysis.cut_points import analyze
from ..core.errors import RunError, UsageError
from ..core.graph import Block, partition
from ..core.product import Product
from ..costs.device import Device, run_s
from ..costs.matching import spread
from ..costs.tables import REMAINDER, CostRow, CostTable, module_names, table_of
from ..costs.weighing import Costs, weigh
from ..inputs.searching import find_accepted_inputs
from ..loading.model import Model
from ..running.values import Value, to_value
from ..surgery.splitting import part_model
from .ort_profile import ProfiledPiece, is_half, profile


@dataclass(frozen=True, repr=False)
class MeasuredCosts(Product):
    """What a model took.

    Attributes:
        table: a row for each module, with `time_s`, and one called `(remainder)` for what belongs to none: entering
            and leaving sessions, kernels that ONNX Runtime added.
        peak_bytes: the most that ONNX Runtime's CPU allocator held at a time, in any piece: activations, and the
            weights that it copied to pack them for its kernels. 0 where its profile does not say.
        pieces: how many sessions it was measured in, one after another.
        rounds: over how many runs the medians go.
        dims: the sizes it ran with.
    """

    table: CostTable
    peak_bytes: int
    pieces: int
    rounds: int
    dims: Mapping[str, int]

    @property
    def run_s(self) -> float:
        """One run of the whole model, in seconds: all rows of the table together."""
        return sum(row.time_s or 0.0 for row in self.table.rows)

    @property
    def remainder_s(self) -> float:
        """The part of `run_s` that belongs to no module."""
        return self.table.rows[-1].time_s or 0.0


def measure(
    model: Model,
    *,
    rounds: int = 5,
    inputs: Mapping[str, object] | None = None,
    memory_bytes: int | None = None,
) -> MeasuredCosts:
    """Measure the time and the memory of each module of `model` on this machine, optimised as users run it.

    A kernel that ONNX Runtime fused counts for the nodes it took in, in proportion to what the roofline gives them.
    Kernel times are scaled down where profiling made them longer than a run without it.

    Args:
        model: the model.
        rounds: how often to run; each figure is a median.
        inputs: what to feed it; made up, of the sizes bound in `model.dims`, where it is not given.
        memory_bytes: what the runs may take; what is free where it is not given. A model that needs more is measured
            in pieces (see `pieces_within`).

    Raises:
        UsageError: `rounds` is no number of runs.
        RunError: the model refuses the inputs.
    """
    if rounds < 1:
        raise UsageError(f"{rounds} rounds measure nothing", hint="take 5 or more")
    blocks = pieces_within(model, _free_bytes() if memory_bytes is None else memory_bytes)
    if inputs is not None:
        return _measure(model, blocks, inputs, rounds)
    found: list[MeasuredCosts] = []
    tried = find_accepted_inputs(
        model, lambda feeds: found.append(_measure(model, blocks, feeds, rounds)), sizes=model.dims, variants=1
    )
    if not found:
        raise RunError(f"the model refuses inputs that were made up: {tried.refusal}", hint="feed it with --inputs")
    return found[0]


def pieces_within(model: Model, memory_bytes: int | None) -> tuple[Block, ...]:
    """The model in few pieces, one after another, the weights of each loaded within `memory_bytes`.

    A weight needs its bytes twice, since ONNX Runtime holds a second copy of what it packs for its kernels; four times
    in half precision, of which that copy is in float32 and once more in the optimised graph. Pieces end where segments
    (`Analysis.segments`) do, and inside of a segment that alone is too large. A node that alone is too large is a piece
    all the same. `None` is no bound: one piece.
    """
    graph = model.graph
    needs = {name: 2 * weight.bytes for name, weight in graph.weights.items()}
    needs.update({t.name: 4 * graph.weights[t.name].bytes for t in model.proto.graph.initializer if is_half(t)})
    if memory_bytes is None or sum(needs.values()) <= memory_bytes:
        return partition(graph, [graph.flow]).blocks
    rows: list[list[int]] = [[]]
    held: set[str] = set()
    for nodes in _units(analyze(model).segments.blocks, needs, memory_bytes):
        weights = {name for i in nodes for name in graph.weights_of(i)}
        if rows[-1] and sum(needs[name] for name in held | weights) > memory_bytes:
            rows.append([])
            held = set()
        rows[-1].extend(nodes)
        held |= weights
    return partition(graph, rows).blocks


def _units(blocks: Sequence[Block], needs: Mapping[str, int], memory_bytes: int) -> Iterator[tuple[int, ...]]:
    for block in blocks:
        if sum(needs[name] for name in block.weights) <= memory_bytes:
            yield block.nodes
        else:
            yield from ((node,) for node in block.nodes)


def _free_bytes() -> int | None:
    """The memory that programs can still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:  # macOS says what there is, and not what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _measure(model: Model, blocks: Sequence[Block], feeds: Mapping[str, object], rounds: int) -> MeasuredCosts:
    costs = weigh(model, {**model.dims, **_sizes(model, feeds)})
    weights = run_s(costs, Device(name="here"))
    place = {node: i for i, node in enumerate(model.graph.flow)}
    seconds = [0.0] * len(place)
    sizes = dict(costs.tensor_bytes)
    total_s, peak_bytes = 0.0, 0
    for nodes, done in _profiles(model, blocks, feeds, rounds):
        total_s += done.run_s
        peak_bytes = max(peak_bytes, done.peak_bytes)
        sizes.update({name: (size, True) for name, size in done.tensor_bytes.items() if name in sizes})
        spent = sum(kernel_s for _, kernel_s in done.kernels)
        scale = min(1.0, done.run_s / spent) if spent else 1.0
        for taken, kernel_s in done.kernels:
            places = [place[nodes[i]] for i in taken if nodes[i] in place]
            if places:
                for i, part in zip(places, spread(kernel_s * scale, [weights[i] for i in places]), strict=True):
                    seconds[i] += part
    table = _table(dataclasses.replace(costs, tensor_bytes=sizes), seconds, total_s)
    return MeasuredCosts(table, peak_bytes, len(blocks), rounds, costs.dims)


def _table(costs: Costs, seconds: Sequence[float], total_s: float) -> CostTable:
    times: dict[str, float] = {}
    for module, node_s in zip(module_names(costs.model.graph), seconds, strict=True):
        times[module] = times.get(module, 0.0) + node_s
    # To the nanosecond: no clock tells more.
    rows = [replace(row, time_s=round(times[row.module], 9)) for row in table_of(costs).rows]
    remainder_s = max(0.0, round(total_s - sum(times.values()), 9))
    return CostTable((*rows, CostRow(module=REMAINDER, time_s=remainder_s)))


def _profiles(
    model: Model, blocks: Sequence[Block], feeds: Mapping[str, object], rounds: int
) -> Iterator[tuple[tuple[int, ...], ProfiledPiece]]:
    """Each piece in turn: which nodes of the graph its nodes are, and what it did. One session is alive at a time."""
    held: dict[str, Value] = {name: to_value(value, model.tensors[name]) for name, value in feeds.items()}
    last_reader = {name: i for i, block in enumerate(blocks) for name in block.reads}
    for i, block in enumerate(blocks):
        piece = part_model(model, block)
        nodes = tuple(sorted((*block.replicas, *block.nodes)))
        for proto, node in zip(piece.graph.node, nodes, strict=True):
            proto.name = model.graph.nodes[node].name  # unique, also where the model gives none
        done = profile(piece, held, model.tensors, model.path.parent, rounds=rounds)
        yield nodes, done
        held.update(done.writes)
        held = {name: value for name, value in held.items() if last_reader.get(name, -1) > i}


def _sizes(model: Model, feeds: Mapping[str, object]) -> dict[str, int]:
    """The number of each symbol, from the shapes of what is fed."""
    found: dict[str, int] = {}
    for name, value in feeds.items():
        shape = getattr(value, "shape", None)
        declared = model.tensors[name].shape
        if isinstance(shape, tuple) and declared is not None and len(declared) == len(shape):
            found.update({dim: size for dim, size in zip(declared, shape, strict=True) if isinstance(dim, str)})
    return found
