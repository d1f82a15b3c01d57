"""Gradients of any tensor expression, synthesized from it."""

from .lowering.prim_func import create_prim_func
from .scans.checkpoints import checkpointed

__all__ = ["checkpointed", "create_prim_func"]
