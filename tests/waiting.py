"""Waiting for what other threads and processes do, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(claim: Callable[[], object], seconds: float = 60) -> bool:
    """Wait until `claim` holds, at most so long. Returns whether it does."""
    end = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
