"""The nine image networks of the onnx wheel, with the feeds and the answers that onnx tests its backends with.

They are real networks in all but their weights, which the model makes itself, each by a ConstantOfShape of 0.02: vgg19
is a file of 9 kB and 548 MiB in memory. For a test that cuts them, this means:

- a third to two thirds of the nodes are constant expressions, which each part makes for itself; those that make weights
  have no name;
- all are IR 3, so that initializers are inputs too;
- all elements of an answer are the same number, whatever was fed, and often some layers before the end: an answer alone
  shows little, so compare what crosses the boundaries as well, which varies nearly everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

WHEEL = Path(onnx.__file__).parent.parent
LIGHT = "onnx/backend/test/data/light/"


@dataclass(frozen=True, kw_only=True)
class LightNetwork:
    """One network, and what onnx expects of whoever runs it.

    Attributes:
        name: such as `"resnet50"`.
        path: the model, inside the installed wheel.
        feeds: one array for each input that has no initializer.
        expected: the answer to `feeds`, by output.
        rtol: how far an answer may be off, relative to the expected one.
        atol: how far it may be off besides.
    """

    name: str
    path: Path
    feeds: Mapping[str, NDArray[np.float32]]
    expected: Mapping[str, NDArray[np.float32]]
    rtol: float
    atol: float


def light_networks() -> Iterator[LightNetwork]:
    """Every network of the wheel, by name. Each is read when it is asked for."""
    for case in sorted(load_model_tests(kind="real"), key=lambda case: case.name):
        if case.url and case.url.startswith(LIGHT):
            yield _network(case.model_name, WHEEL / case.url, case.rtol, case.atol)


def _network(name: str, path: Path, rtol: float, atol: float) -> LightNetwork:
    graph = onnx.load(path).graph
    initializers = {weight.name for weight in graph.initializer}
    required = [declared for declared in graph.input if declared.name not in initializers]
    return LightNetwork(
        name=name,
        path=path,
        feeds={declared.name: Runner.generate_dummy_data(declared) for declared in required},
        expected={output.name: _answer(path, place) for place, output in enumerate(graph.output)},
        rtol=rtol,
        atol=atol,
    )


def _answer(path: Path, place: int) -> NDArray[np.float32]:
    return numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_{place}.pb")))
