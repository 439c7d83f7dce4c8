"""`scripts/benchmark` says what it needs, and makes the folder that it works in."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "scripts" / "benchmark"


def test_outside_an_installed_environment_it_says_what_to_run() -> None:
    done = subprocess.run([sys.executable, "-E", "-S", BENCHMARK, "plan"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: numpy is not installed here\nhint: run `source scripts/setup` first\n"


def test_a_folder_that_is_missing_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    spec = spec_from_loader("benchmark_script", SourceFileLoader("benchmark_script", str(BENCHMARK)))
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    worked_in = list[Path]()
    monkeypatch.setattr(script, "bench_page", lambda folder, **_: worked_in.append(folder.parent))
    monkeypatch.setattr(sys, "argv", ["benchmark", "page", "--folder", str(tmp_path / "new" / "folder")])
    script.main()
    assert worked_in == [tmp_path / "new" / "folder"]
