"""Damaged files of every kind that graphcut reads: it raises its own errors only, within 2 GB and 20 s.

`scripts/fuzz 5000` tries so many damaged files of each kind, other ones each time.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import STEPS, Step, change_fields, damaged
from onnx import ModelProto

import graphcut
from graphcut import Across, GraphcutError, Into, Within, demos
from graphcut.costs.cluster import read_cluster, read_simulated_cluster
from graphcut.costs.tables import read_table, save_table, table_of
from graphcut.costs.weighing import weigh
from graphcut.drawing.json_records import analysis_record, cascade_record, dumps
from graphcut.drawing.opening import rendered, scenario_at, scene_at
from graphcut.exporting import ExportFormat
from graphcut.inputs.generating import generate_inputs
from graphcut.inputs.input_files import read_inputs
from graphcut.planning.plan_files import replay
from graphcut.simulating.simulator import simulate
from graphcut.surgery.cutting import prepare, split

from cases import FUZZ, each
from hazards import HAZARDS

LIMIT_BYTES = 2_000_000_000
LIMIT_S = 20
LONGEST_TEXT = 20_000
pytestmark = pytest.mark.fuzz
TOGETHER = 10
"""So many damages are tried in one process: making one takes longer than trying a damage."""

Damage = TypeVar("Damage")
Test = TypeVar("Test", bound=Callable[..., None])


def fuzz(examples: int) -> Callable[[Test], Test]:
    """The same damages each time, unless more are asked for."""
    return settings(
        max_examples=(FUZZ or examples) // TOGETHER,
        derandomize=not FUZZ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def several(damage: st.SearchStrategy[Damage]) -> st.SearchStrategy[list[Damage]]:
    return st.lists(damage, min_size=TOGETHER, max_size=TOGETHER)


def trouble_with(use: Callable[[Damage], object], damages: Iterable[Damage]) -> str:
    """What is wrong with calls in a process of their own, with 2 GB more memory than now, 20 s each; else empty.

    Errors of graphcut are expected. A crash in native code ends the other process, so that the test shows the damages.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of ONNX Runtime do not come along, nor need to
        child = os.fork()
    if child == 0:
        _use_and_exit(use, damages, writing)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; after {LIMIT_S} s that is SIGPROF"
    return said or f"code {code}" * code


def _use_and_exit(use: Callable[[Damage], object], damages: Iterable[Damage], writing: int) -> None:
    code = 1
    try:
        faulthandler.disable()
        for each_limit in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(each_limit, signal.SIG_DFL)
        if sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for damage in damages:
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # processor time, on a machine that does something else, too
            signal.alarm(10 * LIMIT_S)
            with suppress(GraphcutError):
                use(damage)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
        os.write(writing, traceback.format_exc()[-LONGEST_TEXT:].encode())
    finally:
        os._exit(code)


