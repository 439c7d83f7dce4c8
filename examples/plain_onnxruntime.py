"""Run a cascade without graphcut.

python plain_onnxruntime.py FOLDER INPUTS.npz OUTPUTS.npz
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(folder: str, inputs: str, outputs: str) -> None:
    """Run the parts one after the other; a tensor is dropped after its last reader."""
    manifest = json.loads((Path(folder) / "cascade.json").read_text())
    tensors = dict(np.load(inputs))
    last = {name: i for i, part in enumerate(manifest["parts"]) for name in part["reads"]}
    last |= dict.fromkeys(manifest["writes"], len(manifest["parts"]))
    for i, part in enumerate(manifest["parts"]):
        session = ort.InferenceSession(Path(folder) / part["file"])
        fed = {name: tensors[name] for name in part["reads"] if name in tensors}  # one with a default may be missing
        made = session.run(part["writes"], fed)
        tensors |= zip(part["writes"], made, strict=True)
        tensors = {name: value for name, value in tensors.items() if last.get(name, -1) > i}
    np.savez(outputs, **{name: tensors[name] for name in manifest["writes"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
