"""What there is to see of a product: parts, what flows between them, where cutting is cheap. Each pen only draws it.

One scene, several pens: the terminal, the page and the SVG can't disagree, since none of them computes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Card:
    """One part.

    Attributes:
        name: what it is called: `part-0.onnx` of a cascade, `p0` of a plan.
        device: the device it runs on; empty where none is known.
        content: what stands in it, in a few words: `layers 0-7`, `embedding, layers 0-7`; empty where nothing tells.
        nodes: how many nodes it has, replicas included.
        replicas: how many of them stand in other parts too, as far as that is known.
        weight_bytes: the weights that it reads.
        need_bytes: what the budget is compared with: its files, and what else a plan counted.
        budget_bytes: what it may need; None where nothing limits it.
        activation_bytes: the most that lives while it runs; None where that is not known.
        flops: floating-point operations; None where they are not known.
        busy_s: seconds that it keeps its device busy; None where that is not known.
        reads: tensors that it must be fed.
        writes: tensors that it gives out.
        column: how many parts at least must run before it, one after another; parts of one column don't depend on each
            other.
        intensity: FLOPs for each byte of weights and activations that it touches; None where that is not known.
        last: its last node; empty where that is not known.
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
    column: int
    intensity: float | None = None
    last: str = ""

    @property
    def is_over(self) -> bool:
        """Does it need more than it may?"""
        return self.budget_bytes is not None and self.need_bytes > self.budget_bytes


@dataclass(frozen=True, slots=True)
class Lane:
    """One tensor that crosses.

    Attributes:
        tensor: its name.
        type: its type and shape: `float16[batch,seq,3072]`.
        bytes: what it takes for the bound dims.
        is_exact: that is all; else it is "at least".
        source: the place of the part that makes it.
        readers: the places of the parts that read it, ascending.
    """

    tensor: str
    type: str
    bytes: int
    is_exact: bool
    source: int
    readers: tuple[int, ...]

    @property
    def is_residual(self) -> bool:
        """Does it pass over a part?"""
        return self.readers[-1] > self.source + 1


@dataclass(frozen=True, slots=True)
class Bus:
    """All tensors that go from one part to the same readers.

    Attributes:
        source: the place of the part that makes them.
        readers: the places of the parts that read them, ascending.
        lanes: the places of these tensors among the lanes.
        bytes: what they take together.
        is_exact: that is all; else it is "at least".
    """

    source: int
    readers: tuple[int, ...]
    lanes: tuple[int, ...]
    bytes: int
    is_exact: bool

    @property
    def is_residual(self) -> bool:
        """Does it pass over a part?"""
        return self.readers[-1] > self.source + 1


@dataclass(frozen=True, slots=True)
class BoundaryTotals:
    """What is alive between one part and the next, in the order they run: each tensor once, whoever reads it later.

    Attributes:
        bytes: what these tensors take.
        is_exact: that is all; else it is "at least".
        tensors: how many they are.
    """

    bytes: int
    is_exact: bool
    tensors: int


@dataclass(frozen=True, slots=True)
class CutOption:
    """A place where cutting is cheap.

    Attributes:
        node: the node before it; naming it in `--at-nodes` cuts there.
        position: how many nodes stand before it.
        bytes: what crosses there.
        is_exact: that is all; else it is "at least".
        tensors: how many tensors cross there.
        weights_before: bytes of weights that the nodes before it read.
        weights_after: bytes of weights that the nodes after it read.
        is_key: the node is a key node.
        module: the module that ends there or goes on.
    """

    node: str
    position: int
    bytes: int
    is_exact: bool
    tensors: int
    weights_before: int
    weights_after: int
    is_key: bool
    module: str


