"""Pipelines of models: what exporters leave, and what a pipeline file says, opened and cut as one model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import graphcut
from graphcut import GraphcutError, Into
from graphcut.loading.exported_pipelines import exported_pipeline
from graphcut.loading.made_models import MadeModel, made_model

from cases import each
from conftest import floats, model_of
from families import FAMILIES, by_hand, text_of_one_kind
from families.chains import write_sentence_encoder

EXPORTED = [name for name in FAMILIES if name not in {"reader", "diffusion", "sentence encoder"}]
A = "a (float[n,4] x) => (float[n,4] h) { h = Neg(x) }"
B = "b (float[n,4] h, float[n,4] s) => (float[n,4] y, float[n,4] t) { y = Add(h, s) t = Neg(y) }"
TWO = """
[models.a]
file = "a.onnx"
[models.b]
file = "b.onnx"
"""


def save(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        header = '<ir_version: 8, opset_import: ["" : 17]>\n'
        onnx.save(parser.parse_model(header + text), folder / f"{name}.onnx")
    return folder


def pipeline_in(folder: Path, text: str) -> Path:
    path = save(folder, a=A, b=B) / "both.toml"
    path.write_text(text, encoding="utf-8")
    return path


@each("name", EXPORTED)
def test_what_an_exporter_left_is_one_model_whose_parts_compute_the_same(name: str, tmp_path: Path) -> None:
    model = graphcut.load(FAMILIES[name].write(tmp_path))
    assert set(model.phases.values()) == {0, 1}
    plan = graphcut.plan(model, Into(3))
    kinds = [{model.phases[node] for node in part if node in model.phases} for part in plan.parts]
    assert all(len(kind) == 1 for kind in kinds), kinds
    cascade = graphcut.split(model, plan, tmp_path / "parts")
    assert graphcut.verify(cascade)
    inputs = FAMILIES[name].inputs(0)
    expected = FAMILIES[name].reference(tmp_path, inputs, 6)
    if name == "vision-language":
        prompt, expected = inputs.pop("input_ids")[0].tolist(), [expected]
    else:
        prompt = []
    assert graphcut.generate(cascade, [prompt], inputs=inputs, max_tokens=6, stop=[1]).all() == expected


def test_what_runs_once_is_the_encoder_and_what_the_first_step_alone_computes(tmp_path: Path) -> None:
    model = graphcut.load(FAMILIES["whisper"].write(tmp_path))
    once, later = ([model.graph.nodes[i] for i, phase in model.phases.items() if phase == one] for one in (0, 1))
    sent = {name for node in once for name in node.writes} & {name for node in later for name in node.reads}
    assert len(sent) == 4, "keys and values of two layers, and not what the encoder writes"
    assert "encoder_hidden_states" not in sent
    assert model.stepwise[0] == "input_ids"
    assert "input_features" not in model.stepwise


def test_weights_of_a_pair_of_decoders_are_there_once(tmp_path: Path) -> None:
    folder = FAMILIES["whisper"].write(tmp_path)
    model = graphcut.load(folder)
    later = graphcut.load(folder / "decoder_with_past_model.onnx").weight_bytes
    encoder = graphcut.load(folder / "encoder_model.onnx").weight_bytes
    first = graphcut.load(folder / "decoder_model.onnx")
    own = sum(
        one.bytes
        for name, one in first.graph.weights.items()
        if name not in graphcut.load(folder / "decoder_with_past_model.onnx").graph.weights
    )
    assert model.weight_bytes <= 1.1 * (encoder + later + own)


@each("pooling", ["mean", "cls", "max"])
@each("normalized", [True, False])
def test_sentence_transformers_pooling_is_a_model_of_the_pipeline(
    pooling: str,
    normalized: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    write_sentence_encoder(tmp_path, pooling=pooling if pooling != "max" else "cls", normalized=normalized)
    if pooling == "max":
        config = tmp_path / "1_Pooling" / "config.json"
        config.write_text('{"pooling_mode_max_tokens": true}', encoding="utf-8")
    feeds = text_of_one_kind(3, (7, 4))
    (found,) = graphcut.run(graphcut.split(tmp_path, Into(2), tmp_path / "parts"), feeds).values()
    hidden = by_hand.run(tmp_path / "model.onnx", feeds)["last_hidden_state"]
    mask = feeds["attention_mask"][..., None]
    wanted = {
        "mean": (hidden * mask).sum(1) / mask.sum(1),
        "cls": hidden[:, 0],
        "max": np.where(mask, hidden, -np.inf).max(1),
    }[pooling]
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) if normalized else wanted
    assert np.allclose(found, wanted, atol=1e-6)


def test_a_model_that_makes_one_vector_of_a_sentence_itself_is_no_pipeline(tmp_path: Path) -> None:
    write_sentence_encoder(tmp_path)
    save(
        tmp_path,
        model="m (int64[n,k] input_ids) => (float[n,k] sentence_embedding) "
        "{ sentence_embedding = Cast<to = 1>(input_ids) }",
    )
    assert exported_pipeline(tmp_path) is None


def test_another_pooling_is_refused(tmp_path: Path) -> None:
    write_sentence_encoder(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}', encoding="utf-8")
    with pytest.raises(graphcut.RecordError, match="pools by pooling_mode_lasttoken: not known"):
        graphcut.load(tmp_path)


@each("name", [*EXPORTED, "sentence encoder"])
def test_the_pipeline_file_of_what_an_exporter_left_is_the_same_model(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    digest = graphcut.load(FAMILIES[name].write(folder)).digest
    graphcut.save_pipeline(folder, tmp_path / "models.toml")
    assert graphcut.load(tmp_path / "models.toml").digest == digest
    with pytest.raises(graphcut.UsageError, match="already exists"):
        graphcut.save_pipeline(folder, tmp_path / "models.toml")


@each("name, why", [("pipe.onnx", "no name of a pipeline file"), ("elsewhere/pipe.toml", "not in the folder of")])
def test_a_pipeline_file_has_its_models_below_it_and_a_name_that_says_so(name: str, why: str, tmp_path: Path) -> None:
    folder, output = tmp_path / "models", tmp_path / name
    for made in (folder, tmp_path / "elsewhere"):
        made.mkdir()
    FAMILIES["t5"].write(folder)
    with pytest.raises(graphcut.UsageError, match=why):
        graphcut.save_pipeline(folder, output)
    assert not output.exists()


def test_no_pipeline_file_is_written_that_can_not_be_opened(tmp_path: Path) -> None:
    """The output of a decoder is called `logits`; this one is called `y`."""
    for name, inputs in (("encoder", ["x"]), ("decoder", ["input_ids", "encoder_hidden_states"])):
        output = "hidden" if name == "encoder" else "y"
        node = helper.make_node("Sum", inputs, [output])
        onnx.save(
            model_of([node], [floats(one, 3) for one in inputs], [floats(output, 3)]), tmp_path / f"{name}_model.onnx"
        )
    with pytest.raises(graphcut.UsageError, match=r"decoder_model\.onnx has no output logits"):
        graphcut.save_pipeline(tmp_path, tmp_path / "pipe.toml")
    assert not (tmp_path / "pipe.toml").exists()


def test_a_folder_that_no_exporter_wrote_has_no_pipeline_file(tmp_path: Path) -> None:
    with pytest.raises(graphcut.UsageError, match="no models of an exporter"):
        graphcut.save_pipeline(tmp_path, tmp_path / "x.toml")


def test_inputs_read_outputs_of_their_name_and_others_stay(tmp_path: Path) -> None:
    model = graphcut.load(pipeline_in(tmp_path, TWO))
    assert (model.graph.reads, model.graph.writes) == (("x", "s"), ("y", "t"))
    assert model.phases == {}
    x, s = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    cascade = graphcut.split(model, Into(2), tmp_path / "parts")
    with graphcut.Runner(cascade) as runner:
        assert np.array_equal(runner.run({"x": x, "s": s})["y"], s - x)


def test_a_star_stands_for_the_same_text_on_both_sides(tmp_path: Path) -> None:
    save(tmp_path, c="c (float[2] in0, float[2] in1) => (float[2] z) { z = Sub(in0, in1) }")
    save(tmp_path, d="d (float[2] x) => (float[2] out0, float[2] out1) { out0 = Neg(x) out1 = Abs(x) }")
    path = tmp_path / "p.toml"
    path.write_text('[models]\nd = {file = "d.onnx"}\nc = {file = "c.onnx"}\n[connect]\n"c.in*" = "d.out*"\n')
    model = graphcut.load(path)
    assert (model.graph.reads, model.graph.writes) == (("x",), ("z",))


def test_weights_that_two_models_share_are_stored_once(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    opset = onnx.helper.make_opsetid("", 17)
    for name in "ab":
        graph = parser.parse_graph(
            f"g (float[n,64] x{name}) => (float[n,64] y{name}) {{ y{name} = MatMul(x{name}, w) }}"
        )
        graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
        onnx.save(onnx.helper.make_model(graph, opset_imports=[opset]), tmp_path / f"{name}.onnx")
    (tmp_path / "p.toml").write_text(TWO + '[connect]\n"b.xb" = "a.ya"\n', encoding="utf-8")
    assert graphcut.load(tmp_path / "p.toml").weight_bytes == values.nbytes


LOOP = """
[models.a]
file = "a.onnx"
[models.b]
file = "b.onnx"
runs = "each step"
outputs = ["t"]
[states]
"b.s" = "b.t"
[loop]
steps = 3
"""


def test_a_loop_says_how_often_the_models_of_a_step_run(tmp_path: Path) -> None:
    model = graphcut.load(pipeline_in(tmp_path, LOOP))
    assert model.loop is not None
    assert (model.loop.steps, model.loop.inputs) == (3, {})
    assert model.states == {"s": "t"}
    assert [*model.phases.values()] == [0, 1, 1]


def missing(folder: Path) -> None:
    (folder / "b.onnx").unlink()


def nothing(_: Path) -> None:
    pass


def other_type(folder: Path) -> None:
    save(folder, b=B.replace("float[n,4] h", "int64[n,4] h").replace("Add(h, s)", "Add(s, s)"))


def other_shape(folder: Path) -> None:
    save(folder, b=B.replace("float[n,4]", "float[n,5]"))


def old_opset(folder: Path) -> None:
    old = onnx.load(folder / "a.onnx")
    old.opset_import[0].version = 12
    onnx.save(old, folder / "a.onnx")


def integers(folder: Path) -> None:
    save(folder, b="b (float[n,4] h, int64[1] s) => (float[n,4] t) { c = Cast<to = 1>(s) t = Add(h, c) }")


CIRCLE = TWO + '[connect]\n"b.h" = "a.h"\n"a.x" = "b.t"\n'
NO_STOP, NO_STATE = LOOP.partition("[loop]")[0], LOOP.partition("[states]")[0]
EARLY = TWO.replace("[models.b]", 'runs = "each step"\n[models.b]') + "[loop]\nsteps = 2\n"
BAD: list[tuple[str, Callable[[Path], None], str, str]] = [
    ("a model is missing", missing, TWO, "there is no file"),
    ("types differ", other_type, TWO, "'h' of b.onnx is int64[n,4], and 'h' of a.onnx is float32[n,4]"),
    ("shapes differ", other_shape, TWO, "'h' of b.onnx is float32[n,5], and 'h' of a.onnx is float32[n,4]"),
    ("two models write one output", nothing, TWO + '[models.c]\nfile = "b.onnx"\n', "b and c both write the output"),
    (
        "two models write one input",
        nothing,
        TWO + '[models.c]\nfile = "a.onnx"\n',
        "a and c both write 'h', which b reads",
    ),
    ("neither file nor kind", nothing, TWO + "[models.c]\n", "'c' needs either a file or what is to be made"),
    (
        "a kind for old models",
        old_opset,
        TWO + '[models.c]\nmake = "normalize"\n',
        "needs operators of opset 13, not 12",
    ),
    ("a circle without a state", nothing, CIRCLE, "the models feed each other in a circle"),
    ("nothing ends the steps", nothing, NO_STOP, "nothing ends the steps"),
    ("a loop without a number", nothing, NO_STOP + "[loop]\n", "nothing ends the steps"),
    ("once, after a step", nothing, EARLY, "b runs once, and its input 'h' comes from a, which runs each step"),
    ("steps of no model", nothing, TWO + "[loop]\nsteps = 2\n", "no model runs at each step"),
    (
        "more steps than memory",
        nothing,
        NO_STATE + '[loop]\nsteps = 4000000000\ncounter = "b.s"\n',
        "say [4000000000] steps",
    ),
    ("a state that is told", nothing, LOOP.replace("steps", 'counter = "b.s"\nsteps'), "'s' is a state, and gets"),
    ("an input that is read", nothing, LOOP + 'counter = "b.h"\n', "no model of each step has a free input 'b.h'"),
    ("an input of another", nothing, LOOP + 'counter = "b.x"\n', "no model of each step has a free input 'b.x'"),
    ("an input of once", nothing, LOOP + 'counter = "a.x"\n', "no model of each step has a free input 'a.x'"),
    ("a state of once", nothing, LOOP.replace("[loop]", '"a.x" = "a.h"\n[loop]'), "a has a state, and runs once"),
    (
        "a counter with values",
        nothing,
        NO_STATE + '[loop]\ncounter = "b.s"\ninputs = { "b.s" = [1, 2] }\n',
        "'b.s' is the counter, and has values in inputs",
    ),
    ("half a step", integers, NO_STATE + '[loop]\ninputs = { "b.s" = [0.5, 1] }\n', "can't hold its values"),
    ("an unknown size", nothing, TWO + "dims = { k = 1 }\n", "no dimension 'k' of an input of b.onnx can be 1"),
    ("less than nothing", nothing, TWO + "dims = { n = -1 }\n", "no dimension 'n' of an input of b.onnx can be -1"),
    ("an unknown model", nothing, TWO + '[connect]\n"c.h" = "a.h"\n', "'c.h' names no model"),
    ("an unknown input", nothing, TWO + '[connect]\n"b.k" = "a.h"\n', "b has no input 'k'"),
    ("an unknown output", nothing, TWO + '[connect]\n"b.h" = "a.k"\n', "a has no output 'k'"),
    ("an unknown field", nothing, TWO + "x = 1\n", "unknown field `x`"),
    ("no models", nothing, "[models]\n", "each model needs a name"),
    ("no TOML", nothing, "models", "is not TOML"),
    ("unused outputs alone", nothing, TWO + 'outputs = ["q"]\n', "b.onnx has no output q"),
]


@each("change, text, message", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_a_pipeline_file_says_wrongly_is_one_line(
    change: Callable[[Path], None], text: str, message: str, tmp_path: Path
) -> None:
    path = pipeline_in(tmp_path, text)
    change(tmp_path)
    with pytest.raises(GraphcutError) as caught:
        graphcut.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_models_that_are_links_to_files_elsewhere_are_where_the_links_are(tmp_path: Path) -> None:
    """As the cache of Hugging Face's hub keeps them."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    FAMILIES["t5"].write(tmp_path / "blobs")
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    assert graphcut.verify(graphcut.split(tmp_path / "snapshot", Into(2), tmp_path / "parts"))


