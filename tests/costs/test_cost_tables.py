"""Cost models as CSV: read, written, computed, and matched with a model."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from graphcut import GraphcutError, Into, Model, RecordError, analyze, load, plan
from graphcut.costs.device import Device, run_s
from graphcut.costs.matching import Coverage, apply_table, cover, spread
from graphcut.costs.tables import REMAINDER, CostRow, CostTable, read_table, save_table, shipped_tables, table_of
from graphcut.costs.weighing import weigh
from graphcut.drawing.scene_builders import scene_of_plan

from cases import each
from conftest import FIXTURES, ROOT, floats, model_of

Open = Callable[..., Model]

SCRIPT = ROOT / "scripts" / "cost-models"

OLIVE = """module,num_params,num_bytes,num_flops
model.embed_tokens,98500608,197001216,1
model.embed_dropout,0,0,0
model.layers.0.self_attn.o_proj,9437184,18874368,18874368
"""

OLIVE_PHI = {
    "model.embed_tokens": (98500608, 197001216),
    "model.layers.0.self_attn.o_proj": (9437184, 18874368),
    "model.layers.0.self_attn.qkv_proj": (28311552, 56623104),
    "model.layers.0.mlp.gate_up_proj": (50331648, 100663296),
    "model.layers.0.mlp.down_proj": (25165824, 50331648),
    "model.layers.0.mlp.activation_fn": (0, 0),
    "model.layers.0.input_layernorm": (3072, 6144),
    "model.layers.31.post_attention_layernorm": (3072, 6144),
    "model.norm": (3072, 6144),
    "lm_head": (98500608, 197001216),
}
OLIVE_LLAMA = {
    "model.embed_tokens": (525336576, 1050673152),
    "model.layers.0.self_attn.q_proj": (16777216, 33554432),
    "model.layers.0.self_attn.k_proj": (4194304, 8388608),
    "model.layers.31.self_attn.v_proj": (4194304, 8388608),
    "model.layers.31.self_attn.o_proj": (16777216, 33554432),
    "model.layers.0.mlp.gate_proj": (58720256, 117440512),
    "model.layers.0.mlp.up_proj": (58720256, 117440512),
    "model.layers.0.mlp.down_proj": (58720256, 117440512),
    "model.layers.0.mlp.act_fn": (0, 0),
    "model.layers.0.input_layernorm": (4096, 8192),
    "model.layers.0.post_attention_layernorm": (4096, 8192),
    "model.norm": (4096, 8192),
    "model.rotary_emb": (0, 0),
    "lm_head": (525336576, 1050673152),
}
PUBLISHED = {
    "Gemma-2-9B": 9_241_705_984,
    "Llama-3.1-8B": 8_030_261_248,
    "Mistral-7B": 7_248_023_552,
    "Phi-3.5-mini": 3_821_079_552,
    "Qwen2.5-7B": 7_615_616_512,
}


def written(path: Path, text: str) -> Path:
    file = path / "costs.csv"
    file.write_text(text, encoding="utf-8")
    return file


def row(module: str, **figures: float) -> CostRow:
    return CostRow(module=module, **figures)  # type: ignore[arg-type]


def stack(*names: str, width: int = 2) -> ModelProto:
    """Nodes of these names in a chain, each with a weight of its own: 2 * width² operations each."""
    nodes, weights = [], []
    for i, name in enumerate(names):
        weights.append(numpy_helper.from_array(np.ones((width, width), np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=name))
    return model_of(nodes, [floats("t0", 1, width)], [floats(f"t{len(names)}", 1, width)], weights)


def covered(model: Model, *modules: str) -> tuple[list[list[str]], Coverage]:
    """The modules of the rows that each node belongs to."""
    groups, coverage = cover(CostTable(tuple(row(module, num_params=1) for module in modules)), weigh(model))
    return [[modules[i] for i in group] for group in groups], coverage


# --- files


def test_a_table_of_olive_loads_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, OLIVE)
    assert read_table(path).rows == (
        row("model.embed_tokens", num_params=98500608, num_bytes=197001216, num_flops=1),
        row("model.embed_dropout"),
        row("model.layers.0.self_attn.o_proj", num_params=9437184, num_bytes=18874368, num_flops=18874368),
    )


def test_columns_come_in_any_order_and_optional_ones_may_be_empty(tmp_path: Path) -> None:
    text = "time_s,num_flops,module,num_bytes,num_params,output_bytes\n1.5e-3,4,a,2,1,\n,0,b,0,0,16\n"
    rows = read_table(written(tmp_path, text)).rows
    assert rows == (
        row("a", num_params=1, num_bytes=2, num_flops=4, time_s=0.0015),
        row("b", output_bytes=16),
    )


def test_half_bytes_of_four_bit_weights_count_whole(tmp_path: Path) -> None:
    # Olive multiplies by 0.5, and so writes floats.
    text = "module,num_params,num_bytes,num_flops\na,3,1.5,6\nb,4,2.0,8\n"
    assert [r.num_bytes for r in read_table(written(tmp_path, text)).rows] == [2, 2]


def test_windows_line_ends_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_bytes(b"\xef\xbb\xbf" + OLIVE.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    assert read_table(path).rows == read_table(written(tmp_path, OLIVE)).rows


@each(
    ("text", "said"),
    [
        ("", "line 1: there is no column 'module'"),
        ("module,num_params,num_bytes\n", "line 1: there is no column 'num_flops'"),
        ("module,num_params,num_bytes,num_flops,time_ms\n", "line 1: unknown column 'time_ms'"),
        ("module,num_params,num_bytes,num_flops,module\n", "line 1: there are two columns 'module'"),
        ("module,num_params,num_bytes,num_flops\na,1,2\n", "line 2: 3 values, and line 1 has 4 columns"),
        (
            "module,num_params,num_bytes,num_flops\na,1,2,3\nb,1,-2,3\n",
            "line 3, column num_bytes: '-2' is not a number of 0 or more",
        ),
        (
            "module,num_params,num_bytes,num_flops\na,1,2,many\n",
            "line 2, column num_flops: 'many' is not a number of 0 or more",
        ),
        (
            "module,num_params,num_bytes,num_flops,time_s\na,1,2,3,nan\n",
            "line 2, column time_s: 'nan' is not a number of 0 or more",
        ),
        ("module,num_params,num_bytes,num_flops\na,,2,3\n", "column num_params: '' is not a number of 0 or more"),
        ("module,num_params,num_bytes,num_flops\n,1,2,3\n", "line 2, column module: the name is missing"),
        ("module,num_params,num_bytes,num_flops\na,1,2,3\n\na,1,2,3\n", "line 4: module 'a' is already in line 2"),
        ('module,num_params,num_bytes,num_flops\n"a,1,2,3\n', "line 2: unexpected end of data"),
        ("#name,input_sizes\n", "line 1: there is no column 'module'"),
    ],
)
def test_an_error_in_a_table_has_its_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_table(written(tmp_path, text))
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="is not CSV"):
        read_table(path)


def test_an_unknown_table_is_refused_with_the_names_of_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="can't be read: No such file") as caught:
        read_table(tmp_path / "none.csv")
    assert "Phi-3.5-mini" in caught.value.hint


def test_a_saved_table_reads_back_the_same_without_empty_optional_columns(tmp_path: Path) -> None:
    plain = CostTable((row("a", num_params=1, num_bytes=2, num_flops=3), row('odd, "name"')))
    full = CostTable((row("a", num_params=1, activation_bytes=0, time_s=0.1 + 0.2), row("b")))
    path = tmp_path / "costs.csv"
    save_table(plain, path)
    assert path.read_text() == 'module,num_params,num_bytes,num_flops\na,1,2,3\n"odd, ""name""",0,0,0\n'
    assert read_table(path).rows == plain.rows
    save_table(full, path)
    assert path.read_text().startswith("module,num_params,num_bytes,num_flops,activation_bytes,time_s\n")
    assert read_table(path).rows == full.rows
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphcutError, match=r"writing .*costs\.csv failed: No such file or directory"):
        save_table(CostTable(()), tmp_path / "nowhere" / "costs.csv")


