"""graphgrad: gradients of ONNX and Relax models, as ordinary Relax."""

__version__ = "0.1.0"
