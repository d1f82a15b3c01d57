"""Normalizations, softmax and dropout; what has a training form keeps it.

TVM's importer trains on running statistics that are constants, gives a batch norm's tuple zeros for
its new variance, and leaves dropouts out.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.norm import normalize
from .node import Node, converter


@converter("_softmax.default")
def softmax(node: Node, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """exp x / Σ exp x along an axis."""
    return op.softmax(x.astype(node.dtype), dim)


@converter("_log_softmax.default")
def log_softmax(node: Node, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """x − log Σ exp x along an axis."""
    return op.log_softmax(x.astype(node.dtype), dim)


@converter("native_layer_norm.default")
def layer_norm(
    node: Node, x: Tensor, shape: list[Any], gamma: Any, beta: Any, epsilon: float
) -> list[Tensor]:
    """γ (x − μ) / √(σ² + ε) + β over the last axes."""
    axes = list(range(x.ndim - len(shape), x.ndim))
    if gamma is None or beta is None:
        return [normalize(x, axes, epsilon, gamma, beta, axes)]
    call = relax.op.nn.layer_norm(x.expr, gamma.expr, beta.expr, axes=axes, epsilon=epsilon)
    return [node.emitter.emit(call)]


@converter("native_group_norm.default")
def group_norm(
    node: Node,
    x: Tensor,
    gamma: Any,
    beta: Any,
    batch: Dimension,
    channels: Dimension,
    size: Dimension,
    groups: int,
    epsilon: float,
) -> list[Tensor]:
    """γ (x − μ) / √(σ² + ε) + β, with the statistics of groups of channels."""
    extent = x.shape[1]
    call = relax.op.nn.group_norm(
        x.expr,
        *_scale_and_shift(node, gamma, beta, [extent], x.dtype),
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, x.ndim)),
        epsilon=epsilon,
    )
    return [node.emitter.emit(call)]


@converter("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    node: Node, x: Tensor, gamma: Any, beta: Any, mean: Tensor, variance: Tensor, *settings: float
) -> list[Tensor]:
    """γ (x − μ) / √(σ² + ε) + β with running statistics."""
    return _batch_norm(node, x, gamma, beta, mean, variance, False, *settings)[:1]


@converter("_native_batch_norm_legit_functional.default")
def batch_norm(
    node: Node,
    x: Tensor,
    gamma: Any,
    beta: Any,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
) -> list[Tensor]:
    """γ (x − μ) / √(σ² + ε) + β, in training form with the statistics of the batch.

    Behind it come the mean and deviation of the batch, which nothing reads, and the new statistics:
    that of a model are taken where a form is chosen (`frontend.mode`).
    """
    y, *new = _batch_norm(node, x, gamma, beta, mean, variance, training, momentum, epsilon)
    return [y, *new, *new]


@converter("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    node: Node, x: Tensor, gamma: Any, beta: Any, training: bool, momentum: float, epsilon: float
) -> list[Tensor]:
    """γ (x − μ) / √(σ² + ε) + β with the statistics of the batch, in either form."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    return [normalize(x, axes, epsilon, gamma, beta, [1])]


def _batch_norm(
    node: Node,
    x: Tensor,
    gamma: Any,
    beta: Any,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
) -> list[Tensor]:
    call = relax.op.nn.batch_norm(
        x.expr,
        *_scale_and_shift(node, gamma, beta, mean.shape, mean.dtype),
        mean.expr,
        variance.expr,
        axis=1,
        epsilon=epsilon,
        momentum=momentum,
        training=training,
    )
    return node.emitter.emit(call)


def _scale_and_shift(node: Node, gamma: Any, beta: Any, shape: list[Any], dtype: str) -> list[Any]:
    """γ and β as expressions: 1 and 0 where they are left out."""
    pairs = ((gamma, 1.0), (beta, 0.0))
    return [(node.full(n, shape, dtype) if x is None else x).expr for x, n in pairs]


@converter("dropout.default")
def dropout(node: Node, x: Tensor, rate: float, training: bool) -> Tensor:
    """x, of which a share is zero and the rest is scaled up, in training form."""
    return node.emitter.emit(relax.op.nn.dropout(x.expr, rate))[0]
