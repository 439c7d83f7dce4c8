"""Running a cascade: `stage` is one part that is loaded, and one file a way to run them all.

Needs numpy, onnxruntime and the manifest reader, and nothing else: a worker installs no onnx.
"""
