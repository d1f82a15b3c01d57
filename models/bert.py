"""BERT (Devlin et al. 2019) with a classifier."""

import onnx

from .builder import Batch
from .transformer import check_multiple, encoder_layer
from .transformer_builder import TransformerBuilder


def bert(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    feed_forward: int = 3072,
    sequence: int = 128,
    words: int = 30522,
    classes: int = 2,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a BERT with a classifier of its first position; by default the base size.

    One segment without padding, and no dropout.

    Parameters
    ----------
    layers, width, heads, feed_forward : int
        As of `transformer_encoder`.
    sequence : int
        Positions.
    words : int
        Size of the vocabulary.
    classes : int
        Output classes.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input``, tokens (batch, sequence), int64, to ``logits`` (batch, classes), float32.

    Raises
    ------
    ValueError
        `heads` do not divide `width`.
    """
    check_multiple("width", width, "heads", heads)
    builder = TransformerBuilder("bert", [batch, sequence], seed, tokens=True)
    x = builder.embedding(builder.input, "words", words, width)
    x = builder.positions(x, "positions", sequence, width)
    x = builder.layer_norm(x, "norm", width)
    for index in range(layers):
        sizes = width, heads, feed_forward
        x = encoder_layer(builder, x, f"layers.{index}", sizes, norm_first=False)
    x = builder.dense(builder.first(x, "first"), "pooler", (width, width))
    x = builder.linear(builder.tanh(x, "tanh"), "classifier", (width, classes))
    return builder.finish(x, classes)
