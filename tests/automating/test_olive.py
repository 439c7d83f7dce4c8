"""The pass for Olive, run by Olive: it quantizes a model, and the split that follows is that of the quantized model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import graphcut

from conftest import FIXTURES, ROOT

PYTHON = ROOT / ".venv-olive" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs Olive: `source scripts/setup olive`")


def olive(folder: Path, *words: str) -> str:
    """Run a module in the environment of Olive; what it says."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples" / "olive-pass")])
    environment = {**os.environ, "PYTHONPATH": path, "OLIVE_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [str(PYTHON), "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_olive_quantizes_and_splits_a_model(tmp_path: Path) -> None:
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(FIXTURES / "tiny-llama-fp32" / "model.onnx")},
        "passes": {
            "quantize": {"type": "OnnxBlockWiseRtnQuantization", "block_size": 32},
            "split": {"type": "GraphcutSplit", "num_splits": 3},
        },
        "output_dir": "parts",
        "cache_dir": "cache",
    }
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    olive(tmp_path, "olive_pass", "packages.json")
    olive(tmp_path, "olive", "run", "--config", "workflow.json", "--package-config", "packages.json")
    described = json.loads((tmp_path / "parts" / "model_config.json").read_bytes())
    assert described["type"] == "compositemodel"
    assert described["config"]["model_component_names"] == ["part-0", "part-1", "part-2"]
    (quantized,) = (path for path in (tmp_path / "cache").rglob("*.onnx") if "part-" not in path.name)
    assert {node.op for node in graphcut.load(quantized).graph.nodes} >= {"com.microsoft.MatMulNBits"}
    assert graphcut.verify(quantized, tmp_path / "parts")


@pytest.mark.parametrize("goals", [{}, {"num_splits": 2, "memory": "1MB"}])
def test_the_pass_needs_one_goal(goals: dict[str, object], tmp_path: Path) -> None:
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(FIXTURES / "unet.onnx")},
        "passes": {"split": {"type": "GraphcutSplit", **goals}},
        "output_dir": "parts",
        "cache_dir": "cache",
    }
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    olive(tmp_path, "olive_pass", "packages.json")
    said = olive(tmp_path, "olive", "run", "--config", "workflow.json", "--package-config", "packages.json")
    assert "GraphcutSplit needs one of num_splits, memory, cluster" in said
