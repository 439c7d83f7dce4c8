"""The gate: a manifest is read strictly, agrees with itself and with its files, or is refused with the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcut import Cascade, CascadeError, GraphcutError, Manifest, Part, RecordError, Tensor, TensorEdge, open_cascade
from graphcut.core.digests import DataFile, Digest
from graphcut.core.manifest import FORMAT, MANIFEST, PlannedDevice, RunMemory, Source, State, save_manifest

from cases import each

NO_LOOP = "loop: expected 1 step or more, and as many values of each input"
AGAIN = "split the model again, or use the version of graphcut that wrote it"

WHOLE = Digest(ranges=((0, 20),), blocks=("sha256:dd",))

PARTS = (
    Part(
        file="part-0.onnx",
        reads=("x",),
        writes=("a", "skip"),
        nodes=3,
        replicas=("k",),
        weight_bytes=20,
        looked_up_bytes=0,
        largest_weight_bytes=12,
        activation_bytes=64,
        device="edge",
        graph="sha256:00",
        sha256="sha256:aa",
        data={"part-0.onnx.data": DataFile(bytes=20, digest=WHOLE)},
    ),
    Part(
        file="part-1.onnx",
        reads=("a",),
        writes=("b",),
        nodes=1,
        replicas=(),
        weight_bytes=0,
        looked_up_bytes=0,
        largest_weight_bytes=0,
        activation_bytes=16,
        device=None,
        graph="sha256:11",
        sha256="sha256:bb",
        data={},
    ),
    Part(
        file="sub/part-2.onnx",
        reads=("x", "b", "skip"),
        writes=("y",),
        nodes=2,
        replicas=("k",),
        weight_bytes=20,
        looked_up_bytes=0,
        largest_weight_bytes=20,
        activation_bytes=32,
        memory=RunMemory(load=24, opening=20, unpacked=0, inputs=8, states=8, activations=16),
        flowing=1,
        device="edge",
        graph="sha256:22",
        sha256="sha256:cc",
        data={"part-0.onnx.data": DataFile(bytes=20, digest=WHOLE)},
    ),
)
THREE = Manifest(
    format=FORMAT,
    source=Source(file="../model.onnx", graph="sha256:99", data={"w.bin": 20}),
    weights="copy",
    dims={"n": 2},
    reads=("x",),
    optional=(),
    writes=("y",),
    tensors=tuple(Tensor(name=name, dtype="float32", shape=("n", None, 4)) for name in ("x", "a", "skip", "b", "y")),
    states=(State(past="x", present="y", axis=1, start=("batch", 0), is_given=False, is_shareable=True),),
    devices=(PlannedDevice(name="edge", memory_bytes=100, provider="CPUExecutionProvider"),),
    parts=PARTS,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cascade of three parts whose files hold nothing that anybody looks at here."""
    root = tmp_path / "model.parts"
    (root / "sub").mkdir(parents=True)
    for part in PARTS:
        (root / part.file).write_bytes(b"onnx")
    (root / "part-0.onnx.data").write_bytes(bytes(20))
    save_manifest(THREE, root / MANIFEST)
    return root


Change = Callable[[Any], object]

DIGEST = ("parts", 0, "data", "part-0.onnx.data", "digest")
"""The place of a digest in the manifest."""


def spoil(folder: Path, change: Change) -> None:
    """Write the manifest of `THREE` with one thing changed."""
    save_manifest(THREE, folder / MANIFEST)
    content = json.loads((folder / MANIFEST).read_bytes())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def put(value: object, *place: str | int) -> Change:
    def change(content: Any) -> None:  # noqa: ANN401 - JSON is anything
        for step in place[:-1]:
            content = content[step]
        content[place[-1]] = value

    return change


def refusal(folder: Path, kind: type[GraphcutError]) -> GraphcutError:
    with pytest.raises(GraphcutError) as caught:
        open_cascade(folder)
    assert type(caught.value) is kind
    assert caught.value.hint
    return caught.value


# What is written is read


def test_what_was_saved_is_opened(folder: Path) -> None:
    cascade = open_cascade(folder)
    assert cascade == Cascade(folder / MANIFEST, THREE)
    assert cascade.parts == PARTS
    assert (cascade.root, cascade.source) == (folder, folder.parent / "model.onnx")
    assert [cascade.file(part) for part in cascade.parts] == [folder / part.file for part in PARTS]
    assert cascade.tensors["skip"] == Tensor(name="skip", dtype="float32", shape=("n", None, 4))


