"""What others get: one version everywhere, and the scripts of the action, the hook and the container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import graphcut
from graphcut import Across, Cluster, Device, Into, demos

from pages import ROOT

CHECK = ROOT / "scripts" / "check-models"


def text_of(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a model and its cascade."""
    demos.write("resnet", tmp_path / "model.onnx")
    graphcut.split(tmp_path / "model.onnx", Into(2), tmp_path / "parts")
    return tmp_path


def started(words: list[object], home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A script, with `graphcut` and `python` as they are here."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}
    return subprocess.run([*map(str, words)], cwd=home, env=env, capture_output=True, text=True, check=False)


def test_the_version_stands_in_one_place_and_is_cited() -> None:
    assert 'dynamic = ["version"]' in text_of("pyproject.toml")
    assert f"\nversion: {graphcut.__version__}\n" in text_of("CITATION.cff")
    assert f"\n## {graphcut.__version__}\n" in text_of("CHANGELOG.md")


def test_a_model_must_fit_and_a_cascade_must_be_its_model(home: Path) -> None:
    files = ["model.onnx", "parts/cascade.json", "parts/part-0.onnx", "parts/part-1.onnx"]
    done = started([CHECK, "1GB", *files], home)
    checked = [line for line in done.stdout.splitlines() if line.startswith("ok: ")]
    assert (done.returncode, checked) == (0, ["ok: model.onnx", "ok: parts/cascade.json"]), done.stderr
    assert started([CHECK, "1kB", "model.onnx"], home).returncode == 4
    proto = onnx.load(home / "model.onnx")
    proto.graph.node[0].name = "renamed"
    onnx.save(proto, home / "model.onnx")
    done = started([CHECK, "", *files], home)
    assert (done.returncode, "was not cut from model.onnx" in done.stderr) == (3, True)


def test_what_github_reads_is_yaml_and_jobs_wait_for_jobs_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    for path in (*(ROOT / ".github").rglob("*.yml"), ROOT / "action.yml", ROOT / ".pre-commit-hooks.yaml"):
        read = yaml.safe_load(path.read_text("utf-8"))
        jobs = read.get("jobs", {}) if isinstance(read, dict) else {}
        needed = {
            name
            for job in jobs.values()
            for name in ([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", ()))
        }
        assert needed <= set(jobs), path


def test_the_action_and_the_hook_start_the_script_that_is_tested() -> None:
    assert '"$GITHUB_ACTION_PATH/scripts/check-models" "$MEMORY"' in text_of("action.yml")
    assert "entry: scripts/check-models" in text_of(".pre-commit-hooks.yaml")
    files = re.search(r"files: (.*)", text_of(".pre-commit-hooks.yaml"))
    assert files is not None
    assert [bool(re.search(files[1], name)) for name in ("a/m.onnx", "p/cascade.json", "m.onnx.data")] == [1, 1, 0]


def test_a_container_gets_the_parts_of_its_device_and_joins_as_it(home: Path) -> None:
    cluster = Cluster(devices=(Device(name="laptop"), Device(name="board")))
    plan = graphcut.plan(graphcut.analyze(home / "model.onnx"), Across(cluster))
    cascade = graphcut.split(home / "model.onnx", plan, home / "planned")
    device = cascade.parts[0].device
    (home / "bin").mkdir()
    (home / "bin" / "ray").write_text('#!/bin/sh\necho "$@"\n')
    (home / "bin" / "ray").chmod(0o755)
    path = os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"SOURCE": "planned", "FOLDER": "mine", "DEVICE": str(device), "HEAD": "10.0.0.1:6379", "PATH": path}
    done = started([ROOT / "examples" / "worker" / "start"], home, **given)
    assert done.stdout == f'start --address=10.0.0.1:6379 --resources={{"dev:{device}": 1}} --block\n', done.stderr
    assert (home / "mine" / "part-0.onnx").is_file()


WITHOUT = """
import os, signal, sys

sys.modules["fcntl"] = sys.modules["resource"] = None
for place, names in (
    (os, "pread preadv pwrite sysconf posix_fallocate sched_getaffinity O_NOFOLLOW O_CLOEXEC"),
    (signal, "SIGHUP SIGKILL SIGALRM setitimer"),
):
    for name in names.split():
        if hasattr(place, name):
            delattr(place, name)
from graphcut.__main__ import start

for words in ("analyze model.onnx", "plan model.onnx --num-splits 2", "show parts", "compare model.onnx model.onnx"):
    sys.argv = ["graphcut", *words.split()]
    try:
        start()
    except SystemExit as end:
        assert not end.code, words
"""


def test_commands_that_only_read_need_nothing_that_windows_lacks(home: Path) -> None:
    """As docs/explanation/limitations.md says; what else there is on Windows, this does not show."""
    done = started([sys.executable, "-c", WITHOUT], home)
    assert done.returncode == 0, done.stderr
