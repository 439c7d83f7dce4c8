"""LinguaLinked's files: its sender and receiver maps, its lists of names, what each module hands over.

Zhao et al., "LinguaLinked: Distributed Large Language Model Inference on Mobile Devices", ACL 2024 (demos), and the
code of github.com/zjc664656505/LinguaLinked-Inference at eeb7e0a, which writes and reads these files:

    sender_seq_dep_map.json     {"0": {"1": [0, 1]}}       from each module to the next: places among its outputs
    sender_res_dep_map.json     {"0": {"2": [1]}}          from a module to a later one
    receiver_seq_dep_map.json   {"1": {"0": [0, 1]}}       the same, by the module that reads
    receiver_res_dep_map.json   {"2": {"0": [1]}}
    model_input_names.json      {"module_0": ["x"]}        in the order in which its runner feeds them
    model_output_names.json     {"module_0": ["a", "b"]}
    module0/module_name_0.json  {"input": ["x"], "output": ["a", "b"]}
    model_output_mem_size.json  {"0": {"seq": {"1": [4096, 64]}, "res": {"2": [64]}}}     bytes

Two things its runner does not know, and a reader should. A model's input that a later module reads comes from no
module, so it stands last among that module's inputs and in no map; an output of the model that an earlier module
writes stands among that module's outputs and in no map. Maps name tensors by their places among the outputs, which
stand as in the ONNX file; inputs are to be fed by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from re import fullmatch
from typing import Final

import msgspec

from ..core.atomic_files import replace_folder, scratch_folder
from ..core.errors import GraphcutError, UsageError
from ..core.manifest import Cascade, Part

Map = dict[str, dict[str, list[int]]]
"""`map[module][other]` is the places of the tensors handed over among the outputs of the module that makes them."""

SIZES: Final = "model_output_mem_size.json"
_OURS: Final = (
    rf"(sender|receiver)_(seq|res)_dep_map\.json|model_(input|output)_names\.json|{SIZES.replace('.', chr(92) + '.')}"
    r"|module\d+(/module_name_\d+\.json)?"
)


def export_lingualinked(
    cascade: Cascade,
    folder: str | Path,
    *,
    sizes: Mapping[str, tuple[int, bool]] | None = None,
    force: bool = False,
) -> list[Path]:
    """Write LinguaLinked's maps of `cascade` into `folder`; the parts themselves stay where they are.

    Args:
        cascade: what was cut.
        folder: a new folder, or with `force` one that such maps already lie in, which is replaced as a whole.
        sizes: bytes of each tensor, and whether that is all (`Model.tensor_bytes`); by default what types and bound
            dims of the manifest tell. Where one is not known, `model_output_mem_size.json` is left out.
        force: replace the maps that lie there.

    Returns:
        The files, in the order of their names.

    Raises:
        UsageError: something stands in the way.
        GraphcutError: the disk refuses.
    """
    folder = Path(folder)
    _check_way(folder, force=force)
    files = dict(_files(cascade, sizes))
    try:
        with scratch_folder(folder.absolute().parent, folder.name) as scratch:
            new = scratch / "new"
            for name, content in files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
            replace_folder(new, folder.absolute(), scratch / "old")
    except OSError as error:
        raise GraphcutError(
            f"writing {folder} failed: {error.strerror or error}", hint="nothing was changed"
        ) from error
    return [folder / name for name in sorted(files)]


def _check_way(folder: Path, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder with -o")
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) if folder.is_dir() else []
    for name in there:
        if fullmatch(_OURS, name) is None:
            raise UsageError(
                f"{folder} holds {name!r}, which is none of LinguaLinked's maps", hint="choose a new folder with -o"
            )
    if there and not force:
        raise UsageError(f"{folder} already exists", hint="choose another folder with -o, or add --force")


def _files(cascade: Cascade, sizes: Mapping[str, tuple[int, bool]] | None) -> Iterator[tuple[str, object]]:
    parts = cascade.parts
    sequential = _sequential(cascade)
    residual = _placed(cascade.wiring.residual, parts)
    yield "sender_seq_dep_map.json", sequential
    yield "sender_res_dep_map.json", residual
    yield "receiver_seq_dep_map.json", _turned(sequential)
    yield "receiver_res_dep_map.json", _turned(residual)
    reads = [_inputs(cascade, place) for place in range(len(parts))]
    yield "model_input_names.json", {f"module_{i}": names for i, names in enumerate(reads)}
    yield "model_output_names.json", {f"module_{i}": list(part.writes) for i, part in enumerate(parts)}
    for i, part in enumerate(parts):
        yield f"module{i}/module_name_{i}.json", {"input": reads[i], "output": list(part.writes)}
    found = _sizes(cascade, sizes)
    if found is not None:
        yield SIZES, _handed_over(parts, sequential, residual, found)


def _sequential(cascade: Cascade) -> Map:
    """From every module to the next; its runner looks all of them up, so that nothing handed over is an empty list."""
    found = cascade.wiring.sequential
    last = len(cascade.parts) - 1
    return _placed({i: {i + 1: found.get(i, {}).get(i + 1, ())} for i in range(last)}, cascade.parts)


def _placed(names: Mapping[int, Mapping[int, Sequence[str]]], parts: Sequence[Part]) -> Map:
    """Tensors as places among the outputs of the module that makes them; modules ascending."""
    places = [{tensor: i for i, tensor in enumerate(part.writes)} for part in parts]
    return {
        str(source): {
            str(target): [places[source][tensor] for tensor in tensors] for target, tensors in sorted(row.items())
        }
        for source, row in sorted(names.items())
    }


def _turned(sent: Map) -> Map:
    """A sender's map by those who receive, both ascending as numbers."""
    found: dict[int, dict[str, list[int]]] = {}
    for source, row in sent.items():
        for target, places in row.items():
            found.setdefault(int(target), {})[source] = places
    return {str(target): found[target] for target in sorted(found)}


def _inputs(cascade: Cascade, place: int) -> list[str]:
    """What a module is fed: from the module before, from earlier ones in their order, from outside."""
    sequential, residual = cascade.wiring.sequential, cascade.wiring.residual
    handed = list(sequential.get(place - 1, {}).get(place, ()))
    for source in sorted(residual):
        handed += residual[source].get(place, ())
    return list(dict.fromkeys((*handed, *cascade.parts[place].reads)))


def _sizes(cascade: Cascade, sizes: Mapping[str, tuple[int, bool]] | None) -> dict[str, int] | None:
    """Bytes of everything that a module gives out; None where one of them is not known."""
    dims = cascade.manifest.dims
    known = sizes or {}
    found = {}
    for tensor in dict.fromkeys(name for part in cascade.parts for name in part.writes):
        found[tensor], is_exact = known.get(tensor) or cascade.tensors[tensor].bytes_for(dims)
        if not is_exact:
            return None
    return found


def _handed_over(parts: Sequence[Part], sequential: Map, residual: Map, sizes: Mapping[str, int]) -> object:
    """Bytes in the order of the maps; the last module is taken to hand its outputs to the first."""

    def of(source: int, row: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        return {target: [sizes[parts[source].writes[i]] for i in places] for target, places in row.items()}

    last = len(parts) - 1
    found = {str(i): {"seq": of(i, sequential[str(i)]), "res": of(i, residual.get(str(i), {}))} for i in range(last)}
    return {**found, str(last): {"seq": {"0": [sizes[tensor] for tensor in parts[last].writes]}, "res": {}}}
