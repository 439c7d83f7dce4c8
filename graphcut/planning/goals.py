"""What a user can want of a cut. Goals are records and prepositions."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..core.product import Product
from .cluster import Cluster

Measure = Literal["time", "layers", "bytes", "flops"]
"""What parts are balanced by."""

Counted = Literal["activations", "inputs", "cache"]
"""What counts as memory of a part besides its files: what it writes while it runs, what it is fed, its KV cache."""

Objective = Literal["throughput", "latency", "decode", "bytes", "devices"]
"""What a plan for a cluster is best in."""


class At(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Cut after these places.

    Attributes:
        nodes: node names, tensor names, or globs of either (`/model/layers.*/add_1`). A cut after a tensor is a cut
            after the node that writes it.
    """

    nodes: tuple[str, ...]


class Into(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Into so many parts, the heaviest as light as can be; of equal ones the fewest bytes cross.

    Attributes:
        parts: how many.
        by: what is balanced. `time`: seconds on one device, what must be received and sent included. `layers`: the
            layers that the model repeats. `bytes`: the written parts. `flops`: floating-point operations.
    """

    parts: int
    by: Measure = "time"


class Within(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """No part over this; the fewest parts, of these the fewest bytes received, of these the lightest heaviest part.

    Attributes:
        memory_bytes: what a part may take.
        counting: what counts besides the files of a part, which always count: its model, and the weights that it
            reads.
    """

    memory_bytes: int
    counting: tuple[Counted, ...] = ()


class Across(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One part on each device of a cluster, or none.

    Attributes:
        cluster: the devices and the links between them.
        objective: `throughput`: the busiest device is busy as short as can be. `latency`: one request takes as short
            as can be. `decode`: most tokens a second with `in_flight` sequences. `bytes`: the fewest bytes are
            received. `devices`: the fewest devices, of these the least latency.
        in_flight: how many sequences are decoded at the same time, for `decode`.
    """

    cluster: Cluster
    objective: Objective = "throughput"
    in_flight: int = 1


class Heads(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One part for each group of outputs, and one for what several of them need, the trunk.

    Attributes:
        groups: names of outputs that stay together; outputs that no group names stay with the trunk. Empty: each
            output is a group of its own.
    """

    groups: tuple[tuple[str, ...], ...] = ()


Goal = At | Into | Within | Across | Heads
"""All kinds of goals."""


class Limits(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What constrains any goal.

    Attributes:
        pins: nodes, named as in `At`, and the part that each must stand in, from 0.
        avoid: nothing that these nodes or tensors write may cross.
        inside_layers: a layer that the model repeats may be cut, too.
        recompute: `auto`: a part computes cheap values for itself where that is cheaper than having them sent.
    """

    pins: tuple[tuple[str, int], ...] = ()
    avoid: tuple[str, ...] = ()
    inside_layers: bool = False
    recompute: Literal["auto", "never"] = "auto"
