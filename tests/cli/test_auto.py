"""`graphcut auto`: convert, measure, cut, verify, record."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import exp, log10
from pathlib import Path
from typing import Any

import decoders
import encoders
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import Drawing
from onnx import helper, numpy_helper

import graphcut
from graphcut import demos
from graphcut.core.units import size
from graphcut.inputs.generating import generate_inputs
from graphcut.running.npz_files import save_outputs

from cases import each, some
from command_line import SCRIPT, Run, run
from conftest import FIXTURES, floats, model_of, of_unknown_operator

__all__ = ["run"]

LLM: dict[str, Any] = {"hidden": 64, "layers": 4, "heads": 4, "kv_heads": 2, "vocab": 512}
GENERATED = "note: inputs were generated: random weights or inputs say nothing about accuracy"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models for reading only."""
    folder = tmp_path_factory.mktemp("auto")
    demos.write("llm", folder / "llm.onnx", **LLM)
    demos.write("resnet", folder / "resnet.onnx")
    onnx.save(decoders.with_attention(), folder / "attention.onnx")
    encoders.save_sentence_encoder(folder / "minilm.onnx")
    encoders.save_speech_encoder(folder / "speech.onnx")
    encoders.save_speech_decoder(folder / "speech-decoder.onnx")
    encoders.save_detector(folder / "detector.onnx")
    (folder / "qwen").mkdir()
    encoders.save_qwen(folder / "qwen" / "model.onnx")
    onnx.save(decoders.with_lstm(), folder / "lstm.onnx")
    return folder


def place_of(models: Path, name: str) -> Path:
    if name == "qwen":
        return models / name / "model.onnx"
    return FIXTURES / name / "model.onnx" if name.startswith("tiny") else models / f"{name}.onnx"


def record_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "auto.json").read_text("utf-8"))
    return found


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def largest_part(folder: Path) -> int:
    return max(
        part.stat().st_size + sum(data.stat().st_size for data in folder.glob(f"{part.name}.data*"))
        for part in folder.glob("part-*.onnx")
    )


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("name", "words", "steps", "budget"),
    some(
        [
            ("llm", [], [], 1.0),
            ("tiny-llama-fp32", ["--precision", "int8", "--prepare", "fuse"], ["clean", "optimize", "int8"], 0.4),
            ("tiny-qwen2-fp32", ["--precision", "int4"], ["clean", "int4"], 0.25),
            ("qwen", ["--precision", "int8"], ["clean", "int8"], 0.3),
            ("lstm", ["--precision", "fp16"], ["clean", "fp16"], 1.0),
            ("resnet", ["--precision", "fp16"], ["clean", "fp16"], 0.25),
            ("minilm", ["--prepare", "fuse"], ["clean", "fuse", "optimize"], 0.5),
            ("speech-decoder", ["--precision", "int4", "--prepare", "fuse"], ["clean", "optimize", "int4"], 0.25),
            ("attention", ["--precision", "int8"], ["clean", "int8"], 1.0),
            ("detector", ["--precision", "int8"], ["clean", "int8"], 0.25),
        ],
        ("llm", ["--precision", "int4"], ["clean", "int4"], 0.25),
        ("llm", ["--precision", "int8"], ["clean", "int8"], 0.5),
        ("tiny-llama-fp32", ["--precision", "int4"], ["clean", "int4"], 0.5),
        ("speech", ["--precision", "int8", "--prepare", "fuse"], ["clean", "fuse", "optimize", "int8"], 0.25),
        ("speech-decoder", ["--precision", "int8"], ["clean", "int8"], 0.25),
        ("detector", ["--precision", "fp16", "--prepare", "fuse"], ["clean", "optimize", "fp16"], 1.0),
    ),
)
def test_each_kind_of_model_is_converted_cut_into_a_budget_and_verified(
    run: Run, models: Path, tmp_path: Path, *, name: str, words: list[str], steps: list[str], budget: float
) -> None:
    model, parts = place_of(models, name), tmp_path / "parts"
    whole = sum(file.stat().st_size for file in model.parent.glob(f"{model.name}*"))
    result = run("auto", model, *words, "--count", "files", "--memory", int(whole * budget), "--keep", "-o", parts)
    assert result.code == 0, result.err
    record = record_in(parts)
    assert [step["name"] for step in record["steps"]] == steps
    assert largest_part(parts) == record["tried"][-1]["largest_bytes"] <= whole * budget
    assert {"largest on disk", size(largest_part(parts))} <= {*re.split(r" {2,}|\n", result.out)}
    assert record["verified"].startswith("the cascade matches the model")
    assert run("verify", parts).code == 0
    if name == "tiny-qwen2-fp32":  # ONNX Runtime refuses this model, so that its structure alone is proved
        assert record["tried"][-1]["figures"] is None
        assert "outputs are not compared: model.onnx refuses the generated inputs" in result.err
    else:
        assert (GENERATED in result.out) == bool(steps), result.out
        assert run("run", parts, "--inputs", "random", "-o", tmp_path / "y.npz").code == 0


