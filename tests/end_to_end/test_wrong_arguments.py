"""Arguments that the library does not know are refused where they are given, and the hint says what was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from decoders import with_concat

import graphcut
from graphcut import Cascade, Into

from cases import each


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(with_concat(masked=True), path)
    return graphcut.split(path, Into(2))


@each(
    ("call", "name", "hint"),
    [
        (lambda c, **more: graphcut.generate(c, [[1]], max_tokens=1, **more), "memory", "did you mean 'memory_bytes'?"),
        (lambda c, **more: graphcut.generate(c, [[1]], max_tokens=1, **more), "temperature", "it takes inputs, "),
        (graphcut.DecodingService, "max_contex", "did you mean 'max_context'?"),
        (lambda c, **more: [*graphcut.stream(c, [], **more)], "worker", "did you mean 'workers'? it takes via, "),
        (graphcut.Pipeline, "overlaps", "did you mean 'overlap'?"),
    ],
)
def test_a_keyword_argument_that_is_not_known_is_refused(
    decoder: Cascade, call: Callable[..., Any], name: str, hint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(decoder, **{name: 1})
    assert str(caught.value) == f"unexpected keyword argument {name!r}"
    (note,) = caught.value.__notes__
    assert note.startswith(f"hint: {hint}")
