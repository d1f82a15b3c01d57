"""MobileNetV2 (Sandler et al. 2018), named and laid out as torchvision's."""

import onnx

from .builder import Activation, Batch, NetworkBuilder

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Of each stage: expansion, channels, blocks, and the stride of the first block."""


def mobilenet_v2(
    *,
    width: float = 1.0,
    classes: int = 1000,
    channels: int = 3,
    size: int = 224,
    activation: Activation = "relu6",
    training: bool = True,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a MobileNetV2, without its dropout.

    Parameters
    ----------
    width : float
        Multiplies all channels, which stay multiples of 8; the last 1280 do not shrink.
    classes, channels : int
        Output classes and input channels.
    size : int
        Height and width of the images.
    activation : 'relu', 'relu6' or 'silu'
        After each normalized convolution but the last of a block.
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
    builder = NetworkBuilder(
        "mobilenet_v2", [batch, channels, size, size], seed, activation, training
    )
    inputs = _scaled(32, width)
    x = _unit(builder, builder.input, "features.0", (channels, inputs), kernel=3, stride=2)
    number = 1
    for expansion, planes, depth, stride in _STAGES:
        outputs = _scaled(planes, width)
        for index in range(depth):
            wide = (inputs, inputs * expansion, outputs)
            x = _block(builder, x, f"features.{number}", wide, 1 if index else stride)
            inputs, number = outputs, number + 1
    last = _scaled(1280, max(width, 1.0))
    x = _unit(builder, x, f"features.{number}", (inputs, last), kernel=1)
    x = builder.flatten(builder.global_average_pool(x, "avgpool"), "flatten")
    return builder.finish(builder.linear(x, "classifier.1", (last, classes)), classes)


def _scaled(channels: int, width: float) -> int:
    """Return the multiple of 8 nearest to the scaled channels, but not below nine tenths of them.

    As the authors' own code does.
    """
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * scaled else rounded + 8


def _unit(
    builder: NetworkBuilder,
    x: str,
    name: str,
    channels: tuple[int, int],
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> str:
    """Append a convolution that keeps the size up to its stride, normalized and activated."""
    x = builder.convolution(
        x,
        f"{name}.0",
        channels,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        groups=groups,
    )
    return builder.activate(builder.batch_norm(x, f"{name}.1", channels[1]), f"{name}.2")


def _block(
    builder: NetworkBuilder, x: str, name: str, channels: tuple[int, int, int], stride: int
) -> str:
    """Append an inverted residual: wider, depthwise, narrow again; `channels` are those three."""
    inputs, wide, outputs = channels
    y, layer = x, 0
    if wide != inputs:
        y = _unit(builder, y, f"{name}.conv.{layer}", (inputs, wide), kernel=1)
        layer += 1
    y = _unit(
        builder, y, f"{name}.conv.{layer}", (wide, wide), kernel=3, stride=stride, groups=wide
    )
    y = builder.convolution(y, f"{name}.conv.{layer + 1}", (wide, outputs), kernel=1)
    y = builder.batch_norm(y, f"{name}.conv.{layer + 2}", outputs)
    return builder.add(x, y, f"{name}.add") if stride == 1 and inputs == outputs else y