@each("text", ["[]", '{"model": []}', '{"model": {"vision": {"filename": 3}, "decoder": {"filename": "m.onnx"}}}'])
def test_a_configuration_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    FAMILIES["vision-language"].write(tmp_path)
    (tmp_path / "genai_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(GraphcutError, match=r"genai_config\.json"):
        graphcut.load(tmp_path)


@each("kind", ["mean pooling", "cls pooling", "max pooling", "normalize", "at first"])
def test_models_between_others_need_opset_13(kind: MadeModel) -> None:
    onnx.checker.check_model(made_model(kind, 13))
    with pytest.raises(ValueError, match="needs operators of opset 13, not 12"):
        made_model(kind, 12)


@each("text", ['{"model": {"decoder": {"filename": "m.onnx"}}}', "{}"])
def test_a_decoder_alone_is_no_pipeline_nor_is_no_model(text: str, tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_text(text, encoding="utf-8")
    assert exported_pipeline(tmp_path) is None


def test_a_model_outside_the_folder_of_the_pipeline_is_refused(tmp_path: Path) -> None:
    save(tmp_path, a=A)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "p.toml").write_text('[models.a]\nfile = "../a.onnx"\n', encoding="utf-8")
    with pytest.raises(GraphcutError, match=r"\.\./a\.onnx is not in this folder or below"):
        graphcut.load(tmp_path / "below" / "p.toml")


def test_a_file_taken_out_never_replaces_the_pipeline_that_it_is_of(tmp_path: Path) -> None:
    path = pipeline_in(tmp_path, TWO)
    before = path.read_bytes()
    with pytest.raises(GraphcutError):
        graphcut.extract(path, path, outputs=["y"], force=True)
    assert path.read_bytes() == before
