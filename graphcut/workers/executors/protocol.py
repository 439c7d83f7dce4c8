"""The interface between the scheduler and the workers.

An executor is a set of workers that hold parts: threads, processes, actors on other machines, or simulated devices. The
scheduler decides which step runs when and on which worker. The executor runs it and reports events.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import msgspec

from ...running.providers import NodesByProvider
from ...running.sampling import LogitsChoice
from ...running.values import Value
from .exchange import Exchange

Handle = Any
"""A reference to a tensor that an executor stores: an OrtValue, a shared-memory tensor ref, a Ray object reference."""


class Origin(NamedTuple):
    """The sequence with whose states another one begins."""

    sequence: int  #: its number.
    length: int  #: the number of its tokens.
    kept: int  #: how many of them the new sequence begins with.


class KeptRow(NamedTuple):
    """Where the states of one sequence are: a row of a batch, and its place among the tokens of that row."""

    sequence: int  #: the number of the batch.
    row: int  #: its index in the batch.
    begin: int  #: the place of its first token.
    length: int  #: the number of its tokens.
    to: int  #: the place of its first token in the row that it becomes.


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parts that one worker runs one after the other for one request."""

    request: int = 0  #: the number of the request.
    parts: tuple[int, ...] = ()  #: the indices of the parts, ascending.
    writes: tuple[str, ...] = ()  #: the names of the output tensors to keep.
    attempt: int = 0  #: how often the request was restarted; results of an earlier attempt are dropped.
    sequence: int | None = None  #: the sequence whose states the parts read and update; None for parts without states.
    #: on the first step of a sequence, the shapes of its states, which start as zeros, or from those of the `origin`.
    zero_states: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    #: on the first step of a sequence, by index of the part, what it reads that later steps read again and don't send.
    keeps: Mapping[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    #: the rows that its states are made of before it runs, where sequences have ended or joined; else none.
    rows: tuple[KeptRow, ...] = ()
    batch_axes: Mapping[str, int] = msgspec.field(default_factory=dict)  #: of each state, the axis of these rows.
    #: for a sequence in several rows: their number, and the axis of each tensor that is kept beside states and is the
    #: same in all rows.
    copies: tuple[int, Mapping[str, int]] = (1, {})
    room: int = 0  #: for so many tokens there is room in states that are written in place.
    #: the number of tokens that the states have, and how many of them they keep: those after were proposed, and wrong.
    cut: tuple[int, int] | None = None
    #: the parts after which what was made so far is reported, since other workers can go on with it.
    early: tuple[int, ...] = ()
    origin: Origin | None = None  #: on the first step of a sequence, the one whose states it continues, if any.
    choice: LogitsChoice | None = None  #: how tokens are chosen, where they are among the `writes`.
    length: int = 0  #: the number of tokens of each sequence that it feeds; 0 if unknown.
    in_place: bool = False  #: states that can share a buffer do, which has room for the whole sequence.
    exchange: Exchange | None = None  #: what it hands to and takes from other steps of the request that run now.

    @property
    def constants(self) -> set[str]:
        """What its parts keep, beside states, for later steps of the sequence."""
        return {name for part in self.parts for name in self.keeps.get(part, ())}


class _OfWorker(msgspec.Struct, frozen=True):
    """What the scheduler is told of a worker."""

    worker: int  #: its number.


class Ready(_OfWorker, frozen=True):
    """A worker has loaded its parts; `parts` are the indices of all parts that it now holds.

    `placements` tells how many nodes each provider took, for the parts whose provider did not take all.
    """

    parts: frozenset[int]
    placements: Mapping[int, NodesByProvider] = {}


class Made(_OfWorker, frozen=True):
    """A worker has run the next one of `step.early`: the handles of what it made since its last report."""

    step: Step
    outputs: Mapping[str, Handle]


class Done(_OfWorker, frozen=True):
    """A worker has run a step: the handles of `step.writes` not yet reported, and the run time of each part.

    `memory_bytes` is the resident memory of the worker's process; 0 where workers share a process. `waits` are the
    seconds for which each part of a step with an exchange waited for other steps. `copied_bytes` are those of tensors
    that were copied between the CPU's memory and that of devices.
    """

    step: Step
    outputs: Mapping[str, Handle]
    seconds: tuple[float, ...]
    memory_bytes: int = 0
    waits: tuple[float, ...] = ()
    copied_bytes: int = 0


class Failed(_OfWorker, frozen=True):
    """A worker could not run a step, or, where `step` is None, not load its parts. Repeating it would fail again."""

    step: Step | None
    error: Exception


class Died(_OfWorker, frozen=True):
    """A worker ended, and the states that it kept are lost. A permanent death means that it can't be restarted."""

    reason: str
    is_permanent: bool = False


class Lost(_OfWorker, frozen=True):
    """A step could not run, because the data of one of its input tensors no longer exists."""

    step: Step


class Note(_OfWorker, frozen=True):
    """Something that the user may want to know of a worker; or what is sent to it, and the share that arrived."""

    text: str
    share: float | None = None


Event = Ready | Made | Done | Failed | Died | Lost | Note


class Executor(Protocol):
    """A set of workers, numbered from 0. Only `next_event` and `close` wait; all else is reported as an event."""

    can_die: bool = True  #: workers may end on their own, and can be killed.
    reports_early: bool = False  #: workers obey `Step.early`. To others, shorter steps are given.
    queues: bool = False  #: a worker takes a step while it runs one, and goes on with it.
    has_links: bool = False  #: what a step reads may have to cross a slow link to its worker.
    exchanges: bool = False  #: workers obey `Step.exchange`. They can't die: others would wait for them.

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """Start a worker that holds `parts`, or restart it after it died; `Ready`, `Failed` or `Died` follows."""

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        """Make a running worker hold exactly `parts`, while it runs its step; `Ready` or `Failed` follows."""

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        """Run a step, after the one that the worker may run; `Done`, `Failed`, `Died` or `Lost` follows, or `Made`."""

    def forget(self, sequence: int) -> None:
        """Make all workers drop the states of a sequence."""

    def kill(self, worker: int) -> None:
        """End a worker at once, even in the middle of a step; `Died` follows."""

    def is_excused(self, worker: int) -> bool:  # noqa: ARG002 - most executors have no links
        """Whether a worker may take longer than expected, since a link to it or to its inputs is or was down."""
        return False

    def bytes_of(self, handle: Handle) -> int:  # noqa: ARG002 - not asked where there are no links
        """The size of a stored tensor."""
        return 0

    def put(self, value: Value, tensor: str) -> Handle:
        """Store the value of the tensor named `tensor` where workers can read it."""

    def fetch(self, handles: Iterable[Handle]) -> bool:  # noqa: ARG002 - most executors have nothing to fetch
        """Begin to bring tensors to this machine. Are they there? If not, `next_event` returns None when they are."""
        return True

    def get(self, handle: Handle, tensor: str) -> Value:
        """The value of a stored tensor, valid after the handle is released. Raises LookupError if it is lost."""

    def release(self, handle: Handle) -> None:  # noqa: ARG002 - Python needs no help
        """Free a stored tensor; by default Python does, with the last reference to it."""
        return

    def now(self) -> float:
        """Seconds on the executor's clock: by default this machine's, for a simulation the simulated time."""
        return perf_counter()

    def next_event(self, timeout_s: float | None) -> Event | None:
        """The next event; None after `timeout_s` seconds without one (None: no limit), or if `wake` comes first."""

    def wake(self) -> None:
        """Make `next_event` return now, None if there is no event. May be called from another thread."""

    def close(self) -> None:
        """End all workers and free everything."""
