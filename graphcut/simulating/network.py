"""The links of a cluster, and how concurrent transfers share them.

A link carries both directions at full bandwidth. Concurrent transfers share a link max-min fairly, as TCP streams do in
the long run: no transfer gets more at the cost of one that has less (Bertsekas & Gallager, Data Networks, 6.5.2), and
what a transfer can't use, because another link limits it, goes to the others. A first-come-first-served queue would be
simpler, but wrong where a slow device would delay a fast one: a sender does not wait for its slowest receiver.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Final, NamedTuple

from ..core.graph import post_order
from ..costs.cluster import LinkEnds, ReliabilityModel, SimulatedCluster
from .clock import Clock, ScheduledEvent

RETRANSMIT_S: Final = 0.2  #: a lost message is sent again after this time: Linux's minimum (RFC 6298 says 1 s).
_OnArrival = Callable[["Transfer"], None]


@dataclass(slots=True, eq=False)
class LinkDirection:
    """One direction of a link, its bandwidth, what it carried (with retransmissions), and what uses it now."""

    bytes_per_s: float
    carried_bytes: float = 0.0
    transfers: dict[Transfer, None] = field(default_factory=dict)


class Route(NamedTuple):
    """The way from one device to another: the links it uses, and the probability that a message is lost.

    A message has exponentially distributed delays of which `jitters_s` are the means.
    """

    links: tuple[LinkDirection, ...]
    jitters_s: tuple[float, ...]
    loss: float


@dataclass(slots=True, eq=False)
class Transfer:
    """A message in transit."""

    route: Route
    size_bytes: int
    latency_s: float  #: from its last byte sent to its arrival, without delays.
    on_arrival: _OnArrival
    left_bytes: float = 0.0  #: what was still to be sent at `since_s`, the time when its rate last changed.
    since_s: float = 0.0
    bytes_per_s: float = 0.0  #: its current rate; 0 while nothing is sent.
    next_event: ScheduledEvent = field(default_factory=ScheduledEvent)


class Network:
    """The links between the devices of a cluster. `draw` decides on jitter and loss."""

    def __init__(self, cluster: SimulatedCluster, clock: Clock, draw: random.Random) -> None:
        self.lost_messages = 0
        self._cluster, self._clock, self._draw = cluster, clock, draw
        machines = {name: machine.link_bytes_per_s for name, machine in cluster.machines.items()}
        rates: dict[LinkEnds, float] = {(name, None): bytes_per_s for name, bytes_per_s in machines.items()}
        rates |= {(None, name): bytes_per_s for name, bytes_per_s in machines.items()}
        rates |= {ends: one.bytes_per_s for one in cluster.links for ends in (one.between, one.between[::-1])}
        #: all link directions: to the router, from the router, and direct ones.
        self.links = {ends: LinkDirection(bytes_per_s) for ends, bytes_per_s in rates.items()}
        self._route_of = cache(self._route)

    def send(self, source: str, target: str, size_bytes: int, latency_s: float, on_arrival: _OnArrival) -> Transfer:
        """Send a message from one machine to another, by name."""
        transfer = Transfer(self._route_of(source, target), size_bytes, latency_s, on_arrival)
        self._start(transfer)
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer."""
        transfer.next_event.cancel()
        self._leave(transfer)

    def _route(self, source: str, target: str) -> Route:
        rates, _ = self._cluster.route(source, target)
        names = [frozenset((source, target))] if len(rates) == 1 else [frozenset((source,)), frozenset((target,))]
        found = [self._cluster.fault_of.get(name, ReliabilityModel(device="")) for name in names]
        jitters_s = tuple(fault.jitter_s for fault in found)
        links = tuple(self.links[ends] for ends in rates)
        return Route(links, jitters_s, 1 - prod(1 - fault.loss for fault in found))

    def _start(self, transfer: Transfer) -> None:
        transfer.left_bytes, transfer.since_s, transfer.bytes_per_s = transfer.size_bytes, self._clock.now_s, 0.0
        for link in transfer.route.links:
            link.transfers[transfer] = None
        self._update_rates(transfer.route.links)

    def _sent(self, transfer: Transfer) -> None:
        """After the last byte was sent: the message arrives after the latency, or it is lost and sent again."""
        transfer.left_bytes, transfer.bytes_per_s = 0.0, 0.0
        self._leave(transfer)
        route, draw = transfer.route, self._draw
        if route.loss and draw.random() < route.loss:
            self.lost_messages += 1
            transfer.next_event = self._clock.after(RETRANSMIT_S, partial(self._start, transfer))
            return
        delay_s = sum(draw.expovariate(1 / jitter_s) for jitter_s in route.jitters_s if jitter_s)
        transfer.next_event = self._clock.after(transfer.latency_s + delay_s, partial(transfer.on_arrival, transfer))

    def _leave(self, transfer: Transfer) -> None:
        if transfer not in transfer.route.links[0].transfers:
            return
        self._advance(transfer)
        for link in transfer.route.links:
            del link.transfers[transfer]
            link.carried_bytes += transfer.size_bytes - transfer.left_bytes
        self._update_rates(transfer.route.links)

    def _advance(self, transfer: Transfer) -> None:
        """Subtract what was sent until now."""
        sent_bytes = (self._clock.now_s - transfer.since_s) * transfer.bytes_per_s
        transfer.left_bytes = max(0.0, transfer.left_bytes - sent_bytes)
        transfer.since_s = self._clock.now_s

    def _update_rates(self, changed: Iterable[LinkDirection]) -> None:
        """Compute the rates again that transfers on the changed links can affect."""
        for transfer, bytes_per_s in fair_shares(_connected(changed)):
            if bytes_per_s == transfer.bytes_per_s:
                continue
            self._advance(transfer)
            transfer.bytes_per_s = bytes_per_s
            transfer.next_event.cancel()
            transfer.next_event = self._clock.after(transfer.left_bytes / bytes_per_s, partial(self._sent, transfer))


def _connected(changed: Iterable[LinkDirection]) -> list[LinkDirection]:
    """The links that share transfers with these, directly or through others."""
    used = [link for link in changed if link.transfers]
    return post_order(used, lambda link: (other for one in link.transfers for other in one.route.links))


def fair_shares(links: Sequence[LinkDirection]) -> list[tuple[Transfer, float]]:
    """The max-min fair rate in bytes/s of each transfer on `links`, by progressive filling.

    The link with the least bandwidth per transfer divides it equally; its transfers leave, and so on with the rest.

    Example: three transfers share a link of 10 bytes/s; one of them is limited to 1 by another link. The rates are 1,
    4.5 and 4.5.
    """
    if all(len(link.transfers) == 1 for link in links):  # usually: one transfer, as the links are connected
        alone = dict.fromkeys(transfer for link in links for transfer in link.transfers)
        return [(transfer, min(link.bytes_per_s for link in transfer.route.links)) for transfer in alone]
    left = {link: link.bytes_per_s for link in links}
    waiting = {link: dict(link.transfers) for link in links}
    shares: list[tuple[Transfer, float]] = []
    while waiting:
        tightest = min(waiting, key=lambda link: left[link] / len(waiting[link]))
        share = left[tightest] / len(waiting[tightest])
        for transfer in list(waiting[tightest]):
            shares.append((transfer, share))
            for link in transfer.route.links:
                left[link] = max(0.0, left[link] - share)
                del waiting[link][transfer]
        waiting = {link: transfers for link, transfers in waiting.items() if transfers}
    return shares