@pytest.mark.parametrize(
    ("name", "precision", "refused"),
    [("detector", "fp16", "'neck' (9 KiB)"), ("minilm", "int4", "")],
)
def test_budgets_from_a_quarter_to_the_whole_are_kept_or_the_weight_is_named(
    run: Run, models: Path, tmp_path: Path, *, name: str, precision: str, refused: str
) -> None:
    model, parts, numbers = models / f"{name}.onnx", tmp_path / "parts", []
    assert run("auto", model, "--precision", precision, "--num-splits", 1, "-o", parts).code == 0
    whole = largest_part(parts)
    for quarters in (1, 2, 3, 4):
        words = ["--precision", precision, "--count", "files", "--force", "-o", parts]
        result = run("auto", model, *words, "--memory", whole * quarters // 4)
        if result.code:
            assert (result.code, quarters) == (4, 1)
            assert f"its largest weight is {refused}" in result.err
        else:
            numbers.append(record_in(parts)["tried"][-1]["parts"])
            assert largest_part(parts) <= whole * quarters // 4
            assert record_in(parts)["verified"].startswith("the cascade matches the model")
    assert len(numbers) == (3 if refused else 4)
    assert numbers == sorted(numbers, reverse=True)


def test_attention_is_fused_as_the_configuration_beside_the_model_says(run: Run, models: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((models / "minilm.onnx").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "roberta", "num_attention_heads": 4, "hidden_size": 64}')
    assert (
        run("auto", tmp_path / "model.onnx", "--prepare", "fuse", "--num-splits", 1, "-o", tmp_path / "parts").code == 0
    )
    record = record_in(tmp_path / "parts")
    known = {"model_type": "bert", "num_heads": 4, "hidden_size": 64}
    assert record["steps"][1]["options"].items() >= known.items()
    assert set(record["sources"]) == {"../model.onnx", "../config.json"}


def save_dynamic(path: Path) -> None:
    """y = (x + bias) with its last two axes joined, in opset 17; bias is an input, too, and has a value."""
    rows, bias = (numpy_helper.from_array(np.array(v, t), n) for n, v, t in (("r", [-1], "q"), ("bias", [1, 2], "f")))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape", end=1),
        helper.make_node("Concat", ["s", "r"], ["to"], name="to", axis=0),
        helper.make_node("Add", ["x", "bias"], ["a"], name="add"),
        helper.make_node("Reshape", ["a", "to"], ["y"], name="reshape"),
    ]
    inputs = [floats("x", "n", 3, 2), floats("bias", 2)]
    onnx.save(model_of(nodes, inputs, [floats("y", "n", 6)], [rows, bias]), path)


def test_a_model_is_prepared_for_a_device_and_each_step_is_compared(run: Run, tmp_path: Path) -> None:
    save_dynamic(tmp_path / "m.onnx")
    words = ["--prepare", "constants,static,opset=21", "--dim", "n=4", "--num-splits", 1, "-o", tmp_path / "parts"]
    assert run("auto", tmp_path / "m.onnx", *words).code == 0
    record = record_in(tmp_path / "parts")
    assert [step["name"] for step in record["steps"]] == ["clean", "constants", "static", "opset=21"]
    assert [step["options"] for step in record["steps"][2:]] == [
        {"graph_optimization_level": "ORT_ENABLE_BASIC", "dims": {"n": 4}},
        {"opset": 21},
    ]
    assert all(step["figures"]["max"] == 0 for step in record["steps"])
    assert record["verified"].startswith("the cascade matches the model")
    part = onnx.load(tmp_path / "parts" / "part-0.onnx")
    assert [
        (value.name, [dim.dim_value for dim in value.type.tensor_type.shape.dim]) for value in part.graph.input
    ] == [("x", [4, 3, 2])]
    assert [node.op_type for node in part.graph.node] == ["Add", "Reshape"]
    assert part.opset_import[0].version == 21


@each(
    ("steps", "error", "hint"),
    [
        ("static", "static: n has no number", "give each a number with --dim"),
        ("const", "there is no step 'const'", "steps are opset=N, fuse, constants, static"),
        ("opset=0", "there is no step 'opset=0'", "steps are opset=N, fuse"),
        ("opset=99", "opset=99: onnx", "fewer of --prepare"),
    ],
)
def test_a_step_that_can_not_be_made_is_refused(run: Run, tmp_path: Path, *, steps: str, error: str, hint: str) -> None:
    save_dynamic(tmp_path / "m.onnx")
    found = run("auto", tmp_path / "m.onnx", "--prepare", steps, "--num-splits", 1, "-o", tmp_path / "parts")
    assert found.code
    assert f"error: {error}" in found.err
    assert hint in found.err
    assert not (tmp_path / "parts").exists()


def test_int4_takes_embeddings_and_keeps_the_opset(run: Run, tmp_path: Path) -> None:
    """Not a table of sines, which positions choose, and not a matrix that is read twice: it would be there twice."""
    at = Drawing()
    ids = at.node("Reshape", at.reads("ids", onnx.TensorProto.INT64, 1, 4), at.number([-1]))
    positions = at.reads("position_ids", onnx.TensorProto.INT64, 4)
    rows = [at.node("Gather", at.weight(name, 50, 32), ids) for name in ("tokens", "tied")]
    rows.append(at.node("Gather", at.weight("sines", 50, 32), positions))
    hidden = at.node("MatMul", at.node("Sum", *rows), at.weight("product", 32, 32))
    scores = at.node("MatMul", hidden, at.node("Transpose", "tied", perm=[1, 0]), writes="y")
    at.returns(scores, 4, 50)
    proto = at.model(opset=17)
    proto.ir_version = 8
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    words = ["--precision", "int4", "--num-splits", 1, "-o", tmp_path / "parts"]
    assert run("auto", tmp_path / "model.onnx", *words).code == 0
    (part,) = (tmp_path / "parts").glob("*.onnx")
    onnx.checker.check_model(part, full_check=True)
    made = onnx.load(part)
    tables = {node.input[0] for node in made.graph.node if "Gather" in node.op_type}
    assert tables == {"tokens_Q4", "tied", "sines"}
    assert {weight.name for weight in made.graph.initializer} >= {"tokens_Q4", "tokens_scales", "product_Q4"}
    assert (made.ir_version, made.opset_import[0].version) == (10, 17)


def test_static_int8_is_calibrated_with_the_inputs_that_are_given(run: Run, models: Path, tmp_path: Path) -> None:
    model, rng = models / "resnet.onnx", np.random.default_rng(0)
    (tmp_path / "inputs").mkdir()
    for i in range(3):
        np.savez(tmp_path / "inputs" / f"{i}.npz", image=rng.standard_normal((1, 3, 64, 64)).astype(np.float32))
    words = ["auto", model, "--precision", "int8-static", "--num-splits", 2, "-o", tmp_path / "parts"]
    assert run(*words).error[1] == "give --calibration, or use int8"
    unread = run("auto", model, "--precision", "fp16", *words[4:], "--calibration", tmp_path / "inputs")
    assert unread.error == ("fp16 needs no calibration", "leave --calibration out, or use int8-static")
    given = ["--calibration", tmp_path / "inputs", "--inputs", tmp_path / "inputs"]
    result = run(*words, *given, "--accept", "snr>20", "--accept", "top1>0.6")
    assert (result.code, GENERATED in result.out) == (0, False), result.err
    record = record_in(tmp_path / "parts")
    assert [step["name"] for step in record["steps"]] == ["clean", "preprocess", "int8-static"]
    assert record["inputs"] == "files"
    assert {"../inputs/0.npz", "../inputs/1.npz", "../inputs/2.npz"} < record["sources"].keys()


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("budget", "expected"), [(130_000, "fp16"), (55_000, "int4")], ids=["fp16 fits", "int4 alone fits"]
)
def test_the_least_loss_that_fits_into_two_parts_is_found(
    run: Run, models: Path, tmp_path: Path, budget: int, expected: str
) -> None:
    """The order is that of usual loss; a precision whose parts are too many or too large is passed over."""
    model = models / "minilm.onnx"
    result = run("auto", model, "--count", "files", "--memory", budget, "--num-splits", 2, "-o", tmp_path / "parts")
    assert result.code == 0, result.err
    record = record_in(tmp_path / "parts")
    tried = {one["precision"]: one["verdict"] for one in record["tried"]}
    order = ["fp32", "fp16", "int8-mixed", "int8", "int4-mixed", "int4"]
    assert list(tried) == order[: order.index(expected) + 1]
    assert [name for name, verdict in tried.items() if verdict == "chosen"] == [expected]
    assert (record["tried"][-1]["parts"], record["options"][-1]) == (2, f"--precision={expected}")
    assert largest_part(tmp_path / "parts") <= budget
    passed_over = order[: order.index(expected)]
    for passed in some(passed_over[-1:], *passed_over[:-1]):  # alone they fit into no two parts either
        refused = run(
            "auto",
            model,
            "--count",
            "files",
            "--memory",
            budget,
            "--num-splits",
            2,
            "--precision",
            passed,
            "-o",
            tmp_path / "no",
        )
        assert (refused.code in {2, 4}, (tmp_path / "no").exists()) == (True, False), "2: mixed keeps both layers"


