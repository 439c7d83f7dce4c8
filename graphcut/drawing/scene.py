"""What a picture shows of an analysis, a plan or a cascade: parts, boundary tensors, cut profile, sentences.

Builders make a scene, and every renderer only draws it, so the terminal, the page and the SVG show the same numbers.
An index of a part counts from 0 in the order the parts run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from ..analysis.cut_points import CutPoint
from ..core.records import table
from ..planning.results import FrontPlan
from .schedule import Schedule

ModulePath = tuple[tuple[str, int | None], ...]
"""The modules around a node, outermost first, each a name and its number: `layers.3` is `("layers", 3)`."""
NodeRows = Sequence[Sequence[int]]  #: the nodes of each part.
Modules = Mapping[int, ModulePath]  #: the module of each node.
PageData = Mapping[str, object]  #: what the script of the page reads, and nothing else.
FlowKind = Literal["sequential", "residual", "exchange", "kept"]
KINDS: Final = table("drawing/flow_kinds.toml", dict[FlowKind, str])
"""What the kinds of boundary tensors are; the last two where layers are divided among ranks."""
LEGENDS: Final = table("drawing/legends.toml", dict[str, str])  #: what is said beside charts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One part."""

    name: str  #: the file name of a cascade's part, such as `part-0.onnx`; `p0` for a plan.
    device: str = ""  #: the device it runs on; empty if unknown.
    rank: int | None = None  #: the rank that runs it; None if the model is not divided among ranks.
    #: the modules in it, such as `embedding, layers 0-7`; of a pipeline its models; empty if unknown.
    content: str = ""
    runs: str = ""  #: when it runs, of a pipeline of models: `once`, `each step` or `at the end`.
    nodes: int  #: number of nodes, replicas included.
    replicas: int  #: how many of them other parts compute as well, as far as that is known.
    weight_bytes: int  #: bytes of the weights it reads.
    need_bytes: int  #: what is compared with the budget: its files, plus what the plan's goal counts besides.
    #: what that counts, such as `weights and graph`, the files; `needs` if it is all: also activations, inputs, caches.
    measure: str = "weights and graph"
    need_exact: bool = True  #: whether it is known; otherwise `need_bytes` is a lower bound.
    is_exact: bool = True  #: whether all sizes are known; otherwise activations, FLOPs and time are lower bounds.
    budget_bytes: int | None = None  #: the memory limit; None if there is none.
    activation_bytes: int | None = None  #: peak bytes of activations while it runs; None if unknown.
    flops: int | None = None  #: floating-point operations of one run; None if unknown.
    busy_s: float | None = None  #: seconds that one run keeps its device busy; None if unknown.
    reads: tuple[str, ...]  #: names of its input tensors.
    writes: tuple[str, ...]  #: names of its output tensors.
    depth: int  #: number of parts on the longest path to it; parts of the same depth do not depend on each other.
    intensity: float | None = None  #: FLOPs per byte of weights and activations; None if unknown.
    last_node: str = ""  #: the name of its last node; empty if unknown.

    @property
    def short_name(self) -> str:
        """The name in pictures: without the ending of the file."""
        return self.name.removesuffix(".onnx")

    @property
    def least(self) -> str:
        """What is before its activations, FLOPs and time: `≥ ` if they are lower bounds."""
        return "" if self.is_exact else "≥ "

    @property
    def group(self) -> str:
        """What it stands in a group with: parts that run at the same time, else those on its device."""
        return self.runs or self.device

    @property
    def is_in_loop(self) -> bool:
        """Whether it runs at each step."""
        return self.runs.startswith("each")

    @property
    def is_over(self) -> bool:
        """Whether it needs more memory than its budget."""
        return self.budget_bytes is not None and self.need_bytes > self.budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Data that one part sends to others."""

    source: int  #: index of the part that makes it.
    readers: tuple[int, ...]  #: indices of the parts that read it, ascending.
    bytes: int  #: its size, for the bound dims.
    is_exact: bool  #: whether all sizes are known; otherwise `bytes` is a lower bound.
    is_exchange: bool | None = None  #: whether another rank reads it; None if layers are not divided among ranks.

    @property
    def is_residual(self) -> bool:
        """Whether a part other than the next one reads it, and layers are not divided among ranks."""
        return self.kind == "residual"

    @property
    def kind(self) -> FlowKind:
        """What it is, of `KINDS`."""
        if self.is_exchange is not None:
            return "exchange" if self.is_exchange else "kept"
        return "residual" if self.readers[-1] > self.source + 1 else "sequential"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryTensor(Flow):
    """One tensor that a part sends to others."""

    tensor: str  #: its name.
    type: str  #: element type and shape, such as `float16[batch,seq,3072]`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus(Flow):
    """All boundary tensors with the same source and the same readers; the map draws them as one line."""

    tensors: tuple[int, ...]  #: their indices in `Scene.tensors`.


@dataclass(frozen=True, slots=True)
class BoundaryTotals:
    """What is alive between one part and the next: every tensor once, whichever later part reads it."""

    bytes: int  #: the size of these tensors.
    is_exact: bool  #: whether all sizes are known; otherwise `bytes` is a lower bound.
    tensors: int  #: their number.


@dataclass(frozen=True, slots=True)
class CutProfile:
    """Bytes alive after each node, in a topological order: part by part if the model is cut, else that of the graph.

    The tuples are parallel: one entry per node.
    """

    nodes: tuple[str, ...]  #: names.
    ops: tuple[str, ...]  #: operators.
    modules: tuple[ModulePath, ...]  #: their modules as labels show them; empty for a model that is not cut.
    alive: tuple[int, ...]  #: bytes alive after each node: what a cut there would send, without recomputation.
    exact: tuple[bool, ...]  #: whether all sizes in `alive` are known; otherwise it is a lower bound.
    tensors: tuple[int, ...]  #: number of tensors alive after each node.
    weights: tuple[int, ...]  #: bytes of weights that the nodes up to each one read, each weight once.
    keys: tuple[int, ...]  #: indices of the key nodes, ascending.
    parts: tuple[int, ...]  #: index of each node's part, ascending; empty if the model is not cut.
    cut_options: tuple[CutPoint, ...]  #: the cheap cut points, in order.

    @property
    def cuts(self) -> tuple[int, ...]:
        """Indices of the last node of every part but the last."""
        return tuple(i for i, (part, following) in enumerate(pairwise(self.parts)) if part != following)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What another command found of the nodes of the cut profile."""

    title: str  #: what that is.
    legend: str  #: what its line is.
    heights: tuple[float, ...]  #: for each node its height in the profile, from 0 to 1.
    words: tuple[str, ...]  #: what is said of each node; empty if nothing was found.


