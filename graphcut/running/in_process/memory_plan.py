"""Which parts stay loaded, so that a process keeps to its memory: predicted from the manifest, before any work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...core.errors import MemoryCapError
from ...core.manifest import Cascade, Part
from ...core.units import count
from ...core.wiring import Tensor

_SESSION_BYTES: Final = 2 << 20
"""What a session takes besides weights and nodes: its threads, its part's message. Measured: 1 to 1.8 MiB."""

_NODE_BYTES: Final = 4 << 10
"""What a session takes for each node. Measured on 29,236 nodes: 3.6 KiB."""

_HALVES: Final = ("float16", "bfloat16")
"""Where the processor has no kernels for these, ONNX Runtime keeps the weights as float32, and takes twice as much."""

_UNITS: Final = 1 << 16
"""Into how many steps room is divided where parts are chosen that fill it best."""


@dataclass(frozen=True, slots=True)
class PartMemory:
    """What a part takes, in bytes, on top of what else is there.

    Attributes:
        loaded: from when it is loaded until it is dropped: weights, and what its session keeps of its own.
        loading: once more while it is loaded and weights are rearranged.
        ahead: while it is loaded ahead, and has not run: weights that are mapped are not in memory yet.
        running: while it runs: activations, with what it is fed and what it gives out.
    """

    loaded: int
    loading: int
    ahead: int
    running: int


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """Which parts stay, and what that takes.

    Attributes:
        pinned: the places of the parts that stay loaded; all others come and go.
        is_ahead: the next part is loaded while one runs.
        peak_bytes: the most that is taken at once on top of what the process had; tensors that wait are left out.
    """

    pinned: frozenset[int]
    is_ahead: bool
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """Bytes of the tensors at borders, and of activations, for the sizes that are fed.

    Attributes:
        tensors: what each tensor at a border takes.
        activations: what lives at once in each part while it runs.
        is_exact: nothing had to be estimated.
    """

    tensors: Mapping[str, int]
    activations: Sequence[int]
    is_exact: bool


