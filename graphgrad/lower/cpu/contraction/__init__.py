"""Contractions: sums of products of two reads. Matrix products, convolutions, their gradients.

A tile of results is held in registers: some rows of a few vectors each. Along the vector axis one
factor is read as vectors, and along the row axes the other is broadcast, so that each value fetched
serves several multiply-adds. `plan` chooses the loops, `emit` writes the nest.
"""

from .border import unread
from .emit import emit
from .order import plan
from .plan import Loop, Plan
from .replace import blocks_of, nest_of, pays, replace_stages
from .store import EpilogueStore, PlainStore, ResultStore, result_store_of

__all__ = [
    "EpilogueStore",
    "Loop",
    "PlainStore",
    "Plan",
    "ResultStore",
    "blocks_of",
    "emit",
    "nest_of",
    "pays",
    "plan",
    "replace_stages",
    "result_store_of",
    "unread",
]
