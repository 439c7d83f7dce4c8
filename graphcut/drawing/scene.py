"""What a picture shows of an analysis, a plan or a cascade: parts, boundary tensors, cut profile, sentences.

Builders make a scene, and every renderer only draws it, so the terminal, the page and the SVG show the same numbers.
An index of a part counts from 0 in the order the parts run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Card:
    """One part.

    Attributes:
        name: the file name of a cascade's part, such as `part-0.onnx`; `p0` for a plan.
        device: the device it runs on; empty if unknown.
        content: the modules in it, such as `embedding, layers 0-7`; empty if unknown.
        nodes: number of nodes, replicas included.
        replicas: how many of them other parts compute as well, as far as that is known.
        weight_bytes: bytes of the weights it reads.
        need_bytes: the memory that is compared with the budget: its files, plus what the plan's goal counts besides.
        budget_bytes: the memory limit; None if there is none.
        activation_bytes: peak bytes of activations while it runs; None if unknown.
        flops: floating-point operations of one run; None if unknown.
        busy_s: seconds that one run keeps its device busy; None if unknown.
        reads: names of its input tensors.
        writes: names of its output tensors.
        depth: number of parts on the longest path to it; parts of the same depth do not depend on each other.
        intensity: FLOPs per byte of weights and activations; None if unknown.
        last_node: the name of its last node; empty if unknown.
    """

    name: str
    device: str
    content: str
    nodes: int
    replicas: int
    weight_bytes: int
    need_bytes: int
    budget_bytes: int | None
    activation_bytes: int | None
    flops: int | None
    busy_s: float | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    depth: int
    intensity: float | None = None
    last_node: str = ""

    @property
    def short_name(self) -> str:
        """The name in pictures: without the ending of the file."""
        return self.name.removesuffix(".onnx")

    @property
    def is_over(self) -> bool:
        """Whether it needs more memory than its budget."""
        return self.budget_bytes is not None and self.need_bytes > self.budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Data that one part sends to others.

    Attributes:
        source: index of the part that makes it.
        readers: indices of the parts that read it, ascending.
        bytes: its size, for the bound dims.
        is_exact: whether all sizes are known; otherwise `bytes` is a lower bound.
    """

    source: int
    readers: tuple[int, ...]
    bytes: int
    is_exact: bool

    @property
    def is_residual(self) -> bool:
        """Whether a part other than the next one reads it."""
        return self.readers[-1] > self.source + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryTensor(Flow):
    """One tensor that a part sends to others.

    Attributes:
        tensor: its name.
        type: element type and shape, such as `float16[batch,seq,3072]`.
    """

    tensor: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus(Flow):
    """All boundary tensors with the same source and the same readers; the map draws them as one line.

    Attributes:
        tensors: their indices in `Scene.tensors`.
    """

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundaryTotals:
    """What is alive between one part and the next: every tensor once, whichever later part reads it.

    Attributes:
        bytes: the size of these tensors.
        is_exact: whether all sizes are known; otherwise `bytes` is a lower bound.
        tensors: their number.
    """

    bytes: int
    is_exact: bool
    tensors: int


@dataclass(frozen=True, slots=True)
class CutOption:
    """A cheap cut point: a local minimum of the cut profile.

    Attributes:
        node: the node before the cut; naming it in `--at-nodes` cuts there.
        nodes_before: number of nodes before the cut.
        bytes: size of the tensors that cross there.
        is_exact: whether all sizes are known; otherwise `bytes` is a lower bound.
        tensors: number of tensors that cross there.
        weights_before: bytes of weights that the nodes before the cut read.
        weights_after: bytes of weights that the nodes after the cut read.
        is_key: whether the node is a key node.
        module: the module of the node.
    """

    node: str
    nodes_before: int
    bytes: int
    is_exact: bool
    tensors: int
    weights_before: int
    weights_after: int
    is_key: bool
    module: str


