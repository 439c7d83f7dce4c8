"""`matched_tensors`: which tensors of two graphs are the same one: by name, dataflow, module and position."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..core.graph import Graph, Node, grouped, reached

_Groups = Mapping[Hashable, Sequence[Node]]
_QUANTIZERS: Final = {f"{domain}{op}Linear" for domain in ("", "com.microsoft.") for op in ("Quantize", "Dequantize")}
SAME_VALUES: Final = _QUANTIZERS | {"Cast", "CastLike", "Identity", "Dropout"}
"""Operators that write what they read, but for rounding. Conversions insert them, so the search passes through them."""

_COMMUTATIVE: Final = frozenset({"Add", "Mul", "Max", "Min", "Sum", "And", "Or", "Equal"})
_COUNTED: Final = re.compile(r"[^/.]*\d")  #: a name that exporters count up: `val_12`, `onnx::Add_7`, `123`.


def matched_tensors(graph: Graph, other: Graph, fits: Callable[[str, str], bool]) -> dict[str, str]:
    """The activations of `graph` that `other` has, too, each with its name there, in topological order of `graph`.

    1. Tensors with the same name, except names that are counted up.
    2. Inputs and outputs of the graphs by position, if there are equally many.
    3. What the same operator writes from the same tensors. Casts, QuantizeLinear and DequantizeLinear, Identity and
       Dropout between them do not count. If several nodes do, as three projections of one tensor, they are matched in
       their order.
    4. Names that are counted up, such as `val_12`, if 3 of 4 stand for the same operator in both; then 3 again.
    5. What the same operators in the same module write, in their order, if there are equally many; then 3 again.

    A tensor whose partner is computed from a later one is left out, so that both can be computed in this order. Takes
    nearly linear time.

    Args:
        graph: the first graph.
        other: the second one.
        fits: whether a tensor of the first graph and one of the second have types that can be compared.
    """
    both = _Matching(graph, other, fits)
    both.match_names()
    for ends, other_ends in ((graph.reads, other.reads), (graph.writes, other.writes)):
        ours, theirs = ([n for n in ends if n not in both.there], [n for n in other_ends if n not in both.here])
        if len(ours) == len(theirs):
            both.match_in_order(ours, theirs)
    both.follow([*both.there])
    both.match_counted_names()
    both.match_modules()
    return _in_order(graph, other, both.there)


class _Matching:
    """Pairs of tensors that are found one after another."""

    def __init__(self, graph: Graph, other: Graph, fits: Callable[[str, str], bool]) -> None:
        self.graph, self.other, self.fits = graph, other, fits
        self.there, self.here = dict[str, str](), dict[str, str]()

    def add(self, name: str, partner: str) -> bool:
        is_new = name not in self.there and partner not in self.here and self.fits(name, partner)
        if is_new:
            self.there[name], self.here[partner] = partner, name
        return is_new

    def match_in_order(self, names: Iterable[str], partners: Iterable[str]) -> list[str]:
        """Match tensors one by one; the new ones."""
        return [name for name, partner in zip(names, partners, strict=False) if self.add(name, partner)]

    def match_names(self) -> None:
        theirs = {*self.other.reads, *_writers(self.other)}
        for name in (*self.graph.reads, *_writers(self.graph)):
            if name in theirs and (name in self.graph.input_index or not _COUNTED.fullmatch(name)):
                self.add(name, name)

    def match_counted_names(self) -> None:
        ours, theirs = _writers(self.graph), _writers(self.other)
        shared = [name for name in ours if name in theirs and _COUNTED.fullmatch(name)]
        if sum(ours[name].op == theirs[name].op for name in shared) >= 0.75 * len(shared):
            self.follow([name for name in shared if self.add(name, name)])

    def match_modules(self) -> None:
        """Match nodes of one operator in a module, if both graphs have as many that are not matched."""
        groups = list[_Groups]()
        for graph, known in ((self.graph, self.there), (self.other, self.here)):
            nodes = [graph.nodes[i] for i in graph.flow if graph.nodes[i].op not in SAME_VALUES]
            free = [node for node in nodes if node.module and known.keys().isdisjoint(node.writes)]
            groups.append(grouped(((node.module, node.op), node) for node in free))
        self.follow(self._match_groups(*groups))

    def _match_groups(self, ours: _Groups, theirs: _Groups) -> list[str]:
        """Match what the nodes of equal groups write, in their order, if they are equally many; the new ones."""
        equal = [key for key in ours if len(ours[key]) == len(theirs.get(key, ()))]
        pairs = (pair for key in equal for pair in zip(ours[key], theirs[key], strict=True))
        return [name for a, b in pairs for name in self.match_in_order(a.writes, b.writes)]

    def follow(self, found: list[str]) -> None:
        """Match what equal operators write from tensors that are matched, beginning with those that read `found`."""
        while found:
            ours = _ready(self.graph, found, self.there, {})
            theirs = _ready(self.other, [self.there[name] for name in found], self.here, self.here)
            found = self._match_groups(ours, theirs)


def _ready(graph: Graph, found: Iterable[str], known: Mapping[str, str], names: Mapping[str, str]) -> _Groups:
    """The nodes that read one of `found` and nothing that is not known, by operator and what they read."""
    made = list[tuple[Hashable, Node]]()
    for node in (graph.nodes[i] for i in sorted({i for name in found for i in _readers(graph, name)})):
        reads = [_source(graph, name, known) for name in node.reads]
        if all(name in known for name in reads) and known.keys().isdisjoint(node.writes):
            keys = [names.get(name, name) for name in reads]
            made.append(((node.op, tuple(sorted(keys) if node.op in _COMMUTATIVE else keys)), node))
    return grouped(made)


def _writers(graph: Graph) -> dict[str, Node]:
    return {name: graph.nodes[i] for i in graph.flow for name in graph.nodes[i].writes}


def _source(graph: Graph, name: str, known: Mapping[str, str]) -> str:
    """The tensor itself if it is known; else what it was converted from."""
    while name not in known and (i := graph.producer.get(name)) is not None:
        node = graph.nodes[i]
        if node.op not in SAME_VALUES or not node.reads:
            break
        name = node.reads[0]
    return name


def _readers(graph: Graph, name: str) -> Iterator[int]:
    """The nodes that read a tensor, or what it is converted to."""

    def converted_for(i: int) -> Iterable[int]:
        written = graph.nodes[i].writes[:1] if graph.nodes[i].op in SAME_VALUES else ()
        return (reader for made in written for reader in graph.readers.get(made, ()))

    return (i for i in reached(graph.readers.get(name, ()), converted_for) if graph.nodes[i].op not in SAME_VALUES)


def _in_order(graph: Graph, other: Graph, there: dict[str, str]) -> dict[str, str]:
    """The pairs in topological order of `graph`, without those that `other` computes from a later one."""
    names = (*graph.reads, *_writers(graph))
    place = {there[name]: i for i, name in enumerate(names) if name in there}
    latest, dropped = {name: place.get(name, -1) for name in other.reads}, set[str]()
    for node in (other.nodes[i] for i in other.flow):
        before = max((latest[name] for name in node.reads if name in latest), default=-1)
        for name in node.writes:
            if place.get(name, before + 1) <= before:
                dropped.add(name)
            latest[name] = max(before, place.get(name, -1))
    return {name: there[name] for name in names if name in there and there[name] not in dropped}
