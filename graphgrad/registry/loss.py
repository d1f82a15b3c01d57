"""Rules of losses."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..ir.tensor import Tensor
from ..ops import functional as op
from .rule import bilinear, register_gradient
from .sample import Sample, sample, tensor


@bilinear(
    "relax.nn.cross_entropy_with_logits",
    samples=[sample((2, 3), (2, 3)), sample((3,), (3,)), sample(("n", 3), ("n", 3))],
)
def cross_entropy_with_logits(x: Tensor, y: Tensor, ct: Tensor) -> tuple[Tensor, Tensor]:
    """Of z = −Σ x y / n:  x̄ = −z̄ y / n,  ȳ = −z̄ x / n"""
    scaled = -(op.divide_by_count(ct, x.shape[:1]) if x.ndim > 1 else ct)
    return scaled * y, scaled * x


def _nll_samples() -> list[Sample]:
    labels, pixels = tensor((4,), 0, 3, dtype="int64"), tensor((2, 2, 3), 0, 3, dtype="int64")
    weights = tensor((3,), 0.5, 1.5)
    return [
        *(sample((4, 3), labels, reduction=r) for r in ("mean", "sum", "none")),
        *(sample((4, 3), labels, weights, reduction=r) for r in ("mean", "sum", "none")),
        sample((4, 3), labels, weights, reduction="mean", ignore_index=1),
        sample((2, 3, 2, 3), pixels, weights, reduction="mean"),
        sample((3,), tensor((), 0, 3, dtype="int64"), reduction="mean"),
        sample((3,), tensor((), 0, 3, dtype="int32"), weights, reduction="sum"),
    ]


@register_gradient("relax.nn.nll_loss", samples=_nll_samples())
def nll_loss(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Any, ...]:
    """Of yᵢ = −w[tᵢ] p[i, tᵢ]:  p̄ = −w ȳᵢ and w̄ = −p ȳᵢ at the targets, divided by Σ w for the mean

    For the mean, y = Σ yᵢ / W with W = Σ w[tᵢ]; so w̄ also has −ȳ y / W for each target that counts.
    """
    (predictions, targets, *weights), (y,), (ct,) = inputs, outputs, cotangents
    p, y, ct = op.widen(predictions), op.widen(y), op.widen(ct)
    classes_axis = min(1, p.ndim - 1)
    along_classes = [1] * p.ndim
    along_classes[classes_axis] = p.shape[classes_axis]
    other_axes = [axis for axis in range(p.ndim) if axis != classes_axis]

    def per_target(t: Tensor) -> Tensor:
        return op.expand_dims(t, [classes_axis]) if t.ndim == targets.ndim else t

    class_numbers = relax.op.arange(0, along_classes[classes_axis], 1, targets.dtype)
    classes = op.reshape(p.emitter.emit(class_numbers), along_classes)
    # A choice, not a product: an infinite p elsewhere, or W = 0, must not make a NaN of it.
    at_target = op.logical_and(
        op.equal(per_target(targets), classes),
        op.not_equal(per_target(targets), attrs.ignore_index),
    )
    w = (
        op.reshape(op.widen(weights[0]), along_classes)
        if weights
        else p.emitter.full(1.0, [], p.dtype)
    )

    mean = attrs.reduction == "mean"
    if mean:
        extent = p.shape[classes_axis]
        counted = at_target
        if not weights and isinstance(extent, int):
            # Of the targets alone: classes may be many.
            label = targets.astype("int64")
            is_class = op.logical_and(op.greater_equal(label, 0), op.less(label, extent))
            counted = op.logical_and(op.not_equal(targets, attrs.ignore_index), is_class)
        ct = ct / op.reduce_sum(op.where(counted, w, 0.0))
    ct = per_target(ct) if attrs.reduction == "none" else ct
    p_bar = op.where(at_target, -(w * ct), 0.0)
    if not weights:
        return p_bar, None
    slope = p + y if mean else p
    return p_bar, None, op.reduce_sum(op.where(at_target, -(slope * ct), 0.0), other_axes)
