"""Measure a model's time in ONNX Runtime, module by module."""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from statistics import median

from msgspec.structs import replace

from ..analysis.cut_points import analyze
from ..core.errors import RunError, check_positive
from ..core.file_checks import check_parts
from ..core.graph import Block, grouped, partition
from ..core.product import Product
from ..costs.caches import sized_dims
from ..costs.device import Device, run_s
from ..costs.matching import spread
from ..costs.part_memory import part_memory
from ..costs.tables import REMAINDER, CostRow, CostTable, module_names, table_of
from ..costs.weighing import Costs, weigh
from ..inputs.searching import find_accepted_inputs
from ..loading.model import Model
from ..running.process_memory import available_bytes
from ..running.values import Feeds, Value, symbol_sizes, to_value
from ..surgery.part_models import part_model
from .ort_profile import ProfiledPiece, profile


@dataclass(frozen=True, repr=False)
class MeasuredCosts(Product):
    """The measured costs of a model."""

    #: a row for each module, with `time_s`, and a last row `(remainder)` for time that belongs to no module: starting
    #: and ending runs, kernels that ONNX Runtime added.
    table: CostTable
    pieces: int  #: the number of sessions it was measured in, one after another.
    rounds: int  #: the number of runs. Times are those of the fastest.
    #: how far the median of the runs is above the fastest: 0.1 for a tenth. Large if the machine was busy.
    spread: float
    dims: Mapping[str, int]  #: the sizes it ran with.

    @property
    def run_s(self) -> float:
        """Seconds for one run of the whole model: the sum of all rows of the table."""
        return sum(row.time_s or 0.0 for row in self.table.rows)


def measure(
    model: Model, *, rounds: int = 12, inputs: Feeds | None = None, memory_bytes: int | None = None, threads: int = 0
) -> MeasuredCosts:
    """Measure the time of each module of `model` on this machine, with graph optimizations on.

    Of each kernel the shortest time counts: other programs make it slower, never faster. With four times as many busy
    threads as cores, shares of parts by shortest times were within 5 %, and by lower quartiles up to 60 % off. Kernels
    that should take the same time (`ProfiledKernel.kind`), as those of repeated blocks, share it. The time of a kernel
    that ONNX Runtime fused is divided among the nodes it computes, in proportion to their roofline times. Kernel times
    are scaled down if profiling made the run longer.

    Args:
        model: the model.
        rounds: the number of runs, with and again without profiling.
        inputs: what to feed; by default generated, of the sizes that `analyze` and `plan` count (`sized_dims`, and 1
            for what has no number) or, if the model refuses them, of others.
        memory_bytes: memory limit of the runs; the available memory by default. A model that needs more is measured in
            pieces (see `pieces_within`).
        threads: threads of one operator; 0 leaves the number to ONNX Runtime.

    Raises:
        UsageError: `rounds` is less than 1.
        CascadeError: the model is a part that was changed, by a manifest beside it.
        RunError: the model refuses the inputs.
    """
    check_parts([model.path])
    check_positive(rounds, f"can't measure in {rounds} rounds")
    limit = available_bytes() if memory_bytes is None else memory_bytes
    measured = partial(_measure, model, limit, rounds, threads)
    if inputs is not None:
        return measured(inputs)
    found: list[MeasuredCosts] = []
    for dims in (dict.fromkeys(model.symbols, 1) | sized_dims(model), model.dims):
        tried = find_accepted_inputs(model.with_dims(dims), lambda feeds: found.append(measured(feeds)), variants=1)
        if found:
            return found[0]
    raise RunError(f"the model refuses generated inputs: {tried.refusal}", hint="feed it with `inputs`")


def pieces_within(costs: Costs, memory_bytes: int | None) -> tuple[Block, ...]:
    """A partition of the model into consecutive pieces, each of which takes at most `memory_bytes` to run.

    What a piece takes is what a part with its nodes takes (`part_memory`). Pieces end where segments
    (`Analysis.segments`) end, and inside a segment that alone is too large. A node that alone is too large is still a
    piece. None means no limit: one piece.
    """
    graph, rows = costs.model.graph, list[list[int]]()
    segments = [one.nodes for one in analyze(costs.model).segments.blocks]
    order, ends = [*chain(*segments)], [*accumulate(map(len, segments))]

    def is_too_large(end: int) -> bool:
        begin = sum(map(len, rows))
        block = partition(graph, [order[:begin], order[begin:end], order[end:]]).blocks[1]
        memory = part_memory(costs.held(Device(name="here")), costs.tensor_bytes, block)
        return memory_bytes is not None and memory.needs > memory_bytes

    while (begin := sum(map(len, rows))) < len(order):
        rest: Sequence[int] = [end for end in ends if end > begin]
        if is_too_large(rest[0]):
            rest = range(begin + 1, rest[0] + 1)
        rows.append(order[begin : rest[max(0, bisect_left(rest, True, key=is_too_large) - 1)]])
    return partition(graph, rows).blocks


