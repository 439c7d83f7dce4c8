"""Export the dependency maps of a cascade in LinguaLinked's format.

Zhao et al., "LinguaLinked: Distributed Large Language Model Inference on Mobile Devices", ACL 2024 (demos), and the
code of github.com/zjc664656505/LinguaLinked-Inference at eeb7e0a, which writes and reads these files:

    sender_seq_dep_map.json     {"0": {"1": [0, 1]}}       from each module to the next: indices of its outputs
    sender_res_dep_map.json     {"0": {"2": [1]}}          from a module to a later one
    receiver_seq_dep_map.json   {"1": {"0": [0, 1]}}       the same, by the module that reads
    receiver_res_dep_map.json   {"2": {"0": [1]}}
    model_input_names.json      {"module_0": ["x"]}        in the order in which its runner feeds them
    model_output_names.json     {"module_0": ["a", "b"]}
    module0/module_name_0.json  {"input": ["x"], "output": ["a", "b"]}
    model_output_mem_size.json  {"0": {"seq": {"1": [4096, 64]}, "res": {"2": [64]}}}     bytes

Three cases are outside its runner's format. An input of the model that a later module reads is the last input of that
module, and in no map. An output of the model that an earlier module writes is an output of that module, and in no map.
An input with a default is in no file.
Indices are those of the outputs in the ONNX file; inputs must be fed by name.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ..core.atomic_files import Content
from ..core.manifest import Cascade, Part
from ..core.tensors import TensorBytes
from .cascade_files import Export, fed

Map = dict[str, dict[str, list[int]]]
"""`map[source][target]` is the indices, among the outputs of module `source`, of the tensors that `target` reads."""

SIZES: Final = "model_output_mem_size.json"


def export_of(cascade: Cascade, sizes: TensorBytes | None = None) -> Export:
    """The maps of `cascade`; the parts stay where they are.

    `sizes` are the bytes of each tensor, and whether that is exact (`Model.tensor_bytes`); by default by the types and
    dims of the manifest. If one is not exact, `model_output_mem_size.json` is left out.
    """
    parts, wiring = cascade.parts, cascade.wiring
    # Its runner looks up every pair of neighbours, so that a pair without tensors has an empty list.
    neighbours = {i: {i + 1: wiring.sequential.get(i, {}).get(i + 1, ())} for i in range(len(parts) - 1)}
    maps = {"seq": _with_indices(neighbours, parts), "res": _with_indices(wiring.residual, parts)}
    files: Export = {f"sender_{kind}_dep_map.json": sent for kind, sent in maps.items()}
    files |= {f"receiver_{kind}_dep_map.json": _by_receiver(sent) for kind, sent in maps.items()}
    reads = [_inputs(cascade, i) for i in range(len(parts))]
    files["model_input_names.json"] = {f"module_{i}": names for i, names in enumerate(reads)}
    files["model_output_names.json"] = {f"module_{i}": list(part.writes) for i, part in enumerate(parts)}
    for i, part in enumerate(parts):
        files[f"module{i}/module_name_{i}.json"] = {"input": reads[i], "output": list(part.writes)}
    written, dims = {name: cascade.tensors[name] for part in parts for name in part.writes}, cascade.manifest.dims
    known = {name: (sizes or {}).get(name) or tensor.bytes_for(dims) for name, tensor in written.items()}
    if all(is_exact for _, is_exact in known.values()):
        files[SIZES] = _sizes_of_outputs(parts, maps, {name: number for name, (number, _) in known.items()})
    return files


def _with_indices(names: Mapping[int, Mapping[int, Sequence[str]]], parts: Sequence[Part]) -> Map:
    """A map with tensors as indices among the outputs of the module that writes them; modules ascending."""
    found: Map = {}
    for source, targets in sorted(names.items()):
        index = {name: i for i, name in enumerate(parts[source].writes)}
        found[str(source)] = {str(target): [index[name] for name in read] for target, read in sorted(targets.items())}
    return found


def _by_receiver(sent: Map) -> Map:
    """A sender's map with source and target swapped, both ascending as numbers."""
    targets = sorted({int(target) for found in sent.values() for target in found})
    return {str(t): {source: found[str(t)] for source, found in sent.items() if str(t) in found} for t in targets}


def _inputs(cascade: Cascade, index: int) -> list[str]:
    """The inputs of a module: from the module before, from earlier ones in their order, from outside."""
    sequential, residual = cascade.wiring.sequential, cascade.wiring.residual
    earlier = [name for source in sorted(residual) for name in residual[source].get(index, ())]
    given = fed(cascade, cascade.parts[index].reads)
    return list(dict.fromkeys((*sequential.get(index - 1, {}).get(index, ()), *earlier, *given)))


def _sizes_of_outputs(parts: Sequence[Part], maps: Mapping[str, Map], sizes: Mapping[str, int]) -> Content:
    """Bytes in the order of the maps; LinguaLinked sends the outputs of the last module to the first."""

    def sizes_of(source: int, targets: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        return {target: [sizes[parts[source].writes[i]] for i in indices] for target, indices in targets.items()}

    last = len(parts) - 1
    found = {str(i): {kind: sizes_of(i, sent.get(str(i), {})) for kind, sent in maps.items()} for i in range(last)}
    return {**found, str(last): {"seq": {"0": [sizes[tensor] for tensor in parts[last].writes]}, "res": {}}}
