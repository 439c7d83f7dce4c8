"""Sharded models in plain ONNX Runtime: the same bits, or the same sums; states in their rank; files."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import Drawing
from onnx import ModelProto, TensorProto, helper
from sharded_models import FEW_UNITS, STYLES

import graphcut
from graphcut import GraphcutError, Into, Model, Sharding, UsageError, demos, shard
from graphcut.costs.device_groups import RankMode
from graphcut.sharding.axes.division import apportion

from cases import crossed, each, seeded
from conftest import FIXTURES, floats, model_of, weight

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
SHARES = {"2 ranks": (1, 1), "3 ranks": (1, 1, 1), "4 ranks": (1, 1, 1, 1), "3:1": (3, 1), "3:1:2:1": (3, 1, 2, 1)}
SIZES = {"batch": 2, "seq": 3, "past": 4, "total": 7}
GENAI = {
    "batch_size": 1, "sequence_length": 3, "past_sequence_length": 4, "total_sequence_length": 7, "kv_cache_dim": 16
}  # fmt: skip


def run(path: Path, feeds: Feeds) -> Feeds:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def run_sharded(sharding: Sharding, feeds: Feeds) -> Feeds:
    """The same inputs and outputs as the model has: states are cut for the ranks, and joined again."""
    feeds, division = dict(feeds), sharding.division
    pieces = {past: division.pieces[present] for past, present in division.states}
    for past, (divided, layout) in pieces.items():
        whole = feeds.pop(past)
        for rank in divided.ranks:
            ((begin, end),) = divided.runs(layout, rank)
            feeds[f"{past}.rank-{rank}"] = whole.take(range(begin, end), layout.axis)
    outputs = run(sharding.path, feeds)
    for past, present in division.states:
        divided, layout = pieces[past]
        outputs[present] = np.concatenate(
            [outputs.pop(f"{present}.rank-{rank}") for rank in divided.ranks], layout.axis
        )
    return outputs


def feeds_for(path: Path) -> Feeds:
    rng, feeds = np.random.default_rng(5), {}
    for value in ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs():
        shape = [dim if isinstance(dim, int) else {**SIZES, **GENAI}[dim] for dim in value.shape]
        if "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
        elif "position" in value.name:
            feeds[value.name] = np.broadcast_to(np.arange(4, 7), shape)
        elif value.type == "tensor(int64)":
            feeds[value.name] = rng.integers(1, 29, shape)
        else:
            feeds[value.name] = rng.normal(0, 1, shape).astype(np.float32)
    return feeds


def write_demo(name: str, **options: int | str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        demos.write(name, folder / "model.onnx", external=None, **options)
        return folder / "model.onnx"

    return write


def write_style(make: Callable[[], ModelProto]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        onnx.save(make(), folder / "model.onnx")
        return folder / "model.onnx"

    return write


def fixture(name: str) -> Callable[[Path], Path]:
    return lambda _: FIXTURES / name


MODELS: dict[str, Callable[[Path], Path]] = {
    "llm": write_demo("llm", layers=2),
    "llm of one key head": write_demo("llm", layers=2, kv_heads=1),
    "llm, tied": write_demo("llm", layers=2, heads=6, hidden=96, kv_heads=6, tied=True),
    "resnet": write_demo("resnet"),
    "multitask": write_demo("multitask"),
    **{name: write_style(make) for name, make in STYLES.items()},
    **{name: fixture(f"{name}.onnx") for name in ("clip", "lstm", "unet")},
    **{name: fixture(f"{name}/model.onnx") for name in ("tiny-llama-fp32", "tiny-llama-int4")},
}
DECODERS = ("llm", "llm of one key head", "llm, tied", "phi", "qwen", "tiny-llama-fp32", "tiny-llama-int4")


def fullest(sharding: Sharding) -> float:
    """The most that a rank holds, to its share of the divided weights and all replicated ones."""
    shares, divided, common = sharding.division.shares, sum(sharding.rank_bytes), sharding.replicated_bytes
    held = zip(sharding.rank_bytes, shares, strict=True)
    return max((own + common) / (divided * share / sum(shares) + common) for own, share in held)


@crossed(("name", "shares"), MODELS, SHARES.values(), times=1, together=6)
def test_exact_has_the_bits_of_the_model(name: str, shares: tuple[int, ...], tmp_path: Path) -> None:
    path = MODELS[name](tmp_path)
    feeds = feeds_for(path)
    sharding = shard(path, tmp_path / "sharded.onnx", ranks=shares)
    whole, sharded = run(path, feeds), run_sharded(sharding, feeds)
    assert whole.keys() == sharded.keys()
    assert [output for output in whole if not np.array_equal(whole[output], sharded[output])] == []
    assert fullest(sharding) <= 1.1


@pytest.mark.parametrize(("size", "units"), [(1, [4, 2]), (2, [8, 4, 3])])
def test_channels_of_one_element_are_divided_by_fours(size: int, units: list[int], tmp_path: Path) -> None:
    """ONNX Runtime then multiplies a matrix by a vector, four rows at a time: other slices have other bits."""
    at = Drawing()
    image = at.reads("image", TensorProto.FLOAT, 1, 40, size, 1)
    for channels in (16, 6, 8):
        at.node("Conv", image, at.weight(f"w{channels}", channels, 40, 1, 1), writes=f"y{channels}")
        at.returns(f"y{channels}", 1, channels, size, 1)
    onnx.save(at.model(opset=20), tmp_path / "model.onnx")
    sharding = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2)
    assert [divided.axes.units for divided in sharding.division.classes] == units
    feeds = {"image": np.random.default_rng(1).normal(0, 1, (1, 40, size, 1)).astype(np.float32)}
    whole, sharded = run(tmp_path / "model.onnx", feeds), run(sharding.path, feeds)
    assert [output for output in whole if not np.array_equal(whole[output], sharded[output])] == []


def network(random: Random) -> ModelProto:
    """Convolutions of any width on images of any size, with kernels that compute four elements at once."""
    at = Drawing()
    x, width = at.reads("image", TensorProto.FLOAT, random.randint(1, 2), 3, *random.choices(range(3, 10), k=2)), 3
    for i in range(3):
        channels = random.choice([4, 2, 1]) * random.randint(3, 40)
        x = at.node("Conv", x, at.weight(f"w{i}", channels, width, 3, 3, scale=0.2), pads=[1] * 4)
        x, width = at.node(random.choice(["Elu", "Selu", "Softplus", "Relu", "Sigmoid", "Mish"]), x), channels
        if random.random() < 0.5:
            x = at.node("InstanceNormalization", x, *(at.weight(f"{name}{i}", channels) for name in ("scale", "bias")))
    x = at.node("ReduceMean", x, at.number([2, 3]), keepdims=1)
    at.node("Conv", x, at.weight("head", 10, width, 1, 1), writes="y")
    at.returns("y", "n", 10, 1, 1)
    return at.model(opset=20)


@seeded(12, together=6)
def test_networks_of_any_width_have_the_bits_of_the_model_on_two_to_six_ranks(seed: int, tmp_path: Path) -> None:
    random = Random(seed)  # noqa: S311
    path = write_style(lambda: network(random))(tmp_path)
    feeds = feeds_for(path)
    whole = run(path, feeds)
    for ranks in range(2, 7):
        shares = random.choices(range(1, 9), k=ranks)
        try:
            sharding = shard(path, tmp_path / "sharded.onnx", ranks=shares, force=True)
        except UsageError:
            continue  # too few units
        assert np.array_equal(run(sharding.path, feeds)["y"], whole["y"]), shares


@pytest.mark.parametrize("shares", [(3, 1, 2, 1), (4, 3, 2, 1)], ids=str)
def test_a_mean_over_an_image_has_the_bits_of_the_model(shares: tuple[int, ...], tmp_path: Path) -> None:
    """Of 256 channels ranks had 110, 36, 74, 36: rows of 49 elements that began elsewhere in a packet of four."""
    at = Drawing()
    image = at.reads("image", TensorProto.FLOAT, 1, 8, 7, 7)
    x = at.node("Conv", image, at.weight("w", 256, 8, 3, 3), pads=[1] * 4)
    at.node("Conv", at.node("ReduceMean", x, at.number([2, 3])), at.weight("head", 12, 256, 1, 1), writes="y")
    at.returns("y", 1, 12, 1, 1)
    onnx.save(at.model(opset=20), tmp_path / "model.onnx")
    feeds = feeds_for(tmp_path / "model.onnx")
    sharding = shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=shares)
    assert np.array_equal(run(sharding.path, feeds)["y"], run(tmp_path / "model.onnx", feeds)["y"])
    assert fullest(sharding) <= 1.1


@crossed(("name", "shares"), MODELS, [(1, 1, 1), (1, 1, 1, 1), (3, 1)], times=1, together=6)
def test_sum_differs_by_rounding_only(name: str, shares: tuple[int, ...], tmp_path: Path) -> None:
    path = MODELS[name](tmp_path)
    feeds = feeds_for(path)
    sharding = shard(path, tmp_path / "sharded.onnx", ranks=shares, mode="sum")
    whole, sharded = run(path, feeds), run_sharded(sharding, feeds)
    for output, values in whole.items():
        np.testing.assert_allclose(sharded[output], values, rtol=1e-4, atol=1e-5 * float(np.abs(values).max()))
    assert fullest(sharding) <= 1.1


@each("mode", ["exact", "sum"])
@each("name", FEW_UNITS)
def test_other_classes_are_divided_where_units_are_too_few(name: str, mode: RankMode, tmp_path: Path) -> None:
    path = write_style(FEW_UNITS[name])(tmp_path)
    feeds = feeds_for(path)
    whole = run(path, feeds)["y"]
    for shares in ((1, 1), (1, 1, 1), (1, 1, 1, 1), (3, 1)):
        sharding = shard(path, tmp_path / "sharded.onnx", ranks=shares, mode=mode, force=True)
        common = sharding.replicated_bytes
        two_units = (2 * 4096 + common) / (sum(sharding.rank_bytes) / 4 + common)
        has_five = (name, mode, len(shares)) == ("squeeze_excite", "exact", 4)  # pairs of columns, of 4 KiB each
        assert fullest(sharding) <= (two_units if has_five else 1.1)
        found = run_sharded(sharding, feeds)["y"]
        assert mode == "sum" or np.array_equal(found, whole)
        np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5 * float(np.abs(whole).max()))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_of_a_single_class_no_rank_has_more_units_than_one_must_have(ranks: int) -> None:
    """With u units on r ranks one has u / r at least, rounded up: no division of whole units is more even."""
    for units in range(2, 20):
        (found, _) = apportion(units, (1,) * ranks, [Fraction(0)] * ranks, 1000)
        assert (max(found), sum(found)) == (-(-units // ranks), units)


@each("mode", ["exact", "sum"])
@each("name", DECODERS)
def test_a_decoder_has_at_least_95_percent_of_its_linear_weights_divided(
    name: str, mode: RankMode, tmp_path: Path
) -> None:
    sharding = shard(MODELS[name](tmp_path), tmp_path / "sharded.onnx", ranks=2, mode=mode)
    assert sharding.divided_share >= 0.95


@pytest.mark.parametrize("mode", ["exact", "sum"])
def test_layers_of_small_units_give_back_what_heads_that_do_not_divide_take_from_a_rank(
    mode: RankMode, tmp_path: Path
) -> None:
    sharding = shard(MODELS["qwen"](tmp_path), tmp_path / "sharded.onnx", ranks=4, mode=mode)
    heads = next(divided for divided in sharding.division.classes if divided.axes.units == 3)
    assert sorted(heads.units) == [0, 1, 1, 1]
    assert fullest(sharding) <= 1.01


@pytest.mark.parametrize("name", ["llm", "tiny-llama-int4"])
def test_sixty_four_tokens_are_the_same_and_states_stay_in_their_rank(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path)
    sharding = shard(path, tmp_path / "sharded.onnx", ranks=2)
    assert len(sharding.division.states) == sum("past" in name for name in graphcut.load(path).graph.reads)
    joined = {join.tensor for join in sharding.division.joins}
    assert not any("present" in tensor for tensor in joined)
    tokens = []
    for model, parts in ((path, "whole"), (sharding.path, "sharded")):
        cascade = graphcut.split(model, Into(2), tmp_path / parts)
        tokens.append(graphcut.generate(cascade, [[1, 15, 27]], max_tokens=64).all())
    assert tokens[0] == tokens[1]


def test_a_sharded_model_is_split_and_verified_like_any_other(tmp_path: Path) -> None:
    sharding = shard(MODELS["llm"](tmp_path), tmp_path / "sharded.onnx", ranks=4)
    cascade = graphcut.split(sharding.model, Into(3), tmp_path / "parts")
    assert graphcut.verify(sharding.model, cascade)


def test_a_rank_without_a_whole_unit_has_no_copy_and_no_state(tmp_path: Path) -> None:
    sharding = shard(MODELS["llm of one key head"](tmp_path), tmp_path / "sharded.onnx", ranks=2)
    assert sharding.division.states == ()
    sharding = shard(MODELS["llm"](tmp_path), tmp_path / "sharded.onnx", ranks=3, force=True)
    pasts = [name for name in sharding.model.graph.reads if name.startswith("past_key_values.0.key")]
    assert len(pasts) == 2


@pytest.fixture
def external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A decoder with its weights in a file, which a sharded model has too."""
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    demos.write("llm", tmp_path / "model.onnx", layers=2, external=True)
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("buffer_bytes", [64, 1000, 4 << 20])
def test_slices_are_streamed_through_a_buffer_of_any_size(
    buffer_bytes: int, external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.loading.external_data.COLUMNS_BYTES", buffer_bytes)
    feeds = feeds_for(external)
    sharding = shard(external, tmp_path / "sharded.onnx", ranks=(2, 1))
    whole, sharded = run(external, feeds), run_sharded(sharding, feeds)
    assert all(np.array_equal(whole[output], sharded[output]) for output in whole)
    assert {file.name for file in tmp_path.iterdir()} == {
        "model.onnx", "model.onnx.data", "sharded.onnx", "sharded.onnx.data"
    }  # fmt: skip


def test_slices_of_a_kibibyte_are_in_a_file_and_smaller_ones_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    for rows in (15, 16):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
            helper.make_node("Relu", ["a"], ["y"], "relu"),
        ]
        model = model_of(nodes, [floats("x", 8, rows)], [floats("y", 8, 32)], [weight("w", rows, 32)])
        path = tmp_path / f"{rows}.onnx"
        onnx.save(model, path, save_as_external_data=True, location=f"{rows}.data", size_threshold=0)
        sharded = onnx.load(shard(path, tmp_path / f"{rows} sharded.onnx", ranks=2).path, load_external_data=False)
        slices = [tensor for tensor in sharded.graph.initializer if [*tensor.dims] == [rows, 16]]
        assert [tensor.HasField("raw_data") for tensor in slices] == [rows * 16 * 4 < 1024] * 2


