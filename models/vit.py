"""Vision transformers (Dosovitskiy et al. 2021)."""

import onnx

from .builder import Batch
from .transformer import check_multiple, encoder_layer
from .transformer_builder import TransformerBuilder


def vit(
    *,
    layers: int = 12,
    width: int = 384,
    heads: int = 6,
    patch: int = 16,
    size: int = 224,
    channels: int = 3,
    classes: int = 1000,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a vision transformer; by default ViT-S/16. ViT-B/16 has width 768 and 12 heads.

    No dropout.

    Parameters
    ----------
    layers, width, heads : int
        As of `transformer_encoder`; four times as many features in between.
    patch : int
        Height and width of the patches that are positions.
    size, channels : int
        Height and width of the images, multiples of `patch`, and their channels.
    classes : int
        Output classes.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input`` (batch, channels, size, size) to ``logits`` (batch, classes), both float32.

    Raises
    ------
    ValueError
        `heads` do not divide `width`, or `patch` does not divide `size`.
    """
    check_multiple("width", width, "heads", heads)
    check_multiple("size", size, "patch", patch)
    builder = TransformerBuilder("vit", [batch, channels, size, size], seed)
    x = builder.patches(builder.input, "patch", (channels, width), patch)
    x = builder.prepend(x, "token", width)
    x = builder.positions(x, "positions", (size // patch) ** 2 + 1, width)
    for index in range(layers):
        sizes = width, heads, 4 * width
        x = encoder_layer(builder, x, f"layers.{index}", sizes, norm_first=True)
    x = builder.first(builder.layer_norm(x, "norm", width), "first")
    return builder.finish(builder.linear(x, "head", (width, classes)), classes)
