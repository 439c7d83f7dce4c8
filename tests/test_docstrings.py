"""Examples in docstrings give the output that they show; those of public functions name arguments and errors."""

from __future__ import annotations

import ast
import doctest
import inspect
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


FUNCTIONS = {name: one for name in graphcut.__all__ if inspect.isfunction(one := getattr(graphcut, name))}


@each("name", FUNCTIONS)
def test_a_public_function_names_the_arguments_that_are_given_by_name_and_the_errors_that_it_raises(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name])
    assert text
    for argument in inspect.signature(FUNCTIONS[name]).parameters.values():
        is_named = f"`{argument.name}`" in text or f"\n    {argument.name}: " in text
        assert is_named or argument.kind is not argument.KEYWORD_ONLY, argument.name
    for node in ast.walk(ast.parse(inspect.getsource(FUNCTIONS[name]))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = ast.unparse(node.exc.func)
            assert error in text or not error.endswith("Error"), error
