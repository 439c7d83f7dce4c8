"""Requests, the routing of tensors between parts, and the state of a request in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..executors.protocol import Handle
from ..values import Value


@dataclass(frozen=True, slots=True)
class ScheduledPart:
    """A part as the scheduler sees it. States that the part keeps are neither read nor written here.

    Attributes:
        name: its name in messages.
        reads: the tensors that it must be sent.
        writes: the tensors that it makes for others.
        memory_bytes: its memory on its device.
        is_stateful: it keeps states between the steps of a sequence.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    memory_bytes: int = 0
    is_stateful: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One run of the cascade.

    Attributes:
        feeds: the inputs, by name.
        sequence: the sequence whose states it continues; None without states.
        zero_states: at the beginning of a sequence, the shapes of its states, which are all zeros.
        title: its name in messages; `input N` by default.
    """

    feeds: Mapping[str, Value]
    sequence: int | None = None
    zero_states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    title: str = ""


class Routing:
    """Which parts read and write which tensors. The same for all requests.

    Attributes:
        parts: the parts, in topological order.
        outputs: the tensors of an answer.
        readers: for each tensor, the indices of the parts that read it.
        inputs: the tensors that come from outside. Some may not be fed.
    """

    def __init__(self, parts: Sequence[ScheduledPart], outputs: Sequence[str]) -> None:
        self.parts = tuple(parts)
        self.outputs = tuple(outputs)
        self.readers: dict[str, list[int]] = {}
        for index, part in enumerate(parts):
            for name in part.reads:
                self.readers.setdefault(name, []).append(index)
        self._writer = {name: index for index, part in reversed([*enumerate(parts)]) for name in part.writes}
        self.inputs = frozenset(name for name, readers in self.readers.items() if self.is_input(name, readers[0]))
        self._outputs = frozenset(outputs)

    def wanted(self, parts: Sequence[int]) -> tuple[str, ...]:
        """The tensors written by `parts` that other parts read or that are outputs."""
        own = set(parts)
        written = [name for index in parts for name in self.parts[index].writes]
        return tuple(n for n in written if n in self._outputs or any(r not in own for r in self.readers.get(n, ())))

    def is_input(self, name: str, part: int) -> bool:
        """Does `part` read a tensor from outside? A part may read an input that it or a later part also writes."""
        return self._writer.get(name, len(self.parts)) >= part

    def is_output(self, name: str) -> bool:
        """Is it part of an answer?"""
        return name in self._outputs

    def is_used(self, name: str) -> bool:
        """Is it read by a part, or part of an answer?"""
        return name in self.readers or name in self._outputs


class RequestState:
    """The state of a request in flight.

    Attributes:
        number: its number in the order of arrival.
        request: the request.
        handles: the tensors that will still be read, and those of the answer.
        attempt: how often it was restarted.
        running: how many steps of this attempt run now.
        taken: the parts that are done or run now.
        deaths: by the first part of a step, how many workers ended while they ran that step.
        error: why it has no answer; None if it has one or may still get one.
    """

    def __init__(self, number: int, request: Request, routing: Routing) -> None:
        """Call `start` before anything else."""
        self.number = number
        self.request = request
        self.handles: dict[str, Handle] = {}
        self.attempt = 0
        self.running = 0
        self.taken: set[int] = set()
        self.deaths: Counter[int] = Counter()
        self.error: Exception | None = None
        self._routing = routing
        self._unread: dict[str, int] = {}
        self._missing: list[int] = []
        self._undone = len(routing.parts)
        self._absent: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.request.title or f"input {self.number}"

    @property
    def is_finished(self) -> bool:
        """Is there an answer or an error?"""
        return self._undone == 0 or self.error is not None

    def start(self, handles: Mapping[str, Handle], absent: Collection[str]) -> list[int]:
        """Start or restart from the inputs. Returns the parts that can run.

        Args:
            handles: the inputs that are fed.
            absent: the inputs that are not.
        """
        routing = self._routing
        self.taken, self._undone, self.running = set(), len(routing.parts), 0
        self._absent = frozenset(absent)
        self._unread = {name: len(readers) for name, readers in routing.readers.items()}
        self._missing = [
            sum(not self._is_absent(name, i) for name in part.reads) for i, part in enumerate(routing.parts)
        ]
        self.handles = {}
        runnable = [i for i, missing in enumerate(self._missing) if missing == 0]
        return sorted({*runnable, *self.add(handles)})

    def _is_absent(self, name: str, part: int) -> bool:
        return name in self._absent and self._routing.is_input(name, part)

    def add(self, handles: Mapping[str, Handle]) -> list[int]:
        """Add tensors. Returns the parts that can run now and could not before."""
        runnable = []
        for name, handle in handles.items():
            self.handles[name] = handle
            for part in self._routing.readers.get(name, ()):
                if not self._is_absent(name, part):
                    self._missing[part] -= 1
                    if self._missing[part] == 0:
                        runnable.append(part)
        return runnable

    def is_runnable(self, part: int) -> bool:
        """Can the part run now?"""
        return part not in self.taken and self._missing[part] == 0 and self.error is None

    def step_parts(self, first: int, owned: Iterable[int]) -> tuple[int, ...]:
        """The parts of a step: `first`, and those of `owned` after it that need no tensor of another worker."""
        known = set(self.handles) | self._absent | set(self._routing.parts[first].writes)
        chosen = [first]
        for index in owned:
            part = self._routing.parts[index]
            if index > first and index not in self.taken and known.issuperset(part.reads):
                chosen.append(index)
                known.update(part.writes)
        return tuple(chosen)

    def inputs_of(self, parts: Sequence[int]) -> dict[str, Handle]:
        """The tensors that a step of `parts` must be sent."""
        names = dict.fromkeys(name for part in parts for name in self._routing.parts[part].reads)
        return {name: self.handles[name] for name in names if name in self.handles}

    def finish(self, parts: Sequence[int]) -> list[Handle]:
        """Mark `parts` as done. Removes the tensors that are not needed any more, and returns them."""
        self._undone -= len(parts)
        unneeded = []
        for part in parts:
            for name in self._routing.parts[part].reads:
                self._unread[name] -= 1
                if self._unread[name] == 0 and not self._routing.is_output(name) and name in self.handles:
                    unneeded.append(self.handles.pop(name))
        return unneeded

    def give_back(self, parts: Sequence[int]) -> list[int]:
        """Mark `parts` as not taken, after their step was lost. Returns those that can run."""
        self.taken.difference_update(parts)
        return [part for part in parts if self._missing[part] == 0]
