"""What planning, splitting and running all need: graph, manifest, errors, files. Imports no ONNX."""
