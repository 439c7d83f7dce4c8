"""Running a cascade: `stage` is one part that is loaded; folders hold the ways to run them all, and who runs them.

Needs numpy, onnxruntime and the manifest reader, and nothing else: a worker installs no onnx.
"""
