"""Optimisers for `graphgrad.train_step`."""

from .train.optimizer import SGD

__all__ = ["SGD"]
