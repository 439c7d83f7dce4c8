"""What parts are said to hold: layers are the blocks that the graph repeats, named as their exporter names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

import graphcut
from graphcut import Analysis, At, Into, Limits, Model, demos
from graphcut.drawing.layer_modules import layer_modules
from graphcut.drawing.part_labels import part_labels
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_plan

from cases import each
from conftest import FIXTURES, floats, model_of

LAYERS = 12
Renamed = Callable[[str], str]


def labels_of(model: Model, rows: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The labels of parts, by names alone."""
    return part_labels(model.graph, rows, layer_modules(model.graph, None))


def contents(analysis: Analysis, *nodes: str) -> list[str]:
    """The labels of the parts between these nodes."""
    return [card.content for card in scene_of_plan(graphcut.plan(analysis, At(nodes)), analysis).cards]


# Layers


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    """A decoder of 12 layers: `/model/embed_tokens`, `/model/layers.3/mlp/up_proj`, `/model/norm`, `/lm_head`."""
    path = tmp_path_factory.mktemp("decoder") / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=LAYERS, heads=2, kv_heads=1, intermediate=16, vocab=8)
    return onnx.load(path)


def layers_at(place: str) -> Renamed:
    """Names with another place for the layers."""
    return lambda name: name.replace("/model/layers.", place)


def keras(name: str) -> str:
    """Everything is in one model, and the first layer has no number."""
    inner = layers_at("/transformer_block_")(name).replace("/transformer_block_0/", "/transformer_block/")
    return f"StatefulPartitionedCall/functional_1{inner}"


def flat_keras(name: str) -> str:
    """Each layer of Keras is in the model itself, with a number that counts its kind: `dense_13`."""
    found = re.fullmatch(r"/model/layers\.(\d+)/(?:(.*)/)?(\w+)", name)
    return name if found is None else f"model/{(found[2] or 'add').replace('/', '_')}_{2 * int(found[1])}/{found[3]}"


def genai(name: str) -> str:
    """The last norm is counted with the layers."""
    return name.replace("/model/norm/", f"/model/layers.{LAYERS}/final_norm_layernorm/")


@each(
    ("renamed", "first", "second"),
    [
        (str, "embedding, layers 0-4", "layers 5-11, head"),  # torchscript and optimum
        (layers_at("/decoder/layer/layer."), "embedding, layers 0-4", "layers 5-11, head"),  # BERT
        (layers_at("/transformer/h."), "embedding, layers 0-4", "layers 5-11, head"),  # GPT-2
        (layers_at("/vit/blocks/"), "embedding, blocks 0-4", "blocks 5-11, head"),
        (layers_at("tf_model/bert/encoder/layer_._"), "embedding, layers 0-4", "layers 5-11, head"),  # tf2onnx
        (layers_at("/encoder/layers/encoder_layer_"), "embedding, encoder_layers 0-4", "encoder_layers 5-11, head"),
        (keras, "embedding, transformer_blocks 0-4", "transformer_blocks 5-11, head"),
        (flat_keras, "embedding, layers 0-4", "layers 5-11, head"),
        (genai, "embedding, layers 0-4", "layers 5-11, head"),
        (lambda _: "", "layers 0-4", "layers 5-11"),
    ],
)
def test_layers_are_counted_right_however_an_exporter_names_them(
    decoder: ModelProto, opened: Callable[[ModelProto], Model], renamed: Renamed, first: str, second: str
) -> None:
    proto = ModelProto()
    proto.CopyFrom(decoder)
    for node in proto.graph.node:
        node.name = renamed(node.name)
    assert contents(graphcut.analyze(opened(proto)), "/model/layers.4/add_1_output_0") == [first, second]


def test_layers_of_torch_dynamo_are_those_of_its_metadata(
    decoder: ModelProto, opened: Callable[[ModelProto], Model]
) -> None:
    proto = ModelProto()
    proto.CopyFrom(decoder)
    for i, node in enumerate(proto.graph.node):
        module, _, own = node.name[1:].rpartition("/")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", module.replace("/", "."), own]))
        node.name = f"node_{node.op_type}_{i}"
    found = contents(graphcut.analyze(opened(proto)), "/model/layers.4/add_1_output_0")
    assert found == ["embedding, layers 0-4", "layers 5-11, head"]


