"""Nodes that ONNX Runtime computes as one kernel, with all optimizations: a tensor between them is never written.

MatMulInteger, Cast, Mul, Add of a bias       core/optimizer/matmul_integer_to_float.cc
MatMul, Mul or Div by a number                core/optimizer/matmul_scale_fusion.cc
Div by the root of 2, Erf, Add, Mul (gelu)    core/optimizer/gelu_fusion.cc; not where a bias is added before: that
                                              kernel takes as much as the nodes
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import isclose, sqrt
from typing import NamedTuple

from onnx.numpy_helper import to_array

from ..core.graph import Graph
from ..loading.model import Model
from ..loading.operations import constants_in


class Joined(NamedTuple):
    """A node that is computed together with the one before."""

    tensor: str  #: what is between the two.
    ends: tuple[int, ...]  #: nodes without which they are not: the first and the last.


def joined_nodes(model: Model) -> Mapping[int, Joined]:
    """The nodes that are computed together with the one before."""
    graph, found = model.graph, dict[int, Joined]()
    values = constants_in(model.proto)

    def beside(node: int) -> Sequence[int]:
        """The dimensions of the constant that a node reads beside one activation; (0, 0) if it reads others."""
        names = {*graph.nodes[node].weights, *graph.nodes[node].constants}
        is_one = len(graph.nodes[node].reads) == len(names) == 1 and names <= values.keys()
        return values[min(names)].dims if is_one else (0, 0)

    def join(chain: Sequence[int], *ends: int) -> None:
        found.update((b, Joined(graph.nodes[a].writes[0], ends)) for a, b in pairwise(chain))

    for node in graph.flow:
        writer = graph.producer.get("".join(graph.nodes[node].reads[:1]), node)
        match graph.nodes[node].op:
            case "MatMulInteger" if len(chain := _chain(graph, node, {"Cast"}, {"Mul"})) == 3:
                scale = [graph.nodes[one].op for one in graph.predecessors(chain[2]) if one != chain[1]]
                if scale == ["Mul"]:
                    join(chain, node, chain[2])
                    added = _chain(graph, chain[2], {"Add"})
                    join(added if len(beside(added[-1])) == 1 else (), node, chain[2])
            case "MatMul" if len(chain := _chain(graph, node, {"Mul", "Div"})) == 2 and not beside(chain[1]):
                join(chain, *chain)
            case "Div" if not beside(node) and (writer in found or graph.nodes[writer].op != "Add"):
                divisor = values[min({*graph.nodes[node].weights, *graph.nodes[node].constants})]
                chain = _chain(graph, node, {"Erf"}, {"Add"}, {"Mul"}, {"Mul"})
                if len(chain) == 5 and isclose(float(to_array(divisor)), sqrt(2), rel_tol=1e-3):
                    join(chain[:-1], *(found[writer].ends if writer in found else [node]), chain[-1])
    return found


def is_between(graph: Graph, name: str) -> bool:
    """Whether a tensor is between two nodes, and nothing else reads it."""
    return name in graph.producer and len(graph.readers.get(name, ())) == 1 and name not in graph.outputs


def _chain(graph: Graph, node: int, *operators: Collection[str]) -> list[int]:
    """A node, and as many as there are that follow with these operators, each the only reader of the one before."""
    found = [node]
    for ops in operators:
        name = graph.nodes[found[-1]].writes[0]
        if not is_between(graph, name) or graph.nodes[graph.readers[name][0]].op not in ops:
            break
        found.append(graph.readers[name][0])
    return found
