"""Memory forecast of a run and the parts that stay loaded, from the manifest and the shapes of the inputs."""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from ...core.errors import MemoryCapError
from ...core.manifest import Cascade, Part
from ...core.units import count, size
from ..process_memory import IS_MEASURED, available_bytes, resident_bytes, unloaded_library_bytes
from ..values import symbol_sizes

_SLACK_BYTES: Final = 1 << 20  #: by so much the memory of a process differs from start to start.
_INDEX_BYTES: Final = {"int64": 8, "int32": 4}
_MAPPED_AROUND_BYTES: Final = 64 << 10  #: what a page fault maps of a file around a row.
_UNLIMITED: Final = 1 << 62  #: the available memory where the system does not report it.
_STEPS: Final = 1 << 16  #: into so many steps the budget is divided for the subset-sum problem.


class PartMemory(msgspec.Struct, frozen=True):
    """The memory of a part, in bytes, on top of what the process has otherwise."""

    loaded: int  #: as long as it is loaded: weights, and its session.
    loading: int  #: additionally while it is being loaded: the copy of the weight that is being prepacked.
    ahead: int  #: while it is prefetched, before it has run. Mapped weights are not in memory yet.
    running: int  #: additionally while it runs: activations, inputs and outputs.


class ResidencyPlan(msgspec.Struct, frozen=True):
    """Which parts stay loaded; the others are loaded for each use."""

    pinned: frozenset[int]  #: the parts that stay loaded.
    is_ahead: bool  #: the next part is loaded while one runs.
    peak_bytes: int  #: without tensors that wait for a later part.


