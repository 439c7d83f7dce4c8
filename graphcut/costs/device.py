"""One machine, and how long nodes run on it by the roofline model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .weighing import Costs


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine.

    The defaults are those of a small computer with a processor of a few cores, in a wired network.

    Attributes:
        name: unique in its cluster.
        memory_bytes: what parts may use, weights and activations together; `None` for no limit.
        flops_per_s: what it reaches on this kind of model, not what its maker promises; a multiply-add is two.
        bytes_per_s: what it reads and writes of its memory.
        dispatch_s: what starting one node takes.
        link_bytes_per_s: what it sends and receives over its link, each way.
        latency_s: what one message takes on top of its bytes.
        provider: the execution provider that ONNX Runtime runs its parts with.
    """

    name: str
    memory_bytes: int | None = None
    flops_per_s: float = 1e11
    bytes_per_s: float = 2e10
    dispatch_s: float = 5e-6
    link_bytes_per_s: float = 1.25e8
    latency_s: float = 1e-4
    provider: str = "CPUExecutionProvider"

    def __post_init__(self) -> None:
        """Refuse a machine that can't be.

        Raises:
            ValueError: some number is not positive (a time may be 0). msgspec adds the place in the file.
        """
        if not self.name:
            raise ValueError("a device needs a name")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"memory_bytes of device {self.name!r} can't be {self.memory_bytes}: it is above 0")
        for field in ("flops_per_s", "bytes_per_s", "link_bytes_per_s"):
            value = getattr(self, field)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field} of device {self.name!r} can't be {value:g}: it is above 0, and finite")
        for field in ("dispatch_s", "latency_s"):
            value = getattr(self, field)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{field} of device {self.name!r} can't be {value:g}: it is 0 or more, and finite")


def run_s(costs: Costs, device: Device) -> tuple[float, ...]:
    """Seconds that each flowing node takes on `device`, one after another: aligned with `graph.flow`.

    The roofline (Williams, Waterman & Patterson, CACM 2009): the longer of computing and of moving bytes, and the
    dispatch on top. A view (`Costs.is_view`) takes nothing.
    """
    return tuple(
        0.0 if is_view else max(flops / device.flops_per_s, (weights + moved) / device.bytes_per_s) + device.dispatch_s
        for is_view, flops, weights, moved in zip(
            costs.is_view, costs.flops, costs.weight_bytes, costs.moved_bytes, strict=True
        )
    )
