"""Every renderer draws the pictures in golden/; after a wanted change, `scripts/golden` renews them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cases import each
from golden_cases import CASES

GOLDEN = Path(__file__).parent / "golden"


@each(("name", "make"), CASES)
def test_the_picture_is_the_golden_file(name: str, make: Callable[[], str]) -> None:
    path = GOLDEN / name
    assert path.is_file(), f"scripts/golden makes {name}"
    assert make() == path.read_text(encoding="utf-8"), f"{name} changed: look at it, and renew it with scripts/golden"


def test_every_golden_file_has_a_case() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {name for name, _ in CASES} | {"README.md"}
