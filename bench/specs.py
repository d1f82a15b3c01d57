"""The models that `step.py` trains, and how their workloads are written."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from workload import Workload

from graphgrad.models import (
    mobilenet_v2,
    resnet18,
    resnet50,
    resnet_digits,
    transformer_encoder,
    vgg16_bn,
)


@dataclass(frozen=True)
class Spec:
    """A network for images of ``graphgrad.models`` and its data; `width` multiplies channels."""

    build: Callable[..., onnx.ModelProto]
    batch: int
    channels: int
    size: int
    width: float = 1.0
    classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def example(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.channels, self.size, self.size

    def proto(self) -> onnx.ModelProto:
        """Return the model, with seeded weights."""
        return self.build(
            batch=self.batch,
            channels=self.channels,
            size=self.size,
            width=self.width,
            classes=self.classes,
            **self.options,
        )


@dataclass(frozen=True)
class SequenceSpec:
    """A transformer encoder for embeddings and its data; `width` multiplies all features."""

    batch: int
    sequence: int
    features: int
    feed_forward: int
    heads: int
    layers: int
    width: float = 1.0
    classes: int = 10

    @property
    def example(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.sequence, self._scaled(self.features)

    def proto(self) -> onnx.ModelProto:
        """Return the model, with seeded weights."""
        return transformer_encoder(
            batch=self.batch,
            sequence=self.sequence,
            width=self._scaled(self.features),
            feed_forward=self._scaled(self.feed_forward),
            heads=self.heads,
            layers=self.layers,
            classes=self.classes,
        )

    def _scaled(self, features: int) -> int:
        """Return the multiple of the number of heads nearest to the scaled features, not zero."""
        return max(1, round(features * self.width / self.heads)) * self.heads


@dataclass(frozen=True)
class FamilySpec:
    """A network of `torch_networks` and its data; `width` multiplies the settings named `wide`.

    Attributes
    ----------
    family : str
    batch, classes : int
    example : tuple of int
        The shape of one example.
    settings : dict
        As of its class.
    wide : tuple of str
        The settings that are numbers of channels, multiples of `multiple`.
    multiple : int
    tokens : bool
        Whether an example consists of whole numbers below `classes`.
    positions : tuple of int
        The shape of an example's labels. The logits of tokens are rows, and so are their labels.
    """

    family: str
    batch: int
    example: tuple[int, ...]
    settings: Mapping[str, Any]
    wide: tuple[str, ...]
    multiple: int = 1
    width: float = 1.0
    classes: int = 10
    tokens: bool = False
    positions: tuple[int, ...] = ()

    def proto(self) -> onnx.ModelProto:
        """Return the model, with seeded weights."""
        networks = importlib.import_module("torch_networks")  # which needs torch
        settings = {
            key: self._scaled(value) if key in self.wide else value
            for key, value in self.settings.items()
        }
        settings["classes"] = self.classes
        return networks.proto_of(self.family, settings, self.inputs(np.random.default_rng(0)))

    def inputs(self, generator: np.random.Generator) -> np.ndarray:
        """Return random examples."""
        shape = (self.batch, *self.example)
        if self.tokens:
            return generator.integers(0, self.classes, shape)
        return generator.standard_normal(shape, dtype=np.float32)

    def labels(self, generator: np.random.Generator) -> np.ndarray:
        """Return random labels."""
        labels = generator.integers(0, self.classes, (self.batch, *self.positions))
        return labels.reshape(-1) if self.tokens else labels

    def _scaled(self, channels: Any) -> Any:
        """Return channels times the width, rounded to the multiple, not zero."""
        if isinstance(channels, tuple):
            return tuple(map(self._scaled, channels))
        return max(1, round(channels * self.width / self.multiple)) * self.multiple


AnySpec: TypeAlias = Spec | SequenceSpec | FamilySpec


SPECS: dict[str, AnySpec] = {
    "resnet_digits": Spec(resnet_digits, batch=64, channels=1, size=8, width=0.25),
    "resnet18_cifar": Spec(resnet18, batch=32, channels=3, size=32, options={"stem": "cifar"}),
    "vgg16_cifar": Spec(vgg16_bn, batch=32, channels=3, size=32, options={"head": "cifar"}),
    "resnet18": Spec(resnet18, batch=8, channels=3, size=224, classes=1000),
    "resnet50": Spec(resnet50, batch=4, channels=3, size=224, classes=1000),
    "mobilenet_v2": Spec(mobilenet_v2, batch=8, channels=3, size=224, classes=1000),
    "transformer_encoder": SequenceSpec(
        batch=8, sequence=128, features=256, feed_forward=1024, heads=8, layers=6
    ),
}

FAMILIES: dict[str, AnySpec] = {
    "vit_s": FamilySpec(
        "vit",
        batch=4,
        example=(3, 224, 224),
        settings={"size": 224, "patch": 16, "width": 384, "heads": 6, "layers": 12},
        wide=("width",),
        multiple=6,
        classes=1000,
    ),
    "gpt": FamilySpec(
        "gpt",
        batch=4,
        example=(256,),
        settings={"length": 256, "width": 512, "heads": 8, "layers": 8},
        wide=("width",),
        multiple=8,
        classes=8192,
        tokens=True,
        positions=(256,),
    ),
    "unet": FamilySpec(
        "unet",
        batch=2,
        example=(3, 128, 128),
        settings={"channels": 32, "levels": 4},
        wide=("channels",),
        multiple=8,
        positions=(128, 128),
    ),
    "convnext": FamilySpec(
        "convnext",
        batch=4,
        example=(3, 224, 224),
        settings={"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768)},
        wide=("widths",),
        classes=1000,
    ),
}
"""Of torch's exporter, which writes them where torch is installed."""

QUICK = ("resnet_digits", "resnet18_cifar")
"""What is trained unless the command line says otherwise; the others take minutes each."""


def write(spec: AnySpec, folder: Path) -> Workload:
    """Write a model with seeded weights and a random batch into a folder."""
    onnx.save(spec.proto(), folder / "model.onnx")
    generator = np.random.default_rng(0)
    if isinstance(spec, FamilySpec):
        images, labels = spec.inputs(generator), spec.labels(generator)
    else:
        images = generator.standard_normal((spec.batch, *spec.example), dtype=np.float32)
        labels = generator.integers(0, spec.classes, spec.batch)
    np.savez(folder / "batch.npz", images=images, labels=labels)
    return Workload(folder)
