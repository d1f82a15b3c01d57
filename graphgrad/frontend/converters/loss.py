"""Losses that are part of the model."""

from __future__ import annotations

from ...ops import functional as op
from ...ops import losses
from ...ops.tensor import Tensor
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
    return losses.nll(
        log_probabilities,
        node.tensor(1),
        weight=node.tensor(2) if node.has(2) else None,
        ignore_index=node.attribute("ignore_index", _NONE_IGNORED),
        reduction=node.attribute("reduction", b"mean").decode(),
    )
