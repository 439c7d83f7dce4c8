"""Goals: what a plan is for. And limits: the constraints of any goal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec.structs import fields, force_setattr, replace

from ..core.errors import UsageError, type_error, wrong_type
from ..core.product import Product, short_repr
from ..core.tensors import MAX_BYTES
from ..core.units import parse_bytes
from ..costs.cluster import Cluster
from ..costs.device import COUNTING, Counted
from ..costs.device_groups import RankMode

Measure = Literal["time", "layers", "bytes", "flops"]  #: what parts are balanced by.
#: what a plan for a cluster optimizes.
Objective = Literal["throughput", "latency", "decode", "bytes", "devices", "crossings"]
Recomputing = Literal["auto", "never", "approximate"]  #: what parts may recompute.


class _Checked(Product, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record whose values have the types of its fields, else it is a TypeError; lists become tuples."""

    usage: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = getattr(self, field.name)
            try:
                force_setattr(self, field.name, msgspec.convert(value, field.type))
            except msgspec.ValidationError as error:
                what = f"{type(self).__name__}({field.name}={short_repr(value)})"
                raise type_error(f"{what}: {error}", hint=f"did you mean {self.usage}?") from None


class At(_Checked, frozen=True, tag=True):
    """Cut after given nodes."""

    usage = 'At("a") or At(("a", "b"))'
    #: node names, tensor names, or globs of either (`/model/layers.*/add_1`); one or several. A cut after a tensor is a
    #: cut after the node that writes it.
    nodes: tuple[str, ...]

    if TYPE_CHECKING:

        def __init__(self, nodes: str | Sequence[str]) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str):
            force_setattr(self, "nodes", (self.nodes,))
        super().__post_init__()


class Into(_Checked, frozen=True, tag=True):
    """A number of parts, with the most expensive part as cheap as possible; of equal plans the fewest bytes sent."""

    usage = 'Into(3) or Into(3, "bytes")'
    parts: int  #: the number of parts.
    #: what is balanced. `time`: seconds on one device, receiving and sending included. `layers`: the layers that the
    #: model repeats. `bytes`: file sizes. `flops`: floating-point operations.
    by: Measure = "time"


class Within(_Checked, frozen=True, tag=True):
    """No part over a budget, with the fewest parts, then the fewest bytes sent, then the smallest largest part."""

    usage = 'Within(2_000_000_000) or Within("2GB")'
    memory_bytes: int  #: the most bytes of a part; also as text (`Within("2GB")`).
    #: what counts of a part, see `Counted`: by default the memory to run it; with nothing its files alone.
    counting: tuple[Counted, ...] = COUNTING
    most_parts: int | None = None  #: the most parts; None for any number.

    if TYPE_CHECKING:

        def __init__(
            self, memory_bytes: int | str, counting: Sequence[Counted] = COUNTING, most_parts: int | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.memory_bytes, str):
            force_setattr(self, "memory_bytes", parse_bytes(self.memory_bytes))
        super().__post_init__()


class Across(_Checked, frozen=True, tag=True):
    """At most one part on each device of a cluster, or several."""

    usage = 'Across(read_cluster("cluster.toml"), "latency")'
    cluster: Cluster  #: the devices and the links between them.
    #: `throughput`: the shortest time between two requests. `latency`: the shortest time of one request. `decode`: the
    #: most tokens a second with `in_flight` sequences. `bytes`: the fewest bytes sent. `devices`: the fewest devices,
    #: of these the least latency. `crossings`: the fewest changes of the device, each node with FLOPs on the fastest
    #: device that can run it; a device may have several parts.
    objective: Objective = "throughput"
    in_flight: int = 1  #: how many sequences are decoded at the same time, for `decode`.
    interleave: bool = False  #: a device may have several parts, for `throughput`.
    outputs: tuple[str, ...] | None = None  #: the outputs of the model that requests ask for; None for all.
    #: the most devices that layers are divided among; 1: layers are not divided. None: any number for `latency`, and
    #: where no other plan fits the devices.
    ranks: int | None = None
    mode: RankMode = "exact"  #: how pieces are joined where layers are divided.


class Heads(_Checked, frozen=True, tag=True):
    """One part for each group of outputs, and one for the trunk that several of them need."""

    usage = 'Heads() or Heads((("logits",), ("boxes", "scores")))'
    #: names of outputs that stay together; outputs that no group names stay with the trunk. Empty: each output is a
    #: group of its own.
    groups: tuple[tuple[str, ...], ...] = ()


Goal = At | Into | Within | Across | Heads  #: all kinds of goals.


def counted_by(goal: Goal | None) -> tuple[Counted, ...]:
    """What a goal counts of the memory of a part: all where there are devices, nothing where there is no limit."""
    return goal.counting if isinstance(goal, Within) else COUNTING if isinstance(goal, Across) else ()


def with_less_memory(goal: Into | Within | Across, share: float) -> Into | Within | Across:
    """The goal where parts, or devices, have a share of their memory."""
    if isinstance(goal, Within):
        return replace(goal, memory_bytes=int(share * goal.memory_bytes))
    if isinstance(goal, Across):
        limits = ((one, one.memory_bytes) for one in goal.cluster.devices)
        devices = (one if size is None else replace(one, memory_bytes=int(share * size)) for one, size in limits)
        return replace(goal, cluster=replace(goal.cluster, devices=tuple(devices)))
    return goal


def is_crossings(goal: Goal) -> bool:
    """Whether it is for the fewest changes of the device: then a part may begin anywhere."""
    return isinstance(goal, Across) and goal.objective == "crossings"


class Limits(_Checked, frozen=True):
    """What constrains any goal."""

    usage = 'Limits(pins=(("node", 0),), avoid=("tensor",))'
    pins: tuple[tuple[str, int], ...] = ()  #: nodes, named as in `At`, and the part that each must be in, from 0.
    avoid: tuple[str, ...] = ()  #: nodes, named as in `At`, whose outputs must not cross a boundary.
    #: whether a layer that the model repeats may be cut; None: where that makes the plan much better.
    inside_layers: bool | None = None
    #: `auto`: a part recomputes tensors where that is cheaper than receiving them, and gives the same bits.
    #: `approximate`: also where it need not give the same bits.
    recompute: Recomputing = "auto"
    #: send float32 tensors between parts as float16, which loses precision; None: as they are.
    boundary_dtype: Literal["float16"] | None = None


def check_goal(goal: object) -> None:
    """Raise a TypeError for what is not a goal, with the goal that was probably meant; a UsageError for its numbers."""
    match goal:
        case Within(memory_bytes=number) if not 1 <= number <= MAX_BYTES:
            hint = f"allow {'less' if number > 0 else 'more'}, such as `Within('512MiB')`"
            raise UsageError(f"a part can't have {number} bytes", hint=hint)
        case Within(most_parts=int(number)) if number < 1:
            raise UsageError(f"a model can't have {number} parts", hint="allow 1 or more")
        case Into(parts=number) if number < 1:
            raise UsageError(f"a model can't be cut into {number} parts", hint="ask for 1 or more")
    if isinstance(goal, Goal):
        return
    hint = "use one of these"
    if isinstance(goal, str) or type(goal) is int:
        hint = f"did you mean {'At' if isinstance(goal, str) else 'Into'}({goal!r})?"
    elif isinstance(goal, Cluster):
        hint = "did you mean Across(cluster)?"
    raise wrong_type(goal, "a goal (At, Into, Within, Across or Heads)", hint=hint)
