"""What tests share: models small enough to read, written and opened."""

from __future__ import annotations

import ctypes
import gc
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, settings
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.onnx_cpp2py_export import shape_inference

from graphcut import Goal, Into, Limits, Model, Plan, demos, load, plan
from graphcut.loading.fingerprint import graph_digest
from graphcut.surgery import cutting

from browser import Browser, Page, Show, find_browser, started

if TYPE_CHECKING:
    from graphcut.drawing.scene import Scene

gc.disable()  # until all tests are collected
# A shell that runs the suite in the background ignores Ctrl-C for it, nohup a hangup, and so would every process that a
# test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# From bytes to bytes, by ONNX: tests open the same small models over and over.
shape_inference.infer_shapes = lru_cache(maxsize=100)(shape_inference.infer_shapes)
open_session = ort.InferenceSession.__init__
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # a busy one draws slowly

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
ORT_VERSION = tuple(int(number) for number in ort.__version__.split(".")[:2])

LAYER_ENDS = ("/model/layers.0/add_1", "/model/layers.1/add_1")
"""Nodes after which `external_llm` can be cut, so that each part has weights."""

Draw = Callable[..., Model]

LIBC = ctypes.CDLL(None)

_numbers = count()


def open_without_spinning(
    session: ort.InferenceSession,
    model: str | bytes | Path,
    sess_options: ort.SessionOptions | None = None,
    *more: Any,  # noqa: ANN401 - what ONNX Runtime takes
    **named: Any,  # noqa: ANN401 - likewise
) -> None:
    """Open a session whose threads, if nothing is said of them, sleep while they wait: several tests share a core."""
    if sess_options is None:
        sess_options = ort.SessionOptions()
        sess_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    open_session(session, model, sess_options, *more, **named)


ort.InferenceSession.__init__ = open_without_spinning

_plans: dict[tuple[object, ...], Plan] = {}


def planned_once(source: Model | str | Path, goal: Goal) -> Plan:
    """The plan that `split` makes for a goal: tests split equal models over and over, and to plan takes longest."""
    model = source if isinstance(source, Model) else load(source)
    given = (model.dims, model.states, model.stepwise, model.labels, model.loop, goal)
    key = (graph_digest(model.proto), *map(repr, given))
    if key not in _plans:
        _plans[key] = plan(model, goal)
    return _plans[key]


vars(cutting)["planner"] = SimpleNamespace(plan=planned_once)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that share clusters: at the end of the suite idle workers would take over some of them each.

    Each worker of pytest that runs one of these tests starts clusters of its own, which takes as long as the tests. The
    longest test, of the site, comes early, too: begun at the end, it would run alone. So do tests that mostly wait, for
    links and for processes: others compute meanwhile, while at the end all would wait.
    """
    first = ["test_ray_links", "test_ray", "test_serve_example", "test_site", "test_processes", "test_netcluster"]
    items.sort(key=lambda item: first.index(item.path.stem) if item.path.stem in first else len(first))


def pytest_collection_finish() -> None:
    """Search new objects for garbage less often than by default, and modules and the collected tests never.

    They took an eighth of the suite's time.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Search for garbage once. Pytest does it five times more, for another interpreter."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Let the next tests have the memory that a test frees. To give it back to the system takes a tenth of the time.

    It is set for each test, since what runs with a memory limit lets glibc return all large blocks at once.
    """
    if hasattr(LIBC, "mallopt"):
        for option, size in ((-1, 256 << 20), (-2, 16 << 20), (-3, 32 << 20)):  # as in malloc.h: trim, pad, mmap
            LIBC.mallopt(option, size)


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


def of_unknown_operator() -> ModelProto:
    """A model that ONNX Runtime can't open: a Relu, then a node of an operator that nobody defines."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu")]
    nodes.append(helper.make_node("Unheard", ["a"], ["y"], name="unheard", domain="custom"))
    model = model_of(nodes, [floats("x", "n", 2)], [floats("y", "n", 2)])
    model.opset_import.append(helper.make_opsetid("custom", 1))
    return model


def doubling(depth: int) -> ModelProto:
    """Functions that each call the next one twice; the last stands for two nodes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = model_of([helper.make_node("F0", ["x"], ["y"], domain="own")], [floats("x", 2)], [floats("y", 2)])
    model.opset_import.append(opsets[1])
    for i in range(depth):
        op, domain = (f"F{i + 1}", "own") if i + 1 < depth else ("Relu", "")
        pairs = (("p", "r"), ("r", "q"))
        body = [helper.make_node(op, [a], [b], domain=domain) for a, b in pairs]
        model.functions.append(helper.make_function("own", f"F{i}", ["p"], ["q"], body, opsets))
    return model


def simple_plan(model: Model | Path, parts: int) -> Plan:
    """So many parts of whole layers that repeat no node. To plan it takes a tenth of the time that other plans take."""
    return plan(model, Into(parts), limits=Limits(recompute="never", inside_layers=False))


def weight(name: str, *shape: int) -> TensorProto:
    """An initializer of ones."""
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


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
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own for each test. That of pytest has a number, searched among those of all tests before."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}-{next(_numbers)}", numbered=False)


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path) -> Iterator[None]:
    """The current folder, in which outputs are by default, is the test's own."""
    with chdir(tmp_path):
        yield


@pytest.fixture
def own_garbage() -> None:
    """`gc.collect()` looks at what the test makes, and not at all that was made before, which takes half a second."""
    gc.freeze()


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
def external_llm(tmp_path: Path) -> Model:
    """A decoder of two layers, with its weights in a file beside it."""
    demos.write("llm", tmp_path / "llm.onnx", layers=2, external=True)
    return load(tmp_path / "llm.onnx")


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[ModelProto], Model]:
    """Write a model and open it."""

    def write(proto: ModelProto, **options: object) -> Model:
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        return load(path, **options)  # type: ignore[arg-type]

    return write


# Pages in a real browser.


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium on this machine: the page is not tried (apt-get install chromium)")
    with started(executable) as running:
        yield running


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Open the page of a scene; it must become ready, and be closed, without errors and without requests."""
    from graphcut.drawing.html import html_of

    pages: list[tuple[Page, str]] = []

    def open_scene(shown: Scene, **options: Any) -> Page:  # noqa: ANN401 - what Browser.open takes
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html_of(shown), encoding="utf-8")
        page = browser.open(path, **options)
        pages.append((page, path.as_uri()))
        page.wait_for("document.documentElement.dataset.ready")
        assert page.complaints() == []
        return page

    yield open_scene
    for page, address in pages:
        assert page.complaints() == []
        assert {asked.partition("#")[0] for asked in page.requests()} == {address}
        page.close()
