"""LeNet-5 (LeCun et al. 1998), with maximum pooling."""

import onnx

from .builder import Activation, Batch, NetworkBuilder


def lenet(
    *,
    size: int = 28,
    channels: int = 1,
    classes: int = 10,
    batch: Batch = "N",
    activation: Activation = "relu",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a LeNet-5: two convolutions, each pooled, and three linear layers.

    Parameters
    ----------
    size : int
        Height and width of the images, at least 12.
    channels, classes : int
        Input channels and output classes.
    batch : int or str
        Batch size; a string makes it symbolic.
    activation : 'relu', 'relu6' or 'silu'
        After each layer but the last.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input`` (batch, channels, size, size) to ``logits`` (batch, classes), both float32.
    """
    if size < 12:
        raise ValueError(f"size is at least 12, given {size}")
    builder = NetworkBuilder("lenet", [batch, channels, size, size], seed, activation)
    x = builder.convolution(builder.input, "conv1", (channels, 6), kernel=5, padding=2, bias=True)
    x = builder.max_pool(builder.activate(x, "activation1"), "pool1", kernel=2, stride=2)
    x = builder.convolution(x, "conv2", (6, 16), kernel=5, bias=True)
    x = builder.max_pool(builder.activate(x, "activation2"), "pool2", kernel=2, stride=2)
    x = builder.flatten(x, "flatten")
    pooled = (size // 2 - 4) // 2
    x = builder.linear(x, "fc1", (16 * pooled * pooled, 120))
    x = builder.linear(builder.activate(x, "activation3"), "fc2", (120, 84))
    x = builder.linear(builder.activate(x, "activation4"), "fc3", (84, classes))
    return builder.finish(x, classes)
