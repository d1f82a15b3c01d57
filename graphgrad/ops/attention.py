"""Scaled dot-product attention, written with the functions of `functional`.

Vaswani et al., *Attention is all you need* (2017), section 3.2.1. Tensors are laid out as batch,
heads, positions, features. Half precision is multiplied and added in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..ir.tensor import Dimension, Emitter, Tensor, same_dimension
from . import functional as op
from .legalize import legalization_by_ops


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scale: float | None,
    causal_mask: str | None,
    window_size: int | None,
) -> Tensor:
    """Attention of tensors in the layout of ``relax.op.nn.attention``.

    That is batch, positions, heads, features.

    Parameters
    ----------
    query, key, value : Tensor
        The heads of `key` and `value` divide those of `query`, which share them in groups.
    bias : Tensor, optional
        Added to the scores (batch, heads, queries, keys); where it is −∞ nothing is attended.
    scale : float, optional
        Of the scores; 1/√d for d features where it is None.
    causal_mask : "TopLeft", "BottomRight" or None
        Query i attends key j if j ≤ i, or if j ≤ i + |keys − queries|.
    window_size : int, optional
        A query attends this many keys: its own position and those before it.

    Returns
    -------
    Tensor
        In the dtype of `query`. A query that may attend no key gives zeros.
    """
    q, k, v = (op.permute_dims(op.widen(t), [0, 2, 1, 3]) for t in (query, key, value))
    queries, keys = q.shape[2], k.shape[2]
    offset = _distance(q.emitter, queries, keys) if causal_mask == "BottomRight" else 0
    # Both masks end at the query's own key; only a window has a first key as well.
    right = 0 if causal_mask or window_size else None
    left = window_size - 1 if window_size else None
    allowed = band(q.emitter, queries, keys, offset, left, right)
    logits = scores(q, k, scale)
    if bias is not None:
        bias = op.widen(bias)
        logits = logits + bias
        allowed = both(allowed, op.greater(bias, -np.inf))
    y = grouped_product(masked_softmax(logits, allowed), v)
    return op.permute_dims(y, [0, 2, 1, 3]).astype(query.dtype)


def scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """The products q · k of all queries and keys, times `scale`, or 1/√d where that is None."""
    features = query.shape[-1]
    if scale is not None:
        query = query * scale
    elif isinstance(features, int):
        query = query * features**-0.5
    else:
        one = query.emitter.full(1.0, [], query.dtype)
        query = query * op.sqrt(op.divide_by_count(one, [features]))
    return grouped_product(query, op.transpose(key))


def grouped_product(x: Tensor, y: Tensor) -> Tensor:
    """The product x @ y for each head of `x`, whose heads share those of `y` in groups.

    Head h of x is multiplied by head h // (heads of x / heads of y) of y (grouped-query attention).
    """
    batch, heads, rows, terms = x.shape
    shared_heads = y.shape[1]
    # The heads of a group lie one after the other: together they are the rows of one product.
    product = op.reshape(x, [batch, shared_heads, heads // shared_heads * rows, terms]) @ y
    return op.reshape(product, [batch, heads, rows, y.shape[3]])


def masked_softmax(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """The softmax over the last axis where `allowed`, and zero elsewhere.

    A row in which nothing is allowed is zero, and so are its derivatives.
    """
    if allowed is None:
        return op.softmax(logits, axis=-1)
    # Finite: a row of −∞ alone would be NaN, and so would be its gradient, even behind the mask.
    lowest = float(np.finfo(logits.dtype).min)
    weights = op.softmax(op.where(allowed, logits, lowest), axis=-1)
    return op.where(allowed, weights, 0.0)


def band(
    emitter: Emitter,
    queries: Dimension,
    keys: Dimension,
    offset: Any,
    left: int | None,
    right: int | None,
) -> Tensor | None:
    """The mask that lets query i attend key j if i + offset − left ≤ j ≤ i + offset + right.

    `offset` is a number, or an integer tensor that broadcasts against (queries, keys). A bound that
    is None is open. None is returned where both are: every query attends every key.
    """
    if left is None and right is None:
        return None
    position = op.reshape(op.indices(emitter, queries), [queries, 1])
    distance = op.reshape(op.indices(emitter, keys), [1, keys]) - position - offset
    before = None if left is None else op.greater_equal(distance, -left)
    after = None if right is None else op.less_equal(distance, right)
    return both(before, after)


def _distance(emitter: Emitter, a: Dimension, b: Dimension) -> Any:
    """The distance |a − b|: a number, or an int64 scalar where it is symbolic."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b)
    if same_dimension(a, b):
        return 0
    return op.abs(extent_tensor(emitter, a) - extent_tensor(emitter, b))


def extent_tensor(emitter: Emitter, extent: Dimension) -> Tensor:
    """An extent as an int64 scalar."""
    shape = emitter.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
    return op.reshape(shape, [])


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The conjunction of two masks, of which None is true everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return op.logical_and(first, second)


@legalization_by_ops("relax.nn.attention")
def attention(query: Tensor, key: Tensor, value: Tensor, attrs: Any) -> Tensor:
    """Lower attention to matrix products and a softmax.

    The stock form has no window; it reads past the end of key and value where heads share them,
    computes half precision in half precision, and masks by zeros before it takes the maximum, which
    makes NaN of a row whose scores are all far below zero.
    """
    return attend(query, key, value, None, attrs.scale, attrs.causal_mask, attrs.window_size)


@legalization_by_ops("relax.nn.attention_bias")
def attention_bias(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, attrs: Any) -> Tensor:
    """Lower attention with a bias on the scores, as `attention`."""
    return attend(query, key, value, bias, attrs.scale, attrs.causal_mask, attrs.window_size)
