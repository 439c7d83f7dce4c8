"""The figures of a conversion, and the perplexity of a text, of models where both are known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import RecordError, UsageError
from graphcut.automating.accuracy import Figures, figures_of, perplexity, read_text

from cases import each
from conftest import floats, model_of

TEXT, VOCABULARY = "What is the answer?", 500


@each(("before", "after"), [([1, 2], [1, np.inf]), ([np.nan, 2], [1, 2]), ([1, 2], [1, 2, 3])])
def test_a_number_that_is_no_longer_finite_is_no_noise_that_has_a_size(before: list[float], after: list[float]) -> None:
    broken = figures_of([{"y": np.array(before)}], [{"y": np.array(after)}])
    assert broken == Figures(snr=-np.inf, max=np.inf, mean=np.inf)


def decoder(folder: Path, *, last: bool = False, scaled: bool = False) -> graphcut.Model:
    """All tokens have equal logits; those of the `last` token alone, or `scaled` by another input."""
    table = numpy_helper.from_array(np.zeros((VOCABULARY, VOCABULARY), np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["all"], name="table")]
    nodes += [helper.make_node("Gather", ["all", "end"], ["kept"], name="kept", axis=1)] * last
    nodes.append(helper.make_node("Mul", [nodes[-1].output[0], "scale"], ["logits"], name="logits"))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "seq"])
    weights = [table, numpy_helper.from_array(np.array([-1]), "end")]
    weights += [numpy_helper.from_array(np.ones(1, np.float32), "scale")] * (not scaled)
    outputs = [floats("logits", 1, None, VOCABULARY)]
    onnx.save(model_of(nodes, [ids, *[floats("scale", 1)] * scaled], outputs, weights), folder / "model.onnx")
    return graphcut.load(folder / "model.onnx")


def test_the_perplexity_of_tokens_that_are_equally_likely_is_how_many_there_are(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers_by_hand import write_tokenizer

    with pytest.raises(RecordError, match=r"tokenizer.json can't be read: No such file"):
        read_text(TEXT, decoder(tmp_path))
    write_tokenizer("qwen", tmp_path)
    model = decoder(tmp_path)
    assert perplexity(model, read_text(TEXT, model)) == pytest.approx(VOCABULARY)
    with pytest.raises(UsageError, match="perplexity needs two tokens or more"):
        read_text("W", model)
    model = decoder(tmp_path, last=True)
    with pytest.raises(UsageError, match=r"model.onnx has logits of the last token alone"):
        perplexity(model, read_text(TEXT, model))
    with pytest.raises(UsageError, match="perplexity needs a decoder: the input 'scale' is neither a state"):
        read_text(TEXT, decoder(tmp_path, scaled=True))
