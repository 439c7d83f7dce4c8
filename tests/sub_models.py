"""Random sub-models, and a check that each computes what the whole model does."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort

import graphcut
from graphcut import Model
from graphcut.running.stage import external_weights_entry, run_session, session_options
from graphcut.running.values import Value, to_value
from graphcut.verifying.numerical import EXACT, compare_tensor, half_tolerance, random_tensors, run_whole


def random_ends(model: Model, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """The tensors at both ends of what lies between two random order ideals, one inside the other.

    An order ideal is a set of nodes with all that they depend on; nodes are added one by one, any that is ready.
    """
    graph = model.graph
    sorter = TopologicalSorter(
        {n: {graph.producer[name] for name in graph.nodes[n].reads if name in graph.producer} for n in graph.flow}
    )
    sorter.prepare()
    done, ready = list[int](), list[int]()
    while sorter.is_active():
        ready += sorter.get_ready()
        done.append(ready.pop(rng.integers(len(ready))))
        sorter.done(done[-1])
    low, high = sorted(rng.integers(len(done) + 1, size=2))
    before, inside, after = done[:low], done[low:high], done[high:]
    made_before = {*graph.reads, *(name for n in before for name in graph.nodes[n].writes)}
    reads = dict.fromkeys(name for n in inside for name in graph.nodes[n].reads if name in made_before)
    wanted = {*graph.writes, *(name for n in after for name in graph.nodes[n].reads)}
    writes = [name for n in inside for name in graph.nodes[n].writes if name in wanted]
    return [*reads], writes


def check_extract(model: Model, feeds: Mapping[str, object], rng: np.random.Generator, output: Path) -> int:
    """Extract a random sub-model, feed it with what the whole model computes there, and compare; how many tensors."""
    reads, writes = random_ends(model, rng)
    if not writes:
        return 0
    weights: Literal["copy", "share"] = "share" if output.parent == model.path.parent else "copy"
    made = graphcut.extract(model, output, inputs=reads, outputs=writes, weights=weights, force=True)
    options = session_options(EXACT, external_weights_entry(output.parent))
    session = ort.InferenceSession(output, options, providers=["CPUExecutionProvider"])
    values = run_whole(model, feeds, [*reads, *writes], config=EXACT)
    fed = {name: to_value(values[name], model.tensors[name]) for name in made.graph.reads}
    found = run_session(session, fed, writes, model.tensors)
    assert [one.name for one in session.get_outputs()] == writes
    compared, other = comparisons(model, values, dict(zip(writes, (found[name] for name in writes), strict=True)))
    assert other == []
    return compared


def comparisons(model: Model, values: Mapping[str, Value], found: Mapping[str, Value]) -> tuple[int, list[str]]:
    """How many tensors were `found` whose values are not drawn at random, and which of them are not as in the model."""
    chance, fraction = random_tensors(model), half_tolerance(model)
    names = [name for name in found if name not in chance]
    results = [compare_tensor(model.tensors[name], values[name], found[name], fraction, None) for name in names]
    return len(names), [one.tensor for one in results if not one.passes]
