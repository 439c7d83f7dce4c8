"""What a manifest says and is not so: `verify` finds each field; what versions infer differently is no objection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, helper
from subject import assert_said, by_files, by_structure, cascade, original

import graphcut
from graphcut import At, Cascade
from graphcut.core.manifest import Manifest, Part, PlannedDevice, SessionSettings, Source, State
from graphcut.core.tensors import Tensor

from cases import each
from conftest import floats, model_of
from tampering import Record, edit_manifest, edit_part, redo_digests

__all__ = ["cascade", "original"]


def at(record: Record, path: str) -> tuple[Any, Any]:
    """The object or list that holds a field, and the key of the field in it; the path is such as `parts/0/nodes`."""
    *places, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    holder: Any = record
    for place in places:
        holder = holder[place]
    return holder, last


def put(path: str, value: object) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder, key = at(record, path)
        holder[key] = value

    return change


def drop(path: str) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder, key = at(record, path)
        del holder[key]

    return change


def exchange(path: str, first: int, second: int) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        items, _ = at(record, f"{path}/0")
        items[first], items[second] = items[second], items[first]

    return change


def forge_a_loop(record: Record) -> None:
    record |= {"stepwise": record["reads"], "loop": {"steps": 2, "inputs": {}}}


def swap_states(record: Record) -> None:
    first, second = record["states"]
    first["present"], second["present"] = second["present"], first["present"]


def declare_swapped_states(record: Record) -> None:
    swap_states(record)
    for state in record["states"]:
        state["is_given"] = True


def exchange_files(record: Record) -> None:
    first, second = record["parts"][3:5]
    first["file"], second["file"] = second["file"], first["file"]


KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
OTHER = "sha256:" + 64 * "0"
NO_STATE = {"past": "x", "present": "y", "axis": None, "start": None, "is_given": False, "is_shareable": False}
WRONG_STATE = {**NO_STATE, "present": "present.0.key", "is_given": True}
DEVICE = {"name": "left", "memory_bytes": None, "provider": "CPUExecutionProvider"}
ODD = {"name": "z", "dtype": "float32", "shape": []}

FORGED = [
    ("source/graph", put("source/graph", OTHER), "the graphs differ"),
    ("weights", put("weights", "share"), "the manifest gives weights as 'share', but it is 'copy'"),
    ("dims", put("dims", {"m": 1}), "dims: model.onnx has no symbolic dimension 'm'"),
    ("dims", put("dims", {"n": 3, "past": 3}), "the manifest gives activation_bytes"),
    ("reads", exchange("reads", 0, 1), "the manifest gives reads as"),
    ("optional", put("optional", []), "the manifest gives optional as [], but it is ['shift']"),
    ("writes", exchange("writes", 0, 1), "the manifest gives writes as"),
    ("tensors", drop("tensors/0"), "'tensors' lacks 'x'"),
    ("tensors", lambda record: record["tensors"].append(ODD), "lists 'z' in tensors, where it does not belong"),
    ("tensors/dtype", put("tensors/0/dtype", "int8"), "gives tensors['x'].dtype as 'int8', but it is 'float32'"),
    ("tensors/shape", put("tensors/0/shape", [2, 16]), "gives tensors['x'].shape as [2, 16], but it is ['n', 16]"),
    ("tensors/name", put("tensors/0/name", "z"), "'tensors' lacks 'x'"),
    ("states", drop("states/0"), f"the manifest lacks {KEY!r} in states"),
    ("states", lambda record: record["states"].insert(0, NO_STATE), "lists 'x' in states, where it does not belong"),
    (
        "states",
        lambda record: record["states"].insert(0, WRONG_STATE),
        "states: 'present.0.key' is float32[n,total,16]",
    ),
    ("states/past", put("states/0/past", "x"), "lists 'x' in states, where it does not belong"),
    ("states/present", swap_states, f"gives states[{KEY!r}].present as 'present.0.value', but it is 'present.0.key'"),
    ("states/axis", put("states/0/axis", 0), f"the manifest gives states[{KEY!r}].axis as 0, but it is 1"),
    ("states/start", put("states/0/start", ["n", 1, 16]), f"the manifest gives states[{KEY!r}].start as ['n', 1, 16]"),
    ("states/start", put("states/0/start", None), f"the manifest gives states[{KEY!r}].start as None, but it is ['n'"),
    ("states/is_shareable", put("states/0/is_shareable", True), "is_shareable as True, but it is False"),
    ("states/is_rolling", put("states/0/is_rolling", True), "is_rolling as True, but it is False"),
    ("text_files", put("text_files/tokenizer.json", OTHER), "tokenizer.json was changed after the model was cut"),
    ("text_files", drop("text_files/generation_config.json"), "gives another generation_config.json than there is"),
    ("stepwise", put("stepwise", ["x"]), "the manifest gives stepwise as ['x'], but it is []"),
    ("loop", forge_a_loop, "the manifest gives loop as"),
    ("elsewhere", put("elsewhere", {"first": "part-9.onnx"}), "is without part-9.onnx"),
    ("devices", drop("devices/1"), "which 'devices' does not list"),
    ("devices", lambda record: record["devices"].append(DEVICE), "['left', 'middle', 'right', 'left'], but its parts"),
    ("devices", exchange("devices", 0, 1), "['middle', 'left', 'right'], but its parts are for ['left', 'middle'"),
    ("devices/name", put("devices/0/name", "elsewhere"), "which 'devices' does not list"),
    ("parts", exchange("parts", 0, 1), "before any part writes it"),
    ("parts", drop("parts/2"), "before any part writes it"),
    ("parts/file", exchange_files, "it writes ['second'], but the manifest lists ['first']"),
    ("parts/reads", exchange("parts/2/reads", 0, 1), "part-2.onnx: it reads"),
    ("parts/writes", exchange("parts/2/writes", 0, 1), "part-2.onnx: it writes"),
    ("parts/nodes", put("parts/0/nodes", 1), "part-0.onnx: the manifest gives nodes as 1, but it is 3"),
    (
        "parts/derived",
        put("parts/1/derived", {"b": "a"}),
        "part-1.onnx: the manifest derives 'b' from 'a', for which there is no rule",
    ),
    ("parts/replicas", put("parts/1/replicas", []), "part-1.onnx: the manifest gives replicas as [], but it is ['k']"),
    ("parts/weight_bytes", put("parts/0/weight_bytes", 1), "gives weight_bytes as 1, but it is 1024"),
    ("parts/looked_up_bytes", put("parts/0/looked_up_bytes", 1), "gives looked_up_bytes as 1, but it"),
    ("parts/largest_weight_bytes", put("parts/0/largest_weight_bytes", 1), "gives largest_weight_bytes as 1, but it"),
    ("parts/activation_bytes", put("parts/0/activation_bytes", 1), "part-0.onnx: the manifest gives activation_bytes"),
    ("parts/flowing", put("parts/0/flowing", 9), "part-0.onnx: the manifest gives flowing as 9, but it is"),
    ("parts/memory", put("parts/0/memory/load", 9), "part-0.onnx: the manifest gives memory as RunMemory(load=9,"),
    ("parts/rank", put("parts/3/rank", 1), "gives rank as 1, but it is None"),
    ("parts/device", put("parts/3/device", "right"), ""),  # another plan: nothing in the files says which one was made
    ("parts/device", put("parts/0/device", "right"), "['left', 'middle', 'right'], but its parts are for ['right'"),
    ("parts/device", put("parts/3/device", None), "the manifest gives part-3.onnx no device, and other parts one"),
    ("parts/graph", put("parts/3/graph", OTHER), "part-3.onnx: its graph is not the one that was written"),
    ("parts/sha256", put("parts/3/sha256", OTHER), "part-3.onnx is not the file that was written"),
    (
        "parts/data",
        put("parts/0/data", {}),
        "the manifest gives data as [], but it is ['part-0.onnx.data']",
    ),
    ("parts/data", put("parts/0/data/part-0.onnx.data/bytes", 1), "bytes, but had 1 when"),
    ("parts/data", put("parts/0/data/part-0.onnx.data/digest", None), "lacks a digest of all that the part reads of"),
    (
        "parts/data",
        put("parts/0/data/part-0.onnx.data/digest", {"ranges": [], "blocks": []}),
        "lacks a digest of all that the part reads of",
    ),
    (
        "parts/data",
        put("parts/0/data/part-0.onnx.data/digest/blocks/0", OTHER),
        "part-0.onnx.data has other bytes in 1 of 1 block",
    ),
    ("states", exchange("states", 0, 1), "'states' does not list each state once, in the order of the inputs"),
    ("states", lambda record: record["states"].append(record["states"][-1]), "'states' does not list each state once"),
    ("tensors", exchange("tensors", 0, 1), ""),
    ("parts", exchange("parts", 3, 4), ""),  # neither reads what the other writes
    (
        "states/is_given",
        declare_swapped_states,
        f"gives the state {KEY!r} as 'present.0.value', but in the model it is",
    ),
]

NOT_DERIVED = {"format", "assumed", "source/file", "source/data", "devices/memory_bytes"} | {
    f"devices/{field}" for field in SessionSettings.__struct_fields__
}
"""The format is checked when a manifest is read; for the others see docs/reference/claims.md."""


@each(("field", "change", "objection"), FORGED)
def test_a_forged_manifest(field: str, change: Callable[[Record], object], objection: str, cascade: Cascade) -> None:
    edit_manifest(cascade.path, change)
    assert_said(by_structure(cascade.path), objection)
    assert field not in FOUND_BY_FILES or by_files(cascade.path)


FOUND_BY_FILES = {f"parts/{field}" for field in Part.__struct_fields__} - {
    "parts/replicas",
    "parts/derived",
    "parts/activation_bytes",
    "parts/flowing",
    "parts/memory",
    "parts/device",
}
"""What is about the files; the others are about the model or the plan."""


def test_each_field_of_a_manifest_is_forged_above() -> None:
    kinds = {
        "": Manifest,
        "source/": Source,
        "tensors/": Tensor,
        "states/": State,
        "devices/": PlannedDevice,
        "parts/": Part,
    }
    fields = {f"{place}{field}" for place, kind in kinds.items() for field in kind.__struct_fields__}
    assert fields - {field for field, _, _ in FORGED} == NOT_DERIVED | {"source"}


def test_states_that_only_the_manifest_shows_are_said_to_be_not_proved(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"x{i}"], [f"y{i}"], name=f"neg{i}") for i in range(2)]
    model = model_of(nodes, [floats(f"x{i}", 4) for i in range(2)], [floats(f"y{i}", 4) for i in range(2)])
    onnx.save(model, tmp_path / "model.onnx")
    named = graphcut.load(tmp_path / "model.onnx", states={"x0": "y1", "x1": "y0"})
    made = graphcut.split(named, At("neg0"))
    for known, end in ((made.source, ", 2 states as the manifest says, not proved"), (named, "compared")):
        report = graphcut.verify(known, made, structural_only=True)
        assert report.same
        assert report.structure_summary.endswith(end)
    edit_manifest(made.path, swap_states)
    assert not graphcut.verify(named, made.root, structural_only=True).same


def test_states_that_a_user_names_for_the_model_are_those_of_the_manifest(cascade: Cascade) -> None:
    edit_manifest(cascade.path, declare_swapped_states)
    pairs = {KEY: "present.0.value", VALUE: "present.0.key"}
    assert graphcut.verify(graphcut.load(cascade.source, states=pairs), cascade.path, structural_only=True)


# What another version of onnx or ONNX Runtime would have inferred


def declare(cascade: Cascade, dims: Sequence[int | str | None] | None) -> None:
    """Write a cascade in which `i`, between two parts, has these dimensions, everywhere alike."""
    shape = None if dims is None else list(dims)
    value = helper.make_tensor_value_info("i", TensorProto.FLOAT, shape)

    def change_part(proto: ModelProto) -> None:
        for old in (*proto.graph.input, *proto.graph.output):
            if old.name == "i":
                old.CopyFrom(value)

    for part in (2, 3, 4):
        edit_part(cascade, part, change_part)

    def change(record: Record) -> None:
        next(tensor for tensor in record["tensors"] if tensor["name"] == "i")["shape"] = shape

    edit_manifest(cascade.path, change)
    redo_digests(cascade.path)


@each("dims", [("n", None), (None, 16), (None, None), None])
def test_types_that_are_known_less_well_are_no_objection(
    dims: Sequence[int | str | None] | None, cascade: Cascade
) -> None:
    declare(cascade, dims)
    assert_said(by_structure(cascade.path), "")
    assert_said(by_files(cascade.path), "")


@each("dims", [("n", 15), ("past", 16), (2, 16), ("n", 16, 1), (None, 15)])
def test_types_that_can_not_both_be_right_are_an_objection(dims: Sequence[int | str | None], cascade: Cascade) -> None:
    declare(cascade, dims)
    assert_said(by_structure(cascade.path), "but float32[n,16] in the model")
    assert_said(by_files(cascade.path), "")  # what is right only the model knows


def test_the_manifest_and_the_parts_give_each_boundary_the_same_type(cascade: Cascade) -> None:
    """Both are files of the cascade, so that no inference is between them."""
    place = next(i for i, tensor in enumerate(cascade.manifest.tensors) if tensor.name == "i")
    edit_manifest(cascade.path, put(f"tensors/{place}/shape", [None, 16]))
    for found in (by_structure(cascade.path), by_files(cascade.path)):
        assert_said(found, "'i' is float32[n,16] in it, but float32[?,16] in the manifest")


@each(
    ("forged", "objection"),
    [
        (lambda exact: exact, ""),
        (lambda exact: exact - 1, ""),  # a dimension that is unknown elsewhere counts as 1
        (lambda exact: exact + 1, "the manifest gives activation_bytes"),
        (lambda _: 2 * 16 * 4 - 1, "the manifest gives activation_bytes"),  # less than it writes
    ],
)
def test_activations_are_between_what_a_part_writes_and_what_all_known_sizes_take(
    forged: Callable[[int], int], objection: str, cascade: Cascade
) -> None:
    edit_manifest(cascade.path, put("parts/0/activation_bytes", forged(cascade.parts[0].activation_bytes)))
    assert_said(by_structure(cascade.path), objection)


def test_a_number_that_an_input_of_the_model_does_not_have_at_this_axis_is_found(tmp_path: Path) -> None:
    """Another version may name an open dimension, and nothing gives it a number: [?, 4] is not [4, 4]."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    onnx.save(model_of(nodes, [floats("x", None, 4)], [floats("y", None, 4)]), tmp_path / "model.onnx")
    path = graphcut.split(tmp_path / "model.onnx", At("relu")).path
    for shape, said in ((["rows", 4], ""), ([4, 4], "'x' is float32[?,4] in it, but float32[4,4] in the manifest")):
        edit_manifest(path, put("tensors/0/shape", shape))
        assert_said(by_structure(path), said)
        assert_said(by_files(path), said)
