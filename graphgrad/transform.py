"""Passes: `Gradient`, a drop-in for ``relax.transform.Gradient``."""

from .autodiff.transform import Gradient

__all__ = ["Gradient"]
