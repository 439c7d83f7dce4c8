"""Short descriptions of parts, such as `embedding, layers 0-7`, in the words of their nodes' module paths."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from typing import Final, TypeVar

from ..core.graph import Graph
from .scene import ModulePath

_WELL_KNOWN: Final = (
    (re.compile(r"(tok|word|token)?_?embed(_tokens|ding|dings|der)?s?|wte"), "embedding"),
    (re.compile(r"(lm_)?head|output_projection"), "head"),
)
_MAX_KINDS: Final = 3
_MINOR: Final = 0.1  #: a module with a smaller share of a part's nodes and of its weights is not mentioned.
_SYMBOL: Final = 1  #: module names with so many letters are no words: they are written as in a path, `d.0-3`.
_MAJOR: Final = 0.2  #: a module with a larger share of all nodes is described by its numbered modules: `layers 0-7`.
ModuleUse = tuple[ModulePath, int]  #: a node's module, and the bytes of the weights that it is the first to read.
_Key = TypeVar("_Key")
_Kind = tuple[tuple[str, ...], str]  #: the name of modules of one kind, after those of the modules around it.


def part_labels(graph: Graph, rows: Sequence[Sequence[int]], modules: Mapping[int, ModulePath]) -> tuple[str, ...]:
    """For each part, given by its nodes, its description by their `layer_modules`; empty if nothing is known."""
    return labels([list(_module_uses(graph, row, modules)) for row in rows])


def _module_uses(graph: Graph, row: Sequence[int], modules: Mapping[int, ModulePath]) -> Iterable[ModuleUse]:
    seen: set[str] = set()
    for i in row:
        node = graph.nodes[i]
        yield modules[i], sum(graph.weights[name].bytes for name in node.weights if name not in seen)
        seen.update(node.weights)


def labels(rows: Sequence[Sequence[ModuleUse]]) -> tuple[str, ...]:
    """For each row of nodes its description; empty if nothing is known."""
    labeler = _Labeler(rows)
    return tuple(map(labeler.label, range(len(rows))))


@dataclass(frozen=True)
class _Labeler:
    rows: Sequence[Sequence[ModuleUse]]

    @cached_property
    def _paths(self) -> Collection[ModulePath]:
        return dict.fromkeys(module for row in self.rows for module, _ in row)

    @cached_property
    def _opened(self) -> frozenset[tuple[str, ...]]:
        """The modules that are described by what they contain.

        These are major modules that contain numbered ones, and modules without numbered ones that several rows share.
        """
        numbered = {outer for path in self._paths for outer in _outer_modules(path)}
        rows_of: dict[tuple[str, ...], set[int]] = defaultdict(set)
        nodes = Counter[tuple[str, ...]]()
        for i, row in enumerate(self.rows):
            for module, times in Counter(module for module, _ in row).items():
                names = tuple(name for name, _ in module)
                for depth in range(1, len(names) + 1):
                    nodes[names[:depth]] += times
                    if depth < len(names):
                        rows_of[names[:depth]].add(i)
        major = {names for names in numbered if nodes[names] >= _MAJOR * sum(map(len, self.rows))}
        return frozenset(major | {names for names, rows in rows_of.items() if len(rows) > 1 and names not in numbered})

    @cached_property
    def _kinds(self) -> Mapping[ModulePath, tuple[_Kind, int | None] | None]:
        """For each module its kind and its number; None if nothing is known."""
        return {path: self._kind(path) for path in self._paths}

    def _kind(self, path: ModulePath) -> tuple[_Kind, int | None] | None:
        names = tuple(name for name, _ in path)
        for depth, (name, number) in enumerate(path):
            if number is not None or names[: depth + 1] not in self._opened:
                return (names[:depth], name), number
        return None

    @cached_property
    def _names(self) -> Mapping[_Kind, str]:
        """The name of each kind; where several kinds have the same name, after that of the module around it."""
        same_name: dict[str, list[_Kind]] = defaultdict(list)
        for kind in dict.fromkeys(found[0] for found in self._kinds.values() if found is not None):
            same_name[kind[1]].append(kind)
        found = {}
        for name, kinds in same_name.items():
            common = _common_steps([outer for outer, _ in kinds])
            for outer, _ in kinds:
                more = f"{outer[common]} " if len(outer) > common else ""
                found[outer, name] = f"{more}{_well_known(name)}"
        return found

    @cached_property
    def _holders(self) -> Mapping[tuple[_Kind, int], Sequence[int]]:
        """For each numbered module the rows that hold more than a minor share of its nodes or of its weights."""
        sizes: dict[tuple[_Kind, int], dict[int, list[int]]] = defaultdict(dict)
        for index, row in enumerate(self.rows):
            for module, weight_bytes in row:
                kind, number = self._kinds[module] or (None, None)
                if kind is not None and number is not None:
                    _add(sizes[kind, number].setdefault(index, [0, 0]), weight_bytes)
        shares = {module: _shares(rows) for module, rows in sizes.items()}
        return {module: [row for row, share in found.items() if share >= _MINOR] for module, found in shares.items()}

    def label(self, row: int) -> str:
        """The description of a row."""
        sizes: dict[_Kind, list[int]] = {}
        numbers: dict[_Kind, set[int]] = defaultdict(set)
        for module, weight_bytes in self.rows[row]:
            kind, number = self._kinds[module] or (None, None)
            if kind is not None:
                _add(sizes.setdefault(kind, [0, 0]), weight_bytes)
                numbers[kind].update([] if number is None else [number])
        kinds = _important(sizes)
        major = {kind: [n for n in sorted(numbers[kind]) if row in self._holders[kind, n]] for kind in kinds}
        shown = [kind for kind in kinds if major[kind] or not numbers[kind]] or kinds
        rows = (
            [(n, self._piece(row, self._holders[kind, n])) for n in major[kind] or sorted(numbers[kind])]
            for kind in shown
        )
        return ", ".join(_phrase(self._names[kind], pieces) for kind, pieces in zip(shown, rows, strict=True))

    def _piece(self, row: int, holders: Sequence[int]) -> str:
        """Which piece of a module a row has, of which others hold more than a minor share; empty for all of it."""
        others = [other for other in holders if other != row]
        if not others:
            return ""
        return "start" if row < others[0] else "end" if row > others[-1] else "middle"


def _add(size: list[int], weight_bytes: int) -> None:
    """Count one more node, and its weights."""
    size[0] += 1
    size[1] += weight_bytes


def _shares(sizes: Mapping[_Key, Sequence[int]]) -> dict[_Key, float]:
    """For each entry its share of the nodes or of the weights, whichever is larger."""
    nodes, weights = (max(1, sum(size[i] for size in sizes.values())) for i in (0, 1))
    return {key: max(size[0] / nodes, size[1] / weights) for key, size in sizes.items()}


def _important(sizes: Mapping[_Kind, Sequence[int]]) -> Iterable[_Kind]:
    """The kinds that make up a part, in their order; well-known ones however small they are."""
    shares = _shares(sizes)
    ranked = sorted(shares, key=lambda kind: -shares[kind])[:_MAX_KINDS]
    chosen = {kind for kind in ranked if shares[kind] >= _MINOR} or set(ranked[:1])
    return [kind for kind in sizes if kind in chosen or _well_known(kind[1]) != kind[1]]


def _phrase(name: str, pieces: Sequence[tuple[int, str]]) -> str:
    """A name with its numbers: `layers 0-7`, `layer 3`, `down 0-1, 3`, `layer1.0-1`; `layers 0-6, start of 7`."""
    if not pieces:
        return name
    whole = [number for number, piece in pieces if not piece]
    words = [_numbered(name, whole)] if whole else []
    for number, piece in pieces:
        if piece:
            words.append(f"{piece} of {number if words else _numbered(name, [number])}")
    return ", ".join(words)


def _numbered(name: str, numbers: Sequence[int]) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_MAX_KINDS])
    ranges += ", …" if len(runs) > _MAX_KINDS else ""
    if name[-1:].isdigit() or len(name) <= _SYMBOL:
        return f"{name}.{ranges}"
    if len(numbers) == 1 and name.endswith("s") and not name.endswith("ss"):
        name = name[:-1]
    elif len(numbers) > 1 and name.endswith(("layer", "block")):
        name += "s"
    return f"{name} {ranges}"


def _outer_modules(path: ModulePath) -> Iterable[tuple[str, ...]]:
    """The modules around the first numbered one."""
    depth = next((i for i, (_, number) in enumerate(path) if number is not None), 0)
    return (tuple(name for name, _ in path[: i + 1]) for i in range(depth))


def _common_steps(paths: Sequence[tuple[str, ...]]) -> int:
    """The number of steps that all paths start with."""
    return sum(1 for _ in takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False)))


def _well_known(name: str) -> str:
    return next((word for pattern, word in _WELL_KNOWN if pattern.fullmatch(name)), name)
