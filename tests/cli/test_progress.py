"""What is said while a command works: bars on a terminal, and lines elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from graphcut import cli
from graphcut.cli.output import counting, settings, workers_notes, writing


class Terminal(io.StringIO):
    """A terminal that keeps all that it was told."""

    def isatty(self) -> bool:
        return True

    @property
    def words(self) -> str:
        """Without the sequences that move the cursor and choose colours."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture(autouse=True)
def _is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "is_quiet", False)  # as a command before may have left it


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """It is stderr from now on: no fixture, since pytest takes stderr back before a test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return made


def test_a_terminal_shows_how_much_of_a_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with writing(verb="fetching") as progress:
        assert progress is not None
        progress("part-0.onnx", 3 << 20, 4 << 20)
    assert re.search(r"fetching part-0\.onnx .*3\.0/4\.0 MiB", terminal.words)
    assert "0/100 bytes" not in terminal.words


def test_a_terminal_shows_how_many_requests_are_answered_and_what_is_sent_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    with counting("requests", 2) as advance:
        note = workers_notes()
        note("[a] to worker 1", 0.25)
        advance()
        note("[a] to worker 1", 0.5)
        note("worker 1 ended", None)
        advance()
    assert re.search(r"2/2 +requests, [\d,.]+ a second", terminal.words)
    assert "sending [a] to worker 1" in terminal.words
    assert "worker 1 ended\n" in terminal.words


def test_elsewhere_each_quarter_of_what_is_sent_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    note = workers_notes()
    for share in (0.0, 0.1, 0.3, 0.4, 1.0):
        note("weights to a", share)
    lines = [f"sending weights to a, {percent} %" for percent in (0, 25, 100)]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_warning_of_another_package_is_as_python_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    cli._show_warning("old", DeprecationWarning, "theirs.py", 7)
    assert capsys.readouterr().err == "theirs.py:7: DeprecationWarning: old\n"
