"""What a model takes when it runs: seconds and bytes for each module, measured in ONNX Runtime piece by piece."""
