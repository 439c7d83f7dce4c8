"""What stands in a part, in a few words: `embedding, layers 0-7`. The words are those of the modules' paths."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from typing import Final

from ..core.graph import Graph

_NUMBERED: Final = re.compile(r"(.*)\.(\d+)")
_KNOWN: Final = (
    (re.compile(r"(tok|word|token)?_?embed(_tokens|ding|dings|der)?s?|wte"), "embedding"),
    (re.compile(r"(lm_)?head|output_projection"), "head"),
)
_MOST: Final = 3
_SLIGHT: Final = 0.1
"""What has a smaller share of a part's nodes, and of its weights, is not spoken of: a mask, a norm."""

_SHORT: Final = 1
"""A name of one letter is no word: it is written as in a path, `d.0-3`."""

_LARGE: Final = 0.2
"""What has a larger share of all nodes, and holds numbered modules, is called by these: `layers 0-7`, not `model`."""

Look = tuple[str, int]
"""What is looked at of a node: its module, and bytes of the weights that it reads, each weight once in a row."""

_Step = tuple[str, int | None]
_Path = tuple[_Step, ...]
_Kind = tuple[tuple[str, ...], str]
"""Modules of one name, and the names of the modules around them."""


def contents(graph: Graph, rows: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """For each part what its nodes are, in a few words; empty where nothing tells."""
    return spoken([list(_looks(graph, row)) for row in rows])


def _looks(graph: Graph, row: Sequence[int]) -> Iterable[Look]:
    seen: set[str] = set()
    for i in row:
        node = graph.nodes[i]
        yield node.module, sum(graph.weights[name].bytes for name in node.weights if name not in seen)
        seen.update(node.weights)


def spoken(rows: Sequence[Sequence[Look]]) -> tuple[str, ...]:
    """For each row of nodes what they are, in a few words; empty where nothing tells."""
    speaker = _Speaker(rows)
    return tuple(map(speaker.words, range(len(rows))))


@dataclass(frozen=True)
class _Speaker:
    rows: Sequence[Sequence[Look]]

    @cached_property
    def paths(self) -> Mapping[str, _Path]:
        modules = dict.fromkeys(module for row in self.rows for module, _ in row)
        return {module: _path(module) for module in modules}

    @cached_property
    def opened(self) -> frozenset[tuple[str, ...]]:
        """The modules that are called by what is in them: large ones with numbered ones, and shared ones without."""
        numbered = {around for path in self.paths.values() for around in _around(path)}
        parts: dict[tuple[str, ...], set[int]] = defaultdict(set)
        nodes = Counter[tuple[str, ...]]()
        for i, row in enumerate(self.rows):
            for module, times in Counter(module for module, _ in row).items():
                names = tuple(name for name, _ in self.paths[module])
                for depth in range(1, len(names) + 1):
                    nodes[names[:depth]] += times
                    if depth < len(names):
                        parts[names[:depth]].add(i)
        large = {names for names in numbered if nodes[names] >= _LARGE * sum(map(len, self.rows))}
        return frozenset(large | {names for names, held in parts.items() if len(held) > 1 and names not in numbered})

    @cached_property
    def kinds(self) -> Mapping[str, tuple[_Kind, int | None] | None]:
        """What the nodes of each module are called, and their number; None where nothing tells."""
        return {module: self._kind(path) for module, path in self.paths.items()}

    def _kind(self, path: _Path) -> tuple[_Kind, int | None] | None:
        names = tuple(name for name, _ in path)
        for depth, (name, number) in enumerate(path):
            if number is not None or names[: depth + 1] not in self.opened:
                return (names[:depth], name), number
        return None

    @cached_property
    def called(self) -> Mapping[_Kind, str]:
        """A name for each kind, with the module around it where several kinds have one name."""
        alike: dict[str, list[_Kind]] = defaultdict(list)
        for kind in dict.fromkeys(found[0] for found in self.kinds.values() if found is not None):
            alike[kind[1]].append(kind)
        found = {}
        for name, kinds in alike.items():
            shared = _shared([around for around, _ in kinds])
            for around, _ in kinds:
                more = f"{around[shared]} " if len(around) > shared else ""
                found[around, name] = f"{more}{_known(name)}"
        return found

    @cached_property
    def holders(self) -> Mapping[tuple[_Kind, int], Sequence[int]]:
        """For each numbered module the rows that hold more of it than a slight share, of its nodes or its weights."""
        sizes: dict[tuple[_Kind, int], dict[int, list[int]]] = defaultdict(dict)
        for place, row in enumerate(self.rows):
            for module, weight_bytes in row:
                kind, number = self.kinds[module] or (None, None)
                if kind is not None and number is not None:
                    size = sizes[kind, number].setdefault(place, [0, 0])
                    size[0] += 1
                    size[1] += weight_bytes
        found = {}
        for one, rows in sizes.items():
            nodes, weights = (max(1, sum(size[i] for size in rows.values())) for i in (0, 1))
            found[one] = [r for r, size in rows.items() if max(size[0] / nodes, size[1] / weights) >= _SLIGHT]
        return found

    def words(self, place: int) -> str:
        """What the nodes of a row are."""
        sizes: dict[_Kind, list[float]] = {}
        numbers: dict[_Kind, set[int]] = defaultdict(set)
        for module, weight_bytes in self.rows[place]:
            found = self.kinds[module]
            if found is None:
                continue
            kind, number = found
            size = sizes.setdefault(kind, [0, 0])
            size[0] += 1
            size[1] += weight_bytes
            if number is not None:
                numbers[kind].add(number)
        known = [kind for kind in sizes if _known(kind[1]) != kind[1]]
        return ", ".join(
            _phrase(self.called[kind], list(self._pieces(place, kind, numbers[kind]))) for kind in _heavy(sizes, known)
        )

    def _pieces(self, place: int, kind: _Kind, numbers: Iterable[int]) -> Iterable[tuple[int, str]]:
        """The numbers of a kind that a row holds; with a word for which piece it is, where others hold some of it too.

        What is slight is not spoken of, as long as there is more.
        """
        found = [(number, self.holders[kind, number]) for number in sorted(numbers)]
        for number, holders in [one for one in found if place in one[1]] or found:
            if len(holders) < 2 or place not in holders:
                yield number, ""
            else:
                yield number, "start" if place == holders[0] else "end" if place == holders[-1] else "middle"


def _heavy(sizes: Mapping[_Kind, Sequence[float]], known: Sequence[_Kind]) -> Iterable[_Kind]:
    """The kinds that a part consists of, in their order; and those that a person looks for, however slight they are."""
    nodes, weights = (max(1, sum(size[i] for size in sizes.values())) for i in (0, 1))
    shares = {kind: max(size[0] / nodes, size[1] / weights) for kind, size in sizes.items()}
    ranked = sorted(shares, key=lambda kind: -shares[kind])[:_MOST]
    chosen = {kind for kind in ranked if shares[kind] >= _SLIGHT} or set(ranked[:1])
    return [kind for kind in sizes if kind in chosen or kind in known]


def _phrase(name: str, pieces: Sequence[tuple[int, str]]) -> str:
    """A name with its numbers: `layers 0-7`, `layer 3`, `down 0-1, 3`, `layer1.0-1`; `layers 0-6, start of 7`."""
    if not pieces:
        return name
    whole = [number for number, piece in pieces if not piece]
    said = [_numbered(name, whole)] if whole else []
    for number, piece in pieces:
        if piece:
            said.append(f"{piece} of {number if said else _numbered(name, [number])}")
    return ", ".join(said)


def _numbered(name: str, numbers: Sequence[int]) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    if name[-1:].isdigit() or len(name) <= _SHORT:
        return f"{name}.{ranges}"
    is_one = len(numbers) == 1 and name.endswith("s") and not name.endswith("ss")
    return f"{name[:-1] if is_one else name} {ranges}"


def _path(module: str) -> _Path:
    """The steps of a module's path; what is spelt `layers.3` or `layers/3` is `layers`, 3."""
    steps: list[_Step] = []
    for word in filter(None, module.split("/")):
        numbered = _NUMBERED.fullmatch(word)
        if numbered and _is_small(numbered[2]):
            steps.append((numbered[1], int(numbered[2])))
        elif word.isdecimal() and _is_small(word) and steps and steps[-1][1] is None:
            steps[-1] = (steps[-1][0], int(word))
        else:
            steps.append((word, None))
    return tuple(steps)


def _is_small(digits: str) -> bool:
    """Is it a number of something, and no hash? Very many digits would not even be read."""
    return digits.isascii() and len(digits) <= 6


def _around(path: _Path) -> Iterable[tuple[str, ...]]:
    """The modules around the first numbered one."""
    depth = next((i for i, (_, number) in enumerate(path) if number is not None), 0)
    return (tuple(name for name, _ in path[: i + 1]) for i in range(depth))


def _shared(paths: Sequence[tuple[str, ...]]) -> int:
    """How many steps paths have in common."""
    return sum(1 for _ in takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False)))


def _known(name: str) -> str:
    return next((word for look, word in _KNOWN if look.fullmatch(name)), name)
