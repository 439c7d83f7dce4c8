"""Many requests through a cascade, as a pipeline: workers each own some parts, and each works on another request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from queue import Queue
from threading import Thread
from typing import Any, Final, Literal, NamedTuple

from ..cascade import Cascade, Part
from ..errors import RunError, UsageError
from .balancing import Balance, even_bounds
from .crew import Crew
from .dispatching import Answer, Dispatcher, OnError
from .flights import Request, Unit, Wires
from .log import Log
from .sequential import opened
from .staff import Member
from .stage import Policy
from .threads import ThreadCrew
from .values import to_array
from .worker import Places

Via = Literal["threads", "processes", "ray"]

_READY: Final = 2
"""How many answers may lie ready before the workers wait for whoever uses them."""


def stream(  # noqa: PLR0913 - each is a decision of its own, and has a default that serves
    cascade: Cascade,
    feeds: Iterable[Mapping[str, object]],
    *,
    via: Via = "threads",
    workers: int | None = None,
    window: int | None = None,
    overlap: int = 0,
    on_error: OnError = "raise",
    policy: Policy | None = None,
    log: Log | None = None,
) -> Iterator[dict[str, Any] | RunError]:
    """The model's outputs for each of `feeds`, in order, while other parts work on other feeds.

    Parts that don't depend on each other run at the same time, for one feed too. Feeds are fetched as there is room for
    them, never all at once.

    Args:
        cascade: from `split` or `open_cascade`.
        feeds: the model's inputs by name, as for `run`.
        via: `threads` of this process; `processes` of this machine, which may die and are replaced; actors of a `ray`
            cluster.
        workers: how many; by themselves one for each device of the plan, or else one for each core, though no more than
            parts. Those beyond the number of parts share the work of the heaviest.
        window: how many feeds may be on their way; twice the number of workers by itself.
        overlap: how many parts of each neighbour a worker holds besides its own. They can change hands at once where
            one is slower than the other; others are loaded first.
        on_error: `raise` what goes wrong with a feed, or give the error in place of its outputs and go on.
        policy: how sessions are built; threads are shared out among the workers by themselves.
        log: what happens is noted there.

    Raises:
        UsageError: there can't be so many workers.
        RunError: an input is missing, unknown or of the wrong type; a part fails or can't be loaded; a device is lost
            for which no other has room.
    """
    members = staff_of(cascade, workers, overlap)
    wires = Wires(units_of(cascade, {}), cascade.manifest.writes)
    crew = crew_of(cascade, via, _shared_out(policy or Policy(), len(members)), {}, members)
    balance = _balance(cascade, members)
    dispatcher = Dispatcher(
        wires,
        crew,
        members,
        window=window or 2 * len(members),
        on_error=on_error,
        balance=balance,
        log=log,
    )
    requests = (Request(opened(cascade, feed)) for feed in feeds)
    for answer in ahead(dispatcher, requests):
        if isinstance(answer, RunError):
            yield answer
        else:
            yield {name: to_array(value, cascade.tensors[name]) for name, value in answer.items()}


def units_of(cascade: Cascade, states: Places) -> list[Unit]:
    """The parts as the dispatcher sees them: states that a part keeps are not sent around."""
    made = []
    for place, part in enumerate(cascade.parts):
        kept = {name for state in states.get(place, ()) for name in (state.past, state.present)}
        made.append(
            Unit(
                part.file,
                tuple(name for name in part.reads if name not in kept),
                tuple(name for name in part.writes if name not in kept),
                needs_of(part),
            )
        )
    return made


def needs_of(part: Part) -> int:
    """What a part takes on its device, in bytes: weights, and activations for the sizes it was planned for."""
    return part.weight_bytes + part.activation_bytes


def staff_of(cascade: Cascade, workers: int | None, overlap: int = 0) -> list[Member]:
    """Who owns which parts.

    Raises:
        UsageError: there can't be so many workers.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers can't run anything", hint="take 1 or more")
    parts, hosts = cascade.parts, cascade.manifest.devices
    if workers is None and hosts and all(part.device is not None for part in parts):
        return [
            Member(host.name, host.memory_bytes, tuple(i for i, part in enumerate(parts) if part.device == host.name))
            for host in hosts
        ]
    number = workers or min(len(parts), os.cpu_count() or 1)
    bounds = even_bounds([needs_of(part) + 1.0 for part in parts], min(number, len(parts)))
    spans = [tuple(range(start, stop)) for start, stop in pairwise(bounds)]
    while len(spans) < number:  # the heaviest is shared by so many that each has less to do than the next heaviest
        spans.append(max(spans, key=lambda span: sum(needs_of(parts[i]) for i in span) / spans.count(span)))
    last = len(parts) - 1
    held = (frozenset(range(max(0, span[0] - overlap), min(last, span[-1] + overlap) + 1)) for span in spans)
    return [
        Member(f"worker {i}", None, span, also=also) for i, (span, also) in enumerate(zip(spans, held, strict=True))
    ]


def crew_of(cascade: Cascade, via: Via, policy: Policy, states: Places, members: Sequence[Member]) -> Crew:
    """Workers of a kind."""
    match via:
        case "threads":
            return ThreadCrew(cascade, policy, states)
        case "processes":
            from .processes import ProcessCrew

            return ProcessCrew(cascade, policy, states)
        case "ray":
            from .ray import RayCrew

            return RayCrew(cascade, policy, states, [member.name for member in members])


def _balance(cascade: Cascade, members: Sequence[Member]) -> Balance | None:
    """Parts can change hands where each worker owns a stretch of its own, and at least one owns several."""
    owned = [part for member in members for part in member.owns]
    if len(members) < 2 or owned != list(range(len(cascade.parts))) or len(owned) == len(members):
        return None
    bounds = (0, *(member.owns[-1] + 1 for member in members))

    def allowed(worker: int, parts: range) -> bool:
        limit = members[worker].memory_bytes
        return limit is None or sum(needs_of(cascade.parts[i]) for i in parts) <= limit

    return Balance(bounds, allowed=allowed)


def _shared_out(policy: Policy, workers: int) -> Policy:
    """Threads for one operator: together no more than there are cores."""
    return policy if policy.threads else replace(policy, threads=max(1, (os.cpu_count() or 1) // workers))


def ahead(dispatcher: Dispatcher, requests: Iterable[Request]) -> Iterator[Answer]:
    """The answers of `dispatcher`, which runs in a thread of its own: workers don't wait while answers are used.

    What it raises is raised here, after the answers before. Whoever stops early ends it.
    """
    answers: Queue[Answer | _End] = Queue(maxsize=_READY)

    def work() -> None:
        end = _End(None)
        try:
            for answer in dispatcher.run(requests):
                answers.put(answer)
        except BaseException as error:  # noqa: BLE001 - it is raised where the answers are used
            end = _End(error)
        answers.put(end)

    thread = Thread(target=work, name="graphcut dispatcher")
    thread.start()
    answer: Answer | _End = _End(None)
    try:
        while not isinstance(answer := answers.get(), _End):
            yield answer
    finally:
        dispatcher.stop()
        while not isinstance(answer, _End):
            answer = answers.get()
        thread.join()
    if answer.error is not None:
        raise answer.error


class _End(NamedTuple):
    """No more answers, for this reason."""

    error: BaseException | None
