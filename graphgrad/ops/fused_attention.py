"""Attention and its gradient as ops, so that lowering may compute them without a matrix of scores.

Dao, *FlashAttention-2* (2023), section 3.1: the forward pass keeps the logarithm of each row's sum
of exponentials, and from it the backward pass computes the weights again. Tensors are (batch,
heads, positions, features); the heads of keys and values divide those of queries, which share them
in groups. Half precision is computed in float32. Where no kernel of a target serves them, they are
lowered to products and maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError
from ..ir.tensor import Tensor, same_dimension, type_shape
from . import functional as op
from .attention import band, both, extent_tensor, grouped_product, scores
from .define import PREFIX, call_op, define_lowered
from .legalize import LEGALIZATIONS, legalization_by_ops

ATTENTION = f"{PREFIX}attention"
GRADIENT = f"{PREFIX}attention_gradient"

NOT_CAUSAL, TOP_LEFT, BOTTOM_RIGHT = "", "TopLeft", "BottomRight"
"""Values of the attribute ``causal``: query i attends all keys, or key j if j ≤ i, or if
j ≤ i + keys − queries."""


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    causal: str = NOT_CAUSAL,
) -> tuple[Tensor, Tensor]:
    """Emit y = softmax(scale · q kᵀ + bias) v, and the logarithms of the rows' sums.

    Parameters
    ----------
    query, key, value : Tensor
    bias : Tensor, optional
        Of rank 4; its extents are those of the scores, or 1. Where it is −∞ nothing is attended.
    scale : float
    causal : str
        One of the module's constants.

    Returns
    -------
    y : Tensor
        In the dtype of `query`; zero for a query that may attend no key.
    logsumexp : Tensor
        Of shape (batch, heads, queries), float32 or float64; ∞ for a query that may attend no key.
        Its digits are those of the largest score of a row. So a finite bias that is large in all of
        a row, as −1e9, leaves none for the gradient; −∞ is exact.
    """
    operands = [query, key, value, *([] if bias is None else [bias])]
    call = call_op(_ATTENTION, [t.expr for t in operands], scale=float(scale), causal=causal)
    y, logsumexp = query.emitter.emit(call)
    return y, logsumexp


def attention_gradient(
    operands: Sequence[Tensor], y: Tensor, logsumexp: Tensor, ct: Tensor, attrs: Any
) -> list[Tensor]:
    """Emit q̄, k̄, v̄ of `fused_attention`, given its operands, its results and ȳ."""
    query, key, value, *bias = operands
    arguments = [query, key, value, y, logsumexp, ct, *bias]
    call = call_op(
        _GRADIENT, [t.expr for t in arguments], scale=float(attrs.scale), causal=attrs.causal
    )
    gradients: list[Tensor] = query.emitter.emit(call)
    return gradients


def score_cotangent(
    operands: Sequence[Tensor], y: Tensor, logsumexp: Tensor, ct: Tensor, attrs: Any
) -> Tensor:
    """Emit the cotangent of the scores with their bias: w ∘ (ȳ vᵀ − Σ ȳ ∘ y)."""
    value = op.widen(operands[2])
    weights = weights_of(operands, logsumexp, attrs)
    inner = op.reduce_sum(op.widen(ct) * op.widen(y), [3], keepdims=True)
    return weights * (grouped_product(op.widen(ct), op.transpose(value)) - inner)


def gradients_of_scores(
    operands: Sequence[Tensor], slopes: Tensor, attrs: Any
) -> tuple[Tensor, Tensor]:
    """Emit q̄ and k̄, given the cotangent of the scores."""
    query, key = map(op.widen, operands[:2])
    slopes = slopes * float(attrs.scale)
    return grouped_product(slopes, key), _over_groups(slopes, query, key.shape[1])


def weights_of(operands: Sequence[Tensor], logsumexp: Tensor, attrs: Any) -> Tensor:
    """Emit the weights again: exp(scores − logsumexp), and zero where nothing is attended."""
    logits, allowed = _logits(operands, attrs)
    rows = op.reshape(logsumexp, [*logsumexp.shape, 1])
    weights = op.exp(logits - rows)
    return weights if allowed is None else op.where(allowed, weights, 0.0)


@dataclass(frozen=True)
class AttentionTypes:
    """The types of an attention's operands, which are checked.

    Raises
    ------
    ArgumentError
        They do not fit each other.
    """

    query: Any
    key: Any
    value: Any
    bias: Any | None
    causal: str

    def __post_init__(self) -> None:
        shapes = [type_shape(ty) for ty in (self.query, self.key, self.value)]
        if any(len(shape) != 4 for shape in shapes):
            raise ArgumentError(f"{ATTENTION}: operands are of rank 4, given {shapes}")
        (batch, heads, queries, features), key, value = shapes
        same = [(batch, key[0]), (batch, value[0]), (features, key[3])]
        same += [(key[1], value[1]), (key[2], value[2])]
        if not all(same_dimension(a, b) for a, b in same):
            raise ArgumentError(f"{ATTENTION}: the shapes {shapes} do not fit each other")
        known = isinstance(heads, int) and isinstance(key[1], int)
        if known and (key[1] == 0 or heads % key[1]):
            raise ArgumentError(f"{ATTENTION}: {key[1]} heads of keys do not divide {heads}")
        if self.causal not in (NOT_CAUSAL, TOP_LEFT, BOTTOM_RIGHT):
            raise ArgumentError(f"{ATTENTION}: causal={self.causal!r} is unknown")
        if len({str(ty.dtype) for ty in (self.query, self.key, self.value)}) != 1:
            raise ArgumentError(f"{ATTENTION}: query, key and value differ in dtype")
        if self.bias is not None:
            shape = type_shape(self.bias)
            pairs = list(zip(shape, [batch, heads, queries, key[2]], strict=False))
            if len(shape) != 4 or not all(
                same_dimension(a, 1) or same_dimension(a, b) for a, b in pairs
            ):
                raise ArgumentError(f"{ATTENTION}: a bias of shape {shape} does not fit {shapes}")

    @property
    def results(self) -> list[Any]:
        """The types of the result and of the logsumexp."""
        shape, value = type_shape(self.query), type_shape(self.value)
        dtype = str(self.query.dtype)
        wide = "float64" if dtype == "float64" else "float32"
        return [
            relax.TensorType([*shape[:3], value[3]], dtype),
            relax.TensorType(shape[:3], wide),
        ]


def _checked(query: Any, key: Any, value: Any, bias: Any, call: relax.Call) -> AttentionTypes:
    return AttentionTypes(query, key, value, bias, str(call.attrs["causal"]))


def _types(call: relax.Call) -> Any:
    types = [argument.ty for argument in call.args]
    bias = types[3] if len(types) > 3 else None
    query, key, value = types[:3]
    return relax.TupleType(_checked(query, key, value, bias, call).results)


def _gradient_types(call: relax.Call) -> Any:
    types = [argument.ty for argument in call.args]
    bias = types[6] if len(types) > 6 else None
    query, key, value = types[:3]
    results = _checked(query, key, value, bias, call).results
    given = [types[3], types[4], types[5]]
    expected = [results[0], results[1], results[0]]
    pairs = [(type_shape(a), type_shape(b)) for a, b in zip(given, expected, strict=True)]
    if not all(len(a) == len(b) and all(map(same_dimension, a, b)) for a, b in pairs):
        raise ArgumentError(f"{GRADIENT}: results of shapes {pairs} do not fit the operands")
    return relax.TupleType(types[:3])


def _logits(operands: Sequence[Tensor], attrs: Any) -> tuple[Tensor, Tensor | None]:
    """The scores with their bias, finite, and the mask of those that count; None for all."""
    query, key, _, *biases = operands
    query, key = op.widen(query), op.widen(key)
    logits = scores(query, key, float(attrs.scale))
    queries, keys = query.shape[2], key.shape[2]
    offset: Any = 0
    if attrs.causal == BOTTOM_RIGHT:
        offset = _difference(query, queries, keys)
    right = 0 if attrs.causal else None
    allowed = band(query.emitter, queries, keys, offset, None, right)
    for bias in biases:
        wide = op.widen(bias).astype(logits.dtype)
        logits = logits + wide
        allowed = both(allowed, op.greater(wide, -np.inf))
    if allowed is None:
        return logits, None
    # Finite: a row of −∞ alone would be NaN, and so would be its gradient, even behind the mask.
    return op.where(allowed, logits, float(np.finfo(logits.dtype).min)), allowed


def _difference(query: Tensor, queries: Any, keys: Any) -> Any:
    """The number of keys less that of queries: an int, or an int64 scalar."""
    if isinstance(queries, int) and isinstance(keys, int):
        return keys - queries
    return extent_tensor(query.emitter, keys) - extent_tensor(query.emitter, queries)


def _attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> list[Tensor]:
    """State attention in products, a maximum and a sum."""
    *bias, attrs = rest
    logits, allowed = _logits([query, key, value, *bias], attrs)
    maximum = op.maximum_of(logits, axis=3, keepdims=True)
    powers = op.exp(logits - maximum)
    if allowed is not None:
        powers = op.where(allowed, powers, 0.0)
    total = op.reduce_sum(powers, [3], keepdims=True)
    is_empty = op.equal(total, 0.0)
    weights = powers / op.where(is_empty, 1.0, total)
    y = grouped_product(weights, op.widen(value)).astype(query.dtype)
    logsumexp = op.where(is_empty, math.inf, maximum + op.log(op.where(is_empty, 1.0, total)))
    return [y, op.reshape(logsumexp, logsumexp.shape[:3])]


def _over_groups(rows: Tensor, x: Tensor, shared_heads: Any) -> Tensor:
    """The product rowsᵀ @ x of each head, summed over the heads of a group."""
    batch, heads, length, columns = rows.shape
    together = heads // shared_heads * length
    left = op.reshape(rows, [batch, shared_heads, together, columns])
    return op.transpose(left) @ op.reshape(x, [batch, shared_heads, together, x.shape[3]])


def state_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    y: Tensor,
    logsumexp: Tensor,
    ct: Tensor,
    *rest: Any,
) -> list[Tensor]:
    """State the gradient of attention in products and maps: all operands count, also y."""
    *bias, attrs = rest
    operands = [query, key, value, *bias]
    slopes = score_cotangent(operands, y, logsumexp, ct, attrs)
    of_query, of_key = gradients_of_scores(operands, slopes, attrs)
    of_value = _over_groups(weights_of(operands, logsumexp, attrs), op.widen(ct), key.shape[1])
    gradients = zip((of_query, of_key, of_value), (query, key, value), strict=True)
    return [gradient.astype(operand.dtype) for gradient, operand in gradients]


legalization_by_ops(ATTENTION)(_attend)
legalization_by_ops(GRADIENT)(state_gradient)

_ATTENTION = define_lowered(
    "attention",
    ["query", "key", "value", "bias"],
    _types,
    LEGALIZATIONS[ATTENTION],
    "softmax(scale · q kᵀ + bias) v, and the logarithms of the rows' sums",
)
_GRADIENT = define_lowered(
    "attention_gradient",
    ["query", "key", "value", "y", "logsumexp", "ct", "bias"],
    _gradient_types,
    LEGALIZATIONS[GRADIENT],
    "the gradient of attention",
)
