"""Chains of stages that compute row by row: norms, softmax, losses, and their gradients.

`chain` recognizes and proves them, `emit` writes the loop over rows that does all of their stages.
"""

from .chain import Chain, chain_of, insert_chain, is_by_rows, rows_reduced
from .emit import emit

__all__ = ["Chain", "chain_of", "emit", "insert_chain", "is_by_rows", "rows_reduced"]