@dataclass(frozen=True, slots=True)
class CutProfile:
    """Bytes alive after each node, in a topological order: part by part if the model is cut, else that of the graph.

    The tuples are parallel: one entry per node.

    Attributes:
        nodes: names.
        ops: operators.
        modules: module paths; empty strings if unknown.
        alive: bytes alive after each node: what a cut there would send, without recomputation.
        near: the same without long-lived tensors. A tensor is long-lived if it is residual; in a model that is not cut,
            if it skips a repeated block, or without such a block more than an eighth of the nodes.
        exact: whether all sizes in `alive` are known; otherwise it is a lower bound.
        near_exact: the same for `near`.
        tensors: number of tensors alive after each node.
        weights: bytes of weights that the nodes up to each one read, each weight once.
        keys: indices of the key nodes, ascending.
        parts: index of each node's part, ascending; empty if the model is not cut.
        cut_options: the cheap cut points, in order.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    modules: tuple[str, ...]
    alive: tuple[int, ...]
    near: tuple[int, ...]
    exact: tuple[bool, ...]
    near_exact: tuple[bool, ...]
    tensors: tuple[int, ...]
    weights: tuple[int, ...]
    keys: tuple[int, ...]
    parts: tuple[int, ...]
    cut_options: tuple[CutOption, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """Indices of the last node of every part but the last."""
        return tuple(i for i, (part, following) in enumerate(pairwise(self.parts)) if part != following)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verification table.

    Attributes:
        what: what was checked: `structure` or `numbers`.
        result: the result, in words.
        is_good: whether it passed; None if it was not run.
    """

    what: str
    result: str
    is_good: bool | None


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """An alternative plan: none of the others is better in both times.

    Attributes:
        period_s: seconds between two requests.
        latency_s: seconds of one request.
        is_chosen: whether it is the plan that is shown.
    """

    period_s: float
    latency_s: float
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture shows.

    Attributes:
        title: the name of the model.
        sentence: the result in one or two sentences.
        facts: pairs of a word and a short value for the header: `nodes`, `constants`, `weights`, `per run` (FLOPs),
            `dims`.
        cards: the parts, in the order they run; empty if the model is not cut.
        tensors: the boundary tensors, in the order they are made.
        buses: the same, grouped by source and readers.
        profile: the cut profile; None if the model is not at hand.
        checks: what was verified.
        recomputed: one sentence for each group of tensors that parts recompute.
        reasons: one text for each cut: why it is where it is.
        notes: what else a reader should know, one sentence each.
        next_command: the command to try next; empty if there is none.
        details: pairs of a word and a value that may be long.
        other_plans: plans that trade one time for the other, the shortest period first; the shown plan is one of them.
        model: path of the model, as a command line names it; empty if unknown.
    """

    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    cards: tuple[Card, ...] = ()
    tensors: tuple[BoundaryTensor, ...] = ()
    buses: tuple[Bus, ...] = ()
    profile: CutProfile | None = None
    checks: tuple[Check, ...] = ()
    recomputed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next_command: str = ""
    details: tuple[tuple[str, str], ...] = ()
    other_plans: tuple[OtherPlan, ...] = ()
    model: str = ""

    @property
    def boundaries(self) -> tuple[BoundaryTotals, ...]:
        """The totals between each part and the next."""
        changes = [[0, 0, 0] for _ in self.cards]
        for tensor in self.tensors:
            for part, sign in ((tensor.source, 1), (tensor.readers[-1], -1)):
                for i, amount in enumerate((tensor.bytes, not tensor.is_exact, 1)):
                    changes[part][i] += sign * amount
        sums = zip(*(accumulate(column) for column in zip(*changes[:-1], strict=True)), strict=True)
        return tuple(BoundaryTotals(alive, unknown == 0, tensors) for alive, unknown, tensors in sums)

    def received(self, part: int) -> BoundaryTotals:
        """The tensors that other parts send to `part`, each counted once."""
        return totals_of(tensor for tensor in self.tensors if part in tensor.readers)

    def sent(self, part: int) -> BoundaryTotals:
        """The tensors that `part` sends to other parts, each counted once."""
        return totals_of(tensor for tensor in self.tensors if tensor.source == part)


def buses_of(tensors: Iterable[BoundaryTensor]) -> tuple[Bus, ...]:
    """The tensors grouped by source and readers, in the order in which the groups first occur."""
    groups: dict[tuple[int, tuple[int, ...]], dict[int, BoundaryTensor]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.source, tensor.readers), {})[i] = tensor
    return tuple(_bus(source, readers, group) for (source, readers), group in groups.items())


def _bus(source: int, readers: tuple[int, ...], group: dict[int, BoundaryTensor]) -> Bus:
    total = totals_of(group.values())
    return Bus(source=source, readers=readers, bytes=total.bytes, is_exact=total.is_exact, tensors=tuple(group))


def totals_of(flows: Iterable[Flow]) -> BoundaryTotals:
    """The sum of some flows."""
    found = list(flows)
    return BoundaryTotals(sum(flow.bytes for flow in found), all(flow.is_exact for flow in found), len(found))
