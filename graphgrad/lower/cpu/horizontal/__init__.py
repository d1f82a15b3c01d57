"""Kernels joined: maps that touch the same tensors, and maps that do the same to different ones."""

from .maps import with_flat_maps_told, with_maps_together

__all__ = ["with_flat_maps_told", "with_maps_together"]
