"""Where outputs are to lie: parts write straight into shared memory once it is known how large their outputs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import onnxruntime as ort

from ..values import Value
from .protocol import Step
from .shared_memory import SharedMemory, TensorRef, TensorSpec, is_small, spec_of

_MOST: Final = 4096
"""So many kinds of steps are remembered."""

OutputKind = tuple[tuple[int, ...], tuple[str, ...], tuple[tuple[str, TensorSpec | None], ...]]


class OutputBuffers:
    """Learns from each step how large the outputs of the next one of its kind will be.

    Steps are of one kind that run the same parts on inputs of the same shapes. Where outputs turn out to have other
    shapes, since these hang on values, what a part makes is copied from then on.
    """

    def __init__(self, shared: SharedMemory) -> None:
        """Nothing is known yet."""
        self._shared = shared
        self._known: dict[OutputKind, dict[str, TensorSpec]] = {}

    def run(
        self,
        step: Step,
        held: Mapping[str, Value],
        work: Callable[[Mapping[str, Value]], tuple[dict[str, Value], tuple[float, ...]]],
    ) -> tuple[dict[str, TensorRef], tuple[float, ...]]:
        """Let `work` make the outputs of a step, in the room it is given for them, and say where they lie.

        Raises:
            RunError: there is no room for them.
        """
        kind = (step.parts, step.writes, tuple((name, spec_of(value)) for name, value in held.items()))
        room = self._shared.room(self._known.get(kind, {}))
        into = {name: self._shared.read(slot) for name, slot in room.items()}
        made: dict[str, Value] = {}
        try:
            made, seconds = work(into)
        finally:
            landed = {name: slot for name, slot in room.items() if made.get(name) is into[name]}
            if room and not landed:
                self._shared.free({slot.region for slot in room.values() if slot.region is not None})
        copied = {name: value for name, value in made.items() if name not in landed}
        self._learn(kind, copied, is_wrong=len(landed) < len(room))
        return landed | self._shared.write(copied), seconds

    def _learn(self, kind: OutputKind, copied: Mapping[str, Value], *, is_wrong: bool) -> None:
        if is_wrong:
            self._known[kind] = {}
        elif kind not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            forms = {name: spec_of(value) for name, value in copied.items() if isinstance(value, ort.OrtValue)}
            self._known[kind] = {name: form for name, form in forms.items() if form and not is_small(form)}
