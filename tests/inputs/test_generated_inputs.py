"""What generated inputs promise: real models run on them, and two sets differ wherever a model leaves it open."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from graphcut.core.errors import GraphcutError, ModelError, OpeningError, UsageError
from graphcut.core.tensors import Tensor
from graphcut.inputs.generating import Generated, generate_inputs, make_feeds
from graphcut.inputs.input_files import read_inputs
from graphcut.inputs.searching import find_accepted_inputs
from graphcut.inputs.sizes import DimensionSizes, Fallback
from graphcut.inputs.survey import InputSurvey
from graphcut.loading.expressions import atoms, evaluate
from graphcut.loading.model import Model
from graphcut.loading.opening import load
from graphcut.running.values import to_value

from cases import each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    Weights = Mapping[str, ArrayLike | tuple[int, ...]]

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "ai.onnx.ml" : 3, "local" : 1]>'

DECODER = """
decoder (int64[batch_size, sequence_length] input_ids, int64[batch_size, total] attention_mask,
         int64[batch_size, sequence_length] position_ids,
         float[batch_size, 2, past_sequence_length, 4] past_key_values_0_key,
         float[batch_size, 2, past_sequence_length, 4] past_key_values_0_value)
    => (float logits, float present_key, float present_value)
{
    word = Gather(words, input_ids)
    place = Gather(places, position_ids)
    hidden = Add(word, place)
    heads = Constant<value_ints = [0, 0, 2, 4]>()
    split = Reshape(hidden, heads)
    new = Transpose<perm = [0, 2, 1, 3]>(split)
    present_key = Concat<axis = 2>(past_key_values_0_key, new)
    present_value = Concat<axis = 2>(past_key_values_0_value, new)
    turned = Transpose<perm = [0, 1, 3, 2]>(present_key)
    scores = MatMul(new, turned)
    axes = Constant<value_ints = [1, 2]>()
    wide = Unsqueeze(attention_mask, axes)
    mask = Cast<to = 1>(wide)
    masked = Mul(scores, mask)
    logits = MatMul(masked, present_value)
}
"""
DECODER_WEIGHTS = {"words": (50, 8), "places": (32, 8)}


def written(path: Path, text: str, weights: Weights, **renamed: str | None) -> Path:
    """A model from ONNX's text format. A weight given as a shape is filled; a symbol renamed to None loses its name."""
    proto = parser.parse_model(HEAD + text)
    for name, values in weights.items():
        filled = np.ones(values, np.float32) if isinstance(values, tuple) else np.asarray(values)
        proto.graph.initializer.append(numpy_helper.from_array(filled, name))
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in renamed:
                symbol = renamed[dim.dim_param]
                dim.Clear()
                if symbol is not None:
                    dim.dim_param = symbol
    path.write_bytes(proto.SerializeToString())
    return path


def built(path: Path, node: onnx.NodeProto, *reads: onnx.ValueInfoProto) -> Model:
    """A model of one node that writes `y`."""
    writes = [onnx.ValueInfoProto(name="y")]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", reads, writes)
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return load(path)


