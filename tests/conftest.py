"""What tests share: models small enough to read, written and opened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from graphcut import Model, load

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
ORT_VERSION = tuple(int(number) for number in ort.__version__.split(".")[:2])

Draw = Callable[..., Model]


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    weights: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
) -> ModelProto:
    """A valid model of IR 8."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def floats(name: str, *shape: int | str | None) -> ValueInfoProto:
    """A float32 tensor of that shape."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


@contextmanager
def openings(file: Path) -> Iterator[list[str]]:
    """The modes in which Python opens `file`: an audit hook sees every opening."""
    seen: list[str] = []
    is_watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if is_watching and event == "open" and str(arguments[0]) == str(file):
            seen.append(str(arguments[1]))

    sys.addaudithook(hook)  # it can't be removed
    yield seen
    is_watching = False


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """x → Relu → a → Exp → b → Neg → y, with a skip from a to the end."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Exp", ["a"], ["b"], name="exp"),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        helper.make_node("Add", ["c", "a"], ["y"], name="add"),
    ]
    path = tmp_path / "chain.onnx"
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)]), path)
    return path


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[ModelProto], Model]:
    """Write a model and open it."""

    def write(proto: ModelProto, **options: object) -> Model:
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        return load(path, **options)  # type: ignore[arg-type]

    return write
