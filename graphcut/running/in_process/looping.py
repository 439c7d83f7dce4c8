"""The steps of a pipeline of models whose number is known: what runs once, what at each step, what after the last."""

from typing import NamedTuple

import numpy as np

from ...core.graph import grouped
from ...core.manifest import Cascade
from ..values import RunPart, Value, Values, shape_of, symbol_sizes, to_value


class LoopPhases(NamedTuple):
    """The parts of a cascade by when they run, as indices, each in order."""

    once: tuple[int, ...]  #: they read nothing that another step changes.
    step: tuple[int, ...]  #: they run at each step: a state depends on them.
    end: tuple[int, ...]  #: they read what steps make, and run after the last one.


def loop_phases(cascade: Cascade) -> LoopPhases:
    """When each part runs."""
    found = grouped((phase, index) for index, phase in enumerate(cascade.phases))
    return LoopPhases(*(tuple(found.get(phase, ())) for phase in range(3)))


def step_inputs(cascade: Cascade, step: int, fed: Values) -> dict[str, Value]:
    """The inputs that have a value of their own at a step; sizes that are symbols are those of what is `fed`."""
    tensors, loop = cascade.tensors, cascade.manifest.loop
    sizes = symbol_sizes({name: shape_of(value) for name, value in fed.items() if tensors[name].is_plain}, tensors)
    found = dict[str, Value]()
    for name, values in loop.inputs.items() if loop is not None else ():
        shape = [dim if isinstance(dim, int) else sizes.get(str(dim), 1) for dim in tensors[name].shape or ()]
        found[name] = to_value(np.full(shape, values[step]).astype(tensors[name].dtype), tensors[name])
    return found


def run_loop(cascade: Cascade, fed: Values, run: RunPart) -> dict[str, Value]:
    """The values after the last step, outputs among them.

    What runs once is kept until the end.
    """
    phases, values = loop_phases(cascade), dict(fed)
    for index in phases.once:
        values |= run(index, values)
    for step in range(0 if cascade.manifest.loop is None else cascade.manifest.loop.steps):
        values |= step_inputs(cascade, step, fed)
        for index in phases.step:
            values |= run(index, values)
        values |= {state.past: values[state.present] for state in cascade.manifest.states}
    for index in phases.end:
        values |= run(index, values)
    return values
