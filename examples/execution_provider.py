"""Run a cascade with an execution provider.

    python execution_provider.py FOLDER INPUTS.npz PROVIDER [KEY=VALUE ...]

PROVIDER is one of `onnxruntime.get_available_providers()`, such as CUDAExecutionProvider with device_id=1.
"""

import sys

import numpy as np

import graphcut


def main(folder: str, inputs: str, provider: str, *options: str) -> None:
    """Print the outputs' shapes. Nodes that the provider can't run are run on the CPU by ONNX Runtime."""
    told = dict(option.split("=", 1) for option in options)
    config = graphcut.SessionConfig(provider=provider, options=told, threads=1)
    with graphcut.Runner(folder, config=config) as runner:
        for name, value in runner.run(dict(np.load(inputs))).items():
            print(name, value.shape, value.dtype)


if __name__ == "__main__":
    main(*sys.argv[1:])
