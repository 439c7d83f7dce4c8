"""Which executor runs workers: the one place that knows all of them, and that Ray may be missing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from ...core.errors import UsageError, check_word
from ...core.manifest import Cascade
from ...running.stage import SessionConfig
from .protocol import Executor
from .threads import ThreadExecutor
from .via import Via
from .worker import StatesByPart


@contextmanager
def needing_ray(what: str) -> Iterator[None]:
    """A UsageError says that `what` needs Ray, if what is imported within finds none."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise UsageError(f"{what} needs Ray, which is not installed", hint="pip install 'graphcut[ray]'") from None


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
            with needing_ray("'ray'"):
                from .ray_and_threads import RayAndThreads

            return RayAndThreads(cascade, config, states, names)
        case _:
            assert_never(via)
