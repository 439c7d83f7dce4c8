"""Write ONNX models: parts of a model, and a model from its parts."""