# --- computed tables


def test_a_computed_table_has_the_costs_of_each_module(opened: Open) -> None:
    # x[n,4] times w[4,3] in module a, and Relu in module b, for n = 2.
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/m.0/a/MatMul"),
        helper.make_node("Relu", ["y"], ["z"], name="/m.0/b/Relu"),
        helper.make_node("Neg", ["z"], ["out"], name="last"),
    ]
    weights = [numpy_helper.from_array(np.ones((4, 3), np.float32), "w")]
    model = opened(model_of(nodes, [floats("x", "n", 4)], [floats("out", "n", 3)], weights), dims={"n": 2})
    assert table_of(weigh(model)).rows == (
        row("m.0.a", num_params=12, num_bytes=48, num_flops=2 * 2 * 4 * 3, activation_bytes=32 + 24, output_bytes=24),
        row("m.0.b", num_flops=6, activation_bytes=48, output_bytes=24),
        row("last", num_flops=6, activation_bytes=48, output_bytes=24),
    )


def test_a_tied_weight_counts_once_and_a_constant_node_reads_for_its_reader(opened: Open) -> None:
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["x"], name="/embed/Gather"),
        helper.make_node("Transpose", ["w"], ["wt"], name="/head/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["y"], name="/head/MatMul"),
        helper.make_node("Transpose", ["v"], ["vt"], name="/more/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["y", "vt"], ["z"], name="/more/MatMul"),
    ]
    weights = [
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (5, 2)), ("v", (3, 5)))
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1])
    model = opened(model_of(nodes, [ids], [floats("z", 1, 3)], weights))
    rows = {r.module: (r.num_params, r.num_bytes) for r in table_of(weigh(model)).rows}
    assert rows == {"embed": (10, 40), "head": (0, 0), "more": (15, 60)}


