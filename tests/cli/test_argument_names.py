"""The library names arguments, and the command line its options: what `in_options` makes of every hint."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import graphcut
from graphcut.cli.argument_names import in_options

from cases import each

PACKAGE = Path(graphcut.__file__).parent
COMMANDS = ("cli", "__main__.py", "drawing/terminal", "drawing/scene_builders.py")  # the last has the next command
LIBRARY = [p for p in PACKAGE.rglob("*.py") if not p.relative_to(PACKAGE).as_posix().startswith(COMMANDS)]
OPTION = re.compile(r"(?<![\w.-])(--[a-z][\w-]*|-[a-z](?![\w-]))|graphcut [a-z-]+ (-|[A-Z]{3})")
FOREIGN = re.compile(r"ray start|--resources=|olive run|python -m|ffmpeg|--json")  # other programs; names of documents
CODE = re.compile(r"`([A-Za-z_]\w*(?:=[^`]+|\([^`]*\)(?:\.\w+)?)?)`")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def texts(path: Path) -> Iterator[tuple[bool, str]]:
    """The strings of a module, each with whether it is a docstring; `x` stands for what an f-string inserts."""
    tree = parsed(path)
    docs, pieces = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            docs.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            values = node.values
            pieces.update(map(id, values))
            yield False, "".join(str(v.value) if isinstance(v, ast.Constant) else "'x'" for v in values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield id(node) in docs, node.value


def test_the_library_names_no_option() -> None:
    lines = [(path.name, line) for path in LIBRARY for _, text in texts(path) for line in text.splitlines()]
    assert [line for line in lines if " " in line[1] and OPTION.search(line[1]) and not FOREIGN.search(line[1])] == []


def arguments() -> dict[str, str]:
    """What hints of the library name in backticks, each with the file that does."""
    found: dict[str, str] = {}
    for path in LIBRARY:
        for is_doc, text in texts(path):
            if not is_doc and "`" in text:
                found |= {f"`{code}`": path.relative_to(PACKAGE).as_posix() for code in CODE.findall(text)}
    return found


def test_every_argument_that_a_hint_names_has_an_option() -> None:
    named = arguments()
    assert len(named) > 50
    missing = {code: where for code, where in named.items() if in_options(code, "split") == code}
    assert missing == {}, "give it an entry in argument_names.py, or put names that are no arguments into quotes"
    unknown = {code for code in named if in_options(code, "no-command") == code}
    assert unknown == set()


def test_every_argument_that_a_hint_names_is_one_of_the_library() -> None:
    known = set[str]()
    for path in LIBRARY:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.arg(arg=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    known.add(name)
                case ast.AnnAssign(target=ast.Name(name)):
                    known.add(name)
    for code, where in arguments().items():
        names = re.findall(r"([A-Za-z_]\w*)[=(]", code) or [code.strip("`")]
        assert known.issuperset(names), (code, where)


@each(
    ("hint", "command", "said"),
    [
        ("choose another `output`, or add `force=True`", "split", "choose another -o, or add --force"),
        ("name it with `model`", "verify", "name it with --model"),
        ("allow `Within(11096)`, or `Into(3)`", "plan", "allow --memory 11096, or --num-splits 3"),
        ("with `Limits(inside_layers=True)`", "plan", "with --inside-layers always"),
        ("use `objective='throughput'`", "plan", "use --objective throughput"),
        ("add it to `inputs`", "run", "add it to --inputs"),
        ("give them as `prompts`", "run", "give them as --prompt-ids of `graphcut generate`"),
        ("use `ranks=2` instead", "run", "use --ranks 2 of `graphcut split` instead"),
        ("add it to `inputs`", "extract", "add it to --from"),
        ("later, at `inputs='a b,c'`", "extract", "later, at --from 'a b,c'"),
        ("see `verify(...)`", "run", "see `graphcut verify`"),
        ("get it with `fetch(..., device='my edge')`", "run", "get it with `graphcut fetch --device 'my edge'`"),
        ("`analyze(...).cut_points` lists them", "split", "`graphcut analyze MODEL --cuts` lists them"),
        ("see `ray status`, `no_argument` and `output", "run", "see `ray status`, `no_argument` and `output"),
    ],
)
def test_hints_in_the_words_of_a_command(hint: str, command: str, said: str) -> None:
    assert in_options(hint, command) == said
