"""Run parts in this process.

Needs numpy, onnxruntime, msgspec and `core` only: a machine that runs parts installs no onnx.
"""
