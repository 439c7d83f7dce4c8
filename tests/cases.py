"""Several cases of a claim in one test, and random ones, as many as are asked for.

`scripts/fuzz` sets GRAPHCUT_FUZZ, the number of random cases of each test that draws some.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, cast

import pytest

FUZZ = int(os.environ.get("GRAPHCUT_FUZZ", "0"))

Test = Callable[..., None]


def each(
    names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Iterable[str] = (), together: int = 10**6
) -> Callable[[Test], Test]:
    """A test that runs `together` cases as one item; a failure names its case.

    It takes what `pytest.mark.parametrize` takes. It is for cases that need little time. Each has a `tmp_path` of its
    own, which is the current folder. Other fixtures are shared by the cases of an item; the files that they made in the
    test's folder are put back after each case.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [dict(zip(listed, case if len(listed) > 1 else (case,), strict=True)) for case in cases]
    texts = list(ids) or [", ".join(f"{name}={value!r}" for name, value in row.items()) for row in values]
    rows = list(zip(texts, values, strict=True))
    assert rows
    taken_as = "_".join((*listed, "cases"))
    items = {start: rows[start : start + together] for start in range(0, len(rows), together)}

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run_several(**fixtures: Any) -> None:  # noqa: ANN401 - of any type
            folder = fixtures["tmp_path"] if "tmp_path" in kept else fixtures.pop("tmp_path")
            _run(test, fixtures.pop(taken_as), fixtures, folder)

        taken = signature(test)
        kept = [name for name in taken.parameters if name not in listed]
        own = (Parameter(name, Parameter.KEYWORD_ONLY) for name in dict.fromkeys((*kept, "tmp_path", taken_as)))
        run_several.__signature__ = taken.replace(parameters=list(own))  # type: ignore[attr-defined]
        mark = pytest.mark.parametrize(taken_as, items.values(), ids=map(str, items))
        return cast(Test, mark(run_several))

    return decorate


def some(usual: Iterable[Any], *more: Any) -> list[Any]:  # noqa: ANN401 - cases of any type
    """The usual cases, and for `scripts/fuzz` more of them, which take the same way through the code."""
    return [*usual, *(more if FUZZ else ())]


def seeded(usual: int, *failed: int, together: int = 1) -> Callable[[Test], Test]:
    """A test that runs for each `seed` below `usual`, and for those at which it `failed` once.

    An item has so many seeds `together`: a test that takes milliseconds draws many. `scripts/fuzz` tries more seeds.
    """
    seeds = dict.fromkeys([*range(FUZZ or usual), *failed])
    return lambda test: pytest.mark.fuzz(each("seed", seeds, together=together)(test))


def crossed(
    names: tuple[str, str], firsts: Iterable[Any], seconds: Iterable[Any], *, times: int, together: int
) -> Callable[[Test], Test]:
    """A test that runs for each of `firsts` with so many of `seconds` in turn, and with all of them for `scripts/fuzz`.

    It is for claims about two things that hardly depend on each other, such as a model and the shares of its ranks.
    """
    others = list(seconds)
    times = len(others) if FUZZ else times
    cases = [(one, others[(i * times + k) % len(others)]) for i, one in enumerate(firsts) for k in range(times)]
    return lambda test: pytest.mark.fuzz(each(names, cases, together=together)(test))


def _run(test: Test, rows: Sequence[tuple[str, Mapping[str, object]]], fixtures: dict[str, Any], folder: Path) -> None:
    """Run a test for all rows of arguments. It is skipped if all of them are.

    Raises:
        AssertionError: or another error of the test; several of them as a group. Each has a note with its case.
    """
    errors: list[Exception] = []
    skipped: list[BaseException] = []
    shared = _contents(folder)
    for i, (text, row) in enumerate(rows):
        if "tmp_path" in fixtures:
            fixtures["tmp_path"] = folder / f"case{i}"
            fixtures["tmp_path"].mkdir()
        try:
            with chdir(fixtures.get("tmp_path", ".")):
                test(**fixtures, **row)
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except Exception as error:  # noqa: BLE001 - raised below
            error.add_note(f"case: {text}")
            errors.append(error)
        if i + 1 < len(rows):
            _put_back(folder, shared)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} cases fail", errors)
    if skipped and len(skipped) == len(rows):
        raise skipped[0]


def _contents(folder: Path) -> dict[Path, bytes]:
    """The files in a folder, without those of cases."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path: path.read_bytes() for path in files if not path.relative_to(folder).parts[0].startswith("case")}


def _put_back(folder: Path, contents: Mapping[Path, bytes]) -> None:
    found = _contents(folder)
    for path in found.keys() - contents.keys():
        path.unlink()
    for path, content in contents.items():
        if found.get(path) != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
