"""Watching the machines of a Ray cluster: which of them answer, which are lost, and which may take longer."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Event
from time import perf_counter
from typing import Final

from .ray_cluster import alive_machines, is_answering

SILENT_S: Final = 2.0  #: a machine that has not answered for this long is reported.
LOST_S: Final = 10.0  #: one that has not answered for this long is lost.


class MachineWatch:
    """Which machines answer. A silent one may be back before Ray, by its settings, takes it for dead.

    Machines are given by Ray's ids of them.

    Attributes:
        lost: the machines that are lost. They stay so if they answer again.
        silent: the machines that don't answer, lost ones among them.
    """

    def __init__(self, note: Callable[[str, str], None], lose: Callable[[str, str], None]) -> None:
        """Asks none yet.

        `note` is called with a machine and what there is to say of it, and `lose` with one that is lost and the reason,
        which is empty if Ray knows of it: another machine may be the same device, then or later.
        """
        self.lost = set[str]()
        self.silent = set[str]()
        self._note = note
        self._lose = lose
        self._heard: dict[str, float] = {}  # when a machine answered last
        self._excused: dict[str, float] = {}  # until when machines that did not answer may take longer

    def are_excused(self, machines: Iterable[str]) -> bool:
        """Whether one of `machines` does not answer, or did not, so that messages may still take longer."""
        now = perf_counter()
        return any(self._excused.get(machine, now) > now for machine in machines)

    def watch(self, is_over: Event) -> None:
        """Ask all machines of the cluster until `is_over`."""
        before = set[str]()
        with ThreadPoolExecutor(32) as threads:
            while not is_over.wait(0.5):
                machines = {machine["NodeID"]: machine for machine in alive_machines()}
                for gone in sorted(before - machines.keys() - self.lost):
                    self.lost.add(gone)
                    self._lose(gone, "")
                before = {*machines}
                answers = dict(zip(machines, threads.map(is_answering, machines.values()), strict=True))
                for machine, is_answer in answers.items():
                    self.hear(machine, is_answer=is_answer)

    def hear(self, machine: str, *, is_answer: bool) -> None:
        """A machine was asked now."""
        now = perf_counter()
        silent_s = now - self._heard.setdefault(machine, now)
        if is_answer:
            self._heard[machine] = now
            if self._excused.get(machine) == inf:
                self._excused[machine] = now + silent_s  # TCP waits about as long again before it repeats
            if machine in self.silent - self.lost:
                self.silent.discard(machine)
                self._note(machine, f"answers again after {silent_s:.0f} s")
            return
        self._excused[machine] = inf
        if machine not in self.silent and silent_s > SILENT_S:
            self.silent.add(machine)
            self._note(machine, "does not answer: its machine or its link is down")
        elif machine not in self.lost and silent_s > LOST_S:
            self.lost.add(machine)
            self._lose(machine, f"its machine did not answer for {LOST_S:.0f} s")
