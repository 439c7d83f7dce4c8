"""What the scheduler and its workers say to each other, wherever the workers are.

An executor is a set of workers that hold parts: threads, processes, actors on other machines, or nothing but a clock.
The scheduler decides what runs where and when; an executor carries it out, and reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..values import Value

Handle = object
"""A tensor as its executor knows it: an OrtValue, a place in shared memory, a reference to another machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """Parts that one worker runs one after the other for one request.

    Attributes:
        request: the number of the request.
        parts: the places of the parts, ascending.
        writes: what is wanted of what they make.
        attempt: how often the request had to begin anew; answers to an earlier attempt are of no use.
        sequence: whose states they read and keep; None for parts that keep nothing.
        zero_states: where a sequence begins: the shapes of its states, which are all zeros.
    """

    request: int
    parts: tuple[int, ...]
    writes: tuple[str, ...]
    attempt: int = 0
    sequence: int | None = None
    zero_states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker holds its parts.

    Attributes:
        worker: which.
        parts: the places of all parts that it now holds.
    """

    worker: int
    parts: frozenset[int]


@dataclass(frozen=True, slots=True)
class Done:
    """A step is done.

    Attributes:
        worker: who did it.
        step: what it was.
        outputs: where its `writes` lie.
        seconds: what each of its parts took.
        memory_bytes: what the worker has in memory, where it is a process of its own; 0 where nobody tells.
    """

    worker: int
    step: Step
    outputs: Mapping[str, Handle]
    seconds: tuple[float, ...]
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker could not do what it was told, and would not if it were told again.

    Attributes:
        worker: who.
        step: what it was; None where it could not load its parts.
        error: what it says.
    """

    worker: int
    step: Step | None
    error: Exception


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone, and with it the states that it kept.

    Attributes:
        worker: who.
        reason: in words.
        is_permanent: there is no place where it could be started again.
    """

    worker: int
    reason: str
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A tensor that was made lies nowhere any more, so a step could not run.

    Attributes:
        worker: who should have run it.
        step: the step.
    """

    worker: int
    step: Step


Event = Ready | Done | Failed | Died | Lost


class Executor(Protocol):
    """Workers, by their numbers. Nothing here waits but `next_event`.

    Attributes:
        can_die: workers may end on their own or be ended.
    """

    can_die: bool

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """Begin a worker that holds `parts`, or begin it again after it died; `Ready` or `Failed` or `Died` follows."""

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        """Make a running worker hold exactly `parts`, beside its work; `Ready` or `Failed` follows."""

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        """Let an idle worker run a step on what it reads; `Done`, `Failed`, `Died` or `Lost` follows."""

    def forget(self, sequence: int) -> None:
        """Let all workers drop the states of a sequence."""

    def kill(self, worker: int) -> None:
        """End a worker at once, whatever it does; `Died` follows."""

    def put(self, value: Value, tensor: str) -> Handle:
        """Place a value where workers find it."""

    def get(self, handle: Handle, tensor: str) -> Value:
        """The value that lies there, in memory of its own or that stays.

        Raises:
            LookupError: it is lost.
        """

    def release(self, handle: Handle) -> None:
        """Nobody needs what lies there any more."""

    def now(self) -> float:
        """Seconds on the clock that the executor lives by."""

    def next_event(self, timeout_s: float | None) -> Event | None:
        """The next report; None after `timeout_s` without one."""

    def wake(self) -> None:
        """Let `next_event` return None now; called from another thread."""

    def close(self) -> None:
        """End all workers, and leave nothing behind."""
