"""Examples in docstrings give the output that they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import graphcut

from cases import each

PACKAGE = Path(graphcut.__file__).parent
MODULES = [
    ".".join(("graphcut", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@each("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
