"""A cascade part by part, with one part loaded at a time; and the inputs of a user as values."""

from collections.abc import Iterator

from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Feeds, RunPart, Value, Values, check_fed, to_value


def run_sequentially(cascade: Cascade, feeds: Feeds, *, config: SessionConfig) -> Iterator[dict[str, Value]]:
    """Run the parts in order. Yields the values at each boundary: before the first part, and after each part.

    A value is kept if a later part reads it or if it is an output.
    """
    values = input_values(cascade, feeds)
    yield values
    step = lambda index, now: Stage(cascade, cascade.parts[index], config=config).step(now)  # noqa: E731
    yield from run_stages(cascade, values, step)


def run_stages(cascade: Cascade, values: Values, step: RunPart) -> Iterator[dict[str, Value]]:
    """Run the parts in order, beginning with the inputs `values`. Yields the values that are kept after each part."""
    for index, kept in enumerate(cascade.alive_after):
        made = {**values, **step(index, values)}
        values = {name: value for name, value in made.items() if name in kept}
        del made
        yield values


def input_values(cascade: Cascade, feeds: Feeds) -> dict[str, Value]:
    """The inputs of a user as values. Raises RunError if one is missing, unknown or of the wrong type."""
    check_fed(feeds, cascade.manifest.reads, cascade.needed, cascade.tensors, cascade.manifest.elsewhere)
    return {name: to_value(value, cascade.tensors[name]) for name, value in feeds.items()}
