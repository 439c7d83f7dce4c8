"""Measuring: what each module took, and that it adds up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphcut import CascadeError, Into, Model, RunError, UsageError, analyze, demos, load, split
from graphcut.benchmarking import cost_measurement, ort_profile
from graphcut.benchmarking.cost_measurement import MeasuredCosts, measure, pieces_within
from graphcut.benchmarking.ort_profile import (
    ProfiledKernel,
    ProfiledPiece,
    ProfileEvent,
    fused_nodes,
    kernel_kinds,
    kernel_seconds,
    shape_bytes,
)
from graphcut.core.errors import OpeningError
from graphcut.core.graph import partition
from graphcut.costs.device import Device
from graphcut.costs.matching import cover
from graphcut.costs.tables import REMAINDER, read_table, save_table
from graphcut.costs.weighing import weigh
from graphcut.planning.predictions import block_memory

from conftest import FIXTURES, floats, model_of, of_unknown_operator, weight

Open = Callable[..., Model]


def mlp(layers: int, width: int = 8) -> ModelProto:
    """Layers of a MatMul and a Relu, each in a module of its own, with a skip around each (so: key nodes)."""
    nodes, weights = [], []
    for i in range(layers):
        at = f"/layers.{i}"
        weights.append(weight(f"w{i}", width, width))
        nodes += [
            helper.make_node("Identity", [f"x{i}"], [f"s{i}"], name=f"{at}/Identity"),
            helper.make_node("MatMul", [f"s{i}", f"w{i}"], [f"h{i}"], name=f"{at}/fc/MatMul"),
            helper.make_node("Relu", [f"h{i}"], [f"r{i}"], name=f"{at}/act/Relu"),
            helper.make_node("Add", [f"r{i}", f"s{i}"], [f"x{i + 1}"], name=f"{at}/Add"),
        ]
    return model_of(nodes, [floats("x0", "n", width)], [floats(f"x{layers}", "n", width)], weights)


def needs(model: Model, *nodes: int) -> int:
    """What plans say that a first part with these nodes needs."""
    rest = model.graph.flow[len(nodes) :]
    return block_memory(partition(model.graph, [nodes, rest]).blocks[0], weigh(model), Device(name="d")).needs


def assert_adds_up(found: MeasuredCosts) -> None:
    times = {row.module: row.time_s for row in found.table.rows}
    assert all(time is not None and time >= 0 for time in times.values())
    assert found.table.rows[-1].module == REMAINDER
    assert found.run_s > (found.table.rows[-1].time_s or 0)


# --- measuring


def test_times_of_modules_and_the_remainder_add_up_to_the_run(opened: Open) -> None:
    model = opened(mlp(2), dims={"n": 64})
    found = measure(model)
    assert_adds_up(found)
    assert [row.module for row in found.table.rows] == [
        *("layers.0", "layers.0.fc", "layers.0.act", "layers.1", "layers.1.fc", "layers.1.act"),
        REMAINDER,
    ]
    assert (found.pieces, found.rounds, dict(found.dims)) == (1, 12, {"n": 64})


@pytest.mark.parametrize(
    ("run_s", "times"),
    [
        (10.0, {"a": 2.0, "b": 3.0, REMAINDER: 5.0}),
        # Profiled, the kernels took 6.5 s.
        (3.25, {"a": 1.0, "b": 1.5, REMAINDER: 0.75}),
    ],
)
def test_kernel_times_are_divided_among_nodes_and_scaled_to_the_run(
    opened: Open, monkeypatch: pytest.MonkeyPatch, run_s: float, times: dict[str, float]
) -> None:
    # Three equal nodes, of which one kernel did the last two: half of it is each one's.
    names = ["/a/Exp", "/a/Exp_1", "/b/Exp"]
    nodes = [helper.make_node("Exp", [f"x{i}"], [f"x{i + 1}"], name=name) for i, name in enumerate(names)]
    model = opened(model_of(nodes, [floats("x0", 4)], [floats("x3", 4)]))

    kernels = kernels_of((0,), 0.5), kernels_of((1, 2), 3.0), kernels_of((), 1.5), kernels_of((2,), 1.5)
    monkeypatch.setattr(cost_measurement, "profile", profiling((run_s,), kernels))
    found = measure(model, inputs={"x0": np.ones(4, np.float32)})
    assert {row.module: row.time_s for row in found.table.rows} == times
    assert (found.run_s, found.table.rows[-1].time_s, found.spread) == (run_s, times[REMAINDER], 0.0)


def kernels_of(nodes: tuple[int, ...], *seconds: float, kind: object = None) -> ProfiledKernel:
    return ProfiledKernel(nodes, nodes if kind is None else kind, seconds)


def profiling(run_s: tuple[float, ...], kernels: tuple[ProfiledKernel, ...]) -> Callable[..., ProfiledPiece]:
    """A `profile` that always finds this."""
    return lambda *_, **__: ProfiledPiece(run_s, kernels, tensor_bytes={}, outputs={})


def test_equal_kernels_of_repeated_blocks_share_their_samples(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another program hindered the second block in all rounds; alone it would count for twice the first.
    nodes = [helper.make_node("Exp", [f"x{i}"], [f"x{i + 1}"], name=f"/{i}/Exp") for i in range(2)]
    model = opened(model_of(nodes, [floats("x0", 4)], [floats("x2", 4)]))
    kernels = kernels_of((0,), 1.0, 1.0, 2.0, kind="Exp"), kernels_of((1,), 2.0, 2.0, 2.0, kind="Exp")
    monkeypatch.setattr(cost_measurement, "profile", profiling((3.0, 3.0, 4.5), kernels))
    found = measure(model, inputs={"x0": np.ones(4, np.float32)}, rounds=3)
    assert {row.module: row.time_s for row in found.table.rows} == {"0": 1.0, "1": 1.0, REMAINDER: 0.0}


def test_one_undisturbed_run_is_enough_and_the_spread_says_how_the_others_were(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A median would be wrong by 2.
    model = opened(model_of([helper.make_node("Exp", ["x"], ["y"], name="e")], [floats("x", 4)], [floats("y", 4)]))
    seconds = (2.0, 1.0, 2.0, 2.0)
    monkeypatch.setattr(cost_measurement, "profile", profiling(seconds, (kernels_of((0,), *seconds),)))
    found = measure(model, inputs={"x": np.ones(4, np.float32)}, rounds=1)
    assert (found.run_s, found.spread) == (1.0, 1.0)


def test_rounds_are_divided_among_passes_over_all_pieces(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy minute then spoils some runs of each piece, and not all runs of one."""
    model, order = opened(mlp(2), dims={"n": 3}), list[tuple[str, int]]()

    def profile(model: Model, piece: ModelProto, feeds: Any, rounds: int, threads: int) -> ProfiledPiece:  # noqa: ANN401
        order.append((piece.graph.output[0].name, rounds))
        return measured(model, piece, feeds, rounds, threads)

    measured = ort_profile.profile
    monkeypatch.setattr(cost_measurement, "profile", profile)
    found = measure(model, rounds=5, memory_bytes=needs(model, *range(4)), inputs={"x0": np.ones((3, 8), np.float32)})
    assert (found.pieces, order) == (2, [("x1", 2), ("x2", 2), ("x1", 2), ("x2", 2), ("x1", 1), ("x2", 1)])