def test_a_limit_that_is_not_met_is_exit_1_and_nothing_is_written(run: Run, models: Path, tmp_path: Path) -> None:
    words = ["auto", models / "minilm.onnx", "--num-splits", 2, "-o", tmp_path / "parts"]
    result = run(*words, "--precision", "int4", "--accept", "snr>60")
    assert result.code == 1
    assert "a limit of --accept is not met; nothing was written" in result.out
    assert list(tmp_path.iterdir()) == []
    assert run(*words, "--precision", "int4", "--accept", "snr>10").code == 0
    assert (
        run(*words, "--force", "--accept", "top1>0.5").error[0]
        == "the limit 'top1>0.5': top1 needs an output called logits"
    )
    assert run(*words, "--force", "--accept", "psnr>3").code == 2
    assert run("split", words[1], "--num-splits", 2, "--force", "-o", tmp_path / "of split").code == 0
    assert run(*words[:4], "--precision", "fp16", "--force", "-o", tmp_path / "of split").code == 2
    assert run(*words, "--force", "--accept", "snr>50", "--count", "files", "--memory", "270KB").code == 0
    chosen = record_in(tmp_path / "parts")["tried"][-1]
    assert (chosen["precision"], chosen["parts"]) == ("fp32", 2), "at most two parts of at most 270 kB"