class TensorSizes(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    tensors: Mapping[str, int]  #: inputs, outputs and boundary tensors by name.
    activations: Sequence[int]  #: what is alive at a time in each part, inputs and states included.
    fed: Sequence[int]  #: of that its inputs and states.
    is_exact: bool  #: no size was estimated.


def tensor_sizes(cascade: Cascade, shapes: Mapping[str, Sequence[int]]) -> TensorSizes:
    """The sizes of tensors for inputs of `shapes`.

    Boundary tensors are exact if their symbols occur in inputs. The manifest has the activations of a part for one
    choice of sizes. For other sizes they are scaled like the boundary tensors of the part: an underestimate where
    activations grow with the square of a size and boundary tensors don't.
    """
    planned_dims = cascade.manifest.dims
    fed_dims = {**planned_dims, **symbol_sizes(shapes, cascade.tensors)}
    planned, fed = ({n: t.bytes_for(dims) for n, t in cascade.tensors.items()} for dims in (planned_dims, fed_dims))
    activations, given = [], []
    for part in cascade.parts:
        names, memory = dict.fromkeys((*part.reads, *part.writes)), part.needed
        now, before = (sum(sizes[name][0] for name in names) for sizes in (fed, planned))
        held = memory.inputs + memory.states
        row = [number * now // before if before else number for number in (held + memory.activations, held)]
        activations.append(max(now, row[0]))
        given.append(row[1])
    is_exact = all(planned[name] == found and found[1] for name, found in fed.items())
    is_known = all(part.memory is not None for part in cascade.parts)
    sizes = {name: size for name, (size, _) in fed.items()}
    return TensorSizes(sizes, activations, given, is_exact and is_known)


def part_memory(cascade: Cascade, sizes: TensorSizes, *, prepacked: bool, is_single: bool = True) -> list[PartMemory]:
    """The memory of each part.

    With `prepacked`, weights are copied into the fastest layout one by one, so that the largest exists twice meanwhile.
    Unless `is_single`, the caller still holds the outputs for the input before.
    """
    held = 0 if is_single else sum(sizes.tensors[name] for name in cascade.manifest.writes)
    alive, last, found = _alive(cascade), len(cascade.parts) - 1, []
    for index, part in enumerate(cascade.parts):
        own, memory = {*part.reads, *part.writes}, part.needed
        # All inputs are in memory before the first part runs, and all outputs after the last.
        others = sum(sizes.tensors[name] for name in alive[index] if name not in own) if index in {0, last} else 0
        loading = memory.opening if prepacked else memory.unpacked
        loaded = memory.load - (0 if prepacked else _not_looked_up(cascade, part, sizes))
        ahead = loaded + loading if prepacked or loading else max(0, loaded - part.weight_bytes)
        alive_bytes = sizes.activations[index] + others + (held if index == last else 0)
        running = max(alive_bytes, sizes.fed[index] + loading)
        found.append(PartMemory(loaded, loading, ahead, running))
    return found


def _not_looked_up(cascade: Cascade, part: Part, sizes: TensorSizes) -> int:
    """What is not in memory of weights that are mapped, and from which rows are looked up.

    A row is looked up for each integer that the part is fed at most. The system maps 64 KiB around it.
    """
    if not part.data or not IS_MEASURED:
        return 0
    indices = (name for name in part.reads if cascade.tensors[name].dtype in _INDEX_BYTES)
    rows = sum(sizes.tensors[name] // _INDEX_BYTES[cascade.tensors[name].dtype] for name in indices)
    return max(0, part.looked_up_bytes - rows * _MAPPED_AROUND_BYTES)


def boundary_bytes(cascade: Cascade, sizes: TensorSizes) -> int:
    """The maximum over all boundaries of the bytes that wait there for one input."""
    return max(sum(sizes.tensors[name] for name in names) for names in _alive(cascade))


def _alive(cascade: Cascade) -> list[list[str]]:
    """The tensors that exist before each part runs and that it, a later part or the user reads."""
    writer = {name: index for index, part in reversed([*enumerate(cascade.parts)]) for name in part.writes}
    asked = (cascade.alive_after[0].union(cascade.parts[0].reads), *cascade.alive_after[:-1])
    return [[name for name in names if writer.get(name, -1) < index] for index, names in enumerate(asked)]


def peak_memory(needs: Sequence[PartMemory], pinned: frozenset[int], *, is_ahead: bool = False) -> int:
    """The maximum memory of the parts when they run one after another, without tensors that wait for a later part."""
    kept = sum(needs[index].loaded for index in pinned)
    peak, following = 0, None
    for index in reversed(range(len(needs))):
        need = needs[index]
        own = 0 if index in pinned else need.loaded
        prefetched = needs[following].ahead if is_ahead and following is not None else 0
        peak = max(peak, kept + own + need.loading, kept + own + need.running + prefetched)
        if index not in pinned:
            following = index
    return peak


def best_pinned(needs: Sequence[PartMemory], budget_bytes: int, once: Collection[int] = ()) -> frozenset[int]:
    """The set of parts to keep loaded so that the fewest bytes are loaded in each pass; each part alone must fit.

    Those in `once` are in the first pass only.

    Belady's rule (A study of replacement algorithms, IBM Systems Journal, 1966) evicts what is needed latest. In a
    repeated pass that is the part used last, so the rule keeps a fixed set of parts loaded and streams the others. This
    is the fixed set with the most bytes. The largest part that is streamed decides how much memory is left for the set;
    for each choice of it, filling that memory is a subset-sum problem, solved by dynamic programming to 1/65,536 of the
    memory left. Complexity: n² operations on integers of 65,536 bits, for n parts.

    Example: parts of 10, 20 and 30 bytes and a budget of 50. Keeping 30 leaves 20 to stream the others through: {2}.
    """
    best: tuple[int, tuple[int, ...]] = (0, ())
    saved = [0 if index in once else need.loaded for index, need in enumerate(needs)]
    alone = [need.loaded + max(need.loading, need.running) for need in needs]
    for largest in sorted({0, *alone}):
        forced = [index for index, need_bytes in enumerate(alone) if need_bytes > largest]
        free = [index for index, need_bytes in enumerate(alone) if need_bytes <= largest]
        working = max([largest, *(max(needs[index].loading, needs[index].running) for index in forced)])
        left = budget_bytes - working - sum(needs[index].loaded for index in forced)
        if left >= 0:
            chosen = [*forced, *(free[i] for i in _fullest_subset([saved[index] for index in free], left))]
            best = max(best, (sum(saved[index] for index in chosen), tuple(sorted(chosen))))
    return frozenset(best[1])


def _fullest_subset(sizes: Sequence[int], capacity: int) -> list[int]:
    """The indices of the sizes whose sum is largest within `capacity`, with sizes rounded up to its 65,536th part."""
    unit = capacity // _STEPS + 1
    steps = [-(-size // unit) for size in sizes]
    mask = (1 << (capacity // unit + 1)) - 1
    # Bit s of reached[i]: some of the first i sizes add up to s steps.
    reached = [*accumulate(steps, lambda sums, step: (sums | sums << step) & mask, initial=1)]
    left, chosen = reached[-1].bit_length() - 1, []
    for i in reversed(range(len(sizes))):
        if not reached[i] >> left & 1:
            chosen.append(i)
            left -= steps[i]
    return chosen


def residency_plan(
    needs: Sequence[PartMemory], budget_bytes: int, *, is_once: bool, once: Collection[int] = ()
) -> ResidencyPlan | None:
    """The parts that stay loaded within `budget_bytes`; None if not even one at a time fits.

    All parts stay if they fit. Otherwise none stays if each is used once, and the `best_pinned` if they are used again
    and again, as those in `once` are not. The next part is prefetched if that fits as well.
    """
    every = frozenset(range(len(needs)))
    if (peak := peak_memory(needs, every)) <= budget_bytes:
        return ResidencyPlan(every, is_ahead=False, peak_bytes=peak)
    if peak_memory(needs, frozenset()) > budget_bytes:
        return None
    pinned = frozenset[int]() if is_once else best_pinned(needs, budget_bytes, once)
    is_ahead = peak_memory(needs, pinned, is_ahead=True) <= budget_bytes
    return ResidencyPlan(pinned, is_ahead, peak_memory(needs, pinned, is_ahead=is_ahead))


class AvailableMemory(msgspec.Struct, frozen=True):
    """What there is for a run now."""

    memory_bytes: int | None  #: the limit of this process; None without one.
    is_exact: bool = False  #: weights are prepacked even if not all parts fit.
    #: what the process has already.
    base_bytes: int = msgspec.field(default_factory=lambda: resident_bytes() + unloaded_library_bytes())
    #: what the machine has available.
    free_bytes: int = msgspec.field(default_factory=lambda: _UNLIMITED if (free := available_bytes()) is None else free)

    @property
    def budget_bytes(self) -> int:
        """The memory for parts, activations and waiting tensors."""
        return self.free_bytes if self.memory_bytes is None else self.memory_bytes - self.base_bytes

    def error_for(self, parts_bytes: int) -> MemoryCapError | None:
        """The error if parts that need `parts_bytes` exceed the limit; else None."""
        if self.memory_bytes is None or parts_bytes <= self.budget_bytes:
            return None
        needed_bytes = self.base_bytes + parts_bytes
        allowed = needed_bytes + _SLACK_BYTES
        needed, limit = size(needed_bytes), size(self.memory_bytes)
        message = f"this run is predicted to need {needed}, more than the memory limit of {limit}"
        hint = f"allow `memory_bytes={allowed}` ({size(allowed)}) or more, or cut into more parts"
        return MemoryCapError(message, smallest_bytes=allowed, hint=hint)


class MemoryForecast(msgspec.Struct, frozen=True):
    """What a run is predicted to need."""

    memory: AvailableMemory  #: what there is.
    peak_bytes: int  #: the maximum memory of the process.
    is_estimated: bool  #: sizes had to be estimated.
    is_mapped: bool  #: weights are mapped from disk and not prepacked: results may differ, see `Runner`.
    is_single: bool  #: there is one input.
    spills: bool  #: tensors that wait for a later part are written to disk when memory is full.
    parts: int  #: the number of parts.
    plan: ResidencyPlan  #: which of them stay loaded.

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit of the process; None without one."""
        return self.memory.memory_bytes

    @property
    def is_resident(self) -> bool:
        """Do all parts stay loaded?"""
        return len(self.plan.pinned) == self.parts

    @property
    def is_tight(self) -> bool:
        """Is there a limit, or don't all parts fit?"""
        return self.memory_bytes is not None or not self.is_resident

    @property
    def residency(self) -> str:
        """Which parts stay loaded, in words."""
        kept = len(self.plan.pinned)
        if self.is_resident:
            return f"{count(self.parts, 'part')}, all stay loaded"
        words = f"{kept} of {count(self.parts, 'part')} stay loaded" if kept else "one part loaded at a time"
        return words + (", the next one is loaded ahead" if self.plan.is_ahead else "")


def predict_memory(
    cascade: Cascade,
    inputs: Mapping[str, Sequence[int]] | TensorSizes,
    memory: AvailableMemory,
    *,
    times: int | None = 1,
    is_once: bool = True,
    once: Collection[int] = (),
    prepacked: bool = True,
) -> MemoryForecast:
    """The best plan for `times` inputs (None: unknown) in `memory`, and what it is predicted to need.

    `inputs` are their shapes, or the sizes of all tensors. Each part is used once for all inputs if `is_once`, else
    once for each, those in `once` for the first one. Weights are `prepacked` if all parts fit, or if the memory
    `is_exact`. Raises MemoryCapError if the memory limit is too small.
    """
    sizes = inputs if isinstance(inputs, TensorSizes) else tensor_sizes(cascade, inputs)
    is_single, budget, is_limited = times == 1 and is_once, memory.budget_bytes, memory.memory_bytes is not None
    needs = part_memory(cascade, sizes, prepacked=prepacked, is_single=is_single)
    plan = residency_plan(needs, budget, is_once=is_once, once=once)
    if prepacked and is_limited and not memory.is_exact and (plan is None or len(plan.pinned) < len(needs)):
        prepacked, needs = False, part_memory(cascade, sizes, prepacked=False, is_single=is_single)
        plan = residency_plan(needs, budget, is_once=is_once, once=once)
    if plan is None:
        plan = ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=peak_memory(needs, frozenset()))
        if error := memory.error_for(plan.peak_bytes):
            raise error
    one, left = boundary_bytes(cascade, sizes), max(0, budget - plan.peak_bytes)
    # If parts stay loaded, inputs run one after another; otherwise all inputs wait at each boundary.
    waiting = one if len(plan.pinned) == len(needs) else one * times if times is not None else max(one, left)
    return MemoryForecast(
        memory=memory,
        peak_bytes=memory.base_bytes + plan.peak_bytes + min(left, waiting),
        is_estimated=not sizes.is_exact,
        is_mapped=not prepacked,
        is_single=is_single,
        spills=waiting > left,
        parts=len(needs),
        plan=plan,
    )
