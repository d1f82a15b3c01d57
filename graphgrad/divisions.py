"""A rewrite of integer divisions so that TVM keeps their value, for kernels you fuse yourself."""

from .ir.exact_divisions import write_exact_divisions as with_exact_divisions

__all__ = ["with_exact_divisions"]
