"""Texts as inputs of a model that makes vectors of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import Cascade, Into, UsageError

from conftest import floats, model_of
from families import by_hand
from families.chains import write_sentence_encoder

TEXTS = ["a cat sleeps", "the dog runs far away today"]


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    folder = write_sentence_encoder(tmp_path_factory.mktemp("sentences"))
    return graphcut.split(folder, Into(2), folder / "parts")


def test_texts_become_rows_whose_vectors_are_those_of_each_alone(cascade: Cascade) -> None:
    feeds = graphcut.text_inputs(cascade, TEXTS)
    (vectors,) = graphcut.run(cascade, feeds).values()
    assert np.allclose(vectors, by_hand.vector(cascade.source, feeds), atol=1e-6)
    alone = [next(iter(graphcut.run(cascade, graphcut.text_inputs(cascade, [one])).values()))[0] for one in TEXTS]
    assert np.allclose(vectors, alone, atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_row_is_what_the_tokenizer_says_and_padding_is_masked(cascade: Cascade) -> None:
    feeds, tokenizer = graphcut.text_inputs(cascade, TEXTS), graphcut.Tokenizer(cascade)
    rows = [tokenizer.encode(one) for one in TEXTS]
    assert len(rows[0]) < len(rows[1])
    for ids, mask, row in zip(feeds["input_ids"], feeds["attention_mask"], rows, strict=True):
        assert ids[: len(row)].tolist() == row
        assert mask.tolist() == [1] * len(row) + [0] * (len(ids) - len(row))
    assert np.array_equal(feeds["token_type_ids"], np.zeros_like(feeds["input_ids"]))


def test_a_long_text_is_cut_off_and_keeps_its_last_token(cascade: Cascade) -> None:
    most = json.loads((cascade.source / "sentence_bert_config.json").read_text())["max_seq_length"]
    (row,) = graphcut.text_inputs(cascade, ["cat " * 100])["input_ids"]
    whole = graphcut.Tokenizer(cascade).encode("cat " * 100)
    assert (len(row), row[-1]) == (most, whole[-1])
    assert len(whole) > most


def test_what_is_no_batch_of_texts_is_refused(cascade: Cascade, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 texts don't fit"):
        graphcut.text_inputs(cascade, [])
    (tmp_path / "model.onnx").write_bytes((cascade.source / "model.onnx").read_bytes())
    plain = graphcut.split(tmp_path / "model.onnx", Into(2), tmp_path / "parts")
    with pytest.raises(UsageError, match="names no tokenizer"):
        graphcut.text_inputs(plain, TEXTS)


def test_what_is_not_made_of_a_text_and_what_needs_a_mask_is_refused(cascade: Cascade, tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.ones((999, 2), np.float32), "table")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])
    (tmp_path / "tokenizer.json").write_bytes((cascade.source / "tokenizer.json").read_bytes())
    found = dict[str, Cascade]()
    for scale in ("scale", "table"):
        nodes = [
            helper.make_node("Gather", ["table", "input_ids"], ["row"]),
            helper.make_node("Mul", ["row", scale], ["y"]),
        ]
        reads = [ids, floats("scale", "batch", 1, 2)][: 1 + (scale == "scale")]
        onnx.save(model_of(nodes, reads, [floats("y", "batch", "seq", 2)], [table]), tmp_path / f"{scale}.onnx")
        found[scale] = graphcut.split(tmp_path / f"{scale}.onnx", Into(1))
    with pytest.raises(UsageError, match="'scale' can't be made of a text"):
        graphcut.text_inputs(found["scale"], TEXTS)
    with pytest.raises(UsageError, match="texts of other lengths need a mask"):
        graphcut.text_inputs(found["table"], TEXTS)
    assert [*graphcut.text_inputs(found["table"], TEXTS[:1])] == ["input_ids"]
