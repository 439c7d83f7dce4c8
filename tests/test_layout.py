"""The layout that docs/ARCHITECTURE.md describes: which module may import which, and what is loaded when."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import graphcut
from graphcut import demos

from cases import each

PACKAGE = Path(graphcut.__file__).parent
LAYERS = (
    {"core"},
    {"loading", "running", "transferring"},
    {"costs", "demos", "inputs", "workers"},
    {"analysis", "decoding", "sharding", "solving"},
    {"planning", "verifying"},
    {"surgery"},
    {"automating", "benchmarking", "exporting", "simulating"},
    {"drawing"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
"""From the bottom up: a module imports from lower layers only."""

LAYER = {module: layer for layer, modules in enumerate(LAYERS) for module in modules}
ONNX_MODULES = {
    "loading",
    "sharding",
    "surgery",
    "verifying",
    "costs",
    "inputs",
    "exporting",
    "benchmarking",
    "demos",
    "automating",
}
CORE_FILES = {
    "__init__",
    "arguments",
    "atomic_files",
    "digests",
    "file_checks",
    "errors",
    "graph",
    "product",
    "manifest",
    "present_parts",
    "records",
    "states",
    "tensors",
    "text",
    "units",
    "version",
    "wiring",
}
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def relative_imports(path: Path) -> set[tuple[str, ...]]:
    """The files and folders of the package that a file imports, as parts of their path inside the package."""
    folder = path.relative_to(PACKAGE).parts[:-1]
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = (*folder[: len(folder) - node.level + 1], *(node.module.split(".") if node.module else ()))
            found |= {(*home, alias.name) if is_module((*home, alias.name)) else home for alias in node.names}
    return found


def is_module(parts: tuple[str, ...]) -> bool:
    place = PACKAGE.joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").exists()


def outside_imports(path: Path) -> set[str]:
    """The packages a file imports when it is loaded or later, those for type checking alone left out."""
    tree = tree_of(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
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


@each("path", FILES)
def test_imports_run_downwards(path: Path) -> None:
    module = module_of(path)
    used = {parts[0] for parts in relative_imports(path) if parts} - {module}
    assert {name for name in used if LAYER[name] >= LAYER[module]} == set()


def test_which_executors_there_are_is_known_where_they_are_made_alone() -> None:
    executors = PACKAGE / "workers" / "executors"
    kinds = {(*executors.relative_to(PACKAGE).parts, name) for name in ("threads", "processes", "ray_and_threads")}
    assert {path for path in FILES if relative_imports(path) & kinds and path.parent != executors} == set()


def test_no_file_is_longer_than_450_lines() -> None:
    lines = {
        path: len(path.read_text().splitlines())
        for ending in ("py", "js", "css")
        for path in PACKAGE.rglob(f"*.{ending}")
    }
    assert {path.name: number for path, number in lines.items() if number > 450} == {}


@each("folder", FOLDERS)
def test_what_lies_in_one_folder_imports_without_a_cycle(folder: Path) -> None:
    here = folder.relative_to(PACKAGE).parts
    depth = len(here)
    imports: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        entry = path.relative_to(PACKAGE).with_suffix("").parts[depth]
        used = {parts[depth] for parts in relative_imports(path) if parts[:depth] == here and len(parts) > depth}
        imports.setdefault(entry, set()).update(used - {entry})
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_table_that_a_module_reads_is_in_the_package_and_read_once_there() -> None:
    named = [
        file.value
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "table"
        for file in node.args[:1]
        if isinstance(file, ast.Constant) and isinstance(file.value, str) and file.value.endswith((".toml", ".json"))
    ]
    files = [path.relative_to(PACKAGE) for ending in ("toml", "json") for path in PACKAGE.rglob(f"*.{ending}")]
    others = {"rule_files", "page"}  # rules of devices, which users read as their own; what Node.js takes modules by
    assert sorted(named) == sorted(path.as_posix() for path in files if path.parent.name not in others)


def test_each_choice_of_words_is_one_type() -> None:
    """The command line and the library have it from one place."""
    found = [
        ast.unparse(node.slice)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "Literal"
        and isinstance(node.slice, ast.Tuple)
    ]
    assert len(found) > 30
    assert [words for words, number in Counter(found).items() if number > 1] == []


def test_core_holds_what_both_sides_of_the_manifest_need_and_nothing_else() -> None:
    assert {path.stem for path in (PACKAGE / "core").glob("*.py")} == CORE_FILES


@each("path", FILES)
def test_large_packages_are_imported_where_they_are_needed_alone(path: Path) -> None:
    used = outside_imports(path)
    module = module_of(path)
    assert "onnx" not in used or module in ONNX_MODULES
    assert "networkx" not in used or module == "analysis"
    assert "onnx_graphsurgeon" not in used or path == PACKAGE / "loading" / "graphsurgeon_bridge.py"
    assert not used & {"typer", "rich"} or module in {"cli", "drawing"}


def test_no_module_bears_the_name_of_a_function_it_exports() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert modules & set(graphcut.__all__) == set()


def test_only_the_command_prints_or_exits() -> None:
    for path in FILES:
        called = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        owned = [func for func in called if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)]
        calls = {func.id for func in called if isinstance(func, ast.Name)} | {ast.unparse(func) for func in owned}
        assert not calls & {"print", "input", "sys.exit", "exit", "os._exit"} or module_of(path) == "cli", path


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", ["import graphcut", "import graphcut.cli"])
def test_importing_the_package_loads_no_large_one(code: str) -> None:
    large = ("onnx", "onnx_graphsurgeon", "onnxruntime", "networkx", "highspy", "numpy")
    done = run_python(f"{code}; import sys; print([name for name in {large} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


PLANNED = """
import sys
from graphcut.cli import main
sys.argv = ["graphcut", "plan", {path!r}, "--num-splits", "2"]
try:
    main()
