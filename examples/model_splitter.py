"""Use a model in parts as if it were whole.

python model_splitter.py MODEL INPUTS.npz DEVICES
"""

import sys

import numpy as np

import graphcut


def main(path: str, inputs: str, devices: str) -> None:
    """Run one input, then eight at a time, through as many workers."""
    feeds = dict(np.load(inputs))
    with graphcut.ModelSplitter(path, num_devices=int(devices)) as splitter:
        outputs = splitter.forward(feeds)  # an array if the model has a single output
        print("one input:", list(outputs) if isinstance(outputs, dict) else outputs.shape)
        done = list(splitter.pipeline.map([feeds] * 8))
        print(f"{len(done)} inputs through {len(splitter.cascade.parts)} parts")


if __name__ == "__main__":
    main(*sys.argv[1:])
