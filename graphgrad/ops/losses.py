"""Losses as functions of tensors, with the meaning and the defaults of ``torch.nn.functional``.

Each is written in ops that have gradient rules, so that it differentiates to any order, in its
targets and weights too where those are floats. ``reduction`` is ``"mean"``, ``"sum"`` or
``"none"``; sums of half precision are taken in float32.

Tensors are *logits* (N, classes, …) with *labels* (N, …) of an integer dtype, or pairs of one
shape. All functions raise `ArgumentError` for a reduction that is unknown and `ModelError` for
shapes or dtypes that do not fit.
"""

from __future__ import annotations

import math

from ..errors import ArgumentError, ModelError
from ..ir.tensor import Tensor, is_float, same_shape
from ..layout import orders
from ..layout.rule import (
    LaidOut,
    Site,
    as_in_model,
    layout_rule,
)
from . import functional as op

_REDUCTIONS = ("mean", "sum", "none")

_LEAST_LOG = -100.0
"""Where `bce` cuts logarithms off: a probability of 0 or 1 gives a finite loss."""


def mse(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(x − t)²."""
    difference = _difference(x, target)
    return _reduce(difference * difference, reduction)


def l1(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|x − t|, with slope 0 at 0."""
    return _reduce(op.abs(_difference(x, target)), reduction)


def smooth_l1(x: Tensor, target: Tensor, *, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """(x − t)² / 2β where |x − t| < β, else |x − t| − β/2; |x − t| where β = 0.

    Raises
    ------
    ArgumentError
        ``beta`` is negative.
    """
    if beta < 0:
        raise ArgumentError(f"beta={beta!r} is negative; a smooth L1 loss takes 0 or more")
    if beta == 0:
        return l1(x, target, reduction=reduction)
    difference = _difference(x, target)
    distance = op.abs(difference)
    near = (0.5 / beta) * (difference * difference)
    return _reduce(op.where(op.less(distance, beta), near, distance - 0.5 * beta), reduction)


def huber(x: Tensor, target: Tensor, *, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """(x − t)² / 2 where |x − t| ≤ δ, else δ (|x − t| − δ/2). Huber 1964.

    Raises
    ------
    ArgumentError
        ``delta`` is not positive.
    """
    if delta <= 0:
        raise ArgumentError(f"delta={delta!r} is not positive; a Huber loss takes more than 0")
    difference = _difference(x, target)
    distance = op.abs(difference)
    near, far = 0.5 * (difference * difference), delta * (distance - 0.5 * delta)
    return _reduce(op.where(op.less_equal(distance, delta), near, far), reduction)


def bce(
    probabilities: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """−w (t log p + (1 − t) log(1 − p)), with logarithms of at least −100.

    Where a logarithm is cut off its slope is 0.
    """
    _check_pair(probabilities, target)
    likelihood = target * _bounded_log(probabilities) + (1.0 - target) * _bounded_log(
        1.0 - probabilities
    )
    return _reduce(_weighted(-likelihood, weight), reduction)


def bce_with_logits(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """−w (p t log σ(x) + (1 − t) log(1 − σ(x))), without computing σ(x).

    −log σ(x) = max(−x, 0) + log(1 + exp(−|x|)), and x more than that for 1 − σ.
    """
    _check_pair(logits, target)
    negative_log_sigmoid = softplus(-logits)
    factor = 1.0 if pos_weight is None else 1.0 + (pos_weight - 1.0) * target
    loss = (1.0 - target) * logits + factor * negative_log_sigmoid
    return _reduce(_weighted(loss, weight), reduction)


def kl_div(
    log_probabilities: Tensor,
    target: Tensor,
    *,
    log_target: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """t (log t − x), the terms of KL(t ‖ eˣ); with ``log_target``, eᵗ (t − x).

    Where t = 0 the term is 0. ``reduction`` may also be ``"batchmean"``: the sum over the first
    extent, which is the divergence of a batch of distributions.
    """
    x = log_probabilities
    _check_pair(x, target)
    if log_target:
        terms = op.exp(target) * (target - x)
    else:
        # The inner choice keeps log 0 out of the gradient too, which would be NaN behind a mask.
        absent = op.equal(target, 0.0)
        terms = op.where(absent, 0.0, target * (op.log(op.where(absent, 1.0, target)) - x))
    if reduction == "batchmean":
        return op.divide_by_count(op.reduce_sum(terms), x.shape[:1])
    return _reduce(terms, reduction)


def nll(
    log_probabilities: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """−w[t] x[t]; the mean divides by Σ w[t]. Labels that equal ``ignore_index`` do not count."""
    _check_labels(log_probabilities, labels)
    _check_reduction(reduction)
    weights = [] if weight is None else [weight]
    attributes = {"reduction": reduction, "ignore_index": ignore_index}
    return op.nll_loss(log_probabilities, labels, *weights, **attributes)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """−w[t] log softmax(x)[t]; the share ε of ``label_smoothing`` is spread over all classes.

    ``labels`` of a float dtype and the shape of the logits are class probabilities: the loss is
    then −Σ w t log softmax(x), and its mean is over the batch and positions.

    Raises
    ------
    ArgumentError
        ``label_smoothing`` is not between 0 and 1.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing={label_smoothing!r} is not between 0 and 1")
    axis = min(1, logits.ndim - 1)
    log_probabilities = op.log_softmax(logits, axis=axis)
    if is_float(labels.dtype):
        return _soft_cross_entropy(log_probabilities, labels, weight, label_smoothing, reduction)
    hard = nll(
        log_probabilities, labels, weight=weight, ignore_index=ignore_index, reduction=reduction
    )
    if label_smoothing == 0.0:
        return hard
    spread = _spread(log_probabilities, labels, axis, weight, ignore_index, reduction)
    return (1.0 - label_smoothing) * hard + label_smoothing * spread


def _soft_cross_entropy(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    reduction: str,
) -> Tensor:
    _check_pair(log_probabilities, target)
    axis = min(1, target.ndim - 1)
    if label_smoothing:
        share = op.divide_by_count(target.emitter.full(1.0, [], target.dtype), [target.shape[axis]])
        target = (1.0 - label_smoothing) * target + label_smoothing * share
    terms = _weighted(target * log_probabilities, _along(weight, axis, target.ndim))
    return _reduce(-op.reduce_sum(terms, [axis]), reduction)


def _spread(
    log_probabilities: Tensor,
    labels: Tensor,
    axis: int,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """−Σ w log p / classes over all classes: what label smoothing mixes in."""
    x = log_probabilities
    terms = -op.reduce_sum(_weighted(x, _along(weight, axis, x.ndim)), [axis])
    counted = op.not_equal(labels, ignore_index)
    loss = op.where(counted, op.divide_by_count(terms, [x.shape[axis]]), 0.0)
    if reduction == "none":
        return loss
    total = op.reduce_sum(loss)
    if reduction == "sum":
        return total
    ones = x.emitter.full(1.0, x.shape, x.dtype)
    # The divisor of the mean is that of `nll`: the weights of the labels that count. The loss of
    # log probabilities that are all 1 is its negative.
    return total / -nll(ones, labels, weight=weight, ignore_index=ignore_index, reduction="sum")


def softplus(x: Tensor) -> Tensor:
    """The function log(1 + eˣ) in a form that neither overflows nor has a kink."""
    # Above 40 it is x: e⁻⁴⁰ is lost in rounding, in float64 too.
    return op.softplus(x, beta=1.0, threshold=40.0)


def _bounded_log(x: Tensor) -> Tensor:
    return op.maximum(op.log(x), _LEAST_LOG)


def _along(weight: Tensor | None, axis: int, rank: int) -> Tensor | None:
    """Class weights in a shape that broadcasts along the axis of classes."""
    if weight is None:
        return None
    return op.reshape(weight, [weight.shape[0] if a == axis else 1 for a in range(rank)])


def _weighted(terms: Tensor, weight: Tensor | None) -> Tensor:
    return terms if weight is None else weight * terms


def _difference(x: Tensor, target: Tensor) -> Tensor:
    """The difference x − t of a pair that fits."""
    _check_pair(x, target)
    return x - target


def _reduce(terms: Tensor, reduction: str) -> Tensor:
    """The terms of a loss, reduced as asked; half precision adds up in float32."""
    _check_reduction(reduction)
    if reduction == "none":
        return terms
    total = op.reduce_sum(op.widen(terms))
    if reduction == "mean":
        total = op.divide_by_count(total, terms.shape)
    return total.astype(terms.dtype)


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r} is unknown; give one of {_REDUCTIONS}")


def _check_pair(x: Tensor, target: Tensor) -> None:
    if not same_shape(x.shape, target.shape) or x.dtype != target.dtype or not is_float(x.dtype):
        raise ModelError(
            f"the loss takes two float tensors of one shape and dtype, given {x.dtype} of shape "
            f"{x.shape} and {target.dtype} of shape {target.shape}; reshape or cast the target"
        )


def _check_labels(x: Tensor, labels: Tensor) -> None:
    expected = [*x.shape[:1], *x.shape[2:]] if x.ndim > 1 else []
    if not same_shape(labels.shape, expected) or is_float(labels.dtype):
        raise ModelError(
            f"the loss takes integer labels of shape {expected} for scores of shape {x.shape}, "
            f"given {labels.dtype} of shape {labels.shape}"
        )


@layout_rule("relax.nn.nll_loss")
def nll_loss_layout(site: Site) -> LaidOut | None:
    """The loss of channels-last images, reduced to a scalar, is that of a matrix of their pixels.

    So the pixels become rows, and the classes need not be moved back to axis 1.
    """
    x, targets, *weights = site.operands
    order = orders.channels_last(x.rank)
    if x.rank < 3 or x.preferred != order or site.attributes.reduction == "none":
        return None
    *positions, classes = orders.extents(x.shape, order)
    if not all(isinstance(extent, int) for extent in positions):
        return None
    count = math.prod(positions)
    rows = x.reshaped(order, [count, classes])
    labels = targets.reshaped(orders.own(targets.rank), [count])
    return site.passed([rows, labels, *map(as_in_model, weights)], ())
