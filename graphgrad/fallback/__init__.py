"""Gradients of any tensor expression, synthesized from it.

Start with `gradient`, the walk over a graph of stages, and `backprop`, reverse mode on the body of
one. `contribution` is what comes of a read, `indices` inverts its index map, `forms` chooses how it
is computed, and `lowering` makes kernels of the result. `kernels` and `lift` do all of this for
kernels. ``docs/te-autodiff.md`` explains the method.
"""

from .lowering.prim_func import create_prim_func
from .scans.checkpoints import checkpointed

__all__ = ["checkpointed", "create_prim_func"]