class OtherPlan(FrontPlan, frozen=True, kw_only=True):
    """An alternative plan: none of the others is better in both times."""

    is_chosen: bool  #: whether it is the plan that is shown.


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture shows."""

    title: str  #: the name of the model.
    sentence: str = ""  #: the result in one or two sentences.
    #: pairs of a word and a short value for the header: `nodes`, `constants`, `weights`, `per run` (FLOPs), `dims`.
    facts: tuple[tuple[str, str], ...] = ()
    cards: tuple[Card, ...] = ()  #: the parts, in the order they run; empty if the model is not cut.
    tensors: tuple[BoundaryTensor, ...] = ()  #: the boundary tensors, in the order they are made.
    elsewhere: int = 0  #: how many parts of the cascade are not in this folder.
    buses: tuple[Bus, ...] = ()  #: the same, grouped by source and readers.
    profile: CutProfile | None = None  #: the cut profile; None if the model is not at hand.
    layers: tuple[Layer, ...] = ()  #: what other commands found of its nodes; only the page shows it.
    recomputed: tuple[str, ...] = ()  #: one sentence for each group of tensors that parts recompute.
    notes: tuple[str, ...] = ()  #: what else a reader should know, one sentence each.
    next_command: str = ""  #: the command to try next; empty if there is none.
    details: tuple[tuple[str, str], ...] = ()  #: pairs of a word and a value that may be long.
    dims: Mapping[str, int] = field(default_factory=dict)  #: the numbers that sizes were evaluated for.
    #: plans that trade one time for the other, the shortest period first; the shown plan is one of them.
    other_plans: tuple[OtherPlan, ...] = ()
    model: str = ""  #: path of the model, as a command line names it; empty if unknown.
    #: of a model that is not cut the segments between its key nodes, each named after its first node.
    segments: tuple[str, ...] = ()
    segment_tensors: tuple[BoundaryTensor, ...] = ()  #: the tensors between these, with their indices as parts.
    #: gives what the page needs to cut the model elsewhere; only the page asks for it. None if that is not known.
    cut_model: Callable[[], PageData | None] = field(default=lambda: None, compare=False)
    #: gives the graph that the page draws; only the page asks for it. None if the model is not at hand.
    graph: Callable[[], PageData] | None = field(default=None, compare=False)
    #: gives what the page needs to predict other cuts; only the page asks for it, since that takes time.
    cut_costs: Callable[[], PageData | None] = field(default=lambda: None, compare=False)
    #: gives one text for each cut: why it is where it is.
    reasons: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    schedules: Callable[[], tuple[Schedule, ...]] = field(default=tuple, compare=False)  #: gives schedules of the plan.

    @property
    def fact_texts(self) -> list[str]:
        """`1,491 nodes`, `batch=1, seq=512`."""
        return [value if word == "dims" else f"{value} {word}" for word, value in self.facts]

    @property
    def is_ranked(self) -> bool:
        """Whether layers are divided among ranks."""
        return any(card.rank is not None for card in self.cards)

    @property
    def loop(self) -> tuple[int, int] | None:
        """The first and the last part that run at each step; None unless it is of a pipeline of models."""
        found = [index for index, card in enumerate(self.cards) if card.is_in_loop]
        return (found[0], found[-1]) if found else None

    @property
    def cuts(self) -> tuple[int, ...]:
        """Indices of the profile's last node of every part but the last; of every stage, if each has its own ranks."""
        if self.profile is None:
            return ()
        devices, parts = [card.device for card in self.cards], self.profile.parts
        is_between = (not {*devices[: parts[cut] + 1]} & {*devices[parts[cut] + 1 :]} for cut in self.profile.cuts)
        return tuple(cut for cut, ends in zip(self.profile.cuts, is_between, strict=True) if ends or not self.is_ranked)

    @property
    def boundaries(self) -> tuple[BoundaryTotals, ...]:
        """The totals between each part and the next."""
        parts = range(len(self.cards) - 1)
        tensors = ([one for one in self.tensors if one.source <= part < one.readers[-1]] for part in parts)
        return tuple(map(totals_of, tensors))

    def received(self, part: int) -> BoundaryTotals:
        """The tensors that other parts send to `part`, each counted once."""
        return totals_of(tensor for tensor in self.tensors if part in tensor.readers)

    def sent(self, part: int) -> BoundaryTotals:
        """The tensors that `part` sends to other parts, each counted once."""
        return totals_of(tensor for tensor in self.tensors if tensor.source == part)


