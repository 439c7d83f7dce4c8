"""`verify_files`: what of a folder can be compared without the model, and what can't."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import onnx
import pytest

import graphcut
from graphcut import At, Cascade, Model, Part
from graphcut.core.arguments import Storage
from graphcut.core.digests import DataFile, digest_of
from graphcut.core.manifest import save_manifest
from graphcut.verifying.files import FileVerification, verify_files

from cases import each
from conftest import LAYER_ENDS
from tampering import flip


@pytest.fixture
def cascade(external_llm: Model) -> Cascade:
    cascade = graphcut.split(external_llm, At(LAYER_ENDS[:1]))
    external_llm.path.unlink()
    return cascade


def with_part(cascade: Cascade, index: int, *, check_files: bool = True, **fields: Any) -> Cascade:  # noqa: ANN401 - of any field
    """The cascade with other facts of a part in its manifest, on disk too."""
    parts = list(cascade.parts)
    parts[index] = msgspec.structs.replace(parts[index], **fields)
    save_manifest(msgspec.structs.replace(cascade.manifest, parts=tuple(parts)), cascade.path)
    return graphcut.open_cascade(cascade.path, check_files=check_files)


def test_the_files_of_a_split_are_what_the_manifest_says_without_the_model(cascade: Cascade) -> None:
    sizes = [file.stat().st_size for file in cascade.root.iterdir() if file != cascade.path]
    assert verify_files(cascade.root) == FileVerification((), 4, sum(sizes), ())


def test_a_flipped_bit_of_a_weight_is_found(cascade: Cascade) -> None:
    flip(cascade.root / "part-1.onnx.data")
    found = verify_files(cascade)
    assert found.objections == ("part-1.onnx: part-1.onnx.data has other bytes in 1 of 1 block, the first at byte 0",)
    assert not found


def test_a_changed_part_file_is_found(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    proto = onnx.load(file, load_external_data=False)
    proto.graph.node[0].attribute.add(name="extra", type=onnx.AttributeProto.INT, i=1)
    onnx.save(proto, file)
    assert (
        "part-1.onnx: part-1.onnx is not the file that was written: its digest differs"
        in verify_files(cascade).objections
    )


def test_a_changed_part_whose_digest_was_redone_is_found_by_its_graph(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    proto = onnx.load(file, load_external_data=False)
    proto.graph.doc_string = "other"
    onnx.save(proto, file)
    redone = with_part(cascade, 1, sha256=digest_of(file.read_bytes()))
    (objection,) = verify_files(redone).objections
    assert objection.startswith("part-1.onnx: the manifest gives graph as ")


def test_a_file_that_is_no_model_is_an_objection(cascade: Cascade) -> None:
    cascade.file(cascade.parts[0]).write_bytes(b"nonsense")
    assert verify_files(cascade).objections


@each(
    ("forge", "said"),
    [
        (lambda part: {"nodes": part.nodes + 1}, "the manifest gives nodes as"),
        (lambda _: {"weight_bytes": 1}, "the manifest gives weight_bytes as 1, but it is"),
        (lambda _: {"largest_weight_bytes": 1}, "the manifest gives largest_weight_bytes as 1, but it is"),
        (lambda _: {"graph": "sha256:00"}, "the manifest gives graph as 'sha256:00', but it is 'sha256:"),
        (lambda part: {"reads": part.reads[::-1]}, "the manifest gives reads as"),
        (lambda _: {"data": {}}, "the manifest gives data as [], but it is ['part-1.onnx.data']"),
        (lambda part: {"data": covering(part, 8)}, "the manifest lacks a digest of all that the part reads of part-1"),
    ],
)
def test_forged_facts_are_found(cascade: Cascade, forge: Callable[[Part], dict[str, Any]], said: str) -> None:
    forged = with_part(cascade, 1, **forge(cascade.parts[1]))
    assert any(said in objection for objection in verify_files(forged).objections)


def covering(part: Part, length: int) -> dict[str, DataFile]:
    """Digests that fit, of the first bytes only."""
    ((name, data),) = part.data.items()
    assert data.digest is not None
    return {name: msgspec.structs.replace(data, digest=msgspec.structs.replace(data.digest, ranges=((0, length),)))}


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_every_split_is_accepted(external_llm: Model, weights: Storage) -> None:
    found = verify_files(graphcut.split(external_llm, At(LAYER_ENDS), weights=weights, digest=True))
    assert (found.objections, found.undigested, found.gap) == ((), (), "")


def test_weights_without_a_digest_are_named(external_llm: Model) -> None:
    cascade = graphcut.split(external_llm, At(LAYER_ENDS), weights="share")
    found = verify_files(cascade)
    assert (bool(found), found.undigested) == (True, tuple(part.file for part in cascade.parts))
    assert found.gap == "weights of 3 parts have no digest: only their sizes were compared"
    flip(external_llm.path.with_name("llm.onnx.data"), 3)
    assert verify_files(cascade), "nothing is known of these weights, and that is said"


def test_a_changed_bit_of_shared_weights_is_an_objection_of_the_parts_that_read_it(external_llm: Model) -> None:
    cascade = graphcut.split(external_llm, At(LAYER_ENDS), weights="share", digest=True)
    starts = [data.digest.ranges[0][0] for part in cascade.parts for data in part.data.values() if data.digest]
    flip(external_llm.path.with_name("llm.onnx.data"), starts[2] + 3)
    objections = verify_files(cascade).objections
    assert [objection.partition(":")[0] for objection in objections] == ["llm.part-2.onnx"]


def test_a_part_of_a_download_is_not_what_the_manifest_says(cascade: Cascade) -> None:
    data, part = cascade.root / "part-0.onnx.data", cascade.root / "part-1.onnx"
    had = data.stat().st_size
    os.truncate(data, 100)
    os.truncate(part, 1000)
    first, *second = verify_files(cascade.root).objections
    assert first == f"part-0.onnx: {data} has 100 bytes, but had {had:,} when the model was split"
    assert second[0] == "part-1.onnx: part-1.onnx is not the file that was written: its digest differs"
    data.unlink()
    part.unlink()
    gone = (f"part-0.onnx: {data} is missing", f"part-1.onnx: {part} is missing")
    assert verify_files(cascade.root).objections == gone


def test_a_file_outside_the_folder_is_not_read(cascade: Cascade) -> None:
    outside = with_part(cascade, 0, file="../part-0.onnx", check_files=False)
    assert verify_files(outside).objections == (
        f"../part-0.onnx: {cascade.path} names '../part-0.onnx', which is outside its folder",
    )


def test_a_file_that_may_not_be_read_is_an_objection(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of another user."""

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("graphcut.verifying.files.wrong_bytes", refuse)
    sentence = "a file can't be read: Permission denied"
    assert verify_files(cascade).objections == tuple(f"part-{i}.onnx: {sentence}" for i in (0, 1))


def test_the_result_reads_well(external_llm: Model) -> None:
    good = graphcut.split(external_llm, At(LAYER_ENDS[:1]), weights="share")
    size = sum((good.root / part.file).stat().st_size for part in good.parts)
    assert str(verify_files(good)) == (
        "the files are what the manifest says\n"
        f"2 files: {size / 1024:.3g} KiB compared with digests\n"
        "weights of 2 parts have no digest: only their sizes were compared"
    )
    assert len(repr(verify_files(good)).splitlines()) <= 5
