"""The provenance of a binding: its ONNX node and the origin of its gradient, `read` from a span."""

from .ir.provenance import ORIGINS, Provenance, read

__all__ = ["ORIGINS", "Provenance", "read"]
