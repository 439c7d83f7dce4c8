"""A cascade that is run many times in one process: parts stay loaded while they fit, and memory keeps to its cap."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any, Final, Self

import onnxruntime as ort

from ...core.errors import RunError
from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Value, to_array
from .layerwise import LayerwisePass, OnError, Outputs
from .memory_plan import (
    AvailableMemory,
    MemoryForecast,
    ResidencyPlan,
    needs_of,
    peak_of,
    predict_memory,
    refusal,
    sizes_for,
)
from .process_memory import (
    PeakMemory,
    available_bytes,
    code_to_come_bytes,
    give_back,
    keep_nothing_large,
    resident_bytes,
)
from .sequential import input_values, run_sequentially
from .spilling import SpillStore

Feeds = Mapping[str, object]

_NO_LIMIT: Final = 1 << 62
"""What may be taken where the system does not say what is free."""


def run(
    cascade: Cascade,
    feeds: Mapping[str, object],
    *,
    config: SessionConfig | None = None,
    memory_bytes: int | None = None,
    exact: bool = False,
) -> dict[str, Any]:
    """The model's outputs for `feeds`, worked out part by part; one part is loaded at a time.

    To run more than once, use a `Runner`, which keeps parts loaded.

    Args:
        cascade: from `split` or `open_cascade`.
        feeds: the model's inputs by name: numpy arrays; lists for sequences, dicts for maps, None for an optional
            without value. bfloat16 and 8-bit floats as ml_dtypes arrays or as their bits.
        config: how sessions are built.
        memory_bytes: what this process may have at most, with all that it has already; see `Runner`.
        exact: bit for bit what the whole model gives, under a cap too; see `Runner`.

    Returns:
        The model's outputs by name, in its order.

    Raises:
        RunError: an input is missing, unknown or of the wrong type, a part fails, or the cap can't hold.
    """
    if memory_bytes is not None:
        with Runner(cascade, config=config, memory_bytes=memory_bytes, exact=exact) as runner:
            (outputs,) = runner.run_all([feeds])
            return outputs  # type: ignore[return-value]
    *_, held = run_sequentially(cascade, feeds, config=config or SessionConfig())
    return {name: to_array(held[name], cascade.tensors[name]) for name in cascade.manifest.writes}


class Runner:
    """Runs a cascade in this process. Parts stay loaded from run to run as far as memory allows.

    Used in a `with`, or ended by `close`. One run at a time.

    Without a cap all parts stay loaded if this machine has memory for them; else as many as it has memory for.

    With a cap the whole process keeps to it, so that what is there already counts too. That is predicted from the
    manifest, and a cap that can't hold is refused before any work. Where not all parts fit, weights are read where
    they lie on disk, without rearranging them: loading takes next to no time, and results may differ in the last bits.

    Attributes:
        forecast: what the last run was predicted to take; None before the first.
    """

    def __init__(
        self,
        cascade: Cascade,
        *,
        config: SessionConfig | None = None,
        memory_bytes: int | None = None,
        exact: bool = False,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            cascade: from `split` or `open_cascade`.
            config: how sessions are built. Where memory is short, it is without an arena.
            memory_bytes: what this process may have, with all that it has already.
            exact: rearrange weights even where not all parts fit: bit for bit what the whole model gives, at the price
                of doing it again whenever a part is loaded, and of room for the largest weight once more.
        """
        self.forecast: MemoryForecast | None = None
        self._cascade = cascade
        self._policy = config or SessionConfig()
        self._exact = exact
        base = resident_bytes() + code_to_come_bytes()
        self._room = AvailableMemory(base, memory_bytes, _NO_LIMIT if (free := available_bytes()) is None else free)
        self._stages = _Stages(cascade)
        self._peak: PeakMemory | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all parts."""
        self._stages.close()

    @property
    def peak(self) -> PeakMemory | None:
        """The most memory that this process had since the first run; None without a cap."""
        return self._peak

    def run(self, feeds: Feeds) -> Outputs:
        """The model's outputs for `feeds`, as `graphcut.run` gives them.

        Raises:
            RunError: the cap can't hold; an input is missing, unknown or of the wrong type; a part fails.
        """
        fed = input_values(self._cascade, feeds)
        forecast = self._foresee(fed, times=1, is_once=False)
        (outputs,) = self._round([fed], forecast, "raise")
        return outputs  # type: ignore[return-value]  # errors are raised

    def run_all(self, feeds: Iterable[Feeds], *, on_error: OnError = "raise") -> Generator[Outputs | RunError]:
        """The model's outputs for each of `feeds`, in order.

        Where all parts stay loaded, the inputs go through them one by one, and are fetched one by one. Else each part
        is loaded once and all inputs run through it, which is the fewest loads; tensors wait between parts in
        memory, and in a temporary folder where there is no room; the outputs come while the last part runs.

        Args:
            feeds: the inputs by name, for each run.
            on_error: `raise` what goes wrong with an input, or give the error in place of its outputs and go on.

        Raises:
            RunError: at once where the cap can't hold for the first input; then as for `run`.
        """
        times = len(feeds) if isinstance(feeds, Sized) else None
        inputs = self._opened(feeds)
        bad = []
        for fed in inputs:
            if not isinstance(fed, RunError):
                break
            if on_error == "raise":
                raise fed
            bad.append(fed)
        else:
            return (error for error in bad)
        forecast = self._foresee(fed, times=times, is_once=True)
        everything = chain(bad, [fed], inputs)
        if forecast.is_resident:
            return (answer for one in everything for answer in self._next(one, on_error))
        return self._round(everything, forecast, on_error)

    def _opened(self, feeds: Iterable[Feeds]) -> Iterator[dict[str, Value] | RunError]:
        for feed in feeds:
            try:
                fed = input_values(self._cascade, feed)
            except RunError as error:
                yield error
            else:
                yield fed

    def _next(self, fed: dict[str, Value] | RunError, on_error: OnError) -> Iterator[Outputs | RunError]:
        """One more input, where parts stay."""
        if isinstance(fed, RunError):
            if on_error == "raise":
                raise fed
            yield fed
            return
        try:
            forecast = self._foresee(fed, times=1, is_once=False)
        except RunError as error:
            if on_error == "raise":
                raise
            yield error
            return
        yield from self._round([fed], forecast, on_error)

    def _admitted(
        self, inputs: Iterable[dict[str, Value] | RunError], forecast: MemoryForecast, shelf: SpillStore
    ) -> Iterator[dict[str, Value] | RunError]:
        """The inputs; room is made for those larger than the first, and an error stands for what the cap can't hold."""
        room, pinned, most = forecast.room_bytes, forecast.schedule.pinned, forecast.schedule.peak_bytes
        for fed in inputs:
            if isinstance(fed, RunError):
                yield fed
                continue
            sizes = sizes_for(self._cascade, _shapes(fed))
            needs = needs_of(self._cascade, sizes, prepacked=not forecast.is_mapped, is_alone=forecast.is_alone)
            if self._stages.is_ahead and peak_of(needs, pinned, is_ahead=True) > room:
                self._stages.stop_ahead()
            peak = peak_of(needs, pinned, is_ahead=self._stages.is_ahead)
            if forecast.memory_bytes is not None and peak > room:
                yield refusal(forecast.memory_bytes, self._room.base_bytes + peak)
                continue
            most = max(most, peak)
            shelf.shrink(max(0, room - most))
            yield fed

    def _foresee(self, fed: Mapping[str, Value], *, times: int | None, is_once: bool) -> MemoryForecast:
        self.forecast = predict_memory(
            self._cascade,
            _shapes(fed),
            self._room,
            times=times,
            is_once=is_once,
            prepacked=self._policy.prepacked,
            exact=self._exact,
        )
        return self.forecast

    def _round(
        self, inputs: Iterable[dict[str, Value] | RunError], forecast: MemoryForecast, on_error: OnError
    ) -> Generator[Outputs | RunError]:
        is_tight = forecast.memory_bytes is not None or not forecast.is_resident
        config = replace(
            self._policy,
            arena=self._policy.arena and not is_tight,
            prepacked=self._policy.prepacked and not forecast.is_mapped,
        )
        if is_tight:
            keep_nothing_large()
        if forecast.memory_bytes is not None and self._peak is None:
            self._peak = PeakMemory()
        self._stages.keep_to(forecast.schedule, config)
        with SpillStore(self._cascade.tensors, forecast.shelf_bytes) as shelf:
            try:
                admitted = self._admitted(inputs, forecast, shelf)
                yield from LayerwisePass(self._cascade, shelf, on_error=on_error).run(admitted, self._stages)
            finally:
                self._stages.end_round()


