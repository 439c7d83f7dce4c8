"""A cascade part by part, with one part loaded at a time; and the inputs of a user as values."""

from collections.abc import Iterator

from ...core.errors import RunError, did_you_mean
from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Feeds, Value, to_value


def run_sequentially(cascade: Cascade, feeds: Feeds, *, config: SessionConfig) -> Iterator[dict[str, Value]]:
    """Run the parts in order. Yields the values at each boundary: before the first part, and after each part.

    A value is kept if a later part reads it or if it is an output.
    """
    values = input_values(cascade, feeds)
    last_reader = {name: i for i, part in enumerate(cascade.parts) for name in part.reads}
    outputs = set(cascade.manifest.writes)
    yield dict(values)
    for i, part in enumerate(cascade.parts):
        values.update(Stage(cascade, part, config=config).step(values))
        values = {name: v for name, v in values.items() if name in outputs or last_reader.get(name, -1) > i}
        yield dict(values)


def input_values(cascade: Cascade, feeds: Feeds) -> dict[str, Value]:
    """The inputs of a user as values. Raises RunError if one is missing, unknown or of the wrong type."""
    manifest = cascade.manifest
    for name in feeds:
        if name not in manifest.reads:
            inputs = f"its inputs: {', '.join(manifest.reads) or 'none'}"
            raise RunError(f"the model has no input {name!r}", hint=did_you_mean(name, manifest.reads) + inputs)
    used = {name for part in cascade.parts for name in part.reads} | set(manifest.writes)
    needed = [name for name in manifest.reads if name in used and name not in manifest.optional]
    if missing := next((name for name in needed if name not in feeds), None):
        raise RunError(
            f"the model reads {cascade.tensors[missing]} {missing!r}, and nothing is fed for it",
            hint=f"it needs {', '.join(needed)}",
        )
    return {name: to_value(value, cascade.tensors[name]) for name, value in feeds.items()}
