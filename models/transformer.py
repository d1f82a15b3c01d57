"""Transformer encoders (Vaswani et al. 2017), named and laid out as torch's."""

import onnx

from .builder import Batch
from .transformer_builder import Gelu, TransformerBuilder


def transformer_encoder(
    *,
    layers: int = 6,
    width: int = 256,
    heads: int = 8,
    feed_forward: int = 1024,
    sequence: int = 128,
    classes: int = 10,
    norm_first: bool = False,
    dropout: float = 0.0,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a transformer encoder with a classifier of the mean over the sequence.

    Parameters
    ----------
    layers : int
        Number of encoder layers.
    width : int
        Features of each position, a multiple of `heads`.
    heads : int
        Attention heads.
    feed_forward : int
        Features between the two linear maps of a layer.
    sequence : int
        Positions.
    classes : int
        Output classes.
    norm_first : bool
        Whether layers normalize what they take, and the encoder its result (Xiong et al. 2020);
        else layers normalize their sums.
    dropout : float
        The share of what attention and the linear maps give that training drops, before it is
        added.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input``, embeddings (batch, sequence, width), to ``logits`` (batch, classes), both
        float32.

    Raises
    ------
    ValueError
        `heads` do not divide `width`.
    """
    check_multiple("width", width, "heads", heads)
    builder = TransformerBuilder("transformer_encoder", [batch, sequence, width], seed)
    x = builder.input
    for index in range(layers):
        sizes = width, heads, feed_forward
        x = encoder_layer(builder, x, f"layers.{index}", sizes, norm_first, dropout)
    if norm_first:
        x = builder.layer_norm(x, "norm", width)
    x = builder.mean(x, "mean")
    return builder.finish(builder.linear(x, "classifier", (width, classes)), classes)


def encoder_layer(
    builder: TransformerBuilder,
    x: str,
    name: str,
    sizes: tuple[int, int, int],
    norm_first: bool,
    dropout: float = 0.0,
    mask: str | None = None,
    gelu: Gelu = "erf",
) -> str:
    """Append an encoder layer, named as torch's.

    Parameters
    ----------
    builder : TransformerBuilder
    x, name : str
        What it takes, and its own name.
    sizes : tuple of int
        Its width, its heads and its features in between.
    norm_first : bool
    dropout : float
        As of `transformer_encoder`.
    mask : str, optional
        What is added to the scores of attention.
    gelu : 'erf' or 'tanh'
        How GELU is written.
    """
    width, heads, feed_forward = sizes

    def attention(x: str) -> str:
        return builder.self_attention(x, f"{name}.self_attn", width, heads, mask)

    def feed(x: str) -> str:
        x = builder.dense(x, f"{name}.linear1", (width, feed_forward))
        x = builder.gelu(x, f"{name}.gelu", gelu)
        return builder.dense(x, f"{name}.linear2", (feed_forward, width))

    for number, part in enumerate((attention, feed), start=1):
        norm = f"{name}.norm{number}"
        y = part(builder.layer_norm(x, norm, width) if norm_first else x)
        y = builder.dropout(y, f"{name}.dropout{number}", dropout)
        x = builder.add(x, y, f"{name}.add{number}")
        if not norm_first:
            x = builder.layer_norm(x, norm, width)
    return x


def check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Raise `ValueError` unless one size is a multiple of another."""
    if divisor < 1 or value % divisor:
        raise ValueError(f"{name}={value} is no multiple of {divisor_name}={divisor}")
