"""Models whose weights are inputs too: whatever is made of them asks for the inputs of the model, and for no others.

Before IR 4 each initializer is an input, and none can be fed. From IR 4 on such an input has a default.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import Cascade, Into, cli, demos

from cases import FUZZ, each
from conftest import ROOT
from hazards import HAZARDS

LLM: Mapping[str, Any] = {"layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1, "intermediate": 16, "vocab": 16}
NEVER_IN = {  #: what a format can't hold, whatever the IR version is.
    "triton": "input_as_output|map_input|rankless_boundary|empty_slots",
    "mobile": "int4_weights|optional_boundary|rare_attributes",
}
NAMES = [name for name in (*demos.DEMOS, *HAZARDS) if name != "no_nodes"]
SOME = ("llm", "overridable_default_input", "overridable_default_as_output", "external_data")


def written(name: str, ir: int, folder: Path) -> Path:
    """The model of that IR version, with an input for each weight, and for one that no node reads."""
    path = folder / "model.onnx"
    if name in HAZARDS:
        HAZARDS[name]().write(folder)
    else:
        demos.write(name, path, **LLM if name == "llm" else {})
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "unread"))
    listed = {value.name for value in model.graph.input}
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in listed
    )
    model.ir_version = ir
    onnx.save(model, path)
    return path


def needed(paths: Iterable[Path]) -> set[str]:
    """What ONNX Runtime has to be fed to run models one after the other."""
    options, read, made = ort.SessionOptions(), set[str](), set[str]()
    options.log_severity_level = 3
    for path in paths:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        read |= {value.name for value in session.get_inputs()} - made
        made |= {value.name for value in session.get_outputs()}
    return read


# ONNX Runtime's checker for mobile devices does not clean up after an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@each("ir", [3, 8])
@each("name", NAMES if FUZZ else SOME)
def test_no_input_becomes_required(name: str, ir: int, tmp_path: Path) -> None:
    path = written(name, ir, tmp_path)
    try:
        inputs = needed([path])
    except Exception:  # noqa: BLE001 - several classes
        pytest.skip("ONNX Runtime takes no such model")
    cascade = graphcut.split(path, Into(min(2, len(graphcut.load(path).graph.flow))), tmp_path / "parts")
    parts = [cascade.file(part) for part in cascade.parts]
    assert graphcut.verify(path, cascade)
    assert graphcut.verify_files(cascade).objections == ()
    assert needed(parts) == inputs & {name for part in cascade.parts for name in part.reads}
    graphcut.merge(cascade, tmp_path / "merged.onnx")
    graphcut.extract(path, tmp_path / "exposed.onnx", expose=cascade.parts[0].writes[:1])
    graphcut.export(cascade, tmp_path / "annotated", to="ort-annotations")
    for whole in ("merged.onnx", "exposed.onnx", "annotated/model.onnx"):
        assert needed([tmp_path / whole]) == inputs, whole
    for to in ("cpp", "js", "lingualinked", "mobile", "model-package", "triton"):
        if not re.fullmatch(NEVER_IN.get(to, ""), name):
            graphcut.export(cascade, tmp_path / to, to=to)
            assert read_in(tmp_path / to, cascade) == needed(parts), to


def read_in(folder: Path, cascade: Cascade) -> set[str]:
    """What an exported cascade asks for."""
    match folder.name:
        case "lingualinked":
            names = json.loads((folder / "model_input_names.json").read_bytes())
            return {name for module in names.values() for name in module} - set(cascade.wiring.boundary_tensors)
        case "triton":
            config = (folder / "model" / "config.pbtxt").read_text()
            maps = re.findall(r'input_map { key: "(.*)" value', config)
            listed = re.findall(r'^input { name: "([^"]*)"', config, re.MULTILINE)
            assert {*maps} - set(cascade.wiring.boundary_tensors) <= {*listed}
            return {*maps} - set(cascade.wiring.boundary_tensors)
        case "mobile":
            return needed(folder / f"{Path(part.file).stem}.ort" for part in cascade.parts)
        case "model-package":
            return needed(folder / part.name / part.file for part in cascade.parts)
        case _:
            return needed(folder / part.file for part in cascade.parts)


@each("ir", [3, 8])
def test_the_stages_of_genai_read_what_its_configuration_names(ir: int, tmp_path: Path) -> None:
    path = written("llm", ir, tmp_path)
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids"}
    names |= {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    decoder = {"num_hidden_layers": 1, "inputs": names, "outputs": {"logits": "logits"}}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    cascade = graphcut.split(path, Into(2), tmp_path / "parts")
    graphcut.export(cascade, tmp_path / "genai", to="genai")
    config = json.loads((tmp_path / "genai" / "genai_config.json").read_bytes())
    stages = [stage for one in config["model"]["decoder"]["pipeline"] for stage in one.values()]
    for stage in stages:
        assert {*stage["inputs"]} == needed([tmp_path / "genai" / stage["filename"]])


COMMANDS = (
    *("analyze model.onnx", "analyze model.onnx --axes", "show model.onnx --to json", "compare model.onnx model.onnx"),
    *("plan model.onnx --num-splits 2 -o plan.json", "show plan.json", "split model.onnx --plan plan.json -o parts"),
    *(
        "show parts",
        "verify parts",
        "verify parts --files",
        "run parts --inputs random -o y.npz",
        "simulate parts --cluster two.toml --requests 3",
    ),
    *("bench parts --way parts --rounds 1", "measure model.onnx -o costs.csv", "fetch parts --part 0 -o first"),
    *("show first", "verify first --files", "merge parts -o whole.onnx", "export parts --to model-package -o package"),
    *("split model.onnx --num-splits 1 --weights share", "auto model.onnx --precision fp32 --num-splits 1 -o auto"),
)


@each("name", NAMES if FUZZ else ["llm"])
def test_every_command_takes_them_or_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, codes = written(name, 3, tmp_path), dict[str, object]()
    (tmp_path / "two.toml").write_text("".join(f'[[devices]]\nname = "{device}"\n' for device in "ab"))
    for words in COMMANDS:
        monkeypatch.setattr("sys.argv", ["graphcut", *words.split()])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        codes[words] = ended.value.code or 0
        assert "internal error" not in capsys.readouterr().err, words
    assert path.exists()
    assert {*codes.values()} <= {0, 1, 2, 3, 4}
    assert name != "llm" or [words for words, code in codes.items() if code] == []


def test_plain_onnxruntime_runs_parts_without_the_inputs_that_have_defaults(tmp_path: Path) -> None:
    hazard = HAZARDS["overridable_default_input"]()
    path = hazard.write(tmp_path)
    graphcut.split(path, Into(2), tmp_path / "parts")
    np.savez(tmp_path / "x.npz", x=np.asarray(hazard.feeds["x"]))
    main = runpy.run_path(str(ROOT / "examples" / "plain_onnxruntime.py"))["main"]
    main(tmp_path / "parts", tmp_path / "x.npz", tmp_path / "y.npz")
    expected = ort.InferenceSession(path).run(None, {"x": hazard.feeds["x"]})
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], expected[0])