def test_a_search_takes_the_first_precision_that_fits_and_is_accurate_enough(
    run: Run, models: Path, tmp_path: Path
) -> None:
    words = [
        "auto",
        models / "minilm.onnx",
        "--count",
        "files",
        "--memory",
        "130KB",
        "--num-splits",
        2,
        "-o",
        tmp_path / "parts",
    ]
    assert run(*words, "--accept", "snr>1000").code == 1
    assert list(tmp_path.iterdir()) == []


def session_outputs(model: Path, feeds: Mapping[str, object]) -> list[Any]:
    return list(ort.InferenceSession(str(model)).run(None, feeds))


def test_figures_are_those_of_plain_onnxruntime(run: Run, models: Path, tmp_path: Path) -> None:
    model = models / "resnet.onnx"
    feeds = [{"image": np.random.default_rng(i).standard_normal((2, 3, 64, 64)).astype(np.float32)} for i in range(2)]
    for i, one in enumerate(feeds):
        np.savez(tmp_path / f"{i}.npz", image=one["image"])
    inputs = [word for i in range(2) for word in ("--inputs", tmp_path / f"{i}.npz")]
    words = ["--precision", "int8", "--num-splits", 2, "--keep", "-o", tmp_path / "parts", *inputs]
    assert run("auto", model, *words).code == 0
    found = record_in(tmp_path / "parts")["tried"][-1]["figures"]
    a, b = (
        np.concatenate([session_outputs(path, one)[0] for one in feeds]).astype(np.float64)
        for path in (model, tmp_path / "parts" / "models" / "resnet-clean-int8.onnx")
    )
    assert found["max"] == pytest.approx(np.abs(a - b).max(), rel=1e-4)
    assert found["mean"] == pytest.approx(np.abs(a - b).mean(), rel=1e-4)
    assert found["snr"] == pytest.approx(10 * log10((a**2).sum() / ((a - b) ** 2).sum()), abs=0.01)
    assert found["top1"] == (a.argmax(-1) == b.argmax(-1)).mean()
    assert found["perplexity"] is None


