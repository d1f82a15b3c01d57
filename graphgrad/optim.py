"""Optimizers for `graphgrad.train_step`."""

from .train.groups import group
from .train.optimizer import SGD, Adagrad, Adam, AdamW, RMSprop

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "group"]
