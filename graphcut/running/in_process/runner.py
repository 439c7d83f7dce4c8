"""Running a cascade in this process, once or many times, within a memory limit."""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import chain

import onnxruntime as ort
from msgspec.structs import replace

from ...core.arguments import OnError
from ...core.errors import RunError, check_word
from ...core.manifest import CascadeLike
from ...core.present_parts import open_present
from ..process_memory import PeakMemory
from ..stage import SessionConfig
from ..values import Feeds, Outputs, UserInputs, Value, outputs_of, shape_of
from .layerwise import LayerwisePass
from .loaded_parts import LoadedParts
from .looping import run_loop
from .memory_plan import (
    AvailableMemory,
    MemoryForecast,
    boundary_bytes,
    part_memory,
    peak_memory,
    predict_memory,
    tensor_sizes,
)
from .sequential import input_values, run_sequentially, run_stages
from .spilling import SpillStore

_Input = dict[str, Value] | RunError  #: what is fed, or why it can't be.


def run(
    cascade: CascadeLike,
    feeds: Feeds,
    *,
    config: SessionConfig | None = None,
    memory_bytes: int | None = None,
    exact: bool = False,
) -> Outputs:
    """The model's outputs for `feeds`. Runs part by part, with one part loaded at a time.

    To run more than once, use a `Runner`, which keeps parts loaded.

    Args:
        cascade: a cascade or its path; in a folder with some of the parts, these are run (`fetch`).
        feeds: the model's inputs by name: numpy arrays; lists for sequences, dicts for maps, None for an optional
            without value. bfloat16 and 8-bit floats as ml_dtypes arrays or as their bits.
        config: how sessions are built.
        memory_bytes: memory limit of this process; see `Runner`.
        exact: see `Runner`.

    Returns:
        The model's outputs by name, in its order.

    Raises:
        RunError: an input is missing, unknown or of the wrong type; a part fails; or the memory limit is too small.
    """
    cascade = open_present(cascade)
    if memory_bytes is not None or cascade.manifest.loop is not None:
        with Runner(cascade, config=config, memory_bytes=memory_bytes, exact=exact) as runner:
            (outputs,) = runner.run_all([feeds])
            return outputs  # type: ignore[return-value]  # errors are raised
    return outputs_of(cascade, _last(run_sequentially(cascade, feeds, config=config or SessionConfig())))


