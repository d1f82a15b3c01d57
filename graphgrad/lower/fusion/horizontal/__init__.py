"""Horizontal fusion: of maps on the same tensors, and of equal maps on different tensors.

Start with `maps`, the passes. `flat` recognizes flat maps, `calls` finds their calls and the memory
that those access, `chain` composes maps on the same tensors, and `kernel` writes the fused kernel.
"""

from .maps import fuse_horizontally, mark_flat_maps

__all__ = ["fuse_horizontally", "mark_flat_maps"]