def test_tensor_edges_are_derived_and_not_saved(folder: Path) -> None:
    assert open_cascade(folder).wiring.edges == (
        TensorEdge("x", None, 0),
        TensorEdge("a", 0, 1),
        TensorEdge("x", None, 2),
        TensorEdge("b", 1, 2),
        TensorEdge("skip", 0, 2),
        TensorEdge("y", 2, None),
    )
    written = json.loads((folder / MANIFEST).read_bytes())
    assert {key for part in written["parts"] for key in part} == set(Part.__struct_fields__)


def test_a_cascade_is_opened_by_its_folder_or_by_its_manifest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_cascade(folder) == open_cascade(folder / MANIFEST) == open_cascade(str(folder))
    monkeypatch.chdir(folder)
    assert open_cascade(".").manifest == open_cascade(MANIFEST).manifest == THREE


def test_a_manifest_beside_shared_weights_is_opened_by_its_name(folder: Path) -> None:
    (folder / MANIFEST).rename(folder / "model.cascade.json")
    assert open_cascade(folder / "model.cascade.json").manifest == THREE


def test_a_cascade_may_be_moved_and_reached_through_a_link(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(moved, target_is_directory=True)
    assert open_cascade(tmp_path / "link").manifest == THREE


def test_a_file_of_a_part_may_be_a_link_within_the_folder(folder: Path) -> None:
    (folder / "part-1.onnx").rename(folder / "sub/real.onnx")
    (folder / "part-1.onnx").symlink_to("sub/real.onnx")
    assert open_cascade(folder).manifest == THREE


def test_a_manifest_is_indented_json(tmp_path: Path) -> None:
    save_manifest(THREE, tmp_path / MANIFEST)
    text = (tmp_path / MANIFEST).read_text(encoding="utf-8")
    assert text.startswith('{\n "format": "graphcut.cascade/1.1",\n "source": {\n  "file": "../model.onnx",\n')
    assert text.endswith("}\n")


NAMES = st.text(st.characters(codec="utf-8"), max_size=4)
SIZES = st.dictionaries(NAMES, st.integers(0, 2**63), max_size=3)
RANGES = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=2).map(tuple)
DIGESTS = st.builds(Digest, ranges=RANGES, blocks=st.lists(NAMES, max_size=3).map(tuple))
DATA_FILES = st.builds(DataFile, bytes=st.integers(0, 2**63), digest=st.one_of(st.none(), DIGESTS))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any names at all: quotes, line ends, zeros, other scripts."""
    names = tuple(draw(st.lists(NAMES, min_size=1, max_size=3)))
    dims = st.one_of(st.none(), NAMES, st.integers(0, 2**62))
    shape = draw(st.one_of(st.none(), st.lists(dims, max_size=3).map(tuple)))
    part = Part(
        file=draw(NAMES),
        reads=names,
        writes=names,
        nodes=draw(st.integers(0, 10**6)),
        replicas=names,
        weight_bytes=draw(st.integers(0, 2**63)),
        looked_up_bytes=draw(st.integers(0, 2**63)),
        largest_weight_bytes=draw(st.integers(0, 2**63)),
        activation_bytes=draw(st.integers(0, 2**63)),
        device=draw(st.one_of(st.none(), NAMES)),
        graph=draw(NAMES),
        sha256=draw(NAMES),
        data=draw(st.dictionaries(NAMES, DATA_FILES, max_size=2)),
    )
    return Manifest(
        format=FORMAT,
        source=Source(file=draw(NAMES), graph=draw(NAMES), data=draw(SIZES)),
        weights=draw(st.sampled_from(["copy", "share"])),
        dims=draw(SIZES),
        reads=names,
        optional=names[1:],
        writes=names,
        tensors=tuple(Tensor(name=name, dtype="float32", shape=shape) for name in names),
        states=(
            State(
                past=names[0],
                present=names[-1],
                axis=draw(st.one_of(st.none(), st.integers(0, 9))),
                start=draw(st.one_of(st.none(), st.lists(dims).map(tuple))),
                is_given=draw(st.booleans()),
                is_shareable=draw(st.booleans()),
            ),
        ),
        devices=(
            PlannedDevice(
                name=draw(NAMES), memory_bytes=draw(st.one_of(st.none(), st.integers(1, 2**62))), provider="x"
            ),
        ),
        parts=(part,),
    )


def bytes_of(manifest: Manifest, path: Path) -> bytes:
    save_manifest(manifest, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifest") / MANIFEST


@settings(deadline=None, max_examples=40)
@given(manifests())
def test_any_manifest_survives_saving(scratch: Path, manifest: Manifest) -> None:
    raw = bytes_of(manifest, scratch)
    assert msgspec.json.decode(raw, type=Manifest) == manifest
    assert bytes_of(msgspec.json.decode(raw, type=Manifest), scratch) == raw


def test_the_same_content_gives_the_same_bytes_and_dims_stay_in_their_order(scratch: Path) -> None:
    sized = msgspec.structs.replace(THREE, dims={"seq": 512, "past": 0, "batch": 1})
    assert bytes_of(sized, scratch) == bytes_of(msgspec.structs.replace(sized), scratch)
    assert list(msgspec.json.decode(scratch.read_bytes(), type=Manifest).dims) == ["seq", "past", "batch"]


# Strict reading


@each(
    ("change", "said"),
    [
        (put(5, "parts", 1, "reads", 0), "parts[1].reads[0]: Expected `str`, got `int`"),
        (put("3", "parts", 0, "nodes"), "parts[0].nodes: Expected `int`, got `str`"),
        (put(True, "parts", 0, "nodes"), "parts[0].nodes: Expected `int`, got `bool`"),
        (put(1.5, "parts", 0, "nodes"), "parts[0].nodes: Expected `int`, got `float`"),
        (put(None, "parts", 2, "data"), "parts[2].data: Expected `object`, got `null`"),
        (put(20, "parts", 0, "data", "part-0.onnx.data"), "parts[0].data[...]: Expected `object`, got `int`"),
        (put([[0]], *DIGEST, "ranges"), "parts[0].data[...].digest.ranges[0]: Expected `array` of length 2"),
        (put({"steps": 2, "inputs": {"x": [1.0]}}, "loop"), NO_LOOP),
        (put({"steps": 0, "inputs": {}}, "loop"), NO_LOOP),
        (put(1.5, "tensors", 3, "shape", 1), "tensors[3].shape[1]: Expected `int | str | null`, got `float`"),
        (put("x", "reads"), "reads: Expected `array`, got `str`"),
        (put("link", "weights"), "weights: Invalid enum value 'link'"),
        (put([], "source"), "source: Expected `object`, got `array`"),
        (put("now", "made_at"), "Object contains unknown field `made_at`"),
        (put([], "parts", 2, "to"), "parts[2]: Object contains unknown field `to`"),
        (put("x", "source", "url"), "source: Object contains unknown field `url`"),
        (lambda content: content.pop("optional"), "Object missing required field `optional`"),
        (lambda content: content["parts"][1].pop("graph"), "parts[1]: Object missing required field `graph`"),
        (lambda content: content["tensors"][0].pop("shape"), "tensors[0]: Object missing required field `shape`"),
    ],
)
def test_a_wrong_field_is_named_with_its_location(folder: Path, change: Change, said: str) -> None:
    spoil(folder, change)
    caught = refusal(folder, RecordError)
    assert (str(caught), caught.hint) == (f"{folder / MANIFEST}: {said}", AGAIN)


@each(
    ("change", "said"),
    [
        (put("graphcut.cascade/2", "format"), "the format 'graphcut.cascade/2'"),
        (put("graphcut.cascade/2.1", "format"), "the format 'graphcut.cascade/2.1'"),
        (put("graphcut.cascade/1.x", "format"), "the format 'graphcut.cascade/1.x'"),
        (put("graphcut.cascade/1.0", "format"), "the format 'graphcut.cascade/1.0'"),
        (put("other/1", "format"), "the format 'other/1'"),
        (put(1, "format"), "the format 1"),
        (lambda content: content.pop("format"), "no format"),
        (put("", "format"), "no format"),
    ],
)
def test_another_version_is_refused(folder: Path, change: Change, said: str) -> None:
    spoil(folder, change)
    caught = refusal(folder, RecordError)
    whole = f"{folder / MANIFEST} has {said}, and this version of graphcut reads 'graphcut.cascade/1.1'"
    assert (str(caught), caught.hint) == (whole, AGAIN)


@pytest.mark.parametrize("format_", ["graphcut.cascade/1.2", "graphcut.cascade/1.27"])
def test_a_later_minor_version_is_read_without_its_new_fields(folder: Path, format_: str) -> None:
    new = {"any": ["thing"]}
    places = [("made_by",), ("source", "url"), ("parts", 0, "to"), ("tensors", 1, "scale"), ("states", 0, "step")]
    places += [("devices", 0, "zone"), ("parts", 0, "data", "part-0.onnx.data", "url"), (*DIGEST, "kind")]
    for place in places:
        spoil(folder, put(new, *place))
    assert "unknown field" in str(refusal(folder, RecordError)), "the same version has no other fields"
    spoil(folder, put(format_, "format"))
    assert open_cascade(folder).manifest == THREE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("3", "parts", 0, "nodes"), "parts[0].nodes: Expected `int`, got `str`"),
        (put("link", "weights"), "weights: Invalid enum value 'link'"),
        (lambda content: content.pop("optional"), "Object missing required field `optional`"),
        (put([5], "parts"), "parts[0]: Expected `object`, got `int`"),
    ],
)
def test_a_later_minor_version_keeps_the_fields_of_this_one(folder: Path, change: Change, said: str) -> None:
    spoil(folder, put("graphcut.cascade/1.2", "format"))
    spoil(folder, change)
    caught = refusal(folder, RecordError)
    assert (str(caught), caught.hint) == (f"{folder / MANIFEST}: {said}", AGAIN)


def test_an_earlier_minor_version_is_read_and_its_memory_is_what_files_suggest(folder: Path) -> None:
    def without_new_fields(content: Any) -> None:  # noqa: ANN401 - JSON is anything
        content["format"] = "graphcut.cascade/1"
        for part in content["parts"]:
            del part["memory"], part["flowing"]

    spoil(folder, without_new_fields)
    first = open_cascade(folder).parts[0]
    assert (first.memory, first.flowing) == (None, None)
    assert first.needed == RunMemory(load=20, opening=12, unpacked=0, inputs=0, states=0, activations=64)


def test_a_higher_version_is_refused_before_its_new_fields_are(folder: Path) -> None:
    spoil(folder, lambda content: content.update(format="graphcut.cascade/2", parts={"any": "thing"}))
    assert "the format 'graphcut.cascade/2'" in str(refusal(folder, RecordError))


@each(
    "raw",
    [
        b"",
        b"\x08\x08\x12\x07pytorch",
        b"{",
        b'{"format": "graphcut.cascade/1"',
        b'{"format": "graphcut.cascade/1"} and more',
        b"{'format': 1}",
        b'{"format": NaN}',
        b'\xef\xbb\xbf{"format": "graphcut.cascade/1"}',
        b'{"format": "\xff\xfe"}',
        b"[" * 100_000,
        b'{"format":' * 100_000,
    ],
    ids=["empty", "onnx", "open", "short", "more", "python", "nan", "bom", "latin-1", "deep", "deeper"],
)
def test_a_file_that_is_not_json_is_refused(folder: Path, raw: bytes) -> None:
    (folder / MANIFEST).write_bytes(raw)
    caught = refusal(folder, RecordError)
    assert str(caught).startswith(f"{folder / MANIFEST} is not JSON: ")
    assert caught.hint == ("save it as UTF-8 without such a mark" if raw.startswith(b"\xef") else AGAIN)


@each("raw", [b"[]", b"null", b"5", b'"graphcut.cascade/1"', b"{}"])
def test_other_json_has_no_format(folder: Path, raw: bytes) -> None:
    (folder / MANIFEST).write_bytes(raw)
    assert "no format" in str(refusal(folder, RecordError))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_corrupted_bytes_are_refused_or_make_no_difference(scratch: Path, place: int, noise: bytes) -> None:
    raw = bytearray(bytes_of(THREE, scratch))
    start = place % len(raw)
    raw[start : start + len(noise)] = noise
    scratch.write_bytes(raw)
    with pytest.raises((RecordError, CascadeError)):  # the files are not there, so that even a whole one does not open
        open_cascade(scratch)


# Agreeing with itself


STATE = {"past": "x", "present": "y", "axis": None, "start": None, "is_given": False, "is_shareable": False}


@each(
    ("change", "said"),
    [
        (put(["ghost"], "parts", 1, "reads"), "part 1 reads 'ghost' before any part writes it"),
        (lambda content: content["parts"].reverse(), "part 0 reads 'b' before any part writes it"),
        (put(["b", "a2"], "parts", 0, "writes"), "part 1 reads 'a' before any part writes it"),
        (put(["a"], "parts", 2, "writes"), "part 2 writes 'a', which is already written"),
        (put(["y", "ghost"], "writes"), "no part writes 'ghost', an output of the model"),
        (put([], "parts"), "no part writes 'y', an output of the model"),
        (lambda content: content["tensors"].pop(2), "'tensors' lacks 'skip'"),
        (lambda content: content["tensors"].clear(), "'tensors' lacks 'a'"),
        (put(["y", "ghost"], "parts", 2, "writes"), "'tensors' lacks 'ghost'"),
        (put([], "reads"), "part 0 reads 'x' before any part writes it"),
        (put([{**STATE, "past": "a"}], "states"), "'states' pairs 'a' with 'y', which are not an input and an output"),
        (
            put([{**STATE, "present": "x"}], "states"),
            "'states' pairs 'x' with 'x', which are not an input and an output",
        ),
        (put([STATE, STATE], "states"), "'states' does not list each state once, in the order of the inputs"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused_by_tensor_name(folder: Path, change: Change, said: str) -> None:
    spoil(folder, change)
    caught = refusal(folder, CascadeError)
    assert (str(caught), caught.hint) == (f"{folder / MANIFEST}: {said}", "split the model again")


def test_a_part_that_writes_again_what_another_wrote_is_refused(folder: Path) -> None:
    spoil(folder, put(["y", "skip"], "parts", 2, "writes"))
    assert "part 2 writes 'skip', which is already written" in str(refusal(folder, CascadeError))


def test_an_input_that_no_part_reads_has_its_type_listed_too(folder: Path) -> None:
    """Whoever feeds the cascade has to know it; 'tensors' lists the model's own inputs and outputs."""
    spoil(folder, put(["x", "unused"], "reads"))
    assert str(refusal(folder, CascadeError)) == f"{folder / MANIFEST}: 'tensors' lacks 'unused'"


