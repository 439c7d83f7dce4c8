"""Groups of devices that divide layers among them: which are tried for a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from math import gcd
from typing import Final, Literal

import msgspec

from .device import Device

RankMode = Literal["exact", "sum"]
"""How pieces of ranks are joined where an axis is contracted: `exact` joins the pieces before the contraction, which
gives the same bits; `sum` adds partial results."""

_MOST_GROUPS: Final = 64  #: so many sets of devices are tried as groups, small ones first; and all devices together.
_SHARE_STEPS: Final = 100  #: shares are multiples of this part of the largest one.


class Rank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device of a group."""

    device: Device  #: the device.
    share: int  #: its share of each layer, relative to those of the others.


class DeviceGroup(Device, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices that divide layers among them, planned as one device."""

    ranks: tuple[Rank, ...]  #: the first has what is neither divided nor repeated, and sends results on.

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> DeviceGroup:
        """The group of these ranks, with the link of the first."""
        first = ranks[0].device
        name, link = "+".join(rank.device.name for rank in ranks), first.link_bytes_per_s
        return cls(name=name, ranks=tuple(ranks), link_bytes_per_s=link, latency_s=first.latency_s)

    @property
    def shares(self) -> tuple[int, ...]:
        """The share of each rank."""
        return tuple(rank.share for rank in self.ranks)

    def on(self, devices: Sequence[Device]) -> DeviceGroup:
        """The same shares on other devices."""
        return self.of([Rank(device, rank.share) for device, rank in zip(devices, self.ranks, strict=True)])


def ranks_of(device: Device) -> tuple[Rank, ...]:
    """The ranks of a group; a single device is the only one."""
    return device.ranks if isinstance(device, DeviceGroup) else (Rank(device, 1),)


class ModeCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan takes if pieces are joined in one way."""

    mode: RankMode  #: how they are joined.
    exchanges: int  #: the steps of a request at which ranks wait for pieces of each other.
    exchanges_per_layer: int  #: those in one of the repeated layers; 0 if no layers repeat.
    received_bytes: int  #: the most bytes of pieces that a rank receives in a request.
    latency_s: float  #: of a request.


def tried_groups(
    devices: Sequence[Sequence[Device]], most_ranks: int, shares_of: Callable[[Sequence[Device]], set[tuple[int, ...]]]
) -> Iterator[tuple[tuple[int, ...], DeviceGroup]]:
    """The groups that are tried; `devices` are those of each class of equal ones. Also the class of each rank.

    Groups are sets of two or more devices, the one with most memory first; `shares_of` has the shares to try.
    """
    counts = product(*(range(len(alike) + 1) for alike in devices))
    sets = sorted((used for used in counts if 2 <= sum(used) <= most_ranks), key=sum)
    for used in dict.fromkeys([*islice(sets, _MOST_GROUPS), *sets[-1:]]):
        taken = [(c, device) for c, number in enumerate(used) for device in devices[c][:number]]
        taken.sort(key=lambda one: -(one[1].memory_bytes or float("inf")))
        members = [device for _, device in taken]
        for shares in sorted(shares_of(members)):
            ranks = [Rank(device, share) for device, share in zip(members, shares, strict=True)]
            yield tuple(c for c, _ in taken), DeviceGroup.of(ranks)


def shares_by(numbers: Sequence[float]) -> tuple[int, ...]:
    """Whole shares in proportion to numbers, each of 1 at least.

    >>> shares_by([2.0, 1.0, 1.0])
    (2, 1, 1)
    """
    found = [max(1, round(_SHARE_STEPS * number / max(numbers))) for number in numbers]
    return tuple(share // gcd(*found) for share in found)