def test_perplexity_of_a_text_is_that_of_its_tokens(run: Run, models: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers_by_hand import write_tokenizer

    write_tokenizer("qwen", tmp_path)
    text = "What is the answer?\n\nIt is the question."
    (tmp_path / "text.txt").write_text(text, "utf-8")
    ids = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids
    model = tmp_path / "llm.onnx"
    model.write_bytes((models / "llm.onnx").read_bytes())
    words = ["--precision", "int4", "--num-splits", 2, "--keep"]
    assert run("auto", model, *words, "--text", f"@{tmp_path / 'text.txt'}", "-o", tmp_path / "parts").code == 0
    assert run("auto", "--replay", tmp_path / "parts" / "auto.json", "-o", tmp_path / "again").code == 0
    assert run("auto", model, *words, "--text", text, "-o", tmp_path / "given").code == 0
    steps = record_in(tmp_path / "parts")["steps"]
    assert steps == record_in(tmp_path / "again")["steps"] == record_in(tmp_path / "given")["steps"]
    sources = {name: {*record_in(tmp_path / name)["sources"]} for name in ("parts", "again", "given")}
    assert sources["parts"] == sources["again"] == sources["given"] | {"../text.txt"}
    for step, path in zip(steps, ("llm-clean", "llm-clean-int4"), strict=True):
        found = perplexity(tmp_path / "parts" / "models" / f"{path}.onnx", ids)
        assert step["figures"]["perplexity"] == pytest.approx(found, rel=1e-4)
    assert steps[0]["figures"]["perplexity"] != steps[1]["figures"]["perplexity"]
    assert (tmp_path / "parts" / "tokenizer.json").is_file(), "the parts have the tokenizer of the model"


def perplexity(path: Path, ids: Sequence[int]) -> float:
    model = graphcut.load(path)
    feeds = generate_inputs(model, sizes={"batch": 1, "seq": len(ids), "past": 0, "total": len(ids)})
    feeds["input_ids"] = np.array([ids], np.int64)
    feeds["position_ids"] = np.arange(len(ids))[None]
    logits = session_outputs(path, feeds)[0][0].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return exp(-float(np.mean([np.log(shares[i, token]) for i, token in enumerate(ids[1:])])))


def test_a_replay_gives_the_same_bytes_and_notices_another_model(run: Run, models: Path, tmp_path: Path) -> None:
    model = tmp_path / "detector.onnx"
    model.write_bytes((models / "detector.onnx").read_bytes())
    assert (
        run("auto", model, "--count", "files", "--memory", "40KB", "--num-splits", 1, "-o", tmp_path / "first").code
        == 0
    )
    assert run("auto", "--replay", tmp_path / "first" / "auto.json", "-o", tmp_path / "again").code == 0
    first, again = file_bytes(tmp_path / "first"), file_bytes(tmp_path / "again")
    assert first.keys() == again.keys()
    assert {name for name in first if first[name] != again[name]} <= {"auto.json", "written.json"}
    assert record_in(tmp_path / "again")["files"] == record_in(tmp_path / "first")["files"]
    assert run("auto", "--replay", tmp_path / "first" / "auto.json", "--num-splits", 2, "-o", tmp_path / "no").code == 2
    limited = {
        **record_in(tmp_path / "first"),
        "options": [*record_in(tmp_path / "first")["options"], "--accept=max>1"],
    }
    (tmp_path / "first" / "limited.json").write_text(json.dumps(limited))
    unmet = run("auto", "--replay", tmp_path / "first" / "limited.json", "-o", tmp_path / "no")
    assert (unmet.code, "max>1 is not met" in unmet.out) == (1, True)
    proto = onnx.load(model)
    proto.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(
            numpy_helper.to_array(proto.graph.initializer[0]) + np.float32(1), proto.graph.initializer[0].name
        )
    )
    onnx.save(proto, model)
    changed = run("auto", "--replay", tmp_path / "first" / "auto.json", "-o", tmp_path / "no")
    assert changed.code == 3
    assert "error: the replay differs: ../detector.onnx was changed" in changed.err
    assert not (tmp_path / "no").exists()


