"""Cost models of decoders from their configurations alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from graphcut import RecordError, UsageError
from graphcut.costs.decoder_configs import table_of_config
from graphcut.costs.tables import read_table, shipped_tables

from cases import each
from command_line import Run, run

__all__ = ["run"]

FIELDS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)
LLAMA_7B = ("llama", 4096, 11008, 32, 32, 32, 32000)


def config(path: Path, *values: object, **more: object) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps({**dict(zip(FIELDS, values, strict=True)), **more}), encoding="utf-8")
    return file


@each(
    ("values", "more", "parameters"),
    [
        (LLAMA_7B, {}, 6_738_415_616),
        (("llama", 5120, 13824, 40, 40, 40, 32000), {}, 13_015_864_320),
        (("llama", 2048, 8192, 16, 32, 8, 128256), {"tie_word_embeddings": True}, 1_235_814_400),
        (("qwen2", 896, 4864, 24, 14, 2, 151936), {"tie_word_embeddings": True}, 494_032_768),
        (("qwen3", 1024, 3072, 28, 16, 8, 151936), {"tie_word_embeddings": True, "head_dim": 128}, 596_049_920),
        (("gemma", 2048, 16384, 18, 8, 1, 256000), {"head_dim": 256}, 2_506_172_416),
        (("gemma3_text", 1152, 6912, 26, 4, 1, 262144), {"head_dim": 256}, 999_885_952),
    ],
    ids=["Llama-2-7B", "Llama-2-13B", "Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen3-0.6B", "gemma-2b", "gemma-3-1b"],
)
def test_parameters_are_those_that_are_published(
    tmp_path: Path, values: tuple[object, ...], more: dict[str, Any], parameters: int
) -> None:
    assert sum(row.num_params for row in table_of_config(config(tmp_path, *values, **more)).rows) == parameters


def test_the_command_writes_the_table_of_a_configuration(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    told = run("measure", config(tmp_path, *LLAMA_7B), "-o", table)
    rows = read_table(table).rows
    assert (told.code, told.out) == (0, f"{len(rows)} modules, 6,738,415,616 parameters\n")
    assert sum(row.num_params for row in rows) == 6_738_415_616


SHIPPED = {
    "Phi-3.5-mini": (("phi3", 3072, 8192, 32, 32, 32, 32064), {}),
    "Llama-3.1-8B": (("llama", 4096, 14336, 32, 32, 8, 128256), {}),
    "Qwen2.5-7B": (("qwen2", 3584, 18944, 28, 28, 4, 152064), {}),
    "Mistral-7B": (("mistral", 4096, 14336, 32, 32, 8, 32768), {}),
    "Gemma-2-9B": (("gemma2", 3584, 14336, 42, 16, 8, 256000), {"head_dim": 256}),
}


@each("name", SHIPPED)
def test_rows_are_those_of_the_same_decoder_as_a_graph(tmp_path: Path, name: str) -> None:
    """The tables that come with graphcut are computed from ONNX graphs, which also have rows without weights."""
    values, more = SHIPPED[name]
    found = {row.module: row for row in table_of_config(config(tmp_path, *values, **more)).rows}
    shipped = {row.module: row for row in read_table(shipped_tables()[name]).rows}
    assert {module for module, row in shipped.items() if row.num_params} | {"lm_head"} == found.keys()
    for module, row in found.items():
        graph = shipped[module]
        assert (row.num_params, row.num_bytes, row.num_flops) == (graph.num_params, graph.num_bytes, graph.num_flops)


def test_linear_layers_are_as_in_olives_table(tmp_path: Path) -> None:
    """hidden x hidden, two bytes each, two operations each, as Llama-2-7B.csv of Olive has them."""
    rows = {row.module: row for row in table_of_config(config(tmp_path, *LLAMA_7B)).rows}
    of = {name: (row.num_params, row.num_bytes, row.num_flops) for name, row in rows.items()}
    assert of["model.layers.31.self_attn.k_proj"] == (4096**2, 2 * 4096**2, 2 * 4096**2)
    assert of["model.layers.0.mlp.down_proj"] == (45088768, 90177536, 90177536)
    assert of["lm_head"] == (131072000, 262144000, 262144000)
    assert of["model.layers.0.input_layernorm"][:2] == (4096, 8192)


OLIVES: dict[str, tuple[tuple[object, ...], int, str]] = {
    "Llama-2-7B": (LLAMA_7B, 291, "c2741aaa7b26e8d9"),
    "Llama-2-13B": (("llama", 5120, 13824, 40, 40, 40, 32000), 363, "7b9ca3e8e736790f"),
    "Llama-3.1-8B": (("llama", 4096, 14336, 32, 32, 8, 128256), 291, "4ff75028b5071c71"),
    "Phi-3-mini": (("phi3", 3072, 8192, 32, 32, 32, 32064), 195, "f49e2a5af3e850c3"),
    "Phi-3.5-mini": (("phi3", 3072, 8192, 32, 32, 32, 32064), 195, "f49e2a5af3e850c3"),
}
"""Of the files in assets/cost_models of Olive: how many modules have weights, and the digest of `digest_of_rows`."""


@each("name", OLIVES)
def test_all_modules_with_weights_are_as_in_olives_files(tmp_path: Path, name: str) -> None:
    values, modules, digest = OLIVES[name]
    rows = [
        (row.module, row.num_params, row.num_bytes, row.num_flops)
        for row in table_of_config(config(tmp_path, *values)).rows
    ]
    assert (len(rows), digest_of_rows(rows)) == (modules, digest)


def digest_of_rows(rows: Sequence[tuple[str, int, int, int]]) -> str:
    """Of the lines `module,parameters,bytes` in sorted order; linear layers have their FLOPs, too."""
    is_linear = [row[0].endswith(("_proj", "lm_head")) for row in rows]
    lines = sorted(",".join(map(str, row[: 3 + linear])) for row, linear in zip(rows, is_linear, strict=True))
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_a_float32_decoder_takes_four_bytes(tmp_path: Path) -> None:
    rows = table_of_config(config(tmp_path, "llama", 8, 16, 1, 2, 1, 10, torch_dtype="float32", mlp_bias=True)).rows
    assert {row.num_bytes // row.num_params for row in rows} == {4}
    assert next(row for row in rows if row.module.endswith("up_proj")).num_params == 8 * 16 + 16


def test_what_is_no_such_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of the type 'bert', which is not known"):
        table_of_config(config(tmp_path, "bert", *LLAMA_7B[1:]))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(RecordError, match="missing required field `hidden_size`"):
        table_of_config(tmp_path / "config.json")
    with pytest.raises(RecordError, match="can't be read"):
        table_of_config(tmp_path / "none.json")