def test_slices_of_rows_can_be_shared_by_reference(tmp_path: Path) -> None:
    """All but queries, keys and values in one weight, of which a rank has three ranges of rows."""
    for file in (FIXTURES / "tiny-llama-int4").glob("model.onnx*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "model.onnx"
    feeds = feeds_for(path)
    sharding = shard(path, ranks=2, weights="share")
    assert sharding.path == tmp_path / "model.sharded.onnx"
    assert (tmp_path / "model.sharded.onnx.data").stat().st_size == 4 * 128 * 2 * 16
    whole, sharded = run(path, feeds), run_sharded(sharding, feeds)
    assert all(np.array_equal(whole[output], sharded[output]) for output in whole)
    with pytest.raises(UsageError, match="must be in the folder of"):
        shard(path, tmp_path.parent / "elsewhere.onnx", ranks=2, weights="share")


def test_the_same_options_give_the_same_bytes(external: Path, tmp_path: Path) -> None:
    files = []
    for _ in range(2):
        shard(external, tmp_path / "sharded.onnx", ranks=3, force=True)
        files.append([(tmp_path / name).read_bytes() for name in ("sharded.onnx", "sharded.onnx.data")])
    assert files[0] == files[1]


def test_what_fails_leaves_the_old_files(external: Path, tmp_path: Path) -> None:
    shard(external, tmp_path / "sharded.onnx", ranks=2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if "sharded" in file.name}
    with pytest.raises(UsageError, match=r"sharded.onnx already exists"):
        shard(external, tmp_path / "sharded.onnx", ranks=3)
    opened = graphcut.load(external)
    data = external.with_name("model.onnx.data")
    data.write_bytes(data.read_bytes()[:-5000])
    with pytest.raises(GraphcutError, match=r"writing .* failed"):
        shard(opened, tmp_path / "sharded.onnx", ranks=3, force=True)
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir() if "sharded" in file.name}