def test_parts_are_exported_for_another_engine(run: Run, models: Path, tmp_path: Path) -> None:
    words = ["auto", FIXTURES / "tiny-llama-fp32" / "model.onnx", "--prepare", "fuse", "--num-splits", 3]
    assert run(*words, "--to", "genai", "-o", tmp_path / "out").code == 0
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text("utf-8"))
    assert config["model"]["type"] == "decoder-pipeline"
    assert {"part-0.onnx", "part-1.onnx", "part-2.onnx", "auto.json"} < set(file_bytes(tmp_path / "out"))
    unknown = ["auto", models / "detector.onnx", "--precision", "int8", "--num-splits", 2, "-o", tmp_path / "maps"]
    assert run(*unknown, "--to", "triton", "--keep").error[0].startswith("--keep would put a folder into")
    assert run(*unknown, "--to", "lingualinked", "--keep").code == 0
    files = file_bytes(tmp_path / "maps")
    assert {"models/detector-clean-int8.onnx", "sender_seq_dep_map.json"} < set(files), "its own"
    no_config = run("auto", models / "llm.onnx", "--num-splits", 2, "--to", "genai", "-o", tmp_path / "no")
    assert (no_config.code, (tmp_path / "no").exists()) == (2, False)


def test_what_can_be_done_with_parts_whose_model_was_not_kept_is_said(run: Run, models: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    made = run("auto", models / "lstm.onnx", "--precision", "fp16", "--num-splits", 2, "--keep", "-o", parts)
    assert made.err.splitlines()[-1] == f"next: graphcut run {parts} --inputs FILE -o y.npz"
    assert run("show", parts).err == f"next: graphcut verify {parts}\n"
    assert run("verify", parts, "--structural").code == 0
    shutil.rmtree(parts / "models")
    hint = "`graphcut verify DIR --files` compares files, and runs need your inputs; --keep of `graphcut auto` keeps it"
    for words in (["verify", parts], ["run", parts, "--inputs", "random"]):
        refused = run(*words)
        assert refused.code == 3
        assert refused.error == (f"the model that was cut, models/lstm-clean-fp16.onnx, was not kept in {parts}", hint)
    assert run("show", parts).err == f"next: graphcut verify {parts} --files\n"
    assert run("verify", parts, "--files").code == 0


def test_what_a_killed_run_left_is_removed_with_a_note(run: Run, models: Path, tmp_path: Path) -> None:
    left = tmp_path / ".parts.auto.tmp-graphcut"
    (left / "files" / "models").mkdir(parents=True)
    result = run("auto", models / "detector.onnx", "--num-splits", 1, "-o", tmp_path / "parts")
    assert (result.code, [path.name for path in tmp_path.iterdir()]) == (0, ["parts"])
    assert f"note: removed {left}, which a killed run had left" in result.err
    source = json.loads((tmp_path / "parts" / "cascade.json").read_text("utf-8"))["source"]["file"]
    assert (tmp_path / "parts" / source).samefile(models / "detector.onnx")


def test_ranks_and_clusters_are_goals_too(run: Run, models: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "two.toml"
    cluster.write_text("".join(f'[[devices]]\nname = "{n}"\n' for n in "ab"), "utf-8")
    for words in (["--ranks", 2], ["--cluster", cluster]):
        result = run("auto", models / "llm.onnx", "--precision", "int8", *words, "-o", tmp_path / "parts", "--force")
        assert result.code == 0, result.err
        assert record_in(tmp_path / "parts")["tried"][-1]["parts"] >= 2


def test_a_failing_step_names_the_package_and_leaves_files_as_they_were(run: Run, models: Path, tmp_path: Path) -> None:
    parts, model = tmp_path / "parts", tmp_path / "odd.onnx"
    assert run("auto", models / "detector.onnx", "--num-splits", 2, "-o", parts).code == 0
    before = file_bytes(tmp_path)
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["\x1b[31mx", "w"], ["y"], name="product")]
    onnx.save(model_of(nodes, [floats("\x1b[31mx", 2, 4)], [floats("y", 2, 4)], [weight]), model)
    save_outputs({"\x1b[31mx": np.ones((3, 5), np.float32)}, tmp_path / "wrong.npz")
    before = file_bytes(tmp_path)
    given = ["--precision", "int8-static", "--calibration", tmp_path / "wrong.npz"]
    result = run("auto", model, *given, "--num-splits", 1, "-o", parts, "--force")
    assert result.code == 3
    assert "error: int8-static: onnxruntime.quantization 1." in result.err
    assert "\\x1b[31mx" in result.err
    assert "\x1b" not in result.err
    assert " hint: nothing was changed; try another precision, or fewer of --prepare" in result.err
    assert file_bytes(tmp_path) == before
    assert not [path for path in tmp_path.iterdir() if "tmp" in path.name]