def test_a_layer_that_is_cut_is_named_as_a_piece(decoder: ModelProto, opened: Callable[[ModelProto], Model]) -> None:
    found = contents(graphcut.analyze(opened(decoder)), "/model/layers.3/add", "/model/layers.5/add_1")
    assert found == ["embedding, layers 0-2, start of 3", "layers 4-5, end of 3", "layers 6-11, head"]


@pytest.mark.parametrize("name", ["tiny-llama-fp32", "tiny-llama-int4", "tiny-qwen2-fp32"])
def test_every_layer_of_a_genai_export_is_in_one_part(name: str) -> None:
    """Of 4 and 3 layers; GenAI calls the last norm `layers.4/final_norm_layernorm`."""
    analysis = graphcut.analyze(FIXTURES / name / "model.onnx")
    layers = 3 if "qwen2" in name else 4
    parts = graphcut.plan(analysis, Into(layers, by="layers"))
    first, *middle, last = (card.content for card in scene_of_plan(parts, analysis).cards)
    assert first == "attn_mask_reformat, embedding, layer 0"
    assert middle == [f"layer {layer}" for layer in range(1, layers - 1)]
    assert last == f"layer {layers - 1}, head"


def test_a_cascade_has_the_labels_of_its_plan(tmp_path: Path) -> None:
    model = graphcut.load(FIXTURES / "clip.onnx")
    analysis = graphcut.analyze(model)
    plan = graphcut.plan(analysis, Into(4), limits=Limits(inside_layers=False))
    cascade = graphcut.split(model, plan, tmp_path / "parts")
    planned, cut = scene_of_plan(plan, analysis), scene_of_cascade(cascade, model)
    assert [card.content for card in cut.cards] == [card.content for card in planned.cards]
    assert planned.cards[0].content == "vision_model embedding, vision_model layers 0-1"


def repeated(modules: Sequence[Sequence[str]], *, before: Sequence[str] = (), after: Sequence[str] = ()) -> ModelProto:
    """A chain: equal blocks, whose nodes are in these modules, and nodes of other operators before and after."""
    operators = ["Relu", "Exp", "Neg", "Tanh", "Sigmoid", "Abs", "Floor", "Ceil"]
    rows = [("Sin", name) for name in before]
    rows += [(operators[i], name) for block in modules for i, name in enumerate(block)]
    rows += [("Cos", name) for name in after]
    nodes = [
        helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], name=f"{module}/{op}{i}") for i, (op, module) in enumerate(rows)
    ]
    return model_of(nodes, [floats("t0", 4)], [floats(f"t{len(rows)}", 4)])


@each(
    ("proto", "expected"),
    [
        # The second layer of each block has another kind of attention.
        (repeated([[f"layers.{i}" for i in (a, a, a + 1, a + 1)] for a in (0, 2, 4)]), "layers 0-5"),
        # One stage of several repeats most.
        (
            repeated([[f"stages.2/blocks.{i}"] * 4 for i in range(3)], before=["stages.1"] * 2),
            "stage 1, stages.2 blocks 0-2",
        ),
        # Layers before the blocks are of another kind.
        (repeated([[f"layers.{i}"] * 4 for i in (2, 3)], before=["layers.0"] * 2 + ["layers.1"] * 2), "layers 0-3"),
        # Each block is a module of its own.
        (repeated([["left"] * 4, ["right"] * 4]), "left, right"),
        # The name of the next layer is in each block, and that of a layer which doesn't exist in the last one.
        (repeated([[*[f"layers.{i}"] * 7, f"layers.{i + 1}/norm"] for i in range(4)]), "layers 0-3"),
        # Blocks of a single layer have their places.
        (repeated([["lstm"] * 4, ["lstm"] * 4, ["lstm"] * 4]), "blocks 0-2"),
    ],
)
def test_numbers_are_those_of_modules_if_they_count_the_blocks(
    opened: Callable[[ModelProto], Model], proto: ModelProto, expected: str
) -> None:
    analysis = graphcut.analyze(opened(proto))
    assert analysis.repeat is not None
    assert [card.content for card in scene_of_plan(graphcut.plan(analysis, Into(1)), analysis).cards] == [expected]