def sizes_for(cascade: Cascade, shapes: Mapping[str, Sequence[int]]) -> TensorSizes:
    """What tensors take when inputs of these shapes are fed.

    Tensors at borders are exact where their symbols are those of inputs. The activations of a part stand in the
    manifest for one choice of sizes; for another they are scaled as its border tensors are, all together, which is
    too little where they grow with the square of a size and the borders do not.
    """
    known = cascade.manifest.dims
    bound = {**known, **_bound(cascade.tensors, shapes)}
    now = {name: tensor.bytes_for(bound) for name, tensor in cascade.tensors.items()}
    planned = {name: tensor.bytes_for(known) for name, tensor in cascade.tensors.items()}
    activations = []
    for part in cascade.parts:
        border = dict.fromkeys((*part.reads, *part.writes))
        given, thought = (sum(of[name][0] for name in border) for of in (now, planned))
        activations.append(max(given, part.activation_bytes * given // thought if thought else part.activation_bytes))
    return TensorSizes(
        {name: number for name, (number, _) in now.items()},
        activations,
        all(planned[name] == found and found[1] for name, found in now.items())
        and not _is_half(cascade, cascade.parts),
    )


def _bound(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The numbers that inputs give to symbols."""
    return {
        dim: given
        for name, shape in shapes.items()
        for dim, given in zip(tensors[name].shape or (), shape, strict=False)
        if isinstance(dim, str)
    }


def needs_of(cascade: Cascade, sizes: TensorSizes, *, prepacked: bool, is_alone: bool = True) -> list[PartMemory]:
    """What each part takes.

    Args:
        cascade: whose parts.
        sizes: for the inputs that are fed.
        prepacked: weights are copied into the fastest layout, one after the other: the largest is there twice then.
        is_alone: nobody holds the outputs for the input before.
    """
    outputs = [sizes.tensors[name] for name in cascade.manifest.writes]
    given = max(outputs, default=0) + (0 if is_alone else sum(outputs))  # users get copies, made one by one
    alive, last, found = _alive(cascade), len(cascade.parts) - 1, []
    for place, part in enumerate(cascade.parts):
        border = {*part.reads, *part.writes}
        # An input comes and goes as a whole: all of it is at hand before the first part, and after the last.
        beside = sum(sizes.tensors[name] for name in alive[place] if name not in border) if place in {0, last} else 0
        factor = 2 if _is_half(cascade, [part]) else 1
        session, weights = _SESSION_BYTES + _NODE_BYTES * part.nodes, factor * part.weight_bytes
        is_copied = prepacked or factor > 1
        loading = factor * part.largest_weight_bytes if is_copied else 0
        found.append(
            PartMemory(
                loaded=session + weights,
                loading=loading,
                ahead=session + weights + loading if is_copied else session,
                running=sizes.activations[place] + beside + (given if place == last else 0),
            )
        )
    return found


def crossing_bytes(cascade: Cascade, sizes: TensorSizes) -> int:
    """The most that waits between two parts for one input: what was there before, and later parts or users need."""
    return max(sum(sizes.tensors[name] for name in names) for names in _alive(cascade))


def _alive(cascade: Cascade) -> list[list[str]]:
    """The tensors that are there before each part: made or fed, and read then or later, or given out."""
    end = len(cascade.parts)
    made = {name: place for place, part in reversed([*enumerate(cascade.parts)]) for name in part.writes}
    last = {name: place for place, part in enumerate(cascade.parts) for name in part.reads}
    last |= dict.fromkeys(cascade.manifest.writes, end)
    return [
        [name for name in cascade.tensors if made.get(name, -1) < place <= last.get(name, -1)] for place in range(end)
    ]


def _is_half(cascade: Cascade, parts: Iterable[Part]) -> bool:
    return any(cascade.tensors[name].dtype in _HALVES for part in parts for name in (*part.reads, *part.writes))


def peak_of(needs: Sequence[PartMemory], pinned: frozenset[int], *, is_ahead: bool = False) -> int:
    """The most that is taken at once when each part runs in turn; tensors that wait are left out."""
    kept = sum(needs[place].loaded for place in pinned)
    streamed = [place for place in range(len(needs)) if place not in pinned]
    following = {place: next((other for other in streamed if other > place), None) for place in range(len(needs))}
    peak = 0
    for place, need in enumerate(needs):
        own = 0 if place in pinned else need.loaded
        coming = following[place] if is_ahead else None
        beside = needs[coming].ahead if coming is not None else 0
        peak = max(peak, kept + own + need.loading, kept + own + need.running + beside)
    return peak


def best_pinned(needs: Sequence[PartMemory], room_bytes: int) -> frozenset[int]:
    """The parts to keep loaded so that least has to be loaded again, where each part runs in turn, again and again.

    In such a round the part used last is the one needed latest, so that a choice that stays is best, and what counts is
    how many bytes stay. The largest part that comes and goes decides what is left for those that stay; for each that
    it could be, filling that room is a subset-sum problem, solved to one part in 65,536 of the room.

    Args:
        needs: what each part takes.
        room_bytes: what all may take together; enough for each part alone.

    Cost: for each of n parts, n operations on 65,536 bits.
    """
    best: tuple[int, tuple[int, ...]] = (0, ())
    alone = [need.loaded + max(need.loading, need.running) for need in needs]
    for most in sorted({0, *alone}):
        forced = [place for place, number in enumerate(alone) if number > most]
        free = [place for place, number in enumerate(alone) if number <= most]
        working = max([most, *(max(needs[place].loading, needs[place].running) for place in forced)])
        room = room_bytes - working - sum(needs[place].loaded for place in forced)
        if room >= 0:
            chosen = [*forced, *(free[i] for i in _fullest([needs[place].loaded for place in free], room))]
            best = max(best, (sum(needs[place].loaded for place in chosen), tuple(sorted(chosen))))
    return frozenset(best[1])


def _fullest(sizes: Sequence[int], room: int) -> list[int]:
    """The places of those sizes that fill `room` best."""
    unit = room // _UNITS + 1
    steps = [-(-number // unit) for number in sizes]
    mask = (1 << (room // unit + 1)) - 1
    reached = [1]  # bit s of reached[i]: the first i sizes can fill s steps
    for step in steps:
        reached.append((reached[-1] | reached[-1] << step) & mask)
    left, chosen = reached[-1].bit_length() - 1, []
    for i in reversed(range(len(sizes))):
        if not reached[i] >> left & 1:
            chosen.append(i)
            left -= steps[i]
    return chosen


def schedule(needs: Sequence[PartMemory], room_bytes: int, *, is_once: bool) -> ResidencyPlan | None:
    """How the parts are run within `room_bytes`; None where not even one at a time fits.

    All stay if they fit. Else, where each is used once, none stays, and the next is loaded ahead if two fit; where
    they are used again and again, as much stays as fits.
    """
    every = frozenset(range(len(needs)))
    if (peak := peak_of(needs, every)) <= room_bytes:
        return ResidencyPlan(every, is_ahead=False, peak_bytes=peak)
    if peak_of(needs, frozenset()) > room_bytes:
        return None
    pinned = frozenset[int]() if is_once else best_pinned(needs, room_bytes)
    ahead = peak_of(needs, pinned, is_ahead=True)
    if ahead <= room_bytes:
        return ResidencyPlan(pinned, is_ahead=True, peak_bytes=ahead)
    return ResidencyPlan(pinned, is_ahead=False, peak_bytes=peak_of(needs, pinned))


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """What a run will take, said before.

    Attributes:
        peak_bytes: the most that the process has at once.
        memory_bytes: what it may have; None without a cap.
        is_about: sizes had to be estimated.
        is_mapped: weights are read where they lie on disk, in a layout that is not the fastest: results may differ in
            the last bits.
        is_alone: there is one input, so that nobody holds the outputs for the one before.
        spills: tensors that wait between parts go to disk where they find no room.
        parts: how many parts there are.
        schedule: which of them stay loaded.
        room_bytes: what parts and what they work on may take together.
    """

    peak_bytes: int
    memory_bytes: int | None
    is_about: bool
    is_mapped: bool
    is_alone: bool
    spills: bool
    parts: int
    schedule: ResidencyPlan
    room_bytes: int

    @property
    def is_resident(self) -> bool:
        """Do all parts stay loaded?"""
        return len(self.schedule.pinned) == self.parts

    @property
    def shelf_bytes(self) -> int:
        """What tensors that wait between parts may take in memory."""
        return max(0, self.room_bytes - self.schedule.peak_bytes)

    @property
    def residency(self) -> str:
        """Which parts stay loaded, in words."""
        kept = len(self.schedule.pinned)
        if self.is_resident:
            return f"{count(self.parts, 'part')}, resident"
        words = f"{kept} of {count(self.parts, 'part')} resident" if kept else "one part at a time"
        return words + (", the next one loaded ahead" if self.schedule.is_ahead else "")


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """The memory there is.

    Attributes:
        base_bytes: what the process has already, and will have whatever it runs.
        memory_bytes: what it may have; None without a cap.
        free_bytes: what the machine could give it, for when there is no cap.
    """

    base_bytes: int
    memory_bytes: int | None
    free_bytes: int

    @property
    def bytes(self) -> int:
        """What may still be taken."""
        return self.free_bytes if self.memory_bytes is None else self.memory_bytes - self.base_bytes


def predict_memory(
    cascade: Cascade,
    shapes: Mapping[str, Sequence[int]],
    room: AvailableMemory,
    *,
    times: int | None = 1,
    is_once: bool = True,
    prepacked: bool = True,
    exact: bool = False,
) -> MemoryForecast:
    """How inputs of these shapes are best run in that memory, and what it will take.

    Args:
        cascade: what is run.
        shapes: of the inputs, by name.
        room: the memory there is.
        times: how many such inputs; None for nobody knows.
        is_once: each part is used once, for all of them; else again and again.
        prepacked: weights are rearranged where all parts fit.
        exact: and where they don't fit, too.

    Raises:
        MemoryCapError: the cap can't hold.
    """
    sizes = sizes_for(cascade, shapes)
    is_mapped, is_alone = not prepacked, times == 1 and is_once
    needs = needs_of(cascade, sizes, prepacked=prepacked, is_alone=is_alone)
    found = schedule(needs, room.bytes, is_once=is_once)
    if prepacked and not exact and room.memory_bytes is not None and (found is None or len(found.pinned) < len(needs)):
        is_mapped, needs = True, needs_of(cascade, sizes, prepacked=False, is_alone=is_alone)
        found = schedule(needs, room.bytes, is_once=is_once)
    least = peak_of(needs, frozenset())
    if found is None and room.memory_bytes is not None:
        raise refusal(room.memory_bytes, room.base_bytes + least)
    found = found or ResidencyPlan(frozenset(), is_ahead=False, peak_bytes=least)
    one = crossing_bytes(cascade, sizes)
    shelf = max(0, room.bytes - found.peak_bytes)
    # Parts that stay run one input after the other; for others, all inputs wait at each border.
    waiting = one if len(found.pinned) == len(needs) else one * times if times is not None else max(one, shelf)
    return MemoryForecast(
        peak_bytes=room.base_bytes + found.peak_bytes + min(shelf, waiting),
        memory_bytes=room.memory_bytes,
        is_about=not sizes.is_exact,
        is_mapped=is_mapped,
        is_alone=is_alone,
        spills=waiting > shelf,
        parts=len(needs),
        schedule=found,
        room_bytes=room.bytes,
    )


def refusal(memory_bytes: int, smallest_bytes: int) -> MemoryCapError:
    """A cap is too small. What the process has differs by some pages from start to start, so the hint is rounded up."""
    mebibytes = -(-smallest_bytes // (1 << 20)) + 1
    return MemoryCapError(
        f"this run takes {smallest_bytes:,} bytes at the least, and the cap is {memory_bytes:,}",
        smallest_bytes=smallest_bytes,
        hint=f"allow {mebibytes}MiB or more with --memory, or cut the model into more parts",
    )