def test_shapes_and_indices_are_not_parameters_but_have_bytes(opened: Open) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="/a/Reshape")]
    shape = numpy_helper.from_array(np.array([2, 2]), "shape")
    model = opened(model_of(nodes, [floats("x", 4)], [floats("y", 2, 2)], [shape]))
    (found,) = table_of(weigh(model)).rows
    assert (found.num_params, found.num_bytes) == (0, 16)


def test_packed_weights_have_as_many_parameters_as_plain_ones() -> None:
    plain, packed = (
        {r.module: r for r in table_of(weigh(load(FIXTURES / name / "model.onnx"))).rows}
        for name in ("tiny-llama-fp32", "tiny-llama-int4")
    )
    assert {module: r.num_params for module, r in packed.items()} == {m: r.num_params for m, r in plain.items()}
    # 4 bits an element and a float32 scale for each block of 32, against 32 bits.
    assert packed["lm_head"].num_bytes * 32 == plain["lm_head"].num_bytes * (4 + 1)


# --- which rows match which nodes


def test_words_are_compared_as_a_whole(opened: Open) -> None:
    model = opened(stack("/layers.1/fc/MatMul", "/layers.10/fc/MatMul"))
    found, coverage = covered(model, "layers.1", "layers.1.f", "ayers.10")
    assert found == [["layers.1"], []]
    assert coverage == Coverage(("layers.1.f", "ayers.10"), ("/layers.10/fc/MatMul",), 1)


def test_a_node_matches_the_row_with_the_longest_path(opened: Open) -> None:
    model = opened(stack("/layers.0/mlp/up/MatMul", "/layers.0/mlp/MatMul", "/layers.0/MatMul"))
    found, coverage = covered(model, "layers.0", "layers.0.mlp", "layers.0.mlp.up.lora")
    assert found == [["layers.0.mlp"], ["layers.0.mlp"], ["layers.0"]]
    assert coverage.unmatched == ("layers.0.mlp.up.lora",)


def test_a_row_may_have_the_name_of_a_node(opened: Open) -> None:
    model = opened(stack("/a/MatMul", "/a/MatMul_1", "Gemm_7"))
    found, _ = covered(model, "a", "/a/MatMul_1", "Gemm_7")
    assert found == [["a"], ["/a/MatMul_1"], ["Gemm_7"]]


