"""Lowerings of normalizations, in every float dtype.

The stock ones refuse float64 and bfloat16, or compute float64 in float32; group and instance norm
take E[x²] − E[x]², which has no digit left where the mean is large; half precision is rounded
before γ and β; axes must be sorted and non-negative, and ``center`` and ``scale`` are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ir.tensor import Emitter, Tensor
from .. import functional as op
from .. import normalization
from ..moments import moments
from .table import Legalization, legalization


def _from_tensors(state: Callable[..., Tensor]) -> Legalization:
    """Make a lowering of a function that states the op, given its inputs and its attributes."""

    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        emitter = Emitter(builder)
        with emitter.at(call.span, ""):
            inputs = [emitter.lift(argument) for argument in call.args]
            return state(*inputs, call.attrs).expr

    return lower


@legalization("relax.nn.batch_norm")
def batch_norm(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower batch norm: outputs and running statistics in the dtype of the input.

    The stock form reads what it trains on three times, adds up float16 in float16, and fails on a
    negative axis when it trains.
    """
    emitter, attrs = Emitter(builder), call.attrs
    dtype = str(call.args[0].ty.dtype)
    with emitter.at(call.span, ""):
        x, gamma, beta, *running = (op.widen(emitter.lift(argument)) for argument in call.args)
        axis = int(attrs.axis) % x.ndim

        def per_channel(t: Tensor) -> Tensor:
            return normalization.spread(t, [axis], x.ndim)

        if attrs.training:
            batch = moments(x, [a for a in range(x.ndim) if a != axis])
            mean, variance = (op.reshape(statistic, gamma.shape) for statistic in batch)
            # Relax's momentum is the share of the batch; ONNX's is that of the old statistic.
            old_share, new_share = 1.0 - float(attrs.momentum), float(attrs.momentum)
            running = [
                old_share * old + new_share * new
                for old, new in zip(running, (mean, variance), strict=True)
            ]
        else:
            mean, variance = running
        slope = normalization.inverse_deviation(variance, float(attrs.epsilon))
        slope = gamma * slope if attrs.scale else slope
        y = (x - per_channel(mean)) * per_channel(slope)
        y = y + per_channel(beta) if attrs.center else y
        return relax.Tuple([output.astype(dtype).expr for output in (y, *running)])


@legalization("relax.nn.group_norm")
@_from_tensors
def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower group norm: a group of channels has statistics in common, taken over the axes too."""
    axis = int(attrs.channel_axis) % x.ndim
    groups = int(attrs.num_groups)
    y = normalization.normalize(
        normalization.in_groups(x, axis, groups),
        normalization.group_axes(op.normalize_axes([int(a) for a in attrs.axes], x.ndim), axis),
        attrs.epsilon,
        normalization.in_groups(gamma, 0, groups) if attrs.scale else None,
        normalization.in_groups(beta, 0, groups) if attrs.center else None,
        [axis, axis + 1],
    )
    return op.reshape(y, x.shape)


@legalization("relax.nn.instance_norm")
@_from_tensors
def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower instance norm: γ and β lie along the channel axis."""
    return normalization.normalize(
        x,
        op.normalize_axes([int(a) for a in attrs.axes], x.ndim),
        attrs.epsilon,
        gamma if attrs.scale else None,
        beta if attrs.center else None,
        [int(attrs.channel_axis) % x.ndim],
    )


@legalization("relax.nn.layer_norm")
@_from_tensors
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, attrs: Any) -> Tensor:
    """Lower layer norm: γ and β have the extents of the axes, in their order."""
    axes = op.normalize_axes([int(a) for a in attrs.axes], x.ndim)
    gamma_or_none = gamma if attrs.scale else None
    beta_or_none = beta if attrs.center else None
    return normalization.normalize(x, axes, attrs.epsilon, gamma_or_none, beta_or_none, axes)


@legalization("relax.nn.rms_norm")
@_from_tensors
def rms_norm(x: Tensor, gamma: Tensor, attrs: Any) -> Tensor:
    """Lower RMS norm: no mean is subtracted."""
    axes = op.normalize_axes([int(a) for a in attrs.axes], x.ndim)
    return normalization.normalize(x, axes, attrs.epsilon, gamma, None, axes, center=False)