def test_a_model_that_a_package_breaks_is_named_as_its_work(run: Run, tmp_path: Path) -> None:
    """The converter to float16 writes an input that is an output twice."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4), floats("x", 4)])
    onnx.save(model, tmp_path / "odd.onnx")
    result = run("auto", tmp_path / "odd.onnx", "--precision", "fp16", "--num-splits", 1, "-o", tmp_path / "parts")
    assert result.code == 3
    assert "error: fp16: the model that onnxruntime.transformers 1." in result.err
    assert "made is not valid: node 'graph_output_cast1' writes 'x', which is already written" in result.err


def test_parts_whose_numbers_differ_are_not_written(run: Run, tmp_path: Path) -> None:
    """Float16 has no numbers as large as those that cross here."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    large = numpy_helper.from_array(np.array([1e9], np.float32), "w")
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)], [large]), tmp_path / "m.onnx")
    plan = ["--at-nodes", "a", "--boundary-dtype", "float16", "-o", tmp_path / "plan.json"]
    assert run("plan", tmp_path / "m.onnx", *plan).code == 0
    found = run("auto", tmp_path / "m.onnx", "--plan", tmp_path / "plan.json", "-o", tmp_path / "parts")
    assert found.code == 3
    assert "error: the parts are not the model: the cascade does not match the model" in found.err
    hint = "only numbers differ: try int8 or fp32, or a plan without --boundary-dtype of `graphcut plan`"
    assert found.err.splitlines()[-1] == f" hint: {hint}"
    assert not (tmp_path / "parts").exists()


