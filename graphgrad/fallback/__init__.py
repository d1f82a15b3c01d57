"""Gradients of any tensor expression, synthesised from it."""

from .prim_func import create_prim_func

__all__ = ["create_prim_func"]