# Names alone


def model_in(modules: Sequence[str]) -> ModelProto:
    """A chain with one node in each module."""
    tensors = ["x", *(f"t{i}" for i in range(len(modules) - 1)), "y"]
    nodes = [
        helper.make_node("Relu", [tensors[i]], [tensors[i + 1]], name=f"{module}/r{i}" if module else f"r{i}")
        for i, module in enumerate(modules)
    ]
    return model_of(nodes, [floats("x", 4)], [floats("y", 4)])


@each(
    ("modules", "expected"),
    [
        (["model/embed_tokens", "model/layers.0/mlp", "model/layers.1/mlp", "model/layers.2"], "embedding, layers 0-2"),
        (["model/layers/4", "model/layers/5/mlp", "lm_head"], "layers 4-5, head"),
        (["model/layers.7"], "layer 7"),
        (["down.0", "down.1", "down.3"], "down 0-1, 3"),
        (["layer1/0/conv1", "layer1/1"], "layer1.0-1"),
        (["vision/layers.0", "text/layers.0", "text/layers.1"], "vision layer 0, text layers 0-1"),
        ([""], ""),
        (["stage.0"] * 10 + ["boxes/conv.0", "boxes/conv.1"], "stage 0, boxes"),
        ([f"layers.{'9' * 5000}"], f"layers.{'9' * 5000}"),
    ],
)
def test_a_part_is_described_by_its_modules(
    opened: Callable[[ModelProto], Model], modules: Sequence[str], expected: str
) -> None:
    model = opened(model_in(modules))
    assert labels_of(model, [model.graph.flow]) == (expected,)


def test_a_module_that_several_parts_share_is_described_by_its_content(opened: Callable[[ModelProto], Model]) -> None:
    model = opened(model_in(["heads/boxes", "heads/logits", "heads/depth"]))
    assert labels_of(model, [[0], [1, 2]]) == ("boxes", "logits, depth")
    bottom = opened(model_in([*["down.0"] * 10, "bottom/conv.0", "bottom/conv.1"]))
    assert labels_of(bottom, [range(11), [11]]) == ("down 0", "bottom")


@each(
    ("rows", "expected"),
    [
        # Two nodes a layer: the middle one is cut in two.
        ([range(3), range(3, 6)], ("layer 0, start of 1", "layer 2, end of 1")),
        ([range(1), range(1, 2), range(2, 6)], ("start of layer 0", "end of layer 0", "layers 1-2")),
        ([range(1), range(1, 3), range(3, 6)], ("start of layer 0", "end of layer 0, start of 1", "layer 2, end of 1")),
        ([range(2), range(2, 6)], ("layer 0", "layers 1-2")),
    ],
)
def test_the_pieces_of_a_divided_layer_are_named(
    opened: Callable[[ModelProto], Model], rows: Sequence[Sequence[int]], expected: Sequence[str]
) -> None:
    model = opened(model_in([f"model/layers.{i}/{what}" for i in range(3) for what in ("attention", "mlp")]))
    assert labels_of(model, rows) == expected


def test_a_single_stray_node_does_not_divide_a_layer(opened: Callable[[ModelProto], Model]) -> None:
    """One node of twenty is in the next part."""
    model = opened(model_in([*["layers.0"] * 20, *["layers.1"] * 20]))
    assert labels_of(model, [range(19), range(19, 40)]) == ("layer 0", "layer 1")


def test_the_head_is_named_however_small_it_is(opened: Callable[[ModelProto], Model]) -> None:
    """A person looks for it; others of one node in thirty are passed over. `d` is no word, but part of a path."""
    model = opened(model_in([*["layers.0"] * 14, *["layers.1"] * 14, "norm", "lm_head"]))
    assert labels_of(model, [range(30)]) == ("layers 0-1, head",)
    assert labels_of(opened(model_in(["d.0", "d.1", "up"])), [range(3)]) == ("d.0-1, up",)
