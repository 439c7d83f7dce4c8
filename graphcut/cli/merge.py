"""The command `graphcut merge`."""

from pathlib import Path
from typing import Annotated

from .common_options import CascadePath, Force, Output, open_
from .output import say


def merge(
    cascade_path: CascadePath,
    output: Annotated[Path, Output(help="The .onnx file.")],
    force: Force = False,
) -> None:
    """Merge the parts of a cascade into one model."""
    from ..loading.fingerprint import graph_digest
    from ..surgery.merging import merge as merged

    cascade = open_(cascade_path)
    model = merged(cascade, output, force=force)
    is_original = graph_digest(model.proto) == cascade.manifest.source.graph
    say(f"wrote {output}: its graph equals that of the original model" if is_original else f"wrote {output}")
