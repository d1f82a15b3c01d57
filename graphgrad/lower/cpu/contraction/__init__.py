"""Contractions: sums of products of two reads. Matrix products, convolutions, their gradients.

A tile of results is held in registers: some rows of a few vectors each. Along the vector axis one
factor is read as vectors, and along the row axes the other is broadcast, so that each value fetched
serves several multiply-adds. `plan` chooses the loops, `emit` writes the nest.
"""

from .border import unread
from .emit import emit
from .order import plan
from .plan import Loop, Plan
from .replace import blocks_of, nest_of, pays, with_nests
from .store import EpilogueSink, PlainSink, Sink, sink_of

__all__ = [
    "EpilogueSink",
    "Loop",
    "PlainSink",
    "Plan",
    "Sink",
    "blocks_of",
    "emit",
    "nest_of",
    "pays",
    "plan",
    "sink_of",
    "unread",
    "with_nests",
]
