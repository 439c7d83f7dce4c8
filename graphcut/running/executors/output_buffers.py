"""Preallocated output buffers: parts write into shared memory directly once the shapes of their outputs are known."""

from collections.abc import Callable, Mapping
from typing import Final

from ..values import Value
from .protocol import Step
from .shared_memory import SharedMemory, TensorRef, TensorSpec, spec_of

_MAX_SIGNATURES: Final = 4096  #: when this many are known, all are dropped.

Signature = tuple[tuple[int, ...], tuple[str, ...], tuple[tuple[str, TensorSpec | None], ...]]
"""The parts of a step, its outputs, and the specs of its inputs. Steps of one signature mostly have equal outputs."""


class OutputBuffers:
    """Predicts the output shapes of a step from those of the last step with the same signature.

    Where a prediction was wrong, since shapes depend on values, the outputs of that signature are copied from then on.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._known: dict[Signature, dict[str, TensorSpec]] = {}

    def run(
        self,
        step: Step,
        inputs: Mapping[str, Value],
        run_step: Callable[[Mapping[str, Value]], tuple[dict[str, Value], tuple[float, ...]]],
    ) -> tuple[dict[str, TensorRef], tuple[float, ...]]:
        """Call `run_step` with output buffers, and return refs to the outputs, and the seconds that it returned."""
        signature = (step.parts, step.writes, tuple((name, spec_of(value)) for name, value in inputs.items()))
        refs = self._shared.allocate(self._known.get(signature, {}))
        buffers = {name: self._shared.read(ref) for name, ref in refs.items()}
        outputs: dict[str, Value] = {}
        try:
            outputs, seconds = run_step(buffers)
        finally:
            used = {name: ref for name, ref in refs.items() if outputs.get(name) is buffers[name]}
            if refs and not used:
                self._shared.free({ref.region for ref in refs.values() if ref.region is not None})
        copied = {name: value for name, value in outputs.items() if name not in used}
        if len(used) < len(refs):
            self._known[signature] = {}
        elif signature not in self._known:
            self._learn(signature, copied)
        return used | self._shared.write(copied), seconds

    def _learn(self, signature: Signature, outputs: Mapping[str, Value]) -> None:
        if len(self._known) >= _MAX_SIGNATURES:
            self._known.clear()
        specs = {name: spec_of(value) for name, value in outputs.items()}
        self._known[signature] = {name: spec for name, spec in specs.items() if spec and not spec.is_inline}