@each("prefix", ["", "/model", "/model/model", "/wrapper", "/wrapper/model"])
def test_a_leading_model_and_a_wrapper_do_not_count(opened: Open, prefix: str) -> None:
    model = opened(stack(f"{prefix}/layers.0/fc/MatMul", f"{prefix}/lm_head/MatMul"))
    found, coverage = covered(model, "model.layers.0.fc", "lm_head")
    assert found == [["model.layers.0.fc"], ["lm_head"]]
    assert coverage == Coverage((), (), 2)


def test_a_wrapper_of_the_table_does_not_count_either(opened: Open) -> None:
    model = opened(stack("/layers.0/MatMul", "/lm_head/MatMul"))
    found, _ = covered(model, "net.model.layers.0", "net.lm_head")
    assert found == [["net.model.layers.0"], ["net.lm_head"]]


def test_one_of_two_towers_is_not_a_wrapper(opened: Open) -> None:
    model = opened(stack("/text/layers.0/MatMul", "/vision/layers.0/MatMul"))
    assert covered(model, "layers.0")[0] == [[], []]


def test_a_table_of_one_layer_does_not_match_others(opened: Open) -> None:
    model = opened(stack("/layers.0/fc/MatMul", "/layers.1/fc/MatMul"))
    assert covered(model, "layers.1.fc")[0] == [[], ["layers.1.fc"]]


def test_the_row_of_the_model_matches_nodes_in_no_inner_module(opened: Open) -> None:
    model = opened(stack("/model/MatMul", "/model/norm/MatMul", "of_no_module"))
    assert covered(model, "model")[0] == [["model"], [], []]


@each(
    ("node", "module"),
    [
        ("/model/layers.0/attn/o_proj/MatMul", "model.layers.0.self_attn.o_proj"),
        ("/model/layers.0/self_attn/o_proj/MatMul", "layers.0.attn.o_proj"),
        ("/model/layers.0/mlp/act_fn/Mul", "model.layers.0.mlp.activation_fn"),
        ("/model/layers.4/final_norm_layernorm/SkipLayerNorm", "model.norm"),
        ("/model/layers.0/attn/q_proj/MatMul", "model.layers.0.self_attn.qkv_proj"),
        ("/model/layers.0/mlp/up_proj/MatMul", "model.layers.0.mlp.gate_up_proj"),
    ],
)
def test_other_exporters_names_are_known(opened: Open, node: str, module: str) -> None:
    assert covered(opened(stack(node)), module)[0] == [[module]]


def test_rows_of_projections_match_the_packed_projection(opened: Open) -> None:
    model = opened(stack("/model/layers.0/attn/qkv_proj/MatMul"))
    q, k, v = (f"model.layers.0.self_attn.{name}_proj" for name in "qkv")
    assert covered(model, v, q, k) == ([[q, k, v]], Coverage((), (), 3))
    assert covered(model, v, q)[0] == [[]]


def test_rows_and_nodes_without_costs_are_not_listed(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/a/MatMul"),
        helper.make_node("Transpose", ["y"], ["z"], name="/b/Transpose"),
    ]
    weights = [numpy_helper.from_array(np.ones((2, 2), np.float32), "w")]
    costs = weigh(opened(model_of(nodes, [floats("x", 1, 2)], [floats("z", 2, 1)], weights)))
    table = CostTable((row("a", num_flops=1), row("dropout"), row(REMAINDER, time_s=1.0)))
    assert cover(table, costs) == (((0,), ()), Coverage((), (), 1))
    assert cover(CostTable(()), costs)[1].uncovered == ("/a/MatMul",)


def test_olives_names_cover_a_genai_export_but_for_what_olive_does_not_count() -> None:
    layer = (
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj "
    )
    layer += "mlp.act_fn input_layernorm post_attention_layernorm"
    modules = ["model.embed_tokens", "model.norm", "lm_head"]
    modules += [f"model.layers.{i}.{name}" for i in range(4) for name in layer.split()]
    _, coverage = covered(load(FIXTURES / "tiny-llama-fp32" / "model.onnx"), *modules)
    assert (coverage.unmatched, coverage.matched) == ((), len(modules))
    attention = [f"/model/layers.{i}/{name}" for i in range(4) for name in ("attn/GroupQueryAttention", "mlp/Mul")]
    mask = [name for name in coverage.uncovered if name.startswith("/model/attn_mask_reformat/")]
    assert sorted(coverage.uncovered) == sorted([*attention, *mask])


