"""A worker in a memory limit: parts are loaded for each step, as far as they don't stay loaded."""

from types import MappingProxyType

from ...core.manifest import Cascade
from ...running.in_process.loaded_parts import LoadedParts
from ...running.in_process.memory_plan import MemoryForecast
from ...running.process_memory import PeakMemory
from ...running.providers import NodesByProvider
from ...running.stage import SessionConfig
from ...running.values import Value, Values
from .protocol import Step
from .worker import Report, StatesByPart, Worker


class LimitedWorker(Worker):
    """A worker that has all parts of a cascade, and follows a memory forecast.

    It holds none: each is taken for its step, and one that does not stay loaded is dropped when the next one is taken.

    Attributes:
        forecast: what is predicted.
        peak: the maximum memory of this process since parts were first held; None before.
    """

    binds = False  # parts come and go

    def __init__(self, cascade: Cascade, states: StatesByPart, config: SessionConfig, forecast: MemoryForecast) -> None:
        """Loads nothing yet."""
        self._parts = LoadedParts(cascade)
        super().__init__(cascade, states, self._parts.take)
        self.forecast = forecast
        self.peak: PeakMemory | None = None
        self._config = config

    def hold(self, parts: frozenset[int]) -> None:
        """Begin, or drop everything if there are no `parts`. They are loaded when they are used."""
        if parts:
            self.peak = PeakMemory()
            self._parts.follow(self.forecast, self._config)
        else:
            self._parts.end_pass()
            self._parts.close()

    def run(
        self, step: Step, inputs: Values, buffers: Values = MappingProxyType({}), report: Report | None = None
    ) -> tuple[dict[str, Value], tuple[float, ...]]:
        self._parts.taken = step.parts
        return super().run(step, inputs, buffers, report)

    @property
    def placements(self) -> dict[int, NodesByProvider]:
        """As those of a worker, of all parts that were loaded so far."""
        return self._parts.placements
