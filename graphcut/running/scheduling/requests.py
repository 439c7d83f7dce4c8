"""A request on its way through the parts: what it holds, what is done, what can run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..executors.protocol import Handle
from ..values import Value


@dataclass(frozen=True, slots=True)
class ScheduledPart:
    """A part as the scheduler sees it: what it must be sent, and what it sends. States that it keeps are neither.

    Attributes:
        name: what messages call it.
        reads: the tensors it must be fed.
        writes: the tensors it gives out.
        needs_bytes: what it takes on its device.
        keeps: it keeps states from step to step of a sequence.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    memory_bytes: int = 0
    is_stateful: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the cascade, once.

    Attributes:
        feeds: the inputs, by name.
        sequence: whose states it goes on with; None where nothing is kept.
        zero_states: where a sequence begins: the shapes of its states.
        title: what messages call it; its number without one.
    """

    feeds: Mapping[str, Value]
    sequence: int | None = None
    zero_states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    title: str = ""


class Routing:
    """Who reads what, for all requests.

    Attributes:
        units: the parts, in an order in which they can run.
        outputs: what a request is answered with.
        readers: the places of the parts that read a tensor.
        inputs: what must come from outside, if anybody has it.
    """

    def __init__(self, parts: Sequence[ScheduledPart], outputs: Sequence[str]) -> None:
        """Look once at all parts."""
        self.parts = tuple(parts)
        self.outputs = tuple(outputs)
        self.readers: dict[str, list[int]] = {}
        for place, unit in enumerate(parts):
            for name in unit.reads:
                self.readers.setdefault(name, []).append(place)
        self._writer = {name: place for place, unit in reversed([*enumerate(parts)]) for name in unit.writes}
        self.inputs = frozenset(name for name, at in self.readers.items() if self.is_from_outside(name, at[0]))
        self._outputs = frozenset(outputs)

    def wanted(self, parts: Sequence[int]) -> tuple[str, ...]:
        """What others need of what `parts` make: other parts, or who asked."""
        own = set(parts)
        made = [name for place in parts for name in self.parts[place].writes]
        return tuple(n for n in made if n in self._outputs or any(r not in own for r in self.readers.get(n, ())))

    def is_from_outside(self, name: str, place: int) -> bool:
        """Is what a part reads an input of the model, for no part before it makes it? It may hand an input on."""
        return self._writer.get(name, len(self.parts)) >= place

    def is_output(self, name: str) -> bool:
        """Is it part of the answer?"""
        return name in self._outputs


class RequestState:
    """One request between its arrival and its delivery.

    Attributes:
        number: its place in the order of arrival.
        request: what was asked.
        held: where each tensor lies that somebody still has to read, or that is part of the answer.
        attempt: how often it began anew.
        running: how many steps of this attempt run now.
        taken: the parts that are done, or run now.
        deaths: how many workers ended while they ran a step, by the first part of that step.
        error: why it has no answer.
    """

    def __init__(self, number: int, request: Request, routing: Routing) -> None:
        """Nothing is placed yet; see `begin`."""
        self.number = number
        self.request = request
        self.held: dict[str, Handle] = {}
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
        """What messages call it."""
        return self.request.title or f"input {self.number}"

    @property
    def is_finished(self) -> bool:
        """Is there an answer, or the certainty that there is none?"""
        return self._undone == 0 or self.error is not None

    def begin(self, held: Mapping[str, Handle], absent: Collection[str]) -> list[int]:
        """Start from the inputs; those in `absent` are not fed. The parts that can run at once."""
        routing = self._routing
        self.taken, self._undone, self.running = set(), len(routing.parts), 0
        self._absent = frozenset(absent)
        self._unread = {name: len(readers) for name, readers in routing.readers.items()}
        self._missing = [
            sum(not self._lacks(name, place) for name in unit.reads) for place, unit in enumerate(routing.parts)
        ]
        self.held = {}
        bare = [place for place, missing in enumerate(self._missing) if missing == 0]
        return sorted({*bare, *self.place(held)})

    def _lacks(self, name: str, place: int) -> bool:
        """Does a part do without what it reads there?"""
        return name in self._absent and self._routing.is_from_outside(name, place)

    def place(self, made: Mapping[str, Handle]) -> list[int]:
        """Hold tensors that were made. The parts that can run now."""
        able = []
        for name, handle in made.items():
            self.held[name] = handle
            for place in self._routing.readers.get(name, ()):
                if self._lacks(name, place):
                    continue
                self._missing[place] -= 1
                if self._missing[place] == 0:
                    able.append(place)
        return able

    def is_able(self, part: int) -> bool:
        """Can it run now?"""
        return part not in self.taken and self._missing[part] == 0 and self.error is None

    def run_on(self, first: int, owned: Iterable[int]) -> tuple[int, ...]:
        """`first`, and which of the `owned` parts behind it can run after it without another worker's help."""
        known = set(self.held) | self._absent | set(self._routing.parts[first].writes)
        chosen = [first]
        for place in owned:
            unit = self._routing.parts[place]
            if place > first and place not in self.taken and known.issuperset(unit.reads):
                chosen.append(place)
                known.update(unit.writes)
        return tuple(chosen)

    def reads_of(self, parts: Sequence[int]) -> dict[str, Handle]:
        """What `parts` must be sent."""
        names = dict.fromkeys(name for place in parts for name in self._routing.parts[place].reads)
        return {name: self.held[name] for name in names if name in self.held}

    def done(self, parts: Sequence[int]) -> Iterator[Handle]:
        """Note that `parts` are done. What nobody reads any more, to release it."""
        self._undone -= len(parts)
        for place in parts:
            for name in self._routing.parts[place].reads:
                self._unread[name] -= 1
                if self._unread[name] == 0 and not self._routing.is_output(name) and name in self.held:
                    yield self.held.pop(name)

    def undone(self, parts: Sequence[int]) -> list[int]:
        """Give `parts` back after they failed. Those that can run at once."""
        self.taken.difference_update(parts)
        return [place for place in parts if self._missing[place] == 0]
