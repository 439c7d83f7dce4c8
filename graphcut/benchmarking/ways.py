"""The ways to run a model or its cascade that `bench` measures. Imports no ONNX Runtime, so that help is fast."""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

CORES: Final = os.cpu_count() or 1

BASELINE: Final = "whole"  #: the way that the others are compared with.


class Way(NamedTuple):
    """A way to run a model: its title in a table of results, and a line for a list of all ways."""

    title: str
    description: str


WAYS: Final[Mapping[str, Way]] = {
    BASELINE: Way("whole model", "one session with the whole model, configured as graphcut does; always measured"),
    "whole-one-thread": Way("whole model, 1 thread", "the same with one thread, as each of many workers has"),
    "whole-spinning": Way("whole model, spinning", "ONNX Runtime's default options: idle threads spin"),
    "whole-concurrent": Way(f"whole model, {CORES} callers", "as many calls at a time as cores, one thread each"),
    "whole-mapped": Way("whole model, mapped", "weights are mapped from the file and not prepacked"),
    "parts": Way("parts, all loaded", "the parts one after another in one process; all stay loaded"),
    "parts-in-turn": Way("parts, loaded in turn", "the parts in the least memory possible: one is loaded at a time"),
    "parts-in-turn-mapped": Way("parts, in turn, mapped", "the same with mapped weights: the last bits may differ"),
    "threads": Way("pipeline of threads", "a pipeline whose workers are threads of one process"),
    "processes": Way("pipeline of processes", "a pipeline whose workers are processes"),
}
"""The ways that `bench` measures, by their names."""
