"""Mixed precision: which ops of a model compute in fewer bits, and the casts between them."""

from .choice import Precision

__all__ = ["Precision"]