def run(model: Model, feeds: Generated) -> list[Any]:
    """Run it the way that graphcut does."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    values = {name: to_value(value, model.tensors[name]) for name, value in feeds.items()}
    outputs: list[Any] = session.run(None, values)
    return outputs


def shapes(feeds: Generated) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in feeds.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


# Decoders


def test_the_lengths_of_a_decoder_agree_and_its_positions_follow_its_past(path: Path) -> None:
    model = load(written(path, DECODER, DECODER_WEIGHTS, total="past_sequence_length + sequence_length"))
    feeds = generate_inputs(model)
    assert shapes(feeds) == {
        "input_ids": (2, 5),
        "attention_mask": (2, 8),
        "position_ids": (2, 5),
        "past_key_values_0_key": (2, 2, 3, 4),
        "past_key_values_0_value": (2, 2, 3, 4),
    }
    np.testing.assert_array_equal(feeds["attention_mask"], np.ones((2, 8), np.int64))
    np.testing.assert_array_equal(feeds["position_ids"], [[3, 4, 5, 6, 7]] * 2)
    run(model, feeds)


@each(
    "renamed",
    [
        {"total": "total_sequence_length"},
        {"total": "attention_mask_sequence_length"},
        {"total": "past_sequence_length + sequence_length"},
        {"total": "s9", "sequence_length": "s1", "past_sequence_length": "s5", "batch_size": "s0"},
        {"total": "s1 + s5", "sequence_length": "s1", "past_sequence_length": "s5", "batch_size": "s0"},
        {"total": "T", "sequence_length": "S", "past_sequence_length": "P", "batch_size": "B"},
        {"total": "attention_mask_dynamic_axes_2", "sequence_length": "input_ids_dynamic_axes_2"},
        dict.fromkeys(("total", "sequence_length", "past_sequence_length", "batch_size")),
    ],
)
def test_the_total_length_is_found_however_exporters_spell_it(path: Path, renamed: dict[str, str | None]) -> None:
    model = load(written(path, DECODER, DECODER_WEIGHTS, **renamed))
    for variant, lengths in enumerate([(2, 5, 8), (3, 7, 11)]):
        feeds = generate_inputs(model, variant=variant)
        batch, sequence, total = lengths
        assert shapes(feeds)["input_ids"] == (batch, sequence)
        assert shapes(feeds)["attention_mask"] == (batch, total)
        run(model, feeds)


def test_a_mask_for_one_more_token_makes_the_sequence_one_long(path: Path) -> None:
    model = load(written(path, DECODER, DECODER_WEIGHTS, total="past_sequence_length + 1"))
    feeds = generate_inputs(model)
    assert (shapes(feeds)["input_ids"], shapes(feeds)["attention_mask"]) == ((2, 1), (2, 4))
    run(model, feeds)


def test_a_total_length_that_the_user_gives_leaves_the_past_what_the_sequence_does_not_take(path: Path) -> None:
    model = load(written(path, DECODER, DECODER_WEIGHTS, total="total_sequence_length"))
    feeds = generate_inputs(model, sizes={"total_sequence_length": 16, "sequence_length": 6})
    assert shapes(feeds)["past_key_values_0_key"] == (2, 2, 10, 4)
    np.testing.assert_array_equal(feeds["position_ids"], [np.arange(10, 16)] * 2)
    run(model, feeds)


def test_grouped_attention_goes_on_from_a_past_with_one_sequence_or_with_one_token(path: Path) -> None:
    text = """
    grouped (float[batch, sequence, 32] packed, float[batch, 1, past, kv_cache_dim] past_key,
             float[batch, 1, past, kv_cache_dim] past_value, int32[batch] seqlens_k, int32[1] total_sequence_length)
        => (float y, float present_key, float present_value)
    {
        y, present_key, present_value = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>
            (packed, , , past_key, past_value, seqlens_k, total_sequence_length)
    }
    """
    model = load(written(path, text, {}))
    first, second = generate_inputs(model), generate_inputs(model, variant=1)
    assert shapes(first)["packed"] == (1, 5, 32)
    assert shapes(second)["packed"] == (3, 1, 32)
    assert shapes(first)["past_key"] == (1, 1, 3, 8)  # 32 is two heads, a key and a value
    np.testing.assert_array_equal(first["seqlens_k"], [7])
    np.testing.assert_array_equal(second["total_sequence_length"], [5])
    run(model, first)
    run(model, second)
    generate_inputs(load(written(path, text.replace("32] packed", "width] packed"), {})))
    invalid = load(written(path, text.replace("<num_heads = 2, kv_num_heads = 1>", ""), {}))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidGraph, match="num_heads"):
        run(invalid, generate_inputs(invalid))


def test_what_comes_from_an_encoder_has_a_length_of_its_own(path: Path) -> None:
    text = """
    seq2seq (int64[batch, decoder_sequence_length] decoder_input_ids, int64[batch, a] encoder_attention_mask,
             float[batch, encoder_sequence_length, 8] encoder_hidden_states,
             float[batch, 2, past_decoder_sequence_length, 4] past_key_values_0_decoder_key,
             float[batch, 2, encoder_sequence_length_out, 4] past_key_values_0_encoder_key) => (float y, float key)
    {
        word = Gather(words, decoder_input_ids)
        turned = Transpose<perm = [0, 2, 1]>(encoder_hidden_states)
        scores = MatMul(word, turned)
        axis = Constant<value_ints = [1]>()
        wide = Unsqueeze(encoder_attention_mask, axis)
        mask = Cast<to = 1>(wide)
        y = Mul(scores, mask)
        past = Transpose<perm = [0, 2, 1, 3]>(past_key_values_0_encoder_key)
        rows = Constant<value_ints = [0, 0, 8]>()
        flat = Reshape(past, rows)
        both = Add(flat, encoder_hidden_states)
        key = Concat<axis = 2>(past_key_values_0_decoder_key, past_key_values_0_decoder_key)
    }
    """
    model = load(written(path, text, {"words": (20, 8)}, a=None))
    feeds = generate_inputs(model)
    assert shapes(feeds) == {
        "decoder_input_ids": (2, 5),
        "encoder_attention_mask": (2, 6),
        "encoder_hidden_states": (2, 6, 8),
        "past_key_values_0_decoder_key": (2, 2, 3, 4),
        "past_key_values_0_encoder_key": (2, 2, 6, 4),
    }
    run(model, feeds)


# Integers


def test_token_types_are_zeros_then_ones(path: Path) -> None:
    text = "bert (int64[batch, seq] token_type_ids) => (float y) { y = Gather(types, token_type_ids) }"
    feeds = generate_inputs(load(written(path, text, {"types": (2, 4)})))
    np.testing.assert_array_equal(feeds["token_type_ids"], [[0, 0, 0, 1, 1]] * 2)


@each(
    "text",
    [
        "m (int64[n] i) => (float y) { y = Gather(table, i) }",
        "m (int64[n] i) => (float y) { a = Constant<value_ints = [1]>() j = Unsqueeze(i, a) y = Gather(table, j) }",
        "m (int64[n] i) => (float y) { t = Cast<to = 1>(table) y = Gather(t, i) }",
        "m (int64[n] i) => (float y) { t = Transpose<perm = [1, 0]>(table) y = Gather<axis = 1>(t, i) }",
        """m (int64[n] i) => (float y) { y = local.embed(i, table) }
        <domain: "local", opset_import: ["" : 21]> embed (j, t) => (y) { k = Cast<to = 6>(j) y = Gather(t, k) }""",
        """m (int64[n] i, bool c) => (float y) {
            y = If(c)<then_branch = a () => (float z) { z = Gather(table, i) },
                      else_branch = b () => (float z) { g = Gather(table, i) z = Neg(g) }>
        }""",
        """m (int64[n] i, int64 trips) => (float y) {
            c = Constant<value = bool {1}>()
            j, y = Loop(trips, c, i)<body = b (int64 k, bool going, int64[n] v) => (bool on, int64[n] w, float z) {
                on = Identity(going) w = Identity(v) z = Gather(table, v)
            }>
        }""",
        "m (int64[n] i) => (float y) { a = Constant<value_ints = [1]>() j = Unsqueeze(i, a) y = GatherND(table, j) }",
    ],
)
def test_indices_stay_inside_what_they_point_into(path: Path, text: str) -> None:
    model = load(written(path, text, {"table": (300, 2)}))
    feeds = generate_inputs(model, sizes={"n": 100})
    assert feeds["i"].min() >= 0
    assert 200 < feeds["i"].max() < 300
    run(model, feeds)


def test_elements_of_a_sequence_are_indices_where_a_body_takes_them_for_that(path: Path) -> None:
    """A table of one row has no row 1."""
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("j", 7), ("row", 1))]
    body = helper.make_graph([helper.make_node("Gather", ["table", "j"], ["row"])], "body", ends[:1], ends[1:])
    table = helper.make_node("ConstantOfShape", ["shape"], ["table"])
    mapped = helper.make_node("SequenceMap", ["i"], ["y"], body=body)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, ["n"]))
    rows = helper.make_sequence_type_proto(float_rows("n", 2))
    graph = helper.make_graph(
        [table, mapped], "g", [helper.make_value_info("i", kind)], [helper.make_value_info("y", rows)]
    )
    graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "shape"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load(path)
    assert [row.shape for row in run(model, generate_inputs(model))[0]] == [(2, 2)] * 2


def test_the_body_of_an_unknown_operator_says_nothing_of_its_inputs(path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in "jk"]
    body = helper.make_graph([helper.make_node("Neg", ["j"], ["k"])], "body", ends[:1], ends[1:])
    node = helper.make_node("Own", ["i"], ["y"], domain="ai.onnx.ml", body=body)
    model = built(path, node, helper.make_tensor_value_info("i", TensorProto.INT64, [9]))
    assert set(generate_inputs(model)["i"]) == {0, 1}


def test_an_index_into_what_flows_stays_inside_it_too(path: Path) -> None:
    model = load(written(path, "m (float[batch, 40] x, int64[7] i) => (float y) { y = Gather<axis = 1>(x, i) }", {}))
    indices = generate_inputs(model)["i"]
    assert 0 <= indices.min() < indices.max() < 40


@each(
    ("node", "reads"),
    [
        ("y = Reshape(x, p)", "float[2, 3, 4] x, int64[2] p"),
        ("y = Reshape(x, p)", "float[N, 4] x, int64[K] p"),
        ("y = Expand(x, p)", "float[N, 4] x, int64[3] p"),
        ("y = Tile(x, p)", "float[N, 4] x, int64[K] p"),
        ("y = Slice(x, p, q, r, s)", "float[N, 4] x, int64[2] p, int64[2] q, int64[2] r, int64[2] s"),
        ('y = Resize<mode = "nearest">(x, , p)', "float[N, 3, H, W] x, float[K] p"),
        ('y = Resize<mode = "nearest">(x, , , p)', "float[N, 3, H, W] x, int64[4] p"),
        ("y = Pad(x, p)", "float[N, 4] x, int64[K] p"),
        ("y, z = TopK(x, p)", "float[N, 4] x, int64[K] p"),
        ("y = CumSum(x, p)", "float[N, 4] x, int64 p"),
        ("y = ReduceSum(x, p)", "float[N, 4] x, int64[1] p"),
        ("y = Squeeze(x, p)", "float[3, 1, 4] x, int64[1] p"),
        ("y = Unsqueeze(x, p)", "float[3, 4] x, int64[2] p"),
        ("y = SplitToSequence(x, p)", "float[5, 4] x, int64[2] p"),
        ("y = ConstantOfShape(p)", "int64[3] p"),
        ("y = Range(p, q, r)", "int64 p, int64 q, int64 r"),
        ("y = OneHot(i, p, v)", "int64[N] i, int64 p, float[2] v"),
        ("y = AffineGrid(x, p)", "float[N, 2, 3] x, int64[4] p"),
        ("y = LSTM<hidden_size = 2>(x, w, r, , p)", "float[S, B, 3] x, int32[B] p, float[1, 8, 3] w, float[1, 8, 2] r"),
        ("y = NonMaxSuppression(x, s, p, q)", "float[1, 6, 4] x, float[1, 2, 6] s, int64[1] p, float[1] q"),
        ("y = Attention(x, k, k, , , , p)", "float[N, 2, 4, 8] x, float[N, 2, 6, 8] k, int64[N] p"),
    ],
)
def test_parameters_get_values_that_their_operator_can_work_with(path: Path, node: str, reads: str) -> None:
    head = HEAD.replace("21", "24") if "Attention" in node else HEAD
    path.write_bytes(parser.parse_model(f"{head} m ({reads}) => (y) {{ {node} }}").SerializeToString())
    model = load(path)
    for variant in (0, 1):
        assert run(model, generate_inputs(model, variant=variant)), "ONNX Runtime takes them and gives an answer"


def test_a_split_takes_all_there_is(path: Path) -> None:
    model = load(
        written(path, "m (float[7] x, int64[3] p) => (float a, float b, float c) { a, b, c = Split(x, p) }", {})
    )
    feeds = generate_inputs(model)
    np.testing.assert_array_equal(feeds["p"], [3, 2, 2])
    run(model, feeds)


def test_an_integer_that_divides_is_never_zero(path: Path) -> None:
    # ONNX Runtime ends the process on an integer division by zero.
    model = load(written(path, "m (int64[n] a, int64[n] b, int64 c) => (int64 y) { d = Div(a, b) y = Mod(d, c) }", {}))
    survey = InputSurvey(model)
    for fallback in (Fallback(), Fallback(integers=0)):
        feeds = make_feeds(DimensionSizes(survey, {}, fallback=fallback), seed=0)
        assert np.all(feeds["b"] > 0)
        assert feeds["c"] > 0
        run(model, feeds)


def test_lengths_and_extents_are_those_of_what_comes_with_them(path: Path) -> None:
    text = """
    m (float[batch, 3, height, width] images, int64[batch, 2] orig_target_sizes, int64[batch, seq] input,
       int64[batch] input_lengths, int64 sr, int64[1] max_length, int64[1] min_length, float[3] scales)
       => (float y) { y = Relu(images) }
    """
    model = load(written(path, text, {}))
    feeds = generate_inputs(model)
    np.testing.assert_array_equal(feeds["orig_target_sizes"], [[64, 64]] * 2)
    np.testing.assert_array_equal(feeds["input_lengths"], [5, 5])
    np.testing.assert_array_equal(feeds["sr"], 16_000)
    np.testing.assert_array_equal(feeds["max_length"], [7])
    np.testing.assert_array_equal(feeds["min_length"], [1])
    assert np.all(feeds["scales"] > 0)
    other = make_feeds(DimensionSizes(InputSurvey(model), {}, fallback=Fallback(integers=3)), seed=0)
    assert {name: set(value.flat) for name, value in other.items() if value.dtype == np.int64 and name != "input"} == {
        **{name: {3} for name in ("orig_target_sizes", "input_lengths", "max_length", "min_length")},
        "sr": {16_000},
    }


# Images and sound


def test_a_mask_over_an_image_is_as_large_as_the_image(path: Path) -> None:
    text = """
    m (float[a, b, c, d] image, float[e, f, g, h] mask) => (float y) {
        both = Concat<axis = 1>(image, mask) x = Conv(image, w) m = Conv(mask, v) y = Add(x, m)
    }
    """
    model = load(written(path, text, {"w": (4, 3, 3, 3), "v": (4, 1, 3, 3)}, **dict.fromkeys("abcdefgh")))
    feeds = generate_inputs(model)
    assert shapes(feeds) == {"image": (2, 3, 64, 64), "mask": (2, 1, 64, 64)}
    np.testing.assert_array_equal(feeds["mask"], np.ones((2, 1, 64, 64), np.float32))
    run(model, feeds)


def unet(levels: int) -> str:
    """A U-Net whose halves fit together only where the image can be halved so often."""
    down = [
        f"s{i} = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d{i}) d{i + 1} = Relu(s{i})" for i in range(levels)
    ]
    up = [f'r{i} = Resize<mode = "nearest">(u{i + 1}, , twice) u{i} = Add(r{i}, d{i})' for i in reversed(range(levels))]
    return (
        "unet (float[batch, channels, height, width] image) => (float y) { d0 = Conv<pads = [1, 1, 1, 1]>(image, w) "
        f"twice = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() {' '.join(down)} u{levels} = Identity(d{levels}) "
        f"{' '.join(up)} y = Relu(u0) }}"
    )


def test_an_image_can_be_halved_five_times_and_has_the_channels_that_its_convolution_wants(path: Path) -> None:
    model = load(written(path, unet(levels=5), {"w": (4, 1, 3, 3)}))
    assert shapes(generate_inputs(model)) == {"image": (2, 1, 64, 64)}
    assert shapes(generate_inputs(model, variant=1)) == {"image": (3, 1, 96, 96)}
    run(model, generate_inputs(model, variant=1))


def test_an_image_with_its_channels_last_is_known_by_the_convolution_behind_the_transpose(path: Path) -> None:
    text = """
    m (uint8[a, b, c, d] image) => (float y) {
        x = Cast<to = 1>(image) s = Div(x, full) t = Transpose<perm = [0, 3, 1, 2]>(s) y = Conv(t, w)
    }
    """
    renamed = {"a": "unk__6", "b": "unk__7", "c": "unk__8", "d": None}
    model = load(written(path, text, {"full": np.float32(255), "w": (4, 3, 3, 3)}, **renamed))
    assert shapes(generate_inputs(model)) == {"image": (2, 64, 64, 3)}
    run(model, generate_inputs(model))


def test_a_latent_is_smaller_than_an_image_and_takes_one_time_step(path: Path) -> None:
    text = """
    m (float[batch, channels, height, width] sample, float[steps] timestep) => (float y) {
        h = Conv(sample, w) axes = Constant<value_ints = [1, 2, 3]>() t = Unsqueeze(timestep, axes) y = Add(h, t)
    }
    """
    model = load(written(path, text, {"w": (8, 4, 3, 3)}))
    assert shapes(generate_inputs(model)) == {"sample": (2, 4, 16, 16), "timestep": (1,)}
    run(model, generate_inputs(model))


def test_a_voice_detector_gets_a_window_a_state_and_a_sample_rate(path: Path) -> None:
    text = """
    vad (float[a, b] input, float[2, c, 8] state, int64 sr) => (float y, float stateN) {
        usual = Constant<value = int64 {16000}>()
        is_usual = Equal(sr, usual)
        y, stateN = If(is_usual)<
            then_branch = fast () => (float o, float s) {
                axis = Constant<value_ints = [1]>() x = Unsqueeze(input, axis)
                frames = Conv<strides = [64]>(x, w) rows = Transpose<perm = [2, 0, 1]>(frames)
                h, m = Split<num_outputs = 2>(state)
                all, hn, mn = LSTM<hidden_size = 8>(rows, lw, lr, , , h, m)
                o = Identity(hn) s = Concat<axis = 0>(hn, mn)
            },
            else_branch = slow () => (float o, float s) { o = Identity(state) s = Identity(state) }>
    }
    """
    weights = {"w": (4, 1, 128), "lw": (1, 32, 4), "lr": (1, 32, 8)}
    model = load(written(path, text, weights, a=None, b=None, c=None))
    feeds = generate_inputs(model)
    assert shapes(feeds) == {"input": (2, 512), "state": (2, 2, 8), "sr": ()}
    assert feeds["sr"] == 16_000
    run(model, feeds)


def test_sound_is_long_enough_for_the_strides_of_its_network(path: Path) -> None:
    text = """
    m (float[batch_size, sequence_length] input_values) => (float y) {
        axis = Constant<value_ints = [1]>() x = Unsqueeze(input_values, axis)
        a = Conv<strides = [20]>(x, first) y = Conv<strides = [16]>(a, second)
    }
    """
    model = load(written(path, text, {"first": (4, 1, 40), "second": (4, 4, 16)}))
    assert shapes(generate_inputs(model)) == {"input_values": (2, 4096)}
    run(model, generate_inputs(model))


def test_whisper_gets_its_thirty_seconds_in_both_variants(path: Path) -> None:
    text = """
    m (float[batch_size, feature_size, encoder_sequence_length] input_features) => (float y) {
        a = Conv<pads = [1, 1], strides = [2]>(input_features, w) t = Transpose<perm = [0, 2, 1]>(a) y = Add(t, places)
    }
    """
    model = load(written(path, text, {"w": (4, 80, 3), "places": (1500, 4)}))
    assert shapes(generate_inputs(model, variant=1)) == {"input_features": (3, 80, 3000)}
    run(model, generate_inputs(model))


def test_an_input_that_says_nothing_of_its_rank_has_that_of_its_weight(path: Path) -> None:
    proto = parser.parse_model(HEAD + "m (float[1] x) => (float y) { y = Conv(x, w) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 5), np.float32), "w"))
    path.write_bytes(proto.SerializeToString())
    model = load(path)
    assert shapes(generate_inputs(model)) == {"x": (2, 3, 64)}
    run(model, generate_inputs(model))


def test_an_input_that_says_nothing_of_its_rank_has_that_of_what_it_is_joined_with(path: Path) -> None:
    known = helper.make_tensor_value_info("k", 1, ("batch", 2, "new", 5))
    node = helper.make_node("Concat", ["x", "k"], ["y"], axis=2)
    model = built(path, node, helper.make_tensor_value_info("x", 1, None), known)
    feeds = generate_inputs(model)
    assert np.delete(np.shape(feeds["x"]), 2).tolist() == np.delete(np.shape(feeds["k"]), 2).tolist()
    assert run(model, feeds)[0].shape[2] == feeds["x"].shape[2] + feeds["k"].shape[2]


def test_an_input_that_says_nothing_of_its_rank_may_lose_an_axis_or_be_turned(path: Path) -> None:
    unknown = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0])
    ends = [unknown], [onnx.ValueInfoProto(name="y")]
    graph = helper.make_graph([axes, helper.make_node("Squeeze", ["x", "axes"], ["y"])], "g", *ends)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    assert shapes(generate_inputs(load(path))) == {"x": (2, 5)}
    assert run(load(path), {"x": np.ones((1, 5), np.float32)})[0].shape == (5,)
    for order in ((1, 1), (0, 9)):  # which ONNX Runtime refuses
        turned = built(path, helper.make_node("Transpose", ["x"], ["y"], perm=order), unknown)
        assert [*shapes(generate_inputs(turned))] == ["x"]
    weights: Weights = {"twice": np.array([0, 0])}
    unsqueezed = load(written(path, "m (float[n] x) => (float y) { y = Unsqueeze(x, twice) }", weights))
    assert shapes(generate_inputs(unsqueezed)) == {"x": (2,)}


def test_an_input_of_a_recurrent_layer_has_steps_rows_and_values_if_nothing_says_it(path: Path) -> None:
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=4)
    unknown, *known = (helper.make_tensor_value_info(name, 1, shape) for name, shape in RECURRENT.items())
    model = built(path, node, unknown, *known)
    feeds = generate_inputs(model)
    assert shapes(feeds)["x"] == (5, 2, 3)
    assert run(model, feeds)[0].shape == (5, 1, 2, 4)


RECURRENT: dict[str, tuple[int, ...] | None] = {"x": None, "w": (1, 4, 3), "r": (1, 4, 4)}


def test_a_table_of_rows_has_one_identifier_for_each_row(path: Path) -> None:
    text = """
    m (float[a, b] dense, int64[c] user_id, int64[d, 4] item_ids) => (float y) {
        u = Gather(users, user_id) i = Gather(items, item_ids) s = Constant<value_ints = [0, -1]>() r = Reshape(i, s)
        d = MatMul(dense, w) y = Concat<axis = 1>(u, d, r)
    }
    """
    weights: Weights = {"users": (9, 4), "items": (30, 2), "w": (7, 4)}
    model = load(written(path, text, weights, **dict.fromkeys("abcd")))
    feeds = generate_inputs(model)
    assert shapes(feeds) == {"dense": (2, 7), "user_id": (2,), "item_ids": (2, 4)}
    run(model, feeds)


# Sizes


def test_every_free_size_is_another_in_the_next_variant(path: Path) -> None:
    text = "m (float[batch, 3, height, width] a, float[n, seq, dim] b, int64[b, c] d) => (float y) { y = Relu(a) }"
    survey = InputSurvey(load(written(path, text, {}, b=None, c=None)))
    numbers = [DimensionSizes(survey, {}, variant).numbers for variant in range(3)]
    assert list(numbers[0]) == ["batch", "height", "width", "n", "seq", "dim", "d.0", "d.1"]
    assert all(len({n[name] for n in numbers}) == 3 for name in numbers[0])


def test_sizes_of_the_user_win_in_both_variants_before_those_of_the_model(path: Path) -> None:
    text = "m (float[batch, seq, a] x) => (float y) { y = MatMul(x, w) }"
    model = load(written(path, text, {"w": (4, 4)}, a=None), dims={"batch": 6, "seq": 8})
    for variant in (0, 1):
        assert shapes(generate_inputs(model, variant=variant)) == {"x": (6, 8, 4)}
        assert shapes(generate_inputs(model, sizes={"seq": 9}, variant=variant)) == {"x": (6, 9, 4)}
    assert shapes(generate_inputs(model, sizes={"x.2": 4, "batch": 1})) == {"x": (1, 8, 4)}


def test_a_size_that_no_input_has_is_refused_with_the_one_that_was_meant(path: Path) -> None:
    model = load(written(path, "m (float[batch, seq] x) => (float y) { y = Relu(x) }", {}))
    with pytest.raises(UsageError, match=r"no input of model.onnx has a dimension 'bacth'") as refused:
        generate_inputs(model, sizes={"bacth": 1})
    assert refused.value.hint == "did you mean 'batch'? open sizes: batch, seq"


@each(
    ("symbol", "names", "number"),
    [
        ("batch", ("batch",), 2),
        ("past_sequence_length + 1", ("past_sequence_length",), 4),
        ("past_sequence_length + batch", ("past_sequence_length", "batch"), 5),
        ("2*batch", ("batch",), 4),
        ("past_sequence_length // batch", ("past_sequence_length", "batch"), 1),
        ("Max(1, batch - 2)", ("batch",), 1),
        ("floor(past_sequence_length/2 - 1/2) + 1", ("past_sequence_length",), 2),
        ("ceil(past_sequence_length/batch)", ("past_sequence_length", "batch"), 2),
        ("ceiling(-past_sequence_length/2) + batch", ("past_sequence_length", "batch"), 1),
        ("past_sequence_length/3 * batch", ("past_sequence_length", "batch"), 2),
        ("past_sequence_length/2", ("past_sequence_length",), None),
        ("batch/0", ("batch/0",), None),
        ("seq-len", ("seq-len",), None),
        ("unk__6", ("unk__6",), None),
        ("some name", ("some name",), None),
        ("batch**batch", ("batch**batch",), None),
        ("f(batch)", ("f(batch)",), None),
    ],
)
def test_a_symbol_that_is_a_sum_is_worked_out(symbol: str, names: tuple[str, ...], number: int | None) -> None:
    assert atoms(symbol) == names
    assert evaluate(symbol, {"batch": 2, "past_sequence_length": 3}) == number


# Seeds, defaults, branches


def test_the_seed_and_the_variant_decide_every_value(path: Path) -> None:
    model = load(written(path, "m (float[3, 4] x, int64[9] i) => (float y) { y = Gather(x, i) }", {}))
    first = generate_inputs(model, seed=7)
    np.testing.assert_equal(generate_inputs(model, seed=7), first)
    for other in (generate_inputs(model, seed=8), generate_inputs(model, seed=7, variant=1)):
        assert not np.array_equal(other["x"], first["x"])
    assert np.abs(first["x"]).max() <= 1


def test_an_input_keeps_its_values_when_another_one_is_added(path: Path) -> None:
    one = generate_inputs(load(written(path, "m (float[3, 4] x) => (float y) { y = Relu(x) }", {})))
    two = generate_inputs(load(written(path, "m (float[2] a, float[3, 4] x) => (float y) { y = Relu(x) }", {})))
    np.testing.assert_array_equal(one["x"], two["x"])


def test_defaults_are_left_alone_first_and_fed_with_values_near_them_then(path: Path) -> None:
    text = """m (float[n, 4] x, float[4] bias, int64[2] shape, float[512, 1024] large) => (float y) {
        s = Add(x, bias) y = Reshape(s, shape)
    }"""
    weights: Weights = {"bias": np.full(4, 10, np.float32), "shape": np.array([2, -1]), "large": (512, 1024)}
    model = load(written(path, text, weights))
    assert list(generate_inputs(model)) == ["x"]
    feeds = generate_inputs(model, variant=1)
    assert list(feeds) == ["x", "bias", "shape"]
    bias = feeds["bias"]
    assert np.all((bias > 8) & (bias < 12) & (bias != 10))
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(feeds["shape"], [2, -1])


def test_a_single_boolean_takes_each_branch_in_turn_but_a_decoder_keeps_its_cache(path: Path) -> None:
    model = load(written(path, "m (bool flag, bool[1] use_cache_branch) => (bool y) { y = Not(flag) }", {}))
    assert [bool(generate_inputs(model, variant=variant)["flag"]) for variant in (0, 1)] == [True, False]
    assert [bool(generate_inputs(model, variant=variant)["use_cache_branch"]) for variant in (0, 1)] == [True, True]


@pytest.mark.parametrize("dtype", [TensorProto.BOOL, TensorProto.INT32, TensorProto.FLOAT16])
def test_a_mask_is_ones_of_any_type(path: Path, dtype: int) -> None:
    node = helper.make_node("Identity", ["attention_mask"], ["y"])
    value = helper.make_tensor_value_info("attention_mask", dtype, ["batch", "seq"])
    mask = np.asarray(generate_inputs(built(path, node, value))["attention_mask"])
    np.testing.assert_array_equal(mask, np.ones((2, 5), helper.tensor_dtype_to_np_dtype(dtype)))
    assert mask.dtype == helper.tensor_dtype_to_np_dtype(dtype)


# Types


@each(
    "dtype",
    ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ",
     "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL"],
)  # fmt: skip
def test_elements_of_every_type_arrive_as_small_numbers(path: Path, dtype: str) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    value = helper.make_tensor_value_info("x", TensorProto.DataType.Value(dtype), [4, 8])
    model = built(path, node, value)
    numbers = run(model, generate_inputs(model))[0]
    assert numbers.shape == (4, 8)
    assert np.isfinite(numbers).all()
    assert len(np.unique(numbers)) > 1
    assert np.abs(numbers).max() <= (255 if "INT8" in dtype else 1)


def test_packed_elements_stand_in_their_order(path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)
    packed = built(path, node, helper.make_tensor_value_info("x", TensorProto.INT4, [3, 3]))
    found = run(packed, generate_inputs(packed))[0]
    plain = built(path, node, helper.make_tensor_value_info("x", TensorProto.INT16, [3, 3]))
    np.testing.assert_array_equal(found, np.asarray(generate_inputs(plain)["x"]))


def float_rows(*shape: int | str) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, shape)


def test_a_sequence_is_a_list_of_tensors_of_one_shape(path: Path) -> None:
    value = helper.make_value_info("s", helper.make_sequence_type_proto(float_rows("n", 3)))
    model = built(path, helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0), value)
    first, second = generate_inputs(model), generate_inputs(model, variant=1)
    assert [np.shape(tensor) for tensor in first["s"]] == [(2, 3)] * 2
    assert [np.shape(tensor) for tensor in second["s"]] == [(3, 3)] * 3
    assert run(model, second)[0].shape == (9, 3)


def test_an_optional_has_a_value_and_then_none_where_the_model_asks_whether_it_has(path: Path) -> None:
    value = helper.make_value_info("o", helper.make_optional_type_proto(float_rows("n", 3)))
    asks = built(path, helper.make_node("OptionalHasElement", ["o"], ["y"]), value)
    assert [run(asks, generate_inputs(asks, variant=variant))[0] for variant in (0, 1)] == [True, False]
    takes = built(path, helper.make_node("OptionalGetElement", ["o"], ["y"]), value)
    assert run(takes, generate_inputs(takes, variant=1))[0].shape == (3, 3)


def test_a_map_has_the_words_that_its_reader_knows(path: Path) -> None:
    value = helper.make_value_info("d", helper.make_map_type_proto(TensorProto.STRING, float_rows()))
    words: dict[str, Any] = {"string_vocabulary": ["height", "weight"]}
    model = built(path, helper.make_node("DictVectorizer", ["d"], ["y"], domain="ai.onnx.ml", **words), value)
    feeds = generate_inputs(model)
    assert list(feeds["d"]) == ["height", "weight"]
    np.testing.assert_array_equal(run(model, feeds)[0], [np.array([*feeds["d"].values()], np.float32)])


@pytest.mark.parametrize(
    ("op", "attributes", "words"),
    [
        ("LabelEncoder", {"keys_strings": ["red", "green"], "values_int64s": [1, 2]}, {"red", "green"}),
        ("Cast", {"to": TensorProto.FLOAT}, {"1", "2", "3"}),
    ],
)
def test_strings_are_words_that_their_reader_knows(
    path: Path, op: str, attributes: dict[str, Any], words: set[str]
) -> None:
    node = helper.make_node(op, ["s"], ["y"], domain="ai.onnx.ml" if op == "LabelEncoder" else "", **attributes)
    model = built(path, node, helper.make_tensor_value_info("s", TensorProto.STRING, ["n", 8]))
    found = generate_inputs(model)["s"]
    assert found.dtype == object
    assert set(found.ravel()) == words
    run(model, {"s": found})


def test_a_sparse_input_is_refused_by_name(path: Path) -> None:
    kind = onnx.TypeProto()
    kind.sparse_tensor_type.elem_type = TensorProto.FLOAT
    kind.sparse_tensor_type.shape.SetInParent()
    model = built(path, helper.make_node("Identity", ["s"], ["y"]), helper.make_value_info("s", kind))
    with pytest.raises(ModelError, match=r"no values can be generated for input 's' of type sparse_tensor_type"):
        generate_inputs(model)


def test_an_input_whose_elements_have_no_type_is_refused_by_name(path: Path) -> None:
    untyped = helper.make_tensor_value_info("x", TensorProto.UNDEFINED, [1])
    with pytest.raises(ModelError, match=r"input 'x' has no type, so no values can be generated"):
        generate_inputs(built(path, helper.make_node("Relu", ["x"], ["y"]), untyped))


# The ladder


def test_feeds_that_are_accepted_at_once_are_tried_once(path: Path) -> None:
    model = load(written(path, "m (float[batch, 4] x) => (float y) { y = MatMul(x, w) }", {"w": (4, 4)}))
    seen: list[Generated] = []

    def accept(feeds: Generated) -> None:
        seen.append(feeds)
        run(model, feeds)

    tried = find_accepted_inputs(model, accept)
    assert [shapes(feeds) for feeds in tried.feeds] == [{"x": (2, 4)}, {"x": (3, 4)}]
    assert (len(seen), tried.refusal) == (2, "")


def test_a_batch_that_is_frozen_inside_the_model_is_found_and_all_else_still_varies(path: Path) -> None:
    text = """m (float[batch, seq, 4] x) => (float y) {
        s = Constant<value_ints = [1, -1, 4]>() r = Reshape(x, s) y = Concat<axis = 2>(r, x)
    }"""
    model = load(written(path, text, {}))
    tried = find_accepted_inputs(model, lambda feeds: run(model, feeds))
    assert [shapes(feeds) for feeds in tried.feeds] == [{"x": (1, 5, 4)}, {"x": (1, 7, 4)}]


def test_the_tensors_of_a_sequence_are_varied_until_they_fit(path: Path) -> None:
    value = helper.make_value_info("s", helper.make_sequence_type_proto(float_rows("batch", 3)))
    model = built(path, helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0), value)

    def run_with_two_rows(feeds: Generated) -> None:
        if run(model, feeds)[0].shape[0] > 2:
            raise ValueError

    tried = find_accepted_inputs(model, run_with_two_rows, variants=1)
    assert [np.shape(feeds["s"]) for feeds in tried.feeds] == [(2, 1, 3)]


def test_the_one_size_of_image_that_fits_is_found(path: Path) -> None:
    text = """m (float[n, 3, h, w] image) => (float y) {
        c = Conv<strides = [32, 32]>(image, kernel)
        s = Constant<value_ints = [1, 98]>() r = Reshape(c, s) y = MatMul(r, last)
    }"""
    model = load(written(path, text, {"kernel": (2, 3, 32, 32), "last": (98, 2)}))
    tried = find_accepted_inputs(model, lambda feeds: run(model, feeds))
    assert [shapes(feeds) for feeds in tried.feeds] == [{"image": (1, 3, 224, 224)}] * 2


def test_a_model_that_refuses_everything_is_quoted(path: Path) -> None:
    model = load(written(path, "m (float[batch, 4] x, int64[2] i) => (float y) { y = Relu(x) }", {}))
    seen: list[str] = []

    def refuse(feeds: Generated) -> None:
        seen.append(repr((shapes(feeds), feeds["i"])))
        raise GraphcutError(f"not\n  with batch {shapes(feeds)['x'][0]}")

    tried = find_accepted_inputs(model, refuse)
    assert (tried.feeds, tried.refusal) == ((), "not with batch 2")
    assert len(seen) == len(set(seen)) > 1  # nothing is tried twice


def test_of_a_model_that_can_not_be_opened_no_other_inputs_are_tried(path: Path) -> None:
    model = load(written(path, "m (float[batch, 4] x) => (float y) { y = Relu(x) }", {}))
    seen: list[Generated] = []

    def fail(feeds: Generated) -> None:
        seen.append(feeds)
        raise OpeningError("not this model")

    with pytest.raises(OpeningError, match=r"^not this model$"):
        find_accepted_inputs(model, fail)
    assert len(seen) == 1


def test_sizes_of_the_user_are_never_varied(path: Path) -> None:
    model = load(written(path, "m (float[batch, seq] x) => (float y) { y = Relu(x) }", {}))
    met: list[tuple[int, ...]] = []

    def refuse(feeds: Generated) -> None:
        met.append(shapes(feeds)["x"])
        raise ValueError

    find_accepted_inputs(model, refuse, sizes={"seq": 9})
    assert {seq for _, seq in met} == {9}
    assert {batch for batch, _ in met} == {1, 2, 3, 4, 8, 16}


def test_a_model_that_refuses_the_second_variant_alone_keeps_the_first(path: Path) -> None:
    model = load(written(path, "m (float[batch, 4] x, float[4] b) => (float y) { y = Add(x, b) }", {"b": (4,)}))

    def refuse_defaults(feeds: Generated) -> None:
        if "b" in feeds:
            raise ValueError("b is mine")

    tried = find_accepted_inputs(model, refuse_defaults)
    assert [list(feeds) for feeds in tried.feeds] == [["x"]]
    assert tried.refusal == "b is mine"


# Recorded inputs


READS = ("input_ids", "attention_mask")


def test_an_npz_file_is_read_in_the_order_of_the_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", attention_mask=np.ones((1, 2)), input_ids=np.array([[3, 4]]))
    found = read_inputs(tmp_path / "in.npz", READS)
    assert list(found) == ["input_ids", "attention_mask"]
    np.testing.assert_equal(found, {"input_ids": np.array([[3, 4]]), "attention_mask": np.ones((1, 2))})


def test_an_npz_file_is_read_where_no_onnx_is_installed(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones(2))
    script = (
        "import sys; sys.modules['onnx'] = None\n"
        "from pathlib import Path; from graphcut.inputs.input_files import read_inputs\n"
        f"assert list(read_inputs(Path({str(tmp_path / 'in.npz')!r}), ['x'])) == ['x']"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def recorded(folder: Path, *messages: onnx.TensorProto | onnx.SequenceProto | onnx.OptionalProto) -> Path:
    folder.mkdir()
    for place, message in enumerate(messages):
        (folder / f"input_{place}.pb").write_bytes(message.SerializeToString())
    (folder / "output_0.pb").write_bytes(b"not looked at")
    return folder


def test_a_folder_of_onnx_test_data_is_read_by_number_and_by_type(tmp_path: Path) -> None:
    rows = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    folder = recorded(
        tmp_path / "test_data_set_0",
        numpy_helper.from_array(np.array([1, 2])),
        numpy_helper.from_list(rows),
        numpy_helper.from_optional(rows[0]),
        numpy_helper.from_optional(None, dtype=onnx.OptionalProto.TENSOR),
    )
    types = {"s": "sequence(float32)", "o": "optional(float32)", "p": "optional(float32)"}
    tensors = {name: Tensor(name=name, dtype=dtype, shape=None) for name, dtype in types.items()}
    found = read_inputs(folder, ["x", "s", "o", "p"], tensors=tensors)
    np.testing.assert_equal(found, {"x": np.array([1, 2]), "s": rows, "o": rows[0], "p": None})


@pytest.mark.parametrize("dtype", ["float32", "sequence(float32)"])
def test_recorded_values_that_lie_in_another_file_are_not_read(tmp_path: Path, dtype: str) -> None:
    tensor = numpy_helper.from_array(np.ones(2, np.float32))
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    tensor.ClearField("raw_data")
    sequence = onnx.SequenceProto(elem_type=onnx.SequenceProto.TENSOR, tensor_values=[tensor])
    folder = recorded(tmp_path / "data", tensor if dtype == "float32" else sequence)
    with pytest.raises(
        UsageError, match=r"input_0.pb stores the values of input 'x' in another file, which is not read"
    ):
        read_inputs(folder, ["x"], tensors={"x": Tensor(name="x", dtype=dtype, shape=None)})


def broken(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, content)
    return path


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_what_cannot_be_read_is_refused_with_the_file_the_input_and_what_to_do(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.npz", x=np.arange(1000)).read_bytes()
    two = recorded(tmp_path / "two", *[numpy_helper.from_array(np.ones(1))] * 3)
    cases: Sequence[tuple[Path, str, str]] = [
        (tmp_path / "none.npz", "none.npz does not exist", "inputs are a .npz file, or a folder with input_0.pb"),
        (broken(tmp_path / "a.npz", b"hello"), "a.npz is not a .npz file", "write one with numpy.savez"),
        (broken(tmp_path / "b.npz", whole[:-9]), "b.npz is not a .npz file", "write one with numpy.savez"),
        (
            broken(tmp_path / "c.npz", whole.replace(b"\x07\x00\x00", b"\x09\x00\x00")),
            "c.npz: 'x' can't be read: Bad CRC",
            "write it again with numpy.savez",
        ),
        (zipped(tmp_path / "h.npz", "x.npy", b"\x93NUMPY\x01\x00"), "h.npz: 'x' can't be read: EOF", "write it again"),
        (
            zipped(tmp_path / "j.npz", "x.npy", b"\x93NUMPY\x09\x00"),
            r"j.npz: 'x' can't be read: .* unknown version of the format: \(9, 0\)",
            "write it again",
        ),
        (
            broken(tmp_path / "k.npz", whole.replace(b"PK\x01\x02", b"PK\x01\x03")),
            "k.npz can't be read: ",
            "write it again",
        ),
        (zipped(tmp_path / "i.npz", "x", b"text"), "i.npz: 'x' is not an array", "write it again"),
        (tmp_path / f"{'n' * 300}.npz", "can't be read: File name too long", "check its permissions"),
        (
            saved(tmp_path / "d.npz", input_ids=np.array([object()])),
            "d.npz: 'input_ids' is a pickled array of Python objects",
            "save words with dtype=str",
        ),
        (
            saved(tmp_path / "e.npz", input_idz=np.ones(1)),
            "e.npz holds 'input_idz', which is no input of the model",
            "did you mean 'input_ids'? its inputs: input_ids, attention_mask",
        ),
        (broken(tmp_path / "f" / "x.pb", b"").parent, "f holds no input_0.pb", "name the test_data_set_0 folder"),
        (
            broken(tmp_path / "g" / "input_0.pb", b"\xff").parent,
            "input_0.pb can't be read as a tensor, which input 'input_ids' is",
            "are the files numbered in the order of the model's inputs?",
        ),
        (two, "input_2.pb is input 2, and the model has 2, counted from 0", "its inputs: input_ids, attention_mask"),
    ]
    for file, message, hint in cases:
        with pytest.raises(GraphcutError, match=message) as refused:
            read_inputs(file, READS)
        assert isinstance(refused.value, UsageError) == (file in [*file.parent.iterdir()])
        assert refused.value.hint.startswith(hint)
