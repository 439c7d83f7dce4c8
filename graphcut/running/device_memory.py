"""Which memory the tensors between parts are in: that of the device on which a part writes and another reads them.

All else is in the CPU's memory: what a user feeds and reads, and what types that numpy lacks have, which ONNX Runtime's
Python interface can't copy from a device.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import onnxruntime as ort

from ..core.manifest import Cascade, Part
from ..core.tensors import NON_NUMPY_TYPES, Tensor
from .providers import facts_of
from .values import Value, is_numeric_tensor


class DeviceMemory(NamedTuple):
    """A memory to which ONNX Runtime writes tensors."""

    kind: str = "cpu"  #: as ONNX Runtime calls it.
    number: str = "0"  #: which of several devices, the option `device_id` of their provider.

    @property
    def device(self) -> Any:  # noqa: ANN401 - untyped
        """It, as ONNX Runtime takes it."""
        return ort.OrtDevice.make(self.kind, int(self.number))._get_c_device()  # noqa: SLF001 - see `CPU_MEMORY`

    def copied_bytes(self, values: Iterable[Value]) -> int:
        """The bytes that are copied for a part whose device has this memory, since it reads or writes them elsewhere.

        Between two devices a tensor is copied twice, by way of the CPU's memory.
        """
        places = [(value, value.memory if isinstance(value, DeviceTensor) else OF_CPU) for value in values]
        copied = [(value, there) for value, there in places if there != self and isinstance(value, ort.OrtValue)]
        return sum(value.tensor_size_in_bytes() * (1 if OF_CPU in {there, self} else 2) for value, there in copied)

    def readable(self, value: Value) -> Value:
        """A value for such a part: in this memory, or in the CPU's, from which ONNX Runtime copies it."""
        is_elsewhere = isinstance(value, DeviceTensor) and value.memory != self
        return ort.OrtValue.ortvalue_from_numpy(value.numpy()) if is_elsewhere else value


OF_CPU: Final = DeviceMemory()


class DeviceTensor(ort.OrtValue):  # type: ignore[misc]  # onnxruntime has no types
    """A tensor of numbers in the memory of a device."""

    def __init__(self, value: object, memory: DeviceMemory) -> None:
        super().__init__(value)
        self.memory = memory


def device_memory(provider: str, options: Mapping[str, str]) -> DeviceMemory:
    """The memory in which a provider computes; of one whose memory can't be reached from Python that of the CPU."""
    return DeviceMemory("cuda", options.get("device_id", "0")) if facts_of(provider).device == "cuda" else OF_CPU


def can_stay(tensor: Tensor) -> bool:
    """Whether a tensor can be in the memory of a device."""
    return is_numeric_tensor(tensor) and tensor.dtype not in NON_NUMPY_TYPES


def read_on_device(
    cascade: Cascade, part: Part, memory: DeviceMemory, others: Iterable[tuple[Part, DeviceMemory]]
) -> Collection[str]:
    """The outputs of a part that stay in the `memory` of its device, since others on the device read them.

    The outputs of the model don't.
    """
    read = {name for other, place in others if place == memory != OF_CPU for name in other.reads}
    read -= {*cascade.manifest.writes}
    return frozenset(name for name in part.writes if name in read and can_stay(cascade.tensors[name]))
