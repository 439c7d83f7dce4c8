"""Export a cascade as one model, whose nodes say which part they are in.

The metadata `layer_ann` of a node names its part, and the session option `session.layer_assignment_settings` maps parts
to kinds of devices (ONNX Runtime 1.26).
"""

from pathlib import Path
from typing import Final

import onnx
from onnx import NodeProto

from ..core.graph import grouped
from ..core.manifest import Cascade
from ..running.providers import facts_of
from ..surgery.merging import merge
from .cascade_files import Export

MODEL: Final = "model.onnx"
OPTIONS: Final = "session_options.json"
ANNOTATION: Final = "layer_ann"


def export_of(cascade: Cascade) -> Export:
    """One model with `layer_ann` metadata, and the session option that goes with it."""

    def write(path: Path) -> None:
        merge(cascade, path)
        model = onnx.load(path, load_external_data=False)
        # The home of a node is the first part that has it.
        protos = ((part, onnx.load(cascade.file(part), load_external_data=False)) for part in reversed(cascade.parts))
        homes = {_first_output(node): part.name for part, proto in protos for node in proto.graph.node}
        for node in model.graph.node:
            for entry in [entry for entry in node.metadata_props if entry.key == ANNOTATION]:
                node.metadata_props.remove(entry)
            node.metadata_props.add(key=ANNOTATION, value=homes[_first_output(node)])
        path.write_bytes(model.SerializeToString(deterministic=True))

    devices = (facts_of(cascade.settings(part).provider).device for part in cascade.parts)
    # = is an exact match; part-1 alone is part-10, too.
    rules = grouped((device, f"={part.name}") for device, part in zip(devices, cascade.parts, strict=True))
    setting = "; ".join(f"{device}({', '.join(names)})" for device, names in rules.items())
    return {MODEL: write, OPTIONS: {"session.layer_assignment_settings": setting}}


def _first_output(node: NodeProto) -> str:
    return next(filter(None, node.output))
