"""Kernels joined: maps that touch the same tensors, and maps that do the same to different ones."""

from .maps import fuse_horizontally, mark_flat_maps

__all__ = ["fuse_horizontally", "mark_flat_maps"]