@each("dtype", ["flort32", "sequence(flort32)", "map(string, flort32)", "list(float32)", "Float32", "float 32"])
def test_a_type_that_onnx_does_not_have_is_refused(dtype: str, folder: Path) -> None:
    spoil(folder, put(dtype, "tensors", 0, "dtype"))
    said = f"'tensors' gives 'x' the type {dtype!r}, which is none of ONNX"
    assert str(refusal(folder, CascadeError)) == f"{folder / MANIFEST}: {said}"


@each("dtype", ["float32", "undefined", "string", "float8e4m3fn", "optional(sequence(bfloat16))", "map(int64, string)"])
def test_every_type_of_onnx_is_taken(dtype: str, folder: Path) -> None:
    spoil(folder, put(dtype, "tensors", 0, "dtype"))
    assert open_cascade(folder).tensors["x"].dtype == dtype


def test_a_tensor_with_two_types_is_refused(folder: Path) -> None:
    spoil(folder, lambda content: content["tensors"].append({"name": "a", "dtype": "int64", "shape": []}))
    assert "'a'" in str(refusal(folder, CascadeError))


@each(
    "ranges",
    [[[0, 21]], [[21, 0]], [[-1, 20]], [[0, -1]], [[0, 12], [8, 12]], [[8, 4], [0, 4]], [], [[0, 2**62]]],
)
def test_ranges_that_a_digest_can_not_have_are_refused(folder: Path, ranges: list[list[int]]) -> None:
    spoil(folder, put(ranges, *DIGEST, "ranges"))
    caught = refusal(folder, CascadeError)
    said = "the digest of 'part-0.onnx.data' in part-0.onnx has ranges that overlap or don't fit its blocks"
    assert (str(caught), caught.hint) == (f"{folder / MANIFEST}: {said}", "split the model again")