def buses_of(tensors: Iterable[BoundaryTensor], fold: int = 1) -> tuple[Bus, ...]:
    """The tensors grouped by source and readers, in the order in which the groups first occur.

    So many neighbouring parts as `fold` says count as one; what goes from one of these to another is left out.
    """
    groups: dict[tuple[int, tuple[int, ...]], dict[int, BoundaryTensor]] = {}
    for i, tensor in enumerate(tensors):
        source = tensor.source // fold
        if readers := tuple(sorted({reader // fold for reader in tensor.readers} - {source})):
            groups.setdefault((source, readers), {})[i] = tensor
    return tuple(_bus(source, readers, group) for (source, readers), group in groups.items())


def _bus(source: int, readers: tuple[int, ...], tensors: Mapping[int, BoundaryTensor]) -> Bus:
    total, kinds = totals_of(tensors.values()), {tensor.is_exchange for tensor in tensors.values()}
    return Bus(
        source=source,
        readers=readers,
        bytes=total.bytes,
        is_exact=total.is_exact,
        is_exchange=None if None in kinds else True in kinds,
        tensors=tuple(tensors),
    )


def totals_of(flows: Iterable[Flow]) -> BoundaryTotals:
    """The sum of some flows."""
    found = list(flows)
    return BoundaryTotals(sum(flow.bytes for flow in found), all(flow.is_exact for flow in found), len(found))
