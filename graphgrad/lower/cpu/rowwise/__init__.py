"""Chains of stages that compute row by row: norms, softmax, losses, and their gradients.

`chain` recognizes such chains and proves that a loop over rows can do all of their stages; `emit`
writes that loop.
"""

from .chain import (
    MIN_STEP_ROWS,
    Accesses,
    Chain,
    Part,
    Role,
    chains_of,
    insert_chain,
    is_by_rows,
    rows_reduced,
)
from .emit import emit

__all__ = [
    "MIN_STEP_ROWS",
    "Accesses",
    "Chain",
    "Part",
    "Role",
    "chains_of",
    "emit",
    "insert_chain",
    "is_by_rows",
    "rows_reduced",
]
