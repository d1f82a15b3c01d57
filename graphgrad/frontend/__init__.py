"""Models come in here: ONNX files and Relax modules."""
