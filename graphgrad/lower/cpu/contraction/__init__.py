"""Contractions as loop nests: matrix products, convolutions, and the gradients of both.

A contraction is a sum of products of two reads, its factors. A tile of results is held in
registers: some rows of a few vectors each. Along the vector axis one factor is read as vectors, and
along the row axes the elements of the other are broadcast, so that each value that is loaded serves
several multiply-adds. `plan` chooses the loops, and `emit` writes the nest.
"""

from .border import unread
from .emit import emit
from .order import plan
from .plan import Loop, Plan
from .replace import blocks_of, multiplies_pairs, nest_of, pays, replace_stages, stage_name
from .store import EpilogueStore, PlainStore, ResultStore, result_store_of

__all__ = [
    "EpilogueStore",
    "Loop",
    "PlainStore",
    "Plan",
    "ResultStore",
    "blocks_of",
    "emit",
    "multiplies_pairs",
    "nest_of",
    "pays",
    "plan",
    "replace_stages",
    "result_store_of",
    "stage_name",
    "unread",
]