@each("field", ["optional", "stepwise"])
def test_an_input_that_may_be_left_out_or_is_fed_at_each_step_is_an_input(field: str, folder: Path) -> None:
    spoil(folder, put(["ghost"], field))
    assert f"'{field}' names 'ghost', which is not an input" in str(refusal(folder, CascadeError))


def test_what_a_loop_changes_is_fed_at_each_step(folder: Path) -> None:
    spoil(folder, put({"steps": 2, "inputs": {}}, "loop"))
    assert "'loop' changes 'x', which 'stepwise' does not name" in str(refusal(folder, CascadeError))


# Agreeing with its files


def test_a_missing_part_is_named(folder: Path) -> None:
    (folder / "sub/part-2.onnx").unlink()
    caught = refusal(folder, CascadeError)
    assert str(caught) == f"{folder / 'sub/part-2.onnx'} (edge) is missing"
    assert caught.hint == "copy the whole cascade, or split the model again"


def test_missing_data_are_named(folder: Path) -> None:
    (folder / "part-0.onnx.data").unlink()
    assert str(refusal(folder, CascadeError)) == f"{folder / 'part-0.onnx.data'} is missing"


def test_a_folder_is_not_a_part(folder: Path) -> None:
    (folder / "part-1.onnx").unlink()
    (folder / "part-1.onnx").mkdir()
    assert str(refusal(folder, CascadeError)) == f"{folder / 'part-1.onnx'} is no regular file"


