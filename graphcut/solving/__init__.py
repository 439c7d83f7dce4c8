"""The algorithms: arrays in, partitions out. No ONNX, no names."""
