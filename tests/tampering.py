"""Changing a cascade, as an accident or an attacker would: its parts, its data files and its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper

import graphcut
from graphcut import Cascade, Model
from graphcut.core.digests import digest_of, file_digest, read_digest
from graphcut.loading.fingerprint import graph_digest
from graphcut.loading.model import load_unchecked
from graphcut.loading.subgraphs import nodes_within, tensors_in

Change = Callable[[ModelProto], object]
Record = dict[str, Any]


def edit_manifest(path: Path, change: Callable[[Record], object]) -> None:
    """Change the record of a manifest."""
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def edit_part(cascade: Cascade, part: int, change: Change) -> None:
    """Change the message of a part, and nothing else."""
    file = cascade.file(cascade.parts[part])
    proto = onnx.load(file, load_external_data=False)
    change(proto)
    file.write_bytes(proto.SerializeToString())


def flip(file: Path, offset: int = -1) -> None:
    """Change one bit of a file."""
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 1
    file.write_bytes(raw)


def redo_digests(manifest: Path) -> None:
    """Make all digests in a manifest those of the files that are there."""

    def redo(record: Record) -> None:
        for part in record["parts"]:
            file = manifest.parent / part["file"]
            part["sha256"] = digest_of(file.read_bytes())
            for name, data in part["data"].items():
                path = manifest.parent / name
                was, data["bytes"] = data["bytes"], path.stat().st_size
                if data["digest"] is not None:
                    ranges = [(start, length) for start, length in data["digest"]["ranges"]]
                    digest = read_digest(path, [(0, data["bytes"])] if ranges == [(0, was)] else ranges)
                    data["digest"] = {"ranges": digest.ranges, "blocks": digest.blocks}
            with suppress(graphcut.GraphcutError):  # a part that can't be loaded has no graph
                part["graph"] = graph_digest(load_unchecked(file).proto)
        texts = {name: manifest.parent / name for name in record.get("text_files", {})}
        record["text_files"] = {name: file_digest(file) for name, file in texts.items() if file.exists()}

    edit_manifest(manifest, redo)


def _change_operator(cascade: Cascade) -> None:
    edit_part(cascade, -1, lambda proto: setattr(proto.graph.node[-1], "op_type", f"{proto.graph.node[-1].op_type}x"))


def _swap_operands(cascade: Cascade) -> None:
    def swap(proto: ModelProto) -> None:
        for node in proto.graph.node:
            node.input[:] = reversed(node.input)

    edit_part(cascade, 0, swap)


def _change_numbers(cascade: Cascade) -> None:
    """In attributes and small tensors, those of bodies and functions included."""

    def change(proto: ModelProto) -> None:
        for node in nodes_within([*proto.graph.node, *(n for function in proto.functions for n in function.node)]):
            for attribute in node.attribute:
                if attribute.type == AttributeProto.INT:
                    attribute.i += 1
                elif attribute.type == AttributeProto.FLOAT:
                    attribute.f += 1
        for tensor in tensors_in(proto):
            if tensor.raw_data:
                tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]

    for i in range(len(cascade.parts)):
        edit_part(cascade, i, change)


def _flip_weights(cascade: Cascade) -> None:
    for part in cascade.parts:
        for name in part.data:
            flip(cascade.root / name)


def _change_boundary_type(cascade: Cascade) -> None:
    def change(proto: ModelProto) -> None:
        for value in proto.graph.output:
            value.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.STRING, ["odd"]))

    edit_part(cascade, -1, change)


def _lose_inputs(cascade: Cascade) -> None:
    """Those with a default: their parts use the default, whatever is fed."""

    def change(proto: ModelProto, optional: tuple[str, ...]) -> None:
        kept = [value for value in proto.graph.input if value.name not in optional]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)

    for i in range(len(cascade.parts)):
        edit_part(cascade, i, partial(change, optional=cascade.manifest.optional))

    def forge(record: Record) -> None:
        for part in record["parts"]:
            part["reads"] = [name for name in part["reads"] if name not in cascade.manifest.optional]

    if cascade.manifest.optional:
        edit_manifest(cascade.path, forge)


def _lose_defaults(cascade: Cascade) -> None:
    def change(proto: ModelProto) -> None:
        inputs = {value.name for value in proto.graph.input}
        kept = [tensor for tensor in proto.graph.initializer if tensor.name not in inputs]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)

    for i in range(len(cascade.parts)):
        edit_part(cascade, i, change)


def _change_text(cascade: Cascade) -> None:
    for name in cascade.manifest.text_files:
        flip(cascade.root / name)


def _forge_sizes(cascade: Cascade) -> None:
    edit_manifest(cascade.path, lambda record: record["parts"][0].update(weight_bytes=1 << 40))


def _forge_types(cascade: Cascade) -> None:
    edit_manifest(cascade.path, lambda record: record["tensors"][0].update(shape=[5, 5, 5, 5, 5, 5, 5]))


CHANGES: dict[str, Callable[[Cascade], None]] = {
    "operator": _change_operator,
    "order of operands": _swap_operands,
    "numbers": _change_numbers,
    "data files": _flip_weights,
    "boundary type": _change_boundary_type,
    "optional inputs": _lose_inputs,
    "defaults": _lose_defaults,
    "text files": _change_text,
    "sizes": _forge_sizes,
    "types": _forge_types,
}
"""Changes that most cascades can suffer; one that has nothing to change changes no file."""


def missed(model: Model, cascade: Cascade, folder: Path, changes: Sequence[str] = tuple(CHANGES)) -> list[str]:
    """Those of `changes` that `verify` misses in copies of a cascade, though all digests are redone after each.

    Before that, `verify --files` must find each change of a file but the manifest.
    """
    found = []
    folder.mkdir(exist_ok=True)
    originals = {folder / file.name: file.read_bytes() for file in cascade.root.iterdir()}
    copy = folder / cascade.path.name
    for what in changes:
        for file, raw in originals.items():
            file.write_bytes(raw)
        CHANGES[what](graphcut.open_cascade(copy))
        changed = {file for file, raw in originals.items() if file.read_bytes() != raw}
        with suppress(graphcut.GraphcutError):  # such as a boundary tensor that no part writes
            if changed - {copy} and graphcut.verify_files(copy):
                found.append(f"{what}, by files alone")
        redo_digests(copy)
        with suppress(graphcut.GraphcutError):
            if changed and graphcut.verify(model, copy, structural_only=True):
                found.append(what)
    return found