def test_a_model_that_exceeds_the_memory_limit_is_measured_in_pieces(opened: Open) -> None:
    model = opened(mlp(4), dims={"n": 3})
    found = measure(model, rounds=2, memory_bytes=needs(model, *range(4)))
    assert found.pieces == 4
    assert_adds_up(found)


def test_given_inputs_bind_the_sizes(opened: Open) -> None:
    model = opened(mlp(1))
    found = measure(model, rounds=1, inputs={"x0": np.ones((5, 8), np.float32)})
    assert dict(found.dims) == {"n": 5}
    fc = next(row for row in found.table.rows if row.module == "layers.0.fc")
    assert (fc.num_params, fc.num_flops, fc.output_bytes) == (64, 2 * 5 * 8 * 8, 5 * 8 * 4)


def test_open_sizes_are_measured_as_they_are_counted(opened: Open) -> None:
    """Times of a batch of 2 would stand beside the FLOPs of a plan that counts 1."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="/a/MatMul")]
    for shape in ("n", 8), (None, 8):
        model = opened(model_of(nodes, [floats("x", *shape)], [floats("y", *shape)], [weight("w", 8, 8)]))
        found = measure(model, rounds=1)
        assert dict(found.dims) == dict.fromkeys(model.symbols, 1)
        assert found.table.rows[0].num_flops == sum(weigh(model).flops)


def test_a_decoder_is_measured_for_the_tokens_that_plans_assume() -> None:
    model = load(FIXTURES / "tiny-llama-fp32" / "model.onnx")
    assert dict(measure(model, rounds=1).dims) == dict(analyze(model).sized.dims)


def test_a_model_that_refuses_the_counted_sizes_is_measured_with_others_that_are_named(opened: Open) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="/a/Reshape")]
    pairs = numpy_helper.from_array(np.array([-1, 8]), "shape")
    model = opened(model_of(nodes, [floats("x", "n", 4)], [floats("y", "m", 8)], [pairs]))
    assert dict(measure(model, rounds=1).dims) == {"n": 2}


def test_sizes_that_shape_inference_does_not_know_are_measured(opened: Open) -> None:
    # NonZero of 6 ones in 2 dimensions: 12 indices of 8 bytes, which no shape inference knows.
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], name="/a/NonZero"),
        helper.make_node("Neg", ["places"], ["y"], name="/b/Neg"),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    model = opened(model_of(nodes, [floats("x", 2, 3)], [out]))
    first = measure(model, rounds=1, inputs={"x": np.ones((2, 3), np.float32)}).table.rows[0]
    assert (first.module, first.output_bytes, first.activation_bytes) == ("a", 96, 24 + 96)


def test_a_fused_kernel_counts_for_the_modules_of_its_nodes() -> None:
    # ONNX Runtime makes one QuickGelu of each layer's Sigmoid and Mul, which stand in act_fn.
    model = load(FIXTURES / "tiny-llama-fp32" / "model.onnx", dims={"sequence_length": 64})
    found = measure(model, rounds=3)
    assert_adds_up(found)
    times = {row.module: row.time_s for row in found.table.rows}
    assert all(times[f"model.layers.{i}.mlp.act_fn"] for i in range(4))
    assert all(row.time_s for row in found.table.rows if row.num_flops > 1_000)


def test_sequences_are_passed_from_piece_to_piece(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/a/MatMul"),
        helper.make_node("SequenceConstruct", ["y", "y"], ["s"], name="/b/SequenceConstruct"),
        helper.make_node("ConcatFromSequence", ["s"], ["z"], name="/c/ConcatFromSequence", axis=0),
        helper.make_node("MatMul", ["z", "v"], ["out"], name="/d/MatMul"),
    ]
    weights = [weight("w", 4, 4), weight("v", 4, 4)]
    model = opened(model_of(nodes, [floats("x", 1, 4)], [floats("out", 2, 4)], weights))
    found = measure(model, rounds=1, memory_bytes=needs(model, 0, 1))
    assert found.pieces == 2
    assert_adds_up(found)


def test_a_measured_table_is_saved_and_covers_its_model(opened: Open, tmp_path: Path) -> None:
    model = opened(mlp(2), dims={"n": 4})
    found = measure(model, rounds=1)
    save_table(found.table, tmp_path / "costs.csv")
    table = read_table(tmp_path / "costs.csv")
    assert table.rows == found.table.rows
    assert table.is_measured
    _, coverage = cover(table, weigh(model))
    assert (coverage.unmatched, coverage.uncovered) == ((), ())


def test_nodes_without_names_are_measured_too(opened: Open) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    model = opened(model_of(nodes, [floats("x", 65536)], [floats("y", 65536)]))
    found = measure(model, rounds=3)
    assert [row.module for row in found.table.rows] == ["a", "y", REMAINDER]
    assert all(row.time_s for row in found.table.rows[:2])


def test_convolutions_are_measured_under_the_names_of_onnx_runtime(opened: Open) -> None:
    # ONNX Runtime computes in blocks of 8 or 16 channels, and calls the kernel after the tensor: `c_nchwc`.
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="/a/Conv", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["c"], name="/b/Conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"], name="/c/Relu"),
    ]
    edges = [floats(name, 1, 64, 32, 32) for name in "xy"]
    found = measure(opened(model_of(nodes, edges[:1], edges[1:], [weight("w", 64, 64, 3, 3)])), threads=1)
    times = {row.module: row.time_s or 0.0 for row in found.table.rows}
    assert min(times["a"], times["b"]) > found.run_s / 4  # 0 before: a kernel of an unknown name


def test_a_model_whose_initializers_are_inputs_is_measured(opened: Open) -> None:
    proto = mlp(2)
    proto.ir_version = 3
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 8))
    proto.graph.input.extend(floats(tensor.name, *tensor.dims) for tensor in proto.graph.initializer)
    model = opened(proto, dims={"n": 64})
    for memory_bytes in (None, needs(model, *range(4))):
        found = measure(model, rounds=2, memory_bytes=memory_bytes)
        assert_adds_up(found)
        assert (found.table.rows[1].module, found.table.rows[1].num_params) == ("layers.0.fc", 64)


def test_refused_inputs_are_an_error(opened: Open) -> None:
    with pytest.raises(RunError, match=r"fed shape \[5, 9\]"):
        measure(opened(mlp(1)), inputs={"x0": np.ones((5, 9), np.float32)})


def test_a_model_that_refuses_generated_inputs_is_an_error(opened: Open) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="r")]
    shape = numpy_helper.from_array(np.array([7919]), "shape")
    model = opened(model_of(nodes, [floats("x", 2)], [floats("y", 7919)], [shape]))
    with pytest.raises(RunError, match="refuses generated inputs") as caught:
        measure(model, rounds=1)
    assert caught.value.hint == "feed it with `inputs`"


def test_a_model_that_can_not_be_opened_is_measured_with_no_inputs(opened: Open) -> None:
    with pytest.raises(OpeningError, match=r"^ONNX Runtime can't open the model: ") as caught:
        measure(opened(of_unknown_operator()), rounds=1)
    assert caught.value.hint == "install what it needs, or take a model that it opens"


def test_a_part_that_was_changed_is_not_measured(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", external=True)
    cascade = split(tmp_path / "llm.onnx", Into(2), tmp_path / "parts")
    file = cascade.file(cascade.parts[0])
    data = file.with_name(f"{file.name}.data")
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CascadeError, match=r"part-0\.onnx\.data was changed after the model was cut"):
        measure(load(file), rounds=1)


def test_zero_rounds_are_refused(opened: Open) -> None:
    with pytest.raises(UsageError, match="can't measure in 0 rounds"):
        measure(opened(mlp(1)), rounds=0)


# --- pieces


def pieces(model: Model, memory_bytes: int | None) -> list[tuple[int, ...]]:
    return [block.nodes for block in pieces_within(weigh(model), memory_bytes)]


def test_pieces_are_as_large_as_the_limit_allows(opened: Open) -> None:
    model = opened(mlp(4))
    half, whole = needs(model, *range(8)), needs(model, *range(16))
    assert pieces(model, half) == [tuple(range(8)), tuple(range(8, 16))]
    assert len(pieces(model, half - 1)) > 2
    assert pieces(model, None) == pieces(model, whole) == [model.graph.flow]


def test_a_segment_that_is_too_large_is_divided(opened: Open) -> None:
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"m{i}") for i in range(3)]
    model = opened(
        model_of(nodes, [floats("x0", 1, 4)], [floats("x3", 1, 4)], [weight(f"w{i}", 4, 4) for i in range(3)])
    )
    assert pieces(model, needs(model, 0, 1)) == [(0, 1), (2,)]
    assert pieces(model, 1) == [(0,), (1,), (2,)]


# --- fused nodes


def node(name: str, op: str, reads: str, writes: str) -> NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), name=name)


def test_a_fused_node_computes_the_nodes_between_its_inputs_and_outputs() -> None:
    original = [
        node("mul", "MatMul", "x w", "m"),
        node("bias", "Add", "m b", "a"),
        node("drop", "Identity", "a", "d"),
        node("act", "Relu", "d", "y"),
        node("next", "Neg", "y", "z"),
    ]
    optimized = [node("made", "FusedGemm", "x w b", "y"), node("next", "Neg", "y", "z")]
    assert fused_nodes(original, optimized) == {"made": (0, 1, 2, 3), "next": (4,)}


def test_a_node_whose_output_is_kept_is_not_counted_for_its_reader() -> None:
    original = [node("a", "Relu", "x", "p"), node("b", "Exp", "p", "q"), node("c", "Add", "p q", "y")]
    optimized = [node("a", "Relu", "x", "p"), node("bc", "Odd", "p", "y")]
    assert fused_nodes(original, optimized) == {"a": (0,), "bc": (1, 2)}


def test_layout_nodes_are_found_by_name_or_by_their_neighbour() -> None:
    original = [node("c1", "Conv", "x w", "a"), node("c2", "Conv", "a v", "y")]
    optimized = [
        node("in", "ReorderInput", "x", "r"),
        node("c1", "Conv", "r w8", "r1"),
        node("c2", "Conv", "r1 v8", "r2"),
        node("out", "ReorderOutput", "r2", "y"),
    ]
    assert fused_nodes(original, optimized) == {"in": (0,), "c1": (0,), "c2": (1,), "out": (1,)}


def test_nodes_in_another_layout_are_found_by_the_tensor_in_their_name() -> None:
    original = [
        node("", "Conv", "x w", "a"),
        node("", "BatchNormalization", "a s b m v", "n"),
        node("", "Mul", "n f", "c_bn"),
        node("", "Relu", "c_bn", "y"),
    ]
    optimized = [
        node("a_nchwc", "Conv", "x w8", "r1"),
        node("n_bn_nchwc", "Conv", "r1 s8", "r2"),  # a batch norm became a convolution
        node("c_bn_nchwc_token_7", "Conv", "r2 f8", "r3"),
        node("y_nchwc", "Relu", "r3", "r4"),
        node("ReorderOutput", "ReorderOutput", "r4", "y"),
    ]
    assert fused_nodes(original, optimized) == {
        "a_nchwc": (0,),
        "n_bn_nchwc": (1,),
        "c_bn_nchwc_token_7": (2,),
        "y_nchwc": (3,),
        "ReorderOutput": (3,),
    }


def test_a_convolution_in_blocks_computes_what_was_added_and_not_what_earlier_ones_added() -> None:
    # It keeps the name of its own output; the next kernel reads what it writes.
    original = [
        node("c1", "Conv", "x w", "a"),
        node("c2", "Conv", "a w", "b"),
        node("add2", "Add", "b a", "s2"),
        node("act2", "Relu", "s2", "r2"),
        node("c3", "Conv", "r2 w", "c"),
        node("add3", "Add", "c r2", "s3"),
        node("act3", "Relu", "s3", "y"),
        node("norm4", "BatchNormalization", "y s o m v", "n"),
        node("act4", "Relu", "n", "z"),
    ]
    optimized = [
        node("a_nchwc", "Conv", "x8 w8", "t1"),
        node("b_nchwc", "Conv", "t1 w8 bias t1", "t2"),
        node("c_nchwc", "Conv", "t2 w8 bias t2", "t3"),
        node("n_bn_nchwc", "Conv", "t3 s8 b8", "t4"),
        node("ReorderOutput", "ReorderOutput", "t4", "z"),
    ]
    assert fused_nodes(original, optimized) == {
        "a_nchwc": (0,),
        "b_nchwc": (1, 2, 3),
        "c_nchwc": (4, 5, 6),
        "n_bn_nchwc": (7, 8),
        "ReorderOutput": (7, 8),
    }


def test_nodes_that_compute_in_float32_in_place_of_float16_are_found() -> None:
    original = [
        node("a", "Add", "x y", "s"),
        node("n", "LayerNormalization", "s g", "t"),
        node("c", "Conv", "t w", "z"),
    ]
    optimized = [
        node("skip", "SkipLayerNormalization", "x y g", "InsertedPrecisionFreeCast_t"),
        node("InsertedPrecisionFreeCast_z_nchwc", "Conv", "InsertedPrecisionFreeCast_t w8", "t1"),
        node("ReorderOutput", "ReorderOutput", "t1", "InsertedPrecisionFreeCast_z"),
        node("InsertedPrecisionFreeCast_z", "Cast", "InsertedPrecisionFreeCast_z", "z"),
    ]
    assert [*fused_nodes(original, optimized).values()] == [(0, 1), (2,), (2,), (2,)]


def test_nodes_of_inlined_functions_have_the_names_of_the_profile(opened: Open) -> None:
    # Softmax has no kernel for float16: ONNX Runtime computes its function, whose nodes have no names.
    halves = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [64, 512]) for name in ("x", "y")]
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="/a/Softmax")]
    found = measure(opened(model_of(nodes, halves[:1], halves[1:])), threads=1)
    assert (found.table.rows[0].time_s or 0.0) > found.run_s / 2


def test_a_kernel_that_is_called_after_the_last_of_many_nodes_computes_all_of_them() -> None:
    original = [node("c", "Conv", "x w", "t0")]
    original += [node(f"n{i}", "Identity", f"t{i - 1}", f"t{i}") for i in range(1, 3000)]
    original.append(node("act", "Relu", "t2999", "y"))
    optimized = [node("y_nchwc", "Conv", "x8 w8", "t"), node("ReorderOutput", "ReorderOutput", "t", "y")]
    assert fused_nodes(original, optimized)["y_nchwc"] == tuple(range(3001))


def test_inlined_nodes_count_for_the_function_call() -> None:
    original = [node("call", "MyFunction", "x", "y")]
    optimized = [node("_inl_relu", "Relu", "x", "_inl_h"), node("_inl_neg", "Neg", "_inl_h", "y")]
    assert fused_nodes(original, optimized) == {"_inl_relu": (0,), "_inl_neg": (0,)}


def test_an_unknown_optimized_node_computes_no_node() -> None:
    assert fused_nodes([node("a", "Relu", "x", "y")], [node("b", "Odd", "p", "q")]) == {"b": ()}


# --- profiles


def event(name: str, ts: int, dur: int, cat: str = "Node") -> ProfileEvent:
    return ProfileEvent(cat=cat, name=name, ts=ts, dur=dur)


def test_kernel_times_are_those_of_the_last_runs_and_subgraphs_count_for_their_loop() -> None:
    events = []
    for begin, loop, relu in ((0, 900, 90), (1000, 20, 8), (2000, 40, 2), (3000, 30, 4)):
        events += [
            event("loop_kernel_time", begin + 1, loop),
            event("relu_kernel_time", begin + 2, 10),  # a node of that name in the subgraph
            event("relu_kernel_time", begin + 1 + loop, relu),
            event("model_run", begin, 999, "Session"),
        ]
    # The first run warmed up.
    found = kernel_seconds(events, {"loop", "relu"}, 3)
    assert found == {"loop": pytest.approx((20e-6, 40e-6, 30e-6)), "relu": pytest.approx((8e-6, 2e-6, 4e-6))}


def test_kernels_are_of_one_kind_if_they_are_equal_whatever_runs_before() -> None:
    wide = mlp(5)
    for made in wide.graph.node:
        made.op_type = "Loop" if made.op_type == "Identity" and made.name.startswith("/layers.2") else made.op_type
    wide.graph.node[8].attribute.append(helper.make_attribute("body", helper.make_graph([], "b", [], [])))
    events = [event(f"{made.name}_kernel_time", 10 * i, 9) for i, made in enumerate(wide.graph.node)]
    kinds = kernel_kinds(events, wide.graph.node)
    names = ("Identity", "fc/MatMul", "act/Relu", "Add")
    alike = {n: [i for i in range(5) if kinds[f"/layers.{i}/{n}"] == kinds[f"/layers.3/{n}"]] for n in names}
    # A loop takes as long as its values say.
    assert alike == {"Identity": [0, 1, 3, 4], **{name: [*range(5)] for name in names[1:]}}


def test_the_bytes_of_a_type_and_shape_in_a_profile() -> None:
    assert shape_bytes({"float": [2, 3]}) == 24
    assert shape_bytes({"int4": [3]}) == 2
    assert shape_bytes({"double": []}) == 8
    assert shape_bytes({"string": [4]}) is None
