"""Horizontal fusion: maps that touch the same tensors, and maps that do the same to different ones.

Start with `maps`, the passes; `flat` says what a flat map is, `kernel` writes the joint one.
"""

from .maps import fuse_horizontally, mark_flat_maps

__all__ = ["fuse_horizontally", "mark_flat_maps"]
