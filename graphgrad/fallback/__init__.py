"""Gradients of any tensor expression, synthesised from it."""

from .checkpoints import checkpointed
from .prim_func import create_prim_func

__all__ = ["checkpointed", "create_prim_func"]
