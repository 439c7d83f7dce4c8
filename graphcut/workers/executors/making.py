"""Which executor runs workers: the one place that knows all of them."""

from collections.abc import Sequence
from typing import assert_never

from ...core.errors import check_word, needing
from ...core.manifest import Cascade
from ...running.stage import SessionConfig
from .protocol import Executor
from .threads import ThreadExecutor
from .via import Via
from .worker import StatesByPart


def make_executor(
    cascade: Cascade, via: Via, config: SessionConfig, states: StatesByPart, names: Sequence[str]
) -> Executor:
    """An executor for the workers of these names; a UsageError if `via` is no way to run them."""
    check_word(via, Via, "via")
    match via:
        case "threads":
            return ThreadExecutor(cascade, config, states)
        case "processes":
            from .processes import ProcessExecutor

            return ProcessExecutor(cascade, config, states)
        case "ray":
            with needing("'ray'", "ray"):
                from .ray_and_threads import RayAndThreads

            return RayAndThreads(cascade, config, states, names)
        case _:
            assert_never(via)
