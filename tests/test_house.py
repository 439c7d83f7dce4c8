"""The plan of the house, kept true: who may use whom, and what is loaded when."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import graphcut

HOUSE = Path(graphcut.__file__).parent
FLOORS = (
    {"errors", "pictured", "version"},
    {"wiring", "weights", "units", "placing", "records"},
    {"skeleton", "scopes", "graph", "cascade"},
    {"reading", "shapes", "structure", "running", "demos"},
    {"sizes"},
    {"model"},
    {"along", "repeats", "feeding", "costs", "benching"},
    {"analysis", "verifying"},
    {"planning"},
    {"splitting", "simulating"},
    {"merging", "measuring", "drawing", "exporting", "spreading"},
    {"things"},
    {"notebook"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ONNX_ROOMS = {
    "model",
    "reading",
    "shapes",
    "sizes",
    "structure",
    "splitting",
    "merging",
    "measuring",
    "verifying",
    "feeding",
    "costs",
    "demos",
}
FILES = sorted(HOUSE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).with_suffix("").parts[0]


def relative_imports(path: Path) -> set[str]:
    """The rooms a file imports from, itself included."""
    depth = len(path.relative_to(HOUSE).parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found


def outside_imports(path: Path) -> set[str]:
    """The packages a file imports when it is loaded or later, those for type checking alone left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_imports_run_downwards(path: Path) -> None:
    room = room_of(path)
    climbing = {used for used in relative_imports(path) if used != room and HEIGHT[used] >= HEIGHT[room]}
    assert climbing == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_each_dear_import_stands_in_its_rooms_alone(path: Path) -> None:
    used = outside_imports(path)
    room = room_of(path)
    assert "onnx" not in used or room in ONNX_ROOMS
    assert "networkx" not in used or room == "analysis"
    assert not used & {"typer", "rich"} or room in {"cli", "drawing"}


def test_no_module_bears_the_name_of_a_function_it_exports() -> None:
    modules = {path.stem for path in HOUSE.glob("*.py")} | {path.name for path in HOUSE.iterdir() if path.is_dir()}
    assert modules & set(graphcut.__all__) == set()


def test_only_the_command_prints_or_exits() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not calls & {"print", "input", "sys.exit", "exit", "os._exit"} or room_of(path) == "cli", path


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", ["import graphcut", "import graphcut.cli"])
def test_the_front_door_loads_nothing_dear(code: str) -> None:
    dear = ("onnx", "onnxruntime", "networkx", "scipy", "numpy")
    done = run_python(f"{code}; import sys; print([name for name in {dear} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_resolves() -> None:
    assert all(getattr(graphcut, name) is not None for name in graphcut.__all__)
    assert sorted(graphcut.__all__) == graphcut.__all__


def test_running_needs_numpy_onnxruntime_and_the_manifest_reader_alone() -> None:
    done = run_python(
        "import sys; blocked = ['onnx', 'networkx', 'scipy', 'typer', 'rich', 'google.protobuf'];"
        "sys.modules.update(dict.fromkeys(blocked)); from graphcut import Cascade, open_cascade, run"
    )
    assert done.returncode == 0, done.stderr
