"""The parts that are loaded in this process: those that stay, the one that runs, and the next one."""

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import msgspec

from ...core.manifest import Cascade
from ..process_memory import return_freed_memory, return_large_blocks
from ..providers import NodesByProvider
from ..stage import SessionConfig, Stage
from ..values import Value, Values
from .memory_plan import MemoryForecast, ResidencyPlan


class LoadedParts:
    """Loads and drops the parts of a cascade according to a `ResidencyPlan`."""

    def __init__(self, cascade: Cascade) -> None:
        self._cascade = cascade
        self._config = SessionConfig()
        self.plan = ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=0)
        #: how many nodes each provider took, of the parts whose provider did not take all, by index.
        self.placements: dict[int, NodesByProvider] = {}
        self.copied_bytes = 0  #: see `Runner`.
        self.taken: Collection[int] = range(len(cascade.parts))  #: the parts that this pass takes.
        self._loaded: dict[int, Stage] = {}
        self._last = 0  # the part that was taken last
        self._prefetched: dict[int, Future[Stage]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def follow(self, forecast: MemoryForecast, config: SessionConfig) -> None:
        """Follow the plan of `forecast` from now on; if memory is short, sessions get no arena.

        Drops the parts that it does not keep or that were loaded differently.
        """
        is_prepacked = config.prepacked and not forecast.is_mapped
        config = replace(config, arena=config.arena and not forecast.is_tight, prepacked=is_prepacked)
        if forecast.is_tight:
            return_large_blocks()
        wanted = forecast.plan.pinned if config == self._config else frozenset[int]()
        self._drop([index for index in self._loaded if index not in wanted])
        self.plan, self._config = forecast.plan, config

    def load_all(self, threads: int) -> None:
        """Load all parts, so many at a time."""
        missing = [index for index in range(len(self._cascade.parts)) if index not in self._loaded]
        with ThreadPoolExecutor(threads) as pool:
            self._loaded.update(zip(missing, pool.map(self._load, missing), strict=True))

    def stop_ahead(self) -> None:
        """Load nothing ahead for the rest of this pass, and drop what was."""
        self.plan = msgspec.structs.replace(self.plan, is_ahead=False)
        self._drop_prefetched()

    def take(self, index: int) -> Stage:
        """The part at `index`, loaded. Drops the one before, and begins to load the next one, as the plan says."""
        if index != self._last:
            self._leave()
        self._last = index
        coming = self._prefetched.pop(index, None)
        if index not in self._loaded:
            self._loaded[index] = coming.result() if coming else self._load(index)
        if self.plan.is_ahead:
            streamed = (i for i in range(index + 1, len(self._cascade.parts)) if i not in self.plan.pinned)
            if (following := next(streamed, None)) is not None and following in self.taken:
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="graphcut load")
                if following not in self._prefetched:
                    self._prefetched[following] = self._thread.submit(self._load, following)
        return self._loaded[index]

    def step(self, index: int, values: Values, *, stays: Collection[str] | None = None) -> dict[str, Value]:
        """Run a part, see `Stage.step`."""
        stage = self.take(index)
        outputs = stage.step(values, stays=stays)
        self.copied_bytes += stage.copied_bytes(values, outputs)
        return outputs

    def end_pass(self) -> None:
        """Drop the part that was taken last unless it stays, and what was loaded ahead and not used."""
        self._leave()
        self._drop_prefetched()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def close(self) -> None:
        self._drop(list(self._loaded))

    def _load(self, index: int) -> Stage:
        stage = Stage(self._cascade, self._cascade.parts[index], config=self._config)
        if stage.nodes_by_provider:
            self.placements[index] = stage.nodes_by_provider
        return stage

    def _leave(self) -> None:
        if self._last not in self.plan.pinned and self._last in self._loaded:
            self._drop([self._last])

    def _drop_prefetched(self) -> None:
        if not self._prefetched:
            return  # returning freed memory takes time, in this run and in the next
        for future in self._prefetched.values():
            if not future.cancel() and future.exception() is None:
                future.result().close()
        self._prefetched.clear()
        return_freed_memory()

    def _drop(self, indices: list[int]) -> None:
        for index in indices:
            self._loaded.pop(index).close()
        if indices:
            return_freed_memory()