def _measure(model: Model, memory_bytes: int | None, rounds: int, threads: int, feeds: Feeds) -> MeasuredCosts:
    shapes = {name: shape for name, value in feeds.items() if isinstance(shape := getattr(value, "shape", None), tuple)}
    costs = weigh(model, {**model.dims, **symbol_sizes(shapes, model.tensors)})
    blocks = pieces_within(costs, memory_bytes)
    # Each piece is loaded so often: a busy minute spoils a third of its runs, not all runs of one.
    passes = min(3, rounds)
    per_pass = [rounds // passes + (i < rounds % passes) for i in range(passes)]
    profiles = [list(_profiles(model, blocks, feeds, runs, threads)) for runs in per_pass]
    measured = [done for _, done in chain.from_iterable(profiles)]
    known = {name: (size, True) for done in measured for name, size in done.tensor_bytes.items()}
    sizes = {name: known.get(name, unmeasured) for name, unmeasured in costs.tensor_bytes.items()}
    samples = grouped((one.kind, time_s) for done in measured for one in done.kernels for time_s in one.seconds)
    kernel_s = {kind: min(seconds) for kind, seconds in samples.items()}
    seconds, flow_index = [0.0] * len(model.graph.flow), model.graph.flow_index
    weights = run_s(costs, Device(name="here"))
    total_s = fastest_s = middle_s = 0.0
    for (nodes, first), *others in zip(*profiles, strict=True):
        runs = [first, *(done for _, done in others)]
        times = [time for done in runs for time in done.run_s]
        fastest_s, middle_s = fastest_s + min(times), middle_s + median(times)
        spent = sum(kernel_s[kernel.kind] for kernel in first.kernels)
        # Both are of whole runs, which are more disturbed than the fastest runs of kernels: only their ratio is used.
        sums = [sum(times) for done in runs for times in zip(*(kernel.seconds for kernel in done.kernels), strict=True)]
        ratio = min(times) / min(sums) if spent else 1.0
        total_s += spent * ratio or min(times)
        for kernel in first.kernels:
            if indices := [flow_index[nodes[i]] for i in kernel.nodes if nodes[i] in flow_index]:
                whole_s = kernel_s[kernel.kind] * min(1.0, ratio)
                for i, share_s in zip(indices, spread(whole_s, [weights[i] for i in indices]), strict=True):
                    seconds[i] += share_s
    return MeasuredCosts(
        table=_table(dataclasses.replace(costs, sizes=dataclasses.replace(costs.sizes, bytes=sizes)), seconds, total_s),
        pieces=len(blocks),
        rounds=rounds,
        spread=middle_s / fastest_s - 1 if fastest_s else 0.0,
        dims=costs.dims,
    )


def _table(costs: Costs, seconds: Sequence[float], total_s: float) -> CostTable:
    times = grouped(zip(module_names(costs.model.graph), seconds, strict=True))
    # Nanoseconds: clocks are no finer.
    rows = [replace(row, time_s=round(sum(times[row.module]), 9)) for row in table_of(costs).rows]
    return CostTable((*rows, CostRow(module=REMAINDER, time_s=max(0.0, round(total_s - sum(seconds), 9)))))


def _profiles(
    model: Model, blocks: Sequence[Block], feeds: Feeds, rounds: int, threads: int
) -> Iterator[tuple[tuple[int, ...], ProfiledPiece]]:
    """For each piece, the indices of its nodes in the graph and its profile. One session exists at a time."""
    held: dict[str, Value] = {name: to_value(value, model.tensors[name]) for name, value in feeds.items()}
    last_reader = {name: i for i, block in enumerate(blocks) for name in block.reads}
    for i, block in enumerate(blocks):
        piece = part_model(model, block)
        nodes = tuple(sorted((*block.replicas, *block.nodes)))
        for proto, node in zip(piece.graph.node, nodes, strict=True):
            proto.name = model.graph.nodes[node].name  # unique, even if the model has no names
        done = profile(model, piece, held, rounds, threads)
        yield nodes, done
        held.update(done.outputs)
        held = {name: value for name, value in held.items() if last_reader.get(name, -1) > i}
