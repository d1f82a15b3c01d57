"""Chains of stages that compute row by row: norms, softmax, losses, and their gradients.

`chain` recognizes and proves them, `emit` writes the loop over rows that does all of their stages.
"""

from .chain import Chain, chain_of, is_by_rows, rows_reduced, with_chain
from .emit import emit

__all__ = ["Chain", "chain_of", "emit", "is_by_rows", "rows_reduced", "with_chain"]
