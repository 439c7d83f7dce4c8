"""A lower bound over all plans, whatever nodes their parts repeat, for parts that are compared one by one.

The nodes that a part has first, and no earlier one, are what is between two boundaries. A part pays for these, and for
what it repeats or receives so that these can run: at least a minimum cut (recompute.py). What it receives from the part
before, that part pays for as well: it sends it. So a plan below a limit has a chain of boundaries in which each part
pays less than the limit, what it sends to the next one included. Where a part has little left below the limit, it
can't repeat much, and must receive: by weak duality (Lagrange), the part before pays at least the cut that has both
prices of a tensor, less all that the part has left. If there is no such chain, no plan is below the limit.

The chains, and what is in each part for certain, are those of parts that pay less than the limit for their own nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from typing import Any, Final, NamedTuple

import numpy as np

from ..core.graph import Graph
from .boundaries import BoundaryTables
from .instance import Bools, Floats, Ints, Parts
from .recompute import MOST_WEIGHT_BYTES, TransferPrices, least_s

_JUST_BELOW: Final = 5e-7  #: a plan that is better is better by this share at least: half the tolerance of proofs.
_MOST_CUTS: Final = 400  #: behind so many boundaries, and a few more, what parts receive is looked at.
_NEAR: Final = 128  #: so many nodes before a boundary are looked at.
_SHARES: Final = (0.0, 1 / 256, 1 / 16, 1 / 4, 1 / 2, 3 / 4)
"""What is tried as a bound: the limit less such shares of what it is above a bound that is known."""


class PartPrices(NamedTuple):
    """What parts are compared by: seconds, or bytes."""

    own: Floats  #: what each part pays for its own nodes; a table over pairs of boundaries.
    repeat: Mapping[int, float]  #: what repeating a flowing node adds at least.
    receive: Mapping[str, float]  #: what receiving a tensor adds,
    send: Mapping[str, float]  #: and sending it.
    first_receive: float = 0.0  #: what receiving any tensor adds once.


@dataclass(frozen=True)
class BoundWithRepeats:
    """Searches the chains of boundaries that a plan below a limit may have."""

    graph: Graph  #: the graph.
    tables: BoundaryTables  #: all boundaries.
    groups: Parts  #: the nodes of each group.
    free: Collection[int]  #: nodes in no group: a part that needs one runs or receives it.
    kept: Collection[int]  #: nodes that are not repeated.
    prices: PartPrices  #: what parts pay.
    limit: float  #: only plans whose parts pay no more are searched.
    parts: int  #: the number of parts.
    allowed: Callable[[int], Bools] | None = None  #: for a number of parts the boundaries that they may reach.
    above: Floats | None = None  #: `least_paid` for a greater limit: for this one it is no less.
    known: dict[Any, float] = field(default_factory=dict)  #: minimum cuts that were found for any limit.

    def bound(self, least: float) -> tuple[float, list[tuple[int, ...]]]:
        """A lower bound of all plans, no more than the limit; and boundaries of plans that may be between the two.

        The bound `least` is known before.
        """
        chains, last = list[tuple[int, ...]](), self
        for share in _SHARES:
            tried = self.limit - max(share * (self.limit - least), _JUST_BELOW * self.limit)
            last = replace(last, limit=tried, above=last.least_paid)
            if not (found := last.chains()):
                return (max(tried, least) if share else self.limit), chains
            chains.append(found[-1])
        return least, chains

    def chains(self) -> list[tuple[int, ...]]:
        """Boundaries of a plan whose parts may pay no more than the limit, for each number of parts that may do.

        A part that has no node of a group of its own is between no two boundaries: a plan with one has fewer of them,
        and pins are not at the same parts.

        What parts receive is looked at where a chain has a boundary, and then more closely, until it has none that was
        not looked at closely. Where that was done for a greater limit it is closely at once.
        """
        if self.allowed is not None and not self.allowed(self.parts)[-1]:
            return []  # a node is pinned to a part that there is not
        fewer, looked = range(1, self.parts + (self.allowed is None)), {0: 2, len(self.prices.own) - 1: 2}
        while True:
            found = [*self._chains(fewer, None)]
            if self.allowed is not None:
                found += self._chains([self.parts], self.allowed)
            new = {i for chain in found for i in chain if looked.get(i, 0) < 2}
            if not new or len(looked) > _MOST_CUTS:
                return found
            for i in sorted(new):
                looked[i] = looked.get(i, int(self.least_paid[:, i].any())) + 1
                paid = self._paid_behind(i, closely=looked[i] == 2)
                self.least_paid[:, i] = np.maximum(self.least_paid[:, i], paid)

    def _chains(self, numbers: Collection[int], allowed: Callable[[int], Bools] | None) -> Iterator[tuple[int, ...]]:
        """The same for some numbers of parts, the fewest first."""
        (i, j, own, begins), (received, both, sent), limit = self._pairs, self.least_paid, self.limit
        before = np.full(len(self.prices.own), np.inf)  # at least what the part before each boundary pays for sending
        before[-1] = 0.0
        steps = list[Floats]()

        def sends(pays: Floats, of: Any) -> Floats:  # noqa: ANN401 - what selects boundaries
            """What the part before pays at least, if a part from a boundary pays so much: more if that is more."""
            least = np.maximum(sent[of], both[of] - (limit - pays))
            return np.where(pays + received[of] <= limit, least, np.inf)

        for number in range(1, max(numbers, default=0) + 1):
            steps.append(before)
            pays = np.full(len(before), np.inf)  # each part from a boundary, at least
            pays[i[begins]] = np.minimum.reduceat(own + before[j], begins)
            if allowed is not None:
                pays[~allowed(self.parts - number)] = np.inf
            first = self._first * (number == self.parts)
            if number in numbers and pays[0] + first <= limit:
                chain = [0]
                for step in reversed(steps):
                    row = slice(*np.searchsorted(i, (chain[-1], chain[-1] + 1)))
                    paid = own[row] + step[j[row]]
                    paid = sends(paid, chain[-1]) if chain[-1] else paid + first
                    chain.append(int(j[row][paid.argmin()]))
                yield tuple(chain)
            before = sends(pays, slice(None))

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints, Floats, Ints]:
        """The boundaries of each possible part, by the first, what it pays for own nodes, and where a first begins."""
        i, j = np.nonzero(self._possible.T)
        return i, j, self.prices.own[j, i], np.flatnonzero(np.diff(i, prepend=-1))

    @cached_property
    def _possible(self) -> Bools:
        """`[j, i]`: whether the part from i to j may be in a plan below the limit, by what parts pay for own nodes."""
        fits = self.prices.own <= self.limit
        ends = np.eye(len(fits), dtype=bool)
        reached, left = [ends[0]], [ends[-1]]
        for _ in range(self.parts - 1):
            reached.append(reached[-1] | (fits & reached[-1][None, :]).any(axis=1))
            left.append(left[-1] | (fits & left[-1][:, None]).any(axis=0))
        pairs = zip(reached, reversed(left), strict=True)
        return np.asarray(np.any([fits & i[None, :] & j[:, None] for i, j in pairs], axis=0))

    def _certain(self, boundary: int) -> tuple[list[int], list[int]]:
        """The nodes in every possible part that begins at a boundary, and those in every one that ends there."""
        inside, behind, before = self.tables.inside, self._possible[:, boundary], self._possible[boundary]
        begins = inside[behind].all(axis=0) & ~inside[boundary] & behind.any()
        ends = inside[boundary] & ~inside[before].any(axis=0) & before.any()
        return self._nodes(begins), self._nodes(ends)

    @cached_property
    def least_paid(self) -> Floats:
        """For each boundary at least what the part behind it pays besides own nodes, for all plans below the limit.

        Then this with what the part before pays for the same tensors, and what that pays. 0 if it was not looked at.
        """
        return np.zeros((3, len(self.prices.own))) if self.above is None else self.above.copy()

    def _paid_behind(self, boundary: int, *, closely: bool) -> tuple[float, float, float]:
        """A column of `least_paid`; what the part before pays is only looked at closely.

        Only what nodes near the boundary write costs anything: a smaller network gives a bound, too.
        """
        (begins, ends), price, graph = self._certain(boundary), self.prices, self.graph
        if not begins:
            return 0.0, 0.0, 0.0
        earlier = {*self._nodes(self.tables.inside[boundary])[-_NEAR:], *self.free}
        near = {name for node in earlier for name in graph.nodes[node].writes}.intersection(price.receive)
        sure = {name for node in ends for name in graph.nodes[node].writes} & price.send.keys()
        nodes = sorted({n for name in near | sure for n in graph.readers.get(name, ())}.intersection(begins))
        repeatable, needed = earlier - self._not_repeated, self._sources(begins, self._not_repeated)
        is_any_repeatable = needed.isdisjoint(self._not_repeated)
        nothing = sum(price.repeat[node] for node in needed) if is_any_repeatable else np.inf

        def least(*more: int, sent: AbstractSet[str] = frozenset(), is_free: bool = False) -> float:
            """What a part with the nodes, and more, pays for what it reads, and the part before for what it sent."""
            key = boundary, (*nodes, *more), frozenset(repeatable), frozenset(sent), is_free
            if key not in self.known:
                moved = defaultdict(float, {} if is_free else {name: price.receive[name] for name in near})
                moved |= {name: moved[name] + price.send[name] for name in sent}
                repeat = dict.fromkeys(price.repeat, 0.0) if is_free else price.repeat
                prices = TransferPrices(repeat, 1.0, moved)
                self.known[key] = least_s(graph, key[1], {*begins, *more}, prices, repeatable.__contains__)
            return self.known[key] if is_free else min(self.known[key] + price.first_receive * bool(needed), nothing)

        if not closely:
            return least(), 0.0, 0.0
        left = self.limit - float(self.prices.own[self._possible[:, boundary], boundary].min())
        reads = {name for node in nodes for name in graph.nodes[node].reads}
        writers = {graph.producer[name] for name in reads & graph.producer.keys()} & repeatable
        for node in writers:
            if node not in self.free and not graph.nodes[node].rewrite:
                paid = min(least(node) + price.repeat[node], nothing)
                repeatable -= {node} if paid > left else set()
        # Nothing need be sent to a part that can repeat all that it reads.
        is_sent = sure and not (is_any_repeatable and needed <= repeatable)
        return least(), least(sent=sure), least(sent=sure, is_free=True) if is_sent else 0.0

    @cached_property
    def _first(self) -> float:
        """What the first part pays besides own nodes: it receives nothing."""
        return sum(self.prices.repeat[node] for node in self._sources(self._certain(0)[0]))

    def _sources(self, nodes: Sequence[int], ends: AbstractSet[int] = frozenset()) -> set[int]:
        """All nodes that these depend on, and that are not among them; not all if one of `ends` is among them."""
        found, waiting = set(nodes), list(nodes)
        new = set[int]()
        while waiting and ends.isdisjoint(new):
            new = self.graph.predecessors(waiting.pop()) - found
            waiting += new
            found |= new
        return found.difference(nodes)

    def _nodes(self, groups: Bools) -> list[int]:
        """The nodes of some groups, ascending."""
        return sorted(chain(*compress(self.groups, groups)))

    @cached_property
    def _not_repeated(self) -> frozenset[int]:
        """Stateful and kept nodes, and those that bring a heavy weight which no other node has."""
        weights = self.graph.weights
        users = Counter(weight for node in self.graph.flow for weight in self.graph.copy_of(node).weights)

        def is_heavy(node: int) -> bool:
            own = [weight for weight in self.graph.copy_of(node).weights if users[weight] == 1]
            return sum(weights[weight].bytes for weight in own) > MOST_WEIGHT_BYTES

        return frozenset(self.kept).union(n for n in self.graph.flow if self.graph.nodes[n].is_stateful or is_heavy(n))
