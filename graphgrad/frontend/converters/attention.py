"""Attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.attention import band, both, extent_tensor, grouped_product, masked_softmax, scores
from .node import Node, converter


@converter("Attention")
def attention(node: Node) -> tuple[Tensor, ...]:
    """softmax(cap(scale · q kᵀ) + mask) v, with grouped heads and a cache of keys and values.

    Keys that the mask, the causal order, the window and the padding forbid are left out; a query
    for which none remains gives zeros.
    """
    query, key, value = (node.tensor(index) for index in range(3))
    is_flat = query.ndim == 3
    if is_flat:
        heads, kv_heads = int(node.attribute("q_num_heads")), int(node.attribute("kv_num_heads"))
        query = _split_heads(query, heads)
        key, value = _split_heads(key, kv_heads), _split_heads(value, kv_heads)
    if node.has(4):
        key = op.concat([node.tensor(4), key], axis=2)
        value = op.concat([node.tensor(5), value], axis=2)

    products = scores(op.widen(query), op.widen(key), node.attribute("scale", None))
    capped = _capped(products, node.attribute("softcap", 0.0))
    bias, allowed = _mask(node, key.shape[2])
    allowed = both(allowed, _positions(node, query.shape[2], key.shape[2]))
    logits = capped if bias is None else capped + bias
    weights = masked_softmax(_precise(node, logits), allowed)
    y = grouped_product(weights.astype(products.dtype), op.widen(value)).astype(query.dtype)
    y = _join_heads(y) if is_flat else y
    if node.output_count < 4:
        return y, key, value
    mode = node.attribute("qk_matmul_output_mode", 0)
    biased = logits if allowed is None else op.where(allowed, logits, -np.inf)
    return y, key, value, (products, capped, biased, weights)[mode].astype(query.dtype)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Turn (batch, positions, heads · features) into (batch, heads, positions, features)."""
    batch, positions, features = x.shape
    split = op.reshape(x, [batch, positions, heads, features // heads])
    return op.permute_dims(split, [0, 2, 1, 3])


def _join_heads(x: Tensor) -> Tensor:
    """Turn (batch, heads, positions, features) into (batch, positions, heads · features)."""
    batch, heads, positions, features = x.shape
    joined = op.permute_dims(x, [0, 2, 1, 3])
    return op.reshape(joined, [batch, positions, heads * features])


def _capped(logits: Tensor, cap: float) -> Tensor:
    """Logits kept between −cap and cap by a tanh; as they are if cap is 0."""
    return cap * op.tanh(logits / cap) if cap else logits


def _precise(node: Node, logits: Tensor) -> Tensor:
    """Logits in the precision that the node asks for, if that is more than they have."""
    requested = node.attribute("softmax_precision", None)
    dtype = logits.dtype if requested is None else str(helper.tensor_dtype_to_np_dtype(requested))
    return logits.astype("float64") if dtype == "float64" else logits


def _mask(node: Node, keys: Dimension) -> tuple[Tensor | None, Tensor | None]:
    """The mask as a term of the logits, and as the condition where it allows attention at all.

    Each is None if the mask has no such part. Entries of −∞ become part of the condition, so that
    the logits stay finite.
    """
    if not node.has(3):
        return None, None
    mask = node.tensor(3)
    is_condition = mask.dtype == "bool"
    mask = _lengthened(mask, keys, False if is_condition else -np.inf, node.opset)
    if is_condition:
        return None, mask
    bias = op.widen(mask)
    allowed = op.greater(bias, -np.inf)
    return op.where(allowed, bias, 0.0), allowed


def _lengthened(mask: Tensor, keys: Dimension, fill: float, opset: int) -> Tensor:
    """A mask over fewer keys than there are, with `fill` for the others, which forbids them.

    Before opset 24 a mask over one key is one for all keys.
    """
    mask_keys = mask.shape[-1]
    if not isinstance(mask_keys, int) or not isinstance(keys, int) or mask_keys == keys:
        return mask
    if mask_keys == 1 and opset < 24:
        return mask
    value = mask.emitter.lift(relax.const(fill, mask.dtype))  # full() takes no infinity
    forbidden = op.broadcast_to(value, [*mask.shape[:-1], keys - mask_keys])
    return op.concat([mask, forbidden], axis=mask.ndim - 1)


def _positions(node: Node, queries: Dimension, keys: Dimension) -> Tensor | None:
    """Where the causal order, the window and the sequences' lengths allow attention.

    None if they allow it everywhere.
    """
    emitter = node.emitter
    lengths = _lengths(node) if node.has(6) else None
    left, right = (_bound(node, name) for name in ("left_window_size", "right_window_size"))
    if node.attribute("is_causal", 0):
        right = 0  # a window to the right is empty then
    # The position of the first query among the keys: what is in the cache comes before it.
    offset: Any
    if lengths is not None:
        offset = lengths - _extent(node, queries)
        padding = op.less(op.indices(emitter, keys), lengths)
    else:
        offset = _extent(node, node.tensor(4).shape[2]) if node.has(4) else 0
        padding = None
    return both(band(emitter, queries, keys, offset, left, right), padding)


def _lengths(node: Node) -> Tensor:
    """How many keys of each sequence are no padding, to broadcast against (queries, keys)."""
    lengths = node.tensor(6)
    return op.reshape(lengths, [lengths.shape[0], 1, 1, 1]).astype("int64")


def _bound(node: Node, name: str) -> int | None:
    """The size of the window on one side; None, which ONNX writes as -1, if it is unbounded."""
    size = int(node.attribute(name, -1))
    if size < -1:
        raise ModelError(f"its {name} is {size}; it is -1 or more")
    return None if size == -1 else size


def _extent(node: Node, extent: Dimension) -> Dimension | Tensor:
    return extent if isinstance(extent, int) else extent_tensor(node.emitter, extent)


@converter("RotaryEmbedding")
def rotary_embedding(node: Node) -> Tensor:
    """Rotate pairs of features by the angles of their positions.

    Su et al., *RoFormer* (2021), section 3.2.2. A pair is two neighbors, or the elements of equal
    index in both halves of the features. Features behind ``rotary_embedding_dim`` stay as they are.
    """
    x = node.tensor(0)
    is_flat = x.ndim == 3
    by_heads = _split_heads(x, int(node.attribute("num_heads"))) if is_flat else x
    rotated_features = int(node.attribute("rotary_embedding_dim", 0)) or by_heads.shape[3]
    cosine, sine = (_angles(node, index) for index in (1, 2))
    interleaved = bool(node.attribute("interleaved", 0))
    a, b = _pairs(by_heads, rotated_features, interleaved)
    rotated_pairs = [cosine * a - sine * b, sine * a + cosine * b]
    y = _paired(rotated_pairs, interleaved)
    if not _is_whole(rotated_features, by_heads):
        y = op.concat(
            [y, op.strided_slice(by_heads, [3], [rotated_features], [by_heads.shape[3]])], axis=3
        )
    return _join_heads(y) if is_flat else y


def _is_whole(rotated_features: Dimension, x: Tensor) -> bool:
    """Whether all features are rotated; a symbolic number of them is taken to be."""
    return not isinstance(x.shape[3], int) or rotated_features == x.shape[3]


def _angles(node: Node, index: int) -> Tensor:
    """Cosines or sines as (batch, 1, positions, features / 2)."""
    table = node.tensor(index)
    if node.has(3):
        table = node.emitter.emit(relax.op.take(table, node.tensor(3), axis=0))
    return op.expand_dims(table, [1])


def _pairs(x: Tensor, rotated_features: int, interleaved: bool) -> list[Tensor]:
    """The first and the second features of the pairs."""
    if interleaved:
        return [op.strided_slice(x, [3], [first], [rotated_features], [2]) for first in (0, 1)]
    half = rotated_features // 2
    return [op.strided_slice(x, [3], [first], [first + half]) for first in (0, half)]


def _paired(parts: Sequence[Tensor], interleaved: bool) -> Tensor:
    """The features, from the first and the second ones of the pairs: the inverse of `_pairs`."""
    if not interleaved:
        return op.concat(parts, axis=3)
    neighbors = op.concat([op.expand_dims(part, [4]) for part in parts], axis=4)
    return op.reshape(neighbors, [*parts[0].shape[:3], 2 * parts[0].shape[3]])