# --- seconds

DEVICE = Device(name="d", flops_per_s=1.0, bytes_per_s=1e9, dispatch_s=0.0)
"""So slow that a node takes as many seconds as it has operations."""


def test_a_measured_time_is_spread_over_the_module_and_the_rest_keeps_its_roofline(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/a/MatMul"),  # 2 * 3 * 2 * 2 = 24 operations
        helper.make_node("Relu", ["y"], ["z"], name="/a/Relu"),  # 6
        helper.make_node("Relu", ["z"], ["out"], name="/b/Relu"),  # 6
    ]
    weights = [numpy_helper.from_array(np.ones((2, 2), np.float32), "w")]
    costs = weigh(opened(model_of(nodes, [floats("x", 3, 2)], [floats("out", 3, 2)], weights)))
    table = CostTable((row("a", num_flops=999, time_s=10.0),))
    seconds, measured_s = apply_table(costs, table, DEVICE)
    assert seconds == pytest.approx((8.0, 2.0, 6.0))
    assert measured_s == 10.0
    assert cover(table, costs)[1] == Coverage((), ("/b/Relu",), 1)


def test_operations_of_a_table_count_as_proportions(opened: Open) -> None:
    # Three modules of 8 operations each, as graphcut counts. The table counts half of that, and one module double.
    costs = weigh(opened(stack("/a/MatMul", "/b/MatMul", "/c/MatMul")))
    table = CostTable((row("a", num_flops=4), row("b", num_flops=8), row("c", num_flops=4)))
    assert apply_table(costs, table, DEVICE)[0] == pytest.approx((8.0, 16.0, 8.0))


def test_the_models_own_table_changes_nothing() -> None:
    costs = weigh(load(FIXTURES / "tiny-qwen2-fp32" / "model.onnx"))
    table = table_of(costs)
    seconds, measured_s = apply_table(costs, table, DEVICE)
    assert seconds == pytest.approx(run_s(costs, DEVICE))
    assert measured_s == 0.0
    assert cover(table, costs)[1] == Coverage((), (), len(table.rows))


def test_rows_that_are_packed_add_up_where_all_are_timed(opened: Open) -> None:
    costs = weigh(opened(stack("/attn/qkv_proj/MatMul")))
    timed = [row(f"attn.{name}_proj", time_s=float(i)) for i, name in enumerate("qkv", start=1)]
    assert apply_table(costs, CostTable(tuple(timed)), DEVICE)[0] == pytest.approx((6.0,))
    untimed = (*timed[:2], row("attn.v_proj", num_params=1))
    assert apply_table(costs, CostTable(untimed), DEVICE)[0] == pytest.approx(run_s(costs, DEVICE))


def test_an_operator_without_a_formula_takes_the_operations_of_its_row(opened: Open) -> None:
    nodes = [helper.make_node("Odd", ["x"], ["y"], name="/a/Odd", domain="custom")]
    proto = model_of(nodes, [floats("x", 2)], [floats("y", 2)])
    proto.opset_import.append(helper.make_opsetid("custom", 1))
    costs = weigh(opened(proto))
    assert apply_table(costs, CostTable((row("a", num_flops=5),)), DEVICE)[0] == pytest.approx((5.0,))


