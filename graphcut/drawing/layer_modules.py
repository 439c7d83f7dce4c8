"""The module of each node as labels show it: layers are the blocks that the graph repeats, and names only name them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import takewhile
from typing import Final

from ..analysis.repeated_blocks import RepeatedBlock
from ..core.graph import Graph, grouped
from .scene import ModulePath, Modules, NodeRows

_NUMBERED: Final = re.compile(r"(.+?)(_\._|\.|_)([0-9]{1,6})")  #: longer numbers are hashes.
_MOST: Final = 0.75  #: share of the nodes of a block that is most of them.
_Kind = tuple[ModulePath, str]  #: the modules around numbered modules, and the name of these.


def layer_modules(graph: Graph, repeat: RepeatedBlock | None) -> dict[int, ModulePath]:
    """For each flowing node its module, such as `model`, `layers` 3, `mlp`.

    A node of a repeated block is in the module of that layer: `model`, `layers` 3. Layers have the numbers of their
    modules if these ascend from block to block. They are counted from 0 if they have no modules of their own. A node
    after the last block whose module has a higher number is in one more layer, or beside the layers if that has less
    than half a block's nodes: GenAI calls the last norm of a model of 8 layers `layers.8/final_norm`.
    """
    parsed = _parsed({graph.nodes[node].module for node in graph.flow})
    paths = {node: parsed[graph.nodes[node].module] for node in graph.flow}
    numbering = None if repeat is None else _numbering(paths, repeat.blocks, f"{repeat.block}s")
    if repeat is None or numbering is None:
        return paths
    kind, numbers = numbering
    layer = {node: number for node, path in paths.items() if (number := _number(path, kind)) is not None}
    outside = layer.keys() - {node for block in repeat.blocks for node in block}
    beyond = Counter(layer[node] for node in outside if layer[node] > numbers[-1][-1])
    for node in outside:
        if 0 < 2 * beyond[layer[node]] < len(repeat.blocks[-1]):
            paths[node] = (*kind[0], *paths[node][len(kind[0]) + 1 :])
            del layer[node]
    for block, own in zip(repeat.blocks, numbers, strict=True):
        number = own[0]
        for node in block:
            number = layer[node] = min(max(layer.get(node, number), own[0]), own[-1])
    # `h` is shown as the blocks are called, and `blocks` in `layers` 2 as `layers.2 blocks`.
    outer = tuple(takewhile(lambda step: step[1] is None, kind[0]))
    words = [step if number is None else f"{step}.{number}" for step, number in kind[0][len(outer) :]]
    name = " ".join([*words, f"{repeat.block}s" if len(kind[1]) == 1 else kind[1]])
    return paths | {node: (*outer, (name, number)) for node, number in layer.items()}


def _parsed(modules: Iterable[str]) -> dict[str, ModulePath]:
    """The steps of each path: `layers.3`, `layers/3`, `layer_._3` and `layer_3` are a name and its number.

    A number after `_` counts if there is another module of that name, since `functional_1` may be the whole model.
    TensorFlow leaves out the number of the first one: `block`, `block_1`, `block_2` are 0 to 2.
    """
    # Deeper modules are not shown.
    words = {module: tuple(word for word in module.split("/") if word)[:16] for module in modules}
    siblings = defaultdict[tuple[tuple[str, ...], str], set[str]](set)
    for row in words.values():
        for depth, word in enumerate(row):
            name, mark, number = _numbered(word)
            if mark in {"", "_"}:
                siblings[row[:depth], name].add(number)
    return {module: _steps(row, siblings) for module, row in words.items()}


def _steps(words: tuple[str, ...], siblings: Mapping[tuple[tuple[str, ...], str], AbstractSet[str]]) -> ModulePath:
    """The steps of a path; `siblings` has for each name the numbers after `_`, empty for a name without one."""
    steps: list[tuple[str, int | None]] = []
    for depth, word in enumerate(words):
        name, mark, number = _numbered(word)
        alike = siblings.get((words[:depth], name), frozenset())
        if mark and (mark != "_" or len(alike) > 1):
            steps.append((name, int(number)))
        elif not mark and len(alike) > 1 and "0" not in alike:
            steps.append((name, 0))
        elif re.fullmatch("[0-9]{1,6}", word) and steps and steps[-1][1] is None:
            steps[-1] = (steps[-1][0], int(word))
        else:
            steps.append((word, None))
    return tuple(steps)


@lru_cache
def _numbered(word: str) -> tuple[str, str, str]:
    """A module's name, the mark before its number, and its number."""
    match = _NUMBERED.fullmatch(word)
    return (word, "", "") if match is None else (match[1], match[2], match[3])


def _numbering(paths: Modules, blocks: NodeRows, name: str) -> tuple[_Kind, Sequence[Sequence[int]]] | None:
    """The numbered modules that the blocks are, and for each block the numbers that it holds, ascending.

    They hold most of the blocks' nodes, and their numbers ascend from block to block. Without such modules the blocks
    are called `name` and counted; None if each has a module of its own that is not numbered.
    """
    inside = ((paths[node], index) for index, block in enumerate(blocks) for node in block)
    around = grouped((path[: depth + 1], index) for path, index in inside for depth in range(len(path)))
    held = {path: Counter(indices) for path, indices in around.items()}
    ends = ((path[:-1], *path[-1], found) for path, found in held.items())
    kinds = grouped(((outer, name), (number, found)) for outer, name, number, found in ends if number is not None)
    for kind in sorted(kinds, key=lambda kind: len(kind[0])):
        if numbers := _numbers_of_blocks(dict(kinds[kind]), blocks):
            return kind, numbers
    alone = (next(iter(found.items())) for found in held.values() if len(found) == 1)
    if len({block for block, nodes in alone if nodes >= _MOST * len(blocks[block])}) == len(blocks):
        return None
    whole = [path for path, found in held.items() if found.total() == sum(map(len, blocks))]
    return (max(whole, key=len, default=()), name), [[index] for index in range(len(blocks))]


def _numbers_of_blocks(nodes: Mapping[int, Counter[int]], blocks: NodeRows) -> list[list[int]] | None:
    """For each block the numbers of its modules, by how many `nodes` of a number it has; None if these are others.

    A number belongs to the block with most of its nodes. Blocks are equal, so they have equally many numbers.
    """
    held: list[list[tuple[int, int]]] = [[] for _ in blocks]
    for number, found in nodes.items():
        ((block, most),) = found.most_common(1)
        held[block].append((most, number))
    each = min(map(len, held))
    numbers = [sorted(number for _, number in sorted(found)[len(found) - each :]) for found in held]
    listed = [number for own in numbers for number in own]
    is_most = sum(found.total() for found in nodes.values()) >= _MOST * sum(map(len, blocks))
    return numbers if each and is_most and listed == sorted(listed) else None


def _number(path: ModulePath, kind: _Kind) -> int | None:
    """The number of the module of that kind in a path."""
    depth = len(kind[0])
    return path[depth][1] if path[:depth] == kind[0] and path[depth:] and path[depth][0] == kind[1] else None
