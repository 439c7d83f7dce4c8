"""`split_by_rank`: shard a model, and write a part for each round and rank."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from onnx import ModelProto

from ..core.arguments import Progress, Storage
from ..core.errors import PlanError, UsageError
from ..core.graph import grouped
from ..core.manifest import MANIFEST, Cascade
from ..costs.caches import sized_dims
from ..costs.device import Device
from ..costs.device_groups import RankMode, ranks_of
from ..costs.weighing import weigh
from ..loading.external_data import ByteRange, merge_ranges
from ..loading.model import Model, read_model
from ..loading.opening import ModelLike, load
from ..loading.subgraphs import is_external, locations_in, tensors_in
from ..planning import planner
from ..planning.goals import Across, At, Goal, Within
from ..planning.plans import Plan
from ..planning.predictions import block_memory
from ..sharding.axes.division import Divider, Division, StageShares
from ..sharding.rank_parts import rank_parts
from .model_files import place_values
from .part_models import part_model
from .sharding import division_of, filled_graph, pieces_of
from .splitting import PartFile, PreparedFiles, place_of_parts, write


def split_by_rank(  # noqa: PLR0913 - independent settings
    model: ModelLike,
    output: str | Path | None = None,
    *,
    ranks: int | Sequence[int],
    mode: RankMode = "exact",
    stages: Plan | Goal | None = None,
    weights: Storage = "copy",
    digest: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Cascade:
    """Shard a model, and split it into a part for each round and rank, `part-2.rank-1.onnx`.

    In a round ranks need nothing of each other; between rounds they exchange pieces. A state stays inside its rank. The
    parts of a rank have one data file together, `part-rank-1.onnx.data`. The folder also has `sharded.onnx`, the whole
    sharded model, whose weights are in the files of the parts.

    Args:
        model: the model or its path.
        output: the folder to make; by default as for `split`.
        ranks: as for `shard`.
        mode: as for `shard`.
        stages: a plan for the model, or a goal to plan for: each of its parts becomes a stage with ranks of its own, so
            that there is a device for each stage and rank.
        weights: `copy`: the ranks have all their weights. `share`: weights and slices that are ranges of the model's
            files refer to them; the parts are then in the model's folder.
        digest: as for `split`.
        force: replace another cascade. One with the same files stays as it is.
        progress: called for the bytes written.

    Raises:
        UsageError: the ranks make no sense, nothing can be divided, or another file is in the way.
        PlanError: no plan meets the goal.
        GraphcutError: there is too little disk space, or writing failed.
    """
    prepared = prepare_by_rank(model, output, ranks=ranks, mode=mode, stages=stages, weights=weights)
    return write(prepared, digest=digest, force=force, progress=progress)


def prepare_by_rank(
    model: ModelLike,
    output: str | Path | None = None,
    *,
    ranks: int | Sequence[int],
    mode: RankMode = "exact",
    stages: Plan | Goal | None = None,
    weights: Storage = "copy",
) -> PreparedFiles:
    """The files that `split_by_rank` would write, for `write`.

    Args:
        model: the model or its path.
        output: as for `split_by_rank`.
        ranks: as for `shard`.
        mode: as for `shard`.
        stages: as for `split_by_rank`.
        weights: as for `split_by_rank`.

    Raises:
        UsageError: the ranks make no sense, nothing can be divided, or the weights can't be shared.
        PlanError: no plan meets the goal.
    """
    division = division_of(load(model), ranks, mode)
    plan = stages if stages is None or isinstance(stages, Plan) else planner.plan(division.model, stages)
    if plan is not None and isinstance(plan.goal, Across | Within):
        raise UsageError("a plan for a cluster or a budget counts no ranks", hint="use `Into` or `At`")
    blocks = {"": ()} if plan is None else {f"stage-{i}.": b.nodes for i, b in enumerate(plan.partition.blocks)}
    devices = ({rank: Device(name=f"{prefix}rank-{rank}") for rank in range(len(division.shares))} for prefix in blocks)
    return _prepared(division, output, [*zip(blocks.values(), devices, strict=True)], None, weights)


def prepare_groups(model: Model, plan: Plan, output: str | Path | None, weights: Storage = "copy") -> PreparedFiles:
    """The files of a plan whose parts are divided among groups of devices. Each device of the plan is a rank."""
    if not isinstance(plan.goal, Across):
        raise UsageError("only a plan for a cluster has groups of devices", hint="plan again with `Across`")
    groups = [ranks_of(device) for device in plan.devices]
    numbers = {device: i for i, device in enumerate(dict.fromkeys(rank.device for ranks in groups for rank in ranks))}
    stages, taken = [], set[int]()
    for block, ranks in zip(plan.partition.blocks, groups, strict=True):
        shares = {rank.device: rank.share for rank in ranks}
        nodes = {*block.nodes, *block.replicas} - taken
        taken |= nodes
        stages.append(StageShares(nodes, tuple(shares.get(device, 0) for device in numbers)))
    division = Divider(model, plan.goal.mode).divide((1,) * len(numbers), stages)
    devices = ({numbers[rank.device]: rank.device for rank in ranks} for ranks in groups)
    grid = [(stage.nodes, own) for stage, own in zip(stages, devices, strict=True)]
    return _prepared(division, output, grid, plan, weights)


_Stage = tuple[Collection[int], Mapping[int, Device]]  #: the nodes of a stage, and the device of each rank.


def _prepared(
    division: Division, output: str | Path | None, stages: Sequence[_Stage], planned: Plan | None, weights: Storage
) -> PreparedFiles:
    """The files of a divided model; nodes in no stage are in the first, and `planned` is the plan with the devices."""
    model = division.model
    folder, prefix = place_of_parts(model, output, weights)
    graph = filled_graph(division, folder)
    sharded = read_model(model.path, graph.proto).with_dims(model.dims)
    producer = sharded.graph.producer
    rank_of = {producer[name]: rank for name, rank in graph.rank_of.items() if name in producer}
    home = {node: i for i, (nodes, _) in enumerate(stages) for node in nodes}
    stage_of = {producer[name]: home.get(node, 0) for name, node in graph.origin_of.items() if name in producer}
    parts = rank_parts(sharded.graph, rank_of, stage_of, [next(iter(devices)) for _, devices in stages])
    sizes = sized_dims(sharded, default="decode") if planned is None else planned.dims
    plan = Plan(
        At(()) if planned is None else planned.goal,
        sharded.graph,
        tuple(part.nodes for part in parts),
        devices=tuple(stages[part.stage][1][part.rank] for part in parts),
        dims={name: size for name, size in sizes.items() if name in sharded.symbols},
        model=sharded,
    )
    protos = [part_model(sharded, block) for block in plan.partition.blocks]
    pieces = [pieces_of(model, proto, graph.slices) for proto in protos]
    shared = model.path.parent if weights == "share" else None
    hosts = [f"rank-{part.rank}" if planned else device.name for part, device in zip(parts, plan.devices, strict=True)]
    names = [f"{prefix}part-{host}.onnx.data" for host in hosts]
    together = grouped((name, piece) for name, own in zip(names, pieces, strict=True) for piece in own)
    layouts = {name: place_values(together.get(name, ()), name, home=shared) for name in names}
    sizes = {name: layout.file_bytes for name, layout in layouts.items()}
    sizes |= {file.relative_to(shared).as_posix(): n for file, n in model.data.values()} if shared else {}
    files = []
    for part, proto, block in zip(parts, protos, plan.partition.blocks, strict=True):
        data = {place.value: sizes[place.value] for place in locations_in(proto)}
        own = {name: layouts[name] for name in data if name in layouts}
        files.append(PartFile(f"{prefix}part-{part.number}.rank-{part.rank}.onnx", proto, block, own, data, part.rank))
    _check_memory(plan, files)
    assumed = tuple(name for name in plan.dims if name not in sharded.dims)
    whole = _whole(graph.proto, protos)
    source = sharded.with_dims(plan.dims)
    return PreparedFiles(source, plan, weights, assumed, folder, f"{prefix}{MANIFEST}", tuple(files), whole)


def _check_memory(plan: Plan, files: Sequence[PartFile]) -> None:
    """Raise a PlanError if a rank needs more memory than its device has.

    It holds its parts and their states all the time, with what several parts read of its files once, and the inputs and
    activations of one part at a time.
    """
    if all(device.memory_bytes is None for device in plan.devices) or plan.model is None:
        return
    costs = weigh(plan.model, plan.dims)
    for device in dict.fromkeys(plan.devices):
        own = [file for file, host in zip(files, plan.devices, strict=True) if host == device]
        read = [ByteRange(Path(name), *span) for file in own for name in file.ranges for span in file.ranges[name]]
        repeated = sum(span.length for span in read) - sum(span.length for span in merge_ranges(read))
        memory = [block_memory(file.block, costs, device) for file in own]
        kept = [one.load + one.states for one in memory]
        needed = sum(kept) - repeated + max(one.needs - held for one, held in zip(memory, kept, strict=True))
        if device.memory_bytes is not None and needed > device.memory_bytes:
            what = f"the ranks on {device.name!r} need {needed:,} bytes, but it has {device.memory_bytes:,}"
            raise PlanError(what, hint="plan with a little less memory for this device")


def _whole(proto: ModelProto, parts: Sequence[ModelProto]) -> ModelProto:
    """The sharded model, whose weights are in the data files of the parts."""
    weights = {tensor.name: tensor for part in parts for tensor in part.graph.initializer}
    nodes = {output: node for part in parts for node in part.graph.node for output in node.output}
    whole = deepcopy(proto)
    for tensor in whole.graph.initializer:
        if is_external(tensor):
            tensor.CopyFrom(weights[tensor.name])
    for node in whole.graph.node:
        if any(map(is_external, tensors_in(node))):
            node.CopyFrom(nodes[node.output[0]])
    return whole