def test_data_of_another_size_are_refused_with_both_numbers(folder: Path) -> None:
    (folder / "part-0.onnx.data").write_bytes(bytes(1234))
    caught = refusal(folder, CascadeError)
    assert str(caught) == f"{folder / 'part-0.onnx.data'} has 1,234 bytes, but had 20 when the model was split"
    assert caught.hint == "copy the whole cascade, or split the model again"


@pytest.mark.parametrize("name", ["../secret", "sub/../../secret", "/etc/passwd", "link", "folder/secret"])
@pytest.mark.parametrize("place", ["file", "data"])
def test_a_path_out_of_the_folder_is_refused(folder: Path, name: str, place: str) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes(b"x")
    (folder / "link").symlink_to(secret)
    (folder / "folder").symlink_to(folder.parent, target_is_directory=True)
    spoil(folder, put(name if place == "file" else {name: {"bytes": 1, "digest": None}}, "parts", 1, place))
    caught = refusal(folder, CascadeError)
    names = (
        f"{folder / 'link'} is a link to {str(secret)!r}" if name == "link" else f"{folder / MANIFEST} names {name!r}"
    )
    assert str(caught) == f"{names}, which is outside its folder"


@pytest.mark.parametrize("name", ["", ".", "sub", "a\0b", "x" * 300, "loop", "part-1.onnx/inner"])
@pytest.mark.parametrize("place", ["file", "data"])
def test_an_impossible_file_name_is_refused(folder: Path, name: str, place: str) -> None:
    (folder / "loop").symlink_to("loop")
    spoil(folder, put(name if place == "file" else {name: {"bytes": 1, "digest": None}}, "parts", 1, place))
    assert str(folder) in str(refusal(folder, CascadeError))


