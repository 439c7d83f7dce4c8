"""Running a cascade, in this process (`in_process`), on workers (`executors`, `scheduling`), or as a decoder.

Needs numpy, onnxruntime, msgspec and `core` only: a machine that runs parts installs no onnx.
"""
