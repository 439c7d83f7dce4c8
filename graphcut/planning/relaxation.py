"""What any plan must send at least, whatever its parts compute again instead of receiving it.

A part that needs a tensor either receives it or repeats the node that writes it, and then needs what that node reads.
So a bound that counts each tensor in full is no bound for plans that repeat nodes. Here a tensor keeps its price only
where every plan pays it:

- its node may not be repeated: it keeps a state, touches a cache, is pinned, or brings more than 1 MiB of weights;
- to repeat its node costs more time than any better plan has left for that;
- its node reads a tensor that no other node reads: who repeats it, needs that tensor. Then the smaller of the two
  prices counts, and it is sent by the part that holds the writers of both.

All other tensors are free: that may be less than a plan can reach, and is never more.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final

from ..core.graph import Graph
from ..costs.weighing import Costs
from .solver.recompute import MOST_WEIGHT_BYTES

_TOLERANCE: Final = 1e-9  #: times that differ by this share differ only in the order of additions.


@dataclass(frozen=True)
class LeastTransfer:
    """What moving a tensor to parts that could compute it costs at least."""

    moved_bytes: int  #: bytes that each part receives that reads the tensor and does not hold its node.
    sender: int  #: a part sends as many bytes if it holds this node and that of the tensor.


@dataclass(frozen=True)
class Repeating:
    """Which nodes a plan may repeat, and what that costs."""

    graph: Graph  #: the graph.
    costs: Costs  #: FLOPs and bytes of its nodes.
    kept: Collection[int]  #: nodes that must be in one part only.
    run_s: Mapping[int, float]  #: seconds of each flowing node on the fastest device for it.
    s_per_byte: float  #: seconds to receive a byte over the fastest link.

    def least_transfers(self, slack_s: float, *, with_readers: bool) -> dict[str, LeastTransfer]:
        """For each tensor whose node may be repeated in less than `slack_s`: what moving it costs at least.

        Without `with_readers` all of them are free: where memory is counted, a tensor may be dead before it is sent.
        """
        graph, found = self.graph, dict[str, LeastTransfer]()
        repeat_s = self._repeat_s(slack_s)
        for node in graph.flow:
            if repeat_s[node] == inf:
                continue
            own = graph.nodes[node]
            only = [self._price(name, found) for name in own.reads if with_readers and self._is_read_once(name)]
            least = max(only, key=lambda price: price.moved_bytes, default=LeastTransfer(0, node))
            for name in own.writes:
                moved = min(least.moved_bytes, self._bytes(name)) if len(own.writes) == 1 else 0
                found[name] = LeastTransfer(moved, least.sender)
        return found

    def _repeat_s(self, slack_s: float) -> dict[int, float]:
        """At least the seconds that a part needs to repeat each node; `inf` where it can't within `slack_s`."""
        producer, found = self.graph.producer, dict[int, float]()
        for node in self.graph.flow:
            if self._must_not_repeat(node):
                found[node] = inf
                continue
            read = [name for name in self.graph.nodes[node].reads if name in producer]
            inputs_s = (min(self._bytes(name) * self.s_per_byte, found[producer[name]]) for name in read)
            total_s = self.run_s[node] + max(inputs_s, default=0.0)
            found[node] = inf if total_s >= slack_s * (1 + _TOLERANCE) else total_s
        return found

    def _must_not_repeat(self, node: int) -> bool:
        graph, own = self.graph, self.graph.nodes[node]
        brought = sum(graph.weights[name].bytes for name in own.weights if self._weight_readers[name] == 1)
        return own.is_stateful or node in self.kept or brought > MOST_WEIGHT_BYTES

    @cached_property
    def _weight_readers(self) -> Mapping[str, int]:
        return Counter(name for node in self.graph.flow for name in self.graph.nodes[node].weights)

    def _is_read_once(self, name: str) -> bool:
        """Whether a tensor can be sent, and only one node reads it."""
        graph, tensor = self.graph, self.costs.model.tensors.get(name)
        is_sendable = tensor is not None and tensor.is_plain and tensor.dtype != "undefined"
        return is_sendable and name in graph.producer and len(graph.readers[name]) == 1 and name not in graph.writes

    def _price(self, name: str, found: Mapping[str, LeastTransfer]) -> LeastTransfer:
        return found.get(name) or LeastTransfer(self._bytes(name), self.graph.producer[name])

    def _bytes(self, name: str) -> int:
        return self.costs.tensor_bytes[name][0]
