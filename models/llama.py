"""Language models as LLaMA (Touvron et al. 2023)."""

import onnx

from .builder import Batch
from .transformer import check_multiple
from .transformer_builder import TransformerBuilder


def llama(
    *,
    layers: int = 8,
    width: int = 512,
    heads: int = 8,
    groups: int = 2,
    feed_forward: int = 1408,
    length: int = 256,
    classes: int = 8192,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a LLaMA: RMS norms, rotary embeddings, grouped queries, gated linear maps, no biases.

    Parameters
    ----------
    layers, width, heads : int
        As of `transformer_encoder`.
    groups : int
        Heads of keys and values.
    feed_forward : int
        Features between the linear maps of a layer.
    length : int
        Positions.
    classes : int
        Size of the vocabulary.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input``, tokens (batch, length), int64, to ``logits`` (batch · length, classes),
        float32: a row for each token, which says what follows it.

    Raises
    ------
    ValueError
        `groups` do not divide `heads`, or twice the heads the width.
    """
    check_multiple("heads", heads, "groups", groups)
    check_multiple("width", width, "2 · heads", 2 * heads)
    builder = TransformerBuilder("llama", [batch, length], seed, tokens=True)
    x = builder.embedding(builder.input, "words", classes, width)
    mask = builder.causal_mask("mask", length)
    angles = builder.angles("angles", length, width // heads, 10000.0)
    for index in range(layers):
        name = f"layers.{index}"
        y = builder.rms_norm(x, f"{name}.norm1", width)
        y = builder.grouped_attention(y, f"{name}.self_attn", width, (heads, groups), mask, angles)
        x = builder.add(x, y, f"{name}.add1")
        y = builder.rms_norm(x, f"{name}.norm2", width)
        x = builder.add(x, builder.gated(y, name, width, feed_forward), f"{name}.add2")
    x = builder.rows(builder.rms_norm(x, "norm", width), "rows", width)
    return builder.finish_tokens(builder.dense(x, "head", (width, classes), bias=False), classes)
