"""From an .onnx file to a Model, without reading its weights."""
