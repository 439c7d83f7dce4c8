"""Short descriptions of parts, such as `embedding, layers 0-7`, in the words of their nodes' module paths."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Final, TypeVar

from ..core.graph import Graph, grouped
from ..core.records import table
from .scene import ModulePath, Modules, NodeRows

_WELL_KNOWN: Final = table("drawing/part_labels.toml", dict[str, str])
_MAX_KINDS: Final = 3
_MINOR: Final = 0.1  #: a module with a smaller share of a part's nodes and of its weights is not mentioned.
_MAJOR: Final = 0.2  #: a module with a larger share of all nodes is described by its numbered modules: `layers 0-7`.
ModuleUse = tuple[ModulePath, int]  #: a node's module, and the bytes of the weights that it is the first to read.
_Key = TypeVar("_Key")
_Kind = tuple[tuple[str, ...], str]  #: the name of modules of one kind, after those of the modules around it.
_Use = tuple[_Kind, int | None]  #: the kind of a module, and its number.
_Size = tuple[int, int]  #: a number of nodes, and the bytes of their weights.


def part_labels(graph: Graph, rows: NodeRows, modules: Modules) -> tuple[str, ...]:
    """For each part, given by its nodes, its description by their `layer_modules`; empty if nothing is known."""
    return labels([list(_module_uses(graph, row, modules)) for row in rows])


def _module_uses(graph: Graph, row: Sequence[int], modules: Modules) -> Iterable[ModuleUse]:
    seen: set[str] = set()
    for i in row:
        node = graph.nodes[i]
        yield modules[i], sum(graph.weights[name].bytes for name in node.weights if name not in seen)
        seen.update(node.weights)


def labels(rows: Sequence[Sequence[ModuleUse]]) -> tuple[str, ...]:
    """For each row of nodes its description; empty if nothing is known."""
    modules = [_summed((module, 1, weight_bytes) for module, weight_bytes in row) for row in rows]
    opened = _opened(modules)
    uses = {module: _use(module, opened) for row in modules for module in row}
    known = [_summed((use, *size) for module, size in row.items() if (use := uses[module])) for row in modules]
    names = _names(dict.fromkeys(kind for row in known for kind, _ in row))
    sizes = grouped((use, (index, size)) for index, row in enumerate(known) for use, size in row.items())
    shares = {use: _shares(dict(found)) for use, found in sizes.items()}
    # For each module the rows that hold more than a minor share of its nodes or of its weights.
    holders = {use: [row for row, share in found.items() if share >= _MINOR] for use, found in shares.items()}
    return tuple(_label(index, row, names, holders) for index, row in enumerate(known))


def _summed(uses: Iterable[tuple[_Key, int, int]]) -> dict[_Key, _Size]:
    """For each entry its number of nodes and the bytes of their weights."""
    sizes = grouped((key, size) for key, *size in uses)
    return {key: (sum(nodes for nodes, _ in own), sum(held for _, held in own)) for key, own in sizes.items()}


def _opened(rows: Sequence[Mapping[ModulePath, _Size]]) -> AbstractSet[tuple[str, ...]]:
    """The modules that are described by what they contain.

    These are major modules that contain numbered ones, and modules without numbered ones that several rows share.
    """
    numbered = {outer for row in rows for path in row for outer in _outer_modules(path)}
    rows_of: dict[tuple[str, ...], set[int]] = defaultdict(set)
    sizes = Counter[tuple[str, ...]]()
    for i, row in enumerate(rows):
        for module, (nodes, _) in row.items():
            names = tuple(name for name, _ in module)
            for depth in range(1, len(names) + 1):
                sizes[names[:depth]] += nodes
                if depth < len(names):
                    rows_of[names[:depth]].add(i)
    every = sum(nodes for row in rows for nodes, _ in row.values())
    major = {names for names in numbered if sizes[names] >= _MAJOR * every}
    return major | {names for names, found in rows_of.items() if len(found) > 1 and names not in numbered}


def _use(path: ModulePath, opened: AbstractSet[tuple[str, ...]]) -> _Use | None:
    """The kind of a module and its number; None if nothing is known."""
    names = tuple(name for name, _ in path)
    for depth, (name, number) in enumerate(path):
        if number is not None or names[: depth + 1] not in opened:
            return (names[:depth], name), number
    return None


def _names(kinds: Iterable[_Kind]) -> dict[_Kind, str]:
    """The name of each kind; where several kinds have the same name, after that of the module around it."""
    found = {}
    for name, outers in grouped((name, outer) for outer, name in kinds).items():
        steps = enumerate(zip(*outers, strict=False))
        common = next((i for i, alike in steps if len({*alike}) > 1), min(map(len, outers)))
        for outer in outers:
            more = f"{outer[common]} " if len(outer) > common else ""
            found[outer, name] = f"{more}{_well_known(name)}"
    return found


def _label(i: int, row: Mapping[_Use, _Size], names: Mapping[_Kind, str], holders: Mapping[_Use, Sequence[int]]) -> str:
    """The description of a row."""
    kinds = _important(_summed((kind, *size) for (kind, _), size in row.items()))
    numbers = {kind: sorted(n for other, n in row if other == kind and n is not None) for kind in kinds}
    major = {kind: [n for n in numbers[kind] if i in holders[kind, n]] for kind in kinds}
    shown = [kind for kind in kinds if major[kind] or not numbers[kind]] or kinds
    pieces = {kind: [(n, _piece(i, holders[kind, n])) for n in major[kind] or numbers[kind]] for kind in shown}
    return ", ".join(_phrase(names[kind], found) for kind, found in pieces.items())


def _piece(row: int, holders: Sequence[int]) -> str:
    """Which piece of a module a row has, of which others hold more than a minor share; empty for all of it."""
    others = [other for other in holders if other != row]
    if not others:
        return ""
    return "start" if row < others[0] else "end" if row > others[-1] else "middle"


def _shares(sizes: Mapping[_Key, _Size]) -> dict[_Key, float]:
    """For each entry its share of the nodes or of the weights, whichever is larger."""
    nodes, weights = (max(1, sum(size[i] for size in sizes.values())) for i in (0, 1))
    return {key: max(size[0] / nodes, size[1] / weights) for key, size in sizes.items()}


def _important(sizes: Mapping[_Kind, _Size]) -> Sequence[_Kind]:
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
    runs = ranges(numbers)
    listed = ", ".join([*runs[:_MAX_KINDS], "…"] if len(runs) > _MAX_KINDS else runs)
    if name[-1:].isdigit() or len(name) <= 1:  # a letter is no word: `d.0-3`
        return f"{name}.{listed}"
    if len(numbers) == 1 and name.endswith("s") and not name.endswith("ss"):
        name = name[:-1]
    elif len(numbers) > 1 and name.endswith(("layer", "block")):
        name += "s"
    return f"{name} {listed}"


def ranges(numbers: Sequence[int], prefix: str = "") -> list[str]:
    """Ascending numbers as ranges: `p1-p3`, `p5` with the prefix `p`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return [f"{prefix}{run[0]}-{prefix}{run[-1]}" if len(run) > 1 else f"{prefix}{run[0]}" for run in runs]


def _outer_modules(path: ModulePath) -> Iterable[tuple[str, ...]]:
    """The modules around the first numbered one."""
    depth = next((i for i, (_, number) in enumerate(path) if number is not None), 0)
    return (tuple(name for name, _ in path[: i + 1]) for i in range(depth))


def _well_known(name: str) -> str:
    return next((word for word, pattern in _WELL_KNOWN.items() if re.fullmatch(pattern, name)), name)