def test_a_limit_needs_outputs_to_measure(run: Run, tmp_path: Path) -> None:
    onnx.save(of_unknown_operator(), tmp_path / "m.onnx")
    found = run("auto", tmp_path / "m.onnx", "--num-splits", 2, "--accept", "snr>9", "-o", tmp_path / "parts")
    assert (found.code, (tmp_path / "parts").exists()) == (3, False)
    assert "custom:Unheard" in found.error[0]


def test_a_missing_package_is_named_with_the_extra(
    run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", raising=False)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    result = run("auto", models / "minilm.onnx", "--precision", "int4", "--num-splits", 2, "-o", tmp_path / "parts")
    assert result.code == 2
    message = "int4 needs the package onnx_ir, which is not installed"
    assert result.err == f"error: {message}\n hint: pip install 'graphcut[auto]'\n"  # nothing was converted before


def test_where_no_precision_fits_each_says_what_it_needs(
    run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    words = ("--num-splits", 1, "--memory", "1kB", "-o", tmp_path / "parts")
    result = run("auto", models / "minilm.onnx", *words)
    assert result.code == 4
    needed = r"nothing fits: fp32: .+; fp16: .+; int4: int4 needs the package onnx_ir, which is not installed$"
    assert re.search(needed, result.err, re.MULTILINE)


def test_a_model_without_such_weights_is_refused(run: Run, models: Path, tmp_path: Path) -> None:
    result = run("auto", models / "detector.onnx", "--precision", "int4", "--num-splits", 2, "-o", tmp_path / "parts")
    assert result.code == 2
    assert "int4 changes nothing: onnxruntime.quantization finds no weight in detector.onnx to convert" in result.err


def test_a_model_that_its_package_can_not_hold_in_memory_is_refused(run: Run, tmp_path: Path) -> None:
    """The weights are a hole in a file: 64 GiB that take no room and are never read."""
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [floats("x", 1, 4)], [floats("y", 1, 1 << 32)])
    weight = model.graph.initializer.add(name="w", data_type=1, dims=[4, 1 << 32], data_location=1)
    for key, value in (("location", "w.data"), ("length", str(1 << 36))):
        weight.external_data.add(key=key, value=value)
    onnx.save(model, tmp_path / "huge.onnx")
    with (tmp_path / "w.data").open("wb") as holes:
        holes.truncate(1 << 36)
    result = run("auto", tmp_path / "huge.onnx", "--precision", "int8", "--num-splits", 1, "-o", tmp_path / "parts")
    assert result.code == 3
    assert "int8: onnxruntime.quantization holds all weights in memory and takes about 256 GiB;" in result.err


def test_a_disk_that_fills_up_is_named_with_what_is_needed(models: Path, tmp_path: Path) -> None:
    """On a disk of its own, which has room for one of three models."""
    disk, words = tmp_path / "disk", ["--num-splits", "2", "--force", "-o", str(tmp_path / "disk" / "parts")]
    disk.mkdir()
    written = json.dumps({"format": "graphcut.written/1", "kind": "a result of auto", "files": {}})
    old = f"mkdir {disk}/parts && echo '{written}' >{disk}/parts/written.json"
    small = f"mount -t tmpfs -o size=600k tmpfs {disk} && {old}"
    world = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{small} && "$@"; find {disk} -type f', "sh"]
    if subprocess.run([*world, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let one mount a disk of one's own")
    auto = [str(SCRIPT), "auto", str(models / "minilm.onnx"), "--prepare", "fuse", *words]
    done = subprocess.run([*world, *auto], capture_output=True, check=False, text=True)
    assert f"error: the disk of {disk} is full\n" in done.stderr
    hint = "3 models of steps and the parts take up to about 1.63 MiB there; nothing was changed"
    assert done.stderr.splitlines()[-1] == f" hint: make room, or choose another disk with -o: {hint}"
    assert done.stdout.splitlines() == [f"{disk}/parts/written.json"], "no scratch is left"