def test_files_may_be_missing_when_only_the_manifest_is_read(folder: Path) -> None:
    """The model that was split is needed to verify, not to run the parts."""
    assert not open_cascade(folder).source.exists()


# No cascade here


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    caught = refusal(tmp_path, CascadeError)
    assert str(caught) == f"{tmp_path} has no cascade.json"
    assert caught.hint == "name the folder or the manifest that `split(...)` made"


def test_for_a_folder_with_shared_weights_the_manifest_is_suggested(tmp_path: Path) -> None:
    for stem in ("two", "one"):
        (tmp_path / f"{stem}.cascade.json").touch()
    said = f"{tmp_path} has no cascade.json; did you mean {tmp_path / 'one.cascade.json'}?"
    assert str(refusal(tmp_path, CascadeError)) == said


@pytest.mark.parametrize("name", ["gone", "gone.json"])
def test_a_missing_path_is_refused(tmp_path: Path, name: str) -> None:
    assert str(refusal(tmp_path / name, CascadeError)).startswith(f"there is no cascade at {tmp_path / name}")


def test_an_impossible_path_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "xxx") in str(refusal(tmp_path / ("x" * 300), CascadeError))


def test_a_manifest_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    assert str(refusal(tmp_path, RecordError)) == f"{tmp_path / MANIFEST} can't be read: Is a directory"
