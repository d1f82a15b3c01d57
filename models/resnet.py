"""Residual networks (He et al. 2016), named and laid out as torchvision's."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import onnx

from .builder import Activation, Batch, NetworkBuilder

Stem = Literal["imagenet", "cifar"]
Block = Callable[[NetworkBuilder, str, str, tuple[int, int], int], str]


def resnet18(**options: Any) -> onnx.ModelProto:
    """Return a ResNet-18: basic blocks, (2, 2, 2, 2). Options as in `resnet`."""
    return resnet("resnet18", basic_block, (2, 2, 2, 2), **options)


def resnet34(**options: Any) -> onnx.ModelProto:
    """Return a ResNet-34: basic blocks, (3, 4, 6, 3). Options as in `resnet`."""
    return resnet("resnet34", basic_block, (3, 4, 6, 3), **options)


def resnet50(**options: Any) -> onnx.ModelProto:
    """Return a ResNet-50: bottleneck blocks, (3, 4, 6, 3). Options as in `resnet`."""
    return resnet("resnet50", bottleneck_block, (3, 4, 6, 3), **options)


def resnet101(**options: Any) -> onnx.ModelProto:
    """Return a ResNet-101: bottleneck blocks, (3, 4, 23, 3). Options as in `resnet`."""
    return resnet("resnet101", bottleneck_block, (3, 4, 23, 3), **options)


def resnet_digits(**options: Any) -> onnx.ModelProto:
    """Return the small residual network for 8×8 digits: one basic block at each of three widths.

    Options as in `resnet`.
    """
    digits: dict[str, Any] = {
        "width": 0.25,
        "stem": "cifar",
        "classes": 10,
        "channels": 1,
        "size": 8,
    }
    return resnet("resnet_digits", basic_block, (1, 1, 1), **(digits | options))


def resnet(
    name: str,
    block: Block,
    depths: Sequence[int],
    *,
    width: float = 1.0,
    stem: Stem = "imagenet",
    classes: int = 1000,
    channels: int = 3,
    size: int = 224,
    activation: Activation = "relu",
    training: bool = True,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a residual network.

    Parameters
    ----------
    name : str
        Name of the graph.
    block : Block
        `basic_block` or `bottleneck_block`.
    depths : sequence of int
        Blocks in each stage; each stage doubles the channels, all but the first halve the size.
    width : float
        Multiplies the 64 channels of the first stage.
    stem : 'imagenet' or 'cifar'
        A 7×7 convolution of stride 2 and a maximum pooling, or a 3×3 convolution.
    classes, channels : int
        Output classes and input channels.
    size : int
        Height and width of the images.
    activation : 'relu', 'relu6' or 'silu'
        After each normalized convolution and each sum.
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
    builder = NetworkBuilder(name, [batch, channels, size, size], seed, activation, training)
    planes = round(64 * width)
    x = _stem(builder, stem, channels, planes)
    inputs = planes
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(builder, x, f"layer{stage + 1}.{index}", (inputs, planes << stage), stride)
            inputs = (planes << stage) * EXPANSION[block]
    x = builder.flatten(builder.global_average_pool(x, "avgpool"), "flatten")
    return builder.finish(builder.linear(x, "fc", (inputs, classes)), classes)


def basic_block(
    builder: NetworkBuilder, x: str, name: str, channels: tuple[int, int], stride: int
) -> str:
    """Append two 3×3 convolutions around a shortcut."""
    planes = channels[1]
    y = builder.convolution(x, f"{name}.conv1", channels, kernel=3, stride=stride, padding=1)
    y = builder.activate(builder.batch_norm(y, f"{name}.bn1", planes), f"{name}.activation1")
    y = builder.convolution(y, f"{name}.conv2", (planes, planes), kernel=3, padding=1)
    y = builder.batch_norm(y, f"{name}.bn2", planes)
    return _join(builder, x, y, name, channels, stride=stride)


def bottleneck_block(
    builder: NetworkBuilder, x: str, name: str, channels: tuple[int, int], stride: int
) -> str:
    """Append a 1×1, a 3×3 (which carries the stride) and a 1×1 convolution around a shortcut."""
    inputs, planes = channels
    outputs = planes * EXPANSION[bottleneck_block]
    y = builder.convolution(x, f"{name}.conv1", channels, kernel=1)
    y = builder.activate(builder.batch_norm(y, f"{name}.bn1", planes), f"{name}.activation1")
    y = builder.convolution(
        y, f"{name}.conv2", (planes, planes), kernel=3, stride=stride, padding=1
    )
    y = builder.activate(builder.batch_norm(y, f"{name}.bn2", planes), f"{name}.activation2")
    y = builder.convolution(y, f"{name}.conv3", (planes, outputs), kernel=1)
    y = builder.batch_norm(y, f"{name}.bn3", outputs)
    return _join(builder, x, y, name, (inputs, outputs), stride=stride)


EXPANSION: dict[Block, int] = {basic_block: 1, bottleneck_block: 4}


def _stem(builder: NetworkBuilder, stem: Stem, channels: int, planes: int) -> str:
    if stem not in ("imagenet", "cifar"):
        raise ValueError(f"stem is 'imagenet' or 'cifar', given {stem!r}")
    kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    x = builder.convolution(
        builder.input, "conv1", (channels, planes), kernel=kernel, stride=stride, padding=padding
    )
    x = builder.activate(builder.batch_norm(x, "bn1", planes), "activation")
    if stem == "imagenet":
        x = builder.max_pool(x, "maxpool", kernel=3, stride=2, padding=1)
    return x


def _join(
    builder: NetworkBuilder, x: str, y: str, name: str, channels: tuple[int, int], *, stride: int
) -> str:
    """Add the shortcut, projected where its shape differs, and activate the sum."""
    if stride != 1 or channels[0] != channels[1]:
        x = builder.convolution(x, f"{name}.downsample.0", channels, kernel=1, stride=stride)
        x = builder.batch_norm(x, f"{name}.downsample.1", channels[1])
    return builder.activate(builder.add(y, x, f"{name}.add"), f"{name}.activation")
