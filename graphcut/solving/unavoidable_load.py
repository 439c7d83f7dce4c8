"""A lower bound of the busiest device's load: a group with the communication that it can't avoid.

The device that runs a group sends and receives the group's tensors, or it runs what is at their other ends as well,
which is work and has tensors of its own. The least load of a device that runs the group, whatever else it runs, is a
minimum cut (hypergraph min-cut after Lawler, 1973): a group on the side of the device costs its work, and a tensor that
is on both sides costs its time on the link once. The bound holds for any assignment of groups to devices, interleaved
or not.

Example: group 1 of 5 s reads 4 s from group 0, which takes 3 s, and sends 9 s to group 2, which takes 1 s. Its device
runs group 2 as well; group 0 it may run or not, 4 s of receiving are worse than 3 s of work:

    >>> from graphcut.costs.device import Device
    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[3.0, 5.0, 1.0]], [(0, (1,), 4), (1, (2,), 9)])
    >>> unavoidable_load(load, [DeviceClass((Device(name="a"), Device(name="b")), np.inf, 1.0, 0.0)])
    9.0
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..costs.cluster import Overlap
from .cost_tables import DeviceClass
from .instance import Workload, quantum_for
from .min_cut import Arc, FlowNetwork
from .transfers import STEPS_AT_ONCE

_MOST_GROUPS: Final = 3000
_MOST_CUTS: Final = 20


def unavoidable_load(
    load: Workload, classes: Sequence[DeviceClass], overlap: Overlap = "none", *, can_repeat: bool = False
) -> float:
    """The greatest, over the groups, of the least load of a device that runs the group.

    If devices can repeat what others run, nothing that a device sends is unavoidable.

    Groups that alone would be the greatest loads are tried first, 20 at most. 0 for a workload of more than 3,000.
    `classes` have their best links.
    """
    if load.groups > _MOST_GROUPS:
        return 0.0
    in_turn = overlap == "none"
    moved = load.written_bytes.copy()
    np.add.at(moved, load.readers.group, load.tensor_bytes[load.readers.item])
    alone = np.min([load.work[c] + moved * kind.s_per_byte for c, kind in enumerate(classes)], axis=0)
    most = 0.0
    for group in np.argsort(-alone, kind="stable")[:_MOST_CUTS].tolist():
        if alone[group] <= most:  # a device that runs nothing else has no greater load, nor have those after it
            break
        is_sending = in_turn and not can_repeat
        least = min(_least_load(load, group, c, kind, is_sending=is_sending) for c, kind in enumerate(classes))
        most = max(most, least if in_turn else max(float(load.work[:, group].min()), least / STEPS_AT_ONCE))
    return most


def _least_load(load: Workload, group: int, c: int, kind: DeviceClass, *, is_sending: bool) -> float:
    """The least load of a device of a class that runs the group; what it sends counts where it is busy sending."""
    work = load.work[c]
    if np.isinf(work[group]):
        return np.inf
    sizes = load.tensor_bytes * kind.s_per_byte
    unit = quantum_for(float(work[np.isfinite(work)].sum() + sizes.sum()))
    elsewhere = load.groups  # the sink: all that other devices run
    arcs: list[Arc] = [(g, elsewhere, int(s / unit) if s < np.inf else None) for g, s in enumerate(work.tolist())]
    tensors = zip(load.writer.tolist(), load.readers.groups_of_items, sizes.tolist(), strict=True)
    for tensor, (writer, readers, transfer_s) in enumerate(tensors):
        if (price := int(transfer_s / unit)) and readers:
            begin, end = elsewhere + 2 * tensor + 1, elsewhere + 2 * tensor + 2
            arcs.append((begin, end, price))
            arcs += [(one, begin, None) for one in (*readers, *([writer] if is_sending else ()))]
            arcs += [(end, one, None) for one in (writer, *(readers if is_sending else ()))]
    return FlowNetwork(elsewhere + 2 * len(sizes) + 1, arcs, group, elsewhere).push_max_flow() * unit