@each(
    ("wrong", "said"),
    [
        (os.abort, "ended by SIGABRT"),
        (lambda: bytearray(2 * LIMIT_BYTES), "MemoryError"),
        (lambda: signal.raise_signal(signal.SIGALRM), "ended by SIGALRM"),
        (lambda: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_whatever_is_wrong_is_said(wrong: Callable[[], object], said: str) -> None:
    def use(is_wrong: bool) -> object:  # noqa: FBT001
        return wrong() if is_wrong else graphcut.open_cascade("nowhere")

    assert said in trouble_with(use, [False, True, False])
    assert trouble_with(use, [False, False]) == ""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder, a plan for it, its cascade, a cluster, a cost model and inputs."""
    home = tmp_path_factory.mktemp("fuzzing")
    demos.write("llm", home / "m.onnx", hidden=8, layers=2, heads=2, kv_heads=1, vocab=16)
    model = graphcut.load(home / "m.onnx")
    plan = graphcut.plan(model, Into(2))
    graphcut.save_plan(plan, model, home / "plan.json")
    graphcut.split(model, plan, home / "parts")
    (home / "cluster.toml").write_text(CLUSTER)
    save_table(table_of(weigh(model)), home / "costs.csv")
    np.savez(home / "x.npz", **generate_inputs(model))
    return home


CLUSTER = """
[[devices]]
name = "a"
memory_bytes = "1GB"
flops_per_s = 1e11
[[devices]]
name = "b"
bytes_per_s = "20GB"
[[links]]
between = ["a", "b"]
bytes_per_s = "100MB"
latency_s = 1e-3
[[faults]]
device = "a"
jitter_s = 1e-3
[[failures]]
device = "b"
at_s = 1.0
for_s = 2.0
"""

EXPORTS: Sequence[ExportFormat] = ("cpp", "js", "lingualinked", "triton", "ort-annotations")
MODELS: Sequence[bytes] = [make().model.SerializeToString() for make in HAZARDS.values()]


def use_model(path: Path, folder: Path) -> None:
    """Everything that reads a model and doesn't run it."""
    model = graphcut.load(path)
    analysis = graphcut.analyze(model)
    dumps(analysis_record(analysis))
    rendered(scene_at(path), "html")
    weigh(model)
    with suppress(MemoryError):  # an input of 2 GiB is made if it fits into memory
        generate_inputs(model)
    for goal in (Within("1MB", ()), Into(2)):
        cascade = split(model, graphcut.plan(analysis, goal), folder, force=True)
        graphcut.verify(model, cascade, structural_only=True)
        graphcut.merge(cascade, folder.with_suffix(".whole"), force=True)
        graphcut.extract(model, folder.with_suffix(".extract"), expose=cascade.parts[0].writes, force=True)
    ends = {(1, model.graph.reads[0]): (0, model.graph.writes[0])} if model.graph.reads else {}
    graphcut.merge_models([model, model], folder.with_suffix(".twice"), connect=ends, force=True)


@fuzz(40)
@given(several(st.tuples(st.integers(0, len(MODELS) - 1), STEPS)))
def test_a_model_with_damaged_bytes(home: Path, damages: list[tuple[int, list[Step]]]) -> None:
    def use(damage: tuple[int, list[Step]]) -> None:
        which, steps = damage
        (home / "bad.onnx").write_bytes(damaged(MODELS[which], steps))
        use_model(home / "bad.onnx", home / "bad.parts")

    assert not trouble_with(use, damages)


@fuzz(60)
@given(several(st.tuples(st.integers(0, len(MODELS) - 1), STEPS)))
def test_a_model_with_changed_fields(home: Path, damages: list[tuple[int, list[Step]]]) -> None:
    def use(damage: tuple[int, list[Step]]) -> None:
        which, steps = damage
        model = ModelProto.FromString(MODELS[which])
        change_fields(model, steps)
        (home / "bad.onnx").write_bytes(model.SerializeToString())
        use_model(home / "bad.onnx", home / "bad.parts")

    assert not trouble_with(use, damages)


@fuzz(40)
@given(several(STEPS))
def test_a_damaged_manifest(home: Path, damages: list[list[Step]]) -> None:
    path = home / "parts" / "bad.json"

    def use(steps: list[Step]) -> None:
        path.write_bytes(damaged((home / "parts/cascade.json").read_bytes(), steps))
        cascade = graphcut.open_cascade(path)
        dumps(cascade_record(cascade))
        rendered(scene_at(path), "html")
        graphcut.verify(home / "m.onnx", cascade, structural_only=True)
        graphcut.verify_files(cascade)
        uses: tuple[Callable[[], object], ...] = (
            partial(graphcut.merge, cascade, home / "bad.onnx", force=True),
            *(partial(graphcut.export, cascade, home / to, to=to, force=True) for to in EXPORTS),
            partial(graphcut.fetch, path, home / "fetched"),
            lambda: [*graphcut.generate(path, [[1, 2]], max_tokens=2)],
            lambda: graphcut.run(cascade, read_inputs(home / "x.npz", cascade.manifest.reads)),
        )
        for also in uses:
            with suppress(GraphcutError):
                also()

    assert not trouble_with(use, damages)


@fuzz(40)
@given(several(STEPS))
def test_a_damaged_plan(home: Path, damages: list[list[Step]]) -> None:
    path = home / "bad.json"

    def use(steps: list[Step]) -> None:
        path.write_bytes(damaged((home / "plan.json").read_bytes(), steps))
        analysis = graphcut.analyze(home / "m.onnx")
        prepare(analysis.model, replay(analysis, path), home / "bad.parts")
        rendered(scene_at(path, model=home / "m.onnx"), "svg")

    assert not trouble_with(use, damages)


@fuzz(40)
@given(several(STEPS))
def test_a_damaged_cluster(home: Path, damages: list[list[Step]]) -> None:
    path = home / "bad.toml"

    def use(steps: list[Step]) -> None:
        path.write_bytes(damaged(CLUSTER.encode(), steps))
        simulate(scenario_at(home / "parts", read_simulated_cluster(path)), requests=20)
        graphcut.plan(home / "m.onnx", Across(read_cluster(path)))

    assert not trouble_with(use, damages)


@fuzz(40)
@given(several(STEPS))
def test_a_damaged_cost_model(home: Path, damages: list[list[Step]]) -> None:
    path = home / "bad.csv"

    def use(steps: list[Step]) -> None:
        path.write_bytes(damaged((home / "costs.csv").read_bytes(), steps))
        graphcut.plan(home / "m.onnx", Into(2), table=read_table(path))

    assert not trouble_with(use, damages)


@fuzz(60)
@given(several(st.tuples(STEPS, st.booleans())))
def test_damaged_inputs(home: Path, damages: list[tuple[list[Step], bool]]) -> None:
    path = home / "bad.npz"

    def use(damage: tuple[list[Step], bool]) -> None:
        steps, is_inside = damage
        if is_inside:  # the members, with right checksums
            with zipfile.ZipFile(home / "x.npz") as archive, zipfile.ZipFile(path, "w") as bad:
                for name in archive.namelist():
                    bad.writestr(name, damaged(archive.read(name), steps))
        else:
            path.write_bytes(damaged((home / "x.npz").read_bytes(), steps))
        read_inputs(path, graphcut.open_cascade(home / "parts").manifest.reads)

    assert not trouble_with(use, damages)
