"""Changing a cascade, as an accident or an attacker would: its parts, its data files and its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

import graphcut
from graphcut import Cascade
from graphcut.core.digests import digest_of, read_digest
from graphcut.loading.fingerprint import graph_digest

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
                data["bytes"] = path.stat().st_size
                if data["digest"] is not None:
                    digest = read_digest(path, [(0, data["bytes"])])
                    data["digest"] = {"ranges": digest.ranges, "blocks": digest.blocks}
            with suppress(graphcut.GraphcutError):  # a part that can't be loaded has no graph
                part["graph"] = graph_digest(graphcut.load(file).proto)

    edit_manifest(manifest, redo)
