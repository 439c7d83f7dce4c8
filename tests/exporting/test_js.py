"""Cascades in JavaScript: ONNX Runtime for Node.js, for WebAssembly, and in a browser gives what the model gives."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import graphcut
from graphcut import Into, Limits, UsageError
from graphcut.inputs.generating import generate_inputs

from browser import Browser, find_browser
from cases import crossed, each
from conftest import FIXTURES, ROOT, floats, model_of

export_js = partial(graphcut.export, to="js")

PACKAGES = ROOT / "scripts" / "node" / "node_modules"
NODE, BROWSER = shutil.which("node"), find_browser()
in_node = pytest.mark.skipif(
    NODE is None or not PACKAGES.exists(), reason="needs Node.js and `source scripts/setup peers`"
)
in_browser = pytest.mark.skipif(
    BROWSER is None or not PACKAGES.exists(), reason="needs Chromium and `source scripts/setup peers`"
)
Ran = Callable[..., dict[str, Any]]
ENGINES = ("onnxruntime-node", "onnxruntime-web")
#: whether the served model and its cascade write the same bits, by output.
COMPARE = """async (address, values) => {
    const ort = await import(`${address}/ort/ort.min.mjs`);
    const { openCascade } = await import(`${address}/js/runner.mjs`);
    const session = { executionProviders: ["wasm"], graphOptimizationLevel: "disabled" };
    const inputs = Object.fromEntries(
        Object.entries(values).map(([name, [dims, data]]) => [name, new ort.Tensor("float32", data, dims)]));
    const whole = await (await ort.InferenceSession.create(`${address}/unet.onnx`, session)).run(inputs);
    const cascade = await openCascade(ort, `${address}/js/cascade.json`, { session });
    const outputs = await cascade.run(inputs);
    const bits = ({ data }) => new Uint32Array(data.buffer, data.byteOffset, data.length).join();
    return Object.keys(whole).map((name) => [name, bits(whole[name]) === bits(outputs[name])]);
}"""
CDN = "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist"


def fed(path: Path) -> dict[str, NDArray[Any]]:
    """Inputs that the model runs with."""
    made = generate_inputs(graphcut.load(path), seed=3)
    return {name: np.asarray(value) for name, value in made.items()}


def output_names(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path, load_external_data=False).graph.output]


def as_json(values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Tensors as `engine.mjs` reads and writes them."""
    return {
        name: {"type": value.dtype.name, "dims": list(value.shape), "data": b64encode(value.tobytes()).decode()}
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    """What `engine.mjs` answers, in one process: to start one and to load both engines takes longer than most tasks."""
    words, pipe = [str(NODE), str(Path(__file__).parent / "engine.mjs")], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as node:

        def run(engine: str, values: Mapping[str, NDArray[Any]], **task: object) -> dict[str, Any]:
            asked = {"engine": engine, "optimize": "disabled", "packages": f"{PACKAGES}/", "inputs": as_json(values)}
            print(json.dumps(asked | task), file=node.stdin, flush=True)
            answer: dict[str, Any] = json.loads(node.stdout.readline() if node.stdout else "")
            return answer

        yield run


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """A model whose second half has 9 MB of weights: two blocks of a digest."""
    table = numpy_helper.from_array(np.arange(2_250_000, dtype=np.float32).reshape(-1, 2), "table")
    nodes = [
        helper.make_node("Cast", ["x"], ["rows"], name="cast", to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "rows"], ["y"], name="gather"),
    ]
    path = tmp_path / "blocks.onnx"
    onnx.save(model_of(nodes, [floats("x", 3)], [floats("y", 3, 2)], [table]), path)
    return path


def exported(path: Path, parts: int, folder: Path) -> str:
    """Write the cascade of a model into `folder/js`; the address of its manifest."""
    plan = graphcut.plan(path, Into(parts), limits=Limits(inside_layers=True))
    export_js(graphcut.split(graphcut.load(path), plan, folder / "parts"), folder / "js")
    return (folder / "js" / "cascade.json").as_uri()


@in_node
@crossed(("name", "engine"), ["unet.onnx", "lstm.onnx", "tiny-llama-int4/model.onnx"], ENGINES, times=1, together=1)
def test_a_cascade_gives_the_bits_of_its_model(engine: str, name: str, tmp_path: Path, ran: Ran) -> None:
    """All parts stay loaded, or one is loaded at a time."""
    address = exported(FIXTURES / name, 3, tmp_path)
    answers = ran(engine, fed(FIXTURES / name), cascade=address, model=str(FIXTURES / name))
    whole = answers.pop("whole")
    assert answers == {
        "kept": {"outputs": whole, "most": 3, "alive": 0},
        "freed": {"outputs": whole, "most": 1, "alive": 0},
    }


