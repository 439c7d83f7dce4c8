"""Names that are not known."""

import pytest

from graphcut.core.errors import UsageError, check_names

from cases import each


@each(
    ("known", "hint"),
    [
        ([], "its inputs: none"),
        (["x", "mask"], "did you mean 'mask'? its inputs: x, mask"),
        ([f"x{i}" for i in range(30)], f"its inputs: {', '.join(f'x{i}' for i in range(24))}, ..."),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_most_like_it_and_with_some_of_the_others(
    known: list[str], hint: str
) -> None:
    with pytest.raises(UsageError, match="the model has no input 'maks' here") as caught:
        check_names([*known, "maks", "other"], known, "the model has no input", "its inputs:", " here")
    assert caught.value.hint == hint


def test_known_names_are_not_refused() -> None:
    check_names(["x"], {"x": 1, "y": 2}, "the model has no input", "its inputs:")
