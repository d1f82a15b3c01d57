"""Networks of further families, as one writes them in torch, and their ONNX files.

A network is determined by its name, its settings and a seed. The file says them, so that its twin
is the very network.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import nn
from torch.nn.functional import gelu

from graphgrad.models.torch_transformers import Block

FAMILY = "graphgrad.bench.family"
"""Where a file says what it was made of."""

SEED = 0


class VisionTransformer(nn.Module):
    """Patches as tokens (Dosovitskiy et al., 2021)."""

    def __init__(self, size: int, patch: int, width: int, heads: int, layers: int, classes: int):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads, 4 * width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Decoder(nn.Module):
    """A language model that sees what came before (Radford et al., 2019); a row for each token."""

    def __init__(self, length: int, width: int, heads: int, layers: int, classes: int):
        super().__init__()
        self.words = nn.Embedding(classes, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        blocks = [Block(width, heads, 4 * width, is_causal=True) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.words(tokens) + self.position)
        return self.head(self.norm(x)).flatten(0, 1)


class UNet(nn.Module):
    """Down, up again, and across (Ronneberger et al., 2015), with group norms.

    Parameters
    ----------
    channels : int
        Of the first level; each level has twice as many as the one before.
    levels, classes : int
    """

    def __init__(self, channels: int, levels: int, classes: int):
        super().__init__()
        widths = [channels * 2**level for level in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double(a, b) for a, b in [(3, channels), *pairs])
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.right = nn.ModuleList(_double(b, a) for a, b in reversed(pairs))
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level, down in enumerate(self.down):
            x = down(self.pool(x) if level else x)
            skips.append(x)
        skips.pop()
        for up, right in zip(self.up, self.right, strict=True):
            x = right(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Module:
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class ConvNeXt(nn.Module):
    """Large depthwise windows and norms by channel (Liu et al., 2022)."""

    def __init__(self, depths: tuple[int, ...], widths: tuple[int, ...], classes: int):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                layers += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2)]
            layers += [Wide(width) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.features(x).mean((2, 3))))


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Wide(nn.Module):
    """The block of a `ConvNeXt`."""

    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(gelu(self.up(y)))).permute(0, 3, 1, 2)


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "vit": VisionTransformer,
    "gpt": Decoder,
    "unet": UNet,
    "convnext": ConvNeXt,
}


def network(family: str, settings: Mapping[str, Any]) -> nn.Module:
    """Return a network with seeded weights, in training form."""
    torch.manual_seed(SEED)
    return FAMILIES[family](**settings).train()


def proto_of(family: str, settings: Mapping[str, Any], example: np.ndarray) -> onnx.ModelProto:
    """Return the ONNX file of a network, for batches like `example`, by torch's exporter."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network(family, settings),
            (torch.from_numpy(example),),
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            input_names=["input"],
            output_names=["logits"],
            opset_version=17,
        )
    proto = onnx.load_from_string(buffer.getvalue())
    helper.set_model_props(proto, {FAMILY: json.dumps([family, dict(settings)])})
    return proto


def network_of(proto: onnx.ModelProto) -> nn.Module | None:
    """Return the network that a file was made of; None if it is not of `proto_of`."""
    told = {entry.key: entry.value for entry in proto.metadata_props}
    return network(*json.loads(told[FAMILY])) if FAMILY in told else None
