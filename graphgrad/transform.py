"""Passes: `Gradient`, a drop-in for ``relax.transform.Gradient``, and `MixedPrecision`."""

from .autodiff.transform import Gradient
from .precision.transform import MixedPrecision

__all__ = ["Gradient", "MixedPrecision"]
