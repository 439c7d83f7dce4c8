"""`graphcut verify` and `graphcut merge`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import graphcut
from graphcut import demos

from command_line import MIDDLE, SMALL, Run, llm, own_llm, own_parts, parts, run
from conftest import floats, model_of, of_unknown_operator

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]


def test_a_wrong_cascade_is_exit_1(run: Run, own_parts: Path) -> None:
    file = own_parts / "part-1.onnx.data"
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    result = run("verify", own_parts)
    assert (result.code, result.err) == (1, "")
    assert result.out.startswith("✗ the cascade does not match the model\n")
    assert re.search(r"part-1\.onnx: the values of '.*' differ from the model's", result.out)
    as_json = run("verify", own_parts, "--json")
    assert as_json.code == 1
    found = json.loads(as_json.out)
    assert (found["same"], found["proof"]["holds"], len(found["proof"]["objections"])) == (False, False, 1)
    assert (found["is_identical"], found["runs"]) == (None, []), "nothing was run, so nothing is known to be identical"


def test_a_moved_model_is_given_by_option(run: Run, own_llm: Path, own_parts: Path) -> None:
    moved = own_llm.rename(own_llm.with_name("moved.onnx"))
    result = run("verify", own_parts)
    assert result.code == 3
    assert result.error[1] == "name it with --model"
    assert run("verify", own_parts, "--model", moved, "--structural").code == 0


def test_another_model_is_refused(run: Run, own_llm: Path, own_parts: Path) -> None:
    demos.write("llm", own_llm, **{**SMALL, "layers": 2})
    result = run("verify", own_parts)
    assert result.code == 3
    assert "the graphs differ" in result.error[0]


def test_what_a_manifest_says_of_dims_is_verified(run: Run, own_parts: Path) -> None:
    manifest = own_parts / "cascade.json"
    record = json.loads(manifest.read_text("utf-8"))
    manifest.write_text(json.dumps({**record, "dims": {"nonsense": 7}, "assumed": []}), "utf-8")
    result = run("verify", own_parts)
    assert (result.code, result.err) == (1, "")
    assert "dims: llm.onnx has no symbolic dimension 'nonsense'" in result.out


def test_a_part_of_a_download_is_a_no(run: Run, own_parts: Path) -> None:
    os.truncate(own_parts / "part-0.onnx.data", 1000)
    (own_parts / "part-1.onnx").unlink()
    result = run("verify", own_parts, "--files")
    assert (result.code, result.err) == (1, "")
    assert "part-0.onnx.data has 1,000 bytes, but had" in result.out
    assert "part-1.onnx is missing" in result.out


def test_verifying_takes_a_seed_and_optimisations(run: Run, parts: Path) -> None:
    result = run("verify", parts, "--seed", "7", "--optimize", "all", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["reason"].startswith("with graph optimizations")
    assert len(found["runs"]) == 2


def test_structure_alone_runs_nothing(run: Run, parts: Path) -> None:
    result = run("verify", parts, "--structural")
    assert result.code == 0
    assert result.out.splitlines()[0] == "✓ the cascade matches the model: same structure, nothing was run"
    assert "numbers" not in result.out
    for words in (("--seed", 3), ("--optimize", "all"), ("--inputs", "random")):
        refused = run("verify", parts, "--structural", *words)
        assert (refused.code, refused.error[0]) == (2, f"{words[0]} does not apply to --structural, which runs nothing")


def test_files_are_compared_without_the_model(run: Run, own_llm: Path, own_parts: Path) -> None:
    own_llm.unlink()
    result = run("verify", own_parts, "--files")
    count = len([file for file in own_parts.iterdir() if file.name != "cascade.json"])
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(
        rf"✓ the files are what the manifest says\n  {count} files: [\d.]+ KiB compared with digests\n", result.out
    )
    file = own_parts / "part-1.onnx.data"
    raw = bytearray(file.read_bytes())
    raw[3] ^= 0x40
    file.write_bytes(raw)
    result = run("verify", own_parts, "--files")
    said = "part-1.onnx: part-1.onnx.data has other bytes in 1 of 1 block, the first at byte 0"
    assert (result.code, result.err) == (1, "")
    assert result.out.startswith("✗ the files are not what the manifest says\n")
    assert said in " ".join(result.out.split())
    found = json.loads(run("verify", own_parts, "--files", "--json").out)
    assert (found["format"], found["same"], found["objections"]) == ("graphcut.files/1", False, [said])


def test_weights_without_digests_are_said(run: Run, own_llm: Path) -> None:
    for words, gap in (([], True), (["--digest"], False)):
        split = run("split", own_llm, "--at-nodes", MIDDLE, "--weights", "share", "--force", "-q", *words)
        result = run("verify", split.out.strip(), "--files")
        assert result.code == 0
        assert ("weights of 2 parts have no digest: only their sizes were compared" in result.out) is gap


def test_a_cascade_is_not_merged_over_its_manifest(run: Run, own_parts: Path) -> None:
    before = (own_parts / "cascade.json").read_bytes()
    result = run("merge", own_parts, "-o", own_parts / "cascade.json", "--force")
    assert (result.code, result.error[0]) == (2, f"{own_parts / 'cascade.json'} is also to be read")
    assert (own_parts / "cascade.json").read_bytes() == before


def test_what_reads_parts_says_which_weights_it_could_not_compare(run: Run, own_llm: Path) -> None:
    for words, said in (([], True), (["--digest"], False)):
        cascade = run("split", own_llm, "--at-nodes", MIDDLE, "--weights", "share", "--force", "-q", *words).out.strip()
        note = "note: weights of 2 parts have no digest: only their sizes were compared"
        merged = run("merge", cascade, "-o", "whole.onnx", "--force")
        exported = run("export", cascade, "--to", "ort-annotations", "-o", "made", "--force")
        ran = run("run", cascade, "--inputs", "random")
        generated = run("generate", cascade, "--prompt-ids", "1,2", "--max-tokens", 1)
        measured = run("bench", cascade, "--way", "parts", "--rounds", 1)
        files = [graphcut.open_cascade(cascade).file(part) for part in graphcut.open_cascade(cascade).parts]
        joined = run("merge", *files, "-o", "joined.onnx", "--force")
        readers = (merged, exported, ran, generated, measured, joined)
        assert [(done.code, note in done.err.splitlines()) for done in readers] == [(0, said)] * 6
        divided = run("split", files[0], "--num-splits", "2", "-o", "again", "--force")
        assert (divided.code, note.replace("2 parts", "1 part") in divided.err.splitlines()) == (0, said)
        part = run("extract", files[1], "--until", "logits", "-o", "head.onnx", "--force")
        assert (part.code, note.replace("2 parts", "1 part") in part.err.splitlines()) == (0, said)


def test_files_alone_takes_no_other_option(run: Run, parts: Path) -> None:
    for words in (
        ["--structural"],
        ["--optimize", "all"],
        ["--inputs", "random"],
        ["--model", "m.onnx"],
        ["--seed", "1"],
    ):
        result = run("verify", parts, "--files", *words)
        what = f"{words[0]} does not apply to --files, which needs no model and runs nothing"
        assert (result.code, *result.error) == (2, what, f"leave {words[0]} out")


def test_inputs_come_from_files_and_folders(run: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    onnx.save(model_of(nodes, [floats("x", "n")], [floats("y", "n")]), tmp_path / "m.onnx")
    assert run("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    np.savez(tmp_path / "three.npz", x=np.ones(3, np.float32))
    (tmp_path / "data").mkdir()
    message = numpy_helper.from_array(np.ones(5, np.float32))
    (tmp_path / "data" / "input_0.pb").write_bytes(message.SerializeToString())
    place = tmp_path / "m.parts"
    result = run("verify", place, "--inputs", tmp_path / "three.npz", "--inputs", tmp_path / "data", "--json")
    assert result.code == 0
    assert len(json.loads(result.out)["runs"]) == 2
    for wrong in (tmp_path / "nothing.npz", tmp_path / "m.onnx"):
        assert run("verify", place, "--inputs", wrong).error
    np.savez(tmp_path / "other.npz", z=np.ones(3, np.float32))
    result = run("verify", place, "--inputs", tmp_path / "other.npz")
    assert (result.code, "'z'" in result.error[0]) == (2, True)
    np.savez(tmp_path / "ints.npz", x=np.ones(3, np.int64))
    result = run("verify", place, "--inputs", tmp_path / "ints.npz")
    assert (result.code, result.error[0]) == (2, "input 'x' is fed int64, and the model reads float32")


def test_generated_inputs_that_the_model_refuses_are_not_a_difference(run: Run, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Reshape", ["a", "seven"], ["y"], name="reshape"),
    ]
    weight = numpy_helper.from_array(np.array([7]), "seven")
    onnx.save(model_of(nodes, [floats("x", "n", 2)], [floats("y", 7)], [weight]), tmp_path / "m.onnx")
    assert run("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    result = run("verify", tmp_path / "m.parts")
    assert result.code == 0
    assert "not run: m.onnx refuses the generated inputs: ONNX Runtime refuses the whole model: " in result.out
    assert "; feed it with --inputs" in result.out


def test_of_a_model_that_can_not_be_opened_no_other_inputs_are_asked_for(run: Run, tmp_path: Path) -> None:
    onnx.save(of_unknown_operator(), tmp_path / "m.onnx")
    assert run("split", tmp_path / "m.onnx", "--at-nodes", "relu", "-q").code == 0
    result = run("verify", tmp_path / "m.parts")
    assert result.code == 0
    assert "… not run: ONNX Runtime can't open the model: " in result.out
    assert "inputs" not in result.out


def test_merge_keeps_an_existing_file_without_force(run: Run, own_parts: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.onnx").write_text("mine")
    result = run("merge", own_parts, "-o", tmp_path / "whole.onnx")
    assert (result.code, result.error[0]) == (2, f"{tmp_path / 'whole.onnx'} already exists")
    assert (tmp_path / "whole.onnx").read_text() == "mine"
    assert run("merge", own_parts, "-o", tmp_path / "whole.onnx", "--force").code == 0


def test_merge_says_what_the_original_had_that_no_output_depends_on(run: Run, tmp_path: Path) -> None:
    """In IR 3 every weight is an input, too."""
    weights = [numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("w", "unread")]
    nodes = [helper.make_node("Add", ["x", "w"], ["a"], name="add"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    model = model_of(nodes, [floats(name, 2) for name in ("x", "w", "unread")], [floats("y", 2)], weights, opset=8)
    model.ir_version = 3
    onnx.save(model, tmp_path / "m.onnx")
    run("split", tmp_path / "m.onnx", "--at-nodes", "add")
    merged = run("merge", tmp_path / "m.parts", "-o", tmp_path / "whole.onnx")
    equals = f"wrote {tmp_path / 'whole.onnx'}: its graph equals that of the original model, without"
    assert merged.err.strip() == f"{equals} 1 of its nodes and weights, on which no output depends: unread"
    (tmp_path / "m.onnx").unlink()
    merged = run("merge", tmp_path / "m.parts", "-o", tmp_path / "whole.onnx", "--force")
    assert merged.err.strip() == f"{equals} what no output depends on, if it has such nodes or weights"


def test_models_are_merged_by_the_names_of_their_files(run: Run, tmp_path: Path) -> None:
    for name, op in (("a", "Neg"), ("b.c", "Abs")):
        node = helper.make_node(op, ["x.1"], ["y=z"])
        onnx.save(model_of([node], [floats("x.1", 2)], [floats("y=z", 2)]), tmp_path / f"{name}.onnx")
    models = [tmp_path / "a.onnx", tmp_path / "b.c.onnx"]
    output = tmp_path / "both.onnx"
    result = run("merge", *models, "--connect", "a.y=z=b.c.x.1", "-o", output)
    assert (result.code, result.err) == (0, f"wrote {output}: 2 nodes, 1 input, 1 output\n")
    assert run("merge", *models, "--connect", "1.y=z=2.x.1", "-o", output, "--force").code == 0
    wrong = run("merge", *models, "--connect", "a.y=b.x", "-o", output, "--force")
    assert (wrong.code, wrong.error[0]) == (2, "--connect a.y=b.x names no output and input of the models")
    unconnected = run("merge", *models, "-o", output, "--force")
    assert unconnected.code == 0, "both read one x.1"
    assert [value.name for value in onnx.load(output).graph.input] == ["x.1"]
