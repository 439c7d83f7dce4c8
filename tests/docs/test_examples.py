"""Each script in examples/ runs, and does what its first line says."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphcut
from graphcut.demos import write
from graphcut.inputs.generating import generate_inputs
from graphcut.running.npz_files import save_outputs

from cases import each
from pages import ROOT

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "guides" / "examples.md").read_text(encoding="utf-8")

Script = Callable[..., str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """unet.onnx and llm.onnx, inputs for each, and unet.parts."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("unet", "llm", "multitask"):
        write(name, folder / f"{name}.onnx")
        save_outputs(dict(generate_inputs(graphcut.load(folder / f"{name}.onnx"))), folder / f"{name}.npz")
    model = graphcut.load(folder / "unet.onnx")
    graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(3)), folder / "unet.parts")
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """Runs an example as a program; what it prints."""

    def example(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return example


def test_split_at_tensors(run: Script, models: Path, tmp_path: Path) -> None:
    printed = run("split_at_tensors.py", models / "unet.onnx", tmp_path / "parts", "/down.0/MaxPool_output_0")
    assert printed.endswith("same bits\n")
    assert len(graphcut.open_cascade(tmp_path / "parts").parts) == 2


def test_memory_budget(run: Script, models: Path, tmp_path: Path) -> None:
    run("memory_budget.py", models / "unet.onnx", tmp_path / "parts", 1_600_000)
    parts = graphcut.open_cascade(tmp_path / "parts").parts
    assert len(parts) > 1
    assert all(part.weight_bytes < 1_600_000 for part in parts)
    with pytest.raises(SystemExit, match="less may be enough"):
        run("memory_budget.py", models / "unet.onnx", tmp_path / "none", 1000)


def test_plain_onnxruntime(run: Script, models: Path, tmp_path: Path) -> None:
    run("plain_onnxruntime.py", models / "unet.parts", models / "unet.npz", tmp_path / "y.npz")
    expected = graphcut.run(graphcut.open_cascade(models / "unet.parts"), dict(np.load(models / "unet.npz")))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["mask"], expected["mask"])


def test_plain_onnxruntime_needs_no_graphcut() -> None:
    assert "import graphcut" not in (EXAMPLES / "plain_onnxruntime.py").read_text(encoding="utf-8")


def test_own_cost_model(run: Script, models: Path, tmp_path: Path) -> None:
    model = graphcut.load(models / "unet.onnx", dims={"batch": 1})
    modules = {node.module for node in model.graph.nodes if node.module}
    rows = [f"{module},0,0,0,{1.0 if module.startswith('down') else 0.001}" for module in sorted(modules)]
    (tmp_path / "costs.csv").write_text("\n".join(["module,num_params,num_bytes,num_flops,time_s", *rows]))
    yours, own = run("own_cost_model.py", models / "unet.onnx", tmp_path / "costs.csv", 2).splitlines()
    assert yours.removeprefix("your costs ") != own.removeprefix("own costs ")


def test_execution_provider(run: Script, models: Path) -> None:
    printed = run("execution_provider.py", models / "unet.parts", models / "unet.npz", "CPUExecutionProvider")
    assert printed.startswith("mask (")
    with pytest.raises(graphcut.RunError, match="does not have"):
        run("execution_provider.py", models / "unet.parts", models / "unet.npz", "NoSuchProvider")


def test_model_splitter(run: Script, models: Path) -> None:
    assert "8 inputs through 2 parts" in run("model_splitter.py", models / "unet.onnx", models / "unet.npz", 2)


def test_graphsurgeon_graph(run: Script, models: Path, tmp_path: Path) -> None:
    printed = run("graphsurgeon_graph.py", models / "multitask.onnx", tmp_path / "parts", "logits")
    assert printed.endswith("verified\n")
    cascade = graphcut.open_cascade(tmp_path / "parts")
    assert (len(cascade.parts), cascade.manifest.writes) == (2, ("logits",))


def test_networkx_analysis(run: Script, models: Path) -> None:
    printed = run("networkx_analysis.py", models / "unet.onnx")
    assert "/up.0/Concat" in printed.rpartition("passes:")[2]


@each("path", sorted(EXAMPLES.glob("*.py")))
def test_every_example_is_in_the_guide_and_short(path: Path) -> None:
    assert f"examples/{path.name}" in PAGE
    code = path.read_text(encoding="utf-8").partition('"""\n')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_every_example_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_the_ci_workflow_is_ten_lines_that_fail_when_a_split_is_not_equivalent() -> None:
    yaml = pytest.importorskip("yaml")
    page = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    assert len(text.splitlines()) <= 10
    steps = yaml.safe_load(text)["jobs"]["split"]["steps"]
    assert [step["run"].split()[:2] for step in steps if "run" in step][-1] == ["graphcut", "verify"]
    assert json.dumps(steps).count("continue-on-error") == 0


def test_the_notebook_goes_from_a_model_to_a_picture_and_a_run() -> None:
    """Its cells in their order; what the last line of each gives."""
    cells = json.loads((EXAMPLES / "first_steps.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    given = []
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        *first, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(first, []), "cell", "exec"), names)  # noqa: S102 - our own notebook
        mode = "eval" if isinstance(last, ast.Expr) else "exec"
        code: Any = ast.Expression(last.value) if isinstance(last, ast.Expr) else ast.Module([last], [])
        given.append(eval(compile(code, "cell", mode), names))  # noqa: S307 - as above
    pages = [(type(value).__name__, value._repr_html_()) for value in given if hasattr(value, "_repr_html_")]
    assert [name for name, page in pages if page and "<iframe" in page] == ["Analysis", "Plan", "Cascade"]
    assert len(names["cascade"].parts) == 3
    assert [bool(value) for value in given if isinstance(value, graphcut.Verification)] == [True]
    assert given[-2].keys() == set(names["cascade"].manifest.writes)
    assert len(given[-1][0]) == 8
