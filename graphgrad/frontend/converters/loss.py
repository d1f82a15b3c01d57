"""Losses that are part of the model."""

from __future__ import annotations

import math

from ...ir.tensor import Tensor
from ...ops import functional as op
from ...ops import losses
from .node import Node, converter

_NONE_IGNORED = -(2**31)
"""No label has this number: labels count from 0."""


@converter("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node: Node) -> Tensor:
    """−w[t] x[t] with the class axis second; the mean divides by Σ w[t]."""
    return _of_log_probabilities(node, node.tensor(0))


@converter("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(node: Node) -> tuple[Tensor, Tensor]:
    """The same of log softmax(x), which is the second output."""
    log_probabilities = op.log_softmax(node.tensor(0), axis=1)
    return _of_log_probabilities(node, log_probabilities), log_probabilities


def _of_log_probabilities(node: Node, log_probabilities: Tensor) -> Tensor:
    """The loss of a node; NaN where a label is out of range."""
    labels = node.tensor(1)
    ignored = node.attribute("ignore_index", _NONE_IGNORED)
    loss = losses.nll(
        log_probabilities,
        labels,
        weight=node.tensor(2) if node.has(2) else None,
        ignore_index=ignored,
        reduction=node.attribute("reduction", b"mean").decode(),
    )
    # A label out of range would count as ignored. A loss that is not finite is seen: its training
    # step changes nothing.
    is_valid = _in_range(log_probabilities, labels, ignored)
    if loss.ndim < labels.ndim:
        is_valid = op.greater(op.minimum_of(is_valid.astype("int32")), 0)
    return op.where(is_valid, loss, math.nan)


def _in_range(log_probabilities: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Whether each label is that of a class, or is ignored."""
    classes = log_probabilities.shape[1]
    inside = op.greater_equal(labels, 0)
    if isinstance(classes, int):
        inside = op.logical_and(inside, op.less(labels, classes))
    return op.logical_or(inside, op.equal(labels, ignored))
