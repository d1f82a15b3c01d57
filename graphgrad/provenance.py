"""Which ONNX node, and which kind of rule, a binding comes from: `read` the span of its call."""

from .ir.provenance import ORIGINS, Provenance, read

__all__ = ["ORIGINS", "Provenance", "read"]
