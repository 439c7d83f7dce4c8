"""Devices, and the time that nodes take on them by the roofline model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

from msgspec import Struct

from ..core.manifest import HalfType, SessionSettings
from .device_rules import DeviceRules

if TYPE_CHECKING:
    from .weighing import Costs


Counted = Literal["activations", "inputs", "cache"]
"""What counts as memory of a part besides its weights: activations, inputs, KV cache.

Where nothing of it is counted, files are; else what a provider holds of weights (held_weights.py). With activations it
is the larger of these and of what opening the part takes besides.
"""

COUNTING: Final[tuple[Counted, ...]] = ("activations", "inputs", "cache")  #: all of it: the memory to run a part.


class Device(SessionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine. The defaults are those of a small computer with a few cores in a wired network."""

    name: str  #: unique in its cluster.
    #: memory that parts may use for weights and activations together; `None` for no limit.
    memory_bytes: int | None = None
    flops_per_s: float = 1e11  #: sustained, not peak, floating-point operations per second; a multiply-add is two.
    bytes_per_s: float = 2e10  #: memory bandwidth.
    dispatch_s: float = 5e-6  #: overhead of starting a node, in seconds.
    link_bytes_per_s: float = 1.25e8  #: bandwidth of its network link, in each direction.
    latency_s: float = 1e-4  #: overhead of a message, in seconds.
    rules: DeviceRules | None = None  #: which nodes it can run; None for all. A cluster file names a rule file.
    compiles: bool = False  #: whether `compiled` tries its parts with its provider; commands that plan do.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ValueError("a device needs a name")
        above_0 = ("memory_bytes", "flops_per_s", "bytes_per_s", "link_bytes_per_s")
        check_finite(self, f"device {self.name!r}", above_0=above_0, from_0=("dispatch_s", "latency_s"))


def least_widening(devices: Sequence[Device]) -> Device:
    """A device that holds no more of any weight than each of these."""
    if other := next((device for device in devices if device.widened is None), None):
        return other
    native = {dtype for device in devices for dtype in device.native}
    return Device(name="least", native=tuple(dtype for dtype in get_args(HalfType) if dtype in native))


NodeSeconds = Callable[[Device], Sequence[float]]  #: the seconds of each flowing node of a model on a device.


def check_finite(record: Struct, what: str, *, above_0: Collection[str] = (), from_0: Collection[str] = ()) -> None:
    """Raise a ValueError if a field of `what` has a number that is infinite, negative, or 0 though it must be above.

    Numbers beyond 1e±30 are refused too: products and quotients of them leave the range of floats.
    """
    for field in (*above_0, *from_0):
        value, bound = getattr(record, field), "of 0 or more" if field in from_0 else "above 0"
        if value is not None and not (1e-30 <= value <= 1e30 or (value == 0 and field in from_0)):
            is_extreme = 0 < value < float("inf")
            expected = "a number from 1e-30 to 1e30" if is_extreme else f"a finite number {bound}"
            raise ValueError(f"{field} of {what} can't be {value:g}: expected {expected}")


def run_s(costs: Costs, device: Device) -> tuple[float, ...]:
    """Seconds that each flowing node takes on `device`, in the order of `graph.flow`.

    The roofline model (Williams, Waterman and Patterson, CACM 2009) with an overhead: the longer of FLOPs over
    `flops_per_s` and of bytes over `bytes_per_s`, plus `dispatch_s`. A view (`Costs.is_view`) takes no time.
    """
    nodes = zip(costs.is_view, costs.flops, costs.weight_bytes, costs.moved_bytes, strict=True)
    return tuple(
        0.0 if is_view else max(flops / device.flops_per_s, (weights + moved) / device.bytes_per_s) + device.dispatch_s
        for is_view, flops, weights, moved in nodes
    )
