"""GPT-2 (Radford et al. 2019)."""

import onnx

from .builder import Batch
from .transformer import check_multiple, encoder_layer
from .transformer_builder import TransformerBuilder


def gpt2(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    length: int = 256,
    classes: int = 50257,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a GPT-2 whose head is its embedding; by default of 124 million parameters.

    No dropout. There are as many positions as one example has.

    Parameters
    ----------
    layers, width, heads : int
        As of `transformer_encoder`; four times as many features in between.
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
        `heads` do not divide `width`.
    """
    check_multiple("width", width, "heads", heads)
    builder = TransformerBuilder("gpt2", [batch, length], seed, tokens=True)
    x = builder.embedding(builder.input, "words", classes, width)
    x = builder.positions(x, "positions", length, width)
    mask = builder.causal_mask("mask", length)
    for index in range(layers):
        x = encoder_layer(
            builder,
            x,
            f"layers.{index}",
            (width, heads, 4 * width),
            norm_first=True,
            mask=mask,
            gelu="tanh",
        )
    x = builder.rows(builder.layer_norm(x, "norm", width), "rows", width)
    return builder.finish_tokens(builder.tied(x, "head", "words.weight"), classes)
