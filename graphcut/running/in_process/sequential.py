"""A cascade run part by part, one part loaded at a time; and what users feed, as values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from ...core.errors import RunError
from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Value, to_value


def run_sequentially(
    cascade: Cascade, feeds: Mapping[str, object], *, config: SessionConfig
) -> Iterator[dict[str, Value]]:
    """All that is held before the first part and after each part: what a later part reads, or is an output."""
    held = input_values(cascade, feeds)
    last_reader = {name: i for i, part in enumerate(cascade.parts) for name in part.reads}
    outputs = set(cascade.manifest.writes)
    yield dict(held)
    for i, part in enumerate(cascade.parts):
        held.update(Stage(cascade, part, config=config).step(held))
        held = {name: v for name, v in held.items() if name in outputs or last_reader.get(name, -1) > i}
        yield dict(held)


def input_values(cascade: Cascade, feeds: Mapping[str, object]) -> dict[str, Value]:
    """What a user feeds, as values.

    Raises:
        RunError: an input is missing, unknown or of the wrong type.
    """
    manifest = cascade.manifest
    for name in feeds:
        if name not in manifest.reads:
            close = difflib.get_close_matches(name, manifest.reads, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise RunError(
                f"the model has no input {name!r}", hint=f"{guess}its inputs: {', '.join(manifest.reads) or 'none'}"
            )
    missing = [name for name in manifest.reads if name not in feeds and name not in manifest.optional]
    used = {name for part in cascade.parts for name in part.reads} | set(manifest.writes)
    needed = [name for name in missing if name in used]
    if needed:
        raise RunError(
            f"the model reads {cascade.tensors[needed[0]]} {needed[0]!r}, and nothing is fed for it",
            hint=f"it needs {', '.join(n for n in manifest.reads if n in used and n not in manifest.optional)}",
        )
    return {name: to_value(value, cascade.tensors[name]) for name, value in feeds.items()}