@in_node
def test_parts_of_ranks_read_ranges_of_one_file(tmp_path: Path, ran: Ran) -> None:
    ranked = graphcut.split_by_rank(FIXTURES / "tiny-llama-fp32" / "model.onnx", tmp_path / "parts", ranks=2)
    assert max(len(data.digest.ranges) for part in ranked.parts for data in part.data.values() if data.digest) > 1
    export_js(ranked, tmp_path / "js")
    address = (tmp_path / "js" / "cascade.json").as_uri()
    onnx.save(onnx.load(ranked.source), tmp_path / "whole.onnx")
    answers = ran("onnxruntime-node", fed(ranked.source), cascade=address, model=str(tmp_path / "whole.onnx"))
    assert answers["kept"]["outputs"] == answers["whole"]


@in_node
@pytest.mark.parametrize("place", [10, 8_500_000])
def test_a_changed_weight_is_refused_whichever_block_it_is_in(
    place: int, blocks: Path, tmp_path: Path, ran: Ran
) -> None:
    address = exported(blocks, 2, tmp_path)
    (data,) = (tmp_path / "js").glob("*.data")
    rows = {"x": np.array([0, 5, 1_124_999], np.float32)}
    answer = ran("onnxruntime-node", rows, cascade=address)["kept"]
    assert answer["outputs"] == as_json({"y": np.array([[0, 1], [10, 11], [2249998, 2249999]], np.float32)})
    raw = bytearray(data.read_bytes())
    raw[place] ^= 1
    data.write_bytes(raw)
    answer = ran("onnxruntime-node", rows, cascade=address)["kept"]
    assert answer["error"] == f"{data.name} was changed after the model was cut"


@in_node
@each(
    ("change", "message"),
    [
        (("part-1.onnx", b"truncated"), "part-1.onnx was changed after the model was cut"),
        (("cascade.json", b'{"format": "graphcut.cascade/9"}'), "has the format graphcut.cascade/9 instead of"),
        (("../up.onnx", b""), "'../part-1.onnx' is outside the manifest's folder"),
        (("no input", b""), "the input 'x' is missing"),
    ],
)
def test_what_does_not_fit_the_manifest_is_refused(
    change: tuple[str, bytes], message: str, blocks: Path, tmp_path: Path, ran: Ran
) -> None:
    address, values = exported(blocks, 2, tmp_path), fed(blocks)
    name, content = change
    manifest = tmp_path / "js" / "cascade.json"
    if name == "no input":
        values = {}
    elif name.startswith(".."):
        manifest.write_text(manifest.read_text().replace('"part-1.onnx"', '"../part-1.onnx"'))
    else:
        (tmp_path / "js" / name).write_bytes(content)
    answer = ran("onnxruntime-node", values, cascade=address)["freed"]
    assert message in answer["error"]
    assert answer["alive"] == 0


def test_parts_that_share_the_weights_of_their_model_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "tiny-llama-int4", tmp_path / "model")
    shared = graphcut.split(graphcut.load(tmp_path / "model" / "model.onnx"), Into(2), weights="share")
    with pytest.raises(UsageError, match="a browser would fetch all of them for each part"):
        export_js(shared, tmp_path / "js")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The address at which a static server shows `tmp_path`, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@in_browser
def test_the_page_runs_the_cascade_part_by_part(
    browser: Browser, served: tuple[str, list[str]], tmp_path: Path
) -> None:
    exported(FIXTURES / "unet.onnx", 3, tmp_path)
    shutil.copy(FIXTURES / "unet.onnx", tmp_path)
    for folder in (tmp_path, tmp_path / "js"):
        (folder / "ort").symlink_to(PACKAGES / "onnxruntime-web" / "dist")
    address, asked = served
    page = browser.open(f"{address}/js/index.html")
    page.wait_for("document.getElementById('parts').rows.length === 3")
    asked.clear()
    page.evaluate("document.querySelector('button').click()")
    page.wait_for("/done|failed/.test(document.getElementById('message').textContent)")
    assert page.evaluate("document.getElementById('message').textContent") == "done"
    assert (
        page.evaluate("[...document.getElementById('parts').rows].map((row) => row.cells[3].textContent)")
        == ["free"] * 3
    )
    assert [path.removeprefix("/js/") for path in asked if "part" in path] == [
        f"part-{i}.onnx{ending}" for i in range(3) for ending in ("", ".data")
    ]
    values = {name: [value.shape, value.ravel().tolist()] for name, value in fed(tmp_path / "unet.onnx").items()}
    same = page.evaluate(f"({COMPARE})({json.dumps(address)}, {json.dumps(values)})")
    assert same == [[name, True] for name in output_names(FIXTURES / "unet.onnx")]
    assert page.complaints() == []
    page.close()


@in_browser
def test_a_page_without_onnx_runtime_says_what_to_copy(
    browser: Browser, served: tuple[str, list[str]], tmp_path: Path
) -> None:
    exported(FIXTURES / "unet.onnx", 3, tmp_path)
    html = tmp_path / "js" / "index.html"
    assert CDN in html.read_text()
    html.write_text(html.read_text().replace(CDN, "../none"))
    page = browser.open(f"{served[0]}/js/index.html")
    page.wait_for("document.getElementById('message').textContent")
    said = page.evaluate("document.getElementById('message').textContent")
    page.close()
    assert said.startswith("failed: ../none/ort.min.mjs can't be loaded; without network, copy the folder dist")
