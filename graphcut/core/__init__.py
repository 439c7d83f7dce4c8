"""What the library and the parts at work both need: graph, manifest, errors, files. No ONNX."""
