"""The links of a cluster: what moves on them at the same time shares them.

A link carries both directions at its full rate. Tensors on their way share what a link carries as TCP's streams do in
the long run, max-min fairly: nobody gets more at the cost of somebody who has less (Bertsekas & Gallager, Data
Networks, section 6.5.2), and what one can't use because of another link goes to the others. First come, first served
would be simpler, and wrong where a slow device holds up a fast one: a sender does not wait for its slowest receiver.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..costs.device import Device
from ..planning.cluster import ReliabilityModel, SimulatedCluster
from .clock import Clock, ScheduledEvent

RETRY_S: Final = 0.2
"""After so long without an answer a message is sent again: the least that Linux's TCP waits (RFC 6298 says 1 s)."""

_RELIABLE: Final = ReliabilityModel(device="")


@dataclass(slots=True, eq=False)
class LinkDirection:
    """One direction of a link.

    Attributes:
        source: the device that it comes from; None for the router.
        target: the device that it goes to; None for the router.
        bytes_per_s: what it carries.
        carried_bytes: what it has carried, twice where it had to be sent again.
        moving: what is on it.
    """

    source: str | None
    target: str | None
    bytes_per_s: float
    carried_bytes: float = 0.0
    moving: dict[Transfer, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """How a tensor gets from one device to another.

    Attributes:
        links: what it goes over.
        latency_s: until its first byte arrives.
        jitters_s: what it takes on top of that on average, each of these on its own.
        loss: the share of messages that get lost.
    """

    links: tuple[LinkDirection, ...]
    latency_s: float
    jitters_s: tuple[float, ...]
    loss: float


@dataclass(slots=True, eq=False)
class Transfer:
    """A tensor on its way.

    Attributes:
        way: how it goes.
        bytes: what it takes.
        arrived: what is done when it is there.
        left_bytes: what is still to be sent at `since_s`.
        since_s: when that was.
        bytes_per_s: how fast it goes since then; 0 while it waits.
        next: what happens to it next.
    """

    way: Route
    bytes: int
    arrived: Callable[[Transfer], None]
    left_bytes: float = 0.0
    since_s: float = 0.0
    bytes_per_s: float = 0.0
    next: ScheduledEvent | None = None


class Network:
    """The links between the devices of a world.

    Attributes:
        lost: how many messages got lost.
    """

    def __init__(self, world: SimulatedCluster, clock: Clock, draw: random.Random) -> None:
        """Nothing is on its way yet; `draw` decides on jitter and loss."""
        self.lost = 0
        self._world = world
        self._clock = clock
        self._draw = draw
        self._up = [LinkDirection(device.name, None, device.link_bytes_per_s) for device in world.devices]
        self._down = [LinkDirection(None, device.name, device.link_bytes_per_s) for device in world.devices]
        self._direct: dict[tuple[str, str], LinkDirection] = {}
        for link in world.links:
            for source, target in (link.between, link.between[::-1]):
                self._direct[source, target] = LinkDirection(source, target, link.bytes_per_s)
        self._ways: dict[tuple[int | None, int], Route] = {}

    @property
    def links(self) -> list[LinkDirection]:
        """All of them: to the router, from it, direct ones."""
        return [*self._up, *self._down, *self._direct.values()]

    def send(self, source: int | None, target: int, count_bytes: int, arrived: Callable[[Transfer], None]) -> Transfer:
        """Send from one device to another, by their numbers; None is somewhere beyond the router."""
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = self._way(source, target)
        transfer = Transfer(way, count_bytes, arrived)
        self._start(transfer)
        return transfer

    def stop(self, transfer: Transfer) -> None:
        """It is of no use any more, or one of its ends is gone."""
        if transfer.next is not None:
            transfer.next.call_off()
        self._leave(transfer)

    def _way(self, source: int | None, target: int) -> Route:
        """A direct link, or the links of both to the router, with the latency of the receiver: as in planning."""
        devices, faults = self._world.devices, self._world.fault_of
        to = devices[target]
        ends: list[Device] = [to] if source is None else [devices[source], to]
        names = frozenset(device.name for device in ends)
        direct = self._world.link_between.get(names) if source is not None else None
        if direct is not None:
            link = self._direct[devices[source or 0].name, to.name]
            fault = faults.get(names, _RELIABLE)
            return Route((link,), direct.latency_s, (fault.jitter_s,), fault.loss)
        found = [faults.get(frozenset((device.name,)), _RELIABLE) for device in ends]
        passing = 1.0
        for fault in found:
            passing *= 1 - fault.loss
        links = (self._down[target],) if source is None else (self._up[source], self._down[target])
        return Route(links, to.latency_s, tuple(fault.jitter_s for fault in found), 1 - passing)

    def _start(self, transfer: Transfer) -> None:
        transfer.left_bytes, transfer.since_s, transfer.bytes_per_s = float(transfer.bytes), self._clock.now_s, 0.0
        for link in transfer.way.links:
            link.moving[transfer] = None
        self._share(transfer.way.links)

    def _sent(self, transfer: Transfer) -> None:
        """Its last byte has left: it arrives after the latency, or never, and is sent again."""
        transfer.left_bytes, transfer.bytes_per_s = 0.0, 0.0
        self._leave(transfer)
        way, draw = transfer.way, self._draw
        if way.loss and draw.random() < way.loss:
            self.lost += 1
            transfer.next = self._clock.after(RETRY_S, partial(self._start, transfer))
            return
        late_s = sum(draw.expovariate(1 / jitter_s) for jitter_s in way.jitters_s if jitter_s)
        transfer.next = self._clock.after(way.latency_s + late_s, partial(transfer.arrived, transfer))

    def _leave(self, transfer: Transfer) -> None:
        if transfer not in transfer.way.links[0].moving:
            return
        self._advance(transfer)
        for link in transfer.way.links:
            del link.moving[transfer]
            link.carried_bytes += transfer.bytes - transfer.left_bytes
        self._share(transfer.way.links)

    def _advance(self, transfer: Transfer) -> None:
        """Count what it has sent until now."""
        sent = (self._clock.now_s - transfer.since_s) * transfer.bytes_per_s
        transfer.left_bytes = max(0.0, transfer.left_bytes - sent)
        transfer.since_s = self._clock.now_s

    def _share(self, changed: Iterable[LinkDirection]) -> None:
        """Share out anew what can be touched by a change on these links."""
        for transfer, bytes_per_s in fair_shares(_touched(changed)):
            if bytes_per_s == transfer.bytes_per_s:
                continue
            self._advance(transfer)
            transfer.bytes_per_s = bytes_per_s
            if transfer.next is not None:
                transfer.next.call_off()
            transfer.next = self._clock.after(transfer.left_bytes / bytes_per_s, partial(self._sent, transfer))


def _touched(changed: Iterable[LinkDirection]) -> list[LinkDirection]:
    """The links that share tensors with these, directly or over others."""
    found = dict.fromkeys(link for link in changed if link.moving)
    todo = list(found)
    while todo:
        for transfer in todo.pop().moving:
            for link in transfer.way.links:
                if link not in found:
                    found[link] = None
                    todo.append(link)
    return list(found)


def fair_shares(links: Sequence[LinkDirection]) -> list[tuple[Transfer, float]]:
    """Bytes a second for all that moves on `links`, max-min fairly: again and again the tightest link is shared out."""
    if all(len(link.moving) == 1 for link in links):  # all of it is one, mostly: the links are connected
        moving = dict.fromkeys(transfer for link in links for transfer in link.moving)
        return [(transfer, min(link.bytes_per_s for link in transfer.way.links)) for transfer in moving]
    left = {link: link.bytes_per_s for link in links}
    open_: dict[LinkDirection, dict[Transfer, None]] = {link: dict(link.moving) for link in links}
    shares: list[tuple[Transfer, float]] = []
    while open_:
        tightest = min(open_, key=lambda link: left[link] / len(open_[link]))
        share = left[tightest] / len(open_[tightest])
        for transfer in list(open_[tightest]):
            shares.append((transfer, share))
            for link in transfer.way.links:
                left[link] = max(0.0, left[link] - share)
                del open_[link][transfer]
        open_ = {link: moving for link, moving in open_.items() if moving}
    return shares