class Runner(AbstractContextManager["Runner"]):
    """Runs a cascade in this process, one run at a time. Parts stay loaded between runs as far as memory allows.

    A context manager; or call `close`.

    Without a memory limit all parts stay loaded if the available memory suffices, else as many as fit. They are loaded
    at the same time if it also suffices for a copy of the largest weight on each core.

    A memory limit is for the whole process, including what it has already. The need is predicted from the manifest, and
    a limit that is too small is refused before anything runs. If not all parts fit, weights are mapped from disk and
    not prepacked: loading is fast, and results may differ in the last bits.

    Side effects: when memory is limited or not all parts fit, the first run changes the C library's allocator for the
    rest of the process's life (mallopt, see `return_large_blocks`). With a memory limit it also resets the process's
    peak memory counter (VmHWM, see `PeakMemory`).

    Attributes:
        forecast: the predicted memory of the last run; None before the first.
        peak: the maximum memory of this process since the first run; None without a memory limit.
        placements: how many nodes each execution provider took, for the parts whose provider did not take all, by
            index.
        copied_bytes: the bytes of tensors that were copied between the CPU's memory and that of devices.
    """

    def __init__(
        self,
        cascade: CascadeLike,
        *,
        config: SessionConfig | None = None,
        memory_bytes: int | None = None,
        exact: bool = False,
    ) -> None:
        """Loads nothing yet.

        Args:
            cascade: a cascade or its path.
            config: how sessions are built. If memory is short, they are built without an arena.
            memory_bytes: memory limit of this process.
            exact: prepack weights even if not all parts fit. Results are then those of a run without a memory limit,
                bit for bit. Loading takes longer, and memory for a copy of the largest weight.
        """
        self.forecast: MemoryForecast | None = None
        #: the arguments for which it was predicted: those of most runs are the same.
        self._predicted: tuple[dict[str, tuple[int, ...]], int | None, bool] | None = None
        self.peak: PeakMemory | None = None
        self._followed: MemoryForecast | None = None
        self._cascade = cascade = open_present(cascade)
        self._config = config or SessionConfig()
        self._limit = memory_bytes, exact
        self._parts = LoadedParts(cascade)
        self.placements = self._parts.placements

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def copied_bytes(self) -> int:
        """See above."""
        return self._parts.copied_bytes

    @cached_property
    def _memory(self) -> AvailableMemory:
        """What there was when the first input had been read: reading it may load modules."""
        return AvailableMemory(*self._limit)

    def close(self) -> None:
        """Drop all parts."""
        self._parts.close()

    def run(self, feeds: Feeds) -> Outputs:
        """The model's outputs for `feeds`, as `graphcut.run` returns them, with its errors."""
        (outputs,) = self._run_one(input_values(self._cascade, feeds), "raise")
        return outputs  # type: ignore[return-value]  # errors are raised

    def run_all(self, feeds: Iterable[Feeds], *, on_error: OnError = "raise") -> Generator[Outputs | RunError]:
        """The model's outputs for each of `feeds`, in order.

        If all parts stay loaded, inputs are fetched and run one by one. Otherwise this is a layer-wise pass: each part
        is loaded once and all inputs run through it. Tensors wait between parts in memory, and in a temporary folder
        when memory is full. Outputs come while the last part runs.

        Args:
            feeds: the inputs by name, for each run.
            on_error: what to do with an input that fails.

        Raises:
            UsageError: there is no such `on_error`.
            RunError: at once if the memory limit is too small for the first input; then as for `run`.
        """
        check_word(on_error, OnError, "on_error")
        times = len(feeds) if isinstance(feeds, Sized) else None
        source = UserInputs(feeds)
        inputs = map(self._input_values, source)
        bad = []
        for first in inputs:
            if not isinstance(first, RunError):
                break
            if on_error == "raise":
                raise first
            bad.append(first)
        else:
            return _then_check(iter(bad), source)
        forecast = self._predict(first, times=times, is_once=True)
        everything = chain(bad, [first], inputs)
        if forecast.is_resident or self._cascade.manifest.loop is not None:
            answers = (one for values in everything for one in self._run_one(values, on_error, is_once=times == 1))
            return _then_check(answers, source)
        return _then_check(self._pass(everything, forecast, on_error), source)

    def _input_values(self, feeds: Feeds) -> _Input:
        try:
            return input_values(self._cascade, feeds)
        except RunError as error:
            return error

    def _run_one(self, values: _Input, on_error: OnError, *, is_once: bool = False) -> Iterator[Outputs | RunError]:
        try:
            if isinstance(values, RunError):
                raise values
            forecast = self._predict(values, times=1, is_once=is_once)
            cascade, has_loop = self._cascade, self._cascade.manifest.loop is not None
            if has_loop or (forecast.is_resident and not forecast.spills):
                self._follow(forecast)
                run = self._parts.step
                found = run_loop(cascade, values, run) if has_loop else _last(run_stages(cascade, values, run))
                yield outputs_of(cascade, found)
                self._parts.end_pass()
                return
        except RunError as error:
            if on_error == "raise":
                raise
            yield error
        else:
            yield from self._pass([values], forecast, on_error)

    def _admitted(self, inputs: Iterable[_Input], forecast: MemoryForecast, store: SpillStore) -> Iterable[_Input]:
        """The inputs. For one larger than the first, memory is freed; one too large for the limit becomes an error."""
        memory, pinned, most = forecast.memory, forecast.plan.pinned, forecast.plan.peak_bytes
        for values in inputs:
            if isinstance(values, RunError):
                yield values
                continue
            sizes = tensor_sizes(self._cascade, _shapes(values))
            needs = part_memory(self._cascade, sizes, prepacked=not forecast.is_mapped, is_single=forecast.is_single)
            if self._parts.plan.is_ahead and peak_memory(needs, pinned, is_ahead=True) > memory.budget_bytes:
                self._parts.stop_ahead()
            peak = peak_memory(needs, pinned, is_ahead=self._parts.plan.is_ahead)
            if error := memory.error_for(peak):
                yield error
                continue
            most = max(most, peak)
            store.shrink(max(0, memory.budget_bytes - most))
            yield values

    def _predict(self, values: Mapping[str, Value], *, times: int | None, is_once: bool) -> MemoryForecast:
        cascade, shapes = self._cascade, _shapes(values)
        if (shapes, times, is_once) != self._predicted or self.forecast is None:
            now, prepacked = self._memory, self._config.prepacked
            if cascade.manifest.loop is not None:  # what steps read again stays in memory
                kept_bytes = boundary_bytes(cascade, tensor_sizes(cascade, shapes))
                now = replace(now, base_bytes=now.base_bytes + kept_bytes)
            self.forecast = predict_memory(cascade, shapes, now, times=times, is_once=is_once, prepacked=prepacked)
            self._predicted = shapes, times, is_once
        return self.forecast

    def _follow(self, forecast: MemoryForecast) -> None:
        """Load and drop parts as `forecast` says from now on."""
        if forecast is self._followed:
            return
        if forecast.memory_bytes is not None and self.peak is None:
            self.peak = PeakMemory()
        self._parts.follow(forecast, self._config)
        cores = os.cpu_count() or 1
        copies = cores * max(part.largest_weight_bytes for part in self._cascade.parts)
        if not forecast.is_tight and forecast.plan.peak_bytes + copies <= forecast.memory.budget_bytes:
            self._parts.load_all(cores)
        self._followed = forecast

    def _pass(
        self, inputs: Iterable[_Input], forecast: MemoryForecast, on_error: OnError
    ) -> Generator[Outputs | RunError]:
        self._follow(forecast)
        left_bytes = max(0, forecast.memory.budget_bytes - forecast.plan.peak_bytes)
        with SpillStore(self._cascade.tensors, left_bytes) as store:
            try:
                admitted = self._admitted(inputs, forecast, store)
                yield from LayerwisePass(self._cascade, store, on_error=on_error).run(admitted, self._parts)
            finally:
                self._parts.end_pass()


def _then_check(answers: Iterator[Outputs | RunError], source: UserInputs) -> Generator[Outputs | RunError]:
    yield from answers
    source.check()


def _last(boundaries: Iterable[dict[str, Value]]) -> dict[str, Value]:
    """The values at the last boundary; those at the others are not kept."""
    return deque(boundaries, maxlen=1).pop()


def _shapes(values: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    return {name: shape_of(value) for name, value in values.items() if isinstance(value, ort.OrtValue)}
