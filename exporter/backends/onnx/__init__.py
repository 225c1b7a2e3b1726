"""ONNX containers: one model a method, in operators of the standard alone."""
