"""A machine that only runs parts: what docs/guides/install.md says works there, works with four packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphcut
from graphcut.demos import write

from pages import ROOT

PAGE = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")

# Other packages may be installed here; there they are not.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"onnx", "onnx_graphsurgeon", "networkx", "highspy", "ml_dtypes",
                                      "typer", "click", "rich", "ray"} or name == "google.protobuf":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

RUN = """
import graphcut

cascade = graphcut.open_cascade("llm.parts")
prompt = [[1, 15, 27]]
expected = graphcut.generate(cascade, prompt, max_tokens=4).all()
assert len(expected[0]) == 4
assert graphcut.generate(cascade, prompt, max_tokens=4, via="processes", workers=2).all() == expected

import numpy as np

unet = graphcut.open_cascade("unet.parts")
feeds = {"image": np.ones((1, 3, 64, 64), np.float32)}
mask = graphcut.run(unet, feeds)["mask"]
with graphcut.Runner(unet) as runner:
    assert (runner.run(feeds)["mask"] == mask).all()
for via in ("threads", "processes"):
    for outputs in graphcut.stream(unet, [feeds] * 3, via=via, workers=2):
        assert (outputs["mask"] == mask).all()
with graphcut.Pipeline(unet, workers=2) as pipeline:
    assert (pipeline.submit(feeds).result()["mask"] == mask).all()
assert graphcut.fetch("unet.parts", "first", parts=[0]).parts == unet.parts[:1]
try:
    graphcut.load("unet.onnx")
except ModuleNotFoundError:
    print("ran")
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two cascades, and Python that finds few packages."""
    folder = tmp_path_factory.mktemp("machine")
    for name in ("llm", "unet"):
        write(name, folder / f"{name}.onnx")
        model = graphcut.load(folder / f"{name}.onnx")
        graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(3)), folder / f"{name}.parts")
        (folder / f"{name}.onnx").unlink()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(MISSING)
    return folder


def test_parts_run_with_four_packages(machine: Path) -> None:
    path = os.pathsep.join([str(machine / "site"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=machine,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ran\n", done.stderr


def test_the_guide_names_these_packages_and_what_was_run() -> None:
    section = PAGE.partition("## A machine that only runs parts")[2].partition("\n## ")[0]
    assert re.findall(r"^pip install (.*)$", section, flags=re.MULTILINE)[-1] == "numpy onnxruntime msgspec"
    assert "pip install --no-deps dist/graphcut-*.whl" in section
    for name in re.findall(r"`graphcut\.(\w+)`", section):
        assert f"graphcut.{name}(" in RUN
