"""Requests, the routing of tensors between parts, and the state of a request in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ...core.graph import grouped, reached
from ...running.sampling import TOKENS
from ...running.values import Value
from ..executors.protocol import Handle, Step


class ScheduledPart(msgspec.Struct, frozen=True):
    """A part as the scheduler sees it. States that the part keeps are neither read nor written here."""

    name: str  #: its name in messages.
    reads: tuple[str, ...]  #: the tensors that it must be sent.
    writes: tuple[str, ...]  #: the tensors that it makes for others.
    memory_bytes: int = 0  #: its memory on its device.
    is_stateful: bool = False  #: it keeps states between the steps of a sequence.
    keeps_constants: bool = False  #: it keeps what it reads at the first step of a sequence and not later.


class Request(msgspec.Struct, frozen=True):
    """One run of the cascade."""

    feeds: Mapping[str, Value]  #: the inputs, by name.
    title: str = ""  #: its name in messages; `input N` by default.
    #: what its steps have in common: the sequence, its states, and how tokens are chosen.
    template: Step = msgspec.field(default_factory=Step)
    #: the parts that ran at an earlier step of its sequence: what they wrote is kept where it is read.
    done: Collection[int] = ()

    def step(self, number: int, parts: tuple[int, ...], writes: tuple[str, ...], **more: object) -> Step:
        """The step that runs `parts` for it; `number` is that of the request, and `more` are fields of `Step`."""
        choice = self.template.choice if TOKENS.name in writes else None
        return replace(self.template, request=number, parts=parts, writes=writes, choice=choice, **more)


class Routing:
    """Which parts read and write which tensors. The same for all requests."""

    def __init__(self, parts: Sequence[ScheduledPart], outputs: Sequence[str]) -> None:
        self.parts = tuple(parts)  #: in topological order.
        self.outputs = dict.fromkeys(outputs).keys()  #: the tensors of an answer.
        #: for each tensor, the indices of the parts that read it.
        self.readers = grouped((name, index) for index, part in enumerate(parts) for name in part.reads)
        self._writer = {name: index for index, part in reversed([*enumerate(parts)]) for name in part.writes}
        #: the tensors that come from outside. Some may not be fed.
        self.inputs = frozenset(name for name, readers in self.readers.items() if self.is_input(name, readers[0]))
        self._wanted: dict[tuple[int, ...], tuple[str, ...]] = {}

    def wanted(self, parts: tuple[int, ...]) -> tuple[str, ...]:
        """The tensors written by `parts` that other parts read or that are outputs."""
        if parts not in self._wanted:
            written = [name for index in parts for name in self.parts[index].writes]
            others = {name for name in written if any(reader not in parts for reader in self.readers.get(name, ()))}
            self._wanted[parts] = tuple(name for name in written if name in self.outputs or name in others)
        return self._wanted[parts]

    def handed_over(self, steps: Sequence[Sequence[int]]) -> Counter[str]:
        """The tensors that steps make for each other, and how many steps read each."""
        written = {name for parts in steps for part in parts for name in self.parts[part].writes}
        found = Counter[str]()
        for parts in steps:
            own = {name for part in parts for name in self.parts[part].writes}
            found.update({name for part in parts for name in self.parts[part].reads if name in written - own})
        return found

    def is_input(self, name: str, part: int) -> bool:
        """Does `part` read a tensor from outside? A part may read an input that it or a later part also writes."""
        return self._writer.get(name, len(self.parts)) >= part


def waiting_in_turn(routing: Routing, owned: Sequence[Iterable[int]]) -> dict[int, tuple[int, ...]]:
    """The group of each worker that waits for another one, which waits for it: ranks; `owned` has the parts of each."""
    owners = {part: worker for worker, parts in enumerate(owned) for part in parts}
    written = [(owners.get(writer), name) for writer, part in enumerate(routing.parts) for name in part.writes]
    waits = {(owners.get(part), worker) for worker, name in written for part in routing.readers.get(name, ())}
    both = grouped((a, b) for a, b in waits if a is not None and b is not None and a != b and (b, a) in waits)
    return {worker: tuple(sorted(reached([worker], lambda one: both.get(one, ())))) for worker in both}


class RequestState:
    """The state of a request in flight. A restarted request gets a new one."""

    def __init__(
        self, number: int, request: Request, routing: Routing, fed: Mapping[str, Handle], before: RequestState | None
    ) -> None:
        """Begin with the inputs that are `fed`; `before` is the attempt that this one replaces."""
        self.number = number  #: in the order of arrival.
        self.request = request
        self.handles: dict[str, Handle] = {}  #: the tensors that will still be read, and those of the answer.
        self.attempt: int = before.attempt + 1 if before else 0  #: how often it was restarted before.
        #: by the first part of a step, how many workers ended while they ran that step.
        self.deaths: Counter[int] = before.deaths if before else Counter()
        self.makers: dict[str, int] = {}  #: the workers that made its tensors; none for inputs.
        self.pace = 1.0  #: how many times as long as usual its last step took: it may be a longer prompt than others.
        self.running = 0  #: how many of its steps run now.
        self.taken: set[int] = {*request.done}  #: the parts that are done or run now.
        self.reported: set[int] = set()  #: the first parts of the steps that reported early.
        self.error: Exception | None = None  #: why it has no answer; None if it has one or may still get one.
        self.is_dropped = False  #: its handles are not needed, except by the steps that run now.
        self._routing = routing
        self._absent = routing.inputs.difference(fed)
        # all tensors that there are or were
        self._made = {name for part in request.done for name in routing.parts[part].writes}
        self._unread = {name: len(readers) for name, readers in routing.readers.items()}
        self._undone = len(routing.parts) - len(request.done)
        #: the tensors of its answer: those that no other request of its sequence makes.
        self.outputs = [name for name in routing.outputs if name not in self._made]
        self.add(fed)

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.request.title or f"input {self.number}"

    @property
    def is_finished(self) -> bool:
        """Is there an answer or an error?"""
        return self._undone == 0 or self.error is not None

    def is_runnable(self, part: int) -> bool:
        """Can the part run now?"""
        return part not in self.taken and self.error is None and self._is_enough(self._made, part)

    def _is_enough(self, known: Collection[str], part: int) -> bool:
        """Are the tensors in `known` all that a part reads, except for inputs that are absent?"""
        unknown = (name for name in self._routing.parts[part].reads if name not in known)
        return all(name in self._absent and self._routing.is_input(name, part) for name in unknown)

    def add(self, handles: Mapping[str, Handle]) -> list[int]:
        """Add tensors. Returns the parts that read one and have all that they read."""
        self.handles.update(handles)
        self._made.update(handles)
        readers = dict.fromkeys(part for name in handles for part in self._routing.readers.get(name, ()))
        return [part for part in readers if self._is_enough(self._made, part)]

    def step_parts(self, first: int, owned: Iterable[int]) -> tuple[int, ...]:
        """The parts of a step: `first`, which can run, and those of `owned` after it that need no other worker."""
        return self.joint_steps({index: 0 for index in owned if index >= first})[0]

    def joint_steps(self, owners: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """The parts of each worker that can run if the workers in `owners` hand each other what they make."""
        known, chosen = set(self._made), dict[int, tuple[int, ...]]()
        for index in sorted(owners):
            if index not in self.taken and self._is_enough(known, index):
                chosen[owners[index]] = (*chosen.get(owners[index], ()), index)
                known.update(self._routing.parts[index].writes)
        return chosen

    def enabling(self, parts: Sequence[int]) -> list[int]:
        """Those of a step's parts, except the last one, after which parts of other workers can run."""
        known, found = set(self._made), []
        for part in parts[:-1]:
            new = {*self._routing.parts[part].writes} - known
            known |= new
            readers = {reader for name in new for reader in self._routing.readers.get(name, ())}.difference(parts)
            if any(self._is_enough(known, reader) for reader in readers):
                found.append(part)
        return found

    def inputs_of(self, parts: Sequence[int]) -> dict[str, Handle]:
        """The tensors that a step of `parts` must be sent."""
        names = dict.fromkeys(name for part in parts for name in self._routing.parts[part].reads)
        return {name: self.handles[name] for name in names if name in self.handles}

    def finish(self, parts: Sequence[int]) -> list[Handle]:
        """Mark `parts` as done. Removes the tensors that are not needed any more, and returns them."""
        self._undone -= len(parts)
        unneeded = []
        for name in (name for part in parts for name in self._routing.parts[part].reads):
            self._unread[name] -= 1
            if self._unread[name] == 0 and name not in self._routing.outputs and name in self.handles:
                unneeded.append(self.handles.pop(name))
        return unneeded