def test_weights_that_are_inputs_in_ir_3_are_none_of_the_sharded_model(tmp_path: Path) -> None:
    names = [("w0", 8, 32), ("w1", 32, 8)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("MatMul", ["a", "w1"], ["y"])]
    ends = [floats("x", 4, 8), *(floats(*one) for one in names)], [floats("y", 4, 8)]
    proto = model_of(nodes, *ends, [weight(*one) for one in names])
    proto.ir_version = 3
    onnx.save(proto, tmp_path / "model.onnx")
    made = onnx.load(shard(tmp_path / "model.onnx", tmp_path / "sharded.onnx", ranks=2).path)
    assert [value.name for value in made.graph.input] == ["x"]
    assert graphcut.verify(tmp_path / "model.onnx", tmp_path / "sharded.onnx")


def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, opened: Callable[[ModelProto], Model]) -> None:
    path = MODELS["llm"](tmp_path)
    for ranks in (0, 1, (), (3,), (3, 0)):
        with pytest.raises(UsageError, match=r"the shares .*don't divide anything"):
            shard(path, tmp_path / "sharded.onnx", ranks=ranks)
    with pytest.raises(UsageError, match="is also to be read"):
        shard(path, path, ranks=2, force=True)
    relu = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Relu (x) }'
    )
    with pytest.raises(UsageError, match=r"no layer of model.onnx can be divided"):
        shard(opened(relu), tmp_path / "sharded.onnx", ranks=2)
