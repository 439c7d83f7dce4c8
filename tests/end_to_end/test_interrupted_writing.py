"""Ctrl-C at each moment at which Python can notice it while a command writes a file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from graphcut.__main__ import _handle_signals
from graphcut.running.npz_files import save_outputs

OLD, NEW = {"y": np.zeros(3)}, {"y": np.ones(3)}


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, FrameType], None]:
    """What the command does when it receives a signal. A test calls it again instead of setting a timer."""
    handlers: dict[int, Callable[[int, FrameType], None]] = {}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # the command sets its own
    monkeypatch.setattr("signal.getsignal", lambda _: signal.SIG_DFL)
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr("signal.setitimer", lambda *_: None)
    _handle_signals([])
    return handlers[signal.SIGALRM]


def interrupted(work: Callable[[], None], stop: Callable[[int, FrameType], None], *, at: int) -> None:
    """Run `work` with a signal at its nth call or end of a call of C: Python looks for signals there."""
    seen = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in {"call", "c_return"}:
            seen += 1
            if seen >= at:
                stop(signal.SIGALRM, frame)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)


def test_a_file_is_written_in_full_or_not_at_all_whenever_it_is_interrupted(
    tmp_path: Path, stop: Callable[[int, FrameType], None]
) -> None:
    for name, outputs in (("old", OLD), ("new", NEW)):
        save_outputs(outputs, tmp_path / f"{name}.npz")
    old, new = ((tmp_path / f"{name}.npz").read_bytes() for name in ("old", "new"))
    path, found = tmp_path / "out" / "y.npz", []
    path.parent.mkdir()
    for at in count(1):
        path.write_bytes(old)
        try:
            interrupted(lambda: save_outputs(NEW, path), stop, at=at)
        except KeyboardInterrupt:  # what is left is looked at before its frames are deleted, which cleans up more
            assert [*path.parent.iterdir()] == [path], at
            found.append(path.read_bytes())
        else:
            break
    assert at > 300
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert found[-1] == new


def test_code_that_belongs_to_no_module_is_interrupted_too(stop: Callable[[int, FrameType], None]) -> None:
    """As templates of chats, which jinja2 compiles."""
    template: dict[str, Callable[[], None]] = {}
    exec("def render():\n    len('')", template)  # noqa: S102
    with pytest.raises(KeyboardInterrupt):
        interrupted(template["render"], stop, at=1)