except SystemExit as ended:
    others = ("onnxruntime", "networkx", "highspy", "graphcut.cli.run", "graphcut.cli.show")
    print(ended.code or 0, [name for name in others if name in sys.modules])
"""


def test_planning_loads_nothing_that_others_need(tmp_path: Path) -> None:
    """Each library takes a tenth of a second to import, and all other commands together half as long."""
    demos.write("llm", tmp_path / "llm.onnx")
    done = run_python(PLANNED.format(path=str(tmp_path / "llm.onnx")))
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


RUN = """
import sys
from graphcut.cli import main
sys.argv = ["graphcut", "run", *{words!r}, "--via", "threads"]
try:
    main()
except SystemExit as ended:
    print(ended.code or 0, "onnx" in sys.modules)
"""


def test_a_run_on_workers_loads_no_onnx(chain: Path, tmp_path: Path) -> None:
    """A machine that runs parts needs none, and to import it takes a tenth of a second."""
    parts = graphcut.split(chain, graphcut.At(("exp",)), tmp_path / "parts").root
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32))
    words = [str(parts), "--inputs", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    done = run_python(RUN.format(words=words))
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
    assert (tmp_path / "out.npz").exists()


def test_the_entry_point_imports_nothing_before_it_can_explain_a_signal() -> None:
    """Until then, Python prints a traceback for Ctrl-C."""
    done = run_python("import sys; before = {*sys.modules}; import graphcut.__main__; print({*sys.modules} - before)")
    assert done.stdout.strip() in {"{'graphcut', 'graphcut.__main__'}", "{'graphcut.__main__', 'graphcut'}"}
    stop = "class Stop:\n    def find_spec(self, *_: object) -> None:\n        raise KeyboardInterrupt\n"
    interrupted = "import sys; sys.meta_path.insert(0, Stop())"
    done = run_python(f"{stop}import graphcut.__main__\n{interrupted}\ngraphcut.__main__.start()")
    assert (done.returncode, done.stderr) == (130, "")


IMPORTING = """
import os, sys, time, types
sys.path.insert(0, {folder!r})

def main():
    try:
        import half
        time.sleep(20)
    finally:
        os.write(1, half.rest)

sys.modules["graphcut.cli"] = types.SimpleNamespace(main=main)
from graphcut.__main__ import start
start()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_an_import_is_complete(number: signal.Signals, tmp_path: Path) -> None:
    """numpy and ONNX Runtime made other errors of it, or crashed."""
    (tmp_path / "half.py").write_text(f"import signal\nsignal.raise_signal({int(number)})\nrest = b'all of it'\n")
    done = run_python(IMPORTING.format(folder=str(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "all of it", "")
    # Nor does it kill a command that ends in the meantime.
    ends = IMPORTING.replace("time.sleep(20)", "raise ValueError").replace(
        "start()\n", "import atexit\natexit.register(time.sleep, 0.1)\nstart()\n"
    )
    done = run_python(ends.format(folder=str(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "all of it", "")


def test_every_public_name_resolves() -> None:
    assert all(getattr(graphcut, name) is not None for name in graphcut.__all__)
    assert sorted(graphcut.__all__) == graphcut.__all__


NOT_NEEDED_TO_RUN = ("google", "highspy", "networkx", "onnx", "onnx_graphsurgeon", "ray", "rich", "typer")

PARTS_ONLY = """
import sys
import numpy as np
import graphcut
if __name__ == "__main__":
    feeds = {name: value for name, value in np.load(sys.argv[2]).items()}
    outputs = graphcut.run(sys.argv[1], feeds)
    for via in ("threads", "processes"):
        (streamed,) = graphcut.stream(sys.argv[1], [feeds], via=via)
        assert all(np.array_equal(streamed[name], value) for name, value in outputs.items())
    np.savez(sys.argv[3], **outputs)
    print(graphcut.generate(sys.argv[1], [[1, 15, 27]], max_tokens=5).all())
"""


def test_running_a_cascade_needs_numpy_onnxruntime_and_msgspec_alone(tmp_path: Path) -> None:
    """The other packages can't be imported, in worker processes neither."""
    (tmp_path / "blocked").mkdir()
    for name in NOT_NEEDED_TO_RUN:
        (tmp_path / "blocked" / f"{name}.py").write_text("raise ImportError(__name__)")
    demos.write("llm", tmp_path / "llm.onnx")
    cascade = graphcut.split(tmp_path / "llm.onnx", graphcut.Into(2), tmp_path / "parts")
    feeds = token_feeds(cascade)
    np.savez(tmp_path / "in.npz", **feeds)
    (tmp_path / "run.py").write_text(PARTS_ONLY)
    done = subprocess.run(
        [sys.executable, tmp_path / "run.py", cascade.root, tmp_path / "in.npz", tmp_path / "out.npz"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'blocked'}{os.pathsep}{PACKAGE.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{graphcut.generate(cascade, [[1, 15, 27]], max_tokens=5).all()}\n", done.stderr
    with np.load(tmp_path / "out.npz") as outputs:
        assert all(np.array_equal(outputs[name], value) for name, value in graphcut.run(cascade, feeds).items())


def token_feeds(cascade: graphcut.Cascade) -> dict[str, Any]:
    sizes = {"batch": 1, "seq": 3, "past": 0, "total": 3}
    kinds = {"int64": np.int64, "float32": np.float32}
    tensors = [cascade.tensors[name] for name in cascade.manifest.reads]
    shapes = {t.name: [sizes.get(str(dim), dim) for dim in t.shape or ()] for t in tensors}
    return {t.name: np.ones(cast(Any, shapes[t.name]), kinds[t.dtype]) for t in tensors}