@dataclass(frozen=True, slots=True)
class CutProfile:
    """Bytes alive along the nodes, in an order in which they can run. All tuples stand side by side, one entry a node.

    Of a cut model the nodes of each part stand together, first part first; else the order is that of the graph.

    Attributes:
        nodes: their names.
        ops: their operators.
        modules: paths of the modules that they came from; empty where nothing tells.
        alive: bytes alive after each: what would cross if one cut there, and nothing were recomputed.
        near: the same without the long-lived tensors: what a cut costs when these are left out. A tensor is long-lived
            where it passes over a part, from the home of the node that makes it to the home of one that reads it; where
            nothing is cut, over a block that the model repeats; where it repeats nothing, over more than an eighth of
            the nodes, and two at least.
        exact: `alive` is all; else it is "at least".
        near_exact: `near` is all; else it is "at least".
        tensors: how many tensors are alive after each.
        weights: bytes of weights that the nodes up to each read, each weight once.
        keys: the places of the key nodes, ascending.
        parts: the part in which each node has its home, ascending; empty where nothing is cut.
        valleys: where cutting is cheap, in order.
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
    valleys: tuple[CutOption, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The places of the last nodes of all parts but the last."""
        return tuple(i for i, (part, following) in enumerate(pairwise(self.parts)) if part != following)


@dataclass(frozen=True, slots=True)
class Check:
    """What was verified, one line of a table.

    Attributes:
        what: what was looked at: `structure`, `numbers`.
        result: what came of it, in words.
        is_good: it speaks for the cascade; None where it was not looked at.
    """

    what: str
    result: str
    is_good: bool | None


@dataclass(frozen=True, slots=True)
class Other:
    """Another plan worth having.

    Attributes:
        period_s: seconds between two requests.
        latency_s: seconds of one request.
        is_chosen: it is the plan that is shown.
    """

    period_s: float
    latency_s: float
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture shows.

    Attributes:
        title: the name of the model.
        sentence: the answer, in a sentence that a person can quote.
        facts: what stands in the head of a picture, short, as pairs of a word and its value: `nodes`, `constants`,
            `weights`, `per run` (FLOPs), `dims`.
        cards: the parts, in the order they run; empty where nothing is cut.
        lanes: the tensors that cross, in the order they are made.
        buses: the same, grouped.
        profile: bytes alive along the nodes; None where the model is not at hand.
        checks: what was verified; empty where nothing was.
        recomputed: what parts compute instead of receiving it, one sentence each.
        reasons: why cuts are where they are, one sentence each.
        notes: what a person should know besides, one sentence each.
        following: the command to try next; empty where there is none.
        details: what stands below the facts, as pairs of words and their value, which may be long.
        others: other plans worth having, and this one; the shortest time between two requests first.
        model: where the model lies, as a command line names it; empty where that is not known.
    """

    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    cards: tuple[Card, ...]
    lanes: tuple[Lane, ...]
    buses: tuple[Bus, ...]
    profile: CutProfile | None
    checks: tuple[Check, ...]
    recomputed: tuple[str, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    following: str
    details: tuple[tuple[str, str], ...] = ()
    others: tuple[Other, ...] = ()
    model: str = ""

    @property
    def crossing(self) -> tuple[BoundaryTotals, ...]:
        """What is alive between each part and the next."""
        changes = [[0, 0, 0] for _ in self.cards]
        for lane in self.lanes:
            for place, sign in ((lane.source, 1), (lane.readers[-1], -1)):
                changes[place][0] += sign * lane.bytes
                changes[place][1] += sign * (not lane.is_exact)
                changes[place][2] += sign
        sums = zip(*(accumulate(column) for column in zip(*changes[:-1], strict=True)), strict=True)
        return tuple(BoundaryTotals(alive, unknown == 0, tensors) for alive, unknown, tensors in sums)

    def received(self, part: int) -> tuple[int, bool]:
        """Bytes that a part is sent by others, each tensor once, and whether that is all: else it is "at least"."""
        return _sum(lane for lane in self.lanes if part in lane.readers)

    def sent(self, part: int) -> tuple[int, bool]:
        """Bytes that a part sends to others, each tensor once, and whether that is all: else it is "at least"."""
        return _sum(lane for lane in self.lanes if lane.source == part)


def _sum(lanes: Iterable[Lane]) -> tuple[int, bool]:
    sizes = [(lane.bytes, lane.is_exact) for lane in lanes]
    return sum(number for number, _ in sizes), all(is_exact for _, is_exact in sizes)
