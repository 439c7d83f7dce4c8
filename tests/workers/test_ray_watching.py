"""Which machines of a Ray cluster answer, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'graphcut[ray]'")

from graphcut.workers.executors import ray_watching
from graphcut.workers.executors.ray_watching import MachineWatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(s=0.0)
    monkeypatch.setattr(ray_watching, "perf_counter", lambda: made.s)
    return made


class Heard:
    """What a watch says."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock = clock
        self.notes: list[tuple[float, str]] = []
        self.losses: list[tuple[float, str]] = []
        note = lambda _, text: self.notes.append((clock.s, text))  # noqa: E731
        lose = lambda _, reason: self.losses.append((clock.s, reason))  # noqa: E731
        self.watch = MachineWatch(note, lose)

    def hear(self, seconds: Iterable[float], *, is_answer: bool) -> None:
        for self.clock.s in seconds:
            self.watch.hear("it", is_answer=is_answer)

    def excused_at(self, second: float) -> bool:
        self.clock.s = second
        assert not self.watch.are_excused(["another"])
        return self.watch.are_excused(["another", "it"])


def test_a_machine_that_was_silent_is_excused_for_as_long_again(clock: SimpleNamespace) -> None:
    heard = Heard(clock)
    heard.hear([0, 0.5], is_answer=True)
    heard.hear(range(2, 8), is_answer=False)
    assert heard.notes == [(3, "does not answer: its machine or its link is down")]
    assert heard.excused_at(7.5)
    heard.hear([8, 8.5], is_answer=True)
    assert heard.notes[1:] == [(8, "answers again after 8 s")]
    assert [heard.excused_at(second) for second in (15, 16)] == [True, False]
    assert heard.losses == []


def test_a_machine_is_excused_from_the_first_time_that_it_does_not_answer(clock: SimpleNamespace) -> None:
    """It is back too early to be reported."""
    heard = Heard(clock)
    heard.hear([0], is_answer=True)
    heard.hear([1], is_answer=False)
    assert heard.excused_at(1.5)
    heard.hear([1.8, 2.3], is_answer=True)
    assert [heard.excused_at(second) for second in (3.5, 3.7)] == [True, False]
    assert heard.notes == []


def test_a_machine_that_is_silent_for_long_is_lost_once_for_all(clock: SimpleNamespace) -> None:
    heard = Heard(clock)
    heard.hear([0], is_answer=True)
    heard.hear(range(1, 14), is_answer=False)
    heard.hear([14, 15], is_answer=True)
    assert heard.losses == [(11, "its machine did not answer for 10 s")]
    assert heard.watch.lost == {"it"}
    assert len(heard.notes) == 1
