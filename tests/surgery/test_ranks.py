"""Cascades of ranks: one part for each round and rank, whatever the model and with stages or without."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper
from sharded_models import STYLES
from test_sharding import MODELS, feeds_for, write_demo

import graphcut
from graphcut import Across, Cascade, Cluster, Device, Into, UsageError, demos, split_by_rank
from graphcut.core.digests import DataFile, read_digest
from graphcut.core.manifest import save_manifest
from graphcut.core.states import kept_states
from graphcut.costs.device_groups import RankMode

from cases import crossed, each, some
from conftest import floats, model_of, weight

NAME = re.compile(r"part-(\d+)\.rank-(\d+)\.onnx")


def round_of(file: str) -> int:
    found = NAME.fullmatch(file)
    assert found is not None
    return int(found[1])


@crossed(
    ("name", "way"),
    some(["llm", "resnet", "lstm", "unet", *[*STYLES][::2], "tiny-llama-int4"], "llm, tied", "clip", *[*STYLES][1::2]),
    [("exact", None), ("sum", Into(2))],
    times=1,
    together=1,
)
def test_parts_of_a_round_need_nothing_of_each_other_and_compute_the_model(
    name: str, way: tuple[RankMode, Into | None], tmp_path: Path
) -> None:
    mode, stages = way
    path = MODELS[name](tmp_path)
    cascade = split_by_rank(path, tmp_path / "parts", ranks=(2, 1, 1), mode=mode, stages=stages)
    files = [part.file for part in cascade.parts]
    assert [round_of(file) for file in files] == sorted(round_of(file) for file in files)
    assert {part.rank for part in cascade.parts} >= {0, 1}
    for edge in cascade.wiring.edges:
        if edge.source is not None and edge.target is not None:
            assert round_of(files[edge.source]) < round_of(files[edge.target])
    report = graphcut.verify(path, cascade, structural_only=stages is not None)
    assert (report.same, report.proof.objections) == (True, ())
    assert report.proof.nodes == len(graphcut.load(path).graph.flow)


@pytest.fixture
def ranked(tmp_path: Path) -> Cascade:
    """A decoder with two heads of keys on two ranks."""
    return split_by_rank(MODELS["llm"](tmp_path), tmp_path / "parts", ranks=2)


def test_each_rank_is_a_device_and_keeps_its_states_and_its_share_of_weights(ranked: Cascade, tmp_path: Path) -> None:
    assert [host.name for host in ranked.manifest.devices] == ["rank-0", "rank-1"]
    assert all(part.device == f"rank-{part.rank}" for part in ranked.parts)
    kept = kept_states(ranked.parts, ranked.manifest.states)
    assert sum(map(len, kept.values())) == len(ranked.manifest.states) == 2 * 2 * 2
    for part, states in kept.items():
        assert all(state.past.endswith(f"rank-{ranked.parts[part].rank}") for state in states)
    held = [sum(part.weight_bytes for part in ranked.parts if part.rank == rank) for rank in (0, 1)]
    whole = graphcut.load(tmp_path / "model.onnx").weight_bytes
    assert max(held) < 0.6 * whole


@pytest.mark.parametrize("stages", [None, Into(2)], ids=["", "2 stages"])
@each("name", ["tiny-llama-fp32", "tiny-llama-int4", "phi", "llm, tied", "resnet"])
def test_a_rank_has_one_data_file_with_each_weight_once(name: str, stages: Into | None, tmp_path: Path) -> None:
    """Before, the parts of each round had what they share with others, such as rotary angles, for themselves."""
    path = MODELS[name](tmp_path)
    ranked = split_by_rank(path, tmp_path / "parts", ranks=2, stages=stages)
    sharding = graphcut.shard(path, tmp_path / "sharded.onnx", ranks=2)
    files = {(part.rank, part.device): part.data for part in ranked.parts if part.data}
    assert {tuple(data) for data in files.values()} == {(f"part-{host}.onnx.data",) for _, host in files}
    assert all(part.data.keys() == files[part.rank, part.device].keys() for part in ranked.parts if part.data)
    for rank, own_bytes in enumerate(sharding.rank_bytes):
        held = sum((ranked.root / name).stat().st_size for (r, _), data in files.items() if r == rank for name in data)
        times = 1 if stages is None else 2  # a stage is a device
        assert held <= own_bytes + times * sharding.replicated_bytes


@each("name", ["llm", "resnet"])
def test_ranks_that_share_weights_copy_columns_alone(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path)
    model, feeds = path.read_bytes(), feeds_for(path)
    shared = split_by_rank(path, ranks=2, weights="share", digest=True)
    assert shared.path == tmp_path / "model.cascade.json"
    assert graphcut.verify(path, shared)
    assert graphcut.verify_files(shared)
    copied = split_by_rank(path, tmp_path / "parts", ranks=2)
    columns, all_bytes = (
        sum(file.stat().st_size for file in root.glob("*part-rank-*.onnx.data")) for root in (tmp_path, copied.root)
    )
    assert columns < (0.1 if name == "resnet" else 0.95) * all_bytes
    if name == "resnet":
        outputs = graphcut.run(copied, feeds)
        for output, value in graphcut.run(shared, feeds).items():
            np.testing.assert_array_equal(value, outputs[output])
    graphcut.split(path, Into(2), weights="share", force=True)
    kept = {"model.onnx", "model.cascade.json", "model.part-0.onnx", "model.part-1.onnx", "parts"}
    assert {file.name for file in tmp_path.iterdir()} == kept
    assert path.read_bytes() == model


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_ranks_decode_the_tokens_of_the_model(via: str, ranked: Cascade, tmp_path: Path) -> None:
    whole = graphcut.split(tmp_path / "model.onnx", Into(1), tmp_path / "whole")
    expected = graphcut.generate(whole, [[1, 15, 27]], max_tokens=16).all()
    assert graphcut.generate(ranked, [[1, 15, 27]], max_tokens=16, via=via).all() == expected  # type: ignore[arg-type]


def test_the_whole_sharded_model_is_in_the_folder_and_runs_from_the_weights_of_the_parts(
    ranked: Cascade, tmp_path: Path
) -> None:
    sharded = ranked.root / "sharded.onnx"
    assert ranked.source == sharded
    assert sharded.stat().st_size < 0.5 * graphcut.load(tmp_path / "model.onnx").weight_bytes
    assert graphcut.verify(tmp_path / "model.onnx", sharded)


def test_weights_are_compared_with_the_sharded_model_and_from_there_with_the_parts(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "model.onnx", external=True)
    ranked = split_by_rank(tmp_path / "model.onnx", tmp_path / "parts", ranks=2)

    def compared(model: Path, other: Path) -> int:
        return graphcut.verify(model, other, structural_only=True).proof.weight_bytes

    steps = compared(tmp_path / "model.onnx", ranked.source), compared(ranked.source, ranked.root)
    assert min(steps) > 0
    assert compared(tmp_path / "model.onnx", ranked.root) == sum(steps)


def test_smaller_units_are_taken_where_a_rank_exceeds_its_share_by_less(tmp_path: Path) -> None:
    """Three convolutions of 72, 72 (in two groups) and 96 bytes, with biases of 24, 24 and 16; a third for rank 0.

    Channels that `b` writes go by two, with its bias: rank 0 gets 56 of 112 bytes. Those that it reads go one by one:
    32 of 96, and all of its bias. With 24 bytes of `a`, all of `d` and the other biases it holds 200 bytes, or 192.
    """
    shapes = {"a": (6, 3, 1, 1), "a bias": (6,), "d": (6, 3, 1, 1), "d bias": (6,), "b": (4, 6, 1, 1), "b bias": (4,)}
    nodes = [
        helper.make_node("Conv", [read, name, f"{name} bias"], [end], group=groups)
        for read, name, end, groups in (("x", "a", "p", 1), ("p", "d", "q", 2), ("q", "b", "y", 1))
    ]
    weights = [weight(name, *shape) for name, shape in shapes.items()]
    onnx.save(model_of(nodes, [floats("x", 1, 3, 4, 4)], [floats("y", 1, 4, 4, 4)], weights), tmp_path / "model.onnx")
    cascade = split_by_rank(tmp_path / "model.onnx", tmp_path / "parts", ranks=(1, 2), mode="sum")
    of_first = [onnx.load(cascade.root / part.file) for part in cascade.parts if part.rank == 0]
    floating = [one for model in of_first for one in model.graph.initializer if one.data_type == TensorProto.FLOAT]
    assert 4 * sum(int(np.prod(one.dims)) for one in floating) == 32 + 16 + 24 + 72 + 24 + 24


def test_half_precision_is_rounded_at_each_exchange(tmp_path: Path) -> None:
    """13 of them, one after another: more than the four roundings that are allowed anyway."""
    path = write_demo("llm", layers=3, dtype="float16")(tmp_path)
    report = graphcut.verify(path, split_by_rank(path, tmp_path / "parts", ranks=2))
    assert report.same
    assert not report.is_identical


def test_a_constant_node_with_its_values_in_a_file_has_them_in_those_of_the_parts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["rows"]),
        helper.make_node("Constant", [], ["c"], value=weight("", 4, 64)),
        helper.make_node("Add", ["rows", "c"], ["y"]),
    ]
    proto = model_of(nodes, [floats("x", 4, 64)], [floats("y", 4, 64)], [weight("up", 64, 8), weight("down", 8, 64)])
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="data", size_threshold=0, convert_attribute=True)
    ranked = split_by_rank(path, tmp_path / "parts", ranks=2, mode="sum")
    assert graphcut.verify(path, ranked)
    (tmp_path / "data").unlink()
    assert graphcut.verify(ranked.source, ranked)


def test_ranks_without_a_cache_run_the_inputs_of_the_model(tmp_path: Path) -> None:
    path = MODELS["resnet"](tmp_path)
    ranked = split_by_rank(path, tmp_path / "parts", ranks=2)
    feeds = feeds_for(path)
    outputs = graphcut.run(ranked, feeds)
    whole = graphcut.run(graphcut.split(path, Into(1), tmp_path / "whole"), feeds)
    for name, value in whole.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_a_part_of_another_rank_and_a_changed_weight_are_found(ranked: Cascade, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    a, b = (ranked.root / f"part-1.rank-{rank}.onnx" for rank in (0, 1))
    kept = a.read_bytes(), b.read_bytes()
    a.write_bytes(kept[1])
    b.write_bytes(kept[0])
    assert not graphcut.verify(model, ranked, structural_only=True)
    a.write_bytes(kept[0])
    b.write_bytes(kept[1])
    assert graphcut.verify(model, ranked, structural_only=True)
    assert graphcut.verify(ranked, structural_only=True), "the model that was sharded is found by itself"
    data = ranked.root / "part-rank-1.onnx.data"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    report = graphcut.verify(model, ranked, structural_only=True)
    assert any("the values of" in sentence for sentence in report.proof.objections)


def there(file: Path, data: DataFile) -> DataFile:
    """The record of what a data file has in the ranges of another record."""
    assert data.digest is not None
    return DataFile(bytes=file.stat().st_size, digest=read_digest(file, data.digest.ranges))


def test_ranks_with_exchanged_weights_are_not_compared_with_themselves(ranked: Cascade, tmp_path: Path) -> None:
    """Their manifest has the digests of what is there, and the sharded model beside them reads the same weights."""
    a, b = (ranked.root / f"part-rank-{rank}.onnx.data" for rank in (0, 1))
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)
    forged = [
        replace(part, data={name: there(ranked.root / name, data) for name, data in part.data.items()})
        for part in ranked.parts
    ]
    save_manifest(replace(ranked.manifest, parts=tuple(forged)), ranked.path)
    report = graphcut.verify(tmp_path / "model.onnx", ranked.root)
    assert any("are not those of its slice" in sentence for sentence in report.proof.objections)
    assert (report.same, report.is_identical, report.numbers_summary) == (False, None, "")


def test_another_split_replaces_all_files_and_only_with_force(ranked: Cascade, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    with pytest.raises(UsageError, match="already exists"):
        graphcut.split(model, Into(2), ranked.root)
    with pytest.raises(UsageError, match="already exists"):
        split_by_rank(model, ranked.root, ranks=(2, 1))
    before = {file.name: file.read_bytes() for file in ranked.root.iterdir()}
    split_by_rank(model, ranked.root, ranks=2, force=True)
    assert {file.name: file.read_bytes() for file in ranked.root.iterdir()} == before
    graphcut.split(model, Into(2), ranked.root, force=True)
    assert {file.suffix for file in ranked.root.iterdir()} == {".onnx", ".data", ".json"}
    assert not (ranked.root / "sharded.onnx").exists()


def test_a_norm_with_a_skip_is_repeated_as_it_is(tmp_path: Path) -> None:
    """Its rewritten form would read the sum of the first rank, which the others would wait for."""
    ranked = split_by_rank(MODELS["tiny-llama-fp32"](tmp_path), tmp_path / "parts", ranks=2)
    norms = [
        node
        for part in ranked.parts
        for node in onnx.load(ranked.file(part), load_external_data=False).graph.node
        if node.op_type == "SkipSimplifiedLayerNormalization"
    ]
    assert len(norms) > 8
    assert not any(part.derived for part in ranked.parts)


def test_a_piece_that_nobody_reads_is_computed_by_no_rank(tmp_path: Path) -> None:
    """The shape of a divided tensor needs a piece of one rank."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], name="up"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Neg", ["h"], ["n"], name="neg"),
        helper.make_node("Shape", ["n"], ["s"], name="shape"),
        helper.make_node("MatMul", ["r", "down"], ["y"], name="down"),
    ]
    outputs = [floats("y", "n", 6), helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [2])]
    path = tmp_path / "model.onnx"
    onnx.save(model_of(nodes, [floats("x", "n", 6)], outputs, [weight("up", 6, 8), weight("down", 8, 6)]), path)
    cascade = split_by_rank(path, tmp_path / "parts", ranks=2)
    written = [node.name for part in cascade.parts for node in onnx.load(cascade.file(part)).graph.node]
    assert [name for name in written if name.startswith(("relu", "neg"))] == [
        "relu.rank-0",
        "neg.rank-0",
        "relu.rank-1",
    ]
    assert graphcut.verify(path, cascade)


def test_what_ranks_can_not_be_combined_with_is_refused(tmp_path: Path) -> None:
    path = MODELS["llm"](tmp_path)
    cluster = Cluster(devices=(Device(name="a"), Device(name="b")))
    with pytest.raises(UsageError, match="counts no ranks"):
        split_by_rank(path, tmp_path / "parts", ranks=2, stages=Across(cluster))
    with pytest.raises(UsageError, match="don't divide anything"):
        split_by_rank(path, tmp_path / "parts", ranks=1)
    assert not (tmp_path / "parts").exists()
