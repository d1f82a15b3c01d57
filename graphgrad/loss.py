"""Losses for `graphgrad.train_step` and `graphgrad.value_and_grad`, with their settings."""

from .train.loss import bce, bce_with_logits, cross_entropy, huber, kl_div, l1, mse, nll, smooth_l1

__all__ = [
    "bce",
    "bce_with_logits",
    "cross_entropy",
    "huber",
    "kl_div",
    "l1",
    "mse",
    "nll",
    "smooth_l1",
]
