"""Formulas, KV caches, bytes, peaks and the roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from graphcut import Cache, Graph, Model, Node, UsageError, load
from graphcut.costs.caches import DecoderSizes, decoder_sizes, find_caches, nodes_touching, profile_dims
from graphcut.costs.device import Device, run_s
from graphcut.costs.formula import Formula, product
from graphcut.costs.weighing import Costs, execution_order, peak_bytes, weigh
from graphcut.demos import write

from cases import each
from conftest import FIXTURES, floats, model_of
from hazards import HAZARDS

Open = Callable[..., Model]


# Formulas.


def test_a_formula_reads_like_a_polynomial() -> None:
    assert str(product(("batch", "seq", 4096)) * 2 + 5) == "8192*batch*seq + 5"
    assert str(product(("n", "n")) + product(("n",)) * 3) == "n*n + 3*n"
    assert str(Formula()) == "0"
    assert str(Formula.of("past + seq") * 2) == "2*(past + seq)"


def test_formulas_add_and_multiply_as_polynomials_do() -> None:
    a, b = Formula.of("a"), Formula.of("b")
    assert (a + b) * (a + b) == a * a + 2 * a * b + b * b
    assert a * 0 == Formula()
    assert 3 + a == a + 3
    assert (a * b).symbols == {"a", "b"}


def test_a_formula_has_its_value_for_numbers() -> None:
    formula = product(("n", "n")) * 3 + product(("m",)) + 7
    assert formula.at({"n": 5, "m": 2}) == 3 * 25 + 2 + 7
    assert formula.at({"n": 5}) == 3 * 25 + 1 + 7  # a symbol without a number counts as one
    assert formula.is_exact_at({"n": 5, "m": 2})
    assert not formula.is_exact_at({"n": 5})


def test_an_unknown_size_counts_as_one_and_makes_a_lower_bound() -> None:
    formula = product((3, None, "n"))
    assert (formula.at({"n": 2}), formula.is_exact, str(formula)) == (6, False, "≥ 3*n")
    assert not (formula + 1).is_exact
    assert not (formula * 2).is_exact


def test_a_tensor_without_elements_costs_nothing() -> None:
    assert product((0, "n")) == Formula()
    assert product(()) == Formula.of(1)


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", 2, 3]), max_size=3), min_size=2, max_size=5),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_a_formula_and_arithmetic_agree(rows: list[list[int | str]], a: int, b: int) -> None:
    numbers = {"a": a, "b": b}
    values = [math.prod(numbers.get(str(dim), dim if isinstance(dim, int) else 0) for dim in row) for row in rows]
    formulas = [product(row) for row in rows]
    total = formulas[0] * formulas[1] + sum(formulas[2:], Formula())
    assert total.at(numbers) == values[0] * values[1] + sum(values[2:])


# Caches.


def cached(
    names: Sequence[tuple[str, str]],
    past: Sequence[int | str | None] = ("batch", 2, "past", 8),
    present: Sequence[int | str | None] = ("batch", 2, "total", 8),
    *,
    dtypes: tuple[int, int] = (TensorProto.FLOAT, TensorProto.FLOAT),
    seq: int | str = "seq",
    total: str = "total",
) -> ModelProto:
    """A decoder whose caches pass through an unknown operator, with token ids and a mask."""
    nodes = [helper.make_node("Grow", [before, "input_ids"], [after], domain="com.acme") for before, after in names]
    nodes.append(helper.make_node("Head", ["input_ids", "attention_mask"], ["logits"], domain="com.acme"))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", seq])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", total])
    inputs = [ids, mask, *(helper.make_tensor_value_info(name, dtypes[0], past) for name, _ in names)]
    outputs = [floats("logits", "batch", seq, 100)]
    outputs += [helper.make_tensor_value_info(name, dtypes[1], present) for _, name in names]
    proto = model_of(nodes, inputs, outputs)
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    return proto


@each(
    ("past", "present", "layer"),
    [
        ("past_key_values.3.key", "present.3.key", 3),  # optimum, GenAI
        ("past_key_values.3.decoder.key", "present.3.decoder.key", 3),  # optimum, encoder-decoders
        ("past_key_values.3.encoder.value", "present.3.encoder.value", 3),
        ("past_key_values.3.key", "present_key_values.3.key", 3),
        ("past_key_3", "present_key_3", 3),  # ORT's converters
        ("past_key_self_3", "present_key_self_3", 3),  # ORT's Whisper
        ("past_self_key_3", "present_self_key_3", 3),
        ("past_3", "present_3", 3),  # ORT's GPT-2: keys and values in one
        ("past.3.key", "present.3.key", 3),
        ("cache_k_3", "cache_k_3_out", 3),
        ("cache_k_3", "new_cache_k_3", 3),
        ("key_cache.3", "key_cache_out.3", 3),
        ("k_cache_3", "updated_k_cache_3", 3),
        ("past_key_values_key_cache_3", "present_key_values_key_cache_3", 3),
        ("kv_cache_in_3", "kv_cache_out_3", 3),
        ("pastKey3", "presentKey3", 3),
        ("cache_last_channel", "cache_last_channel_next", None),  # NeMo
        ("past_key_values", "present", None),
    ],
)
def test_exporters_spell_caches_in_many_ways(opened: Open, past: str, present: str, layer: int | None) -> None:
    assert find_caches(opened(cached([(past, present)]))) == (Cache(past, present, layer),)


@each(
    ("past", "present"),
    [
        ("x", "y"),
        ("x_3", "present_3"),
        ("past_key_values.3.key", "present.4.key"),
        ("past_key_values.3.key", "present.3.value"),
        ("past_key_values.3.key", "hidden.3.key"),
        ("cache", "output"),
        ("past_values", "prediction_outputs"),
    ],
)
def test_unrelated_names_are_not_a_cache(opened: Open, past: str, present: str) -> None:
    assert find_caches(opened(cached([(past, present)]))) == ()


def test_caches_of_another_type_or_shape_do_not_pair_up(opened: Open) -> None:
    names = [("past_0", "present_0")]
    halves = (TensorProto.FLOAT16, TensorProto.FLOAT)
    assert find_caches(opened(cached(names, dtypes=halves))) == ()
    assert find_caches(opened(cached(names, present=("batch", "total", 8)))) == ()
    assert find_caches(opened(cached(names, present=("batch", 4, "total", 8)))) == ()  # two axes differ
    assert find_caches(opened(cached(names, past=(1, 2, 9, 8), present=(1, 2, 8, 8)))) == ()  # it shrinks
    assert find_caches(opened(cached(names, past=("past",), present=("total",)))) == ()  # a row is no cache


def test_a_buffer_for_past_and_present_is_a_cache(opened: Open) -> None:
    buffer = ("batch", 2, "max_length", 8)
    model = opened(cached([("past_0", "present_0")], past=buffer, present=buffer))
    assert find_caches(model) == (Cache("past_0", "present_0", 0),)
    # It must hold what is in it and what is new.
    decode = {"batch": 1, "seq": 1, "max_length": 17, "total": 17}
    assert profile_dims(model, "decode", 16) == decode


def test_a_name_with_two_matches_is_not_a_pair(opened: Open) -> None:
    names = [("past_key_0", "present_key_0"), ("past.0.key", "present.0.key")]
    assert find_caches(opened(cached(names))) == ()


def test_caches_are_in_the_order_of_the_inputs(opened: Open) -> None:
    names = [(f"past_{i}", f"present_{i}") for i in (10, 2, 0)]
    assert [cache.layer for cache in find_caches(opened(cached(names)))] == [10, 2, 0]


def test_real_exports_have_their_caches() -> None:
    model = load(FIXTURES / "tiny-llama-int4" / "model.onnx")
    names = [f"{layer}.{kind}" for kind in ("key", "value") for layer in range(4)]
    assert [(c.past, c.present) for c in find_caches(model)] == [
        (f"past_key_values.{n}", f"present.{n}") for n in names
    ]
    assert find_caches(load(FIXTURES / "unet.onnx")) == ()


def test_the_nodes_of_a_cache_read_and_write_it(tmp_path: Path) -> None:
    write("llm", tmp_path / "llm.onnx", layers=2)
    model = load(tmp_path / "llm.onnx")
    cache = find_caches(model)[2]
    assert (cache.past, cache.layer) == ("past_key_values.1.key", 1)
    touching = [model.graph.nodes[i] for i in nodes_touching(model.graph, cache)]
    assert [(node.op, node.writes) for node in touching] == [("Concat", ("present.1.key",))]


def test_the_symbols_of_a_decoder_have_roles(opened: Open) -> None:
    model = opened(cached([("past_0", "present_0")]))
    assert decoder_sizes(model) == DecoderSizes("batch", "seq", "past", "total", "total")


def test_a_model_that_is_not_a_decoder_has_no_profiles(opened: Open) -> None:
    model = opened(cached([("x", "y")]))
    assert decoder_sizes(model) is None
    with pytest.raises(UsageError, match=r"model\.onnx is not a decoder: none of its inputs is a cache") as caught:
        profile_dims(model, "decode", 16)
    assert "for others give `dims`" in caught.value.hint


def test_prefill_fills_an_empty_cache_and_decode_adds_one_token(opened: Open) -> None:
    model = opened(cached([("past_0", "present_0")]))
    assert profile_dims(model, "prefill", 16) == {"batch": 1, "seq": 16, "past": 0, "total": 16}


def test_dims_of_the_user_take_precedence_in_a_profile(opened: Open) -> None:
    model = opened(cached([("past_0", "present_0")]), dims={"seq": 4})
    assert profile_dims(model, "decode", 16) == {"batch": 1, "seq": 4, "past": 16, "total": 20}


def test_a_decoder_that_takes_one_token_at_a_time_has_no_longer_prefill(opened: Open) -> None:
    model = opened(cached([("past_0", "present_0")], present=("batch", 2, "past + 1", 8), seq=1, total="past + 1"))
    assert decoder_sizes(model) == DecoderSizes("batch", 1, "past", "past + 1", "past + 1")
    assert profile_dims(model, "prefill", 16) == {"batch": 1, "past": 0, "past + 1": 1}
    assert profile_dims(model, "decode", 16) == {"batch": 1, "past": 16, "past + 1": 17}


def test_the_caches_that_grow_give_the_past(opened: Open) -> None:
    proto = cached([("past.0.encoder.key", "present.0.encoder.key"), ("past.0.decoder.key", "present.0.decoder.key")])
    for value in (proto.graph.input[2], proto.graph.output[1]):
        value.type.tensor_type.shape.dim[2].dim_param = "encoder_length"
    model = opened(proto)
    assert len(find_caches(model)) == 2
    assert decoder_sizes(model) == DecoderSizes("batch", "seq", "past", "total", "total")


def test_a_profile_needs_tokens(opened: Open) -> None:
    model = opened(cached([("past_0", "present_0")]))
    with pytest.raises(UsageError, match="the length of a profile can't be 0"):
        profile_dims(model, "prefill", 0)


def test_sizes_that_are_expressions_follow_from_their_symbols(opened: Open) -> None:
    grown = ("batch", 2, "past + seq", 8)
    model = opened(cached([("past_0", "present_0")], present=grown))
    costs = weigh(model, {"batch": 1, "seq": 2, "past": 5})
    assert costs.dims == {"batch": 1, "seq": 2, "past": 5, "total": 7, "past + seq": 7}
    assert costs.tensor_bytes["present_0"] == (2 * 7 * 8 * 4, True)
    assert sum(costs.tensor_bytes[cache.present][0] for cache in costs.caches) == 2 * 7 * 8 * 4


def test_the_width_of_a_genai_cache_is_that_of_a_head() -> None:
    model = load(FIXTURES / "tiny-llama-fp32" / "model.onnx")
    costs = weigh(model, profile_dims(model, "decode", 16))
    # 4 layers, keys and values, 2 heads of 64 / 4, 17 tokens.
    assert sum(costs.tensor_bytes[cache.present][0] for cache in costs.caches) == 4 * 2 * 2 * 16 * 17 * 4


# Bytes.


def zeros(name: str, *shape: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.zeros(shape, dtype), name)


def ms(proto: ModelProto) -> ModelProto:
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def ints(name: str, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def test_a_tied_weight_counts_with_every_node_that_reads_it_and_an_embedding_by_its_rows(opened: Open) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node("Transpose", ["table"], ["turned"]),
        helper.make_node("MatMul", ["h", "turned"], ["y"]),
    ]
    proto = model_of(nodes, [ints("ids", "n")], [floats("y", "n", 100)], [zeros("table", 100, 8)])
    costs = weigh(opened(proto), {"n": 3})
    assert [node.op for i in costs.model.graph.flow for node in [costs.model.graph.nodes[i]]] == ["Gather", "MatMul"]
    assert costs.weight_bytes == (3 * 8 * 4, 100 * 8 * 4)
    # More tokens than there are rows touch the table once.
    assert weigh(costs.model, {"n": 1000}).weight_bytes[0] == 100 * 8 * 4


def test_a_packed_weight_counts_packed_with_its_scales_and_zero_points(opened: Open) -> None:
    proto = helper.make_node(
        "MatMulNBits", ["x", "q", "s", "z"], ["y"], domain="com.microsoft", K=64, N=10, bits=4, block_size=32
    )
    weights = [zeros("q", 10, 2, 16, dtype=np.uint8), zeros("s", 20), zeros("z", 10, dtype=np.uint8)]
    costs = weigh(opened(ms(model_of([proto], [floats("x", 3, 64)], [floats("y", 3, 10)], weights))))
    assert costs.weight_bytes == (64 * 10 // 2 + 20 * 4 + 10,)
    assert costs.moved_bytes == ((3 * 64 + 3 * 10) * 4,)


def test_a_four_bit_weight_that_is_unpacked_on_the_way_counts_packed(opened: Open) -> None:
    packed = TensorProto(name="q", data_type=TensorProto.UINT4, dims=[64, 10], raw_data=bytes(320))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    proto = model_of(nodes, [floats("x", 3, 64)], [floats("y", 3, 10)], [packed, zeros("s", 2, 10)], opset=21)
    proto.ir_version = 10
    costs = weigh(opened(proto))
    assert costs.flops == (2 * 3 * 64 * 10,)
    assert costs.weight_bytes == (320 + 2 * 10 * 4,)


def test_the_output_of_a_constant_node_counts_as_computed(opened: Open) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array([64, 10]), "sizes")]
    costs = weigh(opened(model_of(nodes, [floats("x", 3, 64)], [floats("y", 3, 10)], weights)))
    assert (costs.weight_bytes, costs.flops) == ((64 * 10 * 4,), (2 * 3 * 64 * 10,))


def test_a_quantised_embedding_counts_the_share_of_rows_it_picks(opened: Open) -> None:
    pick = helper.make_node(
        "GatherBlockQuantized", ["q", "ids", "s"], ["y"], domain="com.microsoft", block_size=32, bits=4, quantize_axis=1
    )
    weights = [zeros("q", 100, 32, dtype=np.uint8), zeros("s", 100, 2)]
    costs = weigh(opened(ms(model_of([pick], [ints("ids", 5)], [floats("y", 5, 64)], weights))))
    assert costs.weight_bytes == (5 * 32 + 5 * 2 * 4,)


def test_words_are_embedded_by_a_row_for_each_token(opened: Open) -> None:
    """Of 100 words; the tables of 10 positions, of a gain and of a bias are read whole."""
    reads = ["ids", "", "words", "places", "", "gain", "bias"]
    embed = helper.make_node("EmbedLayerNormalization", reads, ["y"], domain="com.microsoft")
    weights = [zeros("words", 100, 8), zeros("places", 10, 8), zeros("gain", 8), zeros("bias", 8)]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, [2, 3])
    costs = weigh(opened(ms(model_of([embed], [ids], [floats("y", 2, 3, 8)], weights))))
    assert costs.weight_bytes == ((2 * 3 + 10 + 1 + 1) * 8 * 4,)


def test_experts_that_no_token_can_reach_are_not_read(opened: Open) -> None:
    moe = helper.make_node("MoE", ["x", "r", "f", "", "g"], ["y"], domain="com.microsoft", k=2)
    weights = [zeros("f", 8, 24, 16), zeros("g", 8, 16, 24)]
    inputs = [floats("x", "s", 16), floats("r", "s", 8)]
    model = opened(ms(model_of([moe], inputs, [floats("y", "s", 16)], weights)))
    all_of_them = 2 * 8 * 24 * 16 * 4
    assert weigh(model, {"s": 1}).weight_bytes == (all_of_them // 4,)
    assert weigh(model, {"s": 100}).weight_bytes == (all_of_them,)


def test_a_rotary_table_counts_the_rows_of_its_tokens() -> None:
    model = load(FIXTURES / "tiny-llama-fp32" / "model.onnx")
    costs = weigh(model, profile_dims(model, "decode", 16))
    attention = [n for n, i in enumerate(model.graph.flow) if "GroupQueryAttention" in model.graph.nodes[i].op]
    # Cosine and sine of half a head, for one token.
    assert [costs.weight_bytes[n] for n in attention] == [2 * 8 * 4] * 4


def test_constants_of_a_subgraph_are_weights_of_its_node(opened: Open) -> None:
    constant = helper.make_node("Constant", [], ["k"], value=zeros("k", 5))
    then = helper.make_graph([constant, helper.make_node("Add", ["x", "k"], ["t"])], "then", [], [floats("t", 5)])
    other = helper.make_graph([helper.make_node("Add", ["x", "w"], ["e"])], "else", [], [floats("e", 5)])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    costs = weigh(opened(model_of([choice], [flag, floats("x", 5)], [floats("y", 5)], [zeros("w", 5)])))
    assert costs.weight_bytes == (5 * 4 + 5 * 4,)


def test_views_move_nothing_and_looking_at_a_shape_reads_nothing(opened: Open) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Slice", ["b", "begin", "end"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array([v]), n) for n, v in (("flat", -1), ("begin", 0), ("end", 2))]
    costs = weigh(opened(model_of(nodes, [floats("x", 4, 5)], [floats("y", 2), ints("s", 1)], weights)))
    assert costs.moved_bytes == (80 + 80, 0, 8, 8 + 8)
    assert costs.is_view == (False, True, False, False)


def test_sizes_that_are_known_only_with_bound_dims_count(opened: Open) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "two"], ["d"]),
        helper.make_node("Expand", ["one", "d"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array([2]), "two"), zeros("one", 1)]
    model = opened(model_of(nodes, [floats("x", "n")], [floats("y", None)], weights))
    assert weigh(model).flops[-1] == 2
    costs = weigh(model, {"n": 10})
    assert (costs.flops[-1], costs.tensor_bytes["e"], costs.moved_bytes[-1]) == (20, (80, True), 160)


# Peaks.


def chain_of(*nodes: tuple[str, str]) -> Graph:
    """A graph of nodes `(reads, writes)`, with names parted by blanks; `x` comes from outside, `y` goes there."""
    made = tuple(
        Node(f"n{i}", "Op", tuple(reads.split()), tuple(writes.split()), (), (), False, False, "")
        for i, (reads, writes) in enumerate(nodes)
    )
    return Graph(made, {}, ("x",), ("y",))


def tens(graph: Graph, **more: int) -> dict[str, tuple[int, bool]]:
    names = dict.fromkeys(t for node in graph.nodes for t in (*node.reads, *node.writes))
    return {name: (more.get(name, 10), True) for name in names}


def test_an_inner_tensor_is_freed_after_its_last_reader() -> None:
    graph = chain_of(("x", "a"), ("a", "b"), ("b", "c"), ("c", "y"))
    # x is held by the caller, and two inner tensors are alive at once.
    assert peak_bytes(graph, [0, 1, 2, 3], tens(graph), writes=["y"]) == 30
    assert peak_bytes(graph, [0, 1, 2, 3], tens(graph, b=100), writes=["y"]) == 10 + 10 + 100


def test_outputs_of_a_part_are_held_to_the_end() -> None:
    graph = chain_of(("x", "a"), ("a", "b"), ("b", "c"), ("c a", "y"))
    # a is read by a node outside, so it stays beside b and c; x too.
    assert peak_bytes(graph, [0, 1, 2], tens(graph), writes=["a", "c"]) == 40
    # In a part that need not give it out (the reader computes it again) it dies.
    assert peak_bytes(graph, [0, 1, 2], tens(graph), writes=["c"]) == 30


def test_a_tensor_without_readers_is_held_while_it_is_written() -> None:
    graph = chain_of(("x", "a side"), ("a", "y"))
    assert peak_bytes(graph, [0, 1], tens(graph, side=100), writes=["y"]) == 10 + 10 + 100


def test_the_peak_of_no_nodes_is_nothing() -> None:
    assert peak_bytes(chain_of(("x", "y")), [], {}, writes=[]) == 0


def simulated(graph: Graph, nodes: Sequence[int], sizes: Mapping[str, tuple[int, bool]]) -> int:
    """The peak by its definition: for each moment, every tensor asked for whether it is alive."""
    outside = [node for i, node in enumerate(graph.nodes) if i not in nodes]
    wanted = {tensor for node in outside for tensor in node.reads} | set(graph.writes)
    made_at = {tensor: index for index, i in enumerate(nodes) for tensor in graph.nodes[i].writes}
    read_at: dict[str, list[int]] = {}
    for index, i in enumerate(nodes):
        for tensor in graph.nodes[i].reads:
            read_at.setdefault(tensor, []).append(index)
    peak = 0
    for moment in range(len(nodes)):
        alive = {tensor for tensor in read_at if tensor not in made_at}
        alive |= {t for t, index in made_at.items() if index <= moment and (t in wanted or index == moment)}
        alive |= {t for t, index in made_at.items() if index <= moment <= max(read_at.get(t, [-1]))}
        peak = max(peak, sum(sizes[tensor][0] for tensor in alive))
    return peak


@st.composite
def random_graphs(draw: Callable[..., object]) -> tuple[Graph, list[int], dict[str, tuple[int, bool]]]:
    """A graph in which any node may read anything before it, some of its nodes in order, and bytes of its tensors."""
    standing, nodes = ["x0", "x1"], []
    for i in range(draw(st.integers(1, 9))):  # type: ignore[call-overload]
        reads = draw(st.lists(st.sampled_from(standing), min_size=1, max_size=3, unique=True))
        writes = [f"t{i}.{k}" for k in range(draw(st.integers(1, 2)))]  # type: ignore[call-overload]
        nodes.append(Node(f"n{i}", "Op", tuple(reads), tuple(writes), (), (), False, False, ""))  # type: ignore[arg-type]
        standing += writes
    outputs = draw(st.lists(st.sampled_from(standing), min_size=1, max_size=3, unique=True))
    chosen = draw(st.sets(st.integers(0, len(nodes) - 1), min_size=1))
    sizes = {tensor: (draw(st.integers(0, 50)), True) for tensor in standing}
    graph = Graph(tuple(nodes), {}, ("x0", "x1"), tuple(outputs))  # type: ignore[arg-type]
    return graph, sorted(chosen), sizes  # type: ignore[call-overload,return-value]


@settings(max_examples=200, deadline=None)
@given(random_graphs())
def test_the_peak_is_what_a_simulation_finds(case: tuple[Graph, list[int], dict[str, tuple[int, bool]]]) -> None:
    graph, nodes, sizes = case
    written = {name: {*graph.readers.get(name, ())} for n in nodes for name in graph.nodes[n].writes}
    writes = [name for name, readers in written.items() if name in graph.outputs or readers - {*nodes}]
    peak = peak_bytes(graph, nodes, sizes, writes=writes)
    assert peak == simulated(graph, execution_order(graph, nodes), sizes)


# Any model.


@each("name", [name for name, build in HAZARDS.items() if build().runs])
def test_every_hazard_can_be_weighed(name: str, tmp_path: Path) -> None:
    model = load(HAZARDS[name]().write(tmp_path))
    costs = weigh(model)
    assert len(costs.flops) == len(model.graph.flow)
    assert {op for op in costs.uncounted if "." not in op} == set()
    assert peak_bytes(model.graph, model.graph.flow, costs.tensor_bytes, writes=model.graph.writes) >= 0


def test_every_operator_of_the_models_of_onnxs_own_suite_is_counted() -> None:
    uncounted: set[str] = set()
    kinds = ("simple", "pytorch-converted", "pytorch-operator")
    for case in (case for kind in kinds for case in load_model_tests(kind=kind)):
        model = load(Path(case.model_dir or "", "model.onnx"))
        uncounted |= set(weigh(model, dict.fromkeys(model.symbols, 2)).uncounted)
    assert uncounted <= {"ai.onnx.preview.training.Gradient"}


# Devices.


def weighed(opened: Open) -> Costs:
    nodes: list[NodeProto] = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    weights = [zeros("w", 64, 32), numpy_helper.from_array(np.array([-1]), "flat")]
    return weigh(opened(model_of(nodes, [floats("x", 16, 64)], [floats("y", 512)], weights)))


def test_a_node_takes_the_longer_of_computing_and_moving(opened: Open) -> None:
    costs = weighed(opened)
    fast = Device(name="fast", flops_per_s=1e30, bytes_per_s=1e3, dispatch_s=0.5)
    moved = (64 * 32 + 16 * 64 + 16 * 32) * 4
    assert run_s(costs, fast) == (moved / 1e3 + 0.5, 0.0, 2 * 512 * 4 / 1e3 + 0.5)
    slow = Device(name="slow", flops_per_s=1e3, bytes_per_s=1e30, dispatch_s=0)
    assert run_s(costs, slow) == (2 * 16 * 64 * 32 / 1e3, 0.0, 512 / 1e3)


@each(
    ("field", "value", "words"),
    [
        ("flops_per_s", 0, "flops_per_s of device 'a' can't be 0: expected a finite number above 0"),
        ("bytes_per_s", -1, "bytes_per_s of device 'a' can't be -1"),
        ("memory_bytes", 0, "memory_bytes of device 'a' can't be 0: expected a finite number above 0"),
        ("dispatch_s", -1, "dispatch_s of device 'a' can't be -1: expected a finite number of 0 or more"),
        ("latency_s", math.inf, "latency_s of device 'a' can't be inf"),
        ("name", "", "a device needs a name"),
    ],
)
def test_an_impossible_device_is_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        Device(**{"name": "a", field: value})  # type: ignore[arg-type]


def test_a_device_in_a_file_is_read_strictly() -> None:
    with pytest.raises(msgspec.ValidationError, match="flops_per_s of device 'a' can't be 0"):
        msgspec.json.decode(b'{"name": "a", "flops_per_s": 0}', type=Device)
    with pytest.raises(msgspec.ValidationError, match="unknown field `speed`"):
        msgspec.json.decode(b'{"name": "a", "speed": 1}', type=Device)
    assert msgspec.json.decode(b'{"name": "a"}', type=Device) == Device(name="a")


# A decoder.


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("llm") / "llm.onnx"
    write("llm", path, layers=3, hidden=32, heads=4, kv_heads=2, intermediate=80, vocab=50)
    return load(path)


@pytest.mark.parametrize("profile", ["prefill", "decode"])
def test_the_products_of_a_decoder_are_those_of_its_architecture(llm: Model, profile: str) -> None:
    dims = profile_dims(llm, profile, 20)  # type: ignore[arg-type]
    costs = weigh(llm, dims)
    products = sum(
        flops for i, flops in zip(llm.graph.flow, costs.flops, strict=True) if llm.graph.nodes[i].op == "MatMul"
    )
    seq, total = dims["seq"], dims["total"]
    projections = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 80
    assert products == 2 * seq * (3 * projections + 32 * 50) + 3 * 2 * 2 * seq * total * 32
    assert costs.uncounted == {}
    assert all(formula.is_exact for formula in costs.formulas)
    assert set().union(*(formula.symbols for formula in costs.formulas)) <= {"batch", "seq", "past", "total"}


def test_decoding_reads_every_projection_once_and_one_row_of_the_embedding(llm: Model) -> None:
    costs = weigh(llm, profile_dims(llm, "decode", 20))
    by_node = dict(zip((llm.graph.nodes[i].name for i in llm.graph.flow), costs.weight_bytes, strict=True))
    matrices = sum(number for name, number in by_node.items() if name.endswith("MatMul") and number)
    assert matrices == 4 * (3 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 80) + 32 * 50)
    assert by_node["/model/embed_tokens/Gather"] == 4 * 32


def test_costs_are_in_the_order_of_the_flowing_nodes(llm: Model) -> None:
    costs = weigh(llm)
    rows = (costs.formulas, costs.flops, costs.weight_bytes, costs.moved_bytes, costs.is_view)
    assert {len(row) for row in rows} == {len(llm.graph.flow)}
    assert set(costs.tensor_bytes) == set(llm.tensors)


def test_bound_dims_add_to_those_of_the_model(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    onnx.save(model_of(nodes, [floats("a", "n", "m"), floats("b", "n", "m")], [floats("y", "n", "m")]), tmp_path / "m")
    model = load(tmp_path / "m", dims={"n": 3})
    assert (weigh(model).flops, weigh(model, {"m": 5}).flops, weigh(model, {"n": 4, "m": 5}).flops) == (
        (3,),
        (15,),
        (20,),
    )
