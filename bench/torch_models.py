"""Residual networks in torch as one writes them by hand, with the names of ``graphgrad.models``.

The structure is read from the weights' names and shapes: a state dict determines its twin. It is
for machines without onnx; where there is onnx, ``graphgrad.models.torch_twin`` takes any file.
"""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn.functional import relu


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return relu(y + self.downsample(x))


class ResidualNetwork(nn.Module):
    """A 3×3 stem, stages of basic blocks, the mean over the image, and a linear layer.

    Parameters
    ----------
    channels, classes : int
        Input channels and output classes.
    planes : list of int
        Channels of each stage; all but the first halve the image.
    depths : list of int
        Blocks of each stage.
    """

    def __init__(self, channels: int, classes: int, planes: list[int], depths: list[int]):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        self.stages = []
        inputs = planes[0]
        for stage, (outputs, depth) in enumerate(zip(planes, depths, strict=True), start=1):
            blocks = []
            for index in range(depth):
                blocks.append(BasicBlock(inputs, outputs, 2 if stage > 1 and index == 0 else 1))
                inputs = outputs
            self.stages.append(nn.Sequential(*blocks))
            self.add_module(f"layer{stage}", self.stages[-1])
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean((2, 3)))


def residual_network(weights: dict[str, torch.Tensor]) -> ResidualNetwork:
    """Return the network that a state dict belongs to, with its values.

    Parameters
    ----------
    weights : dict of str to tensor
        By the names of the ONNX file.

    Raises
    ------
    RuntimeError
        The weights are those of another kind of network.
    """
    blocks = [re.match(r"layer(\d+)\.(\d+)\.conv1\.weight", name) for name in weights]
    stages = [int(match[1]) for match in blocks if match]
    depths = [stages.count(stage) for stage in sorted(set(stages))]
    planes = [len(weights[f"layer{stage}.0.conv1.weight"]) for stage in sorted(set(stages))]
    channels = weights["conv1.weight"].shape[1]
    model = ResidualNetwork(channels, len(weights["fc.weight"]), planes, depths)
    counters = {name for name, _ in model.named_buffers() if name.endswith("num_batches_tracked")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) - counters or unexpected:
        raise RuntimeError(
            f"the weights are not those of a residual network of basic blocks: "
            f"missing {sorted(set(missing) - counters)}, unexpected {unexpected}"
        )
    return model