def _shapes(fed: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape()) for name, value in fed.items() if isinstance(value, ort.OrtValue)}


class _Stages:
    """Parts that are loaded: those that stay, the one that runs, and the next."""

    def __init__(self, cascade: Cascade) -> None:
        self._cascade = cascade
        self._policy = SessionConfig()
        self._schedule = ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=0)
        self._loaded: dict[int, Stage] = {}
        self._coming: dict[int, Future[Stage]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def keep_to(self, schedule: ResidencyPlan, config: SessionConfig) -> None:
        """From now on; parts that are loaded otherwise are dropped."""
        wanted = schedule.pinned if config == self._policy else frozenset[int]()
        self._drop([place for place in self._loaded if place not in wanted])
        self._schedule, self._policy = schedule, config

    @property
    def is_ahead(self) -> bool:
        """Is the next part loaded while one runs?"""
        return self._schedule.is_ahead

    def stop_ahead(self) -> None:
        """Load nothing ahead any more in this round, and drop what was."""
        self._schedule = replace(self._schedule, is_ahead=False)
        self._drop_coming()

    def take(self, place: int) -> Stage:
        """See `Loader`. The next one begins to load, if it may."""
        coming = self._coming.pop(place, None)
        if place not in self._loaded:
            self._loaded[place] = coming.result() if coming else self._load(place)
        streamed = (i for i in range(place + 1, len(self._cascade.parts)) if i not in self._schedule.pinned)
        if self._schedule.is_ahead and (following := next(streamed, None)) is not None:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="graphcut load")
            if following not in self._coming:
                self._coming[following] = self._thread.submit(self._load, following)
        return self._loaded[place]

    def leave(self, place: int) -> None:
        """See `Loader`."""
        if place not in self._schedule.pinned:
            self._drop([place])

    def end_round(self) -> None:
        """Drop what was loaded ahead and is not wanted any more."""
        self._drop_coming()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def close(self) -> None:
        """Drop all."""
        self._drop(list(self._loaded))

    def _load(self, place: int) -> Stage:
        return Stage(self._cascade, self._cascade.parts[place], config=self._policy)

    def _drop_coming(self) -> None:
        for future in self._coming.values():
            if not future.cancel() and future.exception() is None:
                future.result().close()
        self._coming.clear()
        give_back()

    def _drop(self, places: list[int]) -> None:
        for place in places:
            self._loaded.pop(place).close()
        if places:
            give_back()
