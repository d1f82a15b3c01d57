"""VGG-16 with batch normalization (Simonyan and Zisserman 2015), named as torchvision's."""

from typing import Literal

import onnx

from .builder import Activation, Batch, NetworkBuilder

Head = Literal["imagenet", "cifar"]

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage, which ends by halving the image."""

_HIDDEN = 4096


def vgg16_bn(
    *,
    width: float = 1.0,
    head: Head = "imagenet",
    classes: int = 1000,
    channels: int = 3,
    size: int = 224,
    activation: Activation = "relu",
    training: bool = True,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a VGG-16 with batch normalization, without its dropout.

    Parameters
    ----------
    width : float
        Multiplies all channels and hidden features.
    head : 'imagenet' or 'cifar'
        Three linear layers, or one.
    classes, channels : int
        Output classes and input channels.
    size : int
        Height and width of the images, a multiple of 32.
    activation : 'relu', 'relu6' or 'silu'
        After each layer but the last.
    training : bool
        Batch normalization in training form (three outputs) or inference form.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input`` (batch, channels, size, size) to ``logits`` (batch, classes), both float32.
    """
    if head not in ("imagenet", "cifar"):
        raise ValueError(f"head is 'imagenet' or 'cifar', given {head!r}")
    if size < 32 or size % 32:
        raise ValueError(f"size is a multiple of 32, given {size}")
    builder = NetworkBuilder("vgg16_bn", [batch, channels, size, size], seed, activation, training)
    x, inputs = _features(builder, channels, width)
    features = inputs * (size // 32) ** 2
    x = builder.flatten(x, "flatten")
    if head == "imagenet":
        hidden = round(_HIDDEN * width)
        x = builder.activate(builder.linear(x, "classifier.0", (features, hidden)), "classifier.1")
        x = builder.activate(builder.linear(x, "classifier.3", (hidden, hidden)), "classifier.4")
        return builder.finish(builder.linear(x, "classifier.6", (hidden, classes)), classes)
    return builder.finish(builder.linear(x, "classifier", (features, classes)), classes)


def _features(builder: NetworkBuilder, inputs: int, width: float) -> tuple[str, int]:
    """Append the convolutions; return their output and its channels."""
    x, index = builder.input, 0  # torchvision numbers every layer
    for planes, depth in _STAGES:
        outputs = round(planes * width)
        for _ in range(depth):
            x = builder.convolution(
                x, f"features.{index}", (inputs, outputs), kernel=3, padding=1, bias=True
            )
            x = builder.batch_norm(x, f"features.{index + 1}", outputs)
            x = builder.activate(x, f"features.{index + 2}")
            inputs, index = outputs, index + 3
        x = builder.max_pool(x, f"features.{index}", kernel=2, stride=2)
        index += 1
    return x, inputs
