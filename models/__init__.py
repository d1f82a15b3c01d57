"""ONNX model builders, written with `onnx.helper`, and the digits data set."""