def test_parts_of_a_plan_take_the_sums_of_what_was_measured_and_how_far_off_shares_are_is_said(opened: Open) -> None:
    """Modules of 1, 2, 3 and 4 s: three parts take 3, 3 and 4 s, though by their operations all modules are equal."""
    table = CostTable(tuple(row(name, num_flops=1, time_s=i + 1.0) for i, name in enumerate("abcd")))
    model = opened(stack(*(f"/{name}/MatMul" for name in "abcd")))
    made, plain = plan(model, Into(3), table=table), plan(model, Into(3))
    assert [part.run_s for part in made.metrics] == [3.0, 3.0, 4.0]
    notes = [" ".join(scene_of_plan(one, analyze(model)).notes) for one in (made, plain)]
    assert [re.findall(r"shares (\d+) % off at most where measured(.*?)\)", note) for note in notes] == [
        [("19", " on a quiet machine")],
        [("58", "")],
    ]


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "19"),
        ({"a": None, "b": None, "c": None}, "58"),  # computed
        ({"a": 1.0, "b": None, "c": None}, "19"),  # 1 s: the others take less by their operations
        ({"a": 1e-12, "b": None, "c": None}, "58"),
        ({"a": 1.0, "x": 1.0, "y": 1.0}, "58"),  # of another model: one of three rows matches
        ({"a": 1.0, "x": 1.0}, "58"),  # half of them are not most
    ],
)
def test_times_count_as_measured_where_the_table_is_of_this_model_and_has_most_of_them(
    opened: Open, rows: dict[str, float | None], share: str
) -> None:
    model = opened(stack("/a/MatMul", "/b/MatMul", "/c/MatMul"))
    table = CostTable(tuple(CostRow(module=name, num_flops=1, time_s=time_s) for name, time_s in rows.items()))
    made = plan(model, Into(2), table=table)
    assert made.is_measured is (share == "19")
    assert f"times are estimates (shares {share} % off" in " ".join(scene_of_plan(made, analyze(model)).notes)


def test_spreading_keeps_the_total() -> None:
    assert spread(6.0, [1, 2, 0]) == [2.0, 4.0, 0.0]
    assert spread(6.0, [0, 0, 0]) == [2.0, 2.0, 2.0]


# --- what comes with graphcut


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/cost-models, as a module."""
    loader = importlib.machinery.SourceFileLoader("cost_models", str(SCRIPT))
    spec = importlib.util.spec_from_loader("cost_models", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cost_models"] = module  # its dataclasses look themselves up there
    loader.exec_module(module)
    return module


def test_shipped_tables_add_up_to_the_published_parameter_counts() -> None:
    sums = {name: sum(r.num_params for r in read_table(path).rows) for name, path in shipped_tables().items()}
    assert sums == PUBLISHED


@pytest.mark.parametrize(("name", "olive"), [("Phi-3.5-mini", OLIVE_PHI), ("Llama-3.1-8B", OLIVE_LLAMA)])
def test_shipped_tables_agree_with_olives(name: str, olive: dict[str, tuple[int, int]]) -> None:
    rows = {r.module: (r.num_params, r.num_bytes) for r in read_table(shipped_tables()[name]).rows}
    assert {module: rows[module] for module in olive} == olive


def test_shipped_linear_layers_take_two_operations_a_parameter() -> None:
    # For one token, as in what Olive's command writes today.
    for path in shipped_tables().values():
        linear = [r for r in read_table(path).rows if r.module.endswith(("o_proj", "down_proj"))]
        assert [r.num_flops for r in linear] == [2 * r.num_params for r in linear]


@each("name", PUBLISHED)
def test_shipped_tables_are_what_the_script_writes(script: ModuleType, tmp_path: Path, name: str) -> None:
    save_table(script.cost_model(script.DECODERS[name], tmp_path), tmp_path / "costs.csv")
    assert (tmp_path / "costs.csv").read_bytes() == shipped_tables()[name].read_bytes()


def test_shipped_tables_are_documented_as_computed() -> None:
    text = (next(iter(shipped_tables().values())).parent / "README.md").read_text(encoding="utf-8")
    assert "computed, not measured" in text.lower()
    assert all(name in text for name in shipped_tables())


def test_the_decoders_of_the_script_are_valid_models(script: ModuleType) -> None:
    small = {"num_hidden_layers": 1, "vocab_size": 8, "intermediate_size": 16}
    for decoder in script.DECODERS.values():
        drawn = script.Drawing(dataclasses.replace(decoder, **small)).draw()
        for tensor in drawn.graph.initializer:  # values, so that it can be checked
            array = np.zeros(tuple(tensor.dims), np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        onnx.checker.check_model(drawn, full_check=True)
